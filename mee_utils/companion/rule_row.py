"""`python -m mee_utils row`: a reader's rule, measured as those of `figures/results/rules.md` are.

It decides on the main model of a profile, on the same examples, with the same search for thresholds. On fewer
examples the result is called a quick look.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pandas as pd

from .. import generate, trace
from ..analysis.statistics import estimates
from ..common.errors import MeeError, check_choice, check_whole, one_line, shown
from ..exits.classifiers import load_classifier
from ..exits.measures import MEASURES, Measure
from ..exits.policy import ExitPolicy
from ..traces.replay import replay_policy
from . import verdicts
from .catalogue import MAIN_MODEL, Rule
from .experiment import Experiment
from .figures import label
from .kinds import QUALITY
from .measure import RuleDecoder
from .profiles import Profile, load_profile
from .reporting.templates import markdown
from .result_tables import KEEPS_IT, KEYS, UNDECIDED, Measured, read_table, settings_of
from .results import processor
from .running.jobs import Job

ROW = "this rule"  # its name in the tables, whatever it is called
LOSSES = (0.01, 0.05)
DELTA = 0.1  # of the guarantee
EXAMPLE = (
    "give module:Class or file.py:Class, such as my_rules:Certainty, or the checkpoint of an exit classifier"
)


class RowDecoder(RuleDecoder):
    """Measures one rule that is no rule of the study."""

    def __init__(self, experiment: Experiment, task: str, rule: Rule, limit: int | None):
        self.rule = rule
        super().__init__(experiment, Job("settings", MAIN_MODEL, task))
        if limit:
            self.tasks = {part: examples[:limit] for part, examples in self.tasks.items()}

    def _load_classifiers(self) -> dict:
        return {}

    def _rules(self) -> list[str]:
        return ["full_depth", ROW]

    def searches(self, rule: str) -> bool:
        """Whether thresholds of the rule are searched for."""
        return self.rule.thresholded

    def policy(self, rule: str, threshold: float) -> ExitPolicy:
        """The rule at a threshold."""
        return policy_of(self.rule, threshold, self.profile)

    def rehearse(self) -> None:
        """Replays and decodes one example: a mistake in the reader's class shows before hours of work."""
        inputs = self.tasks["validation"].inputs[:1]
        policy = self.policy(ROW, self.rule.measure.default_threshold)
        traced = trace(self.model, inputs, max_new_tokens=2, states=self.experiment.scratch("rehearsal.npy"))
        replay_policy(traced, policy, self.model)
        generate(self.model, inputs, policy, max_new_tokens=2)

    def table(self) -> pd.DataFrame:
        """All settings that were decoded, at full depth too."""
        return pd.concat([self.measured(rule) for rule in self.rules], ignore_index=True)


def row(
    source: str,
    profile: str,
    data: str | None = None,
    *,
    tasks: Sequence[str] = (),
    limit: int | None = None,
    pruning: str | None = None,
    name: str | None = None,
) -> str:
    """Measures a rule and returns, as Markdown, its numbers, ranks and row of `rules.md`.

    Args:
        source: `module:Class` of a `Measure` (or an instance of one), the name of one in `MEASURES`, or the
            checkpoint of an exit classifier: its file, or a folder with that file alone.
        profile, data: whose models, corpora and search.
        tasks: some of the profile's; by default all.
        limit: examples of each part, for a quick look.
        pruning: how the vocabulary is pruned, as in `ExitPolicy`; the last layer scores all tokens, as it
            does under the rules of the page.
        name: what the row is called; by default as the measure.
    """
    if limit is not None:
        check_whole("limit", limit, 2)
    loaded = load_profile(profile, data)
    chosen = [check_choice("task", task, loaded.corpora) for task in tasks] or list(loaded.corpora)
    experiment = Experiment(None, loaded)
    measure = find_rule(source, lambda: experiment.models([MAIN_MODEL])[MAIN_MODEL])
    rule = Rule(
        ROW,
        name or measure.name.replace("_", " "),
        family="one layer",
        measure=measure,
        pruning=pruning,
        prune_last_layer=pruning is None,
        thresholded=measure.has_threshold,
    )
    policy_of(rule, measure.default_threshold, loaded)  # an error before models are loaded
    decoders = {task: RowDecoder(experiment, task, rule, limit) for task in chosen}
    for decoder in decoders.values():
        decoder.rehearse()
    measured = measured_of({task: decoder.table() for task, decoder in decoders.items()}, loaded)
    return report(measured, rule.label, loaded, limit)


# ---- the rule


def policy_of(rule: Rule, threshold: float, profile: Profile) -> ExitPolicy:
    """A rule at a threshold; one that has none decides alone."""
    return rule.policy(threshold if rule.thresholded else None, profile.results.model_dump())


def find_rule(source: str, model: Callable) -> Measure:
    """The measure that a source names; `model` loads the one that a classifier belongs to."""
    if source in MEASURES:
        return MEASURES[source]()
    path = Path(source).expanduser()
    if path.exists():
        return load_classifier(_checkpoint(path), model())
    module, _, name = source.partition(":")
    if not module or not name:
        raise MeeError(f"rule={shown(source)} is neither a checkpoint nor a class: {EXAMPLE}.")
    try:
        loaded = _loaded_module(module)
    except (Exception, SystemExit) as error:  # whatever the reader's module raises
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise MeeError(f"rule={shown(source)}: {module} cannot be imported ({reason}); {EXAMPLE}.") from error
    if not hasattr(loaded, name):
        raise MeeError(f'rule={shown(source)}: {module} has no "{name}"; {EXAMPLE}.')
    return _instance(source, getattr(loaded, name))


def _checkpoint(path: Path) -> Path:
    """The file of a classifier; of a folder the only one in it."""
    if path.suffix == ".py":
        raise MeeError(f"{path} may have several classes: name one, as in {path}:MyMeasure.")
    if path.is_file():
        return path
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:3]) or "none"
        raise MeeError(f"{path} has {len(files)} files *.safetensors ({names}): name the one to measure.")
    return files[0]


def _loaded_module(module: str) -> ModuleType:
    """A module by its name, or by its file, whatever that is called (`random.py`, `rule.v2.py`)."""
    file = Path(module).expanduser().resolve()
    folder = str(file.parent if module.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a module beside the reader, however the command was started
    if not module.endswith(".py"):
        return importlib.import_module(module)
    name = f"row_of_{file.stem.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, file)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # as `import` does: dataclasses look their module up
    spec.loader.exec_module(loaded)
    return loaded


def _instance(source: str, given: object) -> Measure:
    """A measure, made from its class if need be."""
    if isinstance(given, Measure):
        return given
    if not inspect.isclass(given) or not issubclass(given, Measure):
        raise MeeError(f"rule={shown(source)} is no Measure: derive the class from mee_utils.Measure.")
    try:
        return given()
    except MeeError:
        raise
    except Exception as error:  # whatever the reader's class raises
        advice = "name an instance in the module that has its options"
        raise MeeError(f"rule={shown(source)} cannot be made ({one_line(error)}): {advice}.") from error


# ---- what is reported


def measured_of(tables: Mapping[str, pd.DataFrame], profile: Profile) -> Measured:
    """Tables of measurements, by task, in the form in which stored ones are read."""
    labels = []
    examples = []
    for task, table in tables.items():
        for part, rule, threshold, rows in settings_of(table):
            labels.append((part, task, MAIN_MODEL, rule, threshold))
            examples.append(rows)
    settings = pd.DataFrame(labels, columns=["part", *KEYS])
    results = profile.results
    return Measured(settings, examples, results.eps, tuple(results.deltas), tuple(results.risk_deltas))


def report(measured: Measured, name: str, profile: Profile, limit: int | None) -> str:
    """The numbers of a rule beside the stored ones."""
    tables = {
        f"where {QUALITY:.0%} of the score is kept": _at_quality(measured, profile),
        **{f"where the output changes by {loss:.0%}": _at_loss(measured, profile, loss) for loss in LOSSES},
        f"where a loss of {DELTA:.0%} is guaranteed": _guaranteed(measured, profile),
    }
    lines = []
    for where, by_task in tables.items():
        lines.append({"FLOPs": where} | {label(task): cell.with_interval for task, cell in by_task.items()})
        if limit is None:  # on fewer examples than the stored rules it would mean nothing
            lines.append({"FLOPs": "rank"} | {label(task): cell.rank for task, cell in by_task.items()})
    quick = (
        "**A quick look**, on fewer examples than the rules of the page: intervals are wide, and there "
        "are no ranks. "
    )
    tried = len(measured.select("validation", rule=ROW))
    how = (
        f"{quick if limit else ''}{measured.tested} test examples per task; settings tried on validation "
        f"examples: {tried}. Machine: {processor()}, {os.cpu_count()} cores. In brackets: 95 % intervals "
        "over examples; ranks are among the rules that are stored for this profile, by FLOPs. Speed is not "
        "timed here: `make bench` does that for the rules of the study."
    )
    title = f"# {name} among the rules (profile {profile.name})"
    others = "`figures/results/rules.md` has the other rules."
    return "\n\n".join([title, how, markdown(pd.DataFrame(lines)), others])


class Cell(NamedTuple):
    """What is said of the rule on one task."""

    with_interval: str
    rank: str  # "3 of 28"


Cells = Mapping[str, Cell]  # by task


def _at_quality(measured: Measured, profile: Profile) -> Cells:
    """FLOPs where 99 % of the score is kept for certain."""
    rows = verdicts.keeping(measured, MAIN_MODEL, QUALITY)
    rows = rows[rows.rule == ROW]
    stored = _stored(profile, "at_99_percent", f"verdict == '{KEEPS_IT}' and flops_share < 1")
    choices = [rows.verdict == UNDECIDED, rows.verdict != KEEPS_IT, rows.flops_share >= 1]
    texts = ["not certain", "loses more", "no saving"]
    cells = np.select(choices, texts, rows.flops_share.map("{:.0%}".format))
    return _with_ranks(rows, cells, stored)


def _at_loss(measured: Measured, profile: Profile, loss: float) -> Cells:
    """FLOPs at a mean consistency loss."""
    rows = verdicts.at_equal_loss(measured, MAIN_MODEL, [loss])
    cells = np.where(rows.reading == verdicts.BETWEEN, rows.flops_share.map("{:.0%}".format), rows.reading)
    stored = _stored(profile, "at_equal_loss", f"wanted == {loss} and reading == '{verdicts.BETWEEN}'")
    return _with_ranks(rows, cells, stored)


def _guaranteed(measured: Measured, profile: Profile) -> Cells:
    """FLOPs where the loss is guaranteed."""
    bound = "hoeffding_bentkus"
    rows = verdicts.calibrated(measured, MAIN_MODEL, {"consistency": [DELTA]}, [bound])
    cells = np.where(rows.found.astype(bool), rows.flops_share.map("{:.0%}".format), "no threshold passes")
    wanted = f"kind == 'consistency' and bound == '{bound}' and delta == {DELTA} and found"
    stored = _stored(profile, "calibrated", wanted)
    return _with_ranks(rows, cells, stored)


def _stored(profile: Profile, table: str, wanted: str) -> pd.DataFrame | None:
    """The wanted rows of a table of 08 for the rules of the study; None where it was not made."""
    try:
        return read_table(profile.name, "08_results", table).query(wanted)
    except MeeError:
        return None


def _with_ranks(rows: pd.DataFrame, cells: Sequence[str], stored: pd.DataFrame | None) -> Cells:
    """Cells with their intervals and ranks, by task; `stored` are the rules that have a number there."""
    by_task = {}
    shares = estimates(rows.reset_index(drop=True), "flops_share")
    for number, (task, text) in enumerate(zip(rows.task, cells, strict=True)):
        if text.endswith("%"):
            share = shares.item(number)
            by_task[task] = Cell(f"{share:.0%}", _rank(float(share.value), task, stored))
        else:
            by_task[task] = Cell(text, "not ranked")
    return by_task


def _rank(share: float, task: str, stored: pd.DataFrame | None) -> str:
    """ "3 of 28": how many rules are cheaper, and how many have a number, this one included."""
    if stored is None:
        return "no stored rules"
    others = stored[stored.task == task].flops_share
    return f"{1 + int((others < share).sum())} of {1 + len(others)}"
