"""`make bench`, second part: a profile's own models at the settings that notebooks found, against full depth.

Decoding is timed as users run it: in single precision, alone and in batches. Policies take turns, round by
round, and every ratio is taken within a round; a first round warms up and is dropped.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.decoding.generation import generate
from mee_utils.decoding.planning import plan_drafts
from mee_utils.exits.classifiers import ExitClassifier
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.loading import Model
from mee_utils.study.catalogue import BESIDE_SURVEY, MAIN_MODEL, PRUNED, RULES, SURVEY, rule_policies
from mee_utils.study.experiment import Experiment
from mee_utils.study.inputs import load_tasks, weights_digest
from mee_utils.study.result_tables import KEPT, read_manifest, read_measured, read_table
from mee_utils.study.verdicts import keeping, timed, within_loss
from mee_utils.tasks.loading import Task

QUALITY, DEMAND = 0.99, 0.01  # of the full score: notebook 08's question; mean consistency loss: 06's
LONGEST = 8  # tokens that wait at most, where rules are compared as drafts
KEYS = ("profile", "task", "model", "batch")  # what identifies lines of a table
FEW = 16  # examples that are decoded one at a time
PORTIONS = 10  # rounds of what is timed on all inputs
BATCHES = (1, 8, 32)  # of lossless exits
PLANNED = ("min_layer", "exit_layers", "threshold", "max_draft")


class Setting(NamedTuple):
    """What is timed of a model on a task: `labels` has a row a policy."""

    model: Model
    task: Task
    labels: pd.DataFrame
    policies: list[ExitPolicy | None]
    max_new_tokens: int
    batches: tuple[int, ...]
    all_inputs: bool = False  # of the task, each in one of `PORTIONS` rounds; else the same in every round


def reductions(experiment: Experiment) -> Iterator[Setting]:
    """Every row of notebook 03's complete table, one at a time and in batches."""
    profile, notebook = experiment.profile.name, "03_pruning"
    wanted = read_table(profile, notebook, "complete_table")
    settings = read_manifest(profile, notebook)["parameters"]
    forms = [form for form in ("unpruned", *PRUNED) if form in set(wanted.reduction)]
    policies = list(rule_policies(forms, settings["threshold"], settings).values())
    labels, batches = pd.DataFrame({"reduction": forms}), (1, settings["batch_size"])
    names = [name for name in experiment.backbones if name in set(wanted.model)]
    for model in experiment.models(names).values():
        for task in experiment.tasks(settings["limit"]).values():
            yield Setting(model, task, labels, policies, settings["max_new_tokens"], batches)


def kept(experiment: Experiment) -> Iterator[Setting]:
    """The setting of each rule that keeps the score for certain, on all test inputs: notebook 08's answer."""
    profile, settings = experiment.profile, experiment.profile.results
    found, batches = certain(profile.name), (1, settings.batch_size)
    (model,) = experiment.models([MAIN_MODEL]).values()
    classifiers, options = trained(experiment, model), settings.model_dump()
    for task in load_tasks(profile, "test", settings.test):
        labels, policies = made(found[found.task == task.name], options, classifiers)
        yield Setting(model, task, labels, policies, settings.max_new_tokens, batches, all_inputs=True)


def results(experiment: Experiment) -> Iterator[Setting]:
    """What else notebook 08 speaks of (`study.verdicts.timed`); only the main model in batches."""
    profile = experiment.profile
    wanted = timed(read_measured(profile.name), MAIN_MODEL)
    settings = profile.results
    for name, model in experiment.models(wanted.model.unique()).items():
        classifiers = trained(experiment, model)
        options = settings.model_dump() | {"exit_layer": profile.training.exit_layer(name, model.layers)}
        batches = (1, settings.batch_size) if name == MAIN_MODEL else (1,)
        for task in experiment.tasks(settings.examples).values():
            own = wanted[(wanted.model == name) & (wanted.task == task.name)]
            labels, policies = made(own, options, classifiers)
            yield Setting(model, task, labels, policies, settings.max_new_tokens, batches)


def lossless(experiment: Experiment) -> Iterator[Setting]:
    """Drafts planned for each model, task and batch (`decoding.planning`); full depth where they lose."""
    settings = experiment.profile.results
    for model in experiment.models(experiment.backbones).values():
        model.network.float()
        for task in experiment.tasks(settings.examples).values():
            for batch in BATCHES:
                options = dict(max_new_tokens=settings.max_new_tokens, batch_size=batch)
                plan = plan_drafts(model, task.inputs, **options)
                chosen = {"rule": plan.policy and drafts_by(plan.policy)}
                chosen |= {name: getattr(plan.policy, name, None) for name in PLANNED}
                chosen["exit_layers"] = " ".join(map(str, chosen["exit_layers"] or ()))
                labels = pd.DataFrame([chosen | {"expected": plan.expected}])
                yield Setting(model, task, labels, [plan.policy], settings.max_new_tokens, (batch,))


def drafts(experiment: Experiment) -> Iterator[Setting]:
    """The rules of 06's table as drafts that the last layer verifies, where they lose 1 % without it."""
    profile, settings = experiment.profile, experiment.profile.results
    found = within_loss(read_measured(profile.name), MAIN_MODEL, DEMAND)
    found = found[found.rule.isin([*SURVEY, *BESIDE_SURVEY])]
    (model,) = experiment.models([MAIN_MODEL]).values()
    classifiers, options = trained(experiment, model), settings.model_dump()
    for task in experiment.tasks(settings.examples).values():
        labels, policies = made(found[found.task == task.name], options, classifiers)
        policies = [replace(policy, propagation="verify", max_draft=LONGEST) for policy in policies]
        yield Setting(model, task, labels, policies, settings.max_new_tokens, (1,))


def certain(profile: str) -> pd.DataFrame:
    """The last setting of each rule that keeps `QUALITY` for certain, if that saves FLOPs."""
    found = keeping(read_measured(profile), MAIN_MODEL, QUALITY)
    return found[(found.verdict == KEPT[0]) & (found.flops_share < 1)]


def made(rows: pd.DataFrame, options: dict, classifiers: dict) -> tuple[pd.DataFrame, list[ExitPolicy]]:
    """The labels and the policies of rows with `rule` and `threshold`."""
    labels = rows[["rule", "threshold"]]
    each = labels.itertuples(index=False)
    return labels, [RULES[rule].policy(threshold, options, classifiers) for rule, threshold in each]


def trained(experiment: Experiment, model: Model) -> dict[str, ExitClassifier]:
    """The first of a model's exit classifiers for each rule, as published and in single precision."""
    found = experiment.classifiers({model.name: model}, seeds=[0], survey=True)
    return {rule: one.float() for (_, rule, target), (one,) in found.items() if target == "consistency"}


def drafts_by(policy: ExitPolicy) -> str:
    """What a table calls the rule of planned drafts."""
    return policy.measure.name + (" over few ids" if policy.pruning else "")


PARTS: dict[str, Callable[[Experiment], Iterator[Setting]]] = {
    "reductions": reductions,
    "kept": kept,
    "results": results,
    "lossless": lossless,
    "drafts": drafts,
}


def run(
    part: str, profile: str, data: str | None, rounds: int, progress: Callable[[str], None]
) -> pd.DataFrame:
    """The table of one of `PARTS`: `profile`, `task`, `model`, `batch`, the labels, `speeds` and `weights`.

    Raises:
        MeeError: the notebook has not been run, or the rules of this profile have not been decoded.
    """
    experiment, tables = Experiment(None, profile, data), []
    for setting in PARTS[part](experiment):
        model, task, labels = setting.model, setting.task, setting.labels
        for batch in setting.batches:
            progress(f"{profile}, {model.name}, {task.name}: {len(labels)} {part}, batch {batch}")
            found = speeds(setting, batch, rounds)
            where = dict(profile=experiment.profile.name, task=task.name, model=model.name, batch=[batch])
            table = pd.DataFrame(where).merge(labels, how="cross").join(found)
            tables.append(table.assign(weights=weights_digest(experiment.profile, model.name)[:12]))
    return pd.concat(tables, ignore_index=True)


def speeds(setting: Setting, batch: int, rounds: int) -> pd.DataFrame:
    """The policies of a setting against full depth, in single precision; at batch 1 on its first 16 inputs.

    With all inputs each round has its own, and the policies are ranked by one half of the rounds and reported
    by the other: the fastest of many is told by inputs on which it was not chosen.

    Returns:
        One row a policy, medians over rounds: `seconds`, `samples_per_second`, `tokens_per_second`, `speed`
        (tokens a second, full depth being 1) with `lowest` and `highest`, `ranked` (the speed that they are
        ordered by), and `samples_speed` (samples a second likewise: what longer or shorter outputs do to it
        included).
    """
    setting.model.network.float()
    inputs = setting.task.inputs[: FEW if batch == 1 and not setting.all_inputs else None]
    portions = [inputs[n::PORTIONS] for n in range(PORTIONS)] if setting.all_inputs else [inputs] * rounds
    options = dict(max_new_tokens=setting.max_new_tokens, batch_size=batch)
    times = np.empty((len(portions), 1 + len(setting.policies), 2))  # [round, policy, (seconds, tokens)]
    for row, given in [(times[0], portions[0]), *zip(times, portions, strict=True)]:  # once to warm up
        for place, policy in enumerate([None, *setting.policies]):
            out = generate(setting.model, given, policy, **options)
            row[place] = out.seconds, out.tokens
    seconds, rate = times[..., 0], times[..., 1] / times[..., 0]
    samples = np.array(list(map(len, portions)))[:, None] / seconds[:, 1:]
    speed = rate[:, 1:] / rate[:, :1]
    ranked, told = (speed[::2], speed[1::2]) if setting.all_inputs else (speed, speed)
    found = {
        "seconds": np.median(seconds, axis=0)[1:],
        "samples_per_second": np.median(samples, axis=0),
        "tokens_per_second": np.median(rate, axis=0)[1:],
        "speed": np.median(told, axis=0),
        "lowest": told.min(axis=0),
        "highest": told.max(axis=0),
        "ranked": np.median(ranked, axis=0),
        "samples_speed": np.median(seconds[:, :1] / seconds[:, 1:], axis=0),
    }
    return pd.DataFrame(found)
