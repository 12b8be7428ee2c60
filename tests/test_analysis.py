"""Statistics and monotonicity on hand-made traces."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError, load_task
from mee_utils.analysis import monotonicity
from mee_utils.analysis.beside_full import beside_full
from mee_utils.analysis.model_quality import token_difficulty
from mee_utils.analysis.reliability import reliability
from mee_utils.analysis.statistics import (
    DRAWS,
    Estimate,
    difference_interval,
    interval,
    mean_interval,
    percentiles,
    resampled_tokens,
)
from mee_utils.tasks import baselines


def made_trace(top1, sequence=None, final_probability=None, probability=None):
    top1 = np.array(top1)
    sequence = np.zeros(len(top1), int) if sequence is None else np.array(sequence)
    return SimpleNamespace(
        top1_id=top1,
        final_id=top1[:, -1],
        layers=top1.shape[1],
        sequence=sequence,
        top1_probability=probability,
        final_probability=final_probability,
        __len__=lambda: len(top1),
    )


def test_a_token_is_settled_from_the_first_layer_after_its_last_change():
    found = made_trace([[7, 7, 7, 7], [1, 2, 7, 7], [7, 1, 7, 7], [1, 2, 3, 7]])
    assert list(monotonicity.settled_from(found)) == [1, 3, 3, 4]
    assert monotonicity.stable(found).tolist() == [
        [True, True, True, True],
        [False, False, True, True],
        [False, False, True, True],
        [False, False, False, True],
    ]


def test_strict_monotonicity_and_its_tolerant_sister():
    values = np.array(
        [[0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.3, 0.4], [0.5, 0.2, 0.3, 0.4], [0.2, 0.9, 0.895, 0.95]]
    )
    assert monotonicity.strictly_monotonic(values).tolist() == [True, False, False, False]
    assert monotonicity.strictly_monotonic(values, after=1).tolist() == [True, True, True, False]
    assert monotonicity.never_falling(values).tolist() == [True, True, False, True]
    assert monotonicity.never_falling(values, tolerance=0.001).tolist() == [True, True, False, False]


def test_shares_of_monotonic_tokens_stand_beside_where_their_confidence_starts():
    probability = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.4, 0.6, 0.9], [0.9, 0.895, 0.99, 0.995]])
    found = made_trace([[7, 7, 7, 7]] * 3, final_probability=probability)
    shares = monotonicity.monotonic_shares(found, model="calm").set_index(["kind", "after_layer"])
    assert shares.share["strictly rising", 0] == pytest.approx(1 / 3)
    assert shares.share["never falling", 0] == pytest.approx(2 / 3)
    assert shares.start["strictly rising", 0] == pytest.approx(0.5)
    assert shares.share["strictly rising", 1] == 1
    assert shares.start["never falling", 1] == pytest.approx(probability[:, 1].mean())


def test_interval_covers_the_mean_and_resamples_sequences_not_tokens():
    rng = np.random.default_rng(0)
    sequence = np.repeat(np.arange(40), 25)
    independent = rng.random(1000)
    clustered = np.repeat(rng.random(40), 25)
    a, b = mean_interval(independent, sequence), mean_interval(clustered, sequence)
    assert a.low < a.value < a.high and b.low < b.value < b.high
    assert b.high - b.low > 3 * (a.high - a.low)


def test_the_same_draws_serve_means_differences_and_other_ratios():
    rng = np.random.default_rng(2)
    first = rng.random(90)
    second = rng.random(90)
    sequence = np.repeat(np.arange(30), 3)
    mean, sums = mean_interval(first, sequence), np.add.reduceat(first, np.arange(0, 90, 3))
    ratio = interval(lambda w: (w @ sums) / (3 * w.sum(axis=1)), 30)
    assert ratio.value == pytest.approx(mean.value) and np.allclose(ratio.draws, mean.draws)
    constant = difference_interval((first, sequence), (first - 0.5, sequence))
    assert (constant.value, constant.low, constant.high) == pytest.approx((0.5, 0.5, 0.5))
    paired = difference_interval((first, sequence), (second, sequence))
    assert np.allclose(paired.draws, mean.draws - mean_interval(second, sequence).draws)
    columns = paired.columns("gain", "gain_")
    assert columns.pop("gain" + DRAWS) is paired.draws
    assert columns == {"gain": paired.value, "gain_low": paired.low, "gain_high": paired.high}


def test_a_sequence_is_drawn_alike_whatever_else_is_measured():
    """So that a mean over some sequences and one over all can be compared draw by draw."""
    rng = np.random.default_rng(3)
    values, sequence = rng.random(300), np.repeat(np.arange(100), 3)
    chosen = (sequence % 2 == 0) & (sequence < 60)
    whole = np.where(chosen, values, 0.0)
    share = difference_interval((whole, sequence), (values * 0, sequence)).draws
    weight = mean_interval(chosen, sequence).draws
    assert np.allclose(share / weight, mean_interval(values[chosen], sequence[chosen]).draws)


def test_interval_has_its_coverage():
    rng, hits = np.random.default_rng(1), 0
    for trial in range(200):
        values = rng.normal(0.3, 1, 60)
        found = mean_interval(values, np.arange(60), resamples=300, seed=trial)
        hits += found.low <= 0.3 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_resampled_tokens_are_whole_sequences():
    sequence = np.array([2, 0, 0, 1, 2, 2])
    for rows in resampled_tokens(sequence, 20):
        counts = np.bincount(rows, minlength=6)
        assert counts[1] == counts[2] and counts[0] == counts[4] == counts[5]


def test_interval_of_nothing_is_refused():
    with pytest.raises(MeeError, match="no tokens"):
        mean_interval(np.array([]), np.array([]))


def test_calibration_error_is_the_hand_computed_one():
    confidence, correct = np.array([0.95, 0.85, 0.15, 0.05]), np.array([1, 0, 0, 0])
    found = reliability(confidence, correct, bins=2)
    # upper bin: confidence 0.9, accuracy 0.5; lower bin: confidence 0.1, accuracy 0
    assert found.error == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert list(found.count) == [2, 2]
    assert reliability(np.array([1.0, 0.0]), np.array([1, 0])).error == 0


def test_reliability_of_a_layer_agrees_with_its_bins():
    probability = np.array([[0.9, 0.6], [0.3, 0.8], [0.5, 0.7]])
    found = made_trace([[1, 1], [2, 1], [1, 1]], probability=probability)
    right = np.array([[1, 1], [0, 1], [1, 0]], bool)
    table = monotonicity.layer_reliability(found, right, bins=5, task="t", model="m")
    binned = monotonicity.reliability_bins(found, right, (1, 2), bins=5)
    error = "expected_calibration_error"
    assert table[error].tolist() == binned.groupby("layer")[error].first().tolist()
    assert table.confidence.tolist() == pytest.approx(list(probability.mean(0)))
    assert table.accuracy.tolist() == pytest.approx(list(right.mean(0)))
    used = binned[binned.tokens > 0]
    assert (used.low <= used.accuracy).all() and (used.accuracy <= used.high).all()
    assert binned[binned.tokens == 0].low.isna().all()


def test_difficulties_fall_on_the_tokens_of_their_words(tokenizer):
    task = load_task("translation", limit=30)
    found, start = token_difficulty(task, tokenizer), 0
    for target, spans in zip(task.targets, task.spans, strict=True):
        ids = tokenizer(target).input_ids
        kinds = found[start : start + len(ids)]
        assert kinds[-1] == "grammatical"  # the end token
        wanted = {s.difficulty for s in spans}
        assert set(kinds) == wanted | {"grammatical"}
        start += len(ids)
    assert start == len(found)


def test_difficulty_is_known_for_synthetic_data_only(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"translation": {"en": "a", "fr": "b"}}\n')
    with pytest.raises(MeeError, match="synthetic data only"):
        token_difficulty(load_task("translation", tmp_path / "a.jsonl"), tokenizer)


def test_trivial_baselines_take_what_they_say():
    train = SimpleNamespace(
        inputs=["translate English to French: a red cat", "translate English to French: the blue house"],
        targets=["un chat rouge", "la maison bleue"],
    )
    found = baselines.nearest_training_sentence(["translate English to French: the green house"], train)
    assert found == ["la maison bleue"]
    assert baselines.source_copied(["translate English to French: hi: you"], train) == ["hi: you"]
    prompt = "question: Where is Bob? context: Ann is in Rome. Bob is in Oslo."
    assert baselines.best_overlapping_sentence([prompt], train) == ["Bob is in Oslo."]
    assert len(baselines.three_random_words([prompt], train)[0].split()) == 3
    assert baselines.first_sentence(["summarize: One. Two."], train) == ["One."]


def test_a_seed_that_numpy_does_not_take_is_one_clear_line():
    with pytest.raises(MeeError, match="seed=-1: give a whole number"):
        mean_interval(np.arange(4.0), np.arange(4), seed=-1)


def test_an_interval_leaves_a_fortieth_of_the_draws_on_either_side():
    draws = np.arange(1001.0)
    assert percentiles(draws) == pytest.approx((25, 975))
    assert percentiles(draws, 0.9) == pytest.approx((50, 950))
    one = Estimate(500.0, draws)
    assert (one.low, one.high) == pytest.approx((25, 975))


def test_an_output_that_gains_makes_up_for_none_that_loses():
    full = pd.DataFrame({"loss": 0.0, "score": [50.0] * 4, "flops": 9, "tokens": 3, "layers": 9})
    exits = full.assign(score=[90.0, 90.0, 30.0, 50.0])
    found = beside_full([exits], full)
    assert found["risk_loss"].value == pytest.approx(0.2 / 4)
    assert found["retained"].value == pytest.approx(1.3)
