"""Replay: exit policies run on a trace, thousands of thresholds in seconds.

`replay_policy` computes what a policy reads at each of its decisions if nobody exits; a threshold then says
where each token would have left. What replay cannot see: a token that exits early leaves other keys and
values behind ("copy"), or is another token, and both change what follows.
`mee_utils.analysis.comparison.agreement` measures how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError, check_whole, shown
from ..decoding.exit_state import ExitState, LayerState, Step
from ..decoding.generation import bind_policy
from ..decoding.layerwise import decoder_of
from ..decoding.rounds import exceeded_decisions
from ..decoding.token import on_host
from ..exits.policy import BoundPolicy, ExitPolicy
from ..exits.readout import Readout
from ..models.loading import Model
from .trace import Trace

CHUNK = 512  # tokens whose logits are in memory at a time
TRACED = ("top1_probability", "top1_id", "margin", "entropy", "similarity")


@dataclass(frozen=True)
class PolicyReplay:
    """What a policy reads if nobody exits; `decision` counts the layers at which it decides."""

    trace: Trace = field(repr=False)
    bound: BoundPolicy
    confidences: np.ndarray = field(repr=False)  # `[token, decision]`
    token_ids: np.ndarray = field(repr=False)  # `[token, decision + 1]`, predicted there and at layer L
    readout_rows: np.ndarray = field(repr=False)  # `[token, decision + 1]`, of `W`, for an exit there
    kept: np.ndarray = field(repr=False)  # `[token, layer]`, is the full-depth prediction read out there?

    @property
    def decision_layers(self) -> tuple[int, ...]:
        """The layers before the last at which the policy decides."""
        return self.bound.decision_layers

    @property
    def layers(self) -> np.ndarray:
        """`[decision + 1]`, the layers at which tokens can leave; the last of them is L."""
        return np.array([*self.decision_layers, self.trace.layers])

    @property
    def same_token(self) -> np.ndarray:
        """`[token, decision + 1]`, whether the prediction is that of full depth (all ids read out)."""
        return self.token_ids == self.trace.final_id[:, None]

    def at_threshold(self, threshold: float) -> PolicyReplay:
        """The same policy at another threshold; nothing is computed anew."""
        return replace(self, bound=_bind(self.trace, self.bound.policy.at_threshold(threshold)))

    def part(self, first: int, last: int) -> PolicyReplay:
        """The replay of the outputs `first` to `last - 1` alone; nothing is computed anew."""
        tokens = slice(*np.searchsorted(self.trace.sequence, [first, last]))
        arrays = {name: each[tokens] for name, each in vars(self).items() if isinstance(each, np.ndarray)}
        return replace(self, trace=self.trace.part(first, last), **arrays)

    def exceeded(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token, decision]`: does the confidence exceed the threshold? The length counts if that decays."""
        check_whole("max_new_tokens", max_new_tokens)
        trace = self.trace
        return exceeded_decisions(
            self.bound, self.confidences, trace.sequence, trace.position, max_new_tokens
        )

    def exits(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token]`, at which place of `layers` each token leaves."""
        always = np.ones((len(self.trace), 1), dtype=bool)
        return np.concatenate([self.exceeded(max_new_tokens), always], axis=1).argmax(axis=1)

    def exit_layers(self, max_new_tokens: int = 64) -> np.ndarray:
        """`[token]`, 1 to L."""
        return self.layers[self.exits(max_new_tokens)]


def replay(trace: Trace, policy: ExitPolicy, max_new_tokens=64, model: Model | None = None) -> np.ndarray:
    """The layer at which each token of a trace would exit, `[token]`, 1 to L.

    `max_new_tokens` is the `N` of decaying thresholds, as in `generate`; the `model` of the trace is needed
    if the policy looks at states (trained, pruned and contrasted rules). `MeeError` for an adaptive
    threshold, or a measure that looks at what a trace does not keep.
    """
    return replay_policy(trace, policy, model).exit_layers(max_new_tokens)


def replay_policy(trace: Trace, policy: ExitPolicy, model: Model | None = None) -> PolicyReplay:
    """Reads a trace as a policy would, at every layer at which it decides; see `replay`."""
    if not isinstance(trace, Trace):
        raise MeeError(f"trace={shown(trace)}: give a Trace, from trace(...) or load_trace(...).")
    if check_policy(policy).schedule.learns:
        raise MeeError("A threshold that learns while decoding cannot be replayed: use generate.")
    bound = _bind(trace, policy)
    if model is not None:
        trace.check_model(model)
        bound.measure.check_model(model)
    read = _look_up if bound.readout.plain else _read_out
    with torch.inference_mode():
        parts = [read(trace, tokens, bound, model) for tokens in chunks(trace)]
    return PolicyReplay(trace, bound, *map(np.concatenate, zip(*parts, strict=True)))


def check_policy(policy: object) -> ExitPolicy:
    """The policy, or an error if it is none."""
    if not isinstance(policy, ExitPolicy):
        example = 'ExitPolicy("softmax_margin")'
        raise MeeError(f"policy={shown(policy)}: give an ExitPolicy, such as {example}.")
    return policy


def _bind(trace: Trace, policy: ExitPolicy) -> BoundPolicy:
    return policy.bind(trace.layers, trace.sizes.vocabulary, trace.min_exit_layer)


def chunks(trace: Trace, size: int = CHUNK) -> Iterator[slice]:
    """The tokens of a trace, some at a time."""
    for start in range(0, len(trace), size):
        yield slice(start, min(start + size, len(trace)))


class StoredStates:
    """The states of a trace (from `trace(..., states=file)`) beside the model that was traced.

    `tokens` is a slice of the tokens, or their numbers. `MeeError` if model and states do not fit.
    """

    def __init__(self, trace: Trace, model: Model | None):
        if model is None:
            raise MeeError("This rule looks at states: give the model of the trace too, model=...")
        if trace.states is None:
            raise MeeError("This trace was made without states: make it with trace(..., states=file).")
        trace.check_model(model)
        found, wanted = trace.states.shape, (len(trace), model.layers, model.network.config.d_model)
        if found != wanted:
            raise MeeError(f"States are {found}, trace and model need {wanted}: trace again.")
        dtype = model.network.lm_head.weight.dtype
        self.trace, self.model, self.dtype = trace, model, dtype
        self.working_dtype = torch.promote_types(dtype, torch.float32)  # what classifiers compute in

    def raw(self, tokens) -> Tensor:
        """`h^1 .. h^L` of some tokens, `[token, layer, d_model]`, in the precision of the model."""
        return torch.from_numpy(np.array(self.trace.states[tokens])).to(self.model.device, self.dtype)

    @torch.no_grad()
    def normalized(self, tokens) -> Tensor:
        """`n(h)` as `transformers` computes it, `[token, layer, d_model]`, in single precision at least."""
        return self.model.network.get_decoder().final_layer_norm(self.raw(tokens)).to(self.working_dtype)

    @torch.inference_mode()
    def exit_states(self, tokens, readout: Readout | None = None) -> list[ExitState]:
        """Some tokens at every layer, as decoding would see them if nobody exits; nothing is computed yet.

        The `readout` prunes or contrasts; by default all ids are read out.
        """
        decoder, raw, states = decoder_of(self.model.network), self.raw(tokens), []
        readout, sequence = readout or bind_policy(None, decoder).readout, self.trace.sequence[tokens]
        position, rows = self.trace.position[tokens], np.arange(len(sequence))
        fed = np.where(position == 0, decoder.start, self.trace.token_before[tokens])
        fed = torch.from_numpy(fed).to(raw.device)
        step = Step(decoder, readout, sequence, position, fed)
        for layer in range(1, self.trace.layers + 1):
            after, before = raw[:, layer - 1], raw[:, max(0, layer - 2)]
            states.append(ExitState(step, layer, after, before, rows, states[-1] if states else None))
        # before layer 1 stands the embedding, which is not stored; its similarity is
        states[0].similarity = torch.from_numpy(self.trace.similarity[tokens, 0]).to(raw.device)
        return states


@dataclass(eq=False)
class TraceState(LayerState):
    """What measures look at (see `mee_utils.exits.measures`): tokens of a trace at one layer, as arrays.

    The states of all layers share `read_out`, the layers whose probabilities were looked at, and
    `exit_states`, which makes the same of stored states.
    """

    trace: Trace
    tokens: slice
    layer: int
    previous: TraceState | None
    read_out: set[int]
    exit_states: Callable[[], list[ExitState]]
    decisions: tuple[int, ...]
    rows = ()  # all tokens are at all layers

    def __getattr__(self, name: str) -> np.ndarray:
        if name in ("sequence", "position", "token_before"):
            return getattr(self.trace, name)[self.tokens]
        if name not in TRACED:
            missing = f'A trace does not keep "{name}", which this measure looks at'
            raise MeeError(f"{missing}: decode with it (drafts: give max_draft).")
        if name != "similarity":
            self.read_out.add(self.layer)
        return getattr(self.trace, name)[self.tokens, self.layer - 1]

    @property
    def layers(self) -> int:
        """Depth L."""
        return self.trace.layers

    @property
    def state(self) -> Tensor:
        """`n(h)`, `[token, d_model]`."""
        return self.exit_states()[self.layer - 1].state

    @property
    def settled(self) -> np.ndarray:
        """1 where the prediction is the final one from this layer on."""
        same = self.trace.top1_id[self.tokens, self.layer - 1 :] == self.trace.final_id[self.tokens, None]
        return same.all(axis=1).astype(np.float64)


def _look_up(trace: Trace, tokens: slice, bound: BoundPolicy, model: Model | None) -> tuple[np.ndarray, ...]:
    """Confidences, ids, rows of `W` and kept ids of some tokens whose readouts are over all ids."""
    decisions, measure, states, read_out = bound.decision_layers, bound.measure, [None], set()
    exit_states = cache(lambda: StoredStates(trace, model).exit_states(tokens))
    for layer in range(1, trace.layers + 1):
        states.append(TraceState(trace, tokens, layer, states[-1], read_out, exit_states, decisions))
    ids = trace.top1_id[tokens][:, np.array([*decisions, trace.layers]) - 1]
    confidences, readouts = np.empty((len(ids), len(decisions))), []
    for place, layer in enumerate(decisions):
        confidences[:, place] = on_host(measure.confidence(states[layer]))
        # the token is the top-1 of a readout that the measure has seen, or takes one of its own
        readouts.append(len(read_out) + (not (measure.readout and layer in read_out)))
    readouts.append(len(read_out) + 1)
    rows = np.broadcast_to(np.array(readouts) * trace.sizes.vocabulary, ids.shape)
    return confidences, ids, rows, np.ones((len(ids), trace.layers), dtype=bool)


def _read_out(trace: Trace, tokens: slice, bound: BoundPolicy, model: Model | None) -> tuple[np.ndarray, ...]:
    """The same of some tokens whose readouts are pruned or contrasted."""
    states = StoredStates(trace, model).exit_states(tokens, bound.readout)
    confidences, ids, rows = [], [], []
    for layer in (*bound.decision_layers, trace.layers):
        state = states[layer - 1]
        if layer != trace.layers:
            state.confidence = on_host(bound.measure.confidence(state))
            confidences.append(state.confidence)
        ids.append(on_host(state.top1_id))
        rows.append(state.step.readout_rows.copy())
    final = torch.from_numpy(trace.final_id[tokens].astype(np.int64)).to(model.device)
    kept = np.ones((len(final), trace.layers), dtype=bool)
    for state in states:
        if (read := vars(state).get("readout_logits")) is not None and read.ids is not None:
            found = (read.ids == final[:, None]) & torch.isfinite(read.logits)
            kept[:, state.layer - 1] = on_host(found.any(-1))
    return np.stack(confidences, 1), np.stack(ids, 1), np.stack(rows, 1), kept
