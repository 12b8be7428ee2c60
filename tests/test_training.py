"""Batches keep to their budget, span corruption loses nothing, interrupted runs end as whole ones do."""

import itertools
from functools import partial
from random import Random

import pytest
import torch
from conftest import build_network
from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils.models import batches, muon, training
from mee_utils.models.batches import batches_of, corrupt_spans, group_by_length, pad_pairs, repeated
from mee_utils.models.mini import new_network, set_dropout
from mee_utils.models.muon import FROM_SCRATCH, parameter_groups
from mee_utils.models.objectives import Objective, cross_entropy
from mee_utils.models.training import Schedule, layer_losses, train_backbone

SENTINELS = list(range(1000, 1032))


def restore(corrupted, target):
    """Puts the spans of a target back to where their sentinels stand."""
    spans, current = {}, None
    for token in target[:-1]:
        if token in SENTINELS:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [t for token in corrupted[:-1] for t in (spans[token] if token in spans else [token])]


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
    assert curve["layer_cross_entropy"][0]["cross_entropy"] == before
    assert curve["layer_cross_entropy"][-1] == {"step": curve["steps"], "cross_entropy": after}
    assert curve["loss"][-1]["step"] <= curve["steps"] and curve["minutes"] >= 0
    steps = [row["step"] for row in curve["layer_cross_entropy"]]
    apart = {b - a for a, b in itertools.pairwise(steps)}
    assert steps[0] == 0 and len(apart) == 1 and len(steps) > min(18, training.EVALUATIONS)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path, monkeypatch, decay):
    """With Muon, and with a decay too, after which the best state so far is what counts."""

    def run(folder, seed=3):
        network = build_network("t5", 40, seed)
        objective, schedule = Objective("calm", intermediate="one"), Schedule(0.02, decay, 60)
        curve = train_backbone(network, objective, many(4), PAIRS[:20], schedule, folder)
        return network, curve

    torch.manual_seed(0)
    whole, whole_curve = run(tmp_path / "whole")
    original, calls = training.ObjectiveTrainer.compute_loss, []

    def stops(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 12:
            raise Interrupted
        return original(self, *args, **kwargs)

    monkeypatch.setattr(training.ObjectiveTrainer, "compute_loss", stops)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut")
    resumed_calls = []

    def counts(self, *args, **kwargs):
        resumed_calls.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(training.ObjectiveTrainer, "compute_loss", counts)
    resumed, curve = run(tmp_path / "cut")
    assert 0 < len(resumed_calls) < whole_curve["steps"]  # it went on, and did not begin again
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name
    assert curve["layer_cross_entropy"] == whole_curve["layer_cross_entropy"]
    assert curve["loss"] == whole_curve["loss"] and curve["minutes"] > 0
    resumed_calls.clear()
    again, curve = run(tmp_path / "cut")  # as a stage that had ended when a later one was interrupted
    assert not resumed_calls and curve["layer_cross_entropy"] == whole_curve["layer_cross_entropy"]
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), again.parameters(), strict=True))


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

    monkeypatch.setattr(training, "layer_losses", scripted)
    network, schedule = build_network("t5", 40), Schedule(0.02, decay, 60)
    curve = train_backbone(network, Objective(objective), many(2), PAIRS[:20], schedule, tmp_path)
    assert len(seen) == len(curve["layer_cross_entropy"]) > 5
    assert torch.tensor([1e-40]).mul(1.5) > 0, "numbers near zero are flushed during training only"
    same = [all(map(torch.equal, state, network.parameters())) for state in seen]
    assert [index for index, one in enumerate(same) if one] == [range(len(seen))[kept]]


class Planned(Exception):
    pass


@pytest.fixture
def plan(monkeypatch, tmp_path):
    """What a run of some number of batches would ask of the Trainer."""

    def planned(count, schedule):
        def trainer(network, arguments, **inputs):
            raise Planned(arguments)

        monkeypatch.setattr(training, "batches_of", lambda *given: range(count))
        monkeypatch.setattr(training, "ObjectiveTrainer", trainer)
        with pytest.raises(Planned) as found:
            train_backbone(build_network("t5", 40), Objective("vanilla"), [], [], schedule, tmp_path)
        return found.value.args[0]

    return planned


@pytest.mark.parametrize("count", [1, 3, 19, 20, 21, 39, 250, 3999, 4000, 4001, 4100, 9999, 24567])
def test_runs_are_evaluated_every_200_steps_or_more_often_and_at_the_end(plan, count):
    asked = plan(count, Schedule(0.02, 0.8, 100))
    every, steps = int(asked.eval_steps), asked.max_steps
    assert 1 <= every <= 200 and steps % every == 0, "the last step is evaluated"
    assert steps // every >= min(count, 20)
    assert 0 <= count - steps < every, "hardly any batch is left out"
    assert asked.save_steps == every and asked.eval_on_start and asked.warmup_steps <= min(200, steps / 4)


def test_the_rate_rises_stays_and_falls(plan):
    from transformers import get_scheduler

    for decay, stays in ((0.8, 0.2), (0.0, 1.0), (1.0, 0.0)):
        asked = plan(4000, Schedule(0.02, decay, 100))
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=asked.learning_rate)
        kind, more = asked.lr_scheduler_type, dict(scheduler_specific_kwargs=asked.lr_scheduler_kwargs)
        found = get_scheduler(kind, optimizer, asked.warmup_steps, asked.max_steps, **more)
        rates = []
        for _ in range(asked.max_steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            found.step()
        assert rates[0] == 0 and rates[100] == pytest.approx(0.01) and max(rates) == 0.02
        full = sum(rate == 0.02 for rate in rates)
        assert full == pytest.approx(stays * 3800, abs=2)
        assert rates[-1] == pytest.approx(0, abs=1e-5) if decay else rates[-1] == 0.02
        half = 200 + full + (4000 - 200 - full) // 2
        assert not decay or rates[half] == pytest.approx(0.01, rel=1e-2)
        assert asked.load_best_model_at_end == (decay > 0) == (asked.metric_for_best_model is not None)


def test_the_loss_of_a_layer_is_a_mean_over_tokens_however_they_are_batched():
    network, long = build_network("t5", 40), [([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 13, 14, 15, 1])]
    together = layer_losses(network, [pad_pairs(long, 0)])
    assert layer_losses(network, [pad_pairs([pair], 0) for pair in long]) == pytest.approx(together, abs=1e-4)
    batched = batches.padded(PAIRS, 0, rows=16)
    assert [len(batch["labels"]) for batch in batched] == [16] * 3 + [12]
    assert sum(int((batch["labels"] >= 0).sum()) for batch in batched) == sum(len(b) for _, b in PAIRS)
    lengths = [int(mask.sum()) for batch in batched for mask in batch["attention_mask"]]
    assert lengths == sorted(lengths)


def test_dropout_is_changed_wherever_it_is_kept():
    network = build_network("t5", 40).train()
    batch = pad_pairs(PAIRS[:8], 0)
    losses = {}
    for rate in (0.5, 0.0):
        set_dropout(network, rate)
        for forward in (training.forward, training._hooked_forward):
            losses[rate, forward.__name__] = {forward(network, batch)[1].sum().item() for _ in range(3)}
    assert all(len(found) == (3 if rate else 1) for (rate, _), found in losses.items())


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("flags", [{}, {"avx512_bf16": False, "avx2": True}, {"amx_bf16": True}])
def test_half_precision_is_for_processors_that_multiply_it(plan, monkeypatch, flags, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    muon.fast_bfloat16.cache_clear()
    asked = plan(100, Schedule(0.02, 0.0, 100, half=half))
    assert asked.use_cpu and asked.bf16 == (half and "amx_bf16" in flags)
    assert muon.fast_bfloat16("cuda")
    muon.fast_bfloat16.cache_clear()


def test_in_half_precision_the_losses_are_nearly_those_of_single(tmp_path):
    batch = pad_pairs(PAIRS[:8], 0)
    network = build_network("t5", 40)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states, logits = training.forward(network, batch)
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
    steps, rows = curve["steps"], curve["layer_cross_entropy"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows):
        held_out = f"step {row['step']} of {steps}: held out {row['cross_entropy'][-1]:.3f} nats a token, "
        left = "0 minutes left" if row["step"] else "begun"
        assert line.removeprefix(held_out) == f"{left} (calm)", line


def test_objectives_are_told_the_step(tmp_path, monkeypatch):
    told, true = [], training.objective_loss
    monkeypatch.setattr(training, "objective_loss", lambda *given: told.append(given[5]) or true(*given))
    schedule = Schedule(0.003, 0.0, 100)
    objective, network = Objective("alternating"), build_network("t5", 40)
    curve = train_backbone(network, objective, many(4), PAIRS[:20], schedule, tmp_path)
    assert told == list(range(curve["steps"])) and len(told) > 2


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


OWN = {name: FROM_SCRATCH[name] for name in ("query", "embedding", "table", "norm")}


@pytest.mark.parametrize(
    ("given", "rates", "muon"),
    [
        ({}, [1, *OWN.values()], True),
        (dict(rates={}, muon=False), [1, 1, 1, 1, 1], False),
        (dict(rates=FROM_SCRATCH | {"table": 5.5}), [1, *(OWN | {"table": 5.5}).values()], True),
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
    from mee_utils.study.train_models import measure

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
