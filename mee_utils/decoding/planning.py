"""Planned drafts: the exit layers, threshold and draft length that make verified exits fastest, if any do.

1. A few of the inputs are decoded at full depth once, and the states after every layer are kept.
2. The policy is replayed on these states at many layers, thresholds and draft lengths. The rounds of drafts
   follow exactly (`rounds`), and with them the work: each pass through a layer, each decision and each
   verification reads its weights once, however many tokens take part.
3. The most promising settings are timed on the same inputs, in turns with full depth. The fastest is taken if
   it wins by a margin; else the inputs are decoded plainly. The output is that of full depth either way.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError, check_whole, shown
from ..exits.measures import Measure
from ..exits.policy import MAX_DRAFT, BoundPolicy, ExitPolicy
from ..models.costs import DecoderSizes
from ..models.loading import Model
from .inputs import batches_by_length, check_inputs, check_lengths, check_search_settings
from .layerwise import LayerwiseDecoder, decoder_of
from .outputs import Output
from .rounds import Rounds, first_exits, rounds_of
from .token import ExitState, Step, decode_tokens, on_host, states_by_layer
from .verify import DraftDecoder

MIN_SPEEDUP = 1.05  # drafts are used if they are so many times as fast as full depth
PLANNING_INPUTS = 16  # inputs that are replayed and timed (one batch, where that is larger)
SETTINGS_TIMED = 5  # of different policies or layers
TRIAL_ROUNDS = 3  # how often each of them is timed
THRESHOLDS_TRIED = 24  # where the policy names none
LAYER_STEP = 3  # between decisions, where not every layer decides
LOGITS_AT_ONCE = 16_000_000  # elements of `[layer, token, vocabulary]` that a replay holds at a time
DEFAULT_MEASURES = ("softmax_margin", "max_probability", "hidden_similarity", "rising_top1")
DEFAULT_TOP_K = 64  # vocabulary entries of the pruned margin


@dataclass(frozen=True)
class DraftPlan:
    """What `plan_drafts` chose."""

    policy: ExitPolicy | None  # what to give to `generate`; None: full depth
    speedup: float  # how many times as fast as full depth the fastest setting was in the trial; 1 without one
    expected: float  # the same by its work alone; of the best setting, if none was timed
    settings: int  # how many were compared


class Setting(NamedTuple):
    """A policy with its layers, its threshold and a draft length."""

    policy: ExitPolicy
    expected: float  # how many times as fast as full depth it would be if time went by work alone


def plan_drafts(
    model: Model,
    inputs: Sequence[str],
    policies: ExitPolicy | Sequence[ExitPolicy] | None = None,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
) -> DraftPlan:
    """Plans verified exits for some inputs: what `generate` does where `max_draft` is "auto".

    Args:
        policies: to choose from; by default some that need no training. What a policy names is kept: its
            threshold, `exit_layers`, an earliest layer (`min_layer`) and a `max_draft` that is a number.
        max_new_tokens, batch_size, max_source_tokens: as in `generate`.

    Raises:
        MeeError: as `generate`, and for no policies or one whose exits cannot be verified.
    """
    if not isinstance(model, Model):
        raise MeeError(f"model={shown(model)}: give what load_model returns.")
    texts = check_inputs(inputs)
    check_search_settings(model)
    check_lengths(model, texts, max_source_tokens)
    check_whole("max_new_tokens", max_new_tokens)
    batch_size = min(check_whole("batch_size", batch_size), len(texts))
    policies = _check_policies(policies)
    for policy in policies:
        _bind(model, policy).measure.check_model(model)
    chosen = _choose_inputs(texts, batch_size)
    batches = encode_batches(model, texts, chosen, batch_size)
    states = full_depth_states(model, encode_batches(model, texts, _thin_out(chosen)), max_new_tokens)
    ranked, settings = rank_settings(model, states, policies, max_new_tokens)
    tried = [setting for setting in ranked if setting.expected >= MIN_SPEEDUP][:SETTINGS_TIMED]
    if not tried:
        return DraftPlan(None, 1.0, ranked[0].expected if ranked else 1.0, settings)
    speedups = time_settings(model, batches, [setting.policy for setting in tried], max_new_tokens)
    fastest = int(np.argmax(speedups))
    policy = tried[fastest].policy if speedups[fastest] >= MIN_SPEEDUP else None
    return DraftPlan(policy, float(speedups[fastest]), tried[fastest].expected, settings)


def default_policies() -> list[ExitPolicy]:
    """Policies that need no training."""
    policies = [ExitPolicy(measure, propagation="verify") for measure in DEFAULT_MEASURES]
    return [*policies, ExitPolicy(propagation="verify", pruning="fixed", top_k=DEFAULT_TOP_K)]


def _check_policies(policies: ExitPolicy | Sequence[ExitPolicy] | None) -> list[ExitPolicy]:
    if policies is None:
        return default_policies()
    policies = [policies] if isinstance(policies, ExitPolicy) else list(policies)
    if not policies:
        raise MeeError("policies=[]: give at least one ExitPolicy.")
    for policy in policies:
        if not isinstance(policy, ExitPolicy):
            raise MeeError(f"policy={shown(policy)}: give ExitPolicy(...).")
    return [replace(policy, propagation="verify") for policy in policies]


# ---- a few inputs at full depth


class Batch(NamedTuple):
    """Some inputs that are decoded together, with the encoder's states."""

    indices: np.ndarray  # of the inputs among all
    tokens: dict[str, Tensor]
    encoded: Tensor  # [row, source, d_model]


class _Keep(Measure):
    """A measure that never exits and keeps the states that it is shown."""

    name = "keep"

    def __init__(self):
        self.states: list[ExitState] = []

    def confidence(self, state: ExitState) -> np.ndarray:
        self.states.append(state)
        return np.zeros(len(state.rows))


class FullDepthStates(NamedTuple):
    """Full-depth outputs of some inputs with the states of every token; tokens in the order of outputs."""

    sequence: np.ndarray  # [token], the index of its input
    position: np.ndarray  # [token], from 0
    fed: Tensor  # [token], the id before, at the start the decoder's start id
    final_id: np.ndarray  # [token]
    states: list[Tensor]  # the embedding, then those after layers 1 to L - 1: [token, d_model] each


def _choose_inputs(texts: list[str], batch_size: int) -> np.ndarray:
    """Indices of a few inputs: batches of neighbours in length, at equal distances among all lengths."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    every = max(1, len(texts) // max(PLANNING_INPUTS, batch_size))
    starts = range(batch_size * ((every - 1) // 2), len(texts), batch_size * every)
    return np.concatenate([order[start : start + batch_size] for start in starts])


def _thin_out(indices: np.ndarray) -> np.ndarray:
    """At most `PLANNING_INPUTS` of them, at equal distances: a replay need not see a large batch whole."""
    return indices[:: -(-len(indices) // PLANNING_INPUTS)]


def encode_batches(
    model: Model, texts: list[str], indices: np.ndarray | None = None, batch_size: int = 8
) -> list[Batch]:
    """The inputs with these indices (by default all) in batches, encoded."""
    decoder = decoder_of(model.network)
    indices = np.arange(len(texts)) if indices is None else indices
    batches = []
    for rows, tokens in batches_by_length(model, [texts[index] for index in indices], batch_size):
        with torch.inference_mode():
            encoded = decoder.encode(tokens)
        batches.append(Batch(indices[rows], tokens, encoded))
    return batches


@torch.inference_mode()
def _decode(decoder: LayerwiseDecoder, batch: Batch, bound: BoundPolicy, max_new_tokens: int) -> list[Output]:
    cache = decoder.begin(batch.tokens, max_new_tokens, encoded=batch.encoded)
    if bound.policy.propagation == "verify":
        return DraftDecoder(decoder, cache, bound, batch.indices).decode()
    return decode_tokens(decoder, cache, bound, batch.indices)


def full_depth_states(model: Model, batches: Sequence[Batch], max_new_tokens: int) -> FullDepthStates:
    """Decodes some batches at full depth and keeps the states of all tokens."""
    decoder = decoder_of(model.network)
    keep = _Keep()
    bound = _bind(model, ExitPolicy(keep, min_layer=1))
    ids = {}  # [position] of each output, by the index of its input
    for batch in batches:
        outputs = _decode(decoder, batch, bound, max_new_tokens)
        ids |= {index: out.token_ids for index, out in zip(batch.indices.tolist(), outputs, strict=True)}
    indices = sorted(ids)
    lengths = [len(ids[index]) for index in indices]
    fed = [before for index in indices for before in (decoder.start, *ids[index][:-1])]
    return FullDepthStates(
        sequence=np.repeat(indices, lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        fed=torch.tensor(fed, device=decoder.embedding.device),
        final_id=np.concatenate([ids[index] for index in indices]),
        states=_in_order(keep.states, decoder.layers),
    )


def _in_order(kept: list[ExitState], layers: int) -> list[Tensor]:
    """The embedding and the states after layers 1 to L - 1, `[token, d_model]`, in the order of outputs."""
    first_layer = [state for state in kept if state.layer == 1]
    if not first_layer:
        return []
    sequence = np.concatenate([state.sequence for state in first_layer])
    position = np.concatenate([np.broadcast_to(state.position, len(state.rows)) for state in first_layer])
    order = torch.from_numpy(np.lexsort((position, sequence))).to(first_layer[0].after.device)
    states = [torch.cat([state.before for state in first_layer])[order]]
    for layer in range(1, layers):
        states.append(torch.cat([state.after for state in kept if state.layer == layer])[order])
    return states


# ---- the replay of a policy


class Replay(NamedTuple):
    """What a policy sees at each of its decisions if no token exits, `[token, decision]`."""

    bound: BoundPolicy
    confidences: np.ndarray
    token_ids: np.ndarray  # predicted there
    readout_rows: np.ndarray  # rows of the LM head multiplied for this decision

    def at_layers(self, bound: BoundPolicy) -> "Replay":
        """The same with some of its decisions left out."""
        columns = np.searchsorted(self.bound.decision_layers, bound.decision_layers)
        return Replay(
            bound, self.confidences[:, columns], self.token_ids[:, columns], self.readout_rows[:, columns]
        )


@torch.inference_mode()
def replay_states(model: Model, states: FullDepthStates, policy: ExitPolicy) -> Replay:
    """Replays a policy, with at least one decision, on the states of all tokens."""
    decoder = decoder_of(model.network)
    bound = _bind(model, policy)
    size = max(1, LOGITS_AT_ONCE // (decoder.config.vocab_size * decoder.layers))
    parts = []
    for start in range(0, len(states.sequence), size):
        parts.append(_replay_tokens(decoder, states, bound, slice(start, start + size)))
    return Replay(
        bound,
        confidences=np.concatenate([part.confidences for part in parts]),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        readout_rows=np.concatenate([part.readout_rows for part in parts]),
    )


def _bind(model: Model, policy: ExitPolicy) -> BoundPolicy:
    return policy.bind(model.layers, model.network.config.vocab_size, model.min_exit_layer)


def _replay_tokens(
    decoder: LayerwiseDecoder, states: FullDepthStates, bound: BoundPolicy, tokens: slice
) -> Replay:
    """The replay of some tokens."""
    step = Step(decoder, bound, states.sequence[tokens], states.position[tokens], states.fed[tokens])
    rows = np.arange(len(step.sequence))
    confidences = []
    token_ids = []
    readout_rows = []  # of this decision and those before

    def state_after(layer: int, previous: ExitState | None) -> ExitState:
        after = states.states[layer][tokens]  # [token, d_model]
        before = states.states[layer - 1][tokens]
        return ExitState(step, layer, after, before, rows, previous)

    for state in states_by_layer(state_after, bound.decision_layers[-1]):
        if state.layer not in bound.decision_layers:
            continue
        state.confidence = on_host(bound.measure.confidence(state))
        confidences.append(state.confidence)
        if bound.measure.readout:
            token_ids.append(on_host(state.top1_id))
        else:
            token_ids.append(on_host(decoder.readout(state.state).argmax(dim=-1)))
        readout_rows.append(step.readout_rows.copy())
    return Replay(
        bound,
        confidences=np.stack(confidences, axis=1),
        token_ids=np.stack(token_ids, axis=1),
        readout_rows=np.diff(np.stack(readout_rows, axis=1), axis=1, prepend=0),
    )


# ---- settings, and what they are expected to gain


def rank_settings(
    model: Model,
    states: FullDepthStates,
    policies: Sequence[ExitPolicy],
    max_new_tokens: int,
    sizes: DecoderSizes | None = None,
) -> tuple[list[Setting], int]:
    """The best setting of each policy at each choice of layers, the most promising first; how many there are.

    `sizes` are those of another decoder, in which the tokens exit at the same relative depth.
    """
    sizes = sizes or DecoderSizes.of(model.network.config)
    best_settings = []
    settings = 0
    for policy in policies:
        for replay in _replays_at_layers(model, states, policy):
            best, compared = _best_setting(replay, states, max_new_tokens, sizes)
            best_settings.append(best)
            settings += compared
    best_settings.sort(key=lambda setting: -setting.expected)
    return best_settings, settings


def _replays_at_layers(model: Model, states: FullDepthStates, policy: ExitPolicy) -> Iterator[Replay]:
    """The replay of a policy at every choice of layers."""
    candidates = [_bind(model, candidate) for candidate in _at_layers(policy, model.layers)]
    candidates = [bound for bound in candidates if bound.decision_layers]
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
            yield at_all_layers.at_layers(bound)


def _at_layers(policy: ExitPolicy, layers: int) -> list[ExitPolicy]:
    """The policy from each layer on: deciding at all layers, at every third, or at this one alone."""
    if policy.exit_layers is not None:
        return [policy]
    needed_before = max(policy.measure.lookback, policy.contrast is not None)
    first = max(policy.min_layer or policy.measure.min_layer or 1, needed_before + 1)
    candidates = [replace(policy, min_layer=layer) for layer in range(first, layers)]
    if policy.measure.has_threshold:
        for step in (LAYER_STEP, layers):
            for layer in range(first, layers - 1):
                chosen = tuple(range(layer, layers, step))
                candidates.append(replace(policy, min_layer=None, exit_layers=chosen))
    return candidates


def _best_setting(
    replay: Replay, states: FullDepthStates, max_new_tokens: int, sizes: DecoderSizes
) -> tuple[Setting, int]:
    """The best threshold and draft length of a policy at its layers, and how many there are."""
    policy = replay.bound.policy
    levels = _threshold_levels(replay)
    policies = [policy] if levels is None else [policy.at_threshold(level) for level in levels]
    lengths = np.arange(1, MAX_DRAFT + 1)
    if policy.max_draft != "auto":
        lengths = np.array([policy.max_draft])
    exits = np.stack([_exits(replay, states, candidate, max_new_tokens) for candidate in policies])
    exits = exits.repeat(len(lengths), axis=0)  # [setting, token]
    rounds = rounds_of(
        exits,
        same_token=replay.token_ids == states.final_id[:, None],
        decision_layers=replay.bound.decision_layers,
        sequence=states.sequence,
        max_draft=np.tile(lengths, len(policies)),
    )
    plain_work = len(states.sequence) * (sizes.layers * sizes.projections + sizes.readout)
    expected = plain_work / _work(replay, exits, rounds, sizes)
    best = int(expected.argmax())
    chosen = policies[best // len(lengths)]
    max_draft = int(lengths[best % len(lengths)])
    return Setting(replace(chosen, max_draft=max_draft), float(expected[best])), len(expected)


def _threshold_levels(replay: Replay) -> list[float] | None:
    """The thresholds to try, quantiles of the confidences; None where the policy names one or needs none."""
    policy = replay.bound.policy
    confidences = replay.confidences[np.isfinite(replay.confidences)].clip(*policy.measure.range)
    if not policy.measure.has_threshold or policy.threshold is not None or not confidences.size:
        return None
    shares = np.linspace(0, 1, THRESHOLDS_TRIED)
    return np.unique(np.quantile(confidences, shares, method="inverted_cdf")).tolist()


def _exits(replay: Replay, states: FullDepthStates, policy: ExitPolicy, max_new_tokens: int) -> np.ndarray:
    """`[token]`, the index of the decision at which each token exits; their number: at none."""
    bound = policy.bind(replay.bound.layers, replay.bound.vocabulary)
    return first_exits(bound, replay.confidences, states.sequence, states.position, max_new_tokens)


def _work(replay: Replay, exits: np.ndarray, rounds: Rounds, sizes: DecoderSizes) -> np.ndarray:
    """`[setting]`, FLOPs of all rounds, those of a pass of several tokens counted as those of one.

    A pass reads the weights of its layer once, and this is what it takes time for.
    """
    bound = replay.bound
    layer = sizes.projections * sizes.layers / bound.layers  # of one layer here, in a decoder of these sizes
    decision = replay.readout_rows / bound.vocabulary * sizes.readout
    decision = decision + bound.measure.flops(sizes.d_model)  # [token, decision]
    until_exit = np.cumsum(decision, axis=1)
    until_exit = np.hstack([until_exit, until_exit[:, -1:]])  # no exit: all decisions were computed
    if not bound.measure.readout:
        until_exit[:, :-1] += sizes.readout  # a draft then computes logits of its own
    draft = rounds.depth * layer + until_exit[np.arange(len(until_exit)), exits]  # [setting, token]
    drafts_before = np.pad(np.cumsum(draft, axis=1), ((0, 0), (1, 0)))
    drafting = np.take_along_axis(drafts_before, rounds.run_to, axis=1) - drafts_before[:, :-1]
    # the last token of a round waits at the least depth: those before it were taken along
    waits_at = np.take_along_axis(rounds.depth, rounds.run_to - 1, axis=1)
    verifying = (bound.layers - waits_at) * layer + sizes.readout
    return ((drafting + verifying) * rounds.begins).sum(axis=1)


def time_settings(
    model: Model, batches: Sequence[Batch], policies: Sequence[ExitPolicy], max_new_tokens: int
) -> np.ndarray:
    """`[policy]`, how many times as fast as full depth each decodes: medians of rounds, all in turns."""
    full_depth = ExitPolicy("static", min_layer=model.layers)
    seconds = np.empty((TRIAL_ROUNDS, 1 + len(policies)))
    for trial in range(TRIAL_ROUNDS):
        for index, policy in enumerate([full_depth, *policies]):
            seconds[trial, index] = _seconds(model, batches, policy, max_new_tokens)
    return np.median(seconds[:, :1] / seconds[:, 1:], axis=0)


def _seconds(model: Model, batches: Sequence[Batch], policy: ExitPolicy, max_new_tokens: int) -> float:
    """Seconds that decoding the batches takes, without the encoder."""
    decoder = decoder_of(model.network)
    total = 0.0
    for batch in batches:
        bound = _bind(model, policy)
        started = time.perf_counter()
        _decode(decoder, batch, bound, max_new_tokens)
        total += time.perf_counter() - started
    return total
