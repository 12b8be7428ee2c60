"""Drafts foretold: what verified exits (`propagation="verify"`) would do, from a full-depth trace alone.

Drafts are made from right prefixes or thrown away, so that a trace of the model's own output shows every
draft that is judged: rounds, acceptance and exit layers are exactly those of decoding. Only how far drafts go
on behind a wrong one is an estimate: the policy is taken to be as sure there as of the output's tokens.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..common.errors import check_whole
from ..exits.policy import ExitPolicy
from ..models.loading import Model
from .replay import PolicyReplay, replay_policy
from .trace import Trace


@dataclass(frozen=True)
class DraftReplay:
    """What verified exits do, exactly; see `Generation.drafts`."""

    rounds: np.ndarray = field(repr=False)  # `[output]`
    judged: np.ndarray = field(repr=False)  # `[output]`
    kept: np.ndarray = field(repr=False)  # `[output]`
    exit_layers: np.ndarray = field(repr=False)  # `[token]`

    @property
    def acceptance(self) -> float:
        """Which share of the judged drafts is kept; NaN if there are none."""
        judged = int(self.judged.sum())
        return int(self.kept.sum()) / judged if judged else float("nan")


def replay_drafts(
    trace: Trace, policy: ExitPolicy, max_draft=None, max_new_tokens: int = 64, model: Model | None = None
) -> DraftReplay:
    """What decoding with `propagation="verify"` does, from a trace of the model's own output (`replay`)."""
    replayed = replay_policy(trace, policy, model)
    trace.check_own(len(trace.source_tokens))
    return drafts_of(replayed, replayed.bound.max_draft if max_draft is None else max_draft, max_new_tokens)


def drafts_of(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> DraftReplay:
    """The drafts of a policy that has been replayed."""
    max_draft, trace = check_whole("max_draft", max_draft), replayed.trace
    place = replayed.exits(max_new_tokens)
    found, starts = rounds_of(replayed, place[None], np.array([max_draft])), [0]
    settled_to = found.settled_to[0].tolist()
    while (token := settled_to[starts[-1]]) < len(trace):
        starts.append(token)
    count = lambda which: np.bincount(trace.sequence[which], minlength=len(trace.source_tokens))
    judged, kept = count(place < len(replayed.decision_layers)), count(found.right[0])
    layers = np.where(found.right[0], replayed.layers[place], trace.layers)
    return DraftReplay(count(starts), judged, kept, layers)


class Rounds(NamedTuple):
    """For each token as the first of a round, `[setting, token]`: how far it runs and settles."""

    depth: np.ndarray  # the layer at which each token waits
    right: np.ndarray  # whether it is drafted, and what the last layer says
    run_to: np.ndarray  # the first token that is not run any more
    settled_to: np.ndarray  # the first of the next round


def rounds_of(replayed: PolicyReplay, place: np.ndarray, max_draft: np.ndarray) -> Rounds:
    """Rounds of several settings, from the places `[setting, token]` in `replayed.layers` of their exits."""
    trace, decisions = replayed.trace, replayed.decision_layers
    tokens, unsure = np.arange(len(trace)), place == len(decisions)
    right = ~unsure & (replayed.token_ids[tokens, place] == trace.final_id)
    lengths = np.bincount(trace.sequence, minlength=len(trace.source_tokens))
    run_to = np.minimum(tokens + max_draft[:, None], np.repeat(lengths.cumsum(), lengths))
    run_to = np.minimum(run_to, _next(unsure) + 1)
    depth = np.array([*decisions, max(decisions, default=0)])[place]
    return Rounds(depth, right, run_to, np.minimum(run_to, _next(~right) + 1))


def _next(which: np.ndarray) -> np.ndarray:
    """`[setting, token]`, the first from each token on for which `which` is true; their number if none is."""
    found = np.where(which, np.arange(which.shape[1]), which.shape[1])
    return np.minimum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
