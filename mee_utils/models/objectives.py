"""Training objectives of the backbones: how much each layer is asked to predict.

With `CE_i` the cross-entropy of the shared readout at layer `i` of `L`, padding masked out:

    vanilla          CE_L
    calm             sum_i a_i CE_i,  a_i = i / sum_j j                (CALM, Schuster et al. 2022, eq. 4)
    late_weighted    the same over the last 70 % of the layers         (MEE, closing section; untested there)
    free             (L_S CE_S + L CE_L)/(L_S + L) + 0.5 KD            (FREE, Bae et al. 2023, eqs. 1 and 2)
                     KD = mean over shallow layers i of MSE(H^i, stopgrad H^m(i))
    alternating      CE_L in the first, third, .. step, mean_i CE_i in the others   (BERxiT, Xin et al. 2021)

An intermediate term costs a readout. `intermediate="one"` draws one intermediate layer a step, in proportion
to the weights: the gradient is the same in expectation, for two readouts instead of twelve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole, shown
from .states import IGNORED, compute_logits

OBJECTIVES = ("vanilla", "calm", "free", "late_weighted", "alternating")
KD_MAPS = ("last", "uniform", "dynamic")
LATE_SHARE = 0.7
KD_WEIGHT = 0.5


@dataclass(frozen=True)
class Objective:
    """What a backbone is trained for.

    Attributes:
        name: One of `OBJECTIVES`.
        exit_layer: FREE's single exit point `L_S`; by default a third of the layers.
        kd_map: FREE's map `m` from shallow to deep layers, one of `KD_MAPS`.
        intermediate: The layers below the last that have a loss in a step: "all", or "one" that is drawn.
    """

    name: str
    exit_layer: int | None = None
    kd_map: str = "dynamic"
    intermediate: str = "all"

    def __post_init__(self):
        check_choice("objective", self.name, OBJECTIVES)
        check_choice("KD map", self.kd_map, KD_MAPS)
        check_choice("intermediate", self.intermediate, ("all", "one"))
        if self.exit_layer is not None:
            check_whole("exit_layer", self.exit_layer)

    def shallow(self, layers: int) -> int:
        """FREE's exit point for a decoder of this many layers; a `MeeError` if it is not below the last."""
        exit_layer = self.exit_layer if self.exit_layer is not None else max(1, layers // 3)
        if not 1 <= exit_layer < layers:
            raise MeeError(f"exit_layer={exit_layer}: FREE exits at a layer from 1 to {layers - 1}.")
        return exit_layer


def layer_weights(objective: Objective, layers: int, step: int | None = None) -> list[float]:
    """The weight of `CE_i` for i = 1..L in a `step` (from 0), or on average; they sum to 1.

    >>> layer_weights(Objective("calm"), 3)
    [0.16666666666666666, 0.3333333333333333, 0.5]
    >>> [layer_weights(Objective("alternating"), 2, step) for step in (0, 1, None)]
    [[0.0, 1.0], [0.5, 0.5], [0.25, 0.75]]

    Raises `MeeError` for what is no objective, and numbers that count no layers or steps.
    """
    if not isinstance(objective, Objective):
        raise MeeError(f'objective={shown(objective)}: give an Objective, such as Objective("calm").')
    check_whole("layers", layers)
    if step is not None:
        check_whole("step", step, 0)
    if objective.name == "alternating":
        last_only = [0.0] * (layers - 1) + [1.0]
        all_equal = [1 / layers] * layers
        if step is None:
            return [(a + b) / 2 for a, b in zip(last_only, all_equal, strict=True)]
        return all_equal if step % 2 else last_only
    if objective.name == "vanilla":
        trained = [layers]
    elif objective.name == "free":
        trained = [objective.shallow(layers), layers]
    else:
        count = layers if objective.name == "calm" else round(LATE_SHARE * layers)
        trained = range(layers - count + 1, layers + 1)
    # the layers that have a loss, in proportion to their number
    return [layer / sum(trained) if layer in trained else 0.0 for layer in range(1, layers + 1)]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token; labels `[batch, position]` are `IGNORED` at padding."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def weighted_cross_entropy(
    weights: Sequence[float], entropy_at: Callable[[int], Tensor], intermediate: str = "all"
) -> Tensor:
    """`sum_i a_i CE_i` over the layers with a weight, or its unbiased estimate from one intermediate layer.

    Args:
        weights: `a_1 .. a_L`.
        entropy_at: Gives `CE_i` for the 1-based layer `i`; called only for the layers that are needed.
        intermediate: "all" layers below the last, or "one" drawn in proportion to the weights.
    """
    layers = len(weights)
    total = weights[-1] * entropy_at(layers)
    below = [layer for layer in range(1, layers) if weights[layer - 1] > 0]
    if intermediate == "all" or len(below) < 2:
        for layer in below:
            total = total + weights[layer - 1] * entropy_at(layer)
        return total
    below_weights = torch.tensor([weights[layer - 1] for layer in below])
    drawn = below[int(torch.multinomial(below_weights, 1))]
    return total + float(below_weights.sum()) * entropy_at(drawn)


def deep_layer(kd_map: str, shallow_layer: int, exit_layer: int, layers: int) -> int:
    """The deep layer (1-based) that a shallow layer is distilled from, for maps that do not look at states.

    "last" pairs the layers from the last ones down; "uniform" spreads the shallow layers over the deep ones.

    >>> [deep_layer("last", i, 4, 12) for i in (1, 2, 3, 4)]
    [9, 10, 11, 12]
    >>> [deep_layer("uniform", i, 4, 12) for i in (1, 2, 3, 4)]
    [6, 8, 10, 12]
    """
    if kd_map == "last":
        return max(exit_layer + 1, layers - (exit_layer - shallow_layer))
    return exit_layer + max(1, round(shallow_layer * (layers - exit_layer) / exit_layer))


def distillation(states: Sequence[Tensor], mask: Tensor, exit_layer: int, kd_map: str) -> Tensor:
    """FREE's layer-wise distillation: shallow states drawn to deep ones without gradient (Bae et al., eq. 2).

    Raw states are `[batch, position, d_model]`, the mask is true where there is no padding; the map "dynamic"
    takes the closest deep state, `argmin_j MSE`. States are compared at unit scale: a deep state *contains*
    the shallow one, so that drawing the raw one to it moves the target too, and training diverges.
    """
    width = states[0].shape[-1:]
    scaled = [functional.rms_norm(state, width, eps=1e-6)[mask] for state in states]  # [token, d_model] each
    losses = []
    for shallow_layer in range(1, exit_layer + 1):
        if kd_map == "dynamic":
            targets = scaled[exit_layer:]
        else:
            targets = [scaled[deep_layer(kd_map, shallow_layer, exit_layer, len(states)) - 1]]
        shallow = scaled[shallow_layer - 1]
        distances = [(shallow - deep.detach()).float().pow(2).mean() for deep in targets]
        losses.append(torch.stack(distances).min())
    return torch.stack(losses).mean()


def objective_loss(
    objective: Objective,
    network: nn.Module,
    states: Sequence[Tensor],
    last_logits: Tensor,
    labels: Tensor,
    step: int = 0,
) -> Tensor:
    """The loss of one batch.

    Args:
        objective: What the network is trained for.
        network: The network, for its readout at intermediate layers.
        states: The raw states `h^1 .. h^L`, each `[batch, position, d_model]`.
        last_logits: The logits `[batch, position, vocabulary]` of the last layer.
        labels: The target ids `[batch, position]`, `IGNORED` at padding.
        step: The number of the training step, from 0; decides what "alternating" trains.
    """
    layers = len(states)

    def entropy_at(layer: int) -> Tensor:
        logits = last_logits if layer == layers else compute_logits(network, states[layer - 1])
        return cross_entropy(logits, labels)

    weights = layer_weights(objective, layers, step)
    loss = weighted_cross_entropy(weights, entropy_at, objective.intermediate)
    if objective.name == "free":
        exit_layer = objective.shallow(layers)
        loss = loss + KD_WEIGHT * distillation(states, labels != IGNORED, exit_layer, objective.kd_map)
    return loss
