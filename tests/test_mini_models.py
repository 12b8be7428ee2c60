"""Mini models begin with attention that looks up equal tokens and near ones."""

import copy
import itertools

import pytest
import torch
from conftest import build_network

from mee_utils import MeeError
from mee_utils.companion.training.batches import pad_pairs
from mee_utils.companion.training.loop import states_and_logits
from mee_utils.companion.training.mini import (
    STARTS,
    kept_layers,
    new_network,
    set_dropout,
    with_decoder_layers,
)

TOKENIZER = type("Tokenizer", (), {"pad_token_id": 0, "eos_token_id": 1, "__len__": lambda self: 50})()
SIZES = {"d_model": 96, "d_kv": 24, "num_heads": 4, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 3}


def attentions(network, stack, kind="SelfAttention"):
    layers = [layer for block in getattr(network, stack).block for layer in block.layer]
    return [getattr(layer, kind) for layer in layers if hasattr(layer, kind)]


def test_attention_begins_as_a_look_up_of_equal_tokens():
    network = new_network(TOKENIZER, local=False, **SIZES)
    every = attentions(network, "encoder") + attentions(network, "decoder")
    every += attentions(network, "decoder", "EncDecAttention")
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
    in_stack = [name for name in changed if name.startswith(stack)]
    endings = ("SelfAttention.q.weight", "relative_attention_bias.weight")
    assert all(name.endswith(endings) for name in in_stack)
    assert len(in_stack) == len(attentions(plain, stack)) + 1
    assert all(name.startswith(("encoder", "decoder")) for name in changed)


def test_local_heads_begin_as_views_of_near_tokens(begun):
    """Bias `[head, query, key]` falls by 0.7 a token in a head's direction, and is low in the other."""
    plain, local = begun
    distance = torch.arange(8)[None] - torch.arange(8)[:, None]  # key minus query, exact below 8

    def bias(network, stack):
        return attentions(network, stack)[0].compute_bias(8, 8)[0].detach()

    near = -0.7 * distance.abs().double()
    away = torch.tensor(-8.0).double()
    encoder = bias(local, "encoder")
    assert torch.equal(encoder[0], bias(plain, "encoder")[0])  # head 0 stays a look-up of equal tokens
    assert torch.allclose(encoder[1], near, atol=1e-6)
    backwards = torch.where(distance <= 0, near, away)
    assert torch.allclose(encoder[2], backwards, atol=1e-6)
    forwards = torch.where(distance > 0, near, away)
    assert torch.allclose(encoder[3], forwards, atol=1e-6)

    decoder = bias(local, "decoder")
    past = distance <= 0
    assert torch.equal(decoder[[0, 3]], bias(plain, "decoder")[[0, 3]])
    assert torch.allclose(decoder[1][past], near[past], atol=1e-6)
    assert torch.allclose(decoder[2][past], near[past] / 3, atol=1e-6)


def test_no_distance_is_nearer_than_a_smaller_one(begun):
    _, local = begun
    far = attentions(local, "encoder")[0].compute_bias(100, 100)[0].detach()
    assert (far[1].diff(dim=1)[0] <= 0).all() and far[1, 0, -1] < -8


def test_narrow_networks_have_as_many_local_heads_as_heads():
    network = new_network(TOKENIZER, **SIZES | {"num_heads": 2})
    table = attentions(network, "encoder")[0].relative_attention_bias.weight.detach()
    assert table.shape[1] == 2 and table[3, 1] == pytest.approx(-2.1)


def test_dropout_is_changed_wherever_it_is_kept():
    network = build_network("t5", 40).train()
    batch = pad_pairs([([5, 6, 1], [7, 1]), ([8, 1], [9, 9, 9, 1])], 0)
    losses = {}
    for rate in (0.5, 0.0):
        set_dropout(network, rate)
        losses[rate] = {states_and_logits(network, batch)[1].sum().item() for _ in range(3)}
    assert len(losses[0.5]) == 3 and len(losses[0.0]) == 1


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("layers", "of"), [(1, 1), (1, 12), (2, 3), (3, 12), (6, 12), (8, 12), (12, 12), (5, 24)]
)
def test_a_shallow_decoder_starts_with_layers_in_their_order(start, layers, of):
    kept = kept_layers(start, layers, of)
    assert len(kept) == layers and kept == sorted(set(kept))
    assert kept[0] == 0, "it holds the table of position biases"
    if start == "spaced" and layers > 1:
        gaps = [later - earlier for earlier, later in itertools.pairwise(kept)]
        assert kept[-1] == of - 1 and max(gaps) - min(gaps) <= 1
    if start == "first":
        assert kept == list(range(layers))


def test_a_shallow_decoder_is_no_deeper_than_what_it_starts_from():
    with pytest.raises(MeeError, match="decoder_layers=4: a decoder that starts from 3 layers has at most 3"):
        kept_layers("spaced", 4, 3)


def test_a_network_with_fewer_decoder_layers_computes_what_these_layers_do(begun):
    """The encoder, the embedding and the kept layers are those of the whole network, which stays as it is."""
    _, network = begun
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    shallow = with_decoder_layers(network, [0, 2]).double().eval()
    assert shallow.config.num_decoder_layers == 2 and shallow.config.num_layers == 2
    assert network.config.num_decoder_layers == 3
    batch = pad_pairs([([5, 6, 1], [7, 1]), ([8, 1], [9, 9, 9, 1])], 0)
    skipped = copy.deepcopy(network).eval()
    del skipped.decoder.block[1]
    for one, other in zip(*(states_and_logits(each, batch)[0] for each in (shallow, skipped)), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        shallow.decoder.block[1].layer[0].SelfAttention.q.weight.add_(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


def test_with_all_its_layers_a_network_stays_the_same(begun):
    _, network = begun
    batch = pad_pairs([([5, 6, 1], [7, 1])], 0)
    copied = with_decoder_layers(network, range(3)).double().eval()
    logits = [states_and_logits(each, batch)[1] for each in (copied, copy.deepcopy(network).eval())]
    assert torch.equal(*logits)
