"""Settings of verified exits, ranked by what they would cost: nothing is decoded.

A policy is replayed on full-depth states at many layers, thresholds and draft lengths. The rounds of drafts
follow exactly (`rounds`), and with them every pass through a layer, every decision and every verification,
each of which has its cost (`step_costs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from ..exits.copies import Copies
from ..exits.policy import MAX_DRAFT, BoundPolicy, ExitPolicy
from ..models.loading import Model
from .cache import on_host
from .full_depth import FullDepthStates, Replay, bind_to_model, replay_states, replay_tokens
from .layerwise import decoder_of
from .rounds import Copied, Rounds, first_exits, rounds_of
from .step_costs import REPEATS, StepCosts

THRESHOLDS = 24  # that are compared if the policy gives none
LENGTHS = tuple(range(1, MAX_DRAFT + 1))  # of drafts, likewise
FEW_THRESHOLDS = 12  # where a user waits
FEW_LENGTHS = (1, 2, 4, MAX_DRAFT)
FEW_CHOICES_OF_LAYERS = 4  # of a policy that are compared with all its copies
LAYER_STEP = 3  # layers from one decision to the next in policies that do not decide at every layer


class Tokens(Protocol):
    """What planning needs of full-depth outputs: `FullDepthStates` has it, and so has a trace."""

    sequence: np.ndarray  # [token], the index of its input
    position: np.ndarray  # [token], from 0
    final_id: np.ndarray  # [token]


class Setting(NamedTuple):
    """A policy with its layers, its threshold and a draft length."""

    policy: ExitPolicy
    expected: float  # how many times as fast as full depth it would be by its costs


def rank_settings(
    model: Model,
    states: FullDepthStates,
    policies: Sequence[ExitPolicy],
    max_new_tokens: int,
    costs_of: Callable[[BoundPolicy], StepCosts],
    batch_size: int = 1,
) -> tuple[list[Setting], int]:
    """The best setting of each policy at each choice of layers, and how many settings were compared.

    The most promising comes first.

    Args:
        model: whose states these are.
        states: of some full-depth outputs.
        policies: that verify; a policy's copies are part of it.
        max_new_tokens: the longest output.
        costs_of: of the steps of a policy, for a batch.
        batch_size: how many outputs are decoded together.
    """
    tried_with: dict[ExitPolicy, list[Copies | None]] = {}  # a policy without copies -> each that it has
    for policy in policies:
        tried_with.setdefault(replace(policy, copies=None), []).append(policy.copies)
    copied = {
        copies: copied_along(copies, states, max_new_tokens)
        for copies in {policy.copies for policy in policies} - {None}
    }
    few = {"batch_size": batch_size, "thresholds": FEW_THRESHOLDS, "lengths": FEW_LENGTHS}
    best_settings = []
    compared = 0
    for policy, variants in tried_with.items():
        replays = list(_replays_at_layers(model, states, policy))
        if not replays:
            continue
        costs = costs_of(replays[0].bound)  # the same whichever the layers and copies
        for copies in variants:
            ranked = []
            for replay in replays:
                bound = bind_to_model(model, replace(replay.bound.policy, copies=copies))
                if not copies and not bound.decision_layers:
                    continue  # nothing drafts
                drafting = replay._replace(bound=bound)
                best, number = best_setting(
                    drafting, states, max_new_tokens, costs, copied.get(copies), **few
                )
                ranked.append((best, replay))
                compared += number
            ranked.sort(key=lambda each: -each[0].expected)
            best_settings += [best for best, _ in ranked]
            # layers that are good without copies, or with some, are good with others
            replays = [replay for _, replay in ranked[:FEW_CHOICES_OF_LAYERS]] or replays
    best_settings.sort(key=lambda setting: -setting.expected)
    return best_settings, compared


def _replays_at_layers(model: Model, states: FullDepthStates, policy: ExitPolicy) -> Iterator[Replay]:
    """The replay of a policy at every choice of layers."""
    candidates = [bind_to_model(model, candidate) for candidate in _at_layers(policy, model.layers)]
    candidates = [bound for bound in candidates if bound.decision_layers]
    if policy.min_layer == model.layers:  # no exits: all drafts are copies, if there are any
        nothing = np.zeros((len(states.sequence), 0))
        yield Replay(bind_to_model(model, policy), nothing, nothing, nothing)
    if not candidates:
        return
    # what a policy sees at a layer is the same whichever other layers decide, but for these
    depends_on_exits = policy.measure.uses_exit_history or not policy.plain
    first, *_ = candidates  # all others decide at some of its layers
    at_all_layers = replay_states(model, states, first.policy)
    for bound in candidates:
        if depends_on_exits and bound is not first:
            yield replay_states(model, states, bound.policy)
        else:
            columns = np.searchsorted(first.decision_layers, bound.decision_layers)
            yield Replay(bound, *(array[:, columns] for array in at_all_layers[1:]))


def _at_layers(policy: ExitPolicy, layers: int) -> list[ExitPolicy]:
    """The policy from each layer on: deciding at all layers, at every third, or at this one alone."""
    if policy.exit_layers is not None:
        return [policy]
    needed_before = max(policy.measure.lookback, policy.contrast is not None)
    first = max(policy.min_layer or policy.measure.min_layer or 1, needed_before + 1)
    candidates = [replace(policy, min_layer=layer) for layer in range(first, layers)]
    if policy.measure.has_threshold:
        # a vocabulary is pruned between two decisions: one alone is that of the policy without pruning
        for step in (LAYER_STEP,) if policy.pruning else (LAYER_STEP, layers):
            for layer in range(first, layers - 1):
                chosen = tuple(range(layer, layers, step))
                candidates.append(replace(policy, min_layer=None, exit_layers=chosen))
    return candidates


def best_setting(
    replay: Replay,
    states: Tokens,
    max_new_tokens: int,
    costs: StepCosts,
    copied: Copied | None = None,
    batch_size: int = 1,
    thresholds: int = THRESHOLDS,
    lengths: Sequence[int] = LENGTHS,
) -> tuple[Setting, int]:
    """The threshold and draft length of a policy, at its layers, that cost least.

    Args:
        replay: of the policy.
        states: the tokens that were replayed.
        max_new_tokens: the `N` of thresholds that decay.
        costs: of its steps.
        copied: what the policy copies, if it does.
        batch_size: how many outputs are decoded together.
        thresholds: how many are compared, if the policy gives none.
        lengths: of drafts that are compared, likewise.

    Returns:
        That setting, and how many were compared.
    """
    policy = replay.bound.policy
    confidences = replay.confidences[np.isfinite(replay.confidences)].clip(*policy.measure.range)
    policies = [policy]
    if policy.measure.has_threshold and policy.threshold is None and confidences.size:
        shares = np.linspace(0, 1, thresholds)
        levels = np.unique(np.quantile(confidences, shares, method="inverted_cdf")).tolist()
        policies = [policy.at_threshold(level) for level in levels]
    lengths = np.array(lengths if policy.max_draft == "auto" else [policy.max_draft])
    exits = []  # [setting][token], the index of the decision; the number of decisions: it exits at none
    for candidate in policies:
        bound = candidate.bind(replay.bound.layers, replay.bound.vocabulary)
        exits.append(first_exits(bound, replay.confidences, states.sequence, states.position, max_new_tokens))
    exits = np.array(exits).repeat(len(lengths), axis=0)  # [setting, token]
    rounds = rounds_of(
        exits,
        same_token=replay.token_ids == states.final_id[:, None],
        decision_layers=replay.bound.decision_layers,
        sequence=states.sequence,
        max_draft=np.tile(lengths, len(policies)),
        copied=copied,
    )
    cost = cost_by_token(replay, exits, rounds, costs)
    full_depth = np.full((1, cost.shape[1]), costs.full_depth)
    full_depth, cost = (_of_batches(each, states.sequence, batch_size) for each in (full_depth, cost))
    expected = full_depth / cost
    best = int(expected.argmax())
    chosen = policies[best // len(lengths)]
    max_draft = int(lengths[best % len(lengths)])
    return Setting(replace(chosen, max_draft=max_draft), float(expected[best])), len(expected)


def _of_batches(cost: np.ndarray, sequence: np.ndarray, batch_size: int) -> np.ndarray:
    """`[setting]`, of all batches, from `[setting, token]`: a batch takes as long as its longest row.

    >>> _of_batches(np.array([[1, 1, 1, 5, 2]]), np.array([0, 0, 0, 1, 2]), batch_size=2)
    array([7])
    """
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    of_outputs = np.add.reduceat(cost, starts, axis=1)
    return np.maximum.reduceat(of_outputs, range(0, len(starts), batch_size), axis=1).sum(axis=1)


def copied_along(copies: Copies, states: FullDepthStates, max_new_tokens: int) -> Copied:
    """What rounds would copy along full-depth outputs."""
    starts = np.flatnonzero(states.position == 0)
    outputs = [ids.tolist() for ids in np.split(states.final_id, starts[1:])]
    sources = [ids[ids >= 0].tolist() for ids in on_host(states.source_ids)[states.source_rows[starts]]]
    return Copied.along(copies, sources, outputs, max_new_tokens)


def cost_by_token(replay: Replay, exits: np.ndarray, rounds: Rounds, costs: StepCosts) -> np.ndarray:
    """`[setting, token]`, what the round costs that begins at each token, 0 where none begins.

    A round drafts its tokens one after the other, and then the last layer verifies them all. A pass reads the
    weights of its layer once, however many tokens take part, so that a further token costs little
    (`StepCosts.wider`).

    The example of three tokens in `mee_utils.decoding.rounds`: four layers, and a policy that decides at
    layers 1 and 2. With 10 for a pass through a layer, 1 for a decision and 2 for the readout of the last
    layer:

    | round | token | drafting | verifying |
    |---|---|---|---|
    | 0, 1 | 0 | 10 + 1, layer 1 | |
    | | 1 | 20 + 2, layers 1 and 2 | 20 + 2: both wait at layer 2, since token 1 took token 0 along |
    | 2 | 2 | 20 + 2, not confident | 20 + 2 |

    The cost is 55 at token 0, 0 at token 1 and 44 at token 2.

    Args:
        replay: what each decision reads.
        exits: `[setting, token]`, as `rounds_of` takes them.
        rounds: what `rounds_of` made of them.
        costs: of the policy's steps.
    """
    bound = replay.bound
    tokens = np.arange(len(replay.confidences))
    each = replay.readout_rows / bound.vocabulary * costs.readout + costs.decision  # [token, decision]
    until = np.pad(np.cumsum(each, axis=1), ((0, 0), (1, 0)))  # [token, decision + 1], of all before
    # [token, exit], of all decisions up to it; the last is of a token that exits at none
    deciding = np.hstack([until[:, 1:], until[:, -1:]])
    if not bound.measure.readout:
        deciding[:, :-1] += costs.readout  # the draft's token then needs logits too
    # [setting, token], of each token alone
    drafting = rounds.depth * costs.layer + deciding[tokens, exits]
    if bound.decision_layers:
        drafting = drafting + costs.draft
    # a token takes along what waits before it, so that none of the round waits below its last token
    waits_at = np.take_along_axis(rounds.depth, rounds.run_to - 1, axis=1)  # [setting, token]
    cost = _sums_to(rounds.run_to, drafting)
    if rounds.copies is not None:  # a copy costs nothing to make, and waits below the first layer
        waits_at = np.where(rounds.copies, 0, waits_at)
        cost = np.where(rounds.copies, 0.0, cost)
    a_layer = costs.layer + (rounds.run_to - tokens - 1) * costs.wider
    verifying = (bound.layers - waits_at) * a_layer + costs.readout + costs.round
    return (cost + verifying) * rounds.begins


def _sums_to(ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`[setting, token]`, the sum of `values` from each token on, to before `ends`; all `[setting, token]`.

    >>> _sums_to(np.array([[2, 3, 3]]), np.array([[11, 22, 22]]))
    array([[33, 44, 22]])
    """
    before = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))  # [setting, token + 1], of earlier tokens
    return np.take_along_axis(before, ends, axis=1) - before[:, :-1]


def decision_seconds(
    model: Model, states: FullDepthStates, bound: BoundPolicy, rows: int, readout: float
) -> float:
    """Seconds of a decision about one token of so many rows beside its logits, which take `readout`."""
    replays = []
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        replays.append(replay_tokens(decoder_of(model.network), states, bound, slice(rows)))
        seconds.append(time.perf_counter() - started)
    logits = 1.0  # a replay computes those of a draft where the decision needs none
    if bound.measure.readout:
        logits = replays[0].readout_rows.mean() / bound.vocabulary
    return float(np.median(seconds[1:])) / len(bound.decision_layers) - logits * readout
