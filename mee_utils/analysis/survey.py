"""The survey's rules on one bench: what each costs at the same loss, and which of them say the same.

Losses are consistency losses of whole outputs, predicted by replay: what exits change in later tokens is not
seen. What needs a truth (overthinking, fake confidence) reads a trace along the references.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.inputs import cut_at_end, detokenize
from ..decoding.layerwise import start_and_end_ids
from ..models.any_model import AnyModel
from ..traces.replay import PolicyReplay, values_at_exits
from ..traces.trace import Trace
from .bandits import arm_rewards, bandit_players
from .calibration import consistency_losses, violations
from .comparison import replayed_row
from .statistics import columns_of, mean_interval, mean_of_chosen

Losses = Callable[[np.ndarray], np.ndarray]  # ids [token] that would be emitted -> loss [output]


def output_losses(trace: Trace, model, task) -> Losses:
    """The consistency loss of every output of a trace, by the ids its tokens would get; each scored once."""
    trace.check_own(len(task))
    if isinstance(model, AnyModel):
        ends = model.end_ids
    else:
        _, ends = start_and_end_ids(model.network)
    scored: dict[tuple, float] = {}  # (output, output at full depth) -> loss

    def outputs(ids: np.ndarray) -> list[tuple[int, ...]]:
        return [tuple(cut_at_end(output.tolist(), ends)) for output in trace.by_output(ids)]

    full = outputs(trace.final_id)

    def losses(ids: np.ndarray) -> np.ndarray:
        pairs = list(zip(outputs(ids), full, strict=True))
        different = {pair for pair in pairs if pair[0] != pair[1]}
        unscored = list(different - scored.keys())
        if unscored:
            texts = detokenize(model, [output for output, _ in unscored])
            full_texts = detokenize(model, [output for _, output in unscored])
            scored.update(zip(unscored, consistency_losses(task, texts, full_texts).tolist(), strict=True))
        return np.array([scored.get(pair, 0.0) for pair in pairs])

    return losses


def emitted(replayed: PolicyReplay, exits: np.ndarray) -> np.ndarray:
    """The ids `[token]` where tokens exit at these indices of `layers`, `[token]`."""
    return values_at_exits(replayed.token_ids, exits)


def at_loss(replayed: PolicyReplay, losses: Losses, max_new_tokens: int) -> dict[str, float]:
    """A rule at its own threshold: the mean `loss`, and what `comparison.replayed_row` returns."""
    lost = losses(emitted(replayed, replayed.exits(max_new_tokens)))
    mean = mean_interval(lost, np.arange(len(lost)))
    return {**mean.columns("loss", "loss_"), **replayed_row(replayed, max_new_tokens)}


def lowest_level(
    replayed: PolicyReplay, losses: Losses, levels: Sequence[float], demand: float, max_new_tokens: int
) -> float:
    """The last of descending thresholds (`levels`) before the mean loss exceeds `demand`; else the first.

    `losses` is what `output_losses` returns.
    """

    def within(level: float) -> bool:
        exits = replayed.at_threshold(level).exits(max_new_tokens)
        return losses(emitted(replayed, exits)).mean() <= demand

    return [levels[0], *takewhile(within, levels)][-1]


def what_it_costs(measure, sizes: Mapping, ids: int | None = None) -> dict:
    """What a rule looks at and costs.

    `readouts` a decision, the `layers` it sees, whether it is `trained`, its `parameters`; and for each of
    `sizes` (name -> `DecoderSizes`) a decision as a share of a layer (`ids`: what readouts are pruned to).
    """
    layers = "all so far" if measure.layers_used is None else measure.layers_used
    weights = list(measure.state_dict().values()) if hasattr(measure, "state_dict") else []
    row = {
        "readouts": int(measure.readout),
        "layers": str(layers),
        "trained": len(weights) > 0,
        "parameters": sum(weight.numel() for weight in weights),
    }
    for name, size in sizes.items():
        flops = size.readout * (ids or size.vocabulary) / size.vocabulary if measure.readout else 0
        row[name] = (flops + measure.flops(size.d_model)) / size.projections
    return row


def rank_correlations(replays: Mapping[str, PolicyReplay], layer: int) -> pd.DataFrame:
    """Rank correlations of rules' confidences at a layer; NaN where a rule says the same of all tokens.

    `replays` are by rule. Returns a square table, a row and a column a rule.

    Raises `MeeError` for a rule that does not decide at the layer.
    """
    columns = {}
    for name, replayed in replays.items():
        if layer not in replayed.decision_layers:
            raise MeeError(f'"{name}" does not decide at layer {layer}: choose another layer.')
        # rounded, since what is equal but for the last digit has another order on another processor
        columns[name] = replayed.confidences[:, replayed.decision_layers.index(layer)].round(12)
    return pd.DataFrame(columns).rank().corr()


def overthinking(trace: Trace, **labels) -> dict:
    """Shares of the tokens of a trace along references, with intervals: `overthought`, right at some layer
    and wrong at the last; `right`, at the last; `right_somewhere`, what an oracle of the truth could have.
    """
    right = trace.top1_id == trace.token_id[:, None]  # [token, layer]
    at_last = right[:, -1]
    somewhere = right.any(axis=1)
    shares = {"overthought": somewhere & ~at_last, "right": at_last, "right_somewhere": somewhere}
    means = {name: mean_interval(values, trace.sequence) for name, values in shares.items()}
    return {**labels, **columns_of(means)}


def fake_confidence(trace: Trace, sure: float = 0.9, **labels) -> pd.DataFrame:
    """Along references, by layer: the share of tokens above `sure`, and of these the share `wrong`."""
    wrong = trace.top1_id != trace.token_id[:, None]  # [token, layer]
    rows = []
    for number in range(trace.layers):
        chosen = trace.top1_probability[:, number] > sure
        share = mean_of_chosen(wrong[:, number], chosen, trace.sequence).columns("wrong")
        rows.append({**labels, "layer": number + 1, "sure": chosen.mean(), **share})
    return pd.DataFrame(rows)


def by_part(values: np.ndarray, trace: Trace, parts: int = 3, **labels) -> pd.DataFrame:
    """Mean of `values` `[token]` in equal parts of their outputs, in order; shorter outputs are left out."""
    length = np.bincount(trace.sequence)[trace.sequence]  # [token], of its output
    part_of = trace.position * parts // length
    rows = []
    for part in range(parts):
        chosen = (part_of == part) & (length >= parts)
        rows.append({**labels, "part": part + 1, **mean_of_chosen(values, chosen, trace.sequence).columns()})
    return pd.DataFrame(rows)


def bandit_or_calibrated(
    replayed: PolicyReplay, losses: Losses, arms: Sequence[float], levels: list, delta: float, splits: int
) -> pd.DataFrame:
    """Who keeps the threshold: a fixed arm, a bandit (over each output, or over all in one stream), or
    learn-then-test on a random half of the outputs, at `delta`, which tries `levels` from the highest down.

    Args:
        replayed: of a rule whose confidence is at most 1.
        losses: what `output_losses` returns.
        arms: thresholds of the bandit.
        levels: thresholds of learn-then-test, descending.
        delta: the mean loss that is to be kept.
        splits: random orders of the stream, and random halves.

    Returns:
        One row for each order or half: `who`, `regret` (what the best fixed arm earns a token more),
        `mean_exit_layer`, `loss` of all outputs and `broken`, whether that exceeds `delta`.
    """
    rewards, exits = arm_rewards(replayed, [*arms, *levels, np.inf])  # the last never exits
    of_arms = rewards[:, : len(arms)]
    players = [(f"always {arm:g}", np.full(len(rewards), number)) for number, arm in enumerate(arms)]
    players += bandit_players(of_arms, replayed.trace, splits)
    columns = range(len(arms), len(arms) + len(levels))
    of_levels = np.stack([losses(emitted(replayed, exits[:, column])) for column in columns])
    for level in violations(of_levels, levels, delta, splits=splits).threshold:  # NaN: none passed
        number = levels.index(level) if level in levels else len(levels)
        players.append(("calibrated", np.full(len(rewards), len(arms) + number)))
    best = of_arms.mean(axis=0).max()
    tokens = np.arange(len(rewards))
    rows = []
    for who, arm in players:
        lost = losses(emitted(replayed, exits[tokens, arm]))
        regret = mean_interval(best - rewards[tokens, arm], replayed.trace.sequence)
        loss = mean_interval(lost, np.arange(len(lost)))
        row = {"who": who, **regret.columns("regret", "regret_"), **loss.columns("loss", "loss_")}
        row["mean_exit_layer"] = replayed.layers[exits[tokens, arm]].mean()
        rows.append(row | {"broken": lost.mean() > delta})
    return pd.DataFrame(rows)
