"""What contrasting a layer with an earlier one does ("Not all FLOPs"), and whether it pays.

All but `pareto_verdict`, which compares decoded outputs, read the stored states of traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..decoding.token import ExitState
from ..exits.contrast import ALPHA, Distribution, farthest, plausible_ids, weighted_contrast
from ..models.loading import Model
from ..traces.replay import PolicyReplay, StoredStates, chunks
from ..traces.trace import Trace
from .statistics import NOTHING, mean_interval, percentiles

if TYPE_CHECKING:
    from torch import Tensor


def _states(trace: Trace, model: Model) -> Iterator[tuple[slice, list[ExitState]]]:
    """Some tokens at a time, at every layer; a layer's logits are computed when they are first used."""
    stored = StoredStates(trace, model)
    for tokens in chunks(trace):
        yield tokens, stored.exit_states(tokens)


def _pair(states: list[ExitState], layer: int) -> tuple[Tensor, Tensor]:
    """Logits of the expert and of its amateur under the weighted contrast."""
    return states[layer - 1].full_logits, states[max(1, layer // 2) - 1].full_logits


def telling_token(trace: Trace, layer: int, model: Model, alpha: float = ALPHA) -> int:
    """A token that shows what the weighted contrast does: its index in the trace.

    Of those whose top-1 the contrast changes at `layer`, the one with the most confident expert; if there is
    none, the token with the smallest margin.
    """
    best = None
    highest = -1.0
    for tokens, states in _states(trace, model):
        expert, amateur = _pair(states, layer)
        changed = weighted_contrast(expert, amateur, alpha).argmax(-1) != expert.argmax(-1)
        confidence = expert.softmax(-1).amax(-1).where(changed, -1.0)
        if confidence.max() > highest:
            best = tokens.start + int(confidence.argmax())
            highest = float(confidence.max())
    return int(trace.margin[:, layer - 1].argmin()) if best is None else best


def without_mass(plain: PolicyReplay, model: Model, alpha: float = ALPHA) -> PolicyReplay:
    """The replay of a plain margin with the contrasted margin of the public code in its place."""
    parts = []  # [token, decision] each
    for _, states in _states(plain.trace, model):
        margins = []
        for layer in plain.decision_layers:
            expert, amateur = _pair(states, layer)
            late = expert.log_softmax(-1)
            ratio = (late - amateur.log_softmax(-1)).masked_fill(~plausible_ids(late, alpha), -np.inf)
            # all of the probability goes to the plausible set
            first, second = ratio.softmax(-1).topk(2, dim=-1).values.unbind(-1)
            margins.append((first - second).cpu().numpy())
        parts.append(np.stack(margins, axis=1))
    return replace(plain, confidences=np.concatenate(parts))


def chosen_amateurs(trace: Trace, model: Model, **labels) -> pd.DataFrame:
    """Which earlier layer is the amateur under JSD: `layer`, `amateur_layer`, `share` of tokens."""
    layers = trace.layers
    counts = np.zeros((layers + 1, layers + 1))  # [expert, amateur]
    for _, states in _states(trace, model):
        distributions = [Distribution.from_logits(state.full_logits) for state in states]
        for layer in range(2, layers + 1):
            amateurs = farthest(distributions[layer - 1], distributions[: layer - 1]).cpu().numpy() + 1
            counts[layer] += np.bincount(amateurs, minlength=layers + 1)
    expert, amateur = np.tril_indices(layers + 1, -1)
    shares = (counts / len(trace))[expert, amateur]
    table = pd.DataFrame({**labels, "layer": expert, "amateur_layer": amateur, "share": shares})
    return table.query("amateur_layer > 0").reset_index(drop=True)


def pareto_verdict(decoded: dict, plain: tuple[str, ...], tested: tuple[str, ...]) -> pd.DataFrame:
    """Is a `tested` rule a Pareto improvement over the `plain` ones and full depth?

    `decoded` is as `comparison` returns it; scores are means over examples. One row a tested setting, with
    the best score among plain settings that cost no more (`cheapest`: there is none), the `gain` over it, and
    its paired interval (Bonferroni's, 95 % over all settings): it `improves` above 0, and is `worse` below.
    """
    settings = {labels: result for labels, result in decoded.items() if labels and labels[0] in tested}
    rivals = [result for labels, result in decoded.items() if labels is None or labels[0] in plain]
    level = 1 - 0.05 / max(1, len(settings))
    rows = []
    for (rule, threshold, *_), result in settings.items():
        as_cheap = [rival.examples for rival in rivals if rival.flops <= result.flops]
        best = max(as_cheap, key=np.mean, default=np.full(1, np.nan))
        gain = result.examples - best
        gained = mean_interval(gain, np.arange(len(gain)), resamples=10_000) if as_cheap else NOTHING
        low, high = percentiles(gained.draws, level)
        rows.append(
            {
                "rule": rule,
                "threshold": threshold,
                "flops_share": result.flops / decoded[None].flops,
                "score": result.examples.mean(),
                "cheapest": not as_cheap,
                "best_plain": best.mean(),
                "gain": gain.mean(),
                "low": low,
                "high": high,
                "improves": bool(low > 0),
                "worse": bool(high < 0),
            }
        )
    return pd.DataFrame(rows)
