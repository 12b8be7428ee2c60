"""Drafts foretold: what verified exits (`propagation="verify"`) would do, from a full-depth trace alone.

Drafts are made from right prefixes or thrown away, so that a trace of the model's own output shows every
draft that is judged: rounds, acceptance and exit layers are exactly those of decoding. Only the work behind a
wrong draft is an estimate: the policy is taken to be as sure there as of the tokens that stand in the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..common.errors import CompanionError, check_whole
from ..exits.policy import ExitPolicy
from ..models.loading import Model
from .replay import PolicyReplay, replay_policy
from .trace import Trace


@dataclass(frozen=True)
class DraftReplay:
    """What verified exits do, all of it exactly but for the work (`passes`, `readouts`, `decisions`).

    Attributes:
        rounds, judged, kept: `[output]`, as in `Generation.drafts`.
        exit_layers: `[token]`, as in `Generation.exit_layers`.
        passes: `[tokens]`, how often a layer is run on so many tokens of a row at once; entry 0 is 0.
        readouts: `[tokens]`, the same of the last layer's readout.
        decisions: how often the measure is computed.
        layers: depth L.
    """

    rounds: np.ndarray = field(repr=False)
    judged: np.ndarray = field(repr=False)
    kept: np.ndarray = field(repr=False)
    exit_layers: np.ndarray = field(repr=False)
    passes: np.ndarray
    readouts: np.ndarray
    decisions: int
    layers: int

    @property
    def acceptance(self) -> float:
        """Which share of the judged drafts is kept; NaN if there are none."""
        judged = int(self.judged.sum())
        return int(self.kept.sum()) / judged if judged else float("nan")

    def cost(self, block: Sequence[float], readout: Sequence[float] = (), decision: float = 0.0) -> float:
        """Expected cost of decoding row by row, in the unit of the costs.

        `block` and `readout` are what a layer and the last readout cost on 1, 2, .. tokens of a row at once
        (readouts left out cost nothing), `decision` what one decision costs, with all that it reads.
        """
        total = self.decisions * decision
        for counts, costs in ((self.passes, block), (self.readouts, readout or np.zeros(len(self.readouts)))):
            needed = int(np.flatnonzero(counts)[-1]) if counts.any() else 0
            if len(costs) < needed:
                many = f"{len(costs)} costs, but up to {needed} tokens go through a layer at once"
                raise CompanionError(f"{many}: give costs of 1 to {needed}.")
            total += float(counts[1 : needed + 1] @ np.asarray(costs, dtype=np.float64)[:needed])
        return total

    def speedup(self, block: Sequence[float], readout: Sequence[float] = (), decision: float = 0.0) -> float:
        """How many times as fast as full depth decoding is expected to be; for the arguments see `cost`."""
        token = self.layers * block[0] + (readout[0] if len(readout) else 0.0)
        return len(self.exit_layers) * token / self.cost(block, readout, decision)


def replay_drafts(
    trace: Trace,
    policy: ExitPolicy,
    max_draft: int | None = None,
    max_new_tokens: int = 64,
    model: Model | None = None,
) -> DraftReplay:
    """What decoding with this policy and `propagation="verify"` does, from a trace of the model's own output.

    `max_draft` is the policy's by default; `max_new_tokens` and `model` are those of `replay`, and so are the
    errors. A trace along references is refused.
    """
    replayed = replay_policy(trace, policy, model)
    trace.check_own(len(trace.source_tokens))
    return drafts_of(replayed, replayed.bound.max_draft if max_draft is None else max_draft, max_new_tokens)


def drafts_of(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> DraftReplay:
    """The drafts of a policy that has been replayed; milliseconds, for many thresholds and draft lengths."""
    max_draft, trace, bound = check_whole("max_draft", max_draft), replayed.trace, replayed.bound
    tokens, outputs, layers = np.arange(len(trace)), len(trace.source_tokens), trace.layers
    place = replayed.exits(max_new_tokens)
    unsure = place == len(replayed.decision_layers)
    right = ~unsure & (replayed.token_ids[tokens, place] == trace.final_id)
    # for each token as the first of a round: which are run, and which of them settled
    lengths = np.bincount(trace.sequence, minlength=outputs)
    run_to = np.minimum(tokens + max_draft, np.repeat(lengths.cumsum(), lengths))
    run_to = np.minimum(run_to, _next(unsure) + 1)
    settled_to, starts = np.minimum(run_to, _next(~right) + 1).tolist(), [0]
    while (token := settled_to[starts[-1]]) < len(trace):
        starts.append(token)
    left = replayed.layers[place]
    depth = np.where(unsure, max(replayed.decision_layers, default=0), left)
    many, begin = run_to[starts] - starts, np.array(starts)[:, None]
    chosen = begin + np.arange(max_draft)
    there = chosen < run_to[starts][:, None]
    count = lambda values: np.bincount(trace.sequence, values, outputs).astype(np.int64)
    return DraftReplay(
        rounds=np.bincount(trace.sequence[starts], minlength=outputs),
        judged=count(~unsure),
        kept=count(right),
        exit_layers=np.where(right, left, layers),
        passes=_passes(np.where(there, depth[np.minimum(chosen, len(trace) - 1)], -1), layers),
        readouts=np.bincount(many, minlength=max_draft + 1),
        decisions=int(bound.decisions[left][chosen[there]].sum()),
        layers=layers,
    )


def _next(which: np.ndarray) -> np.ndarray:
    """`[token]`, the first token from each one on for which `which` is true; their number if none is."""
    found = np.where(which, np.arange(len(which)), len(which))
    return np.minimum.accumulate(found[::-1])[::-1]


def _passes(depth: np.ndarray, layers: int) -> np.ndarray:
    """How many tokens go through layers together, from how deep each goes by itself.

    `depth` is `[round, token]`, -1 where there is none. A token that reaches a layer takes along all that
    wait before it, and the last pass of a round what is left.

    >>> _passes(np.array([[1, 2, 0]]), 2).tolist()  # layer 1: 1, 1 and 1 tokens, layer 2: 2 and 1
    [0, 4, 1, 0]
    """
    counts = np.zeros(depth.shape[1] + 1, dtype=np.int64)
    for layer in range(1, layers + 1):
        waiting = np.zeros(len(depth), dtype=np.int64)
        for column in depth.T:
            waiting += column >= 0
            runs = column >= layer
            counts += np.bincount(waiting[runs], minlength=len(counts))
            waiting[runs] = 0
        counts += np.bincount(waiting[waiting > 0], minlength=len(counts))
    return counts
