"""Measurements: every rule decoded for real at thresholds that are searched for (`make measure`).

A job is a model and a task (`jobs.measurements`). A replay of validation examples gives the candidate
thresholds of a rule; decoding them bisects to `SEARCHED_BOUNDS`; what is chosen there is decoded on the test
examples. All of a setting's examples are kept. A rule whose search has not changed since it was stored is not
measured again, and where only the search has changed, no stored setting is decoded anew (`RuleDecoder.keys`).
`store` puts the tables where notebooks 05, 06, 08 and 09 read them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise, product, takewhile
from pathlib import Path

import numpy as np
import pandas as pd

from .. import EncoderCache, ExitPolicy, MeeError, Trace, generate, load_task, trace, train_classifier
from ..analysis.beside_full import mean_exit_layer
from ..analysis.calibration import consistency_losses
from ..analysis.decisions import overall_ranking
from ..analysis.statistics import DRAWS, interval
from ..analysis.threshold_choice import candidates
from ..common.files import complete_file
from ..decoding.generation import Generation, bind_policy
from ..decoding.inputs import input_ids
from ..decoding.layerwise import decoder_of
from ..exits.measures import ForcedExits
from ..models.costs import DecoderSizes, encoder_flops
from ..traces.replay import replay_policy
from .catalogue import ABLATED, HEADS, MAIN_MODEL, MAIN_SWEEP, OTHER_SWEEP, RULES, SURVEY, target_of
from .inputs import load_tasks, weights_digest
from .learned_from import learned_from
from .profiles import Profile
from .published_bugs import measure_bugs
from .result_tables import MEASURED, ORACLE_CHARGED, measured_before
from .results import Run, output_root, staged
from .running.digests import digest_of
from .running.jobs import ALL, Job, measurements

# What decoding bisects to, for each column of `summary` its largest value: the mean consistency loss; the
# share of the score that is lost, and the upper end of its interval (97.5 %); the share of the FLOPs that
# is saved.
SEARCHED_BOUNDS = (
    *(("loss", bound) for bound in (0.003, 0.01, 0.02, 0.05, 0.1, 0.25)),
    ("lost", 0.01),
    ("lost_at_most", 0.01),
    *(("saved", bound) for bound in (0.2, 0.4, 0.6)),
)
FRESH_SEED = 101
LEARNERS = ("hidden", "wide_hidden", "three_hidden", "low_rank_three", "lstm")
MARGIN_THRESHOLDS = (0.99, 0.97, 0.9, 0.7, 0.5, 0.3)  # that are decoded with copied and with exact states
CHEAPEST = "few"  # the rule whose decisions cost least
ORACLE_DRAFT = 8  # tokens that wait at most where the oracle's exits are verified
LEAST_SETTINGS = 30  # of a rule on the main model, where it has that many and outputs are not long
NO_THRESHOLD = float("nan")
ONE_PAGE = 2**28  # rows, or bytes: pages are compressed one by one, so that a column is one
DRAWN = ("label", "family", "marker", "dashes", "idea", "source", "bug")  # of a rule: only for figures
LATER_OPTIONS = [("prune_last_layer", True)]  # of a rule; at these values they leave stored keys as they were
DECODED_WITH = {"max_new_tokens", "min_layer", "top_k", "first_k", "least_k"}  # settings that a key holds


def run(profile: Profile, job: Job, anew: bool = False) -> Path:
    """Measures one job; returns its table.

    The rules of a job are stored ones, those of an interrupted run, and those that are decoded now.

    Args:
        profile: whose models, corpora and settings.
        job: one of `jobs.measurements`.
        anew: whether what is stored with the same key is decoded again.
    """
    from .experiment import Experiment

    if job not in measurements(profile):
        raise MeeError(f"Profile {profile.name} measures no {job.kind} of {job.model} on {job.task}.")
    experiment = Experiment(None, profile)
    path = job.path(profile)
    at_once = {
        "inputs": _inputs,
        "learning": _learning,
        "learned_from": learned_from,
        "published_bugs": _bugs,
    }
    if job.kind in at_once:
        _write(at_once[job.kind](experiment), path, {})
        return path
    decoder = {"fresh": FreshDecoder, "oracle": OracleDecoder}.get(job.kind, RuleDecoder)(experiment, job)
    stored = None if anew else measured_before(profile.name, job.name)
    keys = {rule: decoder.keys(rule) for rule in decoder.rules}
    tables = [_rule_table(decoder, rule, keys[rule], path, stored) for rule in decoder.rules]
    _write(pd.concat(tables, ignore_index=True), path, keys)
    return path


def _rule_table(
    decoder: "RuleDecoder", rule: str, keys: dict[str, str], path: Path, stored: pd.DataFrame | None
) -> pd.DataFrame:
    """The table of a rule: as it is stored, as an interrupted run left it, or measured now."""
    part = path.with_suffix("") / f"{rule}.parquet"
    interrupted = pd.read_parquet(part) if part.exists() else None
    for table in (stored, interrupted):
        stored_keys = {} if table is None else table.attrs.get("keys", {}).get(rule, {})
        if stored_keys == keys:
            return table[table.rule == rule]
        if stored_keys.get("decoding") == keys["decoding"]:
            decoder.take(table[table.rule == rule])
    _write(decoder.measured(rule), part, {rule: keys})
    return pd.read_parquet(part)


def _write(table: pd.DataFrame, path: Path, keys: Mapping[str, dict[str, str]]) -> None:
    """Stores a table with its keys, as small as it gets: everyone clones it.

    Draws are kept in single precision; every other number is read back as it was. The rows of an example
    stand together, in the order of the settings: neighbouring thresholds mostly give it the same output,
    and what repeats takes no room. Within a setting the examples keep their order.
    """
    draws = [name for name in table if str(name).endswith(DRAWS)]
    stored = table.assign(**{name: [np.asarray(row, np.float32) for row in table[name]] for name in draws})
    if "example" in table:
        stored = stored.sort_values("example", kind="stable")
    stored.attrs = {"keys": keys}
    texts = [name for name in table if name not in draws and not pd.api.types.is_numeric_dtype(table[name])]
    counts = [name for name in table if pd.api.types.is_integer_dtype(table[name])]
    with complete_file(path) as partial:
        stored.to_parquet(
            partial,
            index=False,
            compression="zstd",
            compression_level=19,
            use_dictionary=texts,  # numbers are smaller without
            use_byte_stream_split=[*counts, *(f"{name}.list.element" for name in draws)] or False,
            data_page_size=ONE_PAGE,
            max_rows_per_page=ONE_PAGE,
        )


class RuleDecoder:
    """Decodes the rules of a job: a model, its classifiers and the examples of both parts.

    `rules` are the names of those that are measured; `tasks` the validation and the test examples.
    """

    def __init__(self, experiment, job: Job):
        self.experiment = experiment
        self.job = job
        self.profile = experiment.profile
        self.settings = self.profile.results
        self.model = experiment.models([job.model])[job.model]
        self.is_main = job.model == MAIN_MODEL and job.kind != "survey"
        self.classifiers = self._load_classifiers()
        self.rules = self._rules()
        self.candidates = self.settings.candidates if self.is_main else self.settings.other_candidates
        self.least_settings = LEAST_SETTINGS if self.is_main else 0
        if job.task in self.settings.most_candidates:  # its outputs are long
            self.candidates = min(self.candidates, self.settings.most_candidates[job.task])
            self.least_settings = 0
        sizes = {"validation": self.settings.validation, "test": self.settings.test}
        self.tasks = {part: load_tasks(self.profile, part, size, job.task)[0] for part, size in sizes.items()}
        self.encodings = {part: EncoderCache() for part in sizes}
        self._full: dict[str, tuple[list[str], pd.DataFrame]] = {}
        self._taken: dict[tuple[str, str, float | None], pd.DataFrame] = {}  # see `take`

    def _load_classifiers(self) -> dict:
        """The classifiers of the rules that are swept, by rule."""
        wanted = [rule for rule in self._swept() if RULES[rule].classifier]
        if not wanted:
            return {}
        trained = self.experiment.classifiers(
            {self.job.model: self.model},
            seeds=[0],
            survey=self.job.kind == "survey",
            variants=wanted,
            targets={target_of(rule) for rule in wanted},
        )
        return {
            rule: classifiers[0]
            for (_, rule, target), classifiers in trained.items()
            if target == target_of(rule)
        }

    def _swept(self) -> tuple[str, ...]:
        """The rules whose thresholds are searched for, whether their classifiers are there or not."""
        if self.job.kind == "survey":
            return SURVEY
        if self.is_main:
            return MAIN_SWEEP
        heads = HEADS if self.job.model == "vanilla" else ()
        return (*OTHER_SWEEP, *ABLATED[:2], *heads)

    def _rules(self) -> list[str]:
        swept = [rule for rule in self._swept() if not RULES[rule].classifier or rule in self.classifiers]
        beside = [] if self.job.kind == "survey" else ["static", "oracle"]
        adaptive = ["free_adaptive"] if self.job.model == "free" else []
        return ["full_depth", *beside, *adaptive, *swept]

    def keys(self, rule: str) -> dict[str, str]:
        """What a rule's table belongs to, as digests; stored with it, in `attrs`.

        Returns:
            "decoding": of weights, classifier, rule and examples: a setting of the same threshold is the
            same; "search": of these, and of how thresholds are searched for: the whole table is the same.
        """
        options = {
            name: value
            for name, value in asdict(RULES[rule]).items()
            if name not in DRAWN and (name, value) not in LATER_OPTIONS
        }
        classifier = self.classifiers[rule].key() if rule in self.classifiers else ""
        data = [(task.digest, task.inputs) for task in self.tasks.values()]
        weights = weights_digest(self.profile, self.job.model)
        settings = self.settings.model_dump(include=DECODED_WITH)
        decoding = digest_of([weights, classifier, options, data, settings, self.profile.dtype])
        search = digest_of([decoding, self.candidates, self.least_settings, SEARCHED_BOUNDS])
        return {"decoding": decoding, "search": search}

    def take(self, table: pd.DataFrame) -> None:
        """Takes settings of a rule that were decoded before, so that `decode` need not."""
        for setting, examples in table.groupby(["part", "rule", "threshold"], dropna=False, sort=False):
            self._taken[_comparable(*setting)] = examples

    def measured(self, rule: str) -> pd.DataFrame:
        """All settings of a rule: those tried on validation examples, then the chosen on test examples."""
        if rule == "full_depth":
            return pd.concat([self.full(part)[1] for part in self.tasks], ignore_index=True)
        thresholds = self.thresholds(rule)
        tables = {}

        def values(index: int) -> dict[str, float]:
            tables[index] = self.decode("validation", rule, thresholds[index])
            return summary(tables[index], self.full("validation")[1])

        if self.searches(rule):
            tried = search(len(thresholds), values, SEARCHED_BOUNDS, self.least_settings)
            chosen = sorted(self._chosen(tried))
        else:
            chosen = range(len(thresholds))
            tables = {index: self.decode("validation", rule, thresholds[index]) for index in chosen}
        validation = [tables[index] for index in sorted(tables)]
        test = [self.decode("test", rule, thresholds[index]) for index in chosen]
        return pd.concat([*validation, *test], ignore_index=True)

    def searches(self, rule: str) -> bool:
        """Whether thresholds of a rule are searched for; else all that it has are decoded."""
        return RULES[rule].thresholded and rule != "static"

    def _chosen(self, tried: Mapping[int, Mapping[str, float]]) -> set[int]:
        """What is decoded on test examples: the last setting within each bound, and the strictest that exits.

        That one is where the measured line of the rule begins: nothing is read off before it.
        """
        chosen = {last_within(tried, column, bound) for column, bound in SEARCHED_BOUNDS} - {-1}
        strictest_that_exits = [index for index in sorted(tried) if tried[index]["exits"]][:1]
        return chosen.union(strictest_that_exits) or {0}

    def thresholds(self, rule: str) -> list[float]:
        """The thresholds of a rule that may be tried, strictest first ("static": layers)."""
        if rule == "static":
            return [float(layer) for layer in range(self.model.layers - 1, self.settings.min_layer - 1, -1)]
        if not self.searches(rule):
            return [NO_THRESHOLD]
        replayed = replay_policy(self.trace, self.policy(rule, None), self.model)
        return candidates(replayed, self.candidates, self.settings.max_new_tokens)

    @cached_property
    def trace(self) -> Trace:
        """The validation examples at full depth, with states."""
        return trace(
            self.model,
            self.tasks["validation"].inputs,
            max_new_tokens=self.settings.max_new_tokens,
            states=self.experiment.scratch("states.npy"),
        )

    def policy(self, rule: str, threshold: float | None) -> ExitPolicy:
        """A rule of the job at a threshold; None: its measure's own."""
        options = self.settings.model_dump()
        if rule == "free_adaptive":
            options["exit_layer"] = self.profile.training.exit_layer("free", self.model.layers)
        return RULES[rule].policy(threshold, options, self.classifiers)

    def decode(self, part: str, rule: str, threshold: float) -> pd.DataFrame:
        """One setting on the "validation" or "test" examples, one row per example."""
        setting = _comparable(part, rule, threshold)
        if setting in self._taken:
            return self._taken[setting]
        full_texts, _ = self.full(part)
        return self._decoded(part, rule, threshold, self.policy(rule, threshold), full_texts)[1]

    def full(self, part: str) -> tuple[list[str], pd.DataFrame]:
        """Texts and table at full depth."""
        if part not in self._full:
            generation, table = self._decoded(part, "full_depth", NO_THRESHOLD, None, None)
            self._full[part] = generation.texts, table
        return self._full[part]

    def _decoded(self, part, rule, threshold, policy, full_texts) -> tuple[Generation, pd.DataFrame]:
        task = self.tasks[part]
        generation = generate(
            self.model,
            task.inputs,
            policy,
            max_new_tokens=self.settings.max_new_tokens,
            batch_size=self.settings.batch_size,
            encodings=self.encodings[part],
        )
        texts = generation.texts
        table = pd.DataFrame(
            {
                "part": part,
                "rule": rule,
                "threshold": threshold,
                "example": np.arange(len(task), dtype=np.int32),
                "loss": consistency_losses(task, texts, full_texts or texts).astype(np.float32),
                "score": task.score_examples(texts)[task.metric].astype(np.float32),
                "flops": generation.flops.astype(np.int64),
                "tokens": np.array([len(ids) for ids in generation.token_ids], dtype=np.int16),
                "layers": np.array([layers.sum() for layers in generation.exit_layers], dtype=np.int32),
            }
        )
        return generation, table


def _comparable(part: str, rule: str, threshold: float) -> tuple[str, str, float | None]:
    """A setting, where rules without a threshold (NaN, which equals nothing) have None."""
    return part, rule, None if np.isnan(threshold) else threshold


class FreshDecoder(RuleDecoder):
    """The main model on fresh examples, for the guarantee, at thresholds chosen for bounds on the loss."""

    def __init__(self, experiment, job: Job):
        super().__init__(experiment, Job("settings", job.model, job.task))
        self.rules = self.settings.fresh_rules
        count = self.settings.fresh_sets * self.settings.fresh_size
        self.tasks["fresh"] = load_task(job.task, "synthetic", "test", count, FRESH_SEED)
        self.encodings["fresh"] = EncoderCache()

    def take(self, table: pd.DataFrame) -> None:
        """Takes settings of a rule that were decoded before, so that `decode` need not."""
        super().take(table.assign(part="fresh"))

    def measured(self, rule: str) -> pd.DataFrame:
        """All settings of a rule that the job of the model on this task measured on test examples."""
        measured = pd.read_parquet(self.job.path(self.profile))
        thresholds = measured.query("part == 'test' and rule == @rule").threshold.unique()
        tables = [self.decode("fresh", rule, threshold) for threshold in thresholds]
        return pd.concat(tables, ignore_index=True)[["rule", "threshold", "loss"]]


class OracleDecoder(RuleDecoder):
    """What limits exits: the main model's test examples with states that are copied, exact, or verified.

    The oracle makes no wrong decision: what it loses is lost to states that exits left behind. The margin,
    at thresholds beside those that rules are searched for, is decoded with copied and with exact states, so
    that what its decisions lose stands apart from what its states do. A column `propagation` says which.
    """

    def __init__(self, experiment, job: Job):
        super().__init__(experiment, Job("settings", job.model, job.task))
        self.rules = ["full_depth", "oracle", "softmax_margin"]

    def _load_classifiers(self) -> dict:
        return {}  # none of its rules has one

    def keys(self, rule: str) -> dict[str, str]:
        """What a rule's table belongs to."""
        decoding = super().keys(rule)["decoding"]
        charged = [ORACLE_CHARGED] if rule == "oracle" else []
        search = digest_of([decoding, ORACLE_DRAFT, *MARGIN_THRESHOLDS, *charged])
        return {"decoding": decoding, "search": search}

    def measured(self, rule: str) -> pd.DataFrame:
        """The test examples of a rule at each of its thresholds, with states of each kind."""
        if rule == "full_depth":
            return self.full("test")[1].assign(propagation="copy")
        if rule == "oracle":
            copied = [self.policy(rule, NO_THRESHOLD)]
            verified = [self.verified_oracle()]
        else:
            copied = [self.policy(rule, threshold) for threshold in MARGIN_THRESHOLDS]
            verified = []
        exact = [replace(policy, propagation="parallel") for policy in copied]
        full_texts, _ = self.full("test")
        tables = []
        for policy in [*copied, *exact, *verified]:
            threshold = NO_THRESHOLD if rule == "oracle" else policy.threshold
            generation, table = self._decoded("test", rule, threshold, policy, full_texts)
            tables.append(table.assign(propagation=policy.propagation))
            if rule == "oracle" and policy.propagation == "copy":
                tables.append(table.assign(propagation=ORACLE_CHARGED, flops=self.charged(generation)))
        return pd.concat(tables, ignore_index=True)

    def charged(self, generation: Generation) -> np.ndarray:
        """FLOPs `[output]` of exits that pay for every decision what the cheapest readout takes.

        That of the margin over few tokens: the first layer that decides scores the whole vocabulary, later
        ones a few tokens, and the last layer all of them again.
        """
        decoder = decoder_of(self.model.network)
        bound = bind_policy(self.policy(CHEAPEST, None), decoder, self.model.min_exit_layer)
        rows = np.zeros(decoder.layers + 1, dtype=np.int64)  # of the LM head until an exit at each layer
        for layer in bound.decision_layers:
            rows[layer:] += bound.readout.sizes[layer]
        rows[decoder.layers] += bound.vocabulary
        by_part = bound.flops(
            DecoderSizes.of(decoder.config),
            exit_layers=generation.exit_layers,
            readout_rows=[rows[exits] for exits in generation.exit_layers],
            source=list(map(len, input_ids(self.model.tokenizer, self.tasks["test"].inputs))),
        )
        return sum(by_part.values())

    def verified_oracle(self) -> ExitPolicy:
        """Drafts where the oracle exits with exact states, as a replay of full depth says."""
        longest = self.settings.max_new_tokens
        at_full_depth = trace(self.model, self.tasks["test"].inputs, max_new_tokens=longest)
        exits = replay_policy(at_full_depth, self.policy("oracle", NO_THRESHOLD), self.model)
        by_output = at_full_depth.by_output(exits.exit_layers(longest))
        return ExitPolicy(ForcedExits(by_output), propagation="verify", max_draft=ORACLE_DRAFT)


def _learning(experiment) -> pd.DataFrame:
    """How well classifiers of the main model rank tokens, by the number of tokens that they were trained on.

    Training examples alternate between the tasks; each classifier takes at least as many steps as those that
    are shipped. One row a variant, number of `tokens`, seed and task (`decisions.overall_ranking`).
    """
    profile = experiment.profile
    settings = profile.classifiers
    sizes = profile.results.learning_tokens
    model = experiment.models([MAIN_MODEL])[MAIN_MODEL]
    training_trace, task_count = _alternating_trace(experiment, model, max(sizes))
    test_traces = {}
    for task in load_tasks(profile, "test", profile.results.examples):
        states = experiment.scratch(f"{task.name}.npy")
        longest = profile.training.max_target
        test_traces[task.name] = trace(model, task.inputs, max_new_tokens=longest, states=states)
    shipped_tokens = settings.tokens * task_count
    rows = []
    for size, rule, seed in product(sizes, LEARNERS, range(settings.seeds)):
        last_sequence = training_trace.sequence[min(size, len(training_trace)) - 1]
        part = training_trace.first(int(last_sequence) + 1)
        variant = RULES[rule].classifier
        classifier, _ = train_classifier(
            variant.kind,
            part,
            model,
            seed=seed,
            epochs=max(settings.epochs, round(settings.epochs * shipped_tokens / len(part))),
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            **variant.options(model.network.config.hidden_size),
        )
        policy = RULES[rule].policy(0.9, profile.results.model_dump(), {rule: classifier})
        for task, test_trace in test_traces.items():
            replayed = replay_policy(test_trace, policy, model)
            rows.append(overall_ranking(replayed, task=task, rule=rule, tokens=len(part), seed=seed))
    return pd.concat(rows, ignore_index=True)


def _alternating_trace(experiment, model, tokens: int) -> tuple[Trace, int]:
    """A trace along the references of at least so many tokens, one example of each task in turn; tasks."""
    profile = experiment.profile
    longest = profile.training.max_target
    tasks = load_tasks(profile, "train", tokens // 10)
    inputs = []
    targets = []
    for example in range(min(len(task) for task in tasks)):
        for task in tasks:
            inputs.append(task.inputs[example])
            targets.append(task.targets[example])
    lengths = np.cumsum([min(len(ids), longest) for ids in model.tokenizer(targets).input_ids])
    enough = int(np.searchsorted(lengths, tokens)) + 1
    states = experiment.scratch("training.npy")
    along = trace(model, inputs[:enough], targets[:enough], max_new_tokens=longest, states=states)
    return along, len(tasks)


def _inputs(experiment) -> pd.DataFrame:
    """The length of every input that rules are decoded on, and what the encoder takes to read it.

    One row an example: `part`, `task`, `example`, `source_tokens` and `encoder` (FLOPs).
    """
    profile = experiment.profile
    (model,) = experiment.models([MAIN_MODEL]).values()
    config = model.network.config
    tables = []
    for part, size in (("validation", profile.results.validation), ("test", profile.results.test)):
        for task in load_tasks(profile, part, size):
            source = np.array([len(ids) for ids in input_ids(model.tokenizer, task.inputs)], dtype=np.int32)
            flops = encoder_flops(DecoderSizes.of(config), config.num_layers, source)
            labels = {"part": part, "task": task.name, "example": np.arange(len(task), dtype=np.int32)}
            tables.append(pd.DataFrame({**labels, "source_tokens": source, "encoder": flops}))
    return pd.concat(tables, ignore_index=True)


def _bugs(experiment) -> pd.DataFrame:
    """Bugs of published code, switched on."""
    settings = experiment.profile.results
    training = experiment.profile.training
    names = [name for name in (MAIN_MODEL, "vanilla", "free") if name in training.backbones]
    models = experiment.models(names)
    exit_layer = training.exit_layer("free", models["free"].layers) if "free" in models else None
    return measure_bugs(models, experiment.tasks(settings.bug_examples), exit_layer, settings.model_dump())


def summary(table: pd.DataFrame, full: pd.DataFrame) -> dict[str, float]:
    """What `SEARCHED_BOUNDS` bounds, of a setting beside full depth on the same examples; and if it exits."""
    kept = table.score.to_numpy(np.float64)
    total = full.score.to_numpy(np.float64)
    lost = interval(lambda weights: 1 - (weights @ kept) / (weights @ total), len(total))
    return {
        "loss": table.loss.mean(),
        "lost": lost.value,
        "lost_at_most": lost.high,
        "saved": 1 - _flops_per_token(table) / _flops_per_token(full),
        "exits": float(mean_exit_layer(table) < mean_exit_layer(full)),
    }


def _flops_per_token(table: pd.DataFrame) -> float:
    return table.flops.sum() / table.tokens.sum()


def search(
    count: int,
    values: Callable[[int], Mapping[str, float]],
    bounds: Iterable[tuple[str, float]],
    least: int = 0,
) -> dict[int, Mapping[str, float]]:
    """Bisects for the last of some thresholds (in order, the strictest first) within each bound.

    What grows from threshold to threshold is found exactly. Then the widest gaps are halved until `least`
    of them are tried, or all.

    Args:
        count: how many thresholds there are.
        values: decodes a threshold, given its index; returns what is bounded.
        bounds: pairs of a key of `values` and its largest value.
        least: how many thresholds are tried at least.

    Returns:
        The values of every threshold that was tried, by its index.
    """
    tried: dict[int, Mapping[str, float]] = {}
    for column, bound in bounds:
        while True:
            low = last_within(tried, column, bound)
            high = min((index for index in tried if index > low), default=count)
            if high - low <= 1:
                break
            middle = (low + high) // 2
            tried[middle] = values(middle)
    while len(tried) < min(least, count):
        low, high = max(pairwise([-1, *sorted(tried), count]), key=lambda gap: gap[1] - gap[0])
        middle = (low + high) // 2
        tried[middle] = values(middle)
    return tried


def last_within(tried: Mapping[int, Mapping[str, float]], column: str, bound: float) -> int:
    """The last index tried up to which all are within a bound; -1 if the first is not, or none was tried."""
    within = takewhile(lambda index: tried[index][column] <= bound, sorted(tried))
    return max(within, default=-1)


def store(profile: Profile) -> Path:
    """Puts the tables of all jobs, with a manifest, in their place, all at once; returns their folder."""
    folder = output_root() / profile.name / MEASURED
    parameters = profile.results.model_dump() | {"device": profile.device}
    with staged(folder) as results:
        tables = Run(MEASURED, profile.name, parameters, results)
        for name in profile.training.backbones:
            tables.inputs[f"model {name}"] = weights_digest(profile, name)
        for job in measurements(profile):
            tables.save_file(job.path(profile))
            if job.task == ALL and job.kind != "inputs":  # a row an example, for no reader
                tables.save_table(pd.read_parquet(job.path(profile)), job.name)
        tables.finish()
    return folder
