"""The explorer of a profile (`make explorer`): its models, a few held-out sentences a task, four rules."""

from pathlib import Path

from ..analysis.explorer import Explorer, explore
from .catalogue import RULES
from .experiment import Experiment
from .results import build_root

MODELS = ("calm", "vanilla")
EXPLORED = ("softmax_margin", "hidden_similarity", "rising_top1", "three_hidden")
SENTENCES = 3  # of each task
MAX_NEW_TOKENS = 48


def write(profile: str, data: str | None = "") -> Path:
    """Writes `explorer.html` into the site, if that has been made, else into `build`."""
    experiment = Experiment(None, profile, data)
    models = experiment.models([name for name in MODELS if name in experiment.backbones])
    trained = experiment.classifiers(models, seeds=[0])
    tasks = experiment.tasks(SENTENCES)
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
