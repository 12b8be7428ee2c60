"""Measures, thresholds and policies follow their definitions; replay agrees; FLOPs are counted as done."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import FAMILIES, INPUTS, LENGTH, build_lively, confidences
from reference import counted_and_profiled
from test_decoder import forced, random_exits

from mee_utils import (
    ExitPolicy,
    ForcedExits,
    Measure,
    MeeError,
    calibrate,
    explore,
    generate,
    load_trace,
    replay,
    trace,
)
from mee_utils.analysis.comparison import agreement
from mee_utils.analysis.threshold_choice import candidates, sweep
from mee_utils.decoding.generation import bind_policy
from mee_utils.decoding.inputs import decode_batch
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.decoding.token import on_host
from mee_utils.exits import measures
from mee_utils.exits.classifier_kinds import ExitClassifier
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.thresholds import AdaptiveThreshold, BanditThreshold, Threshold
from mee_utils.models.costs import DecoderSizes
from mee_utils.traces.replay import replay_policy

NAN = float("nan")
INF = float("inf")
PROBABILITY = {1: [0.3, 0.5, 0.2], 2: [0.6, 0.5, 0.4], 3: [0.95, 0.97, 0.3]}


class Now:
    """Three rows at layers 1, 2 and 3 of a decoder of four."""

    layers = 4
    position = 2
    sequence = np.array([0, 1, 2])
    similarity = np.array([0.9, -0.2, 0.4])

    def __init__(self, layer):
        self.layer = layer
        self.top1_probability = np.array(PROBABILITY[layer])
        self.margin = self.top1_probability - 0.1

    def earlier(self, layers):
        return Now(self.layer - layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax_margin", [0.85, 0.87, 0.2]),
        ("max_probability", [0.95, 0.97, 0.3]),
        ("hidden_similarity", [0.9, -0.2, 0.4]),
        ("rising_top1", [0.95, 0, 0]),  # the second did not rise strictly, the third fell
        ("static", [1, 1, 1]),
    ],
)
def test_measures_follow_their_definitions(name, expected):
    assert np.allclose(measures.find_measure(name).confidence(Now(3)), expected)


def test_thresholds_by_hand():
    assert Threshold(0.8).at(7, 10) == 0.8
    scaled, calm = Threshold(0.8, 4.0), Threshold(0.8, 4.0, "calm")
    assert scaled.at(0, 10) == pytest.approx(0.8) and calm.at(0, 10) == pytest.approx(0.82)
    assert scaled.at(5, 10) == pytest.approx(0.8 * (0.9 + 0.1 * np.exp(-2))) and calm.at(
        5, 10
    ) == pytest.approx(0.72 + 0.1 * np.exp(-2))
    assert np.allclose(
        Threshold(1.0, 4.0).at(np.arange(9), 10), Threshold(1.0, 4.0, "calm").at(np.arange(9), 10)
    )
    assert (np.diff(calm.at(np.arange(64), 64)) < 0).all()
    assert (
        not Threshold(0.5).exceeded(np.array([0.5, np.nan]), 0, 1).any()
        and Threshold(0.5).exceeded(np.array([0.51]), 0, 1).all()
    )


def test_the_adaptive_threshold_is_the_posterior_of_agreement_with_its_mixing_weights():
    random = np.random.default_rng(0)
    for share in (0.3, 0.9):
        threshold, agrees = AdaptiveThreshold(every=10**9), random.random(4000) < share
        confidence = np.where(agrees, random.beta(6, 2, 4000), random.beta(2, 3, 4000))
        assert threshold.exceeded(np.array([0.95, 0.85]), 0, 1).tolist() == [
            True,
            False,
        ]  # the initial threshold, 0.9
        threshold.learn(confidence, agrees)
        for low in np.arange(0.05, 0.95, 0.1):
            inside = (confidence >= low) & (confidence < low + 0.1)
            if inside.sum() > 100:
                middle = threshold.posterior(np.array([low + 0.05]))[0]
                assert abs(middle - agrees[inside].mean()) < 0.08, (
                    "the posterior is the share that agrees at this confidence"
                )
        sure = threshold.posterior(np.linspace(0.01, 0.99, 99)) > 0.4
        assert (threshold.exceeded(np.linspace(0.01, 0.99, 99), 3, 9) == sure).all()


def test_the_adaptive_threshold_waits_for_labels_of_both_kinds():
    threshold = AdaptiveThreshold(least=5)
    threshold.learn(np.full(50, 0.7), np.ones(50, bool))
    assert threshold.fitted is None
    threshold.learn(np.full(5, 0.2), np.zeros(5, bool))
    assert threshold.fitted is not None and np.isfinite(threshold.posterior(np.array([0.0, 0.5, 1.0]))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "softmax_margn"}, 'did you mean "softmax_margin"'),
        ({"measure": "lstm_classifier"}, "needs a trained classifier"),
        ({"measure": Measure}, "a class: give an instance, Measure"),
        ({"measure": measures.SoftmaxMargin}, "a class: give an instance, SoftmaxMargin"),
        ({"measure": ForcedExits}, "a class: give an instance, ForcedExits"),
        ({"measure": ExitClassifier}, "a class: give an instance, ExitClassifier"),
        ({"measure": None}, "measure=None: give a name"),
        ({"measure": 0.9}, "measure=0.9: give a name"),
        ({"measure": ["softmax_margin"]}, "give a name"),
        ({"measure": np.ones((40, 40))}, "give a name"),
        ({"threshold": BanditThreshold}, "a class: give an instance, BanditThreshold"),
        ({"threshold": Threshold}, "a class: give an instance, Threshold"),
        ({"threshold": Threshold(1.2)}, "from 0 to 1"),
        ({"measure": "patience", "threshold": Threshold(2.5)}, "whole number"),
        ({"threshold": Threshold(0.5), "decay": 4.0}, "contradict each other: leave out decay"),
        ({"threshold": 1.2}, "from 0 to 1"),
        ({"threshold": np.linspace(0, 1, 40)}, "from 0 to 1"),
        ({"threshold": True}, "from 0 to 1"),
        ({"decay": np.ones((9, 9))}, "give a temperature"),
        ({"min_layer": np.ones((9, 9))}, "counted from 1"),
        ({"min_layer": True}, "counted from 1"),
        ({"exit_layers": np.array(3)}, "give a list of layers"),
        ({"exit_layers": np.ones((9, 9), int)}, "give a list of layers"),
        ({"exit_layers": {4}}, "give a list of layers"),
        ({"propagation": "verify", "max_draft": np.ones((9, 9))}, "give a whole number of tokens"),
        ({"propagation": "verify", "max_draft": "all"}, "give a whole number of tokens"),
        ({"contrast": "jsd", "contrast_alpha": NAN}, "above 0 and up to 1"),
        ({"contrast": "jsd", "contrast_token": "yes"}, "give True or False"),
        ({"readout_class": "plain"}, "give a class of Readout"),
        ({"measure": ExitPolicy}, "give a name"),
        ({"contrast": "jsd", "contrast_alpha": "0.1"}, "above 0 and up to 1"),
        ({"pruning": "fixed", "top_k": np.ones((9, 9))}, "needs a whole number of ids"),
        ({"threshold": -0.1}, "from 0 to 1"),
        ({"threshold": float("nan")}, "from 0 to 1"),
        ({"threshold": "high"}, "from 0 to 1"),
        ({"measure": "hidden_similarity", "threshold": -1.5}, "from -1 to 1"),
        ({"threshold": [0.9]}, "from 0 to 1"),
        ({"decay": "4"}, "decay='4'"),
        ({"exit_layers": 3}, "give a list of layers"),
        ({"exit_layers": [2.5]}, "give a list of layers"),
        ({"exit_layers": "ab"}, "give a list of layers"),
        ({"measure": "rising_top1", "exit_layers": [2, 5]}, "looks 2 layers back"),
        ({"measure": "static", "threshold": 0.5}, "has no threshold"),
        ({"measure": "oracle", "decay": 4.0}, "has no threshold"),
        ({"decay": 0}, "decay=0"),
        ({"decay_form": "calm"}, "needs decay"),
        ({"decay_form": "linear", "decay": 4.0}, "decay_form"),
        ({"min_layer": 0}, "counted from 1"),
        ({"min_layer": 2.5}, "counted from 1"),
        ({"exit_layers": [4, 2]}, "ascending"),
        ({"exit_layers": []}, "at least one"),
        ({"exit_layers": [2], "min_layer": 3}, "contradict"),
        ({"propagation": "skip"}, "propagation"),
        ({"threshold": "adaptive"}, "needs propagation"),
        (
            {"threshold": "adaptive", "propagation": "parallel", "exit_layers": [2], "decay": 4.0},
            "contradict",
        ),
        (
            {
                "threshold": "adaptive",
                "propagation": "parallel",
                "exit_layers": [2],
                "measure": "hidden_similarity",
            },
            "needs a probability",
        ),
    ],
)
def test_contradictions_and_values_out_of_range_are_one_clear_line(options, message):
    with pytest.raises(MeeError, match=message) as caught:
        ExitPolicy(**options)
    assert "\n" not in str(caught.value)


class Custom(Measure):
    """A measure of a user's, with a parameter."""

    name = "custom"

    def __init__(self, factor=1.0):
        self.factor = factor

    def confidence(self, state):
        return self.factor * state.similarity


@dataclass
class Unhashable(Custom):
    factor: float = 1.0


class Steep(Threshold):
    """A threshold of a user's, with a parameter."""

    def __init__(self, level, slope):
        super().__init__(level)
        self.slope = slope


RANDOM = ForcedExits([[1, 2], [3]])
EQUAL = [  # options whose policies are equal each time they are made
    {},
    {"threshold": 0.9},
    {"threshold": 0.9, "decay": 4.0, "decay_form": "calm"},
    *({"measure": name, "min_layer": 3} for name in measures.MEASURES),
    *({"measure": kind(), "min_layer": 3} for kind in measures.MEASURES.values()),
    {"measure": measures.PatientEntropy(3)},
    {"measure": RANDOM},
    {"measure": Custom(2.0), "exit_layers": [3, 4]},
    {"measure": Unhashable(2.0)},
    {"threshold": Threshold(0.9, 4.0)},
    {"threshold": Steep(0.9, np.arange(3))},
    {"threshold": "bandit"},
    {"threshold": BanditThreshold((0.2, 0.4), 0.5)},
    {"threshold": "adaptive", "propagation": "parallel", "exit_layers": [2]},
    {"threshold": AdaptiveThreshold(0.3), "propagation": "parallel", "exit_layers": [2]},
    {"pruning": "decaying", "top_k": 40, "least_k": np.int64(4), "pruning_form": "closed"},
    {"pruning": "fixed", "top_k": 40},
    {"pruning": "fixed", "top_k": 40, "prune_last_layer": False},
    {"contrast": "jsd", "contrast_alpha": 0.2},
    {"propagation": "verify", "max_draft": 4},
    {"measure": new_classifier("linear_classifier", 32)},
]


ANY_NUMBERS = [  # (options of any kind of number, the same as numbers of Python)
    ({"threshold": Fraction(1, 2)}, {"threshold": 0.5}),
    ({"threshold": np.float32(0.5)}, {"threshold": 0.5}),
    ({"measure": "patience", "threshold": np.int8(2)}, {"measure": "patience", "threshold": 2}),
    ({"threshold": 0.5, "decay": Fraction(4)}, {"threshold": 0.5, "decay": 4.0}),
    ({"threshold": 0.5, "decay": np.int64(4)}, {"threshold": 0.5, "decay": 4}),
    ({"threshold": Threshold(Fraction(1, 2), Fraction(4))}, {"threshold": Threshold(0.5, 4.0)}),
    ({"min_layer": np.int8(2)}, {"min_layer": 2}),
    ({"exit_layers": np.array([2, 3], np.uint8)}, {"exit_layers": [2, 3]}),
    ({"propagation": "verify", "max_draft": np.uint8(2)}, {"propagation": "verify", "max_draft": 2}),
    ({"contrast": "jsd", "contrast_alpha": Fraction(1, 4)}, {"contrast": "jsd", "contrast_alpha": 0.25}),
    (
        {"pruning": "decaying", "top_k": np.uint8(200), "least_k": np.uint8(16)},
        {"pruning": "decaying", "top_k": 200, "least_k": 16},
    ),
]


@pytest.mark.parametrize(("given", "plain"), ANY_NUMBERS, ids=repr)
def test_options_may_be_any_kind_of_number(given, plain, t5):
    """Before, a fraction ended in a TypeError while decoding, and small types of numpy overflowed."""
    policy = ExitPolicy(**given)
    expected = ExitPolicy(**plain)
    assert policy == expected and hash(policy) == hash(expected) and repr(policy) == repr(expected)
    found = generate(t5, INPUTS[:2], policy, max_new_tokens=4)
    wanted = generate(t5, INPUTS[:2], expected, max_new_tokens=4)
    assert found.token_ids == wanted.token_ids
    assert all(map(np.array_equal, found.exit_layers, wanted.exit_layers))


@pytest.mark.parametrize("value", [10**400, Fraction(10**400)])
def test_numbers_that_no_float_holds_are_one_clear_line(value):
    for options in ({"threshold": value}, {"decay": value}, {"contrast": "jsd", "contrast_alpha": value}):
        with pytest.raises(MeeError, match="give a") as caught:
            ExitPolicy(**options)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", EQUAL, ids=repr)
def test_policies_with_equal_options_are_equal_and_keys_of_a_dict(options):
    fresh = copy.deepcopy(options) if not isinstance(options.get("measure"), ExitClassifier) else options
    policy, again = ExitPolicy(**options), ExitPolicy(**fresh)
    assert policy == again and hash(policy) == hash(again) and {policy: "here"}[again] == "here"
    assert pickle.loads(pickle.dumps(policy)) == policy or isinstance(policy.measure, ExitClassifier)
    policy.bind(12, 600, 1).schedule.exceeded(np.array([0.5]), 0, 9, np.array([0]), 0.5)
    assert policy == again, "binding and deciding leave a policy as it was"


def test_policies_with_other_options_are_not_equal():
    assert len({ExitPolicy(**options) for options in EQUAL}) == len(EQUAL) - len(measures.MEASURES)
    for one, other in (
        ({"threshold": 0.9}, {"threshold": 0.8}),
        ({"threshold": Threshold(0.9)}, {"threshold": Threshold(0.9, 4.0)}),
        ({"threshold": Steep(0.9, 1)}, {"threshold": Steep(0.9, 2)}),
        ({"threshold": Steep(0.9, 1)}, {"threshold": Threshold(0.9)}),
        ({"threshold": BanditThreshold(cost=0.5)}, {"threshold": "bandit"}),
        ({"threshold": BanditThreshold(cost=0.5)}, {"threshold": BanditThreshold(cost=0.6)}),
        ({"measure": Custom(1.0)}, {"measure": Custom(2.0)}),
        ({"measure": "pcee"}, {"measure": measures.PatientEntropy(3)}),
        ({"measure": RANDOM}, {"measure": ForcedExits([[1, 2], [4]])}),
    ):
        assert ExitPolicy(**one) != ExitPolicy(**other)
    networks = [ExitPolicy(new_classifier("linear_classifier", 32)) for _ in range(2)]
    assert networks[0] != networks[1], "a classifier equals itself alone"


def test_a_named_measure_is_one_object_and_a_threshold_cannot_be_changed():
    assert measures.find_measure("vote") is measures.find_measure("vote")
    with pytest.raises(FrozenInstanceError):
        Threshold(0.9).level = 0.5
    given = Steep(0.9, 2)
    changed = ExitPolicy(threshold=given).at_threshold(0.5).schedule
    assert (changed.level, changed.slope, given.level) == (0.5, 2, 0.9)


@pytest.mark.parametrize(
    "pruning",
    [
        {"pruning": "fixed", "top_k": 40, "prune_last_layer": False},
        {"pruning": "decaying", "top_k": 40, "least_k": 4, "pruning_form": "closed"},
        {},
    ],
    ids=repr,
)
def test_a_policy_over_all_entries_is_the_same_without_pruning(pruning):
    given = {"threshold": 0.4, "decay": 4.0, "min_layer": 2}
    assert ExitPolicy(**given, **pruning).over_all_entries() == ExitPolicy(**given)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((AdaptiveThreshold, {name: value}) for name in ("least", "every") for value in (0, -1, 2.5, True)),
        *((AdaptiveThreshold, {name: value}) for name in ("least", "every") for value in (NAN, None, "5")),
        *((AdaptiveThreshold, {name: value}) for name in ("zeta", "initial") for value in (-0.1, 1.1, NAN)),
        *(
            (AdaptiveThreshold, {name: value})
            for name in ("zeta", "initial")
            for value in (None, "0.5", True)
        ),
        *((BanditThreshold, {name: -0.1}) for name in ("exploration", "cost")),
        *((BanditThreshold, {name: value}) for name in ("exploration", "cost") for value in (NAN, INF, "1")),
        *((BanditThreshold, {"arms": arms}) for arms in ([], [0.5], [0.5, NAN], [0.5, 1.1], [-0.1, 0.5])),
        *((BanditThreshold, {"arms": arms}) for arms in (0.5, None, "0.5", ["a", "b"], [True, False])),
        *((BanditThreshold, {"arms": arms}) for arms in (np.array(0.5), np.full((2, 2), 0.5), {0.4, 0.5})),
        *((Threshold, {"level": level}) for level in (NAN, None, "0.5", [0.5], True)),
        *((Threshold, {"level": 0.5, "decay": decay}) for decay in (0, -4.0, NAN, INF, "4", True)),
        (Threshold, {"level": 0.5, "decay": 4.0, "form": "linear"}),
    ],
)
def test_settings_of_thresholds_out_of_range_are_one_clear_line(kind, settings):
    name, value = list(settings.items())[-1]
    with pytest.raises(MeeError, match=r"give|Unknown decay_form") as caught:
        kind(**settings)
    assert "\n" not in str(caught.value)
    if kind is not Threshold and not isinstance(value, np.ndarray):
        assert f"{name}={value!r}" in str(caught.value)


def test_the_least_settings_of_thresholds_work():
    threshold = AdaptiveThreshold(zeta=1, initial=0, least=1, every=1)
    threshold.learn(np.array([0.9, 0.2, 1.0]), np.array([True, False, True]))
    assert not threshold.exceeded(np.array([0.5, np.nan, 1.0]), 0, 9).any()
    bandit = BanditThreshold(np.array([0, 1]), exploration=0, cost=0)
    for position in range(4):
        bandit.exceeded(np.array([0.5]), position, 9, np.array([0]), 0.5)
    assert len(bandit.plays[0]) == 4
    bandit.exceeded(np.array([0.5]), 2, 9, np.array([0]), 0.5)
    assert len(bandit.plays[0]) == 3, "drafted again at the same depth: what followed is void"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ExitPolicy(threshold=Threshold(0.5)).at_threshold("0.4"), "threshold='0.4': give a number"),
        (lambda: ExitPolicy(threshold=Steep(0.5, 1)).at_threshold(NAN), "threshold=nan: give a number"),
        (lambda: measures.ConfidenceWindow(distance="far"), "distance='far': give a number"),
        (lambda: new_classifier("linear_classifier", 0), "d_model=0: give a whole number from 1 on"),
        (
            lambda: new_classifier("linear_classifier", 8, seed=-1),
            "seed=-1: give a whole number from 0 to 2**63",
        ),
        (lambda: new_classifier("linear_classifier", 8, seed=2**70), f"seed={2**70}: give a whole number"),
        (lambda: new_classifier("hidden_classifier", 8, hidden=-1), "hidden=-1: give a whole number"),
        (lambda: new_classifier("hidden_classifier", 8, layers=0), "layers=0: give a whole number"),
        (lambda: new_classifier("lstm_classifier", 8, depth=1.5), "depth=1.5: give a whole number"),
    ],
)
def test_other_mistakes_are_one_clear_line(call, message):
    with pytest.raises(MeeError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def traced(tokenizer):
    model = build_lively("t5", tokenizer)
    return model, trace(model, INPUTS, max_new_tokens=LENGTH)


@pytest.mark.parametrize("name", sorted({*measures.MEASURES} - {"oracle", "static"}))
def test_confidences_while_decoding_are_those_of_the_trace(lively, name):
    """Nobody exits, so that every layer is seen; then what the loop saw is what the trace keeps.

    A measure that works on tensors alone fails here; the oracle asks for later layers, "static" for none.
    """
    seen, kind = {}, measures.MEASURES[name]

    class Spy(kind):
        def confidence(self, now):
            found = super().confidence(now)
            seen.setdefault(now.layer, []).append(on_host(found))
            return found * 0 + self.range[0]

    generate(lively, INPUTS[:1], ExitPolicy(Spy()), max_new_tokens=LENGTH)
    expected = confidences(trace(lively, INPUTS[:1], max_new_tokens=LENGTH), ExitPolicy(name))
    assert np.allclose(
        np.stack([np.concatenate(seen[layer]) for layer in sorted(seen)], axis=1), expected, atol=1e-5
    )


class Largest(Measure):
    """The largest of a layer's logits, or of its probabilities."""

    name = "largest"
    range = (-np.inf, np.inf)
    readout = True

    def __init__(self, attribute):
        self.attribute = attribute

    def confidence(self, now):
        return getattr(now, self.attribute).amax(-1)


@pytest.mark.parametrize("attribute", ["logits", "probabilities"])
def test_a_measure_on_logits_replays_from_stored_states_as_it_decodes(lively, attribute, tmp_path):
    """The same confidences, and the rows of the LM head that any measure on probabilities multiplies."""
    seen = {}

    class Spy(Largest):
        def confidence(self, now):
            largest = super().confidence(now)
            seen.setdefault(now.layer, []).append(on_host(largest))
            return largest

    stored = trace(lively, INPUTS[:1], max_new_tokens=LENGTH, states=tmp_path / "states.npy")
    nothing_exits = ExitPolicy(Spy(attribute), threshold=INF, min_layer=2)
    generate(lively, INPUTS[:1], nothing_exits, max_new_tokens=LENGTH)
    decoded = np.stack([np.concatenate(seen[layer]) for layer in sorted(seen)], axis=1)  # [token, decision]
    replayed = replay_policy(stored, nothing_exits, lively)
    assert np.allclose(decoded, replayed.confidences, rtol=1e-5)
    reference = replay_policy(stored, ExitPolicy("max_probability", min_layer=2))
    assert (replayed.readout_rows == reference.readout_rows).all()


def test_replay_takes_the_first_layer_that_exceeds(traced):
    _, found = traced
    for policy in (
        ExitPolicy(threshold=0.1, min_layer=2),
        ExitPolicy("max_probability", threshold=0.3, decay=4.0),
    ):
        values, exits = (
            (found.margin if policy.measure.name == "softmax_margin" else found.top1_probability),
            replay(found, policy, LENGTH),
        )
        for token in range(len(found)):
            level = policy.schedule.at(int(found.position[token]), LENGTH)
            allowed = [
                layer
                for layer in range(policy.min_layer or 1, found.layers)
                if values[token, layer - 1] > level
            ]
            assert exits[token] == (allowed or [found.layers])[0]
    assert (replay(found, ExitPolicy("static", min_layer=3)) == 3).all()
    assert (replay(found, ExitPolicy(exit_layers=[2], threshold=0.0)) == 2).all()
    oracle = replay(found, ExitPolicy("oracle"))
    for token, layer in enumerate(oracle):
        same = found.top1_id[token] == found.final_id[token]
        assert same[layer - 1 :].all() and (layer == 1 or not same[layer - 2])


def test_a_sweep_is_many_replays(traced):
    _, found = traced
    thresholds = np.linspace(0, 1, 11)
    for policy in (ExitPolicy(min_layer=2, decay=4.0), ExitPolicy("rising_top1")):
        table = sweep(replay_policy(found, policy), thresholds, LENGTH)
        for row in table.itertuples():
            one = ExitPolicy(policy.measure, row.threshold, policy.decay, min_layer=policy.min_layer)
            assert row.mean_exit_layer == pytest.approx(replay(found, one, LENGTH).mean())
        assert (np.diff(table.mean_exit_layer) >= 0).all() and table.same_token.iloc[-1] <= 1
    for policy, thresholds, message in (
        (ExitPolicy("static", min_layer=2), [0.5], "no threshold to choose"),
        (ExitPolicy(), [0.5, 7.0], "from 0 to 1"),
    ):
        with pytest.raises(MeeError, match=message):
            sweep(replay_policy(found, policy), thresholds)
    assert table.mean_exit_layer.iloc[-1] == found.layers and table.same_token.iloc[-1] == 1


def test_a_stored_trace_replays_the_same(traced, tmp_path):
    _, found = traced
    again = load_trace(found.save(tmp_path / "t.parquet"))
    assert (replay(again, ExitPolicy(threshold=0.1)) == replay(found, ExitPolicy(threshold=0.1))).all()


def test_what_cannot_be_replayed_says_so(traced):
    _, found = traced
    adaptive = ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[2])
    with pytest.raises(MeeError, match="cannot be replayed"):
        replay(found, adaptive)

    class OnState(Measure):
        name = "on_state"

        def confidence(self, now):
            return now.state.sum(-1)

    with pytest.raises(MeeError, match=r"give the model of the trace too, model=.*states=file"):
        replay(found, ExitPolicy(OnState()))
    with pytest.raises(MeeError, match="made without states"):
        replay(found, ExitPolicy(OnState()), model=traced[0])

    for attribute in ("logits", "probabilities"):
        with pytest.raises(MeeError, match=r"give the model of the trace too, model=.*states=file"):
            replay(found, ExitPolicy(Largest(attribute)))
    with pytest.raises(MeeError, match=r'has no "entropi".*exits/measures.py lists'):
        replay(found, ExitPolicy(Largest("entropi")))
    with pytest.raises(MeeError, match="names layer 9"):
        replay(found, ExitPolicy(min_layer=9))


def test_agreement_is_one_where_nothing_exits_and_counts_what_differs(traced):
    model, found = traced
    never = ExitPolicy(threshold=1.0)
    full = generate(model, INPUTS, never, max_new_tokens=LENGTH)
    same = agreement(replay_policy(found, never), full, LENGTH)
    assert same == {
        "same_output": 1.0,
        "same_exit": 1.0,
        "mean_exit_layer_replay": 4.0,
        "mean_exit_layer_decoded": 4.0,
    }
    full.token_ids[0] = [token + 1 for token in full.token_ids[0]]
    full.exit_layers[1] = np.ones_like(full.exit_layers[1])
    worse = agreement(replay_policy(found, never), full, LENGTH)
    compared = 1 + sum(map(len, full.token_ids[1:]))
    assert worse["same_output"] == pytest.approx(6 / 7)
    assert worse["same_exit"] == pytest.approx(1 - len(full.token_ids[1]) / compared)
    for other in (
        trace(model, INPUTS[:2], max_new_tokens=LENGTH),
        trace(model, INPUTS, INPUTS, max_new_tokens=LENGTH),
    ):
        with pytest.raises(MeeError, match="on the inputs that were decoded"):
            agreement(replay_policy(other, never), full, LENGTH)


def test_a_measure_cannot_look_before_the_first_layer(traced):
    model, found = traced

    class TooFar(Measure):
        name = "too_far"

        def confidence(self, now):
            return now.earlier(3).margin

    message = re.escape("earlier(3) at layer 1: the layers begin with 1; set lookback = 3")
    with pytest.raises(MeeError, match=message):
        replay(found, ExitPolicy(TooFar()))
    with pytest.raises(MeeError, match=message):
        generate(model, INPUTS, ExitPolicy(TooFar()))
    TooFar.lookback = 3
    assert replay(found, ExitPolicy(TooFar(), min_layer=1, threshold=0.0)).min() >= 4


@dataclass(eq=False)
class Returns(Measure):
    """What `compute` makes of the margin, `[rows]`."""

    compute: object

    name = "returns"
    readout = True

    def confidence(self, state):
        return self.compute(state.margin)


NO_CONFIDENCES = {
    "scalar": (lambda margin: margin.mean(), "returned"),
    "number": (lambda margin: 0.5, "returned 0.5"),
    "column": (lambda margin: margin[:, None], "returned shape"),
    "row": (lambda margin: margin[None], "returned shape"),
    "one row less": (lambda margin: margin[1:], "returned shape"),
    "none": (lambda margin: None, "returned None"),
    "word": (lambda margin: "high", "returned 'high'"),
    "words": (lambda margin: ["high"] * len(margin), "returned ['high'"),
    "ragged": (lambda margin: [[0.1, 0.2], *([[0.1]] * (len(margin) - 1))], "returned"),
    "dict": (lambda margin: {"confidence": margin}, "returned"),
}


@pytest.mark.parametrize(("compute", "what"), NO_CONFIDENCES.values(), ids=NO_CONFIDENCES.keys())
def test_a_confidence_that_is_not_one_number_per_row_is_refused(traced, compute, what):
    model, found = traced
    policy = ExitPolicy(Returns(compute))
    message = re.escape(f'confidence(state) of "returns" {what}')
    for decode in (
        lambda: replay(found, policy),
        lambda: generate(model, INPUTS, policy),
        lambda: generate(model, INPUTS, ExitPolicy(Returns(compute), propagation="verify", max_draft=2)),
        lambda: generate(model, INPUTS, ExitPolicy(Returns(compute), propagation="verify")),
        lambda: generate(model, INPUTS, ExitPolicy(Returns(compute), pruning="fixed", top_k=5)),
    ):
        with pytest.raises(MeeError, match=message) as error:
            decode()
        assert "one number per row, shape (" in str(error.value) and "\n" not in str(error.value)


def test_confidences_may_be_any_numbers_one_per_row(traced):
    model, found = traced
    for compute in (
        lambda margin: margin > 0.5,
        lambda margin: margin.tolist(),
        lambda margin: [*margin],
        lambda margin: on_host(margin).astype(np.float16),
        lambda margin: margin * NAN,
    ):
        policy = ExitPolicy(Returns(compute), threshold=0.5)
        assert len(replay(found, policy)) == len(found)
        assert generate(model, INPUTS, policy, max_new_tokens=2).tokens


def test_a_measure_without_a_confidence_says_so(traced):
    class Empty(Measure):
        pass

    class Child(Empty):
        pass

    class Margin(measures.SoftmaxMargin):
        pass

    assert (Empty.name, Child.name, Margin.name) == ("Empty", "Child", "softmax_margin")
    assert repr(ExitPolicy(Child())) == 'ExitPolicy("Child")'
    with pytest.raises(MeeError, match=re.escape("Child has no method confidence(self, state)")):
        generate(traced[0], INPUTS, ExitPolicy(Child()))


@dataclass(eq=False)
class Shows(Measure):
    """One attribute of the state; it does not say that it needs logits."""

    attribute: str

    name = "shows"

    def confidence(self, state):
        return getattr(state, self.attribute)


WAYS_TO_DECODE = [{}, {"propagation": "verify", "max_draft": 2}, {"propagation": "verify"}]


@pytest.mark.parametrize("options", WAYS_TO_DECODE, ids=["copy", "drafts", "planned"])
def test_an_attribute_that_no_state_has_is_one_clear_line(lively, options):
    message = r'^"shows" looks at state\.margins, which there is not: mee_utils/exits/measures\.py lists'
    with pytest.raises(MeeError, match=message):
        generate(lively, INPUTS, ExitPolicy(Shows("margins"), **options), max_new_tokens=LENGTH)

    class Mistaken(Shows):
        def confidence(self, state):
            return self.nothing

    with pytest.raises(AttributeError, match="nothing"):  # a mistake elsewhere is Python's to tell
        generate(lively, INPUTS, ExitPolicy(Mistaken("margin"), **options), max_new_tokens=LENGTH)


@pytest.mark.parametrize("attribute", ["margin", "top1_probability", "entropy", "in_source"])
def test_a_measure_that_forgets_to_say_that_it_needs_logits_is_refused(lively, attribute):
    """Before, the LM head was multiplied twice for a token that exits, and nobody said so."""
    message = r'^"shows" looks at logits or probabilities: set readout = True'
    with pytest.raises(MeeError, match=message):
        replay(trace(lively, INPUTS, max_new_tokens=LENGTH), ExitPolicy(Shows(attribute)))
    for options in WAYS_TO_DECODE:
        with pytest.raises(MeeError, match=message):
            generate(lively, INPUTS, ExitPolicy(Shows(attribute), **options), max_new_tokens=LENGTH)


def test_a_measure_on_logits_of_an_earlier_layer_alone_needs_no_readout_of_its_own(lively):
    class Late(Measure):
        lookback = 1

        def confidence(self, state):
            return state.earlier(1).margin

    found = trace(lively, INPUTS, max_new_tokens=LENGTH)
    nothing_exits = ExitPolicy(Late(), threshold=1.0, min_layer=2)
    assert (replay(found, nothing_exits) == 4).all()
    assert generate(lively, INPUTS, nothing_exits, max_new_tokens=LENGTH).mean_exit_layer == 4


def test_a_measure_shows_its_options():
    assert repr(measures.PatientEntropy(patience=3)) == "PatientEntropy(patience=3)"
    assert repr(measures.ConfidenceWindow(distance=0.2)) == "ConfidenceWindow(window=3, distance=0.2)"
    assert repr(measures.SoftmaxMargin()) == "SoftmaxMargin()"
    assert repr(ForcedExits([[1]])) == "ForcedExits()"
    with pytest.raises(MeeError, match=r'did you mean "softmax_margin".*Or give a Measure object\.'):
        ExitPolicy("softmax_marign")


@pytest.mark.parametrize("layers", [[], [1, 2], [[0]], [[1.5]], [["a"]], None])
def test_exits_that_are_no_layers_are_refused(layers):
    with pytest.raises(MeeError, match="one list of layers"):
        ForcedExits(layers)


def masked_away(sizes, exits):
    """Products of waiting queries with later keys, which a causal pass throws away and nobody counts."""
    extra = 0
    for layer in range(1, max(exits) + 1):
        filled = 0
        for position, exit_layer in enumerate(exits):
            if exit_layer >= layer:
                extra += sum(4 * sizes.inner * (position - waiting) for waiting in range(filled, position))
                filled = position + 1
    return extra


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parallel", [False, True])
def test_operations_are_counted_as_a_profiler_counts_them(tokenizer, family, parallel):
    model = build_lively(family, tokenizer, dtype=torch.float32)
    for seed in range(4):
        exits = random_exits(seed, model.layers, 1)
        policy = forced(exits, propagation="parallel" if parallel else "copy") if seed else None
        row, counted, profiled = counted_and_profiled(model, INPUTS[seed], policy, LENGTH)
        if parallel:
            profiled -= masked_away(DecoderSizes.of(model.network.config), row.exit_layers)
        assert sum(counted.values()) == profiled


@pytest.mark.parametrize("name", ["softmax_margin", "rising_top1", "hidden_similarity"])
def test_readouts_of_a_measure_are_counted_as_a_profiler_counts_them(tokenizer, name):
    model = build_lively("t5", tokenizer, dtype=torch.float32)
    found = confidences(trace(model, INPUTS, max_new_tokens=LENGTH), ExitPolicy(name))
    level = float(np.quantile(found[found > 0], 0.6))
    exited = set()
    for text in INPUTS:
        policy = ExitPolicy(name, threshold=level, min_layer=1)
        row, counted, profiled = counted_and_profiled(model, text, policy, LENGTH)
        exited |= set(row.exit_layers)
        assert sum(counted.values()) == profiled
    assert len(exited) > 1


def test_free_learns_from_deep_predictions_while_it_decodes(tokenizer):
    """Labels are what a full-depth pass over the emitted tokens predicts, one a token that went deep."""
    model = build_lively("t5", tokenizer)
    found = confidences(
        trace(model, INPUTS, max_new_tokens=LENGTH), ExitPolicy("max_probability", exit_layers=[2])
    )
    schedule = AdaptiveThreshold(initial=float(np.median(found)), least=10**9)
    policy = ExitPolicy("max_probability", threshold=schedule, propagation="parallel", exit_layers=[2])
    decoder, encoded = LayerwiseDecoder(model.network), model.tokenizer(INPUTS[0], return_tensors="pt")
    policy = bind_policy(policy, decoder)
    ids, layers, *_ = decode_batch(decoder, dict(encoded), policy, LENGTH, np.array([0]))[0]
    assert set(layers) == {2, 4}
    fed = torch.tensor([[model.network.config.decoder_start_token_id, *ids[:-1]]])
    with torch.inference_mode():
        deep = model.network(**encoded, decoder_input_ids=fed, use_cache=False).logits[0].argmax(-1).numpy()
    deepened = int(np.flatnonzero(layers == 4)[-1]) + 1
    agrees = sum(len(values) * label for label, values in policy.schedule.labels.items())
    assert sum(map(len, policy.schedule.labels.values())) == deepened
    waiting = (layers[:deepened] == 2) & (deep[:deepened] == np.array(ids)[:deepened])
    assert waiting.sum() <= agrees <= waiting.sum() + (layers[:deepened] == 4).sum()


def test_labels_of_a_batch_are_those_of_its_rows(lively):
    """With a threshold that stays where it is, a batch teaches what its rows teach alone."""
    found = confidences(
        trace(lively, INPUTS, max_new_tokens=LENGTH), ExitPolicy("max_probability", exit_layers=[2])
    )
    learned, settings = [], {"initial": float(np.quantile(found, 0.4)), "least": 10**9}
    for batch_size in (1, 3, 7):
        policy = ExitPolicy(
            "max_probability",
            threshold=AdaptiveThreshold(**settings),
            propagation="parallel",
            exit_layers=[2],
        )
        decoder, seen = LayerwiseDecoder(lively.network), {True: [], False: []}
        for start in range(0, len(INPUTS), batch_size):
            encoded = dict(
                lively.tokenizer(INPUTS[start : start + batch_size], padding=True, return_tensors="pt")
            )
            rows = np.arange(len(encoded["input_ids"]))
            fresh = bind_policy(policy, decoder)
            decode_batch(decoder, encoded, fresh, LENGTH, rows)
            for label, values in fresh.schedule.labels.items():
                seen[label] += values
        learned.append({label: np.sort(values) for label, values in seen.items()})
    for other in learned[1:]:
        for label in (True, False):
            assert np.allclose(learned[0][label], other[label], atol=1e-6)
    assert sum(map(len, learned[0].values())) > len(INPUTS)


def test_a_refitted_threshold_exits_where_its_posterior_says(tokenizer):
    model = build_lively("t5", tokenizer)
    found = confidences(
        trace(model, INPUTS, max_new_tokens=LENGTH), ExitPolicy("max_probability", exit_layers=[2])
    )
    schedule = AdaptiveThreshold(initial=float(np.quantile(found, 0.5)), least=2, every=1)
    policy = ExitPolicy("max_probability", threshold=schedule, propagation="parallel", exit_layers=[2])
    rows = generate(model, INPUTS * 3, policy, max_new_tokens=LENGTH, batch_size=1)
    assert len(set(np.concatenate(rows.exit_layers))) == 2 and schedule.fitted is None, (
        "the policy given is left as it was"
    )
    for exits, read in zip(rows.exit_layers, rows.readout_rows, strict=True):
        deep = np.flatnonzero(exits == 4)
        again = (exits[: deep[-1]] == 2).sum() if len(deep) else 0
        assert read.sum() == model.network.config.vocab_size * (len(exits) + len(deep) + again), (
            "waiting tokens are read out again when they have been through all layers"
        )


def test_adaptive_decoding_runs_batched_and_starts_anew_in_each_call(lively):
    policy = ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[2])
    first = generate(lively, INPUTS, policy, max_new_tokens=LENGTH, batch_size=3)
    again = generate(lively, INPUTS, policy, max_new_tokens=LENGTH, batch_size=3)
    assert first.token_ids == again.token_ids and set(np.concatenate(first.exit_layers)) <= {2, 4}


def test_a_new_measure_is_one_small_class(lively):
    class Certainty(Measure):
        """1 minus the entropy of the read-out, as a share of the largest that is possible."""

        name, readout = "certainty", True

        def confidence(self, now):
            return 1 - now.entropy / np.log(600)

    found = confidences(trace(lively, INPUTS, max_new_tokens=LENGTH), ExitPolicy(Certainty()))
    policy = ExitPolicy(Certainty(), threshold=float(np.quantile(found, 0.8)))
    decoded = generate(lively, INPUTS, policy, max_new_tokens=LENGTH)
    assert len(set(np.concatenate(decoded.exit_layers))) > 1
    assert len(set(replay(trace(lively, INPUTS, max_new_tokens=LENGTH), policy))) > 1


def test_forced_exits_run_all_layers_where_their_list_ends(lively):
    found = generate(lively, INPUTS[:2], ExitPolicy(ForcedExits([[1, 2], []])), max_new_tokens=4)
    assert (
        list(found.exit_layers[0][:2]) == [1, 2]
        and (found.exit_layers[0][2:] == 4).all()
        and (found.exit_layers[1] == 4).all()
    )
    assert (
        np.isnan(found.confidences[1]).all()
        and found.mean_exit_layer < 4
        and found.tokens == sum(map(len, found.token_ids))
    )


class Distant(Measure):
    """Its range has neither 0.9 nor 1 in it, and it is infinite once."""

    range = (5.0, np.inf)
    default_threshold = 6.0

    def confidence(self, state):
        return 7 + 0 * state.similarity + (np.inf if state.layer == 2 else 0)


def test_an_error_names_what_was_not_given_by_the_user(lively, synthetic_tasks):
    class Forgetful(Distant):
        default_threshold = 0.9

    with pytest.raises(MeeError, match=r"default_threshold=0\.9 for Forgetful: in its class set it to"):
        ExitPolicy(Forgetful())
    with pytest.raises(MeeError, match=r"threshold=1 for Distant: give a number from 5"):
        ExitPolicy(Distant(), threshold=1)
    with pytest.raises(MeeError, match=r'"Distant" has confidences from 5 to inf: give thresholds='):
        calibrate(lively, synthetic_tasks["translation"][:2], ExitPolicy(Distant()), 0.1)


def test_infinite_confidences_are_one_clear_error(lively, synthetic_tasks):
    """Before, the explorer ended in a traceback of json, and thresholds were NaN."""
    policy = ExitPolicy(Distant(), min_layer=1)
    found = trace(lively, INPUTS[:1], max_new_tokens=LENGTH)
    for call in (
        lambda: candidates(replay_policy(found, policy, lively), 3),
        lambda: explore(lively, synthetic_tasks["translation"][:1], {"distant": policy}),
    ):
        with pytest.raises(MeeError, match="gives infinite confidences: let it give finite ones"):
            call()


def test_the_docstring_of_a_policy_names_every_measure():
    listed = re.search(r"measure: .*?\)\.", ExitPolicy.__doc__, re.DOTALL)[0]
    assert {*measures.MEASURES} <= set(re.findall(r"\w+", listed))
