"""Measurements: the search for thresholds, what is stored, and stored numbers decoded again."""

import json
import shutil
from copy import copy
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH, build_lively
from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils import ExitPolicy, MeeError, generate, replay, trace
from mee_utils.analysis import statistics
from mee_utils.analysis.threshold_choice import candidates
from mee_utils.companion import artifacts, measure, result_tables
from mee_utils.companion.catalogue import RULES
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import load_tasks
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.result_tables import read_measurements
from mee_utils.companion.running.digests import file_digest
from mee_utils.companion.running.jobs import Job, measurements
from mee_utils.decoding.inputs import EncoderCache
from mee_utils.traces.replay import replay_policy


@given(st.lists(st.integers(0, 100), min_size=1, max_size=80), st.lists(st.integers(0, 100), min_size=1))
@settings(deadline=None)
def test_bisection_finds_the_last_place_within_each_bound(steps, bounds):
    curve = sorted(steps)
    tried = measure.search(len(curve), lambda place: {"loss": curve[place]}, [("loss", b) for b in bounds])
    assert len(tried) <= len(set(bounds)) * (np.ceil(np.log2(len(curve))) + 1)
    for bound in bounds:
        last = np.searchsorted(curve, bound, side="right") - 1
        assert measure.last_within(tried, "loss", bound) == last


def test_gaps_are_halved_until_there_are_enough_settings():
    def values(place):
        return {"loss": place / 100}

    assert len(measure.search(64, values, [("loss", 0.5)], least=30)) == 30
    assert sorted(measure.search(7, values, [("loss", 0.5)], least=30)) == list(range(7))
    tried = measure.search(64, values, [("loss", 0.0)], least=9)
    assert max(np.diff([-1, *sorted(tried), 64])) < 20


def test_what_falls_again_counts_from_where_it_first_rose():
    tried = {0: {"loss": 0.0}, 3: {"loss": 0.2}, 5: {"loss": 0.05}}
    assert measure.last_within(tried, "loss", 0.1) == 0 and measure.last_within(tried, "loss", 0.3) == 5
    assert measure.last_within({0: {"loss": 1.0}}, "loss", 0.1) == measure.last_within({}, "loss", 0.1) == -1


def test_candidates_descend_and_change_a_little_each(tokenizer):
    model = build_lively("t5", tokenizer)
    replayed = replay_policy(trace(model, INPUTS, max_new_tokens=LENGTH), ExitPolicy("softmax_margin"))
    levels = candidates(replayed, 12, LENGTH)
    assert levels == sorted(set(levels), reverse=True) and 4 < len(levels) <= 12
    depth = [replay(replayed.trace, ExitPolicy("softmax_margin", threshold=x), LENGTH).mean() for x in levels]
    assert depth[0] == depth[0].max() == model.layers and depth[-1] < depth[0]
    assert (np.diff(depth) <= 0).all() and len(candidates(replayed, 3, LENGTH)) <= 3


class Replayed:
    """One decision layer of twelve: confidences are set, and which tokens are final there."""

    def __init__(self, confidences, final, highest=1.0, threshold=0.9):
        self.confidences = confidences[:, None]
        self.final = final
        self.threshold = threshold
        self.highest = highest
        self.layers = np.array([4, 12])
        self.same_token = np.stack([final, np.ones(len(final), dtype=bool)], axis=1)
        self.trace = type("Trace", (), {"layers": 12, "__len__": lambda trace: len(final)})()
        self.bound = SimpleNamespace(measure=SimpleNamespace(range=(0.0, highest)))

    def at_threshold(self, threshold):
        return Replayed(self.confidences[:, 0], self.final, self.highest, threshold)

    def exits(self, max_new_tokens):
        return np.where(self.confidences[:, 0] > self.threshold, 0, 1)


def test_candidates_go_on_to_losses_of_next_to_nothing():
    """Of 20,000 tokens many are wrong at the layer, some of them nearly as sure as any (summaries).

    Losses of 0.3 % are decided among the last few of them: from threshold to threshold errors grow by a
    factor of 4 at most, beginning with single tokens.
    """
    random = np.random.default_rng(0)
    missing = random.random(20_000) ** 3
    final = random.random(20_000) > 0.6 * missing**0.3
    sure = (1 - missing).astype(np.float32)
    levels = candidates(Replayed(sure, final), 16)
    errors = np.array([(~final & (sure > level)).mean() for level in levels])
    assert levels[0] == 1.0 and levels[1] > 1 - 1e-5 and errors[0] == 0
    wrong = errors[errors > 0]
    assert wrong[0] <= 4 / 20_000 and (wrong[1:] / wrong[:-1]).max() <= 4


def test_candidates_of_rules_that_count_are_whole_numbers_from_the_strictest_on():
    counts = np.random.default_rng(0).integers(0, 9, 5_000).astype(float)
    levels = candidates(Replayed(counts, np.random.default_rng(1).random(5_000) < 0.1 * counts, np.inf), 24)
    assert levels == [12.0, *range(7, -1, -1)], "12 is no exit; 8, the most that is counted, nobody exceeds"


def test_on_test_examples_the_line_of_a_rule_begins_at_its_strictest_exits():
    """What is within every bound may not exit at all: that is full depth, and no setting of the rule."""

    def setting(loss, exits):
        return {"loss": loss, "lost": loss, "lost_at_most": loss, "saved": 0.0, "exits": exits}

    tried = {0: setting(0.0, 0.0), 3: setting(0.002, 1.0), 5: setting(0.4, 1.0), 9: setting(0.6, 1.0)}
    decoder = SimpleNamespace()
    assert measure.RuleDecoder._chosen(decoder, tried) == {3, 9}
    careless = {0: setting(0.0, 0.0), 1: setting(0.12, 1.0)}
    assert measure.RuleDecoder._chosen(decoder, careless) == {0, 1}
    assert measure.RuleDecoder._chosen(decoder, {0: setting(0.5, 0.0)}) == {0}


def test_a_summary_says_what_is_lost_and_saved():
    full = pd.DataFrame({"loss": 0.0, "score": [100.0] * 50, "flops": 1000, "tokens": 10, "layers": 120})
    other = full.assign(loss=0.1, score=[100.0] * 45 + [0.0] * 5, flops=1200, tokens=20)
    found = measure.summary(other, full)
    assert found["loss"] == pytest.approx(0.1) and found["lost"] == pytest.approx(0.1)
    assert 0.1 < found["lost_at_most"] < 0.3 and found["saved"] == pytest.approx(0.4)
    assert found["exits"] and not measure.summary(full, full)["exits"]


FEW = {"validation": 12, "test": 9, "candidates": 5, "other_candidates": 3}
SHORT = {"max_new_tokens": 12}  # outputs are cut: how well they do is not looked at


def on_few_examples():
    profile = load_profile("small")
    return profile.model_copy(update={"results": profile.results.model_copy(update=FEW)})


@pytest.fixture
def few(monkeypatch):
    """Profile `small` on few examples; other backbones have no rule that would be trained for them."""
    monkeypatch.setattr(measure, "HEADS", ())
    monkeypatch.setattr(measure, "ABLATED", ())
    monkeypatch.setattr(measure, "OTHER_SWEEP", ("softmax_margin", "fixed"))
    profile = on_few_examples()
    return profile.model_copy(update={"results": profile.results.model_copy(update=SHORT)})


class Counted(measure.RuleDecoder):
    """Says which rules were decoded."""

    decoded: ClassVar[list[str]] = []

    def measured(self, rule):
        self.decoded.append(rule)
        return super().measured(rule)


JOB = Job("settings", "vanilla", "translation")


def test_an_option_that_came_later_leaves_the_keys_of_rules_that_do_not_use_it(few, monkeypatch):
    decoder = measure.RuleDecoder(Experiment(None, few), JOB)
    key = decoder.keys("fixed")
    monkeypatch.setattr(measure, "LATER_OPTIONS", [])
    assert decoder.keys("fixed") != key  # the option was among what the key holds
    monkeypatch.setattr(measure, "LATER_OPTIONS", [("prune_last_layer", True)])
    monkeypatch.setitem(measure.RULES, "fixed", replace(RULES["fixed"], prune_last_layer=False))
    assert decoder.keys("fixed") != key


def test_an_interrupted_job_goes_on_and_what_is_stored_is_not_decoded_again(few, tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(measure, "RuleDecoder", Counted)
    path = measure.run(few, JOB)
    rules = ["full_depth", "static", "oracle", "softmax_margin", "fixed"]
    assert Counted.decoded == rules
    table = pd.read_parquet(path)
    assert list(table.rule.unique()) == rules and list(table.attrs["keys"]) == rules
    sizes = table.groupby(["part", "rule", "threshold"], dropna=False).size()
    assert set(sizes["validation"]) == {12} and set(sizes["test"]) == {9}
    assert not table[table.rule == "full_depth"].loss.any()
    assert len({keys["search"] for keys in table.attrs["keys"].values()}) == 5
    path.unlink()
    (path.with_suffix("") / "fixed.parquet").unlink()
    measure.run(few, JOB)
    assert Counted.decoded == [*rules, "fixed"]  # the rest was there
    stored = tmp_path / "small" / "measured"
    stored.mkdir(parents=True)
    path.rename(stored / path.name)
    for part in path.with_suffix("").iterdir():
        part.unlink()
    measure.run(few, JOB)
    assert len(Counted.decoded) == 6 and pd.read_parquet(path).equals(pd.read_parquet(stored / path.name))
    changed = RULES["fixed"].__class__(
        **{**vars(RULES["fixed"]), "label": "another name", "pruning": "decaying"}
    )
    monkeypatch.setitem(measure.RULES, "fixed", changed)
    measure.run(few, JOB)
    assert Counted.decoded[6:] == ["fixed"]
    measure.run(few, JOB, anew=True)
    assert Counted.decoded[7:] == rules[:4]  # and what this run has just measured stays
    with pytest.raises(MeeError, match="measures no settings of vanilla on all"):
        measure.run(few, Job("settings", "vanilla"))


def test_a_wider_search_decodes_only_settings_that_are_not_stored(few, tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(measure, "OTHER_SWEEP", ("softmax_margin",))
    monkeypatch.setattr(measure, "SEARCHED_BOUNDS", measure.SEARCHED_BOUNDS[-1:])
    columns = ["part", "rule", "threshold"]
    narrow = pd.read_parquet(measure.run(few, JOB))
    monkeypatch.setattr(
        measure, "SEARCHED_BOUNDS", (("loss", 0.02), ("saved", 0.2), ("saved", 0.4), ("saved", 0.6))
    )
    decoded = []
    decode = measure.RuleDecoder._decoded

    def counted(self, part, rule, threshold, policy, full_texts):
        decoded.append((part, rule, threshold))
        return decode(self, part, rule, threshold, policy, full_texts)

    monkeypatch.setattr(measure.RuleDecoder, "_decoded", counted)
    wide = pd.read_parquet(measure.run(few, JOB))
    stored = set(narrow[columns].drop_duplicates().itertuples(index=False, name=None))
    searched = {setting for setting in decoded if setting[1] != "full_depth"}
    assert searched and not searched & stored
    everything = set(wide[columns].drop_duplicates().itertuples(index=False, name=None))
    assert {setting for setting in everything - stored if setting[1] == "softmax_margin"} == searched
    again = pd.read_parquet(measure.run(few, JOB, anew=True))
    assert again.equals(wide)


def test_a_name_or_a_marker_is_no_reason_to_measure_again(few, monkeypatch):
    from mee_utils.companion.experiment import Experiment

    bench = measure.RuleDecoder(Experiment(None, few), JOB)
    before = bench.keys("fixed")
    rule = RULES["fixed"]
    monkeypatch.setitem(measure.RULES, "fixed", rule.__class__(**{**vars(rule), "label": "x", "marker": "^"}))
    assert bench.keys("fixed") == before != bench.keys("softmax_margin")


def test_a_profile_names_what_it_measures_besides_calm_and_where_fewer_thresholds_do(few):
    from mee_utils.companion.experiment import Experiment

    short = {"models": ["free"], "most_candidates": {"translation": 2}}
    profile = few.model_copy(update={"results": few.results.model_copy(update=short)})
    named = {job.model for job in measurements(profile)}
    assert named == {"calm", "free"} and {job.model for job in measurements(few)} > named
    bench = measure.RuleDecoder(Experiment(None, profile), Job("settings", "free", "translation"))
    assert len(bench.thresholds("softmax_margin")) <= 2
    assert bench.keys("fixed") != measure.RuleDecoder(Experiment(None, few), bench.job).keys("fixed")
    elsewhere = measure.RuleDecoder(Experiment(None, profile), Job("settings", "free", "summarization"))
    assert elsewhere.candidates == FEW["other_candidates"]


@pytest.fixture(scope="module")
def oracle_table(tmp_path_factory):
    """The oracle's job on questions, where small models lose by copied states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEE_OUTPUT", str(tmp_path_factory.mktemp("oracle")))
        patch.setattr(measure, "MARGIN_THRESHOLDS", (0.9, 0.3))
        few = on_few_examples()
        profile = few.model_copy(update={"results": few.results.model_copy(update={"test": 40})})
        path = measure.run(profile, Job("oracle", "calm", "question_answering"))
    return pd.read_parquet(path)


def test_an_oracle_with_exact_states_gives_the_output_of_full_depth(oracle_table):
    full = oracle_table[oracle_table.rule == "full_depth"]
    by_states = dict(list(oracle_table[oracle_table.rule == "oracle"].groupby("propagation")))
    assert list(by_states) == ["copy", "copy, charged", "parallel", "verify"]
    columns = ["loss", "score", "tokens"]
    for states in ("parallel", "verify"):
        assert np.array_equal(by_states[states][columns], full[columns])
    assert by_states["copy"].score.sum() < full.score.sum()  # the only loss is that of copied states
    flops = {states: rows.flops.sum() / rows.tokens.sum() for states, rows in by_states.items()}
    full_flops = full.flops.sum() / full.tokens.sum()
    assert max(flops["copy"], flops["parallel"]) < full_flops < flops["verify"]
    assert by_states["parallel"].layers.sum() == by_states["verify"].layers.sum()  # the same exits


def test_a_charged_oracle_pays_for_decisions_and_decides_no_other_way(oracle_table):
    """At every layer where it decides, a readout: all tokens at the first, a few at later ones."""
    by_states = dict(list(oracle_table[oracle_table.rule == "oracle"].groupby("propagation")))
    free, charged = by_states["copy"], by_states["copy, charged"]
    same = ["loss", "score", "tokens", "layers"]
    assert np.array_equal(free[same], charged[same])
    paid = (charged.flops.to_numpy() - free.flops.to_numpy()) / 2 / 96  # rows of the LM head, of width 96
    first = 4
    vocabulary = 1600
    few = 64
    at_first = free.layers == first * free.tokens  # the list is made there, and nothing is read off it
    assert at_first.any() and not paid[at_first].any()
    assert (paid % few == 0).all(), "the vocabulary is a multiple of the list"
    deeper = free.layers - first * free.tokens  # layers after the first, of all tokens
    never_last = paid == few * deeper
    assert never_last.mean() > 0.5 and (paid[~never_last] >= vocabulary - few).all()


def test_inputs_have_the_length_and_the_encoder_the_flops_that_decoding_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    profile = on_few_examples()
    table = pd.read_parquet(measure.run(profile, Job("inputs", "calm")))
    assert table.groupby(["part", "task"]).size().to_dict() == {
        (part, task): size
        for part, size in (("validation", profile.results.validation), ("test", profile.results.test))
        for task in profile.corpora
    }
    (task,) = load_tasks(profile, "test", profile.results.test, "translation")
    (model,) = Experiment(None, profile).models(["calm"]).values()
    generation = generate(model, task.inputs, max_new_tokens=1)
    of_task = table[(table.part == "test") & (table.task == "translation")]
    assert of_task.encoder.tolist() == generation.encoder_flops.tolist()
    assert of_task.source_tokens.tolist() == [len(model.tokenizer(text).input_ids) for text in task.inputs]


def test_a_margin_loses_less_with_exact_states(oracle_table):
    margin = oracle_table[oracle_table.rule == "softmax_margin"]
    sizes = margin.groupby(["threshold", "propagation"]).size()
    assert len(sizes) == 4 and set(sizes) == {40}
    kept = margin.groupby(["threshold", "propagation"]).score.mean().unstack()
    assert (kept.parallel >= kept["copy"]).all() and (kept.parallel > kept["copy"]).any()


def test_the_oracles_tables_are_not_taken_for_those_of_a_model(oracle_table, tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    folder = tmp_path / "small" / "measured"
    shutil.copytree(result_tables.ROOT / "figures" / "small" / "measured", folder)
    oracle_table.to_parquet(folder / "oracle-question_answering.parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["oracle-question_answering.parquet"] = file_digest(
        folder / "oracle-question_answering.parquet"
    )
    (folder / "manifest.json").write_text(json.dumps(manifest))
    stored = result_tables.read_measured("small", "calm")
    assert set(stored.settings.model) == {"calm"}
    read = result_tables.read_oracle("small", ["question_answering", "another task"])
    assert list(read) == ["question_answering"] and read["question_answering"].equals(oracle_table)


def test_stored_oracles_with_exact_states_give_the_output_of_full_depth():
    """Of the tasks whose oracle was measured."""
    profile = load_profile("small")
    for task, table in result_tables.read_oracle("small", profile.corpora).items():
        full = table[table.rule == "full_depth"]
        assert len(full) == profile.results.test
        for states in ("parallel", "verify"):
            same = table[(table.rule == "oracle") & (table.propagation == states)]
            assert np.array_equal(same[["loss", "score", "tokens"]], full[["loss", "score", "tokens"]]), task


SAMPLE = 3  # settings of each stored table
STORED_JOBS = [job for job in measurements(load_profile("small")) if job.kind in ("settings", "survey")]


@pytest.fixture(scope="module")
def decoder_of_job():
    """What decodes a stored job, for two tests; what classifiers learned from is read once for all jobs."""
    from mee_utils.companion.experiment import Experiment

    experiment = Experiment(None, load_profile("small"))
    read = {}

    def training_tasks_once(profile, jobs):
        sources = frozenset(RULES[job.variant].classifier.learns_from for job in jobs)
        if sources not in read:
            read[sources] = training_tasks(profile, jobs)
        return read[sources]

    training_tasks = artifacts.training_tasks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "training_tasks", training_tasks_once)
        yield cache(lambda job: measure.RuleDecoder(experiment, job))


@pytest.mark.parametrize("job", STORED_JOBS)
def test_what_is_stored_was_searched_for_as_rules_are_now(job, decoder_of_job):
    """Else `make measure` decodes it anew: weights, data, rules or the search have changed since."""
    stored = read_measurements("small", job.name)
    bench = decoder_of_job(job)
    assert stored.attrs["keys"] == {rule: bench.keys(rule) for rule in bench.rules}


def numbers_that_differ(found, before):
    """Which numbers of each example differ: counts at all, means by more than rounding."""
    counts = ["flops", "tokens"]
    means = ["loss", "score", "layers"]
    far = ~np.isclose(found[means], before[means], rtol=1e-5, atol=1e-8, equal_nan=True)
    return pd.DataFrame(far, columns=means).join(found[counts] != before[counts])


@pytest.mark.parametrize("job", STORED_JOBS)
def test_a_sample_of_what_is_stored_is_decoded_again(job, decoder_of_job):
    """Settings and examples drawn anew for each commit of the tables: the numbers are the same.

    Of one example in a setting they may differ: where two logits, or a confidence and its threshold, are
    equal but for rounding, processors decide differently, and the tables were measured on several.
    """
    stored = read_measurements("small", job.name)
    if stored is None:
        pytest.fail(f"{job.name} is not stored: run make measure")
    bench = copy(decoder_of_job(job))
    random, tasks = np.random.default_rng(len(stored)), dict(bench.tasks)
    bench.tasks, bench.encodings = {}, {}
    bench._full = {}
    settings = stored[["part", "rule", "threshold"]].drop_duplicates()
    for part, rule, threshold in settings.sample(SAMPLE, random_state=random).itertuples(index=False):
        chosen = slice(int(random.integers(20)), None, len(tasks[part]) // 20)
        bench.tasks[part], bench.encodings[part] = tasks[part][chosen], EncoderCache()
        bench._full.clear()
        found = bench.decode(part, rule, threshold) if rule != "full_depth" else bench.full(part)[1]
        same = (stored.part == part) & (stored.rule == rule)
        same &= stored.threshold.eq(threshold) | (stored.threshold.isna() & np.isnan(threshold))
        before = stored[same].iloc[chosen].reset_index(drop=True)
        assert len(found) == len(before)
        differ = numbers_that_differ(found, before)
        assert differ.any(axis=1).sum() <= 1, f"{part}, {rule} at {threshold}:\n{differ.sum()}"


def test_stored_draws_take_half_the_room_and_give_the_same_interval(tmp_path):
    """They are the bulk of what a clone downloads beside the weights."""
    draws = list(np.random.default_rng(0).normal(0.8, 0.02, (40, 2000)))
    table = pd.DataFrame({"area": [row.mean() for row in draws], "area_draws": draws})
    measure._write(table, tmp_path / "learning.parquet", {})
    stored = pd.read_parquet(tmp_path / "learning.parquet")
    size = (tmp_path / "learning.parquet").stat().st_size
    assert size < 4.5 * 40 * 2000  # bytes: doubles that are noise cannot be compressed below 7 of 8
    assert np.array_equal(stored.area, table.area) and stored.attrs == {"keys": {}}
    exact = statistics.estimates(table, "area")
    kept = statistics.estimates(stored, "area")
    np.testing.assert_allclose(kept.bounds, exact.bounds, rtol=1e-6)
    assert table.area_draws[0].dtype == np.float64, "the table that was measured is not touched"


SETTING = ["part", "rule", "threshold"]


def some_settings(examples=300, settings=40):
    """A table as `RuleDecoder` makes it: most outputs of a setting are those of the one before, earlier."""
    random = np.random.default_rng(0)
    tokens = random.integers(4, 40, examples)
    flops = 12_000_000 * tokens
    score = random.random(examples)
    tables = []
    for number in range(settings):
        flops = flops - random.integers(0, 100_000, examples)
        score = np.where(random.random(examples) < 0.3, random.random(examples), score)
        values = {
            "part": "validation" if number % 2 else "test",
            "rule": "full_depth" if number < 2 else "softmax_margin",
            "threshold": np.nan if number < 2 else 1 - 0.9 * number / settings,
            "example": np.arange(examples, dtype=np.int32),
            "loss": (1 - score).astype(np.float32),
            "score": (100 * score).astype(np.float32),
            "flops": flops.astype(np.int64),
            "tokens": tokens.astype(np.int16),
            "layers": (flops // 1_000_000).astype(np.int32),
        }
        tables.append(pd.DataFrame(values))
    return pd.concat(tables, ignore_index=True)


def test_stored_examples_are_small_and_read_back_as_they_were(tmp_path):
    """Every number, type and key; only rows of an example stand together. Written again: the same bytes."""
    table = some_settings()
    keys = {"softmax_margin": {"decoding": "a", "search": "b"}}
    path = tmp_path / "calm-translation.parquet"
    table.to_parquet(path, compression="zstd", compression_level=19, index=False)
    size_before = path.stat().st_size
    measure._write(table, path, keys)
    assert path.stat().st_size < 0.7 * size_before
    stored = pd.read_parquet(path)
    assert stored.attrs == {"keys": keys}
    numbers = table.columns.difference(["part", "rule"])
    assert (stored.dtypes == table.dtypes)[numbers].all() and len(numbers) == 7
    settings_before = list(result_tables.settings_of(table))
    settings_stored = list(result_tables.settings_of(stored))
    for before, after in zip(settings_before, settings_stored, strict=True):
        assert before[:2] == after[:2] and np.array_equal(
            before[2], after[2], equal_nan=True
        )  # the threshold
        pd.testing.assert_frame_equal(before[3], after[3])
    content = path.read_bytes()
    measure._write(stored, path, keys)
    assert path.read_bytes() == content
