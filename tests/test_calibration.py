"""Learn-then-test on constructed losses, p-values against simulation, and a calibrated policy decoded."""

from fractions import Fraction

import numpy as np
import pytest
from conftest import INPUTS, LENGTH, build_lively

from mee_utils import ExitPolicy, MeeError, generate
from mee_utils.analysis import calibration
from mee_utils.exits.thresholds import Threshold
from mee_utils.tasks.loading import Task

LEVELS = [0.9, 0.8, 0.7, 0.6]


def constant(*means, examples=400):
    """Losses that alternate around their means, so that they are not all alike."""
    return np.array([[mean * (0.5 if i % 2 else 1.5) for i in range(examples)] for mean in means])


@pytest.mark.parametrize("bound", calibration.BOUNDS)
@pytest.mark.parametrize(
    ("means", "expected", "tested"),
    [
        ((0.01, 0.02, 0.3, 0.01), 0.8, 3),  # the last that passed, though the fourth would pass again
        ((0.01, 0.01, 0.01, 0.01), 0.6, 4),
        ((0.5, 0.01, 0.01, 0.01), None, 1),
    ],
)
def test_the_last_threshold_that_passed_is_returned(bound, means, expected, tested):
    found = calibration.learn_then_test(constant(*means), LEVELS, delta=0.1, bound=bound)
    assert found.threshold == expected and found.tested == tuple(LEVELS[:tested]) and found.examples == 400
    assert [p <= 0.05 for p in found.p_values] == [True] * (tested - (means[tested - 1] > 0.1)) + [False] * (
        means[tested - 1] > 0.1
    )


def test_rows_are_taken_only_while_tests_pass():
    taken = []

    def rows():
        for number, row in enumerate(constant(0.01, 0.4, 0.01, 0.01)):
            taken.append(number)
            yield row

    assert calibration.learn_then_test(rows(), LEVELS, 0.1).threshold == 0.9 and taken == [0, 1]


@pytest.mark.parametrize("bound", calibration.BOUNDS)
def test_p_values_hold_what_they_promise(bound):
    """Where the mean loss is delta, at most a share eps of draws may pass; well below it, nearly all do."""
    random = np.random.default_rng(0)
    trials = 2000
    delta = 0.2
    draws = {
        "bernoulli": lambda mean: (random.random((trials, 100)) < mean).astype(float),
        "beta": lambda mean: random.beta(4 * mean, 4 * (1 - mean), (trials, 100)),
    }
    for draw in draws.values():
        passed = np.mean([calibration.BOUNDS[bound](row, delta, 0.05) <= 0.05 for row in draw(delta)])
        assert passed <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)
        assert np.mean([calibration.BOUNDS[bound](row, delta, 0.05) <= 0.05 for row in draw(0.05)]) > 0.8


def test_hoeffding_bentkus_by_hand():
    losses = np.array([0.0, 1.0] + [0.0] * 8)  # mean 0.1 of ten, delta 0.5
    hoeffding = np.exp(-10 * (0.1 * np.log(0.1 / 0.5) + 0.9 * np.log(0.9 / 0.5)))
    bentkus = np.e * (1 + 10) / 2**10
    assert calibration.hoeffding_bentkus(losses, 0.5) == pytest.approx(min(hoeffding, bentkus))
    assert calibration.hoeffding_bentkus(np.zeros(10), 0.5) == pytest.approx(min(0.5**10, np.e / 2**10))
    assert calibration.hoeffding_bentkus(np.full(10, 0.7), 0.5) == 1.0
    between = np.full(10, 0.15)  # 1.5 losses in all count as two, for which Bentkus's bound is the larger
    hoeffding = np.exp(-10 * (0.15 * np.log(0.15 / 0.5) + 0.85 * np.log(0.85 / 0.5)))
    assert np.e * (1 + 10) / 2**10 < hoeffding < np.e * (1 + 10 + 45) / 2**10
    assert calibration.hoeffding_bentkus(between, 0.5) == pytest.approx(hoeffding)


def test_betting_by_hand():
    """Two examples; the first stake is min(1, sqrt(2 log 20 / (2 . 0.25))) = 1, and so is the second."""
    losses, delta = np.array([0.0, 0.1]), 0.3
    assert calibration.betting(losses, delta) == pytest.approx(1 / (1.3 * 1.2))


def test_betting_is_tighter_where_losses_vary_little():
    losses = np.full(60, 0.03)
    assert calibration.betting(losses, 0.1) < calibration.hoeffding_bentkus(losses, 0.1)


@pytest.mark.parametrize("bound", calibration.BOUNDS)
def test_the_guarantee_holds_on_fresh_examples(bound):
    """Mean losses rise through delta: over many draws the chosen one exceeds delta in at most a share eps."""
    random = np.random.default_rng(1)
    means = np.linspace(0.02, 0.3, 20)
    delta = 0.12
    runs = 400
    levels = list(np.linspace(0.99, 0.3, 20))
    wrong = 0
    for _ in range(runs):
        losses = (random.random((20, 150)) < means[:, None]).astype(float)
        found = calibration.learn_then_test(losses, levels, delta, 0.05, bound)
        wrong += found.threshold is not None and means[levels.index(found.threshold)] > delta
    assert wrong / runs <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_violations_over_splits():
    random = np.random.default_rng(2)
    losses = (random.random((4, 600)) < np.array([0.01, 0.05, 0.1, 0.4])[:, None]).astype(float)
    table = calibration.violations(losses, LEVELS, 0.2)
    assert len(table) == 50 and (table.threshold == 0.7).mean() > 0.9 and not table.violated.any()
    assert table.mean_loss.isin(losses.mean(axis=1)).all()
    edge = calibration.violations((random.random((1, 400)) < 0.2).astype(float), [0.9], 0.15, splits=200)
    assert edge.threshold.notna().mean() <= 0.05 and (edge.violated == edge.threshold.notna()).all()
    assert calibration.violations(losses, LEVELS, 0.001).threshold.isna().all()
    assert not calibration.violations(losses, LEVELS, 0.001).violated.any()


@pytest.mark.parametrize(
    ("losses", "levels", "options", "message"),
    [
        (np.empty((4, 0)), LEVELS, {}, "no calibration examples"),
        (constant(0.1), LEVELS, {"delta": 0}, "cannot be guaranteed"),
        (constant(0.1), LEVELS, {"delta": 1.0}, "delta=1.0"),
        (constant(0.1), LEVELS, {"eps": 0}, "probability of failing"),
        (100 * constant(0.1), LEVELS, {}, "between 0 and 1"),
        (constant(0.1, 0.1), [0.5, 0.6], {}, "descend strictly"),
        (constant(0.1), [], {}, "descend strictly"),
        ([], LEVELS, {}, "no losses"),
        (constant(0.1), LEVELS, {"bound": "hoefding"}, "did you mean"),
        (constant(0.1), [float("nan")], {}, "thresholds=.nan.: give a list of numbers"),
        (constant(0.1), [True], {}, "thresholds=.True.: give a list of numbers"),
        (constant(0.1), [10**400], {}, "thresholds=.*: give a list of numbers"),
        (constant(0.1), LEVELS, {"delta": 10**400}, "delta=.*between 0 and 1"),
        (constant(0.1), LEVELS, {"eps": True}, "eps=True: .*between 0 and 1"),
    ],
)
def test_bad_demands_are_one_clear_line(losses, levels, options, message):
    with pytest.raises(MeeError, match=message):
        calibration.learn_then_test(losses, levels, **{"delta": 0.1, **options})


@pytest.mark.parametrize("value", [float("nan"), -5, np.array([0.01]), "0.01", None, True, np.nan])
def test_what_is_no_p_value_guarantees_nothing(value):
    """Before, a NaN was not above eps, so that the threshold was "guaranteed by decoding"."""

    def my_bound(losses, delta, eps):
        return value

    losses = constant(0.01, 0.02)
    for test in (calibration.learn_then_test, calibration.violations):
        with pytest.raises(
            MeeError, match=r"^bound=my_bound returned .*: a p-value is a number from 0 to 1\.$"
        ):
            test(losses, [0.9, 0.8], 0.1, bound=my_bound)


def test_a_p_value_may_be_of_any_kind_of_number_and_above_one():
    """A union bound, say: it passes no test."""
    for value, expected in ((np.float32(0.01), 0.8), (0, 0.8), (1.5, None), (float("inf"), None)):
        found = calibration.learn_then_test(
            constant(0.01, 0.02), [0.9, 0.8], 0.1, bound=lambda *_, p=value: p
        )
        assert found.threshold == expected


def test_losses_that_are_no_numbers_violate_nothing_and_are_refused():
    """Before, a mean of NaN did not exceed delta."""
    found = calibration.learn_then_test(constant(0.01), [0.9], 0.1)
    with pytest.raises(MeeError, match=r"^Losses must lie between 0 and 1"):
        found.outcome(np.array([[0.1, np.nan]]))


@pytest.mark.parametrize("bound", calibration.BOUNDS)
def test_a_demand_may_be_any_kind_of_number(bound):
    """Before, a fraction ended in a TypeError of numpy."""
    losses = constant(0.01, 0.3)
    found = calibration.learn_then_test(losses, [0.9, 0.8], Fraction(1, 10), Fraction(1, 20), bound)
    assert found == calibration.learn_then_test(losses, [0.9, 0.8], 0.1, 0.05, bound)
    exact = [Fraction(1, 2), np.float32(0.25)]
    assert calibration.learn_then_test(losses, exact, 0.1, bound=bound).tested == (0.5, 0.25)


@pytest.fixture(scope="module")
def task():
    return Task("summarization", "test", "validation", INPUTS, [["the house"] for _ in INPUTS], "0")


def test_losses_are_those_of_the_metric(task):
    full = ["the red house"] * len(INPUTS)
    assert (calibration.consistency_losses(task, full, full) == 0).all()
    other = calibration.consistency_losses(task, ["a green tree"] * len(INPUTS), full)
    assert (other == 1).all()
    risk = calibration.consistency_losses(task, ["a green tree"] * len(INPUTS), full, "risk")
    assert np.allclose(risk, 0.8)  # ROUGE-L of "the red house" against "the house" is 2 . 2 / 5
    assert (
        calibration.consistency_losses(task, ["the house"] * len(INPUTS), full, "risk") == 0
    ).all()  # better is no loss


def test_a_calibrated_policy_is_ready_to_decode(tokenizer, task):
    model = build_lively("t5", tokenizer, layers=6)
    policy = ExitPolicy("softmax_margin", min_layer=2, pruning="fixed", top_k=50)
    settings = {"max_new_tokens": LENGTH, "batch_size": 4}
    found = calibration.calibrate(model, task, policy, 0.9, 0.4, thresholds=[1.0, 0.5, 0.0], **settings)
    assert (
        found.threshold is not None
        and found.policy.schedule.level == found.threshold
        and found.policy.top_k == 50
    )
    assert found.mean_losses[0] < 0.9 and "guaranteed by decoding" in str(found)
    generate(model, task.inputs, found.policy, **settings)
    strict = calibration.calibrate(model, task, policy, 0.01, 0.01, thresholds=[1.0], **settings)
    assert strict.policy is None and "No threshold satisfies" in str(strict)
    for wrong, message in (
        ({"thresholds": 0.9}, "thresholds=0.9: give a list of numbers"),
        ({"thresholds": ["0.9"]}, "give a list of numbers"),
        ({"policy": ExitPolicy("patience"), "model": "t5"}, "model='t5': give what load_model returns"),
        ({"task": list(INPUTS)}, "give a Task, from load_task"),
        ({"policy": "softmax_margin"}, 'such as ExitPolicy\\("softmax_margin"\\)'),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            calibration.calibrate(**{"model": model, "task": task, "policy": policy, "delta": 0.1, **wrong})
        assert "\n" not in str(caught.value)
    with pytest.raises(MeeError, match="no threshold to choose"):
        calibration.calibrate(model, task, ExitPolicy("static", min_layer=3), 0.1, **settings)


@pytest.mark.parametrize("options", [{"kind": "consistancy"}, {"bound": "hoefding"}], ids=repr)
def test_a_misspelt_name_is_refused_before_anything_is_decoded(tokenizer, task, monkeypatch, options):
    """Before, all examples were decoded at full depth first."""
    monkeypatch.setattr(calibration, "generate", None)
    model = build_lively("t5", tokenizer)
    with pytest.raises(MeeError, match="did you mean"):
        calibration.calibrate(model, task, ExitPolicy("softmax_margin"), 0.1, **options)


def test_calibration_keeps_the_decay_of_a_threshold_of_ones_own(tokenizer, task):
    """Losses and the calibrated policy must be those of the same threshold given as options."""
    model, settings = build_lively("t5", tokenizer), {"max_new_tokens": LENGTH, "batch_size": 7}
    found = [
        calibration.calibrate(model, task, policy, 0.9, 0.4, thresholds=[0.3, 0.2, 0.1], **settings)
        for policy in (
            ExitPolicy("softmax_margin", min_layer=1, threshold=Threshold(0.9, decay=4.0)),
            ExitPolicy("softmax_margin", min_layer=1, threshold=0.9, decay=4.0),
        )
    ]
    assert found[0].mean_losses == found[1].mean_losses and found[0].threshold is not None
    assert found[0].policy.schedule == found[1].policy.schedule and found[0].policy.schedule.decay == 4.0


def test_a_result_by_replay_says_that_it_is_an_estimate():
    losses = np.stack([np.full(40, loss) for loss in (0.0, 0.1, 0.2)])
    result = calibration.learn_then_test(losses, [1.0, 0.2, 0.0], 0.9, 0.4, source="replay")
    assert "an estimate by replay, no guarantee" in str(result)
