"""Each published bug does what it is said to do; the correct version stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively
from reference import greedy
from scipy.stats import beta

from mee_utils import ExitPolicy, ForcedExits, Measure, MeeError, generate, trace
from mee_utils.analysis import contrast as contrasting
from mee_utils.analysis.comparison import decode
from mee_utils.companion import published_bugs as bugs
from mee_utils.companion.statements import BUGS
from mee_utils.decoding.inputs import batches_by_length, input_ids
from mee_utils.decoding.layerwise import decoder_of
from mee_utils.exits.measures import RisingTop1, SoftmaxMargin
from mee_utils.exits.thresholds import AdaptiveThreshold, Threshold
from mee_utils.traces.replay import StoredStates, replay_policy

LAYERS = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Steps of so small a model take longer on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def eight(tokenizer):
    return build_lively("t5", tokenizer, layers=LAYERS)


@pytest.fixture(scope="module")
def traced(eight, tmp_path_factory):
    return trace(
        eight, INPUTS, max_new_tokens=LENGTH, states=tmp_path_factory.mktemp("states") / "states.npy"
    )


class Planned(Measure):
    """Sure from a given layer on, `[input, position]`, and not at all before; L: at no decision layer."""

    name = "planned"

    def __init__(self, table):
        self.table = np.asarray(table)

    def confidence(self, state):
        return (self.table[state.sequence, state.position] <= state.layer).astype(float)


class Spy(SoftmaxMargin):
    """Keeps the margins that it sees: layer -> one number a row and token."""

    def __init__(self):
        self.seen = {}

    def confidence(self, state):
        found = super().confidence(state)
        self.seen.setdefault(state.layer, []).append(found.numpy().copy())
        return found


def collapsed(planned, lengths, batches):
    """Exit layers under depth collapse, worked out one token at a time."""
    found = [[] for _ in planned]
    for batch in batches:
        depth = LAYERS
        for position in range(max(lengths[i] for i in batch)):
            going = [i for i in batch if lengths[i] > position]
            for i in going:
                found[i].append(min(int(planned[i][position]), depth))
            depth = max(found[i][position] for i in going)
    return found


@pytest.mark.parametrize("compact_below", [0.0, 0.9])
@pytest.mark.parametrize("batch_size", [1, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_once_a_batch_has_left_at_a_layer_it_never_gets_beyond_it(
    eight, monkeypatch, batch_size, compact_below, seed
):
    monkeypatch.setattr(decoder_of(eight.network), "compact_below", compact_below)
    random = np.random.default_rng(seed)
    latest = random.integers(5, LAYERS + 1, LENGTH)  # of the whole batch, at each position
    latest[2], latest[5] = 5, 3
    planned = random.integers(2, latest + 1, (len(INPUTS), LENGTH))
    planned[:, 0] = LAYERS  # the first token runs all layers, so that there is something to fall from
    policy = ExitPolicy(Planned(planned), threshold=0.5)
    found = generate(
        eight, INPUTS, bugs.collapsing(policy, LENGTH), max_new_tokens=LENGTH, batch_size=batch_size
    )
    batches = [
        chosen for chosen, _ in batches_by_length(eight, input_ids(eight.tokenizer, INPUTS), batch_size)
    ]
    exits = [layers.tolist() for layers in found.exit_layers]
    assert exits == collapsed(planned, [len(layers) for layers in exits], batches)
    assert exits != [planned[i][: len(layers)].tolist() for i, layers in enumerate(exits)], (
        "nothing collapsed: the test means nothing"
    )
    again = generate(
        eight,
        INPUTS,
        ExitPolicy(ForcedExits(found.exit_layers)),
        max_new_tokens=LENGTH,
        batch_size=batch_size,
    )
    assert again.token_ids == found.token_ids, "all else is the decoder's own"


def test_a_batch_that_leaves_together_is_cut_off_there_and_the_next_batch_begins_anew(eight):
    """The first of two batches exits at layer 3 at its third token and would run all layers but for that."""
    batches = [chosen for chosen, _ in batches_by_length(eight, input_ids(eight.tokenizer, INPUTS), 4)]
    planned = np.full((len(INPUTS), LENGTH), LAYERS)
    planned[batches[0], 2] = 3
    policy = ExitPolicy(Planned(planned), threshold=0.5)
    plain = generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=4)
    found = generate(eight, INPUTS, bugs.collapsing(policy, LENGTH), max_new_tokens=LENGTH, batch_size=4)
    assert max(len(found.token_ids[i]) for i in batches[0]) > 4
    for i in batches[0]:
        assert (
            found.token_ids[i][:3] == plain.token_ids[i][:3]
            and found.exit_layers[i][:2].tolist() == plain.exit_layers[i][:2].tolist()
        )
        assert (found.exit_layers[i][2:] == 3).all()
    for i in batches[1]:
        assert found.token_ids[i] == plain.token_ids[i] and (found.exit_layers[i] == LAYERS).all()


def test_a_single_row_that_stays_keeps_the_batch_whole(eight):
    planned = np.full((len(INPUTS), LENGTH), 2)
    planned[0] = LAYERS
    policy = ExitPolicy(Planned(planned), threshold=0.5)
    found = generate(eight, INPUTS, bugs.collapsing(policy, LENGTH), max_new_tokens=2, batch_size=7)
    assert (found.exit_layers[0] == LAYERS).all() and all(
        (layers == 2).all() for layers in found.exit_layers[1:]
    )


def test_the_threshold_that_collapses_is_the_policys_own_and_falls_with_the_position(eight):
    """All rows are equally sure at two tokens, which is enough at the second only, and not at all later."""
    schedule = Threshold(0.9, 4.0)
    first, level = 1, (schedule.at(0, LENGTH) + schedule.at(1, LENGTH)) / 2

    class Once(Measure):
        name = "once"

        def confidence(self, state):
            return np.full(
                len(state.sequence), level if state.layer == 3 and state.position <= first else 0.0
            )

    policy = ExitPolicy(Once(), threshold=0.9, decay=4.0)
    found = generate(eight, INPUTS, bugs.collapsing(policy, LENGTH), max_new_tokens=LENGTH, batch_size=7)
    for layers in found.exit_layers:
        assert (layers[:first] == LAYERS).all() and (layers[first:] == 3).all()
    with pytest.raises(MeeError, match="parallel"):
        bugs.collapsing(ExitPolicy("max_probability", propagation="parallel", exit_layers=[2]), LENGTH)
    for rule in ("static", "oracle"):
        with pytest.raises(MeeError, match="constant or decaying"):
            bugs.collapsing(ExitPolicy(rule, min_layer=2), LENGTH)


class Layer:
    """Rows at three layers, by their logits."""

    def __init__(self, layer, shift=0.0):
        rising = torch.tensor([[0.0, 3.0, 0.0], [0.0, 4.0, 0.0], [0.0, 5.0, 0.0]]) - 3
        flat = torch.tensor(
            [[2.0, 0.0, 0.0], [2.5, 1.5, 0.0], [3.0, 2.8, 0.0]]
        )  # the logit rises, the probability falls
        self.layer = layer
        self.shift = shift
        self.logits = torch.stack([rising[layer - 1], flat[layer - 1]]) + shift
        self.top1_probability = self.logits.softmax(-1).amax(-1)

    def earlier(self, layers):
        return Layer(self.layer - layers, self.shift)


def test_logits_that_rise_are_not_probabilities_that_rise():
    assert bugs.RisingLogit().confidence(Layer(3)).tolist() == [2.0, 3.0]
    right = RisingTop1().confidence(Layer(3))
    assert right[0] > 0.9 and right[1] == 0
    assert (bugs.RisingLogit().confidence(Layer(3)) > 0.9).tolist() == [True, True]
    low = Layer(3, shift=-5.0)  # the same probabilities
    assert (
        torch.allclose(RisingTop1().confidence(low), right)
        and not (bugs.RisingLogit().confidence(low) > 0.9).any()
    )


def test_rising_logits_are_those_of_the_layers_while_decoding(eight, traced):
    states = StoredStates(traced, eight).exit_states(slice(None))
    scores = np.stack([state.logits.amax(-1).numpy() for state in states], axis=1)
    rising = [
        [
            layer
            for layer in range(3, LAYERS)
            if s[layer - 1] > max(s[layer - 2], 0.9) and s[layer - 2] > s[layer - 3]
        ]
        for s in scores
    ]
    expected = [(layers or [LAYERS])[0] for layers in rising]
    found = generate(eight, INPUTS, ExitPolicy(bugs.RisingLogit(), threshold=0.9), max_new_tokens=LENGTH)
    starts = np.flatnonzero(traced.position == 0)  # first tokens have seen no exit yet
    assert [layers[0] for layers in found.exit_layers] == [expected[i] for i in starts] and len(
        {expected[i] for i in starts}
    ) > 1


def test_positions_are_emitted_in_place_of_ids_and_confidence_stays(eight, traced):
    options = {"pruning": "fixed", "top_k": 5, "min_layer": 3}
    plain = generate(eight, INPUTS, ExitPolicy(threshold=1.0, **options), max_new_tokens=LENGTH)
    found = generate(
        eight,
        INPUTS,
        ExitPolicy(readout_class=bugs.PositionReadout, threshold=1.0, **options),
        max_new_tokens=LENGTH,
    )
    assert max(max(ids) for ids in found.token_ids) < 5 <= min(ids[0] for ids in plain.token_ids)
    states = StoredStates(traced, eight).exit_states(np.flatnonzero(traced.position == 0))
    kept = states[2].logits.topk(5).indices
    for row, ids in enumerate(plain.token_ids):
        assert kept[row, found.token_ids[row][0]] == ids[0], (
            "the position is where the right token stands in the list"
        )
    level = 0.02
    plain = generate(eight, INPUTS, ExitPolicy(threshold=level, **options), max_new_tokens=1)
    found = generate(
        eight,
        INPUTS,
        ExitPolicy(readout_class=bugs.PositionReadout, threshold=level, **options),
        max_new_tokens=1,
    )
    assert [list(a) for a in found.exit_layers] == [list(a) for a in plain.exit_layers]
    assert np.array_equal(
        np.concatenate(found.confidences), np.concatenate(plain.confidences), equal_nan=True
    )


def test_at_the_first_layer_there_is_no_list_yet_and_the_token_is_right(eight):
    options = {"pruning": "fixed", "top_k": 5, "min_layer": 3, "threshold": 0.0}
    plain, found = (
        generate(eight, INPUTS, policy, max_new_tokens=LENGTH)
        for policy in (ExitPolicy(**options), ExitPolicy(readout_class=bugs.PositionReadout, **options))
    )
    assert found.token_ids == plain.token_ids and set(np.concatenate(found.exit_layers)) == {3}


def test_the_second_cut_keeps_the_lowest_ids_of_the_first(eight):
    cuts = {}

    class Recorded(bugs.SortedReadout):
        def _keep(self, state):
            found = super()._keep(state)
            cuts.setdefault((state.position, state.layer), (found[0], state.readout_logits.ids, state.logits))
            return found

    options = {"pruning": "decaying", "top_k": 60, "least_k": 8, "min_layer": 3, "threshold": 1.0}
    sizes = ExitPolicy(**options).bind(LAYERS, 600).readout.sizes
    policy = ExitPolicy(readout_class=Recorded, **options)
    found = generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=7)
    assert {layer for _, layer in cuts} == set(range(3, LAYERS)) and sizes[4] > sizes[5] > sizes[6]
    for (_, layer), (kept, before, logits) in cuts.items():
        assert kept.shape[1] == sizes[layer + 1] and (kept.diff(dim=1) > 0).all()
        if layer == 3:
            assert (kept == logits.topk(sizes[4]).indices.sort(dim=1).values).all()
        else:
            assert (kept == before.sort(dim=1).values[:, : sizes[layer + 1]]).all()
    plain = generate(eight, INPUTS, ExitPolicy(**options), max_new_tokens=LENGTH, batch_size=7)
    assert found.token_ids != plain.token_ids
    assert {tuple(np.unique(p)) for p in found.readout_rows} == {
        tuple(np.unique(p)) for p in plain.readout_rows
    }, "the lists are as long as they should be"


@pytest.mark.parametrize("contrast", ["weighted", "jsd"])
@pytest.mark.parametrize("pruned", [{}, {"pruning": "fixed", "top_k": 5}])
def test_a_plausible_set_of_one_is_certain_without_its_mass(eight, contrast, pruned):
    options = dict(contrast=contrast, contrast_alpha=1.0, min_layer=3, **pruned)
    spies = (
        ExitPolicy(readout_class=bugs.MasslessReadout, measure=Spy(), threshold=1.0, **options),
        ExitPolicy(Spy(), threshold=1.0, **options),
    )
    bare, right = (
        generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=7) and policy.measure.seen
        for policy in spies
    )
    assert set(bare) == set(right) == set(range(3, LAYERS))
    assert all(
        (np.concatenate(bare[layer]) == 1).all() and (np.concatenate(right[layer]) < 1).all()
        for layer in bare
    )
    early = generate(
        eight,
        INPUTS,
        ExitPolicy(readout_class=bugs.MasslessReadout, threshold=0.999, **options),
        max_new_tokens=LENGTH,
    )
    assert set(np.concatenate(early.exit_layers)) == {3} and set(np.concatenate(early.confidences)) == {1}
    late = generate(eight, INPUTS, ExitPolicy(threshold=0.999, **options), max_new_tokens=LENGTH)
    assert late.mean_exit_layer > 3


def test_without_its_mass_contrast_is_the_public_form_of_notebook_04(eight, traced):
    policy = ExitPolicy(
        readout_class=bugs.MasslessReadout, measure=Spy(), threshold=1.0, min_layer=3, contrast="weighted"
    )
    assert all(
        (layers == LAYERS).all()
        for layers in generate(eight, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1).exit_layers
    )
    order = [
        i for chosen, _ in batches_by_length(eight, input_ids(eight.tokenizer, INPUTS), 1) for i in chosen
    ]
    margin = replay_policy(traced, ExitPolicy(threshold=1.0, min_layer=3), eight)
    expected = contrasting.without_mass(margin, eight).confidences
    expected = np.concatenate([expected[traced.sequence == i] for i in order])
    found = np.stack([np.concatenate(policy.measure.seen[layer]) for layer in range(3, LAYERS)], axis=1)
    assert np.allclose(found, expected, atol=1e-5) and (expected < 1).any()


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_without_weights_agreement_counts_as_one_half(share):
    random, agrees = np.random.default_rng(1), np.arange(1000) < share * 1000
    confidence = np.where(agrees, random.beta(6, 2, 1000), random.beta(2, 3, 1000))
    right, wrong = AdaptiveThreshold(), bugs.UnweightedThreshold()
    for threshold in (right, wrong):
        threshold.learn(confidence, agrees)
    at = np.linspace(0.05, 0.95, 19)
    likely, unlikely = (beta.pdf(at, *wrong.fitted[label]) for label in (True, False))
    assert np.allclose(wrong.posterior(at), likely / (likely + unlikely)) and wrong.fitted == right.fitted
    assert np.allclose(right.posterior(at), share * likely / (share * likely + (1 - share) * unlikely))
    assert np.allclose(wrong.posterior(at), right.posterior(at)) == (share == 0.5)
    assert (wrong.exceeded(at, 0, 1) == (wrong.posterior(at) > 0.4)).all()
    assert (wrong.exceeded(at, 0, 1).sum() < right.exceeded(at, 0, 1).sum()) == (share == 0.9)
    assert sum(map(len, wrong.labels.values())) == 1000, "the labels stay as they are"


def of_profile(**other):
    sizes = {"top_k": 64, "first_k": 256, "least_k": 16}
    return {"max_new_tokens": LENGTH, "batch_size": 100} | sizes | other


def pairs(bug, model="calm", layers=LAYERS, exit_layer=2, **other):
    return list(bugs.pairs(bug, model, layers, exit_layer, of_profile(**other)))


def test_kept_lists_are_as_long_as_the_profile_says():
    (fixed,) = pairs("positions for ids", top_k=9)
    (decaying,) = pairs("list sorted by id", first_k=30, least_k=3)
    assert fixed.correct.top_k == fixed.published.top_k == 9
    for policy in (decaying.correct, decaying.published):
        assert (policy.top_k, policy.least_k) == (30, 3)


def test_a_bound_policy_keeps_the_published_threshold_and_exits_where_free_was_trained_to(eight):
    (pair,) = pairs("mixture without weights", exit_layer=3)
    assert pair.correct.exit_layers == pair.published.exit_layers == (3,) and pair.threshold == 0.4
    assert isinstance(pair.published.bind(LAYERS, 9).schedule, bugs.UnweightedThreshold)
    found = generate(eight, INPUTS, pair.published, max_new_tokens=LENGTH)
    assert set(np.concatenate(found.exit_layers)) <= {3, LAYERS}


def test_without_its_entropy_pcee_counts_equal_predictions(eight):
    (pair,) = pairs("entropy never asked")

    def run(policy):
        return generate(eight, INPUTS, policy, max_new_tokens=LENGTH).exit_layers

    pabee = run(ExitPolicy("patience", threshold=2, min_layer=pair.correct.min_layer))
    assert [layers.tolist() for layers in run(pair.published)] == [layers.tolist() for layers in pabee]
    sure = replace(pair.correct, threshold=0.0)  # random models never are: here any entropy will do
    assert np.concatenate(run(pair.correct)).min() == LAYERS > np.concatenate(run(sure)).max()


@pytest.fixture(scope="module")
def small(eight, synthetic_tasks):
    """Tasks of which the model's own output is the right answer, so that no exit scores 100."""
    found = {}
    for name in ("question_answering", "summarization"):
        inputs = synthetic_tasks[name].inputs[:6]
        texts = [
            eight.tokenizer.decode(ids, skip_special_tokens=True)
            for ids in greedy(eight, inputs, max_new_tokens=6)
        ]
        found[name] = replace(
            synthetic_tasks[name], inputs=inputs, references=[[text] for text in texts], spans=None
        )
    return found


def test_the_table_holds_every_bug_twice_and_the_correct_version_is_plain_decoding(eight, small):
    table = bugs.measure_bugs(
        {"calm": eight, "free": eight, "other": None}, small, 2, of_profile(max_new_tokens=6, batch_size=4)
    )
    assert list(dict.fromkeys(table.bug)) == list(BUGS) and list(table.version[:2]) == [
        "published",
        "correct",
    ]
    rows = {bug: 2 * 2 * rules for bug, rules in zip(BUGS, (4, 1, 1, 1, 2, 1, 1), strict=True)}
    assert table.groupby("bug").size().to_dict() == rows and table.notna().all().all()
    assert set(table.model) == {"calm", "free"} and (table.full_score == 100).all()
    assert set(table[table.bug == "depth collapse"].batch) == {1, 32}
    assert set(table[table.bug != "depth collapse"].batch) == {4}
    assert (table.low <= table.retained).all() and (table.retained <= table.high).all()
    for name, task in small.items():
        full = decode(eight, task, None, max_new_tokens=6, batch_size=4)
        for bug in BUGS:
            for pair in pairs(bug, max_new_tokens=6):
                assert type(pair.correct) is ExitPolicy
                assert type(pair.correct.measure).__module__ == "mee_utils.exits.measures"
                batch = pair.batch or 4
                plain = decode(eight, task, pair.correct, full, max_new_tokens=6, batch_size=batch)
                correct = table[(table.bug == bug) & (table.task == name) & (table.version == "correct")]
                row = correct[correct.rule == pair.rule].iloc[0]
                assert (row.score, row.mean_exit_layer) == (plain.score, plain.mean_exit_layer)
                assert row.same_output == plain.same_output
                assert row.flops_share == plain.flops / full.flops
                assert row.length_share == plain.tokens / full.tokens


def test_the_table_is_the_same_each_time_and_holds_what_concerns_a_model(eight, small):
    one = {"question_answering": small["question_answering"]}
    first, second = (
        bugs.measure_bugs({"vanilla": eight}, one, 2, of_profile(max_new_tokens=6)) for _ in range(2)
    )
    of_vanilla = [bug for bug, about in BUGS.items() if "vanilla" in about["models"]]
    assert first.equals(second) and list(first.bug) == [bug for bug in of_vanilla for _ in range(2)]
    assert {pair.published.min_layer for pair in pairs("depth collapse")} == {2}
    early, late = (pairs("positions for ids", name, 12)[0].correct.min_layer for name in ("calm", "vanilla"))
    assert (early, late) == (4, 7)


def test_bugs_say_what_they_are():
    assert len(BUGS) == 7 and {model for bug in BUGS.values() for model in bug["models"]} == {
        "calm",
        "vanilla",
        "free",
    }
    for bug in BUGS.values():
        assert bug["source"] and all(bug[k].endswith(".") for k in ("what", "published", "explains"))
