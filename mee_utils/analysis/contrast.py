"""What contrasting a layer with an earlier one does ("Not all FLOPs"), and whether it pays.

All but `pareto_verdict`, which compares decoded outputs, read the stored states of traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.token import ExitState
from ..exits.contrast import ALPHA, Distribution, check_alpha, farthest, plausible_ids, weighted_contrast
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


def _jsd_amateur(distributions: list[Distribution], layer: int) -> np.ndarray:
    """`[token]`: the earlier layer that differs most from `layer` (Jensen-Shannon), counted from 1."""
    return farthest(distributions[layer - 1], distributions[: layer - 1]).cpu().numpy() + 1


def one_token(
    trace: Trace, token: int, layer: int, model: Model, decode: Callable, top: int = 8, alpha=ALPHA, **labels
) -> pd.DataFrame:
    """What each contrast does to one token of a trace.

    Args:
        trace: with states.
        token: its index in the trace.
        layer: the expert, from 2.
        model: what was traced.
        decode: id -> text.
        top: how many ids are shown: those of the largest probability, the expert's plus the contrast's.
        alpha: of the plausible set.
        labels: columns that are the same in all rows.

    Returns:
        One row a kind of contrast and id: `kind` (weighted, jsd), `layer`, `amateur_layer`, `token`, the
        probabilities `expert`, `amateur` and `contrast`, and `plausible`: is the id in the plausible set?

    Raises:
        MeeError: layer 1, or one that the model does not have; a trace without states, or of another model.
    """
    if not 2 <= layer <= trace.layers:
        raise MeeError(f"layer={layer}: a contrast needs an earlier layer; give 2 to {trace.layers}.")
    states = StoredStates(trace, model).exit_states(slice(token, token + 1))
    logits = [state.full_logits for state in states]
    distributions = [Distribution.from_logits(each) for each in logits]
    amateur_layers = {"weighted": max(1, layer // 2), "jsd": int(_jsd_amateur(distributions, layer)[0])}
    expert = distributions[layer - 1].probabilities[0]
    rows = []
    for kind, amateur_layer in amateur_layers.items():
        amateur = distributions[amateur_layer - 1].probabilities[0]
        contrast = weighted_contrast(logits[layer - 1], logits[amateur_layer - 1], alpha)[0].exp()
        ranked = (expert + contrast).argsort(descending=True, stable=True)
        rows += [
            {
                **labels,
                "kind": kind,
                "layer": layer,
                "amateur_layer": amateur_layer,
                "token": decode(token_id),
                "expert": float(expert[token_id]),
                "amateur": float(amateur[token_id]),
                "contrast": float(contrast[token_id]),
                "plausible": bool(expert[token_id] >= alpha * expert.max()),
            }
            for token_id in ranked[:top].tolist()
        ]
    return pd.DataFrame(rows)


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


class _Margins(NamedTuple):
    """What the weighted contrast does to some tokens at one layer; each `[token]`."""

    single: np.ndarray  # whether one id is plausible
    plain: np.ndarray  # the expert's margin
    contrast: np.ndarray  # the margin of the contrast
    without_mass: np.ndarray  # as in the public code: the plausible set has all of the probability


def _margins(expert: Tensor, amateur: Tensor, alpha: float) -> _Margins:
    """Margins of some tokens, from logits `[token, ids]` of the expert and its amateur."""
    late = expert.log_softmax(-1)
    return _Margins(
        single=(plausible_ids(late, alpha).sum(-1) == 1).cpu().numpy(),
        plain=_margin(late.exp()),
        contrast=_margin(weighted_contrast(expert, amateur, alpha).exp()),
        without_mass=_margin_without_mass(expert, amateur, alpha),
    )


def _margin_without_mass(expert: Tensor, amateur: Tensor, alpha: float) -> np.ndarray:
    """The margin of the public code's contrast: all of the probability goes to the plausible set."""
    late = expert.log_softmax(-1)
    ratio = (late - amateur.log_softmax(-1)).masked_fill(~plausible_ids(late, alpha), -np.inf)
    return _margin(ratio.softmax(-1))


def _margin(probabilities: Tensor) -> np.ndarray:
    """`[token, ids]` to `[token]`."""
    return -probabilities.topk(2, dim=-1).values.diff(dim=-1)[:, 0].cpu().numpy()


def plausible_sets(trace: Trace, model: Model, alpha: float = ALPHA, **labels) -> pd.DataFrame:
    """How many ids are plausible at each layer, and what that does to the weighted contrast's confidence.

    One row per layer. `single` is the share of tokens with one plausible id, `wrong_single` of those the
    share whose id is not the prediction of full depth; mean margins: `plain`, `contrast` (ours),
    `without_mass` (as in the public code, the softmax over the plausible set not scaled to
    the expert's mass: one id gets 1).
    """
    check_alpha(alpha)
    layers = range(2, trace.layers + 1)
    parts: dict[int, list[_Margins]] = {layer: [] for layer in layers}
    for _, states in _states(trace, model):
        for layer in layers:
            parts[layer].append(_margins(*_pair(states, layer), alpha))
    rows = []
    for layer in layers:
        single = np.concatenate([part.single for part in parts[layer]])
        wrong = (trace.top1_id[:, layer - 1] != trace.final_id)[single]
        row = {
            "layer": layer,
            "single": single.mean(),
            "plain": np.concatenate([part.plain for part in parts[layer]]).mean(),
            "contrast": np.concatenate([part.contrast for part in parts[layer]]).mean(),
            "without_mass": np.concatenate([part.without_mass for part in parts[layer]]).mean(),
            "wrong_single": wrong.mean() if len(wrong) else np.nan,
        }
        rows.append({**labels, **row})
    return pd.DataFrame(rows)


def without_mass(plain: PolicyReplay, model: Model, alpha: float = ALPHA) -> PolicyReplay:
    """The replay of a plain margin with the contrasted margin of the public code in its place."""
    parts = []  # [token, decision] each
    for _, states in _states(plain.trace, model):
        margins = [_margin_without_mass(*_pair(states, layer), alpha) for layer in plain.decision_layers]
        parts.append(np.stack(margins, axis=1))
    return replace(plain, confidences=np.concatenate(parts))


def chosen_amateurs(trace: Trace, model: Model, **labels) -> pd.DataFrame:
    """Which earlier layer is the amateur under JSD: `layer`, `amateur_layer`, `share` of tokens."""
    layers = trace.layers
    counts = np.zeros((layers + 1, layers + 1))  # [expert, amateur]
    for _, states in _states(trace, model):
        distributions = [Distribution.from_logits(state.full_logits) for state in states]
        for layer in range(2, layers + 1):
            counts[layer] += np.bincount(_jsd_amateur(distributions, layer), minlength=layers + 1)
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
