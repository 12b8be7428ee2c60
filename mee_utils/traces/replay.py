"""Replay: exit policies run on a trace, thousands of thresholds in seconds.

`replay_policy` computes the confidence at each decision of a policy as if no token exited; a threshold then
says where each token would have exited. What replay cannot see: a token that exits early leaves other keys
and values behind ("copy"), or is another token, and both change what follows.
`mee_utils.analysis.comparison.agreement` measures how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError, check_whole, shown
from ..decoding.cache import on_host
from ..decoding.generation import bind_policy
from ..decoding.layerwise import decoder_of
from ..decoding.rounds import exceeded_decisions, first_exceeded
from ..decoding.token import ExitState, LayerState, Step, confidence_of, states_by_layer
from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.families import final_norm_of
from ..models.loading import Model
from .trace import Trace

CHUNK = 512  # tokens whose logits are in memory at a time
FROM_TRACE = ("top1_probability", "top1_id", "margin", "entropy", "similarity")


@dataclass(frozen=True)
class PolicyReplay:
    """The confidences of a policy if no token exits; `decision` counts the layers at which it decides."""

    trace: Trace = field(repr=False)
    bound: BoundPolicy
    confidences: np.ndarray = field(repr=False)  # `[token, decision]`
    token_ids: np.ndarray = field(repr=False)  # `[token, decision + 1]`, predicted there and at layer L
    readout_rows: np.ndarray = field(repr=False)  # `[token, decision + 1]`, of the LM head, for an exit there
    kept: np.ndarray = field(repr=False)  # `[token, layer]`, is the full-depth prediction scored there?

    @property
    def decision_layers(self) -> tuple[int, ...]:
        """The layers before the last at which the policy decides."""
        return self.bound.decision_layers

    @property
    def layers(self) -> np.ndarray:
        """`[decision + 1]`, the layers at which tokens can exit; the last of them is L."""
        return np.array([*self.decision_layers, self.trace.layers])

    @property
    def same_token(self) -> np.ndarray:
        """`[token, decision + 1]`, whether the prediction is that of full depth (all ids scored)."""
        return self.token_ids == self.trace.final_id[:, None]

    def at_threshold(self, threshold: float) -> PolicyReplay:
        """The same policy at another threshold; nothing is computed anew."""
        return replace(self, bound=bind_to_trace(self.trace, self.bound.policy.at_threshold(threshold)))

    def part(self, first: int, last: int) -> PolicyReplay:
        """The replay of a part of the outputs, see `Trace.part`; nothing is computed anew."""
        part = self.trace.part(first, last)
        start = int(np.searchsorted(self.trace.sequence, first))
        tokens = slice(start, start + len(part))
        arrays = {name: each[tokens] for name, each in vars(self).items() if isinstance(each, np.ndarray)}
        return replace(self, trace=part, **arrays)

    def exceeded(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token, decision]`: does the confidence exceed the threshold? The length counts if that decays."""
        check_whole("max_new_tokens", max_new_tokens)
        trace = self.trace
        return exceeded_decisions(
            self.bound, self.confidences, trace.sequence, trace.position, max_new_tokens
        )

    def exits(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token]`, the index in `layers` of the layer at which each token exits."""
        return first_exceeded(self.exceeded(max_new_tokens))

    def exit_layers(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token]`, 1 to L."""
        return self.layers[self.exits(max_new_tokens)]


def values_at_exits(values: np.ndarray, exits: np.ndarray) -> np.ndarray:
    """`[token]`: of `values` `[token, decision + 1]` those at each token's exit (`PolicyReplay.exits`).

    >>> values_at_exits(np.array([[7, 7, 9], [5, 8, 8]]), exits=np.array([2, 0])).tolist()
    [9, 5]
    """
    return values[np.arange(len(exits)), exits]


def replay(trace: Trace, policy: ExitPolicy, max_new_tokens=64, model: Model | None = None) -> np.ndarray:
    """The layer at which each token of a trace would exit, `[token]`, 1 to L.

    `max_new_tokens` is the `N` of decaying thresholds, as in `generate`. Trained, pruned and contrasted
    rules, and measures that look at `state`, `logits` or `probabilities`, need the `model` and a trace with
    states, `trace(..., states=file)`. `MeeError` without them, and for an adaptive threshold.
    """
    return replay_policy(trace, policy, model).exit_layers(max_new_tokens)


def replay_policy(trace: Trace, policy: ExitPolicy, model: Model | None = None) -> PolicyReplay:
    """The confidences of a policy on a trace, at every layer at which it decides; see `replay`."""
    return replay_policies(trace, {None: policy}, model)[None]


def replay_policies(trace: Trace, policies: Mapping, model: Model | None = None) -> dict:
    """`replay_policy` of several policies, key -> policy: faster, since they share the logits of a layer."""
    bounds = {key: _checked_and_bound(trace, policy, model) for key, policy in policies.items()}
    parts: dict = {key: [] for key in bounds}
    stored = lru_cache(partial(StoredStates, trace, model))  # made when a policy looks at states
    with torch.inference_mode():
        for tokens in chunks(trace):
            logits: dict[int, Tensor] = {}  # of these tokens, by layer
            for key, bound in bounds.items():
                replay_tokens = _look_up if bound.readout is None else _read_out
                parts[key].append(replay_tokens(TracedTokens(trace, tokens, bound, stored, logits)))
    replayed = {}
    for key, bound in bounds.items():
        joined = [np.concatenate(arrays) for arrays in zip(*parts[key], strict=True)]
        replayed[key] = PolicyReplay(trace, bound, *joined)
    return replayed


def _checked_and_bound(trace: Trace, policy: ExitPolicy, model: Model | None) -> BoundPolicy:
    """The policy bound to the decoder that was traced; an error if it cannot be replayed."""
    if not isinstance(trace, Trace):
        raise MeeError(f"trace={shown(trace)}: give a Trace, from trace(...) or load_trace(...).")
    if check_policy(policy).schedule.learns:
        raise MeeError("A threshold that learns while decoding cannot be replayed: use generate.")
    bound = bind_to_trace(trace, policy)
    if model is not None:
        trace.check_model(model)
        bound.measure.check_model(model)
    return bound


def check_policy(policy: object) -> ExitPolicy:
    """The policy, or an error if it is none."""
    if not isinstance(policy, ExitPolicy):
        example = 'ExitPolicy("softmax_margin")'
        raise MeeError(f"policy={shown(policy)}: give an ExitPolicy, such as {example}.")
    return policy


def bind_to_trace(trace: Trace, policy: ExitPolicy) -> BoundPolicy:
    """The policy bound to the decoder that was traced."""
    return policy.bind(trace.layers, trace.sizes.vocabulary, trace.min_exit_layer)


def chunks(tokens: Sized, size: int = CHUNK) -> Iterator[slice]:
    """The tokens of a trace, or of something else, some at a time."""
    for start in range(0, len(tokens), size):
        yield slice(start, min(start + size, len(tokens)))


class StoredStates:
    """The states of a trace (from `trace(..., states=file)`) beside the model that was traced.

    `tokens` is a slice of the tokens, or their numbers. `MeeError` if model and states do not fit.
    """

    def __init__(self, trace: Trace, model: Model | None):
        missing = []
        if model is None:
            missing.append("give the model of the trace too, model=...")
        if trace.states is None:
            missing.append("this trace was made without states, make it with trace(..., states=file)")
        if missing:
            raise MeeError(f"This rule looks at states: {'; '.join(missing)}.")
        trace.check_model(model)
        needed = (len(trace), model.layers, model.network.config.hidden_size)
        if trace.states.shape != needed:
            raise MeeError(f"States are {trace.states.shape}, trace and model need {needed}: trace again.")
        self.trace = trace
        self.model = model
        self.decoder = decoder_of(model.network)
        self.dtype = model.network.lm_head.weight.dtype
        self.working_dtype = torch.promote_types(self.dtype, torch.float32)  # what classifiers compute in

    def __len__(self) -> int:
        return len(self.trace)

    def raw(self, tokens) -> Tensor:
        """`h^1 .. h^L` of some tokens, `[token, layer, d_model]`, in the precision of the model."""
        return torch.from_numpy(np.array(self.trace.states[tokens])).to(self.model.device, self.dtype)

    @torch.no_grad()
    def normalized(self, tokens) -> Tensor:
        """`n(h)` as `transformers` computes it, `[token, layer, d_model]`, in single precision at least."""
        return final_norm_of(self.model.network)(self.raw(tokens)).to(self.working_dtype)

    @torch.inference_mode()
    def exit_states(
        self, tokens, bound: BoundPolicy | None = None, logits: dict[int, Tensor] | None = None
    ) -> list[ExitState]:
        """Some tokens at every layer, as decoding would see them if no token exits; nothing is computed yet.

        The policy `bound` may prune or contrast; by default all ids are scored. `logits` are those of other
        states of the same tokens, by layer: what is there is not computed again, and what is not is added.
        """
        logits = {} if logits is None else logits
        decoder = self.decoder
        raw = self.raw(tokens)  # [token, layer, d_model]
        position = self.trace.position[tokens]
        last_ids = torch.tensor([ids[-1] for ids in self.trace.source_ids])
        starts = decoder.starts(last_ids[:, None])[self.trace.sequence[tokens]]
        fed = np.where(position == 0, starts, self.trace.token_before[tokens])
        step = Step(
            decoder,
            bound or bind_policy(None, decoder),
            sequence=self.trace.sequence[tokens],
            position=position,
            fed=torch.from_numpy(fed).to(raw.device),
            source_ids=torch.from_numpy(self.trace.source_of(tokens)).to(raw.device),
            source_rows=np.arange(len(position)),
        )
        rows = np.arange(len(position))

        def state_after(layer: int, previous: ExitState | None) -> ExitState:
            after = raw[:, layer - 1]
            before = raw[:, max(0, layer - 2)]
            return StoredExitState(step, layer, after, before, rows, previous, logits_by_layer=logits)

        states = list(states_by_layer(state_after, self.trace.layers))
        # before layer 1 stands the embedding, which is not stored; its similarity is
        states[0].similarity = torch.from_numpy(self.trace.similarity[tokens, 0]).to(raw.device)
        return states


@dataclass(repr=False, eq=False)
class StoredExitState(ExitState):
    """Stored states of some tokens after a layer; several policies share what the LM head says of them."""

    logits_by_layer: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def full_logits(self) -> Tensor:
        """As in decoding, where a measure's lens may change what goes to the LM head: that is not shared."""
        if self.read_state is not self.state:
            return super().full_logits
        if self.layer not in self.logits_by_layer:
            self.logits_by_layer[self.layer] = super().full_logits
        return self.logits_by_layer[self.layer]


class ReplayedTokens(NamedTuple):
    """The arrays of `PolicyReplay`, of some tokens."""

    confidences: np.ndarray  # [token, decision]
    token_ids: np.ndarray  # [token, decision + 1]
    readout_rows: np.ndarray  # [token, decision + 1]
    kept: np.ndarray  # [token, layer]


@dataclass(eq=False)
class TracedTokens:
    """Some tokens of a trace, as a policy goes through their layers."""

    trace: Trace
    tokens: slice
    bound: BoundPolicy
    stored: Callable[[], StoredStates]  # made at the first call: not all policies look at states
    logits: dict[int, Tensor]  # by layer, of all policies that are replayed
    read_layers: set[int] = field(default_factory=set)  # whose probabilities the measure has looked at

    @cached_property
    def source(self) -> np.ndarray:
        """The input of each token, see `Trace.source_of`."""
        return self.trace.source_of(self.tokens)

    @cached_property
    def exit_states(self) -> list[ExitState]:
        """The stored states of these tokens, `[layer]`, for measures that look at states or logits."""
        return self.stored().exit_states(self.tokens, logits=self.logits)


class TraceState(LayerState):
    """Tokens of a trace at one layer, as a measure sees them (see `mee_utils.exits.measures`): arrays."""

    step_rows = ()  # no token exits: all of them are at all layers

    def __init__(self, traced: TracedTokens, layer: int, previous: TraceState | None):
        self.traced = traced
        self.layer = layer
        self.previous = previous

    def __getattr__(self, name: str) -> np.ndarray:
        trace = self.traced.trace
        tokens = self.traced.tokens
        if name in ("sequence", "position", "token_before"):
            return getattr(trace, name)[tokens]
        if name not in FROM_TRACE:
            missing = f'A replay has no "{name}", which this measure looks at'
            raise MeeError(f"{missing}: use what mee_utils/exits/measures.py lists, or generate(...).")
        if name != "similarity":
            self.traced.read_layers.add(self.layer)
        return getattr(trace, name)[tokens, self.layer - 1]

    @property
    def has_readout(self) -> bool:
        """Whether logits of this layer were asked for, or what is computed from them."""
        return self.layer in self.traced.read_layers

    @property
    def layers(self) -> int:
        """Depth L."""
        return self.traced.trace.layers

    @property
    def decision_layers(self) -> tuple[int, ...]:
        """The layers at which the policy decides."""
        return self.traced.bound.decision_layers

    @property
    def state(self) -> Tensor:
        """`n(h)`, `[token, d_model]`."""
        return self._stored.state

    @property
    def logits(self) -> Tensor:
        """Logits of all ids, `[token, vocabulary]`."""
        self.traced.read_layers.add(self.layer)
        return self._stored.logits

    @property
    def probabilities(self) -> Tensor:
        """`[token, vocabulary]`."""
        self.traced.read_layers.add(self.layer)
        return self._stored.probabilities

    @property
    def _stored(self) -> ExitState:
        """The state that `trace(..., states=file)` stored; logits are computed from it anew."""
        return self.traced.exit_states[self.layer - 1]

    @property
    def source(self) -> np.ndarray:
        """Ids of the inputs, `[token, source]`, -1 at padding."""
        return self.traced.source

    @property
    def source_tokens(self) -> np.ndarray:
        """Lengths of the inputs, `[token]`."""
        return (self.source >= 0).sum(axis=-1)

    @property
    def in_source(self) -> np.ndarray:
        """Whether the token predicted here stands in the input, `[token]`."""
        return (self.source == self.top1_id[:, None]).any(axis=-1)

    @property
    def settled(self) -> np.ndarray:
        """1 where the prediction is the final one from this layer on."""
        trace = self.traced.trace
        tokens = self.traced.tokens
        same = trace.top1_id[tokens, self.layer - 1 :] == trace.final_id[tokens, None]
        return same.all(axis=1).astype(np.float64)


def _look_up(traced: TracedTokens) -> ReplayedTokens:
    """Replays a policy that scores all ids: what a measure looks at is in the trace."""
    trace = traced.trace
    bound = traced.bound
    confidences = []  # [decision][token]
    readouts = []  # [decision + 1], for an exit there
    for state in states_by_layer(partial(TraceState, traced), trace.layers):
        if state.layer in bound.decision_layers:
            confidences.append(confidence_of(bound.measure, state))
            # the token is the top-1 of a readout that the measure has looked at, or takes one of its own
            predicted = bound.measure.readout and state.layer in traced.read_layers
            readouts.append(len(traced.read_layers) + (not predicted))
    readouts.append(len(traced.read_layers) + 1)
    layers = np.array([*bound.decision_layers, trace.layers])
    token_ids = trace.top1_id[traced.tokens][:, layers - 1]
    readout_rows = np.array(readouts) * trace.sizes.vocabulary
    return ReplayedTokens(
        confidences=np.array(confidences, dtype=np.float64).reshape(-1, len(token_ids)).T,
        token_ids=token_ids,
        readout_rows=np.broadcast_to(readout_rows, token_ids.shape),
        kept=np.ones((len(token_ids), trace.layers), dtype=bool),
    )


def _read_out(traced: TracedTokens) -> ReplayedTokens:
    """Replays a policy that prunes or contrasts, on stored states."""
    trace = traced.trace
    bound = traced.bound
    states = traced.stored().exit_states(traced.tokens, bound, traced.logits)
    confidences = []  # [decision][token]
    token_ids = []  # [decision + 1][token]
    readout_rows = []  # [decision + 1][token]
    for layer in (*bound.decision_layers, trace.layers):
        state = states[layer - 1]
        if layer != trace.layers:
            state.confidence = confidence_of(bound.measure, state)
            confidences.append(state.confidence)
        token_ids.append(on_host(state.top1_id))
        readout_rows.append(state.step.readout_rows.copy())
    final_id = trace.final_id[traced.tokens].astype(np.int64)
    kept = np.ones((len(final_id), trace.layers), dtype=bool)
    final = torch.from_numpy(final_id).to(states[0].after.device)[:, None]
    for state in states:
        computed = vars(state).get("readout_logits")  # None where this layer computed no logits
        if computed is not None and computed.ids is not None:
            scored = (computed.ids == final) & torch.isfinite(computed.logits)
            kept[:, state.layer - 1] = on_host(scored.any(-1))
    return ReplayedTokens(
        confidences=np.stack(confidences, axis=1),
        token_ids=np.stack(token_ids, axis=1),
        readout_rows=np.stack(readout_rows, axis=1),
        kept=kept,
    )
