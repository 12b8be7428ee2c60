"""The explorer of a trace: exits replayed, for models that are not decoded with exits here.

Each token is what its exit predicts behind the output of full depth; decoding would go on from there. Exits
that are verified are those of decoding (`mee_utils.traces.drafts`).
"""

from __future__ import annotations

import numpy as np

from ..exits.policy import ExitPolicy
from ..traces.drafts import drafts_of
from ..traces.replay import PolicyReplay, replay_policy, values_at_exits
from ..traces.trace import Trace
from .explorer_runs import REPLAYED, VERIFIED, fate
from .monotonicity import token_text
from .replayed_flops import full_depth_flops, replayed_flops, verified_flops


class Replays:
    """A policy on a trace at any threshold, as the explorer shows it."""

    def __init__(self, traced: Trace, tokenizer, policy: ExitPolicy, max_draft: int):
        self.traced = traced
        self.tokenizer = tokenizer
        self.token_text = token_text(tokenizer)
        self.max_draft = max_draft
        self.replayed = replay_policy(traced, policy)
        self.full_flops = full_depth_flops(traced)  # [output]

    @property
    def confidences(self) -> list[float]:
        """Every confidence at full depth."""
        return self.replayed.confidences.ravel().tolist()

    def described(self, threshold: float) -> dict[str, list[dict]]:
        """Way to exit -> of each sentence what its run shows; see `Explorer`."""
        replayed = self.replayed.at_threshold(threshold)
        drafts = drafts_of(replayed, self.max_draft)
        flops_taken = replayed_flops(replayed) / self.full_flops  # [output], full depth being 1
        flops_verified = verified_flops(replayed, self.max_draft) / self.full_flops
        settled_layers = self.traced.by_output(drafts.exit_layers)
        runs: dict[str, list[dict]] = {REPLAYED: [], VERIFIED: []}
        for number in range(len(self.traced.source_tokens)):
            part = replayed.part(number, number + 1)
            exits = self._exits(part)
            full_ids = part.trace.final_id.tolist()
            taken_ids = values_at_exits(part.token_ids, part.exits()).tolist()
            taken = {
                **exits,
                "drafts": None,
                "mean_exit_layer": round(float(np.mean(exits["layer"])), 2),
                **self._output(taken_ids, full_ids),
                "flops": round(float(flops_taken[number]), 4),
            }
            verified = {
                **exits,
                "drafts": [int(drafts.verified[number]), int(drafts.accepted[number])],
                "mean_exit_layer": round(float(settled_layers[number].mean()), 2),
                **self._output(full_ids, full_ids),
                "flops": round(float(flops_verified[number]), 4),
            }
            runs[REPLAYED].append(taken)
            runs[VERIFIED].append(verified)
        return runs

    def _exits(self, part: PolicyReplay) -> dict:
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
            "said": [[self.token_text(int(token_id)) for token_id in row] for row in part.trace.top1_id],
            "confidence": confidence.tolist(),
        }

    def _output(self, ids: list[int], full_ids: list[int]) -> dict:
        """The output, and whether it is that of full depth."""
        return {
            "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            "full": self.tokenizer.decode(full_ids, skip_special_tokens=True),
            "same": ids == full_ids,
            "token": [self.token_text(token_id) for token_id in ids],
        }
