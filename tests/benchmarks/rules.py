"""`make bench`, second part: a profile's own models at the settings that notebooks found, against full depth.

Decoding is timed as users run it, in single precision, alone and in batches. Everything decodes one batch
before anything decodes the next, in random order, and full depth twice (`clock.in_random_order`): once as
what all else is set beside, and once as a contender, which shows what the clock can resolve.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from mee_utils.companion.kinds import COPIES, PLANNED, QUALITY, VERIFIED, settings_to_time
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
from mee_utils.companion.result_tables import AGAIN, OF_OUTPUTS, read_manifest, read_measured, read_table
from mee_utils.companion.rivals import BASELINE
from mee_utils.companion.training.rivals import kept_rivals, load_rival
from mee_utils.companion.verdicts import keeping, within_loss
from mee_utils.decoding import planning
from mee_utils.decoding.generation import Generation, generate
from mee_utils.decoding.planning import DraftPlan, default_policies, plan_drafts
from mee_utils.exits.classifier_kinds import ExitClassifier
from mee_utils.exits.copies import Copies
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.loading import Model
from mee_utils.tasks.loading import Task

from .clock import beside_first, in_random_order
from .scores import scores

DEMAND = 0.01  # mean consistency loss: notebook 06's
LONGEST = 8  # tokens that wait at most, where rules are compared as drafts
KEYS = ("profile", "task", "model", "batch")  # what identifies lines of a table
# that intervals resample; where the inputs make fewer, they are put in other batches again
LEAST_BATCHES = 16
WARM_UP = 2  # inputs that each contender decodes first
BATCHES = (1, 8, 32)


Contender = ExitPolicy | Copies | Model | None  # a policy, another model's full depth, or full depth itself


class Setting(NamedTuple):
    """What is timed of a model on a task, against its full depth: `labels` has a row a contender."""

    model: Model
    task: Task
    labels: pd.DataFrame
    contenders: list[Contender]
    max_new_tokens: int
    batch: int
    inputs: int | None  # how many; None: all of the task's, each once
    metric: str = ""  # by which the timed outputs are scored; needs all inputs


def reductions(experiment: Experiment) -> Iterator[Setting]:
    """Every row of notebook 03's complete table, one at a time and in batches."""
    profile = experiment.profile
    wanted = read_table(profile.name, "03_pruning", "complete_table")
    settings = read_manifest(profile.name, "03_pruning")["parameters"]
    forms = [form for form in ("unpruned", *PRUNED) if form in set(wanted.reduction)]
    policies = list(rule_policies(forms, settings["threshold"], settings).values())
    labels = pd.DataFrame({"reduction": forms})
    names = [name for name in experiment.backbones if name in set(wanted.model)]
    tasks = load_tasks(profile, "test", profile.results.timed)
    for name, task, batch in product(names, tasks, (1, BATCHES[-1])):
        model = experiment.model(name, task.name)
        number = inputs_of(experiment, task.name) // 2
        yield Setting(model, task, labels, policies, settings["max_new_tokens"], batch, number)


def exits(experiment: Experiment) -> Iterator[Setting]:
    """What keeps the quality, on test inputs: of the main model exits that decide alone, one setting a family
    (`kinds.settings_to_time`), and of each model all kinds of drafts that the last layer verifies.

    Drafts of exits, and the choice among exits, copies and both, are planned for the task and batch on
    examples for choices.
    """
    settings = experiment.profile.results
    length = settings.max_new_tokens
    planned_on = experiment.tasks(part="choices")
    names = sorted(experiment.backbones, key=lambda name: name != MAIN_MODEL)
    exits_alone = list(dict.fromkeys(replace(policy, copies=None) for policy in default_policies()))
    rows, policies = pd.DataFrame(), []
    if MAIN_MODEL in experiment.backbones:
        rows = timed_settings(experiment.profile.name)
        (main,) = experiment.models([MAIN_MODEL]).values()
        policies = policies_of(experiment, main, rows)
    for name, task, batch in product(names, load_tasks(experiment.profile, "test", settings.timed), BATCHES):
        model = experiment.model(name, task.name)
        model.network.float()
        options = {"max_new_tokens": length, "batch_size": batch}
        kinds = [{"kind": COPIES}]
        contenders = [Copies()]
        for kind, tried in {VERIFIED: exits_alone, PLANNED: None}.items():
            plan = plan_drafts(model, planned_on[task.name].inputs, tried, **options)
            kinds.append({"kind": kind, **describe_plan(plan)})
            contenders.append(plan.policy)
        labels = pd.DataFrame(kinds)
        if name == MAIN_MODEL:
            here = (rows.task == task.name).to_numpy()
            labels = pd.concat([rows.loc[here, ["kind", "rule", "threshold"]], labels], ignore_index=True)
            contenders = [*compress(policies, here), *contenders]
        number = inputs_of(experiment, task.name)
        yield Setting(model, task, labels, contenders, length, batch, number)


def inputs_of(experiment: Experiment, task: str) -> int:
    """How many inputs of a task are decoded."""
    settings = experiment.profile.results
    return settings.timed // 2 if task in settings.most_candidates else settings.timed


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
    in_batches, alone = PUBLISHED_BATCHES
    exact = labels.decoder == EXACT
    exact_policies = list(compress(policies, exact))
    for task in load_tasks(experiment.profile, "test", settings.test):
        scored = Setting(model, task, labels, policies, settings.max_new_tokens, in_batches, None)
        yield scored._replace(metric=METRICS.get(task.name, task.metric))
        number = inputs_of(experiment, task.name)
        yield scored._replace(labels=labels[exact], contenders=exact_policies, batch=alone, inputs=number)


def describe_plan(plan: DraftPlan) -> dict:
    """What a table says of a plan; it drafts nothing where full depth was faster."""
    row = {"drafts": plan.kind if plan.policy else "", "expected": plan.expected}
    row["planning_seconds"] = plan.seconds
    if policy := plan.policy:
        row |= {
            "rule": drafts_by(policy),
            "threshold": policy.threshold,
            "min_layer": policy.min_layer,
            "exit_layers": " ".join(map(str, policy.exit_layers or ())),
            "max_draft": policy.max_draft,
        }
    return row


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
    (vanilla,) = experiment.models([BASELINE]).values()
    for task, batch in product(load_tasks(profile, "test", settings.timed), BATCHES):
        number = inputs_of(experiment, task.name)
        yield Setting(vanilla, task, labels, shallow, settings.max_new_tokens, batch, number)


def drafts(experiment: Experiment) -> Iterator[Setting]:
    """The rules of 06's table as drafts that the last layer verifies, where they lose 1 % without it."""
    settings = experiment.profile.results
    rows = within_loss(read_measured(experiment.profile.name), MAIN_MODEL, DEMAND)
    rows = rows[rows.rule.isin([*SURVEY, *BESIDE_SURVEY])]
    (model,) = experiment.models([MAIN_MODEL]).values()
    policies = policies_of(experiment, model, rows)
    policies = [replace(policy, propagation="verify", max_draft=LONGEST) for policy in policies]
    for task in load_tasks(experiment.profile, "test", settings.timed):
        here = (rows.task == task.name).to_numpy()
        labels = rows.loc[here, ["rule", "threshold"]]
        number = inputs_of(experiment, task.name) // 2
        yield Setting(model, task, labels, list(compress(policies, here)), settings.max_new_tokens, 1, number)


@cache
def timed_settings(profile: str) -> pd.DataFrame:
    """`kinds.settings_to_time` of the stored measurements."""
    stored = read_measured(profile, MAIN_MODEL)
    return settings_to_time(stored, keeping(stored, MAIN_MODEL, QUALITY))


def policies_of(experiment: Experiment, model: Model, rows: pd.DataFrame) -> list[ExitPolicy]:
    """The policies of rows with `rule` and `threshold`."""
    classifiers = trained(experiment, model, rows.rule)
    options = experiment.profile.results.model_dump()
    return [RULES[row.rule].policy(row.threshold, options, classifiers) for row in rows.itertuples()]


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
    """What a table calls the rule of planned drafts; of copies it is none."""
    if planning.kind_of(policy) == "copies":
        return ""
    return policy.measure.name + (" over few ids" if policy.pruning else "")


PARTS: dict[str, Callable[[Experiment], Iterator[Setting]]] = {
    "reductions": reductions,
    "exits": exits,
    "published": published,
    "drafts": drafts,
    "rivals": rivals,
}
OF_ANY_MODELS = ("reductions", "exits")  # the others time rules on the main model, or rivals trained here
ALSO_KEYS = {"rivals": ("decoder_layers",), "exits": ("kind",)}  # few rivals may be kept here


def experiment_on(device: str, profile: str, data: str | None) -> Experiment:
    """The experiment of a profile with its models on a device, wherever the profile computes."""
    return Experiment(None, load_profile(profile, data).model_copy(update={"device": device}), data)


def keys_of(part: str) -> tuple[str, ...]:
    """What identifies lines of a part's table."""
    return (*KEYS, *ALSO_KEYS.get(part, ()))


def run(
    part: str, profile: str, data: str | None, device: str, progress: Callable[[str], None]
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
        progress(f"{profile}, {model.name}, {task.name}: {len(setting.labels)} {part}, batch {setting.batch}")
        labels = setting.labels.assign(
            profile=experiment.profile.name,
            task=task.name,
            model=model.name,
            batch=setting.batch,
            weights=weights_digest(experiment.profile, model.name)[:12],
        )
        generations = timed(setting)
        table = labels.reset_index(drop=True).join(speeds(generations))
        if setting.metric:
            table = table.join(scores(task, setting.metric, generations))
        first = [*KEYS, *setting.labels]
        rest = [name for name in table if name not in (*first, "weights")]
        tables.append(table[[*first, *rest, "weights"]])
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    if "score" in table:  # what was timed alone gets the scores of the same setting in batches
        keys = ["task", "rule", "threshold", "min_layer", "decoder"]
        table[OF_OUTPUTS] = table.groupby(keys, dropna=False)[OF_OUTPUTS].transform("first")
    return table


def timed(setting: Setting) -> list[list[Generation]]:
    """What full depth, full depth again and each contender make of each batch, `[batch][contender]`.

    A contender of None is full depth itself, and not timed a third time.
    """
    setting.model.network.float()
    batches = batches_of(setting)

    def decoding(contender: Contender):
        model, policy = setting.model, contender
        if isinstance(contender, Model):
            model, policy = contender, None

        def decode(number: int) -> Generation:
            inputs = batches[number] if number >= 0 else batches[0][:WARM_UP]
            return generate(
                model, inputs, policy, max_new_tokens=setting.max_new_tokens, batch_size=setting.batch
            )

        return decode

    contenders = dict(enumerate([None, None, *setting.contenders]))
    run = {number: decoding(one) for number, one in contenders.items() if number < 2 or one is not None}
    by_batch = in_random_order(run, len(batches))
    return [[made.get(number, made[1]) for number in contenders] for made in by_batch]


def batches_of(setting: Setting) -> list[list[str]]:
    """The inputs of each batch: all in their order, or as many full batches as intervals need."""
    inputs = setting.task.inputs[: setting.inputs]
    size = setting.batch
    if setting.inputs is None:
        return [inputs[start : start + size] for start in range(0, len(inputs), size)]
    shuffled = np.random.default_rng(0)
    full = max(1, len(inputs) // size)
    batches: list[list[str]] = []
    while len(batches) < max(full, LEAST_BATCHES):
        order = shuffled.permutation(len(inputs))
        batches += [[inputs[index] for index in each] for each in np.array_split(order[: full * size], full)]
    return batches


def speeds(generations: Sequence[Sequence[Generation]]) -> pd.DataFrame:
    """The contenders against full depth, from what `timed` returns.

    Returns:
        One row a contender: `speed` (tokens a second, full depth being 1) and `samples_speed` (samples a
        second likewise: what longer or shorter outputs do to it included) with 95 % intervals over batches,
        `low` and `high`; `again`, the speed of full depth against itself; `samples_per_second`,
        `tokens_per_second` and the number of `batches`.
    """
    seconds = np.array([[each.seconds for each in row] for row in generations])  # [batch, contender]
    tokens = np.array([[each.tokens for each in row] for row in generations])
    samples = np.array([[len(each.texts) for each in row] for row in generations])
    speed = beside_first(tokens, seconds)
    of_samples = beside_first(samples, seconds)
    table = pd.DataFrame(
        {
            "speed": speed.value,
            "low": speed.low,
            "high": speed.high,
            "samples_speed": of_samples.value,
            "samples_low": of_samples.low,
            "samples_high": of_samples.high,
            "samples_per_second": samples.sum(axis=0) / seconds.sum(axis=0),
            "tokens_per_second": tokens.sum(axis=0) / seconds.sum(axis=0),
        }
    )
    again = dict(zip(AGAIN, table.loc[1, ["speed", "low", "high"]], strict=True))
    return table[2:].assign(**again, batches=len(generations)).reset_index(drop=True)
