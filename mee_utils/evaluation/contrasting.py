"""What contrasting a block with an earlier one does to predictions and to confidence ("Not all FLOPs", contrastive decoding).

All functions read the stored states of a trace. `labels` are constant columns put in front.
"""

from __future__ import annotations

from math import log

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.contrast import ALPHA, check_alpha, divergence, weighted_contrast
from ..exits.policy import ExitPolicy
from .readings import CHUNK


def contrast_options(top_k: int, alpha: float = ALPHA) -> dict[str, dict]:
    """Options of `ExitPolicy` of every rule of notebook 04, all of them margins: plain and contrasted, over all ids and over the best `top_k`."""
    pruned = dict(pruning="fixed", top_k=top_k)
    found = {"unpruned": {}, "fixed": pruned}
    for suffix, more in (("", {}), ("_fixed", pruned), ("_token", {**pruned, "contrast_token": True})):
        found |= {kind + suffix: dict(contrast=kind, contrast_alpha=alpha, **more) for kind in ("weighted", "jsd")}
    return found


def block_scores(trace, tokens, model):
    """Logits of some tokens at every block, `[layer, token, vocabulary]`, a tensor in single precision at least."""
    import torch

    from ..decoding.layerwise import decoder_of
    from ..exits.training import check_trace

    check_trace(trace, model)
    decoder = decoder_of(model.network)
    raw = torch.from_numpy(np.array(trace.states[tokens])).to(decoder.head_rows.device, decoder.head_rows.dtype)
    with torch.inference_mode():
        found = torch.stack([decoder.read_out(decoder.normalize(raw[:, layer])) for layer in range(trace.layers)])
    return found if found.dtype == torch.float64 else found.float()


def farthest_amateur(scores, layer: int):
    """For each token the earlier block that differs most from `layer` (Jensen-Shannon), counted from 1: `[token]`."""
    return _farthest(scores.softmax(-1), layer)


def _farthest(probabilities, layer: int):
    return divergence(probabilities[layer - 1][None], probabilities[: layer - 1]).argmax(dim=0) + 1


def one_token(trace, token: int, layer: int, model, decode, top: int = 8, alpha: float = ALPHA, **labels) -> pd.DataFrame:
    """What each contrast does to one token at one block.

    Args:
        trace: with states.
        token: row of the trace.
        layer: the expert.
        model: of the trace.
        decode: id -> text.
        top: how many ids, the expert's best and the contrasts' best.
        alpha: of the contrast.
        labels: constant columns.

    Returns:
        `kind` (weighted, jsd), `amateur_layer`, `token`, `expert`, `amateur`, `contrast` (probabilities), `in_head`.
    """
    if not 2 <= layer <= trace.layers:
        raise CompanionError(f"layer={layer}: a contrast needs an earlier block; give 2 to {trace.layers}.")
    scores, rows = block_scores(trace, slice(token, token + 1), model)[:, 0], []
    amateurs = {"weighted": max(1, layer // 2), "jsd": int(farthest_amateur(scores[:, None], layer)[0])}
    for kind, amateur in amateurs.items():
        late, early = scores[layer - 1].softmax(-1), scores[amateur - 1].softmax(-1)
        result = weighted_contrast(scores[layer - 1], scores[amateur - 1], alpha).exp()
        for index in (late + result).argsort(descending=True, stable=True)[:top].tolist():
            rows.append(
                {**labels, "kind": kind, "layer": layer, "amateur_layer": amateur, "token": decode(index), "expert": float(late[index]),
                 "amateur": float(early[index]), "contrast": float(result[index]), "in_head": bool(late[index] >= alpha * late.max())}
            )  # fmt: skip
    return pd.DataFrame(rows)


def telling_token(trace, layer: int, model, alpha: float = ALPHA) -> int:
    """A token to look at: of those whose top-1 the weighted contrast changes at a block, the one with the surest expert; else the least sure one."""
    best, sure = None, -1.0
    for start in range(0, len(trace), CHUNK):
        scores = block_scores(trace, slice(start, start + CHUNK), model)
        result = weighted_contrast(scores[layer - 1], scores[max(1, layer // 2) - 1], alpha)
        changed = (result.argmax(-1) != scores[layer - 1].argmax(-1)).cpu().numpy()
        confidence = scores[layer - 1].softmax(-1).amax(-1).cpu().numpy()
        if changed.any() and confidence[changed].max() > sure:
            best, sure = start + int(np.flatnonzero(changed)[confidence[changed].argmax()]), float(confidence[changed].max())
    return int(trace.margin[:, layer - 1].argmin()) if best is None else best


def heads(trace, model, alpha: float = ALPHA, **labels) -> pd.DataFrame:
    """How many ids are left in the head at each block, and what that does to the confidence of the weighted contrast.

    Returns:
        `layer`; `single`, the share of tokens whose head has one member; mean confidences (margins): `plain`, `contrast` (ours), and
        `without_mass` (the head's softmax not scaled to the expert's mass there, as in the public code: one member gives 1); and
        `wrong_single`, of the single-member heads the share whose member is not the last block's prediction.
    """
    check_alpha(alpha)
    rows = []
    parts = [block_scores(trace, slice(start, start + CHUNK), model) for start in range(0, len(trace), CHUNK)]
    for layer in range(2, trace.layers + 1):
        found = [_head(scores[layer - 1], scores[layer // 2 - 1], alpha) for scores in parts]
        single, plain, ours, bare = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        wrong = trace.top1_id[:, layer - 1] != trace.final_id
        rows.append(
            {**labels, "layer": layer, "single": single.mean(), "plain": plain.mean(), "contrast": ours.mean(), "without_mass": bare.mean(),
             "wrong_single": wrong[single].mean() if single.any() else float("nan")}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _head(expert, amateur, alpha: float) -> tuple[np.ndarray, ...]:
    """Of every token whether its head has one member, and the margin plain, contrasted, and contrasted without the mass."""
    import torch

    late = torch.log_softmax(expert, -1)
    head = late >= late.amax(-1, keepdim=True) + log(alpha)
    ratio = (late - torch.log_softmax(amateur, -1)).masked_fill(~head, -torch.inf)
    distributions = (late.exp(), weighted_contrast(expert, amateur, alpha).exp(), torch.softmax(ratio, -1))
    margins = [(-top.diff(dim=-1)[:, 0]).cpu().numpy() for top in (d.topk(2, dim=-1).values for d in distributions)]
    return (head.sum(-1) == 1).cpu().numpy(), *margins


def without_mass(trace, policy: ExitPolicy, model, alpha: float = ALPHA) -> np.ndarray:
    """The margin of the weighted contrast as the public code takes it, `[token, decision]`; for comparison only."""
    decisions, parts = policy.decision_layers(trace.layers), []
    for start in range(0, len(trace), CHUNK):
        scores = block_scores(trace, slice(start, start + CHUNK), model)
        parts.append(np.stack([_head(scores[layer - 1], scores[max(1, layer // 2) - 1], alpha)[3] for layer in decisions], axis=1))
    return np.concatenate(parts)


def chosen_amateurs(trace, model, **labels) -> pd.DataFrame:
    """Which earlier block is the amateur under JSD: `layer`, `amateur_layer`, `share` of tokens."""
    layers, counts = trace.layers, np.zeros((trace.layers + 1, trace.layers + 1))
    for start in range(0, len(trace), CHUNK):
        probabilities = block_scores(trace, slice(start, start + CHUNK), model).softmax(-1)
        for layer in range(2, layers + 1):
            counts[layer] += np.bincount(_farthest(probabilities, layer).cpu().numpy(), minlength=layers + 1)
    return pd.DataFrame(
        [
            {**labels, "layer": layer, "amateur_layer": amateur, "share": counts[layer, amateur] / len(trace)}
            for layer in range(2, layers + 1) for amateur in range(1, layer)
        ]
    )  # fmt: skip


def pareto_verdict(decoded: dict, plain: tuple[str, ...], tested: tuple[str, ...]) -> pd.DataFrame:
    """Is a rule a Pareto improvement: at its cost, is its score above every plain setting (no exit is one) that costs no more?

    The intervals are Bonferroni's over the settings that are asked about, 95 % together; scores are means over examples.

    Args:
        decoded: (rule, ...) -> `Decoded` of one task, and None -> all blocks.
        plain: rules to beat.
        tested: rules that are asked about.

    Returns:
        One row a setting of the tested rules: `rule`, `threshold`, `flops_share`, `score`, `best_plain` (mean score of the best plain setting that
        costs no more; not a number if none does), `gain` with its paired interval `low`, `high` (points), `improves` (the interval lies above 0),
        `worse` (below 0), and `cheapest` (no plain setting costs as little, so that there is none to compare with).
    """
    full, rows = decoded[None].flops, []
    asked = {labels: found for labels, found in decoded.items() if labels and labels[0] in tested}
    tail = 2.5 / max(1, len(asked))
    for labels, found in asked.items():
        cheaper = [other for key, other in decoded.items() if (key is None or key[0] in plain) and other.flops <= found.flops]
        row = {"rule": labels[0], "threshold": labels[1], "flops_share": found.flops / full, "score": found.examples.mean(), "cheapest": not cheaper}
        if cheaper:
            best = max(cheaper, key=lambda other: other.examples.mean())
            gain = found.examples - best.examples
            weights = np.random.default_rng(0).multinomial(len(gain), np.full(len(gain), 1 / len(gain)), 10_000) / len(gain)
            low, high = np.percentile(weights @ gain, [tail, 100 - tail])
            row |= {"best_plain": best.examples.mean(), "gain": gain.mean(), "low": low, "high": high, "improves": bool(low > 0), "worse": bool(high < 0)}
        else:
            row |= {"best_plain": np.nan, "gain": np.nan, "low": np.nan, "high": np.nan, "improves": False, "worse": False}
        rows.append(row)
    return pd.DataFrame(rows)
