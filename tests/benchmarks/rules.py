"""`make bench`, second part: a profile's own models at the settings that notebooks found, against full depth.

Decoding is timed as users run it: in single precision, alone and in batches.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import compress, product
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.companion.catalogue import (
    BESIDE_SURVEY,
    MAIN_MODEL,
    PRUNED,
    RULES,
    SURVEY,
    rule_policies,
    target_of,
)
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import load_tasks, weights_digest
from mee_utils.companion.kinds import QUALITY, settings_that_decide_alone
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.published_bugs import collapsing
from mee_utils.companion.published_setting import BATCHES as PUBLISHED_BATCHES
from mee_utils.companion.published_setting import (
    CUT,
    EXACT,
    METRICS,
    RULES_COMPARED,
    policy_of,
    published_settings,
)
from mee_utils.companion.result_tables import KEEPS_IT, OF_OUTPUTS, read_manifest, read_measured, read_table
from mee_utils.companion.rivals import BASELINE
from mee_utils.companion.training.rivals import kept_rivals, load_rival
from mee_utils.companion.verdicts import keeping, within_loss
from mee_utils.decoding.generation import Generation, generate
from mee_utils.decoding.planning import DraftPlan, plan_drafts
from mee_utils.exits.classifier_kinds import ExitClassifier
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.loading import Model
from mee_utils.tasks.loading import Task

from .clock import take_turns
from .scores import scores

DEMAND = 0.01  # mean consistency loss: notebook 06's
LONGEST = 8  # tokens that wait at most, where rules are compared as drafts
KEYS = ("profile", "task", "model", "batch")  # what identifies lines of a table
FEW = 16  # inputs that are decoded one at a time
SOME = 64  # inputs that are decoded in batches, at least one batch
PORTIONS = 10  # rounds of what is timed on all inputs
ALONE = 20  # inputs of a portion that are decoded one at a time, where outputs are not scored
WARM_UP = 2  # inputs that are decoded before the first round
BATCHES = (1, 8, 32)  # of lossless exits
PLANNED = ("rule", "min_layer", "exit_layers", "threshold", "max_draft")


Contender = ExitPolicy | Model | None  # a policy, the full depth of another model, or full depth itself


class Setting(NamedTuple):
    """What is timed of a model on a task, against its full depth: `labels` has a row a contender."""

    model: Model
    task: Task
    labels: pd.DataFrame
    contenders: list[Contender]
    max_new_tokens: int
    batches: tuple[int, ...]
    all_inputs: bool = False  # each round has its own; else the same few in every round
    metric: str = ""  # by which the timed outputs are scored; needs `all_inputs`


def reductions(experiment: Experiment) -> Iterator[Setting]:
    """Every row of notebook 03's complete table, one at a time and in batches."""
    profile = experiment.profile.name
    wanted = read_table(profile, "03_pruning", "complete_table")
    settings = read_manifest(profile, "03_pruning")["parameters"]
    forms = [form for form in ("unpruned", *PRUNED) if form in set(wanted.reduction)]
    policies = list(rule_policies(forms, settings["threshold"], settings).values())
    labels = pd.DataFrame({"reduction": forms})
    batches = (1, settings["batch_size"])
    names = [name for name in experiment.model_names if name in set(wanted.model)]
    tasks = experiment.tasks(settings["limit"])
    for name, task in product(names, tasks.values()):
        model = experiment.model(name, task.name)
        yield Setting(model, task, labels, policies, settings["max_new_tokens"], batches)


def kept(experiment: Experiment) -> Iterator[Setting]:
    """What keeps the score (`kinds.settings_that_decide_alone`), on test inputs: notebook 08's answer.

    Settings that save no FLOPs are timed one output at a time alone: in batches all of them would take hours.
    """
    settings = experiment.profile.results
    rows = deciding_alone(experiment.profile.name)
    (model,) = experiment.models([MAIN_MODEL]).values()
    classifiers = trained(experiment, model, rows.rule)
    for task in load_tasks(experiment.profile, "test", settings.test):
        of_task = rows[rows.task == task.name]
        for batch, timed_rows in ((1, of_task), (settings.batch_size, of_task[of_task.flops_share < 1])):
            labels, policies = labelled_policies(timed_rows, settings.model_dump(), classifiers)
            yield Setting(model, task, labels, policies, settings.max_new_tokens, (batch,), all_inputs=True)


def published(experiment: Experiment) -> Iterator[Setting]:
    """MEE's main figure (`companion.published_setting`) on test inputs.

    In batches, as published, all are decoded and scored. Alone, a few are timed, without the published cut:
    what exact decoding gives does not depend on the batch (see `run`).
    """
    settings = experiment.profile.results
    (model,) = experiment.models([MAIN_MODEL]).values()
    labels = published_settings(model.layers)
    classifiers = trained(experiment, model, RULES_COMPARED)
    policies = []
    for row in labels.itertuples():
        policy = policy_of(row, settings.model_dump(), classifiers)
        policies.append(collapsing(policy, settings.max_new_tokens) if row.decoder == CUT else policy)
    in_batches, *alone = PUBLISHED_BATCHES
    exact = labels.decoder == EXACT
    exact_policies = list(compress(policies, exact))
    for task in load_tasks(experiment.profile, "test", settings.test):
        timed_on_all = Setting(
            model, task, labels, policies, settings.max_new_tokens, (in_batches,), all_inputs=True
        )
        yield timed_on_all._replace(metric=METRICS.get(task.name, task.metric))
        yield timed_on_all._replace(labels=labels[exact], contenders=exact_policies, batches=tuple(alone))


def lossless(experiment: Experiment) -> Iterator[Setting]:
    """Drafts planned for each model, task and batch (`decoding.planning`); full depth where they lose.

    They are planned on examples for choices, and timed on test inputs, as exit rules are (`kept`).
    """
    settings = experiment.profile.results
    length = settings.max_new_tokens
    planned_on = experiment.tasks(part="choices")
    tasks = load_tasks(experiment.profile, "test", settings.test)
    for name, task, batch in product(experiment.backbones, tasks, BATCHES):
        model = experiment.model(name, task.name)
        model.network.float()
        plan = plan_drafts(model, planned_on[task.name].inputs, max_new_tokens=length, batch_size=batch)
        labels = pd.DataFrame([describe_plan(plan)])
        yield Setting(model, task, labels, [plan.policy], length, (batch,), all_inputs=True)


def describe_plan(plan: DraftPlan) -> dict:
    """What a table says of a plan; nothing but `expected` and its time where full depth was faster."""
    policy = plan.policy
    if policy is None:
        row = dict.fromkeys(PLANNED) | {"exit_layers": ""}
    else:
        row = {
            "rule": drafts_by(policy),
            "min_layer": policy.min_layer,
            "exit_layers": " ".join(map(str, policy.exit_layers or ())),
            "threshold": policy.threshold,
            "max_draft": policy.max_draft,
        }
    return row | {"expected": plan.expected, "planning_seconds": plan.seconds}


def rivals(experiment: Experiment) -> Iterator[Setting]:
    """Decoders trained shallow, as far as weights are kept here, against the full depth of `vanilla`."""
    profile = experiment.profile
    settings = profile.results
    shallow = [load_rival(profile, job) for job in kept_rivals(profile)]
    if not shallow:
        return
    for model in shallow:
        model.network.float()
    labels = pd.DataFrame({"decoder_layers": [model.layers for model in shallow]})
    batches = (1, settings.batch_size)
    (vanilla,) = experiment.models([BASELINE]).values()
    for task in load_tasks(profile, "test", settings.test):
        yield Setting(vanilla, task, labels, shallow, settings.max_new_tokens, batches, all_inputs=True)


def drafts(experiment: Experiment) -> Iterator[Setting]:
    """The rules of 06's table as drafts that the last layer verifies, where they lose 1 % without it."""
    settings = experiment.profile.results
    rows = within_loss(read_measured(experiment.profile.name), MAIN_MODEL, DEMAND)
    rows = rows[rows.rule.isin([*SURVEY, *BESIDE_SURVEY])]
    (model,) = experiment.models([MAIN_MODEL]).values()
    classifiers = trained(experiment, model, rows.rule)
    for task in experiment.tasks(settings.examples).values():
        labels, policies = labelled_policies(rows[rows.task == task.name], settings.model_dump(), classifiers)
        policies = [replace(policy, propagation="verify", max_draft=LONGEST) for policy in policies]
        yield Setting(model, task, labels, policies, settings.max_new_tokens, (1,))


@cache
def certain(profile: str) -> pd.DataFrame:
    """The setting of each rule that keeps `QUALITY` for certain, if that saves FLOPs."""
    rows = keeping(read_measured(profile, MAIN_MODEL), MAIN_MODEL, QUALITY)
    return rows[(rows.verdict == KEEPS_IT) & (rows.flops_share < 1)]


def deciding_alone(profile: str) -> pd.DataFrame:
    """`kinds.settings_that_decide_alone` of the stored measurements."""
    stored = read_measured(profile, MAIN_MODEL)
    kept = keeping(stored, MAIN_MODEL, QUALITY)
    return settings_that_decide_alone(kept, stored.rows(model=MAIN_MODEL, rule="static"))


def labelled_policies(
    rows: pd.DataFrame, options: dict, classifiers: dict
) -> tuple[pd.DataFrame, list[ExitPolicy]]:
    """The labels and the policies of rows with `rule` and `threshold`."""
    labels = rows[["rule", "threshold"]]
    policies = [RULES[row.rule].policy(row.threshold, options, classifiers) for row in rows.itertuples()]
    return labels, policies


def trained(experiment: Experiment, model: Model, rules: Iterable[str]) -> dict[str, ExitClassifier]:
    """The first of a model's exit classifiers for each of the rules that has one, in single precision."""
    names = set(rules)
    if not names:
        return {}
    targets = {target_of(rule) for rule in names}
    by_key = experiment.classifiers(
        {model.name: model}, seeds=[0], survey=True, variants=names, targets=targets
    )
    return {rule: one.float() for (_, rule, target), (one,) in by_key.items() if target == target_of(rule)}


def drafts_by(policy: ExitPolicy) -> str:
    """What a table calls the rule of planned drafts."""
    return policy.measure.name + (" over few ids" if policy.pruning else "")


PARTS: dict[str, Callable[[Experiment], Iterator[Setting]]] = {
    "reductions": reductions,
    "kept": kept,
    "published": published,
    "lossless": lossless,
    "drafts": drafts,
    "rivals": rivals,
}
OF_ANY_MODELS = ("reductions", "lossless")  # the others time rules on the main model, or rivals trained here


def experiment_on(device: str, profile: str, data: str | None) -> Experiment:
    """The experiment of a profile with its models on a device, wherever the profile computes."""
    return Experiment(None, load_profile(profile, data).model_copy(update={"device": device}), data)


def keys_of(part: str) -> tuple[str, ...]:
    """What identifies lines of a part's table: of rivals their size too, since few may be kept here."""
    return (*KEYS, "decoder_layers") if part == "rivals" else KEYS


def run(
    part: str, profile: str, data: str | None, device: str, rounds: int, progress: Callable[[str], None]
) -> pd.DataFrame:
    """The table of one of `PARTS`: `profile`, `task`, `model`, `batch`, the labels, `speeds` and `weights`.

    It has no rows where the part has nothing to time: no weights of rivals are kept here.

    Raises:
        MeeError: the notebook has not been run, or the rules of this profile have not been decoded.
    """
    experiment = experiment_on(device, profile, data)
    tables = []
    for setting in PARTS[part](experiment):
        model = setting.model
        task = setting.task
        for batch in setting.batches:
            progress(f"{profile}, {model.name}, {task.name}: {len(setting.labels)} {part}, batch {batch}")
            labels = setting.labels.assign(
                profile=experiment.profile.name,
                task=task.name,
                model=model.name,
                batch=batch,
                weights=weights_digest(experiment.profile, model.name)[:12],
            )
            generations = in_turns(setting, batch, rounds)
            table = labels.reset_index(drop=True).join(speeds(setting, generations))
            if setting.metric:
                table = table.join(scores(setting.task, setting.metric, generations))
            first = [*KEYS, *setting.labels]
            rest = [name for name in table if name not in (*first, "weights")]
            tables.append(table[[*first, *rest, "weights"]])
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    if "score" in table:  # what was timed alone gets the scores of the same setting in batches
        keys = ["task", "rule", "threshold", "min_layer", "decoder"]
        table[OF_OUTPUTS] = table.groupby(keys, dropna=False)[OF_OUTPUTS].transform("first")
    return table


def in_turns(setting: Setting, batch: int, rounds: int) -> list[list[Generation]]:
    """What full depth and then each contender give in each round, `[round][contender]`, in single precision.

    A contender of None is full depth itself, and not timed twice.
    """
    setting.model.network.float()
    portions = portions_of(setting, batch, rounds)

    def decoding(contender: Contender):
        model, policy = setting.model, contender
        if isinstance(contender, Model):
            model, policy = contender, None

        def decode(number: int) -> Generation:
            inputs = portions[number] if number >= 0 else portions[0][:WARM_UP]
            return generate(model, inputs, policy, max_new_tokens=setting.max_new_tokens, batch_size=batch)

        return decode

    contenders = dict(enumerate([None, *setting.contenders]))
    timed = {number: one for number, one in contenders.items() if number == 0 or one is not None}
    rounds_of = take_turns({number: decoding(one) for number, one in timed.items()}, len(portions))
    return [[turns.get(number, turns[0]) for number in contenders] for turns in rounds_of]


def portions_of(setting: Setting, batch: int, rounds: int) -> list[list[str]]:
    """The inputs of each round.

    With `all_inputs` each round has its own: a tenth of all, or one at a time 20 of that tenth, unless the
    outputs are scored. Else all rounds have the same: 16 one at a time, 64 in batches, or one batch.
    """
    inputs = setting.task.inputs
    alone = batch == 1
    if setting.all_inputs:
        most = ALONE if alone and not setting.metric else None
        return [inputs[number::PORTIONS][:most] for number in range(min(PORTIONS, len(inputs)))]
    most = FEW if alone else max(1, SOME // batch) * batch
    return [inputs[:most]] * rounds


def speeds(setting: Setting, generations: list[list[Generation]]) -> pd.DataFrame:
    """The contenders of a setting against full depth, from what `in_turns` returns.

    With all inputs the contenders are ranked by one half of the rounds and reported by the other: the speed
    of the fastest of many comes from inputs on which it was not chosen.

    Returns:
        One row a contender, medians over rounds: `seconds`, `samples_per_second`, `tokens_per_second`,
        `speed` (tokens a second, full depth being 1) with `lowest` and `highest`, `ranked` (the speed that
        they are ordered by), and `samples_speed` (samples a second likewise: what longer or shorter outputs
        do to it included).
    """
    seconds = np.array([[each.seconds for each in row] for row in generations])  # [round, contender]
    tokens = np.array([[each.tokens for each in row] for row in generations])
    samples = np.array([[len(row[0].texts)] for row in generations])
    rate = tokens[:, 1:] / seconds[:, 1:]  # of the contenders, in tokens a second
    full_rate = tokens[:, :1] / seconds[:, :1]
    speed = rate / full_rate
    samples_speed = seconds[:, :1] / seconds[:, 1:]
    ranked = reported = speed
    if setting.all_inputs and len(speed) > 1:
        ranked = speed[::2]
        reported = speed[1::2]
    return pd.DataFrame(
        {
            "seconds": np.median(seconds[:, 1:], axis=0),
            "samples_per_second": np.median(samples / seconds[:, 1:], axis=0),
            "tokens_per_second": np.median(rate, axis=0),
            "speed": np.median(reported, axis=0),
            "lowest": reported.min(axis=0),
            "highest": reported.max(axis=0),
            "ranked": np.median(ranked, axis=0),
            "samples_speed": np.median(samples_speed, axis=0),
            "samples_lowest": samples_speed.min(axis=0),
            "samples_highest": samples_speed.max(axis=0),
        }
    )
