"""The explorer of a trace: exits replayed, for models that are not decoded with exits here.

Each token is what its exit predicts behind the output of full depth; decoding would go on from there. Exits
that are verified are those of decoding (`mee_utils.traces.drafts`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..exits.policy import ExitPolicy
from ..traces.drafts import drafts_of
from ..traces.replay import PolicyReplay, replay_policy, values_at_exits
from ..traces.trace import Trace
from .explorer_runs import REPLAYED, VERIFIED, fate, merged_runs, threshold_levels
from .monotonicity import token_text
from .replayed_flops import full_depth_flops, replayed_flops, verified_flops


def replayed_runs(
    traced: Trace, tokenizer, policy: ExitPolicy, labels: list[dict], levels: int, max_draft: int
) -> list[dict]:
    """The runs of one policy on a trace at all levels of the slider; `labels` as in `merged_runs`."""
    text = token_text(tokenizer)
    full_flops = full_depth_flops(traced)  # [output]
    at_full_depth = replay_policy(traced, policy)

    def output(ids: list[int], full_ids: list[int]) -> dict:
        return {
            "text": tokenizer.decode(ids, skip_special_tokens=True),
            "full": tokenizer.decode(full_ids, skip_special_tokens=True),
            "same": ids == full_ids,
            "token": [text(token_id) for token_id in ids],
        }

    def described(threshold: float) -> dict[str, list[dict]]:
        replayed = at_full_depth.at_threshold(threshold)
        drafts = drafts_of(replayed, max_draft)
        flops_taken = replayed_flops(replayed) / full_flops  # [output], full depth being 1
        flops_verified = verified_flops(replayed, max_draft) / full_flops
        settled_layers = traced.by_output(drafts.exit_layers)
        runs: dict[str, list[dict]] = {REPLAYED: [], VERIFIED: []}
        for number in range(len(labels)):
            part = replayed.part(number, number + 1)
            exits = _exits(part, text)
            full_ids = part.trace.final_id.tolist()
            taken_ids = values_at_exits(part.token_ids, part.exits()).tolist()
            taken = {
                **exits,
                "drafts": None,
                "mean_exit_layer": round(float(np.mean(exits["layer"])), 2),
                **output(taken_ids, full_ids),
                "flops": round(float(flops_taken[number]), 4),
            }
            verified = {
                **exits,
                "drafts": [int(drafts.verified[number]), int(drafts.accepted[number])],
                "mean_exit_layer": round(float(settled_layers[number].mean()), 2),
                **output(full_ids, full_ids),
                "flops": round(float(flops_verified[number]), 4),
            }
            runs[REPLAYED].append(taken)
            runs[VERIFIED].append(verified)
        return runs

    confidences = at_full_depth.confidences.ravel().tolist()
    return merged_runs(labels, threshold_levels(policy, confidences, levels), described)


def _exits(part: PolicyReplay, text: Callable[[int], str]) -> dict:
    """Where the tokens of one output exit, and what each layer predicts, with which confidence."""
    depth = part.trace.layers
    exits = part.exits()
    layers = part.layers[exits].tolist()
    same = values_at_exits(part.same_token, exits).tolist()
    confidence = np.full((len(exits), depth), None)
    for decision, layer in enumerate(part.decision_layers):
        reached = exits >= decision  # tokens that have not exited before
        confidence[reached, layer - 1] = part.confidences[reached, decision].round(4)
    return {
        "layers": depth,
        "layer": layers,
        "fate": [fate(layer, depth, agrees) for layer, agrees in zip(layers, same, strict=True)],
        "said": [[text(int(token_id)) for token_id in row] for row in part.trace.top1_id],
        "confidence": confidence.tolist(),
    }
