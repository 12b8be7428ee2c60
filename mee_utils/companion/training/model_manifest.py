"""The manifest of a model: its recipe and data, the machine, its scores and where it is safe to exit."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from ... import ExitPolicy, Model, Task, generate, trace
from ...analysis.pruning import minimum_layer
from ...decoding.inputs import UNLIMITED
from ...models.costs import head_size
from ...traces.replay import replay_policy
from ..profiles import Profile, ShapeSettings
from ..results import processor

SAFE_MARGIN = 0.9  # for the first layer that is safe to exit at
SAFE_EXAMPLES = 200  # of each task
BATCH_SIZE = 64


def write_manifest(folder: Path, content: Mapping) -> None:
    """Writes the manifest of the model in a folder."""
    (folder / "manifest.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def describe_model(
    profile: Profile, name: str, model: Model, held_out: Sequence[Task], corpora: Mapping[str, Task]
) -> dict:
    """Scores a model on the held-out tasks, and says what it was made from.

    `corpora` are those that it was trained on, by name.
    """
    settings = profile.training
    scores, min_exit_layer = measure(model, held_out, settings.max_target)
    return {
        "profile": profile.name,
        "model": name,
        "recipe": settings.recipe(name).model_dump(),
        "shape": settings.shape.model_dump() if settings.shape else shape_of(model),
        "parameters": sum(weight.numel() for weight in model.network.parameters()),
        "seed": settings.seed,
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "python": platform.python_version(),
            "torch": version("torch").split("+")[0],
            "transformers": version("transformers").split("+")[0],
            "cores": os.cpu_count(),
        },
        "data": {
            corpus: {"source": Path(task.source).name, "examples": len(task), "sha256": task.digest}
            for corpus, task in corpora.items()
        },
        "scores": scores,
        "min_exit_layer": min_exit_layer,
    }


def shape_of(model: Model) -> dict:
    """The sizes of a ready model, named as in `T5Config`."""
    config = model.network.config
    if not model.causal:
        return {key: getattr(config, key) for key in ShapeSettings.model_fields}
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "d_kv": head_size(config),
        "num_heads": config.num_attention_heads,
        "d_ff": config.intermediate_size,
        "num_layers": model.layers,
        "num_decoder_layers": model.layers,
        "dropout_rate": 0.0,
    }


def measure(model: Model, held_out: Sequence[Task], max_target: int) -> tuple[dict[str, dict], int]:
    """Scores at full depth on every held-out split, and the first layer that is safe to exit at.

    That is the first one from which on, at every layer and on every task, at least 95 % of the tokens with a
    softmax margin above `SAFE_MARGIN` keep the last layer's prediction; and at least a third of the depth.
    """
    options = {"max_new_tokens": max_target, "batch_size": BATCH_SIZE}
    policy = ExitPolicy("softmax_margin", threshold=SAFE_MARGIN, min_layer=1)
    scores = {}
    safe_layer = -(-model.layers // 3)
    for task in held_out:
        generation = generate(model, task.inputs, max_source_tokens=UNLIMITED, **options)
        of_task = {"split": task.split, "examples": len(task), "sha256": task.digest}
        for metric, value in task.score(generation.texts).items():
            of_task[metric] = round(value, 2)
        if task.forms:
            of_task["exact_match_by_form"] = by_form(task, generation.texts)
        scores[task.name] = of_task
        outputs = generation.token_ids[:SAFE_EXAMPLES]
        traced = trace(model, task.inputs[: len(outputs)], outputs=outputs, **options)
        safe_layer = max(safe_layer, minimum_layer(replay_policy(traced, policy))["minimum_layer"])
    return scores, safe_layer


def by_form(task: Task, texts: Sequence[str]) -> dict[str, float]:
    """Exact match in percent for each form of question."""
    exact_match = task.score_examples(texts)["exact_match"]
    forms = np.array(task.forms)
    return {form: round(float(exact_match[forms == form].mean()), 2) for form in sorted(set(task.forms))}
