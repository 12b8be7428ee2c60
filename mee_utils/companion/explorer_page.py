"""The explorer of a profile (`make explorer`): its models, three held-out sentences a task, four rules."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..analysis.explorer import Explorer, explore
from ..tasks.loading import Task
from .catalogue import RULES
from .experiment import Experiment
from .results import build_root

MODELS = ("calm", "vanilla")
EXPLORED = ("softmax_margin", "hidden_similarity", "rising_top1", "three_hidden")
SENTENCES = 3  # of each task
CANDIDATES = 24  # of which these are chosen
LONGEST = 20  # tokens of an output that fits on the screen
MAX_NEW_TOKENS = 48


def write(profile: str, data: str | None = "") -> Path:
    """Writes `explorer.html` into the site, if that has been made, else into `build`."""
    experiment = Experiment(None, profile, data)
    models = experiment.models([name for name in MODELS if name in experiment.backbones])
    trained = experiment.classifiers(models, seeds=[0])
    tasks = worth_looking_at(next(iter(models.values())), experiment.tasks(CANDIDATES))
    runs = []
    for name, model in models.items():
        classifiers = {
            rule: classifier
            for (trained_for, rule, target), (classifier,) in trained.items()
            if (trained_for, target) == (name, "consistency")
        }
        policies = {
            RULES[rule].label: RULES[rule].policy(0.9, {"min_layer": 1}, classifiers) for rule in EXPLORED
        }
        runs += explore(model, tasks, policies, max_new_tokens=MAX_NEW_TOKENS).runs
    site = build_root() / "site"
    folder = site if site.is_dir() else build_root()
    return Explorer(runs).save(folder / "explorer.html")


def worth_looking_at(model, tasks: Mapping[str, Task]) -> dict[str, list[str]]:
    """Of each task the inputs whose output tokens exit at the most different layers; short outputs only."""
    from ..decoding.generation import generate  # loads torch

    policy = RULES["softmax_margin"].policy(0.9, {"min_layer": 1})
    chosen = {}
    for name, task in tasks.items():
        out = generate(model, task.inputs, policy, max_new_tokens=MAX_NEW_TOKENS)
        spreads = [np.std(layers) if len(layers) <= LONGEST else 0.0 for layers in out.exit_layers]
        best = np.argsort(spreads, kind="stable")[::-1][:SENTENCES]
        chosen[name] = [task.inputs[number] for number in best]
    return chosen
