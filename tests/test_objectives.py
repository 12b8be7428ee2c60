"""Objectives agree with hand-computed values on a two-layer toy; gradients reach what they should."""

import math

import pytest
import torch
from conftest import build_network

from mee_utils import MeeError
from mee_utils.companion.training.loop import states_and_logits
from mee_utils.models.objectives import (
    KD_MAPS,
    Objective,
    cross_entropy,
    deep_layer,
    distillation,
    layer_weights,
    objective_loss,
    weighted_cross_entropy,
)


class Toy(torch.nn.Module):
    """A read-out without norm or scale: logits are the states themselves."""

    def __init__(self):
        super().__init__()
        self.lm_head = torch.nn.Identity()
        self.config = type("Config", (), {"scale_decoder_outputs": False, "d_model": 2})()
        self.decoder = torch.nn.Module()
        self.decoder.final_layer_norm = torch.nn.Identity()
        self.decoder.dropout = torch.nn.Identity()

    def get_decoder(self):
        return self.decoder


# Two tokens, the second is padding; two words; the right word is 0.
LABELS = torch.tensor([[0, -100]])
FIRST = torch.tensor([[[0.0, math.log(3)], [9.0, -9.0]]])  # p(0) = 1/4: CE_1 = ln 4
LAST = torch.tensor([[[1.0, 1.0], [5.0, 5.0]]])  # p(0) = 1/2: CE_2 = ln 2
# At unit scale h^1 is (0, sqrt 2) and h^2 is (1, 1); the mean over two coordinates of their squared
# difference, padding left out:
DISTANCE = (1 + (math.sqrt(2) - 1) ** 2) / 2


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Objective("vanilla"), math.log(2)),
        (Objective("calm"), (1 * math.log(4) + 2 * math.log(2)) / 3),
        (Objective("late_weighted"), math.log(2)),  # the last 70 % of two layers is one layer
        (Objective("free", exit_layer=1), (1 * math.log(4) + 2 * math.log(2)) / 3 + 0.5 * DISTANCE),
        (
            Objective("free", exit_layer=1, kd_map="last"),
            (math.log(4) + 2 * math.log(2)) / 3 + 0.5 * DISTANCE,
        ),
        (
            Objective("free", exit_layer=1, kd_map="uniform"),
            (math.log(4) + 2 * math.log(2)) / 3 + 0.5 * DISTANCE,
        ),
    ],
    ids=lambda value: f"{value.name}-{value.kd_map}" if isinstance(value, Objective) else "",
)
def test_loss_on_a_two_layer_toy_is_the_hand_computed_one(objective, expected):
    assert objective_loss(objective, Toy(), [FIRST, LAST], LAST, LABELS).item() == pytest.approx(
        expected, abs=1e-6
    )


def test_alternating_asks_all_layers_in_every_other_step():
    objective = Objective("alternating")
    losses = [objective_loss(objective, Toy(), [FIRST, LAST], LAST, LABELS, step).item() for step in range(4)]
    odd, even = math.log(2), (math.log(4) + math.log(2)) / 2
    assert losses == pytest.approx([odd, even, odd, even])
    assert layer_weights(objective, 2) == [0.25, 0.75]
    one = Objective("alternating", intermediate="one")
    assert objective_loss(one, Toy(), [FIRST, LAST], LAST, LABELS, 1).item() == pytest.approx(even)


def test_weights_are_the_papers():
    assert layer_weights(Objective("calm"), 12) == pytest.approx([i / 78 for i in range(1, 13)])
    late = layer_weights(Objective("late_weighted"), 12)
    assert late[:4] == [0] * 4 and all(w > 0 for w in late[4:])
    free = layer_weights(Objective("free", exit_layer=6), 24)
    assert (
        free[5] == pytest.approx(6 / 30)
        and free[23] == pytest.approx(24 / 30)
        and sum(free) == pytest.approx(1)
    )


def test_padding_counts_in_no_loss():
    torch.manual_seed(0)
    states = [torch.randn(2, 5, 4) for _ in range(4)]
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    changed = [s.masked_fill(~mask[..., None], 77.0 + i) for i, s in enumerate(states)]
    for kd_map in KD_MAPS:
        assert distillation(states, mask, 2, kd_map) == pytest.approx(
            distillation(changed, mask, 2, kd_map).item()
        )
    logits, labels = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5)).masked_fill(~mask, -100)
    assert cross_entropy(logits, labels) == cross_entropy(logits.masked_fill(~mask[..., None], 3.0), labels)


def test_dynamic_map_takes_the_closest_deep_state():
    mask = torch.ones(1, 1).bool()
    states = [torch.tensor([[value]]) for value in ([2.0, 0.0], [0.0, 1.0], [3.0, 3.0], [5.0, 0.0])]
    # exit after layer 2; layer 1 points where layer 4 does (distance 0), layer 2 is closest to layer 3 and
    # opposed to layer 4
    assert distillation(states, mask, 2, "dynamic").item() == pytest.approx((0 + DISTANCE) / 2, abs=1e-5)
    assert distillation(states, mask, 2, "last").item() == pytest.approx((DISTANCE + 2) / 2, abs=1e-5)


def test_distillation_does_not_see_the_scale_of_states():
    """Raw states would: a deep state contains the shallow one, and both would grow without end."""
    torch.manual_seed(0)
    states, mask = [torch.randn(2, 3, 8) for _ in range(4)], torch.ones(2, 3).bool()
    larger = [state * (10.0**i) for i, state in enumerate(states)]
    for kd_map in KD_MAPS:
        assert distillation(states, mask, 2, kd_map).item() == pytest.approx(
            distillation(larger, mask, 2, kd_map).item(), abs=1e-4
        )


@pytest.mark.parametrize("kd_map", ["last", "uniform"])
def test_fixed_maps_stay_among_the_deep_layers_and_end_at_the_last(kd_map):
    for layers, exit_layer in ((12, 4), (24, 6), (6, 4), (8, 7)):
        mapped = [deep_layer(kd_map, i, exit_layer, layers) for i in range(1, exit_layer + 1)]
        assert mapped == sorted(mapped) and mapped[-1] == layers and min(mapped) > exit_layer


def test_one_drawn_layer_has_the_same_expectation_as_all():
    weights, losses = layer_weights(Objective("calm"), 4), {1: 3.0, 2: 1.0, 3: 7.0, 4: 2.0}
    exact = weighted_cross_entropy(weights, lambda i: torch.tensor(losses[i]))
    torch.manual_seed(0)
    drawn = [
        weighted_cross_entropy(weights, lambda i: torch.tensor(losses[i]), "one").item() for _ in range(4000)
    ]
    assert sum(drawn) / len(drawn) == pytest.approx(exact.item(), rel=0.02)
    calls = []
    weighted_cross_entropy(weights, lambda i: calls.append(i) or torch.tensor(1.0), "one")
    assert len(calls) == 2 and calls[0] == 4


def batch(vocabulary=50):
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(3, vocabulary, (2, 6)),
        "attention_mask": torch.ones(2, 6).long(),
        "labels": torch.randint(3, vocabulary, (2, 5)),
    }


def test_distillation_moves_the_shallow_layers_and_not_the_deep_ones():
    network = build_network("t5", 50).train()
    states, _ = states_and_logits(network, batch())
    distillation(states, torch.ones(2, 5).bool(), 2, "last").backward()
    moved = [
        any(p.grad is not None and p.grad.abs().sum() > 0 for p in block.parameters())
        for block in network.decoder.block
    ]
    assert moved == [True, True, False, False]


@pytest.mark.parametrize("name", ["vanilla", "calm", "free", "late_weighted"])
def test_every_objective_trains_encoder_decoder_and_embedding(name):
    network = build_network("t5", 50).train()
    states, logits = states_and_logits(network, batch())
    objective_loss(Objective(name), network, states, logits, batch()["labels"]).backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_vanilla_gives_no_layer_but_the_last_a_loss_of_its_own():
    network = build_network("t5", 50)
    states, logits = states_and_logits(network, batch())
    for state in states:
        state.retain_grad()
    objective_loss(Objective("vanilla"), network, states, logits, batch()["labels"]).backward()
    direct = cross_entropy(logits, batch()["labels"])
    other, _ = states_and_logits(network, batch())
    assert direct.item() == pytest.approx(
        objective_loss(Objective("vanilla"), network, other, logits, batch()["labels"]).item()
    )
    assert states[0].grad is not None  # through the layers above it, not through a read-out of its own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "calme"}, 'Unknown objective "calme": did you mean "calm"'),
        ({"name": "free", "kd_map": "first"}, "Unknown KD map"),
        ({"name": "calm", "intermediate": "two"}, "Unknown intermediate"),
        ({"name": "free", "exit_layer": 0}, "exit_layer=0: give a whole number from 1 on"),
        ({"name": "free", "exit_layer": 2.5}, "exit_layer=2.5: give a whole number"),
        ({"name": "free", "exit_layer": "4"}, "exit_layer='4': give a whole number"),
        ({"name": "free", "exit_layer": True}, "exit_layer=True: give a whole number"),
    ],
)
def test_unknown_names_and_impossible_layers_are_refused(arguments, message):
    with pytest.raises(MeeError, match=message):
        Objective(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calm", 12), "objective='calm': give an Objective, such as Objective"),
        ((Objective("calm"), 0), "layers=0: give a whole number from 1 on"),
        ((Objective("calm"), "12"), "layers='12': give a whole number"),
        ((Objective("alternating"), 12, -1), "step=-1: give a whole number from 0 on"),
        ((Objective("alternating"), 12, 0.5), "step=0.5: give a whole number"),
    ],
)
def test_weights_are_of_an_objective_and_of_layers_that_there_are(arguments, message):
    """Before, a name was an AttributeError, and no layers were no weights without a word."""
    with pytest.raises(MeeError, match=message):
        layer_weights(*arguments)


@pytest.mark.parametrize("exit_layer", [12, 13])
def test_free_must_exit_below_the_last_layer(exit_layer):
    with pytest.raises(MeeError, match="from 1 to 11"):
        layer_weights(Objective("free", exit_layer=exit_layer), 12)
