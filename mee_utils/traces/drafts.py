"""Verified exits predicted from a full-depth trace: what `propagation="verify"` would do.

A trace of the model's own output shows every draft that is verified, so that rounds, acceptance and exit
layers are exactly those of decoding. `mee_utils.decoding.rounds` says why, and works through three tokens.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ..common.errors import check_whole
from ..decoding.full_depth import Replay
from ..decoding.ranking import cost_by_token
from ..decoding.rounds import Copied, Rounds, Run, rounds_of, run_of
from ..decoding.step_costs import StepCosts
from ..exits.policy import ExitPolicy
from ..models.loading import Model
from .replay import PolicyReplay, bind_to_trace, replay_policy
from .trace import Trace


@dataclass(frozen=True)
class DraftReplay:
    """What verified exits do, exactly; see `Generation.drafts`."""

    rounds: np.ndarray = field(repr=False)  # `[output]`, how often the last layer verified
    verified: np.ndarray = field(repr=False)  # `[output]`, drafts that it verified
    accepted: np.ndarray = field(repr=False)  # `[output]`, drafts that it accepted
    # `[token]`, of an accepted draft its layer (0: it was copied), else L
    exit_layers: np.ndarray = field(repr=False)

    @property
    def acceptance(self) -> float:
        """The share of the verified drafts that is accepted; NaN if there are none."""
        verified = int(self.verified.sum())
        return int(self.accepted.sum()) / verified if verified else float("nan")


def replay_drafts(
    trace: Trace,
    policy: ExitPolicy,
    max_draft: int | None = None,
    max_new_tokens: int = 64,
    model: Model | None = None,
) -> DraftReplay:
    """Predicts what decoding with `propagation="verify"` does.

    Args:
        trace: of the model's own output.
        policy: of any propagation.
        max_draft: the most tokens of a draft; by default the policy's, or 8 if that is "auto".
        max_new_tokens: the `N` of decaying thresholds, as in `generate`.
        model: what was traced, if the policy looks at states.

    Raises:
        MeeError: as `replay`, and for a trace along references.
    """
    replayed = replay_policy(trace, policy, model)
    trace.check_own(len(trace.source_tokens))
    return drafts_of(replayed, replayed.bound.max_draft if max_draft is None else max_draft, max_new_tokens)


def drafts_of(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> DraftReplay:
    """The drafts of a policy that has been replayed, see `replay_drafts`."""
    check_whole("max_draft", max_draft)
    trace = replayed.trace
    exits = replayed.exits(max_new_tokens)  # [token]
    rounds = rounds_of_replay(replayed, exits, max_draft, max_new_tokens)
    run = run_of(rounds)
    drafted = np.where(run.copies, run.copied, exits[run.token] < len(replayed.decision_layers))
    layers = np.where(run.right, layers_of_run(replayed, exits, run), trace.layers)
    outputs = len(trace.source_tokens)

    def of_outputs(which: np.ndarray) -> np.ndarray:
        return np.bincount(trace.sequence[run.token[run.final & which]], minlength=outputs)

    return DraftReplay(
        rounds=np.bincount(trace.sequence[rounds.begins[0]], minlength=outputs),
        verified=of_outputs(drafted),
        accepted=of_outputs(run.right),
        exit_layers=layers[run.final],
    )


def layers_of_run(replayed: PolicyReplay, exits: np.ndarray, run: Run) -> np.ndarray:
    """`[run]`, the layer at which each token is drafted: 0 if it is copied, L if it is not drafted."""
    drafted_by_exits = replayed.layers[exits[run.token]]
    return np.where(run.copies, np.where(run.copied, 0, replayed.trace.layers), drafted_by_exits)


def cost_of_drafts(
    replayed: PolicyReplay, costs: StepCosts, max_draft: int, max_new_tokens: int = 64
) -> np.ndarray:
    """`[output]`, what decoding with verified drafts costs, in the unit of the costs."""
    exits = replayed.exits(max_new_tokens)  # [token]
    rounds = rounds_of_replay(replayed, exits, max_draft, max_new_tokens)
    (cost,) = cost_by_token(as_planned(replayed), exits[None], rounds, costs)  # of one setting
    trace = replayed.trace
    return np.bincount(trace.sequence, weights=cost, minlength=len(trace.source_tokens))


def as_planned(replayed: PolicyReplay) -> Replay:
    """A replay of a trace in the form in which drafts are planned."""
    decisions = len(replayed.decision_layers)
    verified = replace(replayed.bound.policy, propagation="verify")
    # rows for each decision: those for the token of an exit are counted where it is drafted
    readout_rows = np.diff(replayed.readout_rows[:, :decisions], axis=1, prepend=0)
    return Replay(
        bound=bind_to_trace(replayed.trace, verified),
        confidences=replayed.confidences,
        token_ids=replayed.token_ids[:, :decisions],
        readout_rows=readout_rows if replayed.bound.measure.readout else np.zeros_like(readout_rows),
    )


def rounds_of_replay(
    replayed: PolicyReplay, exits: np.ndarray, max_draft: int, max_new_tokens: int = 64
) -> Rounds:
    """The rounds of drafts whose tokens exit at these indices of `layers`, `[token]`: one setting."""
    trace = replayed.trace
    copied = None
    if copies := replayed.bound.policy.copies:
        outputs = [ids.tolist() for ids in trace.by_output(trace.final_id)]
        copied = Copied.along(copies, trace.source_ids, outputs, max_new_tokens)
    return rounds_of(
        exits[None],
        same_token=replayed.same_token,
        decision_layers=replayed.decision_layers,
        sequence=trace.sequence,
        max_draft=np.array([max_draft]),
        copied=copied,
    )
