"""The reproducible companion for early exiting in T5 generation.

Everything a notebook uses is importable from here. Names are loaded when they are first used, so that reading a profile or
a table does not load torch.
"""

import warnings
from importlib import import_module

# Bars go to the terminal; without this, tqdm writes a word about missing widgets into the first cell of every notebook.
warnings.filterwarnings("ignore", message="IProgress not found")

_HOME = {
    "CompanionError": "errors",
    "Companion": "companion",
    "Model": "models.loading",
    "load_model": "models.loading",
    "Objective": "models.objectives",
    "block_weights": "models.objectives",
    "Task": "tasks",
    "load_task": "tasks",
    "Trace": "decoding.tracing",
    "trace": "decoding.tracing",
    "load_trace": "decoding.tracing",
    "greedy": "decoding.greedy",
    "detokenize": "decoding.greedy",
    "generate": "decoding.generation",
    "Generation": "decoding.generation",
    "LayerwiseDecoder": "decoding.layerwise",
    "ExitPolicy": "exits.policy",
    "Measure": "exits.measures",
    "ForcedExits": "exits.measures",
    "replay": "evaluation.replay",
    "calibrate": "evaluation.calibration",
    "ExitClassifier": "exits.classifiers",
    "load_classifier": "exits.classifiers",
    "save_classifier": "exits.classifiers",
    "train_classifier": "exits.training",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
