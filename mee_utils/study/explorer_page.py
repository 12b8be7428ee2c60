"""The explorer of a profile (`make explorer`): its models, a few held-out sentences a task, four rules."""

from pathlib import Path

from ..analysis.explorer import Explorer, explore
from .catalogue import RULES
from .experiment import Experiment
from .results import build_root

MODELS, SENTENCES, LONGEST = ("calm", "vanilla"), 3, 48
EXPLORED = ("softmax_margin", "hidden_similarity", "rising_top1", "three_hidden")


def write(profile: str, data: str | None = "") -> Path:
    """Writes `explorer.html` into the site, if that has been made, else into `build`."""
    experiment, found = Experiment(None, profile, data), []
    models = experiment.models([name for name in MODELS if name in experiment.backbones])
    trained, tasks = experiment.classifiers(models, seeds=[0]), experiment.tasks(SENTENCES)
    for name, model in models.items():
        known = {r: one for (of, r, goal), (one,) in trained.items() if (of, goal) == (name, "consistency")}
        policies = {RULES[rule].label: RULES[rule].policy(0.9, {"min_layer": 1}, known) for rule in EXPLORED}
        found += explore(model, tasks, policies, max_new_tokens=LONGEST).runs
    build = build_root()
    return Explorer(found).save((build / "site" if (build / "site").is_dir() else build) / "explorer.html")
