"""Measurements: every rule decoded for real at thresholds that are searched for (`make measure`).

A job is a model and a task. A replay of validation examples gives the candidate thresholds of a rule;
decoding them bisects to what `BOUNDS` names; what is chosen there is decoded on the test examples. All of
a setting's examples are kept. Rules that are stored with the same key (weights, data, rule, settings) are not
decoded again. `store` puts the tables where notebooks 05 and 08 read them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise, product, takewhile
from pathlib import Path

import numpy as np
import pandas as pd

from .. import EncoderCache, ExitPolicy, MeeError, Trace, generate, load_task, trace, train_classifier
from ..analysis.calibration import consistency_losses
from ..analysis.decisions import candidates, overall_ranking
from ..analysis.statistics import interval
from ..common.files import complete_file
from ..traces.replay import replay_policy
from .catalogue import ABLATED, MAIN_MODEL, MAIN_SWEEP, OTHER_SWEEP, RULES, SURVEY
from .digests import digest_of
from .inputs import load_tasks, weights_digest
from .profiles import Profile
from .result_tables import MEASURED, read_measurements
from .results import Run, build_root, output_root, staged

# what decoding bisects to: the mean consistency loss; the share of the score that is lost, and its upper
# bound (97.5 %); the share of the FLOPs that is saved
BOUNDS = [("loss", bound) for bound in (0.003, 0.01, 0.02, 0.05, 0.1, 0.25)]
BOUNDS += [("lost", 0.01), ("lost_at_most", 0.01), ("saved", 0.2), ("saved", 0.4), ("saved", 0.6)]
FRESH_SEED = 101
LEARNERS = ("hidden", "wide_hidden", "three_hidden", "low_rank_three", "lstm")
LEAST = 30  # settings of a rule on the main model, where it has that many
NO_THRESHOLD = float("nan")


@dataclass(frozen=True)
class Job:
    """A model on a task, or all; `what`: "settings", "survey", "fresh", "learning" or "published_bugs"."""

    model: str
    task: str
    what: str = "settings"

    @property
    def name(self) -> str:
        """The name of its file, without ending."""
        first = {"settings": self.model, "survey": "survey"}.get(self.what)
        return f"{first}-{self.task}" if first else self.what

    def path(self, profile: Profile) -> Path:
        """Where its table is made, beside the folder of its rules."""
        return build_root() / MEASURED / profile.name / f"{self.name}.parquet"


def jobs(profile: Profile) -> list[Job]:
    """Every job of a profile, in the order of the tables: the main model first."""
    wanted = {MAIN_MODEL, *(profile.results.models or profile.training.backbones)}
    models = [name for name in profile.training.backbones if name in wanted]
    models.sort(key=lambda name: name != MAIN_MODEL)
    settings = [Job(model, task) for model in models for task in profile.corpora]
    if MAIN_MODEL in models:
        settings += [Job(MAIN_MODEL, task, "survey") for task in profile.corpora]
    endless = [task for task, corpus in profile.corpora.items() if corpus.source == "synthetic"]
    fresh = [Job(MAIN_MODEL, task, "fresh") for task in endless[-1:] if MAIN_MODEL in models]
    return [*settings, *fresh, *(Job(MAIN_MODEL, "all", what) for what in ("learning", "published_bugs"))]


def run(profile: Profile, job: Job, measure_bugs: Callable, anew: bool = False) -> Path:
    """Measures one job; returns its table. What is stored with the same key is taken, unless `anew`."""
    from .experiment import Experiment

    if job not in jobs(profile):
        raise MeeError(f"Profile {profile.name} measures no {job.what} of {job.model} on {job.task}.")
    experiment = Experiment(None, profile)
    if job.task == "all":
        found = _learning(experiment) if job.what == "learning" else _bugs(experiment, measure_bugs)
        _write(found, job.path(profile), {})
        return job.path(profile)
    bench = (_Fresh if job.what == "fresh" else _Bench)(experiment, job)
    keys = {rule: bench.key(rule) for rule in bench.rules}
    stored, tables = None if anew else read_measurements(profile.name, job.name), []
    for rule, key in keys.items():
        path = job.path(profile).with_suffix("") / f"{rule}.parquet"
        if stored is not None and stored.attrs["keys"].get(rule) == key:
            tables.append(stored[stored.rule == rule])
        else:
            if not path.exists() or pd.read_parquet(path, columns=[]).attrs.get("keys") != {rule: key}:
                _write(bench.measured(rule), path, {rule: key})
            tables.append(pd.read_parquet(path))
    _write(pd.concat(tables, ignore_index=True), job.path(profile), keys)
    return job.path(profile)


def _write(table: pd.DataFrame, path: Path, keys: dict[str, str]) -> None:
    table.attrs = {"keys": keys}  # stored with the table
    with complete_file(path) as partial:
        table.to_parquet(partial, compression="zstd", index=False)


class _Bench:
    """A model, its classifiers and the examples of a job."""

    def __init__(self, experiment, job: Job):
        self.experiment, self.job, self.profile = experiment, job, experiment.profile
        self.settings, self.model = self.profile.results, experiment.models([job.model])[job.model]
        survey = job.what == "survey"
        trained = experiment.classifiers({job.model: self.model}, seeds=[0], survey=survey)
        self.classifiers = {rule: c for (_, rule, target), (c,) in trained.items() if target == "consistency"}
        self.main = job.model == MAIN_MODEL and not survey
        names = MAIN_SWEEP if self.main else SURVEY if survey else (*OTHER_SWEEP, *ABLATED[:2])
        self.rules = ["full_depth"] if survey else ["full_depth", "static", "oracle"]
        self.rules += ["free_adaptive"] if job.model == "free" else []
        self.rules += [rule for rule in names if RULES[rule].classifier is None or rule in self.classifiers]
        self.candidates = self.settings.candidates if self.main else self.settings.other_candidates
        self.candidates = min(self.candidates, self.settings.most_candidates.get(job.task, self.candidates))
        sizes = {"validation": self.settings.validation, "test": self.settings.test}
        self.tasks = {part: load_tasks(self.profile, part, size, job.task)[0] for part, size in sizes.items()}
        self.encodings, self._full = {part: EncoderCache() for part in sizes}, {}

    def key(self, rule: str) -> str:
        """What a rule's table belongs to."""
        drawn = ("label", "family", "colour", "marker", "dashes", "idea", "source", "bug")
        about = {name: value for name, value in asdict(RULES[rule]).items() if name not in drawn}
        classifier = self.classifiers[rule].key() if rule in self.classifiers else ""
        data = [(task.digest, task.inputs) for task in self.tasks.values()]
        weights = weights_digest(self.profile, self.job.model)
        names = {"max_new_tokens", "min_layer", "top_k", "first_k", "least_k"}
        how = (self.settings.model_dump(include=names), self.candidates, LEAST, self.profile.dtype, BOUNDS)
        return digest_of([weights, classifier, about, data, how])

    def measured(self, rule: str) -> pd.DataFrame:
        """All settings of a rule: those tried on validation examples, then the chosen on test examples."""
        if rule == "full_depth":
            return pd.concat([self.full(part)[1] for part in self.tasks], ignore_index=True)
        levels, tables = self.levels(rule), {}

        def values(place: int) -> dict[str, float]:
            tables[place] = self.decode("validation", rule, levels[place])
            return summary(tables[place], self.full("validation")[1])

        if not RULES[rule].thresholded or rule == "static":
            chosen = [place for place in range(len(levels)) if values(place)]
        else:
            tried = search(len(levels), values, BOUNDS, LEAST if self.main else 0)
            chosen = sorted({last_within(tried, *bound) for bound in BOUNDS} - {-1}) or [0]
        found = [tables[place] for place in sorted(tables)]
        found += [self.decode("test", rule, levels[place]) for place in chosen]
        return pd.concat(found, ignore_index=True)

    def levels(self, rule: str) -> list[float]:
        """The thresholds of a rule that may be tried, strictest first."""
        if rule == "static":
            return [float(layer) for layer in range(self.model.layers - 1, self.settings.min_layer - 1, -1)]
        if not RULES[rule].thresholded:
            return [NO_THRESHOLD]
        replayed = replay_policy(self.trace, self.policy(rule, 1.0), self.model)
        return candidates(replayed, self.candidates, self.settings.max_new_tokens)

    @cached_property
    def trace(self) -> Trace:
        """The validation examples at full depth, with states."""
        longest, states = self.settings.max_new_tokens, self.experiment.scratch("states.npy")
        return trace(self.model, self.tasks["validation"].inputs, max_new_tokens=longest, states=states)

    def policy(self, rule: str, threshold: float) -> ExitPolicy:
        """A rule of the job at a threshold."""
        options = self.settings.model_dump()
        if rule == "free_adaptive":
            options["exit_layer"] = self.profile.training.exit_layer("free", self.model.layers)
        return RULES[rule].policy(threshold, options, self.classifiers)

    def decode(self, part: str, rule: str, threshold: float) -> pd.DataFrame:
        """One setting on the "validation" or "test" examples, a row each."""
        return self._decoded(part, rule, threshold, self.policy(rule, threshold), self.full(part)[0])[1]

    def full(self, part: str) -> tuple[list[str], pd.DataFrame]:
        """Texts and table at full depth."""
        if part not in self._full:
            self._full[part] = self._decoded(part, "full_depth", NO_THRESHOLD, None, None)
        return self._full[part]

    def _decoded(self, part, rule, threshold, policy, full) -> tuple[list[str], pd.DataFrame]:
        task, settings = self.tasks[part], self.settings
        options = dict(max_new_tokens=settings.max_new_tokens, batch_size=settings.batch_size)
        found = generate(self.model, task.inputs, policy, **options, encodings=self.encodings[part])
        columns = {
            "loss": consistency_losses(task, found.texts, full or found.texts).astype(np.float32),
            "score": task.score_examples(found.texts)[task.metric].astype(np.float32),
            "flops": found.flops.astype(np.int64),
            "tokens": np.array([len(ids) for ids in found.token_ids], dtype=np.int16),
            "layers": np.array([layers.sum() for layers in found.exit_layers], dtype=np.int32),
        }
        labels = {"part": part, "rule": rule, "threshold": threshold}
        return found.texts, pd.DataFrame(labels | {"example": np.arange(len(task), dtype=np.int32)} | columns)


class _Fresh(_Bench):
    """The main model on fresh examples, for the guarantee, at thresholds chosen for bounds on the loss."""

    def __init__(self, experiment, job: Job):
        super().__init__(experiment, Job(job.model, job.task))
        self.rules, count = self.settings.fresh_rules, self.settings.fresh_sets * self.settings.fresh_size
        self.tasks["fresh"] = load_task(job.task, "synthetic", "test", count, FRESH_SEED)
        self.encodings["fresh"] = EncoderCache()

    def measured(self, rule: str) -> pd.DataFrame:
        """All settings of a rule that the job of the model on this task measured on test examples."""
        own = pd.read_parquet(self.job.path(self.profile)).query("part == 'test' and rule == @rule")
        tables = [self.decode("fresh", rule, threshold) for threshold in own.threshold.unique()]
        return pd.concat(tables, ignore_index=True)[["rule", "threshold", "loss"]]


def _learning(experiment) -> pd.DataFrame:
    """How well classifiers of the main model rank tokens, by the number of tokens that they were trained on.

    Training examples alternate between the tasks; each classifier takes at least as many steps as those that
    are shipped. One row a variant, number of `tokens`, seed and task (`decisions.overall_ranking`).
    """
    profile, rows = experiment.profile, []
    settings, sizes = profile.classifiers, profile.results.learning_tokens
    (model,), longest = experiment.models([MAIN_MODEL]).values(), profile.training.max_target
    tasks = load_tasks(profile, "train", max(sizes) // 10)
    pairs = [pair for each in zip(*(zip(task.inputs, task.targets) for task in tasks)) for pair in each]
    inputs, targets = map(list, zip(*pairs))
    lengths = np.cumsum([min(len(ids), longest) for ids in model.tokenizer(targets).input_ids])
    enough = int(np.searchsorted(lengths, max(sizes))) + 1
    options = dict(max_new_tokens=longest, states=experiment.scratch("training.npy"))
    seen, own = trace(model, inputs[:enough], targets[:enough], **options), {}
    for task in load_tasks(profile, "test", profile.results.examples):
        options["states"] = experiment.scratch(f"{task.name}.npy")
        own[task.name] = trace(model, task.inputs, **options)
    learning = settings.model_dump(include={"batch_size", "learning_rate"})
    shipped = settings.tokens * len(tasks)
    for size, rule, seed in product(sizes, LEARNERS, range(settings.seeds)):
        part, variant = seen.first(int(seen.sequence[min(size, len(seen)) - 1]) + 1), RULES[rule].classifier
        given = variant.options(model.network.config.d_model) | learning | {"seed": seed}
        given["epochs"] = max(settings.epochs, round(settings.epochs * shipped / len(part)))
        classifier, _ = train_classifier(variant.kind, part, model, **given)
        policy = RULES[rule].policy(0.9, profile.results.model_dump(), {rule: classifier})
        for task, found in own.items():
            labels = {"task": task, "rule": rule, "tokens": len(part), "seed": seed}
            rows.append(overall_ranking(replay_policy(found, policy, model), **labels))
    return pd.concat(rows, ignore_index=True)


def _bugs(experiment, measure: Callable) -> pd.DataFrame:
    """Bugs of published code, switched on."""
    settings, training = experiment.profile.results, experiment.profile.training
    models = experiment.models([n for n in (MAIN_MODEL, "vanilla", "free") if n in training.backbones])
    exit_layer = training.exit_layer("free", models["free"].layers) if "free" in models else None
    tasks = experiment.tasks(settings.bug_examples)
    return measure(models, tasks, exit_layer, settings.max_new_tokens, settings.batch_size)


def summary(table: pd.DataFrame, full: pd.DataFrame) -> dict[str, float]:
    """What `BOUNDS` bounds, of one setting beside full depth on the same examples."""
    kept, total = table.score.to_numpy(np.float64), full.score.to_numpy(np.float64)
    lost = interval(lambda weights: 1 - (weights @ kept) / (weights @ total), len(total))
    a_token = lambda rows: rows.flops.sum() / rows.tokens.sum()
    saved = 1 - a_token(table) / a_token(full)
    return {"loss": table.loss.mean(), "lost": lost.value, "lost_at_most": lost.high, "saved": saved}


def search(places: int, values: Callable, bounds: Iterable, least: int = 0) -> dict[int, Mapping]:
    """Bisects for the last of some places (from the strictest on) within each bound (column, largest value).

    `values` decodes a place; returned are all that were. What grows from place to place is found exactly.
    Then the widest gaps are halved until `least` places are tried, or all.
    """
    tried: dict[int, Mapping] = {}

    def halve(low: int, high: int) -> bool:
        if high - low > 1:
            tried[(low + high) // 2] = values((low + high) // 2)
        return high - low > 1

    for column, bound in bounds:
        after = lambda low: min((place for place in tried if place > low), default=places)
        while halve(low := last_within(tried, column, bound), after(low)):
            pass
    while len(tried) < min(least, places):
        halve(*max(pairwise([-1, *sorted(tried), places]), key=lambda gap: gap[1] - gap[0]))
    return tried


def last_within(tried: Mapping[int, Mapping], column: str, bound: float) -> int:
    """The last place tried up to which all are within a bound; -1 if the first is not, or none was tried."""
    within = takewhile(lambda place: tried[place][column] <= bound, sorted(tried))
    return max(within, default=-1)


def store(profile: Profile) -> Path:
    """Puts the tables of all jobs, with a manifest, in their place, all at once; returns their folder."""
    folder = output_root() / profile.name / MEASURED
    with staged(folder) as results:
        made = Run(MEASURED, profile.name, profile.results.model_dump() | {"device": profile.device}, results)
        made.inputs = {f"model {name}": weights_digest(profile, name) for name in profile.training.backbones}
        for job in jobs(profile):
            made.save_file(job.path(profile))
            if job.task == "all":
                made.save_table(pd.read_parquet(job.path(profile)), job.what)
        made.finish()
    return folder
