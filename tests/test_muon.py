"""The optimizer is torch's Muon on matrices and torch's AdamW on the rest, and can be resumed."""

import copy
import io

import pytest
import torch
from conftest import build_network

from mee_utils.companion.training.loop import Schedule
from mee_utils.companion.training.muon import RATES_FROM_SCRATCH, MuonAdam, orthogonalize, parameter_groups

SHAPES = [(12, 12), (20, 8), (8, 20), (12, 12), (20, 8)]
RATES = {"query": 0.5, "embedding": 20.0, "table": 5.0, "norm": 2.0}


def weights(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def walk(optimizers, parameters, steps, seed=1):
    """Steps along random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for weight in parameters:
            weight.grad = torch.randn(weight.shape, generator=generator) * (step + 1)
        for optimizer in optimizers:
            optimizer.step()


def test_matrices_are_updated_as_by_torchs_muon(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # in which torch iterates
    ours, theirs = weights(SHAPES), weights(SHAPES)
    group = {"params": ours, "muon": True}
    for steps in (1, 4):
        walk([MuonAdam([group], lr=0.02, weight_decay=0.1)], ours, steps)
        walk([torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95)], theirs, steps)
        for start, a, b in zip(weights(SHAPES), ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-6) and not torch.allclose(a, start, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 12, 12), (3, 20, 8), (3, 8, 20)])
def test_orthogonalization_keeps_singular_vectors_and_evens_the_values(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    orthogonal = orthogonalize(matrices)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ orthogonal @ vh.mT
    values = torch.diagonal(inner, dim1=1, dim2=2)
    assert torch.allclose(inner, torch.diag_embed(values), atol=1e-4)
    assert values.min() > 0.3 and values.max() < 1.3


def test_the_rest_is_updated_as_by_torchs_adamw():
    shapes = [(30, 8), (8,), (8,)]
    ours, theirs = weights(shapes), weights(shapes)
    walk([MuonAdam([{"params": ours}], lr=0.02, weight_decay=0.1)], ours, 5)
    walk([torch.optim.AdamW(theirs, lr=0.02, weight_decay=0.1, betas=(0.9, 0.98))], theirs, 5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


def test_a_schedule_sets_the_rate_of_every_group():
    parameters = weights(SHAPES[:2])
    groups = [{"params": parameters[:1], "muon": True}, {"params": parameters[1:]}]
    optimizer = MuonAdam(groups, lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 0.0)
    walk([optimizer, schedule], parameters, 1)
    after = [weight.detach().clone() for weight in parameters]
    walk([optimizer, schedule], parameters, 3)
    assert all(torch.equal(a, b) for a, b in zip(after, parameters, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(after, weights(SHAPES[:2]), strict=True))


def test_a_resumed_optimizer_goes_on_identically():
    network = build_network("t5", 40)
    parameters = list(network.parameters())
    optimizer = MuonAdam(parameter_groups(network, RATES, 1e-3, 0.1))
    walk([optimizer], parameters, 3)
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    other = copy.deepcopy(network)
    resumed = MuonAdam(parameter_groups(other, RATES, 0.5, 0.0))
    resumed.load_state_dict(torch.load(stream))
    walk([optimizer], parameters, 3, seed=2)
    walk([resumed], list(other.parameters()), 3, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(parameters, other.parameters(), strict=True))


@pytest.mark.parametrize("family", ["t5", "t5-v1.1", "longt5", "t5-deep-decoder"])
def test_every_parameter_is_in_exactly_one_group(family):
    network = build_network(family, 40)
    groups = parameter_groups(network, RATES, 1e-3, 0.1)
    seen = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(seen) == sorted(id(weight) for weight in network.parameters())
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 5e-4, 2e-2, 5e-3, 2e-3])
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0, 0.0, 0.0]
    assert [group["muon"] for group in groups] == [True, True, False, False, False]
    names = {id(weight): name for name, weight in network.named_parameters()}
    members = [[names[id(weight)] for weight in group["params"]] for group in groups]
    matrices, queries, embedding, tables, norms = members
    assert queries and all(name.split(".")[-2] == "q" for name in queries)
    assert all(name.split(".")[-2] in ("k", "v", "o", "wi", "wi_0", "wi_1", "wo") for name in matrices)
    assert set(embedding) <= {"shared.weight", "lm_head.weight"} and len(tables) >= 2
    assert all(name.split(".")[-2].endswith("layer_norm") for name in norms)


SCRATCH_RATES = [RATES_FROM_SCRATCH[name] for name in ("query", "embedding", "table", "norm")]


@pytest.mark.parametrize(
    ("given", "rates", "muon"),
    [
        ({}, [1, *SCRATCH_RATES], True),
        ({"rates": {}, "muon": False}, [1, 1, 1, 1, 1], False),
        ({"rates": RATES_FROM_SCRATCH | {"table": 5.5}}, [1, 0.2, 2.0, 5.5, 0.1], True),
    ],
)
def test_matrices_embedding_tables_and_norms_learn_at_rates_of_their_own(given, rates, muon):
    """From scratch; what was pre-trained well already is updated by AdamW, at one rate."""
    network = build_network("t5", 40)
    schedule = Schedule(1e-3, 0.0, 100, **given)
    groups = parameter_groups(network, schedule.rates, 1e-3, 0.01, schedule.muon)
    assert [group["lr"] for group in groups] == pytest.approx([1e-3 * rate for rate in rates])
    assert [group["weight_decay"] for group in groups] == [0.01, 0.01, 0, 0, 0]
    assert [group["muon"] for group in groups] == [muon, muon, False, False, False]
    assert [id(p) for p in groups[2]["params"]] == [id(network.shared.weight)]
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))
