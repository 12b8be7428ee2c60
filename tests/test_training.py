"""Batches keep to their budget, span corruption loses nothing, interrupted runs end as whole ones do."""

import itertools
from functools import partial
from random import Random

import pytest
import torch
from conftest import FAMILIES, build_network
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.optimization import get_wsd_schedule

from mee_utils.models.objectives import Objective, cross_entropy
from mee_utils.models.states import compute_logits
from mee_utils.training import batches, loop, muon
from mee_utils.training.batches import batches_of, corrupt_spans, group_by_length, pad_pairs, repeated
from mee_utils.training.loop import Schedule, layer_losses, train_backbone
from mee_utils.training.mini import new_network, set_dropout
from mee_utils.training.muon import RATES_FROM_SCRATCH, parameter_groups

SENTINELS = list(range(1000, 1032))


def restore(corrupted, target):
    """Puts the spans of a target back to where their sentinels stand."""
    spans, current = {}, None
    for token in target[:-1]:
        if token in SENTINELS:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [t for token in corrupted[:-1] for t in (spans.get(token, [token]))]


@settings(deadline=None, max_examples=60)
@given(length=st.integers(2, 200), seed=st.integers(0, 1000))
def test_span_corruption_can_be_undone_and_hides_about_fifteen_percent(length, seed):
    tokens = list(range(length))
    corrupted, target = corrupt_spans(tokens, SENTINELS, 1, Random(seed))
    assert restore(corrupted, target) == tokens
    hidden = [t for t in target[:-1] if t not in SENTINELS]
    assert len(hidden) == max(1, round(0.15 * length))
    assert (
        [t for t in corrupted if t in SENTINELS]
        == [t for t in target if t in SENTINELS]
        == SENTINELS[: len(target) - len(hidden) - 1]
    )


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    budget=st.integers(60, 300),
)
def test_groups_hold_every_pair_once_and_keep_to_the_budget(lengths, budget):
    pairs = [([n] * source, [n] * target) for n, (source, target) in enumerate(lengths)]
    groups = group_by_length(pairs, budget)
    assert sorted(pair for group in groups for pair in group) == sorted(pairs)
    for group in groups:
        widest = max(len(source) for source, _ in group) + max(len(target) for _, target in group)
        assert widest * len(group) <= budget


def test_every_pair_is_in_one_batch_in_an_order_that_the_seed_decides():
    pairs = [([5] * n, [6] * 3) for n in range(2, 42)]
    found = batches_of(pairs, 200, seed=0)
    assert sorted(pair for group in found for pair in group) == pairs
    assert found == batches_of(pairs, 200, seed=0) != batches_of(pairs, 200, seed=1)
    assert found != sorted(found, key=lambda group: len(group[0][0]))
    for group in found:
        batch = pad_pairs(group, 0)
        rows, longest = batch["input_ids"].shape
        assert rows == len(group) and rows * (longest + batch["labels"].shape[1]) <= 200
        assert longest == max(len(source) for source, _ in group)


def test_lengths_are_grouped_among_pairs_that_follow_each_other(monkeypatch):
    monkeypatch.setattr(batches, "POOL", 10)
    pairs = [([i] * (2 + i % 7), [6]) for i in range(40)]
    order = Random(4).sample(range(40), 40)
    found = batches_of(pairs, 30, seed=4)
    for start in range(0, 40, 10):
        size = 0
        pool = []
        while size < 10:
            pool.append(found.pop(0))
            size += len(pool[-1])
        assert sorted(pair[0][0] for group in pool for pair in group) == sorted(order[start : start + 10])
    assert not found


def test_repeated_pairs_are_whole_rounds_and_a_drawn_part():
    pairs = [([n], [n]) for n in range(40)]
    found = repeated(pairs, 100, Random(0))
    counts = [found.count(pair) for pair in pairs]
    assert len(found) == 100 and sorted(set(counts)) == [2, 3] and counts.count(3) == 20
    assert sorted(repeated(pairs, 40, Random(0))) == pairs
    part = repeated(pairs, 15, Random(0))
    assert len(part) == 15 == sum(pair in part for pair in pairs)
    assert part == repeated(pairs, 15, Random(0)) != repeated(pairs, 15, Random(1))


def test_padding_is_masked_on_both_sides():
    batch = pad_pairs([([5, 6, 1], [7, 1]), ([8, 1], [9, 9, 9, 1])], pad=0)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [8, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100, -100], [9, 9, 9, 1]]


PAIRS = [([5 + i % 20, 9, 1], [5 + i % 20, 1]) for i in range(60)]


def many(rounds):
    return repeated(PAIRS, rounds * len(PAIRS), Random(0))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(("muon", "rate"), [(True, 0.02), (False, 5e-3)])
def test_a_run_learns_and_logs_every_layer(tmp_path, muon, rate):
    network = build_network("t5", 40)
    before = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    schedule = Schedule(rate, 0.0, 100, muon=muon)
    curve = train_backbone(network, Objective("calm"), many(6), PAIRS[:20], schedule, tmp_path)
    after = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    assert all(a < b - 0.5 for a, b in zip(after, before, strict=True))
    assert curve.layer_cross_entropy[0]["cross_entropy"] == before
    assert curve.layer_cross_entropy[-1] == {"step": curve.steps, "cross_entropy": after}
    assert curve.loss[-1]["step"] <= curve.steps and curve.minutes >= 0
    steps = [row["step"] for row in curve.layer_cross_entropy]
    intervals = {later - earlier for earlier, later in itertools.pairwise(steps)}
    assert steps[0] == 0 and len(intervals) == 1 and len(steps) > min(18, loop.MIN_EVALUATIONS)


@pytest.fixture
def steps_taken(monkeypatch):
    """The steps whose loss was computed; `stop_at` of it interrupts a run there."""

    class Steps(list):
        stop_at = None

    steps = Steps()
    original = loop.batch_loss

    def batch_loss(network, objective, batch, step, half):
        if step == steps.stop_at:
            raise Interrupted
        steps.append(step)
        return original(network, objective, batch, step, half)

    monkeypatch.setattr(loop, "batch_loss", batch_loss)
    return steps


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("stop_at", "goes_on_at"), [(0, 0), (11, 8)])
def test_an_interrupted_run_ends_where_a_whole_one_does(
    tmp_path, monkeypatch, steps_taken, stop_at, goes_on_at, decay
):
    """With drawn layers, dropout, and a decay too, after which the best state so far is what counts."""
    monkeypatch.setattr(loop, "MIN_EVALUATIONS", 5)

    def run(folder):
        network = build_network("t5", 40, seed=3)
        set_dropout(network, 0.2)
        objective = Objective("calm", intermediate="one")
        schedule = Schedule(0.02, decay, 60)
        curve = train_backbone(network, objective, many(4), PAIRS[:20], schedule, folder)
        return network, curve

    whole, whole_curve = run(tmp_path / "whole")
    assert steps_taken == list(range(whole_curve.steps)) and whole_curve.steps == 20

    steps_taken.stop_at = stop_at
    with pytest.raises(Interrupted):
        run(tmp_path / "cut")
    steps_taken.clear()
    steps_taken.stop_at = None
    resumed, curve = run(tmp_path / "cut")
    assert steps_taken == list(range(goes_on_at, curve.steps)), "it went on, and did not begin again"
    assert same_weights(whole, resumed)
    assert curve.layer_cross_entropy == whole_curve.layer_cross_entropy
    assert curve.loss == whole_curve.loss

    steps_taken.clear()
    again, curve = run(tmp_path / "cut")  # as a stage that had ended when a later one was interrupted
    assert not steps_taken and curve.layer_cross_entropy == whole_curve.layer_cross_entropy
    assert same_weights(resumed, again)


def same_weights(network, other):
    return all(map(torch.equal, network.parameters(), other.parameters()))


def test_the_loss_is_a_mean_since_the_last_row_when_a_run_was_interrupted_between_two(tmp_path, monkeypatch):
    """Evaluations, and so checkpoints, come every 9 steps here, rows of the loss every 2."""
    monkeypatch.setattr(loop, "MIN_EVALUATIONS", 2)
    monkeypatch.setattr(loop, "batches_of", lambda pairs, tokens, seed: [PAIRS[:3]] * 18)
    original = loop.batch_loss
    curves = []
    for stop_at in (None, 12):

        def batch_loss(network, objective, batch, step, half, stop_at=stop_at):
            if step == stop_at:
                raise Interrupted
            return original(network, objective, batch, step, half)

        monkeypatch.setattr(loop, "batch_loss", batch_loss)
        options = (Objective("vanilla"), [], PAIRS[:4], Schedule(0.02, 0.0, 60), tmp_path / str(stop_at))
        if stop_at:
            with pytest.raises(Interrupted):
                train_backbone(build_network("t5", 40), *options)
            monkeypatch.setattr(loop, "batch_loss", original)
        curves.append(train_backbone(build_network("t5", 40), *options))
    whole, resumed = curves
    assert [row["step"] for row in whole.loss] == list(range(2, 19, 2))
    assert [row["step"] for row in whole.layer_cross_entropy] == [0, 9, 18]
    assert resumed.loss == whole.loss


@pytest.mark.parametrize(
    ("objective", "decay", "kept"), [("vanilla", 0.8, 2), ("vanilla", 0.0, -1), ("calm", 0.8, 3)]
)
def test_with_a_decay_the_state_that_did_best_on_the_held_out_pairs_is_kept(
    tmp_path, monkeypatch, objective, decay, kept
):
    """By what the objective asks of each layer; what came before the first step is no candidate."""
    seen = []

    def scripted(network, held_out):
        seen.append([weight.detach().clone() for weight in network.parameters()])
        first_layer = 50.0 if len(seen) == 3 else 1.0 - len(seen) / 100
        return [first_layer, {1: 0.5, 3: 0.6, 4: 0.7}.get(len(seen), 0.7 + len(seen))]

    monkeypatch.setattr(loop, "layer_losses", scripted)
    network, schedule = build_network("t5", 40), Schedule(0.02, decay, 60)
    curve = train_backbone(network, Objective(objective), many(2), PAIRS[:20], schedule, tmp_path)
    assert len(seen) == len(curve.layer_cross_entropy) > 5
    assert torch.tensor([1e-40]).mul(1.5) > 0, "numbers near zero are flushed during training only"
    same = [all(map(torch.equal, state, network.parameters())) for state in seen]
    assert [index for index, one in enumerate(same) if one] == [range(len(seen))[kept]]


@pytest.mark.parametrize("count", [1, 3, 19, 20, 21, 39, 250, 3999, 4000, 4001, 4100, 9999, 24567])
def test_runs_are_evaluated_every_200_steps_or_more_often_and_at_the_end(count):
    interval = loop.evaluation_interval(count)
    evaluations = count // interval
    assert 1 <= interval <= 200
    assert evaluations >= min(count, 20)
    assert 0 <= count - evaluations * interval < interval, "hardly any batch is left out"


@pytest.mark.parametrize(("decay", "constant"), [(0.8, 0.2), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("steps", [4000, 37])
def test_the_rate_rises_stays_and_falls_as_transformers_has_it(decay, constant, steps):
    rates = [loop.rate_factor(step, steps, decay) for step in range(steps)]
    warmup = min(200, steps // 4)
    assert rates[0] == 0 and rates[warmup // 2] == pytest.approx(0.5, abs=0.06) and max(rates) == 1
    at_peak = rates.count(1.0)
    assert at_peak == pytest.approx(constant * (steps - warmup), abs=2)
    assert rates[-1] == pytest.approx(0, abs=0.06) if decay else rates[-1] == 1.0

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    decay_steps = round(decay * (steps - warmup))
    schedule = get_wsd_schedule(optimizer, warmup, decay_steps, num_training_steps=steps, decay_type="linear")
    for rate in rates:
        assert optimizer.param_groups[0]["lr"] == rate
        optimizer.step()
        schedule.step()


def test_every_group_of_parameters_follows_the_schedule(tmp_path, monkeypatch):
    rates = []
    original = loop.MuonAdam.step

    def step(optimizer):
        rates.append([group["lr"] / group["peak_lr"] for group in optimizer.param_groups])
        original(optimizer)

    monkeypatch.setattr(loop.MuonAdam, "step", step)
    schedule = Schedule(0.02, 0.5, 100)
    network = build_network("t5", 40)
    curve = train_backbone(network, Objective("vanilla"), PAIRS, PAIRS[:4], schedule, tmp_path)
    expected = [loop.rate_factor(step, curve.steps, 0.5) for step in range(curve.steps)]
    assert rates == [pytest.approx([factor] * 5) for factor in expected]


def test_a_step_is_clipped(tmp_path, monkeypatch):
    norms = []
    original = loop.MuonAdam.step

    def step(optimizer):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm([weight.grad for weight in weights])))
        original(optimizer)

    monkeypatch.setattr(loop.MuonAdam, "step", step)
    network = build_network("t5", 40)
    train_backbone(network, Objective("calm"), PAIRS, PAIRS[:4], Schedule(0.02, 0.5, 100), tmp_path)
    assert max(norms) <= 1.0001 and max(norms) == pytest.approx(1, abs=1e-3)


def test_the_loss_of_a_layer_is_a_mean_over_tokens_however_they_are_batched():
    network, long = build_network("t5", 40), [([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 13, 14, 15, 1])]
    together = layer_losses(network, [pad_pairs(long, 0)])
    assert layer_losses(network, [pad_pairs([pair], 0) for pair in long]) == pytest.approx(together, abs=1e-4)
    batched = batches.padded(PAIRS, 0, rows=16)
    assert [len(batch["labels"]) for batch in batched] == [16] * 3 + [12]
    assert sum(int((batch["labels"] >= 0).sum()) for batch in batched) == sum(len(b) for _, b in PAIRS)
    lengths = [int(mask.sum()) for batch in batched for mask in batch["attention_mask"]]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_gives_the_loss_of_transformers_and_the_states_of_every_layer(family):
    network = build_network(family, 40)
    batch = pad_pairs([([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 1])], 0)
    states, logits = loop.teacher_forced(network, batch)
    assert torch.allclose(cross_entropy(logits, batch["labels"]), network(**batch).loss, atol=1e-6)
    assert len(states) == len(network.get_decoder().block)
    assert torch.allclose(compute_logits(network, states[-1]), logits, atol=1e-6)


def test_dropout_is_changed_wherever_it_is_kept():
    network = build_network("t5", 40).train()
    batch = pad_pairs(PAIRS[:8], 0)
    losses = {}
    for rate in (0.5, 0.0):
        set_dropout(network, rate)
        losses[rate] = {loop.teacher_forced(network, batch)[1].sum().item() for _ in range(3)}
    assert len(losses[0.5]) == 3 and len(losses[0.0]) == 1


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("flags", [{}, {"avx512_bf16": False, "avx2": True}, {"amx_bf16": True}])
def test_half_precision_is_for_processors_that_multiply_it(monkeypatch, flags, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    muon.fast_bfloat16.cache_clear()
    monkeypatch.setattr(loop, "objective_loss", lambda *given: torch.is_autocast_enabled("cpu"))
    network = build_network("t5", 40)
    autocast = loop.batch_loss(network, Objective("vanilla"), pad_pairs(PAIRS[:2], 0), 0, half)
    assert autocast == (half and "amx_bf16" in flags)
    assert muon.fast_bfloat16("cuda")
    muon.fast_bfloat16.cache_clear()


def test_in_half_precision_the_losses_are_nearly_those_of_single(tmp_path):
    batch = pad_pairs(PAIRS[:8], 0)
    network = build_network("t5", 40)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states, logits = loop.teacher_forced(network, batch)
            found.append(float(cross_entropy(logits, batch["labels"]).detach()))
        assert states[-1].dtype == torch.float32  # the residual stream keeps its precision
    assert found[0] == pytest.approx(found[1], rel=2e-2) and found[0] != found[1]


def test_every_evaluation_prints_one_line_of_how_far_a_run_is(tmp_path, capsys):
    network, schedule = build_network("t5", 40), Schedule(0.02, 0.0, 100)
    options = dict(name="calm")
    curve = train_backbone(
        network, Objective("vanilla"), many(2), PAIRS[:20], schedule, tmp_path / "a", **options
    )
    lines = capsys.readouterr().out.splitlines()
    steps = curve.steps
    rows = curve.layer_cross_entropy
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows):
        held_out = f"step {row['step']} of {steps}: held out {row['cross_entropy'][-1]:.3f} nats a token, "
        left = "0 minutes left" if row["step"] else "begun"
        assert line.removeprefix(held_out) == f"{left} (calm)", line


def test_objectives_are_told_the_step(tmp_path, monkeypatch):
    steps = []
    original = loop.objective_loss

    def objective_loss(objective, network, states, logits, labels, step):
        steps.append(step)
        return original(objective, network, states, logits, labels, step)

    monkeypatch.setattr(loop, "objective_loss", objective_loss)
    network = build_network("t5", 40)
    schedule = Schedule(0.003, 0.0, 100)
    curve = train_backbone(network, Objective("alternating"), PAIRS, PAIRS[:20], schedule, tmp_path)
    assert steps == list(range(curve.steps)) and len(steps) > 2


def test_training_sets_its_own_seed(tmp_path):
    objective, networks = Objective("calm", intermediate="one"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        networks.append(network := build_network("t5", 40))
        folder, schedule = tmp_path / str(seed), Schedule(5e-3, 0.0, 60)
        train_backbone(network, objective, PAIRS, PAIRS[:20], schedule, folder)
    first, second = networks
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


TOKENIZER = type("Tokenizer", (), {"pad_token_id": 0, "eos_token_id": 1, "__len__": lambda self: 50})()
SIZES = dict(d_model=96, d_kv=24, num_heads=4, d_ff=128, num_layers=2, num_decoder_layers=3)


def attentions(network, stack, own=True):
    layers = [layer for block in getattr(network, stack).block for layer in block.layer[:-1]]
    names = {True: "SelfAttention", False: "EncDecAttention"}
    return [getattr(layer, names[own]) for layer in layers if hasattr(layer, names[own])]


def test_attention_begins_as_a_look_up_of_equal_tokens():
    network = new_network(TOKENIZER, local=False, **SIZES)
    every = attentions(network, "encoder") + attentions(network, "decoder")
    every += attentions(network, "decoder", own=False)
    assert len(every) == 2 + 2 * 3
    for attention in every:
        assert torch.allclose(attention.q.weight, attention.k.weight * 24**-0.5)
        assert torch.allclose(attention.o.weight @ attention.v.weight, torch.eye(96), atol=1e-5)


@pytest.fixture(scope="module")
def begun():
    """The same network without and with local heads."""
    networks = []
    for local in (False, True):
        torch.manual_seed(0)
        networks.append(new_network(TOKENIZER, local=local, **SIZES).double())
    return networks


@pytest.mark.parametrize(("stack", "heads"), [("encoder", {1, 2, 3}), ("decoder", {1, 2})])
def test_local_heads_begin_with_smaller_queries_and_all_else_is_the_same(begun, stack, heads):
    plain, local = begun
    for before, after in zip(attentions(plain, stack), attentions(local, stack), strict=True):
        for head in range(4):
            rows = slice(24 * head, 24 * (head + 1))
            smaller = 0.1 if head in heads else 1.0
            assert torch.allclose(after.q.weight[rows], smaller * before.q.weight[rows], rtol=1e-6)
    changed = {
        name
        for (name, a), b in zip(plain.named_parameters(), local.parameters(), strict=True)
        if not torch.equal(a, b)
    }
    own = [name for name in changed if name.startswith(stack)]
    assert all(name.endswith(("SelfAttention.q.weight", "relative_attention_bias.weight")) for name in own)
    assert len(own) == len(attentions(plain, stack)) + 1
    assert all(name.startswith(("encoder", "decoder")) for name in changed)


def test_local_heads_begin_as_views_of_near_tokens(begun):
    """Bias `[head, query, key]` falls by 0.7 a token in a head's direction, and is low in the other."""
    plain, local = begun
    distance = torch.arange(8)[None] - torch.arange(8)[:, None]  # key minus query, exact below 8

    def bias(network, stack):
        return attentions(network, stack)[0].compute_bias(8, 8)[0].detach()

    found, near = bias(local, "encoder"), -0.7 * distance.abs().double()
    away = torch.tensor(-8.0).double()
    assert torch.equal(found[0], bias(plain, "encoder")[0])  # head 0 stays a look-up of equal tokens
    assert torch.allclose(found[1], near, atol=1e-6)
    assert torch.allclose(found[2], torch.where(distance <= 0, near, away), atol=1e-6)  # backwards
    ahead = torch.where(distance > 0, near, away)
    assert torch.allclose(found[3], ahead, atol=1e-6)  # forwards
    found, past = bias(local, "decoder"), distance <= 0
    assert torch.equal(found[[0, 3]], bias(plain, "decoder")[[0, 3]])
    assert torch.allclose(found[1][past], near[past], atol=1e-6)
    assert torch.allclose(found[2][past], near[past] / 3, atol=1e-6)
    far = attentions(local, "encoder")[0].compute_bias(100, 100)[0].detach()
    assert (far[1].diff(dim=1)[0] <= 0).all() and far[
        1, 0, -1
    ] < -8  # no distance is nearer than a smaller one


def test_narrow_networks_have_as_many_local_heads_as_heads():
    network = new_network(TOKENIZER, **SIZES | {"num_heads": 2})
    table = attentions(network, "encoder")[0].relative_attention_bias.weight.detach()
    assert table.shape[1] == 2 and table[3, 1] == pytest.approx(-2.1)


OWN = {name: RATES_FROM_SCRATCH[name] for name in ("query", "embedding", "table", "norm")}


@pytest.mark.parametrize(
    ("given", "rates", "muon"),
    [
        ({}, [1, *OWN.values()], True),
        (dict(rates={}, muon=False), [1, 1, 1, 1, 1], False),
        (dict(rates=RATES_FROM_SCRATCH | {"table": 5.5}), [1, *(OWN | {"table": 5.5}).values()], True),
    ],
)
def test_matrices_embedding_tables_and_norms_learn_at_rates_of_their_own(given, rates, muon):
    """From scratch; what was pre-trained well already is updated by AdamW, at one rate."""
    network, schedule = build_network("t5", 40), Schedule(1e-3, 0.0, 100, **given)
    groups = parameter_groups(network, schedule.rates, 1e-3, 0.01, schedule.muon)
    assert [group["lr"] for group in groups] == pytest.approx([1e-3 * rate for rate in rates])
    assert [group["weight_decay"] for group in groups] == [0.01, 0.01, 0, 0, 0]
    assert [group["muon"] for group in groups] == [muon, muon, False, False, False]
    assert [id(p) for p in groups[2]["params"]] == [id(network.shared.weight)]
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))


def test_the_first_safe_layer_is_where_confident_tokens_keep_full_depths_prediction():
    from mee_utils import load_task, trace
    from mee_utils.study.inputs import load_profile_model
    from mee_utils.study.profiles import load_profile
    from mee_utils.training.model_manifest import measure

    model = load_profile_model(load_profile("small"), "vanilla", "float32")
    tasks = [load_task(name, limit=12) for name in ("summarization", "translation")]
    scores, layer = measure(model, tasks, 24)
    expected = 4  # a third of the depth
    for task in tasks:
        seen = trace(model, task.inputs, max_new_tokens=24, batch_size=64)
        for depth in range(1, 12):
            kept = (seen.top1_id == seen.final_id[:, None])[seen.margin[:, depth - 1] > 0.9, depth - 1]
            if len(kept) and kept.mean() < 0.95:
                expected = max(expected, depth + 1)
        assert scores[task.name]["examples"] == 12 and scores[task.name]["sha256"] == task.digest
    assert layer == expected > 4


def test_shipped_models_begin_to_exit_where_it_was_measured_to_be_safe():
    from mee_utils.study.inputs import is_trained, load_profile_model, manifest
    from mee_utils.study.profiles import load_profile

    assert is_trained(load_profile("small"), "calm")
    for name in ("small", "real"):
        profile = load_profile(name)
        for model in filter(partial(is_trained, profile), profile.training.backbones):
            layer = load_profile_model(load_profile(name), model).min_exit_layer
            assert layer == manifest(load_profile(name), model)["min_exit_layer"] and 4 <= layer < 12
