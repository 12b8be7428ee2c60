"""The fused pass is the pass of transformers, but for the random numbers of dropout."""

import pytest
import torch
from conftest import build_network
from transformers.models.t5.modeling_t5 import T5LayerNorm

from mee_utils.models import fused, training
from mee_utils.models.fused import Dropout, forward, is_plain
from mee_utils.models.objectives import Objective, objective_loss
from mee_utils.models.training import _hooked_forward


def batch(rows=5, source=11, target=7, seed=0):
    """Random pairs of unequal lengths, padded on both sides."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(2, 40, (rows, source), generator=generator)
    labels = torch.randint(2, 40, (rows, target), generator=generator)
    mask = torch.ones_like(inputs)
    for row in range(1, rows):
        mask[row, source - row :], inputs[row, source - row :], labels[row, target - row :] = 0, 0, -100
    return {"input_ids": inputs, "attention_mask": mask, "labels": labels}


def lively(family):
    """A random network in double precision whose norms and position tables are not as they begin."""
    network = build_network(family, 40).double()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "layer_norm" in name:
                weight.uniform_(0.6, 1.4)
            if "relative_attention_bias" in name:
                weight.normal_()
    return network


def precise_norm(self, x):
    """T5's norm as `transformers` has it, but for the variance, which it takes in single precision."""
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


@pytest.mark.parametrize("family", ["t5", "t5-deep-decoder"])
@pytest.mark.parametrize("sizes", [(5, 11, 7), (3, 9, 30), (1, 1, 1)])
def test_states_logits_and_gradients_are_those_of_transformers(family, sizes, monkeypatch):
    monkeypatch.setattr(T5LayerNorm, "forward", precise_norm)
    network, data, found = lively(family), batch(*sizes), []
    for run in (_hooked_forward, forward):
        states, logits = run(network, data)
        network.zero_grad()
        objective_loss(Objective("calm"), network, states, logits, data["labels"]).backward()
        gradients = {name: weight.grad.clone() for name, weight in network.named_parameters()}
        found.append((states, logits, gradients))
    (states, logits, gradients), (fused_states, fused_logits, fused_gradients) = found
    assert len(states) == len(fused_states)
    for a, b in zip([*states, logits], [*fused_states, fused_logits]):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-10)
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0 or sizes == (1, 1, 1), name
        assert torch.allclose(gradient, fused_gradients[name], rtol=1e-7, atol=1e-10), name


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_its_share_and_the_mean(rate):
    torch.manual_seed(0)
    dropped = Dropout(rate)(torch.ones(999, 1001))
    values = dropped.unique()
    assert values.tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-4)
    assert (dropped == 0).float().mean() == pytest.approx(rate, abs=2e-3)
    assert dropped.mean() == pytest.approx(1, abs=4e-3)
    for dim in (0, 1):  # no row or column is kept or dropped as a whole
        assert (dropped.mean(dim) - 1).abs().max() < 6 * (rate / (1 - rate) / 999) ** 0.5


def test_dropout_draws_anew_at_every_place_and_follows_the_seed():
    def draw(seed):
        torch.manual_seed(seed)
        dropout = Dropout(0.5)
        return dropout(torch.ones(64, 7)), dropout.add(torch.zeros(64, 7), torch.ones(64, 7))

    first, second = draw(0)
    assert all(torch.equal(a, b) for a, b in zip((first, second), draw(0)))
    assert not torch.equal(first, second) and not torch.equal(first, draw(1)[0])


def test_a_pass_drops_in_training_only():
    network, data = lively("t5"), batch()
    network.config.dropout_rate = 0.2
    expected = _hooked_forward(network, data)[1]
    assert torch.allclose(forward(network, data)[1], expected, atol=1e-5)
    network.train()
    torch.manual_seed(0)
    first, second = forward(network, data)[1], forward(network, data)[1]
    torch.manual_seed(0)
    assert torch.equal(first, forward(network, data)[1])
    assert not torch.allclose(first, second)


def test_dropout_is_as_strong_as_that_of_transformers():
    """The logits' variance over many draws has the same mean, which a missing place would lower."""
    import transformers

    torch.manual_seed(0)
    sizes = dict(vocab_size=40, d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2)
    ids = dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    network = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ids, dropout_rate=0.1))
    network.train()
    data = batch()
    variances = []
    for run in (_hooked_forward, forward):
        with torch.no_grad():
            draws = torch.stack([run(network, data)[1] for _ in range(300)])
        variances.append(draws.var(0).mean())
    assert variances[0] == pytest.approx(variances[1], rel=0.04)


def test_a_cpu_trains_a_plain_network_by_the_fused_pass(monkeypatch):
    monkeypatch.setattr(fused, "forward", lambda network, data: "fused")
    assert training.forward(build_network("t5", 40), batch()) == "fused"
    states, logits = training.forward(build_network("t5-v1.1", 40), batch())
    assert len(states) == 4 and logits.shape == (5, 7, 40)


def test_only_a_first_t5_is_plain():
    plain = {family: is_plain(build_network(family, 40)) for family in ("t5", "t5-deep-decoder")}
    others = {family: is_plain(build_network(family, 40)) for family in ("t5-v1.1", "mt5", "longt5")}
    assert all(plain.values()) and not any(others.values())


def test_a_readout_of_its_own_is_not_plain():
    network = build_network("t5", 40)
    network.lm_head.weight = torch.nn.Parameter(network.shared.weight.detach().clone())
    assert not is_plain(network)
