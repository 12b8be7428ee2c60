"""The survey's rules on one bench: what each costs at the same loss, and which of them say the same.

Losses are consistency losses of whole outputs, foretold by replay: what exits change in later tokens is not
seen. What needs a truth (overthinking, fake confidence) reads a trace along the references.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.inputs import cut_at_end, detokenize
from ..decoding.layerwise import start_and_end_ids
from ..traces.replay import PolicyReplay
from ..traces.trace import Trace
from .calibration import consistency_losses, violations
from .comparison import at_threshold
from .statistics import NOTHING, mean_interval

Losses = Callable[[np.ndarray], np.ndarray]  # ids [token] that would be emitted -> loss [output]


def output_losses(trace: Trace, model, task) -> Losses:
    """The consistency loss of every output of a trace, by the ids its tokens would get; each scored once."""
    trace.check_own(len(task))
    end, known = start_and_end_ids(model.network)[1], {}
    outputs = lambda ids: [tuple(cut_at_end(each.tolist(), end)) for each in trace.by_output(ids)]
    full = outputs(trace.final_id)

    def losses(ids: np.ndarray) -> np.ndarray:
        pairs = list(zip(outputs(ids), full, strict=True))
        if new := list({pair for pair in pairs if pair[0] != pair[1]} - known.keys()):
            texts = [detokenize(model, side) for side in zip(*new, strict=True)]
            known.update(zip(new, consistency_losses(task, *texts).tolist(), strict=True))
        return np.array([known.get(pair, 0.0) for pair in pairs])

    return losses


def emitted(replayed: PolicyReplay, places: np.ndarray) -> np.ndarray:
    """The ids `[token]` where tokens leave at these places of `layers`."""
    return replayed.token_ids[np.arange(len(places)), places]


def at_loss(replayed: PolicyReplay, losses: Losses, max_new_tokens: int) -> dict[str, float]:
    """A rule at its own threshold: the mean `loss`, and what `comparison.at_threshold` returns."""
    lost = losses(emitted(replayed, replayed.exits(max_new_tokens)))
    loss = mean_interval(lost, np.arange(len(lost))).columns("loss", "loss_")
    return {**loss, **at_threshold(replayed, max_new_tokens)}


def lowest_level(replayed, losses: Losses, levels: Sequence, demand: float, max_new_tokens: int) -> float:
    """The last of descending thresholds before the mean loss exceeds `demand`; else the first."""
    loss = lambda level: at_loss(replayed.at_threshold(level), losses, max_new_tokens)["loss"]
    return [levels[0], *takewhile(lambda level: loss(level) <= demand, levels)][-1]


def describe(measure, sizes: Mapping, ids: int | None = None) -> dict:
    """What a rule looks at and costs: `readouts` a decision, the `layers` it sees, `trained`, `parameters`,
    and for each of `sizes` (name -> `DecoderSizes`) a decision as a share of a layer (`ids`: pruned to).
    """
    seen = "all so far" if measure.layers_used is None else measure.layers_used
    weights = getattr(measure, "state_dict", dict)().values()
    row = {"readouts": int(measure.readout), "layers": str(seen)}
    row |= {"trained": len(weights) > 0, "parameters": sum(weight.numel() for weight in weights)}
    for name, size in sizes.items():
        flops = size.readout * (ids or size.vocabulary) / size.vocabulary if measure.readout else 0
        row[name] = (flops + measure.flops(size.d_model)) / size.projections
    return row


def rank_correlations(replays: Mapping[str, PolicyReplay], layer: int) -> pd.DataFrame:
    """Rank correlations of rules' confidences at a layer; NaN where a rule says the same of all tokens."""
    columns = {}
    for name, replayed in replays.items():
        if layer not in replayed.decision_layers:
            raise MeeError(f'"{name}" does not decide at layer {layer}: choose another layer.')
        columns[name] = replayed.confidences[:, replayed.decision_layers.index(layer)]
    return pd.DataFrame(columns).rank().corr()


def overthinking(trace: Trace, **labels) -> dict:
    """Shares of the tokens of a trace along references, with intervals: `overthought`, right at some layer
    and wrong at the last; `right`, at the last; `right_somewhere`, what an oracle of the truth could have.
    """
    right = trace.top1_id == trace.token_id[:, None]
    shares = {"overthought": right.any(1) & ~right[:, -1], "right": right[:, -1]}
    for name, values in (shares | {"right_somewhere": right.any(1)}).items():
        labels |= mean_interval(values, trace.sequence).columns(name, f"{name}_")
    return labels


def fake_confidence(trace: Trace, sure: float = 0.9, **labels) -> pd.DataFrame:
    """Along references, by layer: the share of tokens surer than `sure`, and of these the share `wrong`."""
    wrong, rows = trace.top1_id != trace.token_id[:, None], []
    for place in range(trace.layers):
        chosen = trace.top1_probability[:, place] > sure
        found = mean_interval(wrong[chosen, place], trace.sequence[chosen]) if chosen.any() else NOTHING
        rows.append({**labels, "layer": place + 1, "sure": chosen.mean(), **found.columns("wrong")})
    return pd.DataFrame(rows)


def by_place(values: np.ndarray, trace: Trace, parts: int = 3, **labels) -> pd.DataFrame:
    """Mean of `values` `[token]` in equal parts of their outputs, in order; shorter outputs are left out."""
    length = np.bincount(trace.sequence)[trace.sequence]
    third, rows = trace.position * parts // length, []
    for number in range(parts):
        chosen = (third == number) & (length >= parts)
        found = mean_interval(values[chosen], trace.sequence[chosen]) if chosen.any() else NOTHING
        rows.append({**labels, "part": number + 1, **found.columns()})
    return pd.DataFrame(rows)


def arm_rewards(replayed: PolicyReplay, arms: Sequence[float], cost: float = 1.0) -> tuple[np.ndarray, ...]:
    """What each threshold of a bandit would have earned: rewards and places of exits, both `[token, arm]`.

    As in `BanditThreshold`: the gain in confidence since the first decision minus `cost` by share of depth.
    """
    seen, tokens = replayed.confidences, np.arange(len(replayed.trace))[:, None]
    above = seen[:, :, None] > np.asarray(arms)
    places = np.where(above.any(1), above.argmax(1), len(replayed.decision_layers))
    last = seen[tokens, np.minimum(places, seen.shape[1] - 1)]
    return last - seen[:, :1] - cost * replayed.layers[places] / replayed.trace.layers, places


def play(rewards: np.ndarray, streams: Sequence[np.ndarray], exploration: float = 1.0) -> np.ndarray:
    """The arm of each token, `[token]`, if UCB plays each stream (numbers of tokens, in order) by itself.

    Arms are tried in their order, then the one with the largest `mean + exploration sqrt(ln t / n)`.
    """
    chosen, count = np.zeros(len(rewards), dtype=np.int64), rewards.shape[1]
    for stream in streams:
        earned, times = np.zeros(count), np.zeros(count)
        for played, token in enumerate(stream):
            arm = played
            if played >= count:
                arm = int((earned / times + exploration * np.sqrt(np.log(played) / times)).argmax())
            chosen[token] = arm
            earned[arm] += rewards[token, arm]
            times[arm] += 1
    return chosen


def bandit_or_calibrated(
    replayed: PolicyReplay, losses: Losses, arms: Sequence[float], levels: list, delta: float, splits: int
) -> pd.DataFrame:
    """Who keeps the threshold: a fixed arm, a bandit (over each output, or over all in one stream), or
    learn-then-test on a random half of the outputs, at `delta`, which tries `levels` from the highest down.

    One row for each of `splits` orders or halves: `who`, `regret` (what the best fixed arm earns a token
    more), `mean_exit_layer`, `loss` of all outputs and `broken`, whether that exceeds `delta`.
    """
    rewards, places = arm_rewards(replayed, [*arms, *levels, np.inf])
    tokens, count = np.arange(len(rewards)), len(arms)
    lost = [losses(emitted(replayed, places[:, column])) for column in range(rewards.shape[1])]
    outputs, random = replayed.trace.by_output(tokens), np.random.default_rng(0)
    orders = [[np.concatenate([outputs[i] for i in random.permutation(len(outputs))])] for _ in range(splits)]
    halves = violations(np.stack(lost[count:-1]), levels, delta, splits=splits).threshold
    found = [(f"always {arm:g}", np.full(len(rewards), number)) for number, arm in enumerate(arms)]
    found += [("bandit, each output", play(rewards[:, :count], outputs))]
    found += [("bandit, one stream", play(rewards[:, :count], order)) for order in orders]
    passed = [levels.index(level) if level in levels else len(levels) for level in halves]  # or nobody exits
    found += [("calibrated", np.full(len(rewards), count + column)) for column in passed]
    best, rows = rewards[:, :count].mean(axis=0).max(), []
    for who, column in found:
        place, sequence = places[tokens, column], replayed.trace.sequence
        lost, short = losses(emitted(replayed, place)), best - rewards[tokens, column]
        row = {"who": who, **mean_interval(short, sequence).columns("regret", "regret_")}
        row |= mean_interval(lost, np.arange(len(lost))).columns("loss", "loss_")
        rows.append(row | {"mean_exit_layer": replayed.layers[place].mean(), "broken": lost.mean() > delta})
    return pd.DataFrame(rows)
