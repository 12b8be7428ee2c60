"""What contrasting a layer with an earlier one does ("Not all FLOPs"), read off stored states of traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..decoding.exit_state import ExitState
from ..exits.contrast import ALPHA, Distribution, check_alpha, farthest, weighted_contrast
from ..models.loading import Model
from ..traces.replay import PolicyReplay, StoredStates, chunks
from ..traces.trace import Trace
from .statistics import NOTHING, mean_interval

if TYPE_CHECKING:
    from torch import Tensor


def _states(trace: Trace, model: Model) -> Iterator[tuple[slice, list[ExitState]]]:
    """Some tokens at a time, at every layer; a layer's logits are computed when they are asked for."""
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
    """What each contrast does to one token of the trace at one `layer`, the expert, for its `top` ids.

    `kind` (weighted, jsd), `layer`, `amateur_layer`, `token` (by `decode`), the probabilities `expert`,
    `amateur`, `contrast`, and `plausible`, whether the id is in the plausible set.
    """
    if not 2 <= layer <= trace.layers:
        raise MeeError(f"layer={layer}: a contrast needs an earlier layer; give 2 to {trace.layers}.")
    logits = [s.full_logits for s in StoredStates(trace, model).exit_states(slice(token, token + 1))]
    amateurs = {"weighted": max(1, layer // 2)}
    amateurs["jsd"] = int(_jsd_amateur([Distribution.from_logits(each) for each in logits], layer)[0])
    late, rows = logits[layer - 1][0].softmax(-1), []
    for kind, amateur in amateurs.items():
        result = weighted_contrast(logits[layer - 1], logits[amateur - 1], alpha)[0].exp()
        values = {"expert": late, "amateur": logits[amateur - 1][0].softmax(-1), "contrast": result}
        for index in (late + result).argsort(descending=True, stable=True)[:top].tolist():
            row = {**labels, "kind": kind, "layer": layer, "amateur_layer": amateur, "token": decode(index)}
            row |= {name: float(probabilities[index]) for name, probabilities in values.items()}
            rows.append({**row, "plausible": bool(late[index] >= alpha * late.max())})
    return pd.DataFrame(rows)


def telling_token(trace: Trace, layer: int, model: Model, alpha: float = ALPHA) -> int:
    """The token with the surest expert whose top-1 the weighted contrast changes; else the least sure one."""
    best, sure = None, -1.0
    for tokens, states in _states(trace, model):
        expert, amateur = _pair(states, layer)
        changed = weighted_contrast(expert, amateur, alpha).argmax(-1) != expert.argmax(-1)
        confidence = expert.softmax(-1).amax(-1).where(changed, -1.0)
        if confidence.max() > sure:
            best, sure = tokens.start + int(confidence.argmax()), float(confidence.max())
    return int(trace.margin[:, layer - 1].argmin()) if best is None else best


def plausible_sets(trace: Trace, model: Model, alpha: float = ALPHA, **labels) -> pd.DataFrame:
    """How many ids are plausible at each layer, and what that does to the weighted contrast's confidence.

    `single` is the share of tokens with one plausible id, `wrong_single` of those the share whose id is not
    the prediction of full depth; mean confidences (margins): `plain`, `contrast` (ours), `without_mass` (as
    in the public code, the softmax over the plausible set not scaled to the expert's mass: one id gets 1).
    """
    check_alpha(alpha)
    found: dict[int, list] = {layer: [] for layer in range(2, trace.layers + 1)}
    for _, states in _states(trace, model):
        for layer, parts in found.items():
            parts.append(_margins(*_pair(states, layer), alpha))
    rows = []
    for layer, parts in found.items():
        single, plain, contrast, bare = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        wrong = (trace.top1_id[:, layer - 1] != trace.final_id)[single]
        row = {"layer": layer, "single": single.mean(), "plain": plain.mean(), "contrast": contrast.mean()}
        row |= {"without_mass": bare.mean(), "wrong_single": wrong.mean() if len(wrong) else np.nan}
        rows.append({**labels, **row})
    return pd.DataFrame(rows)


def _margins(expert: Tensor, amateur: Tensor, alpha: float) -> tuple[np.ndarray, ...]:
    """Whether each token has one plausible id, and its margin: plain, contrasted, contrasted without mass."""
    late = expert.log_softmax(-1)
    plausible = late >= late.amax(-1, keepdim=True) + log(alpha)
    ratio = (late - amateur.log_softmax(-1)).masked_fill(~plausible, -np.inf)
    distributions = (late.exp(), weighted_contrast(expert, amateur, alpha).exp(), ratio.softmax(-1))
    margins = [-each.topk(2, dim=-1).values.diff(dim=-1)[:, 0] for each in distributions]
    return (plausible.sum(-1) == 1).cpu().numpy(), *(margin.cpu().numpy() for margin in margins)


def without_mass(plain: PolicyReplay, model: Model, alpha: float = ALPHA) -> PolicyReplay:
    """The replay of a plain margin with the contrasted margin of the public code in its place."""
    parts = []
    for _, states in _states(plain.trace, model):
        at = [_margins(*_pair(states, layer), alpha)[3] for layer in plain.decision_layers]
        parts.append(np.stack(at, axis=1))
    return replace(plain, confidences=np.concatenate(parts))


def chosen_amateurs(trace: Trace, model: Model, **labels) -> pd.DataFrame:
    """Which earlier layer is the amateur under JSD: `layer`, `amateur_layer`, `share` of tokens."""
    layers = trace.layers
    counts = np.zeros((layers + 1, layers + 1))
    for _, states in _states(trace, model):
        distributions = [Distribution.from_logits(state.full_logits) for state in states]
        for layer in range(2, layers + 1):
            counts[layer] += np.bincount(_jsd_amateur(distributions, layer), minlength=layers + 1)
    expert, amateur = np.tril_indices(layers + 1, -1)
    pairs = {"layer": expert, "amateur_layer": amateur, "share": (counts / len(trace))[expert, amateur]}
    return pd.DataFrame({**labels, **pairs}).query("amateur_layer > 0").reset_index(drop=True)


def pareto_verdict(decoded: dict, plain: tuple[str, ...], tested: tuple[str, ...]) -> pd.DataFrame:
    """Is a `tested` rule a Pareto improvement over the `plain` ones and full depth?

    `decoded` is as `comparison` returns it; scores are means over examples. One row a tested setting, with
    the best score among plain settings that cost no more (`cheapest`: there is none), the `gain` over it, and
    its paired interval (Bonferroni's, 95 % over all settings): it `improves` above 0, and is `worse` below.
    """
    settings = {labels: found for labels, found in decoded.items() if labels and labels[0] in tested}
    rivals = [found for labels, found in decoded.items() if labels is None or labels[0] in plain]
    rows, how = [], dict(level=1 - 0.05 / max(1, len(settings)), resamples=10_000)
    for (rule, threshold, *_), found in settings.items():
        as_cheap = [rival.examples for rival in rivals if rival.flops <= found.flops]
        best = max(as_cheap, key=np.mean, default=np.full(1, np.nan))
        gain = found.examples - best
        _, low, high, _ = mean_interval(gain, np.arange(len(gain)), **how) if as_cheap else NOTHING
        row = {"rule": rule, "threshold": threshold, "flops_share": found.flops / decoded[None].flops}
        row |= {"score": found.examples.mean(), "cheapest": not as_cheap, "best_plain": best.mean()}
        row |= {"gain": gain.mean(), "low": low, "high": high}
        rows.append({**row, "improves": bool(low > 0), "worse": bool(high < 0)})
    return pd.DataFrame(rows)
