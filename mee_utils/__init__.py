"""Early exiting in T5 generation: load, generate with exits, trace, replay, calibrate.

Names are loaded when they are first used, so that reading a profile or a table does not load torch.
"""

import warnings
from importlib import import_module

# bars go to the terminal; tqdm would write a word about missing widgets into the first cell of every notebook
warnings.filterwarnings("ignore", message="IProgress not found")

_HOME = {
    "MeeError": "common.errors",
    "Model": "models.loading",
    "AnyModel": "models.any_model",
    "load_any_model": "models.any_model",
    "load_model": "models.loading",
    "Objective": "models.objectives",
    "layer_weights": "models.objectives",
    "Task": "tasks",
    "load_task": "tasks",
    "Trace": "traces.trace",
    "trace": "traces.tracing",
    "load_trace": "traces.trace",
    "chat_prompts": "decoding.inputs",
    "detokenize": "decoding.inputs",
    "generate": "decoding.generation",
    "decode_with_exits": "decoding.from_transformers",
    "Generation": "decoding.generation",
    "EncoderCache": "decoding.inputs",
    "LayerwiseDecoder": "decoding.layerwise",
    "ExitPolicy": "exits.policy",
    "Copies": "exits.copies",
    "Measure": "exits.measures",
    "ForcedExits": "exits.measures",
    "replay": "traces.replay",
    "replay_drafts": "traces.drafts",
    "plan_drafts": "decoding.planning",
    "DraftPlan": "decoding.planning",
    "calibrate": "analysis.calibration",
    "ExitClassifier": "exits.classifier_kinds",
    "load_classifier": "exits.classifiers",
    "save_classifier": "exits.classifiers",
    "explore": "analysis.explorer",
    "explore_trace": "analysis.explorer",
    "suitability": "analysis.suitability",
    "Suitability": "analysis.suitability",
    "train_classifier": "traces.classifier_training",
    "train_exits": "models.exit_training",
    "ExitRecipe": "models.exit_training",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
