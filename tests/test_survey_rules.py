"""The survey's exit rules: a plain numpy reference, replay, batches and verified drafts agree on each."""

import inspect
import re
from dataclasses import dataclass
from itertools import product
from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from conftest import INPUTS, LENGTH, build_lively, confidences
from reference import counted_and_profiled
from test_verify import agreeing, check_replay

from mee_utils import (
    ExitPolicy,
    Measure,
    MeeError,
    Task,
    Trace,
    calibrate,
    generate,
    load_classifier,
    load_model,
    load_task,
    replay,
    replay_drafts,
    save_classifier,
    trace,
    train_classifier,
)
from mee_utils.analysis.calibration import consistency_losses
from mee_utils.analysis.threshold_choice import candidates, thresholds_for
from mee_utils.common.files import PACKAGE, read_yaml
from mee_utils.companion import catalogue
from mee_utils.decoding.layerwise import decoder_of
from mee_utils.exits.classifiers import SIZED, new_classifier
from mee_utils.exits.history_classifier import FEATURES
from mee_utils.exits.measures import ConfidenceWindow, PatientEntropy, Vote
from mee_utils.exits.thresholds import AdaptiveThreshold, BanditThreshold, Threshold
from mee_utils.traces.classifier_training import _Loss, exit_labels
from mee_utils.traces.replay import StoredStates, replay_policy

LAYERS = 6
ARMS = (0.02, 0.1, 0.3)
TRAINED = ("learning_to_exit", "q_exit", "ztw", "past_future", "token_hash", "history_classifier")
RULES = {
    "entropy": {},
    "patience": {},
    "vote": {},
    "weighted_vote": {},
    "pcee": {"measure": PatientEntropy(3)},
    "elbert": {"measure": ConfidenceWindow(2, distance=-0.45)},  # random models are never sure
    **{kind: {} for kind in TRAINED},
    "bandit": {"measure": "max_probability", "threshold": BanditThreshold(ARMS, 0.05, cost=0.1)},
    "mue": {"measure": "hidden_similarity", "decay": 4.0},
}


def new(kind, tokenizer, seed=0):
    """With weights that make confidences differ from token to token."""
    sizes = {"decoder_layers": LAYERS, "vocabulary": len(tokenizer)}
    made, random = new_classifier(kind, 32, seed, **{n: sizes[n] for n in SIZED.get(kind, ())}), torch.randn
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for weight in made.parameters():
            weight.add_(0.3 * random(weight.shape) / weight.shape[-1] ** 0.5)
        if kind == "token_hash":
            made.shares = torch.rand(made.shares.shape).sort(dim=1).values
    return made.double()


@pytest.fixture(scope="module", params=["lively", "agreeing"])
def traced(request, tokenizer, tmp_path_factory):
    """A model, a trace with all probabilities, its output, and for each rule a policy."""
    make = build_lively if request.param == "lively" else agreeing
    model = make("t5", tokenizer, layers=LAYERS)
    states = tmp_path_factory.mktemp("survey") / "s.npy"
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    found = trace(model, INPUTS, outputs=full.token_ids, states=states, top_k=len(tokenizer))
    measures = {name: name if name not in TRAINED else new(name, tokenizer) for name in RULES}
    policies = {name: ExitPolicy(**{"measure": measures[name]} | options) for name, options in RULES.items()}
    return model, found, full, policies


def halfway(policy, model, found):
    """The policy at a threshold that about half of what it sees exceeds, none by a rounding error alone."""
    if policy.schedule.online:
        return policy
    seen = np.unique(confidences(found, policy, model))
    if policy.measure.integer_threshold:
        return policy.at_threshold(float(seen[len(seen) // 3]))
    middle = seen[int(0.4 * len(seen)) : int(0.6 * len(seen)) + 2]
    widest = np.diff(middle).argmax()
    return policy.at_threshold(float(middle[widest : widest + 2].mean()))


def changed(policy, **options):
    kept = ("decay", "exit_layers", "min_layer", "pruning", "top_k")
    given = {name: getattr(policy, name) for name in kept} | {"threshold": policy.threshold} | options
    return ExitPolicy(policy.measure, **given)


# ---- the reference, in plain numpy


def softmax(scores):
    shifted = np.exp(scores - scores.max())
    return shifted / shifted.sum()


def distribution(found, token, layer):
    p = np.empty(found.top_ids.shape[-1])
    p[found.top_ids[token, layer - 1]] = found.top_probabilities[token, layer - 1]
    return p


def entropy(p):
    return -np.sum(p[p > 0] * np.log(p[p > 0]))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def foretold(measure, states, head, token, layer):
    """Scores of the foretold state."""
    maps, shifts = measure.maps.numpy()[layer - 1], measure.shifts.numpy()[layer - 1]
    return head @ (maps @ states[token, layer - 1] + shifts)


@dataclass
class Decision:
    """One token at the last of the `exits` so far, in plain numpy."""

    measure: Measure
    found: Trace
    states: np.ndarray  # [token, layer, d_model], normalised
    head: np.ndarray  # [id, d_model]
    token: int
    exits: list[int]

    @property
    def layer(self):
        return self.exits[-1]

    @property
    def distributions(self):
        """Of every exit so far."""
        return [distribution(self.found, self.token, layer) for layer in self.exits]

    @property
    def top1_ids(self):
        return [int(p.argmax()) for p in self.distributions]

    @property
    def top1_probability(self):
        return self.distributions[-1].max()


# ---- each rule from its definition: the confidence of one decision


def entropy_of_one(decision):
    return np.exp(-entropy(decision.distributions[-1]))


def patience_of_one(decision):
    ids = decision.top1_ids
    run = 1
    while run < len(ids) and ids[-run - 1] == ids[-1]:
        run += 1
    return run


def vote_of_one(decision):
    return decision.top1_ids.count(decision.top1_ids[-1])


def weighted_vote_of_one(decision):
    votes = zip(decision.top1_ids, decision.distributions, strict=True)
    return sum(p.max() for top1_id, p in votes if top1_id == decision.top1_ids[-1])


def pcee_of_one(decision):
    last = decision.distributions[-3:]
    return np.exp(-max(map(entropy, last))) if len(last) == 3 else 0.0


def elbert_of_one(decision):
    tops = [p.max() for p in decision.distributions]
    risen = len(tops) >= 2 and tops[-1] > tops[-2] and tops[-1] > 0.05
    return 1.0 if risen else entropy_of_one(decision)


def ztw_of_one(decision):
    weights = np.exp(decision.measure.log_weights.numpy())
    experts = zip(decision.exits, decision.distributions, strict=True)
    scores = sum(weights[layer - 1] * np.log(p) for layer, p in experts)
    return softmax(scores + decision.measure.bias.numpy()).max()


def exit_probabilities(decision):
    """Of one linear unit at every layer up to this one."""
    weight = decision.measure.network.weight.numpy()[0]
    bias = decision.measure.network.bias.numpy()[0]
    return [sigmoid(weight @ state + bias) for state in decision.states[decision.token, : decision.layer]]


def learning_to_exit_of_one(decision):
    return exit_probabilities(decision)[-1]


def q_exit_of_one(decision):
    return 1 - np.prod([1 - probability for probability in exit_probabilities(decision)])


def past_future_of_one(decision):
    scores = foretold(decision.measure, decision.states, decision.head, decision.token, decision.layer)
    return softmax(scores).max()


def token_hash_of_one(decision):
    at_start = decision.found.position[decision.token] == 0
    before = -1 if at_start else decision.found.token_id[decision.token - 1]
    return decision.measure.shares.numpy()[before, decision.layer - 1]


def history_classifier_of_one(decision):
    """Of the example in its docstring the features are these of layer 6; here they are computed anew."""
    ids = decision.top1_ids
    margins = []
    for p in decision.distributions:
        second, first = np.sort(p)[-2:]
        margins.append(log_odds(first - second))
    tops = [log_odds(p.max()) for p in decision.distributions]
    entropies = [entropy(p) for p in decision.distributions]
    similarities = [decision.found.similarity[decision.token, layer - 1] for layer in decision.exits]
    before = max(len(ids) - 2, 0)  # the decision before; the first has none, and stands for it itself
    two_before = max(len(ids) - 3, 0)
    source = decision.found.source_ids[decision.found.sequence[decision.token]]
    features = {
        "margin": margins[-1],
        "margin before": margins[before],
        "margin two before": margins[two_before],
        "top-1": tops[-1],
        "top-1 before": tops[before],
        "entropy": entropies[-1],
        "entropy before": entropies[before],
        "similarity": similarities[-1],
        "similarity before": similarities[before],
        "same as before": ids[-1] == ids[before],
        "same as two before": ids[-1] == ids[two_before],
        "unchanged": patience_of_one(decision),
        "in source": ids[-1] in source,
        "source": np.log(len(source)),
        "position": np.log(1 + decision.found.position[decision.token]),
        "depth": decision.layer / LAYERS,
        "decided before": min(len(ids) - 1, 2),
    }
    weights = {name: each.numpy() for name, each in decision.measure.state_dict().items()}
    numbers = np.array([features[name] for name in FEATURES], dtype=float)
    step = round(12 * decision.layer / LAYERS) - 1  # of depth, in twelfths
    hidden = weights["network.weight"] @ numbers + weights["network.bias"]
    hidden += weights["at_depth.weight"][step] + weights["margin_at_depth.weight"][step] * margins[-1]
    return sigmoid(weights["head.weight"][0] @ np.maximum(hidden, 0) + weights["head.bias"][0])


def log_odds(p):
    return np.log((p + 1e-6) / (1 - p + 1e-6))


def bandit_of_one(decision):
    return decision.top1_probability


def mue_of_one(decision):
    return decision.found.similarity[decision.token, decision.layer - 1]


DEFINITIONS = {name: globals()[f"{name}_of_one"] for name in RULES}


def arrays(model, found):
    """Normalised states and the LM head, with the scale of the readout."""
    states = StoredStates(found, model).normalized(slice(None)).numpy()
    return states, model.network.lm_head.weight.detach().numpy() * model.network.config.d_model**-0.5


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("layers", [range(1, LAYERS), [1, 3, 5]], ids=["every layer", "at intervals"])
def test_a_replay_reads_what_the_definition_says(traced, name, layers):
    model, found, _, policies = traced
    policy = changed(policies[name], exit_layers=list(layers))
    seen, (states, head) = confidences(found, policy, model), arrays(model, found)
    for token in range(len(found)):
        expected = [
            DEFINITIONS[name](Decision(policy.measure, found, states, head, token, layers[: n + 1]))
            for n in range(len(layers))
        ]
        assert np.allclose(seen[token], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("options", [{}, {"exit_layers": [1, 3, 5]}], ids=["every layer", "at intervals"])
def test_a_row_gets_in_a_batch_what_it_gets_alone_and_what_the_replay_foretells(traced, name, options):
    model, found, _, policies = traced
    exited = set()
    for propagation in ("parallel", "copy"):
        policy = halfway(changed(policies[name], propagation=propagation, **options), model, found)
        exits = replay(found, policy, LENGTH, model)
        rows = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
        exited |= set(np.concatenate(rows.exit_layers))
        for index, text in enumerate(INPUTS):
            alone = generate(model, [text], policy, max_new_tokens=LENGTH)
            assert rows.token_ids[index] == alone.token_ids[0]
            assert rows.exit_layers[index].tolist() == alone.exit_layers[0].tolist()
            assert rows.flops[index] == alone.flops[0]
            tokens, told = found.token_id[found.sequence == index], exits[found.sequence == index]
            same = np.cumprod([a == b for a, b in zip(rows.token_ids[index], tokens, strict=False)]).sum()
            if propagation == "parallel":  # the keys and values of full depth
                assert rows.exit_layers[index][: same + 1].tolist() == told[: same + 1].tolist()
    assert len(exited) > 1


@pytest.mark.parametrize("name", RULES)
def test_verified_exits_are_lossless_and_their_drafts_are_foretold(traced, name):
    model, found, full, policies = traced
    policy = halfway(changed(policies[name], propagation="verify", max_draft=3), model, found)
    foretold = replay_drafts(found, policy, max_new_tokens=LENGTH, model=model)
    for batch_size in (1, 7):
        out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=batch_size)
        assert out.token_ids == full.token_ids
        check_replay(out, foretold)
    assert foretold.verified.any()


def check_rows(model, found, policy):
    """A row gets in a batch what it gets alone; its first token leaves where the replay says."""
    exits = replay(found, policy, LENGTH, model)
    rows = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=len(INPUTS))
    for index, text in enumerate(INPUTS):
        alone = generate(model, [text], policy, max_new_tokens=LENGTH)
        assert rows.token_ids[index] == alone.token_ids[0]
        assert rows.exit_layers[index].tolist() == alone.exit_layers[0].tolist()
        assert rows.exit_layers[index][0] == exits[found.sequence == index][0]


UNTRAINED = ["entropy", "patience", "vote", "weighted_vote", "pcee", "elbert", "bandit"]


@pytest.mark.parametrize("name", [*UNTRAINED, "ztw", "past_future", "history_classifier"])
def test_over_few_ids_rows_and_replay_agree_too(traced, name):
    model, found, full, policies = traced
    few = {"pruning": "fixed", "top_k": 12}
    policy = halfway(changed(policies[name], propagation="parallel", **few), model, found)
    check_rows(model, found, policy)
    lossless = generate(model, INPUTS, changed(policy, propagation="verify"), max_new_tokens=LENGTH)
    assert lossless.token_ids == full.token_ids


@pytest.mark.parametrize(
    "name, contrast", [*((name, "weighted") for name in UNTRAINED), ("entropy", "jsd"), ("vote", "jsd")]
)
def test_under_contrast_rows_and_replay_agree_too(traced, name, contrast):
    """Rules that count ids alone see the contrast only where it chooses the ids."""
    model, found, _, policies = traced
    layers = {"exit_layers": list(range(2, LAYERS)), "propagation": "parallel"}
    plain = changed(policies[name], **layers)
    counts_ids = name in ("patience", "vote")
    options = {"contrast": contrast, "contrast_token": counts_ids}
    policy = halfway(changed(policies[name], **layers, **options), model, found)
    check_rows(model, found, policy)
    seen, without = (confidences(found, each, model) for each in (policy, plain))
    assert not np.allclose(seen, without)
    if counts_ids:
        unseen = changed(policies[name], **layers, contrast=contrast)
        assert np.array_equal(confidences(found, unseen, model), without)


OPTIONS = {
    "fixed": {"pruning": "fixed", "top_k": 12},
    "adaptive": {"pruning": "adaptive"},
    "contrast": {"contrast": "weighted"},
    "verify": {"propagation": "verify", "max_draft": 3},
}
SILENT = product(["learning_to_exit", "q_exit", "token_hash", "mue"], ["fixed", "adaptive", "contrast"])
COUNTING = product(["patience", "vote", "weighted_vote"], ["adaptive"])
OWN_WAY = product(["ztw", "past_future"], ["contrast"])
REFUSED = dict.fromkeys(SILENT, "needs a measure that looks at probabilities")  # all else works
REFUSED |= dict.fromkeys(COUNTING, "needs a confidence of at most 1")
REFUSED |= dict.fromkeys(OWN_WAY, "computes logits in its own way")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_rule_composes_or_says_in_one_line_why_not(traced, name, option):
    model, found, full, policies = traced
    if refused := REFUSED.get((name, option)):
        with pytest.raises(MeeError, match=refused) as caught:
            changed(policies[name], **OPTIONS[option])
        assert "\n" not in str(caught.value)
        return
    policy = halfway(changed(policies[name], **OPTIONS[option]), model, found)
    out = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    if option == "verify":
        assert out.token_ids == full.token_ids
    else:
        assert min(map(min, out.exit_layers)) < LAYERS


@pytest.mark.parametrize("name", ["ztw", "past_future"])
def test_rules_that_read_layers_in_their_own_way_emit_what_they_read(traced, name):
    """Over the 12 ids that the first exit ranks best, by the definition; the last layer reads as ever."""
    model, found, _, policies = traced
    policy = changed(policies[name], pruning="fixed", top_k=12)
    replayed, (states, head) = replay_policy(found, policy, model), arrays(model, found)
    measure = policy.measure
    for token in range(len(found)):
        logits = [head @ states[token, layer - 1] for layer in range(1, LAYERS)]
        if name == "past_future":
            logits = [foretold(measure, states, head, token, layer) for layer in range(1, LAYERS)]
        best = np.argsort(-logits[0], kind="stable")[:12]
        total = 0.0
        for place, scores in enumerate(logits):
            ids = best if place else np.arange(len(head))
            scores = scores[ids]
            if name == "ztw":
                some = [np.log(softmax(each[ids])) for each in logits[: place + 1]]
                total = zip(np.exp(measure.log_weights.numpy()), some, strict=False)
                scores = sum(w * each for w, each in total) + measure.bias.numpy()[ids]
            assert replayed.token_ids[token, place] == ids[scores.argmax()]
            assert np.isclose(replayed.confidences[token, place], softmax(scores).max(), rtol=1e-4)
        last = head @ states[token, -1]
        assert replayed.token_ids[token, -1] == best[last[best].argmax()]


# ---- nearest relatives


class Exits:
    """Exits 1, 2, .. of two rows, the last of them now: `ids` and `probabilities` are `[exit][row]`."""

    def __init__(self, ids, probabilities=None, entropies=None):
        self.seen = {"top1_id": ids, "top1_probability": probabilities, "entropy": entropies}
        self.layer, self.layers = len(ids), 9

    def so_far(self, name):
        return tuple(np.array(values) for values in self.seen[name])

    def __getattr__(self, name):
        return np.array(self.seen[name][-1])


def said(name, state, **options):
    measure = ExitPolicy(name).measure if isinstance(name, str) else name(**options)
    return np.round(measure.confidence(state), 6).tolist()


def test_each_rule_differs_from_its_nearest_relative():
    ids, sure = [[7, 3], [5, 3], [7, 3]], [[0.9, 0.2], [0.6, 0.3], [0.8, 0.95]]
    now = Exits(ids, sure, [[0.1, 3.0], [2.0, 3.0], [0.1, 0.0]])
    assert said("patience", now) == [1, 3] and said("vote", now) == [2, 3], "a vote may be interrupted"
    assert said("weighted_vote", now) == [1.7, 1.45], "the votes of unsure exits weigh less"
    assert said("pcee", now) == np.round(np.exp([-2.0, -3.0]), 6).tolist(), "pcee asks how sure exits were"
    changing = Exits([[1, 1], [2, 1]], None, [[0.1, 3.0], [0.1, 3.0]])
    assert said("pcee", changing) == np.round(np.exp([-0.1, -3.0]), 6).tolist(), "not what they said"
    assert said("patience", changing) == [1, 2]
    assert said(PatientEntropy, now, patience=1) == said("entropy", now), "entropy is pcee without patience"
    assert said("elbert", now) == [round(np.exp(-0.1), 6), 1.0], "the first is sure and did not rise"
    unsure = Exits(ids, [[0.1, 0.2], [0.2, 0.3], [0.3, 0.2]], [[3.0, 3.0]] * 3)
    assert said("elbert", unsure) == said("entropy", unsure), "it rose, but stayed below one half"


def test_entropy_sees_the_rest_of_the_distribution_where_the_margin_does_not(traced):
    """Two distributions of one margin, and of different entropy."""
    model, found, _, _ = traced
    pairs = [ExitPolicy(name) for name in ("entropy", "softmax_margin", "max_probability")]
    ranks = [np.argsort(np.argsort(confidences(found, each, model), axis=None)) for each in pairs]
    assert not (ranks[0] == ranks[1]).all() and not (ranks[0] == ranks[2]).all()
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.3, 0.1, 0.1])
    assert entropy(p) < entropy(q) and p[0] - p[1] == q[0] - q[1]


def test_elbert_leaves_where_rising_top1_does_and_where_the_entropy_is_low(traced):
    model, found, _, _ = traced
    level = float(np.quantile(found.top1_probability, 0.5))
    window = ExitPolicy(ConfidenceWindow(3, distance=level - 0.5), threshold=0.9999999)
    rising = ExitPolicy("rising_top1", threshold=level, min_layer=1)
    first, second = (replay(found, policy, LENGTH, model) for policy in (window, rising))
    assert (first == second).all() and (first < LAYERS).any()
    lower = replay(found, window.at_threshold(float(np.exp(-np.median(found.entropy)))), LENGTH, model)
    assert (lower <= first).all() and (lower < first).any()


def test_an_ensemble_of_one_exit_without_bias_is_max_probability_and_of_two_is_not(tokenizer, traced):
    model, found, _, _ = traced
    product = new_classifier("ztw", 32, decoder_layers=LAYERS, vocabulary=len(tokenizer)).double()
    foretelling = new_classifier("past_future", 32, decoder_layers=LAYERS).double()
    top = confidences(found, ExitPolicy("max_probability"), model)
    seen = confidences(found, ExitPolicy(product), model)
    assert np.allclose(seen[:, 0], top[:, 0], atol=1e-6) and not np.allclose(seen[:, 1], top[:, 1], atol=1e-3)
    lens = replay_policy(found, ExitPolicy(foretelling), model)
    assert np.allclose(lens.confidences, top, atol=1e-6) and (lens.token_ids == found.top1_id).all()


def test_a_foretold_state_says_more_of_what_the_last_layer_says_than_the_layer_itself(traced):
    model, found, _, _ = traced
    learned, _ = train_classifier("past_future", found, model, epochs=30, learning_rate=1e-2)
    own, told = (replay_policy(found, ExitPolicy(each), model) for each in ("max_probability", learned))
    assert not np.allclose(told.confidences, own.confidences, atol=0.01)
    assert (told.token_ids[:, -1] == own.token_ids[:, -1]).all(), "the last layer reads as ever"
    assert told.same_token[:, :-1].mean() > own.same_token[:, :-1].mean()


# ---- the bandit


def test_the_bandit_is_ucb_in_plain_numpy_and_each_output_plays_by_itself(traced):
    model, found, _, policies = traced
    read, expected = confidences(found, policies["bandit"], model), []
    for output in range(len(INPUTS)):
        played = []
        for token in np.flatnonzero(found.sequence == output):
            arm = len(played)
            if arm >= len(ARMS):
                gains = [[reward for number, reward in played if number == each] for each in range(len(ARMS))]
                bounds = [np.mean(g) + 0.05 * np.sqrt(log(len(played)) / len(g)) for g in gains]
                arm = int(np.argmax(bounds))
            above = np.flatnonzero(read[token] > ARMS[arm])
            place = above[0] if len(above) else LAYERS - 2
            layer = above[0] + 1 if len(above) else LAYERS
            played.append((arm, read[token, place] - read[token, 0] - 0.1 * layer / LAYERS))
            expected.append(layer)
    replayed = replay_policy(found, policies["bandit"], model)
    assert replayed.exit_layers(LENGTH).tolist() == expected == replayed.exit_layers(LENGTH).tolist()
    assert not policies["bandit"].schedule.plays, "the policy given is left as it was"
    for arm in ARMS:
        constant = replay(found, ExitPolicy("max_probability", threshold=arm), LENGTH, model)
        assert constant.tolist() != expected


def test_thresholds_with_other_settings_are_not_equal():
    assert BanditThreshold((0.3, 0.8)) == BanditThreshold((0.3, 0.8)) != BanditThreshold((0.4, 0.8))
    assert Threshold(0.5) == Threshold(0.5) != Threshold(0.5, 4.0)
    assert AdaptiveThreshold() == AdaptiveThreshold() != AdaptiveThreshold(zeta=0.5)


def test_a_bandit_finds_the_arm_that_pays():
    bandit, output = BanditThreshold((0.3, 0.8), exploration=0.3), np.array([0])
    for position in range(60):  # deeper layers add nothing: leaving early pays
        for depth in (0.25, 0.5, 0.75):
            bandit.exceeded(np.array([0.5]), position, 60, output, depth)
    assert [token.arm for token in bandit.plays[0]].count(0.3) > 45


def test_a_token_that_is_drafted_again_is_one_round():
    bandit, output = BanditThreshold((0.3, 0.8)), np.array([4])
    for position in (0, 1, 2, 1, 2, 3):  # what followed position 0 was thrown away
        bandit.exceeded(np.array([0.5]), np.array([position]), 9, output, 0.25)
    assert len(bandit.plays[4]) == 4 and [token.arm for token in bandit.plays[4]][:2] == [0.3, 0.8]


# ---- mue and token_hash


def test_mues_threshold_falls_with_each_row_s_own_position(traced):
    model, found, _, policies = traced
    policy = halfway(policies["mue"], model, found)
    exits, schedule = replay(found, policy, LENGTH, model), Threshold(policy.threshold, 4.0)
    for token, position in enumerate(found.position.tolist()):
        above = found.similarity[token, :-1] > schedule.at(position, LENGTH)
        assert exits[token] == (int(above.argmax()) + 1 if above.any() else LAYERS)
    assert exits.tolist() != replay(found, changed(policy, decay=None), LENGTH, model).tolist()


def test_a_table_counts_how_deep_tokens_went_after_each_token(traced):
    model, found, _, _ = traced
    table, curve = train_classifier("token_hash", found, model)
    assert curve == [] and table.flops(32) == 0
    settled = np.array([[(ids[i:] == ids[-1]).all() for i in range(LAYERS - 1)] for ids in found.top1_id])
    for before in (-1, int(found.token_id[0])):
        after = [
            token
            for token in range(len(found))
            if before == (-1 if found.position[token] == 0 else found.token_id[token - 1])
        ]
        expected = (settled[after].sum(0) + settled.mean(0)) / (len(after) + 1)
        assert np.allclose(table.shares[before], expected)
    unseen = sorted(set(range(len(table.shares) - 1)) - set(found.token_id.tolist()))[0]
    assert np.allclose(table.shares[unseen], settled.mean(0)), "an id that was never seen: all of them"


def test_an_untrained_table_hashes_each_token_to_one_layer(tokenizer, traced):
    model, found, _, _ = traced
    table = new_classifier("token_hash", 32, 3, decoder_layers=LAYERS, vocabulary=len(tokenizer))
    exits, before = replay(found, ExitPolicy(table), LENGTH, model), found.token_before
    assert all(len(set(exits[before == token])) == 1 for token in set(before)) and len(set(exits)) > 2


# ---- training, saving, composing


@pytest.mark.parametrize("kind", TRAINED)
def test_a_stored_rule_is_the_same_and_training_lowers_its_loss(traced, kind, tmp_path, tokenizer):
    model, found, _, _ = traced
    learned, curve = train_classifier(kind, found, model, epochs=6, held_out=found, learning_rate=1e-2)
    if curve:
        assert curve[-1]["held_out_loss"] < curve[0]["held_out_loss"]
    path = save_classifier(learned, tmp_path / "c.safetensors", model.fingerprint, curve=curve)
    again = load_classifier(path, model)
    assert again.key() == learned.key() and again.metadata["curve"] == curve
    first, second = (confidences(found, ExitPolicy(each), model) for each in (learned, again))
    assert np.array_equal(first, second)
    other = build_lively("t5", tokenizer, seed=9, layers=LAYERS + (kind in SIZED))
    with pytest.raises(MeeError, match="decoder_layers=6, t5 has 7" if kind in SIZED else "other weigh"):
        load_classifier(path, other)


def test_learning_to_exit_is_the_linear_classifier_with_another_loss(traced):
    """Balanced classes against frequencies: where few tokens may exit, squared error is more careful."""
    model, found, _, _ = traced
    options = {"epochs": 40, "learning_rate": 2e-2}
    both = [
        train_classifier(k, found, model, **options)[0] for k in ("linear_classifier", "learning_to_exit")
    ]
    balanced, squared = (confidences(found, ExitPolicy(each), model) for each in both)
    right = found.top1_id[:, :-1] == found.final_id[:, None]
    assert abs(squared.mean() - right.mean()) < abs(balanced.mean() - right.mean())
    mse = [((each - right) ** 2).mean() for each in (balanced, squared)]
    assert mse[1] < mse[0]


def test_distilled_targets_are_what_the_last_layer_says(traced):
    model, found, _, _ = traced
    hard = torch.from_numpy(exit_labels(found, "distilled"))
    assert np.array_equal(hard, exit_labels(found, "consistency"))
    silent = SimpleNamespace(parameters=lambda: iter([torch.zeros(1).double()]), loss=lambda batch: batch)
    batch = _Loss(silent, hard, "distilled")(StoredStates(found, model), slice(0, len(found)))
    said = np.zeros((len(found), model.network.config.vocab_size))
    np.put_along_axis(said, found.top_ids[:, -1].astype(int), found.top_probabilities[:, -1], axis=1)
    soft = np.take_along_axis(said, found.top1_id[:, :-1].astype(int), axis=1)
    assert np.allclose(batch.labels.numpy(), soft, atol=1e-5) and 0 < soft.min() < soft.max() < 1
    assert np.allclose(batch.teacher.exp().numpy()[:, 0], said, atol=1e-5)


@pytest.mark.parametrize("kind", ["past_future", "ztw"])
def test_distilled_exits_say_more_of_what_the_last_layer_says(traced, kind, tokenizer):
    model, found, _, _ = traced
    options = {"epochs": 30, "learning_rate": 1e-2}
    plain, distilled = (
        train_classifier(kind, found, model, target=target, **options)[0]
        for target in ("consistency", "distilled")
    )
    labels = torch.from_numpy(exit_labels(found))

    def apart(classifier):
        return float(_Loss(classifier, labels, "distilled")(StoredStates(found, model), slice(None)))

    with torch.no_grad():
        assert apart(distilled) < min(apart(plain), apart(new(kind, tokenizer)))


def test_distilling_learns_through_a_head_that_is_packed_too(tmp_path):
    """oneDNN's product with a packed weight, which decoding takes in float32, has no gradient."""
    inputs, gradients = ["translate English to French: A man is riding a red bicycle."] * 2, []
    for dtype in ("float32", "float64"):
        model = load_model(PACKAGE / "checkpoints/real/calm", dtype=dtype)
        assert decoder_of(model.network).head.packed or dtype == "float64"
        found = trace(model, inputs, states=tmp_path / f"{dtype}.npy", max_new_tokens=8)
        learner = new_classifier("past_future", model.network.config.d_model, decoder_layers=model.layers)
        learner.to(getattr(torch, dtype)).requires_grad_(True)
        loss = _Loss(learner, torch.from_numpy(exit_labels(found)), "distilled")
        loss(StoredStates(found, model), slice(None)).backward()
        gradients.append(torch.cat([each.grad.flatten() for each in learner.parameters()]).double())
    assert gradients[1].abs().max() > 1e-3
    assert torch.allclose(*gradients, rtol=1e-2, atol=1e-5)


def test_q_exit_never_becomes_less_likely_with_depth(traced):
    model, found, _, policies = traced
    assert (np.diff(confidences(found, policies["q_exit"], model), axis=1) > 0).all()
    assert (np.diff(confidences(found, policies["learning_to_exit"], model), axis=1) < 0).any()
    assert policies["q_exit"].schedule.level == 0.5


@pytest.mark.parametrize(
    "name, options",
    [
        ("patience", {}),
        ("q_exit", {}),
        ("past_future", {}),
        ("ztw", {"pruning": "fixed", "top_k": 12}),
        ("history_classifier", {"pruning": "fixed", "top_k": 12}),
    ],
)
def test_operations_are_counted_as_a_profiler_counts_them(tokenizer, name, options):
    model = build_lively("t5", tokenizer, dtype=torch.float32, layers=LAYERS)
    measure = new(name, tokenizer).float() if name in TRAINED else name
    policy = ExitPolicy(measure, min_layer=1, **options)
    levels = {"patience": 2, "q_exit": 0.9, "past_future": 0.01, "ztw": 0.2, "history_classifier": 0.6}
    level = levels[name]
    _, counted, profiled = counted_and_profiled(model, INPUTS[0], policy.at_threshold(level), LENGTH)
    assert sum(counted.values()) == profiled


def test_rules_that_count_are_calibrated_over_numbers_of_exits(tokenizer):
    model = build_lively("t5", tokenizer, layers=LAYERS)
    task = load_task("question_answering", limit=6)
    options = {"max_new_tokens": 4, "max_source_tokens": 4096}
    found = calibrate(model, task, ExitPolicy("patience"), 0.9, 0.5, **options)
    assert found.tested == tuple(range(LAYERS, LAYERS - len(found.tested), -1))
    assert found.threshold is None or found.policy.schedule.level == found.threshold
    seen = trace(model, INPUTS, max_new_tokens=LENGTH)
    table = thresholds_for(replay_policy(seen, ExitPolicy("vote")), [1.0, 0.2])
    assert table.threshold[0] >= table.threshold[1] and table.same_token[0] == 1.0
    assert replay(seen, ExitPolicy("vote", threshold=float("inf"))).min() == LAYERS


@pytest.mark.parametrize("name", ["patience", "entropy", "mue", "token_hash"])
def test_a_rule_is_calibrated_by_decoding_from_careful_to_careless(traced, name):
    model, found, full, policies = traced
    task = Task("translation", "s", "t", INPUTS, [["the red house"]] * len(INPUTS), "d")
    levels = candidates(replay_policy(found, policies[name], model), 8, LENGTH)
    options = {"thresholds": levels, "max_new_tokens": LENGTH}
    made = calibrate(model, task, policies[name], 0.9, 0.5, **options)
    assert made.tested == tuple(levels[: len(made.tested)]) and len(set(made.mean_losses)) > 1
    for level, mean in zip(made.tested, made.mean_losses, strict=True):
        early = generate(model, INPUTS, policies[name].at_threshold(level), max_new_tokens=LENGTH)
        assert mean == pytest.approx(consistency_losses(task, early.texts, full.texts).mean())
    passed = [level for level, p in zip(made.tested, made.p_values, strict=True) if p <= 0.5]
    assert made.threshold == passed[-1] == made.policy.schedule.level
    assert made.policy.decay == policies[name].decay


@pytest.mark.parametrize(
    "options, message",
    [
        ({"measure": "patience", "threshold": 2.5}, "threshold=2.5 for patience: give a whole number"),
        ({"measure": "patience", "threshold": -1}, "from 0 to inf"),
        (
            {"measure": "patience", "decay": 4.0},
            'decay needs a confidence of at most 1, not that of "patience"',
        ),
        ({"measure": "vote", "pruning": "adaptive"}, 'pruning="adaptive" needs a confidence of at most 1'),
        (
            {"measure": "weighted_vote", "threshold": "bandit"},
            'threshold="bandit" needs a confidence of at most',
        ),
        ({"measure": "static", "threshold": "bandit", "min_layer": 2}, "has no threshold"),
        ({"threshold": "bandit", "decay": 4.0}, 'threshold="bandit" and decay contradict each other'),
        ({"threshold": "bandits"}, "give a number from 0 to 1"),
        ({"measure": "ztw"}, '"ztw" needs a trained classifier'),
        ({"measure": "patient"}, 'did you mean "patience"'),
        (
            {
                "measure": new_classifier("token_hash", 8, decoder_layers=4, vocabulary=9),
                "pruning": "adaptive",
            },
            "bab",
        ),
        (
            {"measure": new_classifier("past_future", 8, decoder_layers=4), "contrast": "jsd"},
            "computes logits in its own way",
        ),
        (
            {"measure": "pcee", "threshold": "adaptive", "propagation": "parallel", "exit_layers": [2]},
            "needs a probability",
        ),
    ],
)
def test_contradictions_are_one_clear_line(options, message):
    with pytest.raises(MeeError, match="pro" + message if message == "bab" else message) as caught:
        ExitPolicy(**options)
    assert "\n" not in str(caught.value)


def test_mistakes_are_one_clear_line(traced):
    model, found, _, policies = traced
    for call, message in (
        (lambda: policies["bandit"].at_threshold(0.5), "has no threshold to choose"),
        (lambda: BanditThreshold((0.5,)), "at least two thresholds"),
        (lambda: BanditThreshold((0.5, 2)), "at least two thresholds"),
        (lambda: PatientEntropy(0), "patience=0: give a whole number from 1 on"),
        (lambda: ConfidenceWindow(1), "window=1: give a whole number from 2 on"),
        (lambda: new_classifier("ztw", 32), '"ztw" needs decoder_layers'),
        (lambda: new_classifier("q_exit", 32, hidden=3), "Unknown option of q_exit"),
        (
            lambda: train_classifier("token_hash", found, model, target="distilled"),
            "nothing can be distilled",
        ),
        (lambda: replay(found, policies["q_exit"]), "give the model of the trace"),
        (lambda: replay(found, policies["past_future"]), "give the model of the trace"),
    ):
        with pytest.raises(MeeError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert len(replay(found, policies["token_hash"])) == len(found), "a table needs no states"


def test_the_catalogue_knows_every_rule_and_does_not_sweep_it(traced):
    model, found, _, policies = traced
    swept = {*catalogue.VARIANTS, *catalogue.MAIN_SWEEP, *catalogue.ABLATED}
    own = set(catalogue.SURVEY) - {"surest"}  # CALM's measure over few ids
    assert own == set(RULES) - {"history_classifier"} and not swept & set(RULES)  # that one is ours
    settings = {"min_layer": 2, "top_k": 12}
    measures = {name: policies[name].measure for name in TRAINED}
    for name in catalogue.SURVEY:
        rule = catalogue.RULES[name]
        assert rule.label.endswith(")") and rule.family in catalogue.FAMILY_COLOURS
        policy = rule.policy(1.0, settings, measures)
        assert len(replay(found, policy, LENGTH, model)) == len(found)
    assert catalogue.RULES["mue"].policy(0.9, settings).decay == 4.0
    assert catalogue.RULES["bandit"].policy(None, settings).threshold == "bandit"


def test_the_architecture_page_shows_a_rule_as_it_is():
    page = (PACKAGE / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{inspect.getsource(Vote)}```" in page
    (row,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert yaml.safe_load(row) == {"vote": read_yaml("companion/rules.yaml")["rules"]["vote"]}
