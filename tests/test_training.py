"""Batches keep to their budget, span corruption loses nothing, interrupted runs end as whole ones do."""

from random import Random

import pytest
import torch
from conftest import build_network
from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils.models.batches import Batches, corrupt_spans, group_by_length, pad_pairs
from mee_utils.models.objectives import Objective
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
    groups = group_by_length(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        widest = max(lengths[i][0] for i in group) + max(lengths[i][1] for i in group)
        assert widest * len(group) <= budget


def test_passes_are_whole_and_fractional():
    pairs = [([5] * n, [6] * 3) for n in range(2, 42)]
    seen = [i for group in Batches(pairs, 200, 0, 2.5, seed=0).batches for i in group]
    assert len(seen) == 100 and min(seen.count(i) for i in range(40)) == 2
    assert Batches(pairs, 200, 0, 1, seed=0).batches != Batches(pairs, 200, 0, 1, seed=1).batches


def test_padding_is_masked_on_both_sides():
    batch = pad_pairs([([5, 6, 1], [7, 1]), ([8, 1], [9, 9, 9, 1])], pad=0)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [8, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100, -100], [9, 9, 9, 1]]


PAIRS = [([5 + i % 20, 9, 1], [5 + i % 20, 1]) for i in range(60)]


class Interrupted(Exception):
    pass


def test_a_run_learns_and_logs_every_layer(tmp_path):
    network = build_network("t5", 40)
    before = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    curve = train_backbone(
        network, Objective("calm"), PAIRS, PAIRS[:20], Schedule(6, 5e-3, 100), tmp_path, progress=False
    )
    after = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    assert all(a < b - 0.5 for a, b in zip(after, before, strict=True))
    assert curve["layer_cross_entropy"][0]["cross_entropy"] == before
    assert curve["layer_cross_entropy"][-1] == {"step": curve["steps"], "cross_entropy": after}
    assert curve["loss"][-1]["step"] <= curve["steps"] and curve["minutes"] >= 0


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path, monkeypatch):
    from mee_utils.models import training

    def run(folder, seed=3):
        network = build_network("t5", 40, seed)
        curve = train_backbone(
            network,
            Objective("calm", intermediate="one"),
            PAIRS,
            PAIRS[:20],
            Schedule(4, 5e-3, 60),
            folder,
            progress=False,
        )
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


def test_training_sets_its_own_seed(tmp_path):
    objective, networks = Objective("calm", intermediate="one"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        networks.append(network := build_network("t5", 40))
        folder, schedule = tmp_path / str(seed), Schedule(1, 5e-3, 60)
        train_backbone(network, objective, PAIRS, PAIRS[:20], schedule, folder, progress=False)
    first, second = networks
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_attention_begins_as_a_look_up_of_equal_tokens():
    from mee_utils.models.mini import new_network

    class Tokenizer:
        pad_token_id, eos_token_id = 0, 1

        def __len__(self):
            return 50

    network = new_network(
        Tokenizer(), d_model=96, d_kv=24, num_heads=4, d_ff=128, num_layers=2, num_decoder_layers=2
    )
    for block in (*network.encoder.block, *network.decoder.block):
        for layer in block.layer[:-1]:
            attention = getattr(layer, "EncDecAttention", None) or layer.SelfAttention
            assert torch.allclose(attention.q.weight, attention.k.weight * 24**-0.5)
            assert torch.allclose(attention.o.weight @ attention.v.weight, torch.eye(96), atol=1e-5)


def test_the_embedding_learns_at_a_rate_of_its_own(tmp_path):
    from mee_utils.models import training

    network = build_network("t5", 40)
    trainer = training.ObjectiveTrainer(
        network,
        training.TrainingArguments(str(tmp_path), learning_rate=1e-3, report_to=[]),
        objective=Objective("vanilla"),
    )
    groups = trainer.create_optimizer().param_groups
    assert [group["lr"] for group in groups] == [training.EMBEDDING_RATE * 1e-3, 1e-3]
    arguments = training.TrainingArguments(str(tmp_path), learning_rate=1e-3, report_to=[])
    plain = (
        training.ObjectiveTrainer(network, arguments, objective=Objective("vanilla"), embedding_rate=1.0)
        .create_optimizer()
        .param_groups
    )
    assert [group["lr"] for group in plain] == [
        1e-3,
        1e-3,
    ]  # where the embedding was pre-trained well already
    assert [id(p) for p in groups[0]["params"]] == [id(network.shared.weight)]
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
    from mee_utils.study.inputs import load_profile_model, manifest
    from mee_utils.study.profiles import load_profile

    for name in ("small", "real"):
        for model in load_profile(name).training.backbones:
            layer = load_profile_model(load_profile(name), model).min_exit_layer
            assert layer == manifest(load_profile(name), model)["min_exit_layer"] and 4 <= layer < 12
