"""One token of several rows, from its embedding to its exit: the heart of early exiting.

    embed -> layer 1 -> confident? -> layer 2 -> confident? -> ... -> layer L -> LM head

`TokenDecoder.decode` is that loop, for one token of each row of a batch. After a layer, an `ExitState` shows
the measure what is known of the token there, each quantity computed on first use. `decide` asks the measure
for a confidence and the policy whether it is high enough. Rows that exit keep their state, and their token is
the prediction of their layer. `decode_tokens` goes from token to token, until all outputs have ended.

`states_by_layer` makes the states of a token wherever they come from: from running the layers here and in
`verify`, or from a trace in `mee_utils.traces.replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError, shown
from ..exits.contrast import entropy
from ..exits.measures import Measure
from ..exits.policy import BoundPolicy
from ..exits.readout import ReadoutLogits
from .cache import Cache, Rows, on_device, on_host
from .layerwise import LayerwiseDecoder
from .learning import Lessons
from .outputs import Output
from .spans import run_with_waiting

DROP_FINISHED_AT = 0.5  # rows whose output has ended leave the cache once no more than this share goes on


# ---- what a measure sees of a token at a layer, and what is decided there


@dataclass(repr=False, eq=False)
class Step:
    """One decoding step: one token of each of several rows. What its states share at all layers."""

    decoder: LayerwiseDecoder
    bound: BoundPolicy
    sequence: np.ndarray  # [row], index of each row's input
    position: int | np.ndarray  # of the token in its output: one number, or [row] where rows differ
    fed: Tensor  # [row], the token before; at the start the decoder's start token
    source_ids: Tensor  # [input, source], -1 at padding
    source_rows: np.ndarray  # [row], which of these inputs each row has

    def __post_init__(self):
        # [row], rows of the LM head multiplied in order to decide; `StepTokens` adds those of the token
        self.readout_rows = np.zeros(len(self.sequence), dtype=np.int64)

    @cached_property
    def source(self) -> Tensor:
        """The input of each row, `[row, source]`, -1 at padding."""
        return self.source_ids[on_device(self.source_rows, self.source_ids)]


class LayerState:
    """A token of several rows at one layer, as a measure sees it: live (`ExitState`) or of a trace.

    Besides the attributes of the table in `mee_utils.exits.measures` it has `previous`, the state one layer
    before, `step_rows`, which rows of the `Step` these are, `decision_layers`, where the policy decides, and
    `has_readout`, whether logits of this layer were asked for.
    """

    def memo(self, key, compute: Callable):
        """`compute(self)`, a tuple of `[rows, ...]`; computed once for this layer, then kept under `key`.

        A later layer asks for it as `earlier(1).memo(key, compute)`. If rows have exited since, `RowView`
        restricts every member of the tuple to those that are left.
        """
        kept = vars(self).setdefault("_memo", {})
        if key not in kept:
            kept[key] = compute(self)
        return kept[key]

    def earlier(self, layers: int) -> LayerState:
        """The same rows, `layers` layers before. Raises `MeeError` where there are not so many."""
        state = self
        for _ in range(layers):
            state = state.previous
            if state is None:
                missing = f"earlier({layers}) at layer {self.layer}: the layers begin with 1"
                remedy = f"set lookback = {layers} in the measure's class"
                raise MeeError(f"{missing}; {remedy}, and it decides from layer {layers + 1} on.")
        if len(state.step_rows) == len(self.step_rows):
            return state
        return RowView(state, np.searchsorted(state.step_rows, self.step_rows))

    def so_far(self, name: str) -> tuple:
        """An attribute at every decision about this token so far, this one last: `[rows]` each."""
        layers = [layer for layer in self.decision_layers if layer < self.layer]
        return tuple(getattr(self.earlier(self.layer - layer), name) for layer in [*layers, self.layer])


@dataclass(repr=False, eq=False)
class ExitState(LayerState):
    """The present token of some rows at one layer, live."""

    step: Step
    layer: int  # 1 to L
    after: Tensor  # h^l, the states after the layer, [rows, d_model]
    before: Tensor  # the states before it, [rows, d_model]
    step_rows: np.ndarray  # [rows], which rows of the step these are, ascending
    previous: ExitState | None = None  # one layer before
    confidence: np.ndarray | float = float("nan")  # set once the measure has decided here
    # [rows], 1 where the prediction stays the same from here to the last layer; set for the oracle alone
    settled: np.ndarray | None = None

    @property
    def decoder(self) -> LayerwiseDecoder:
        return self.step.decoder

    @property
    def layers(self) -> int:
        """Depth L."""
        return self.step.decoder.layers

    @property
    def decision_layers(self) -> tuple[int, ...]:
        """The layers at which the policy decides."""
        return self.step.bound.decision_layers

    @property
    def has_readout(self) -> bool:
        """Whether logits of this layer were computed."""
        return "readout_logits" in vars(self)

    @property
    def position(self) -> int | np.ndarray:
        """How many tokens the rows have emitted before: a number, or `[rows]`."""
        position = self.step.position
        return position[self.step_rows] if isinstance(position, np.ndarray) else position

    @property
    def sequence(self) -> np.ndarray:
        """`[rows]`, indices of the inputs."""
        return self.step.sequence[self.step_rows]

    @property
    def token_before(self) -> Tensor:
        """`[rows]`, -1 at the start."""
        ids = self.step.fed[on_device(self.step_rows, self.step.fed)]
        return torch.where(on_device(self.position, ids) == 0, -1, ids)

    @cached_property
    def source(self) -> Tensor:
        """Ids of the inputs, `[rows, source]`, -1 at padding."""
        return self.step.source[on_device(self.step_rows, self.step.source)]

    @property
    def source_tokens(self) -> Tensor:
        """`[rows]`, lengths of the inputs."""
        return (self.source >= 0).sum(dim=-1)

    @cached_property
    def in_source(self) -> Tensor:
        """`[rows]`, whether the token predicted here stands in the input."""
        return (self.source == self.top1_id[:, None]).any(dim=-1)

    @cached_property
    def state(self) -> Tensor:
        """`n(h)`, `[rows, d_model]`."""
        return self.decoder.norm(self.after)

    @cached_property
    def read_state(self) -> Tensor:
        """What the LM head multiplies, `[rows, d_model]`: `n(h)`, or what the measure's lens makes of it.

        A lens applies before the last layer alone.
        """
        lens = self.step.bound.measure.lens
        return lens(self) if lens and self.layer < self.layers else self.state

    @cached_property
    def full_logits(self) -> Tensor:
        """Logits of the whole vocabulary, `[rows, vocabulary]`, in single precision at least."""
        logits = self.decoder.logits(self.read_state)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    @cached_property
    def readout_logits(self) -> ReadoutLogits:
        """What this layer predicts over the ids that the policy looks at; counted in `Step.readout_rows`."""
        bound = self.step.bound
        if bound.readout is not None:
            computed = bound.readout.read(self)
        else:
            computed = ReadoutLogits(self.full_logits, None, bound.vocabulary, scores=self.full_logits)
        self.step.readout_rows[self.step_rows] += computed.readout_rows
        return computed

    @property
    def logits(self) -> Tensor:
        """`[rows, ids]`, over the ids that the policy looks at."""
        return self.readout_logits.logits

    @cached_property
    def probabilities(self) -> Tensor:
        """`[rows, ids]` (on CPUs `softmax` is faster than `logsumexp`)."""
        return torch.softmax(self.readout_logits.scores, dim=-1)

    @cached_property
    def _top2(self) -> Tensor:
        """The two largest probabilities, `[rows, 2]`; 0 for the second of a single id."""
        top = torch.topk(self.probabilities, min(2, self.probabilities.shape[-1]), dim=-1).values
        return top if top.shape[-1] == 2 else torch.cat([top, torch.zeros_like(top)], dim=-1)

    @cached_property
    def top1_id(self) -> Tensor:
        """`[rows]`; ties go to the first id, as everywhere (`topk` picks another)."""
        readout = self.step.bound.readout
        return self.readout_logits.tokens(from_scores=readout is not None and readout.token_from_scores)

    @cached_property
    def top1_probability(self) -> Tensor:
        """`p(1)`, `[rows]`."""
        return self._top2[:, 0]

    @cached_property
    def margin(self) -> Tensor:
        """`p(1) - p(2)`, `[rows]`."""
        return self._top2[:, 0] - self._top2[:, 1]

    @cached_property
    def entropy(self) -> Tensor:
        """In nats, `[rows]`."""
        return entropy(self.probabilities)

    @cached_property
    def similarity(self) -> Tensor:
        """`[rows]`; the norm's division by the length cancels, so that only its weight is applied."""
        wide = torch.promote_types(self.after.dtype, torch.float32)
        weight = self.decoder.norm.weight
        after = self.after.to(wide) * weight
        before = self.before.to(wide) * weight
        return torch.nn.functional.cosine_similarity(after, before, dim=-1).clamp_(max=1.0)


class RowView(LayerState):
    """An earlier `ExitState`, restricted to the rows that have not exited since.

    Nothing is copied until an attribute is asked for, and then only that attribute is indexed.
    """

    def __init__(self, state: ExitState, index: np.ndarray):
        self._state = state
        self._index = index

    def memo(self, key, compute: Callable):
        return self._pick(self._state.memo(key, compute))

    def __getattr__(self, name: str):
        return self._pick(getattr(self._state, name))

    def _pick(self, values):
        """The rows that are left of a tensor, an array or each member of a tuple; anything else as it is."""
        if isinstance(values, Tensor):
            return values[on_device(self._index, values)]
        if isinstance(values, np.ndarray):
            return values[self._index]
        if isinstance(values, tuple):
            picked = [self._pick(value) for value in values]
            return type(values)(*picked) if hasattr(values, "_fields") else tuple(picked)
        return values


def states_by_layer(
    state_after: Callable[[int, LayerState | None], LayerState], last: int
) -> Iterator[LayerState]:
    """Yields a token's state after layers 1, 2, .. `last`; each knows the one before it.

    `state_after(layer, previous)` makes a state: it runs the layer, or looks it up in a trace. A layer is run
    when its state is asked for, so that the caller may take rows out in between.
    """
    state = None
    for layer in range(1, last + 1):
        state = state_after(layer, state)
        yield state


def confidence_of(measure: Measure, state: LayerState) -> np.ndarray:
    """The confidence of a measure on the host, `[rows]`.

    Raises `MeeError` if the measure returns something else, looks at something that no state has, or looks at
    logits without saying so.
    """
    try:
        returned = measure.confidence(state)
    except AttributeError as error:
        if not isinstance(error.obj, LayerState):
            raise
        missing = f'"{measure.name}" looks at state.{error.name}, which there is not'
        raise MeeError(f"{missing}: mee_utils/exits/measures.py lists what there is.") from error
    if state.has_readout and not (measure.readout or measure.needs_all_layers):
        remedy = "set readout = True in its class, or they are computed twice for a token that exits"
        raise MeeError(f'"{measure.name}" looks at logits or probabilities: {remedy}.')
    rows = len(state.sequence)
    try:
        confidence = on_host(returned)
    except (TypeError, ValueError):  # lists of unequal lengths
        confidence = np.asarray(None)
    are_numbers = confidence.dtype.kind in "bfiu"
    if are_numbers and confidence.shape == (rows,):
        return confidence
    what = f"shape {confidence.shape}" if are_numbers and confidence.ndim else shown(returned)
    wanted = f"return one number per row, shape ({rows},)"
    raise MeeError(f'confidence(state) of "{measure.name}" returned {what}: {wanted}.')


def decide(bound: BoundPolicy, state: ExitState, max_new_tokens: int) -> np.ndarray:
    """Which rows exit at this layer, `[rows]`, bool: those whose confidence exceeds the threshold.

    `max_new_tokens` is the `N` of decaying thresholds.
    """
    state.confidence = confidence_of(bound.measure, state)
    depth = state.layer / bound.layers
    return bound.schedule.exceeded(state.confidence, state.position, max_new_tokens, state.sequence, depth)


# ---- one token, and then the next


class StepTokens:
    """The tokens of one step, one a row.

    Rows are added as they exit: with their ids where the layer's prediction is known by then, else with their
    states. `complete` predicts the missing ids from all these states at once.

    Attributes:
        exit_layers, confidences, readout_rows: `[row]`, on the host.
        ids, device_ids: `[row]`, on the host and on the device; there once `complete` was called.
    """

    def __init__(self, step: Step):
        rows = len(step.sequence)
        self.step = step
        self.exit_layers = np.zeros(rows, dtype=np.int32)
        self.confidences = np.zeros(rows, dtype=np.float32)
        self.readout_rows = np.zeros(rows, dtype=np.int64)
        self._with_ids: list[tuple[np.ndarray, Tensor]] = []  # some rows, and their ids
        self._with_states: list[tuple[np.ndarray, Tensor]] = []  # some rows, and their exit states

    def add(self, rows: np.ndarray, layers, confidences, *, ids=None, states=None) -> None:
        """Adds some rows of the step, ascending, with their `ids` `[rows]` or `states` `[rows, d_model]`.

        `layers` and `confidences` are numbers, or `[rows]`.
        """
        self.exit_layers[rows] = layers
        self.confidences[rows] = confidences
        self.readout_rows[rows] = self.step.readout_rows[rows]
        if ids is not None:
            self._with_ids.append((rows, ids))
        else:
            self._with_states.append((rows, states))

    def complete(self) -> StepTokens:
        """Predicts the missing ids, all in one readout. Raises `MeeError` where a state is not finite."""
        if self._with_states:
            decoder = self.step.decoder
            rows = np.concatenate([rows for rows, _ in self._with_states])
            states = torch.cat([states for _, states in self._with_states])
            self.readout_rows[rows] += self.step.bound.vocabulary
            self._with_ids.append((rows, predicted_ids(decoder.logits(decoder.norm(states)))))
        rows = np.concatenate([rows for rows, _ in self._with_ids])
        ids = torch.cat([ids for _, ids in self._with_ids])
        if (np.diff(rows) < 0).any():  # rows stand in the order of their exits
            ids = ids[on_device(np.argsort(rows), ids)]
        self.device_ids = ids
        self.ids = on_host(ids)
        check_finite(self.ids, self.step.sequence, self.exit_layers)
        return self


class TokenRun:
    """The present token of some rows on its way through the layers; rows leave it as they exit.

    In a narrow model exited rows stay in the batch, masked, until all have exited: taking them out costs more
    than running them. The mask keeps their exit state as it is, so that higher layers get keys and values of
    that state ("copy"). FLOPs count each row as if it were decoded alone.
    """

    def __init__(self, step: Step, rows: Rows):
        self.step = step
        self.rows = rows
        self.x = step.decoder.embed(step.fed)  # [rows, d_model]
        self.step_rows = np.arange(len(rows))  # [rows], which rows of the step these are
        self.active = np.ones(len(rows), dtype=bool)  # [rows], which have not exited
        self._mask: Tensor | None = None  # the same, [rows, 1], on the device; None: all

    def state_after(self, layer: int, previous: ExitState | None) -> ExitState:
        """Runs one layer."""
        before = self.x
        self.x = self.step.decoder.run_layer(layer, before, self.rows)
        if self._mask is not None:
            self.x = torch.where(self._mask, self.x, before)
        return ExitState(self.step, layer, self.x, before, self.step_rows, previous)

    def exit(self, exits: np.ndarray) -> None:
        """Marks rows as exited, `[rows]`; takes exited rows out once enough have."""
        self.active = self.active & ~exits
        if self.active.sum() <= self.step.decoder.compact_below * len(self.rows):
            self._take_out_exited()
        else:  # they stay, and their states do not change any more
            self._mask = on_device(self.active[:, None], self.x)

    def _take_out_exited(self) -> None:
        """Stores the exit states of exited rows and goes on with the others alone."""
        self._mask = None
        self.rows.keep(~self.active).store_exit_state(pick(self.x, ~self.active))
        if not self.active.any():
            return
        self.x = pick(self.x, self.active)
        self.rows = self.rows.keep(self.active)
        self.step_rows = self.step_rows[self.active]
        self.active = np.ones(len(self.rows), dtype=bool)


class ParallelRun(TokenRun):
    """The same where tokens that wait below a layer go through it together with the present one ("parallel").

    Exited rows are taken out at once: higher layers are to see their token wait, not run.
    """

    def state_after(self, layer: int, previous: ExitState | None) -> ExitState:
        before = self.x
        self.x = run_with_waiting(self.step.decoder, layer, before, self.rows)
        return ExitState(self.step, layer, self.x, before, self.step_rows, previous)

    def exit(self, exits: np.ndarray) -> None:
        self.active = self.active & ~exits
        self._take_out_exited()


class TokenDecoder:
    """Decodes the tokens of one batch, one at a time; `bound` says when they exit."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy):
        self.decoder = decoder
        self.cache = cache
        self.bound = bound
        self.run_class = ParallelRun if bound.policy.propagation == "parallel" else TokenRun
        self.lessons = Lessons(decoder, cache, bound.schedule) if bound.schedule.learns else None

    def decode(self, rows: Rows, ids: Tensor, sequence: np.ndarray) -> StepTokens:
        """Brings one token of each row to its exit and predicts it.

        Args:
            rows: where they are in the cache; `cache.position` is the position of the token.
            ids: the tokens before, `[row]`.
            sequence: indices of the rows' inputs, `[row]`.

        Raises:
            MeeError: for states that are not finite.
        """
        bound = self.bound
        source = self.cache.source_ids
        step = Step(self.decoder, bound, sequence, self.cache.position, ids, source, rows.slots)
        if bound.measure.needs_all_layers:
            return self._decode_in_hindsight(step, rows)
        run = self.run_class(step, rows)
        tokens = StepTokens(step)
        for state in states_by_layer(run.state_after, bound.layers):
            if state.layer not in bound.decision_layers:
                continue
            exits = decide(bound, state, self.cache.max_new_tokens) & run.active
            if self.lessons is not None:
                self.lessons.note(state)
            if exits.any():
                _add_exits(tokens, state, exits)
                run.exit(exits)
                if not run.active.any():
                    return tokens.complete()
        _add_last(tokens, state, run.active)  # after the loop `state` is the last layer's
        tokens.complete()
        if self.lessons is not None:
            deep = run.step_rows  # [row], rows of the step that ran all layers
            waited = self.lessons.teach(sequence[deep], run.rows.slots, tokens.ids[deep])
            tokens.readout_rows[deep] += waited * bound.vocabulary
        return tokens

    def _decode_in_hindsight(self, step: Step, rows: Rows) -> StepTokens:
        """For measures that need all layers (the oracle): all are run, then the token goes back."""
        run = self.run_class(step, rows)
        bound = self.bound
        states = list(states_by_layer(run.state_after, bound.layers))
        predicted = np.stack([on_host(state.top1_id) for state in states])  # [layer, row]
        is_final = predicted == predicted[-1]
        settled = np.logical_and.accumulate(is_final[::-1])[::-1]  # [layer, row], final from here on
        exit_layers = np.full(len(rows), bound.layers)
        confidences = np.full(len(rows), np.nan)
        for layer in bound.decision_layers[::-1]:  # the first decision that exits comes last, and counts
            state = states[layer - 1]
            state.settled = settled[layer - 1].astype(np.float64)
            exits_here = decide(bound, state, self.cache.max_new_tokens)
            exit_layers[exits_here] = layer
            confidences[exits_here] = state.confidence[exits_here]
        step.readout_rows[:] = 0  # what the oracle computes in order to decide is not charged
        after = torch.stack([state.after for state in states])  # [layer, row, d_model]
        index = on_device(exit_layers - 1, after)
        exit_states = after[index, torch.arange(len(rows), device=after.device)]  # [row, d_model]
        rows.store_exit_state(exit_states)
        rows.truncate_cache(exit_layers)
        tokens = StepTokens(step)
        tokens.add(run.step_rows, exit_layers, confidences, states=exit_states)
        return tokens.complete()


def _add_exits(tokens: StepTokens, state: ExitState, exits: np.ndarray) -> None:
    """Adds the rows that exit at a decision; `exits` is `[rows]`, bool."""
    rows = state.step_rows[exits]
    confidences = state.confidence[exits]
    if tokens.step.bound.measure.readout:  # the layer's logits are known, and with them its prediction
        tokens.add(rows, state.layer, confidences, ids=pick(state.top1_id, exits))
    else:
        tokens.add(rows, state.layer, confidences, states=pick(state.after, exits))


def _add_last(tokens: StepTokens, state: ExitState, active: np.ndarray) -> None:
    """Adds the rows that ran all layers; `active` is `[rows]`, bool."""
    rows = state.step_rows[active]
    if tokens.step.bound.readout is None:
        tokens.add(rows, state.layer, np.nan, states=pick(state.after, active))
    else:
        ids = torch.where(torch.isfinite(state.logits.amax(-1)), state.top1_id, -1)
        tokens.add(rows, state.layer, np.nan, ids=pick(ids, active))


def decode_tokens(
    decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy, sequence: np.ndarray
) -> list[Output]:
    """Decodes a batch token by token, rows until they end; `sequence` are the indices of its inputs."""
    token_decoder = TokenDecoder(decoder, cache, bound)
    ends = list(cache.ends)
    ids = on_device(cache.starts, cache.states)
    rows = np.arange(len(sequence))  # rows of the batch that have not ended
    slots = rows  # where they are in the cache
    steps: list[tuple[np.ndarray, StepTokens]] = []
    for position in range(cache.max_new_tokens):
        cache.move_to(position)
        tokens = token_decoder.decode(Rows(cache, slots), ids, sequence[rows])
        steps.append((rows, tokens))
        goes_on = ~np.isin(tokens.ids, ends)
        if not goes_on.any():
            break
        ids = pick(tokens.device_ids, goes_on)
        rows = rows[goes_on]
        slots = slots[goes_on]
        if len(slots) <= DROP_FINISHED_AT * cache.batch:
            cache.keep(slots)
            slots = np.arange(len(slots))
    rows = np.concatenate([rows for rows, _ in steps])
    by_row = np.argsort(rows, kind="stable")  # within a row by position, as the steps are
    ends = np.bincount(rows, minlength=len(sequence)).cumsum()[:-1]
    by_output = []  # of each name: of each output `[token]`
    for name in ("ids", "exit_layers", "confidences", "readout_rows"):
        values = np.concatenate([getattr(tokens, name) for _, tokens in steps])
        by_output.append(np.split(values[by_row], ends))
    return [Output(ids.tolist(), *others) for ids, *others in zip(*by_output, strict=True)]


# ---- small tools


def predicted_ids(logits: Tensor) -> Tensor:
    """The id of the largest logit, `[..., vocabulary]` to `[...]`; -1 where that is not finite."""
    best = logits.max(dim=-1)
    return torch.where(torch.isfinite(best.values), best.indices, -1)


def check_finite(ids: np.ndarray, sequence: np.ndarray, layers: np.ndarray) -> None:
    """Raises `MeeError` where an id is -1: the token of input `sequence` has no finite logits."""
    if (ids < 0).any():
        row = int(np.flatnonzero(ids < 0)[0])
        states = f"The states of input {sequence[row]} are not finite at layer {layers[row]}"
        raise MeeError(f"{states}: load the model with dtype float32, or look for damaged weights.")


def pick(values: Tensor, which: np.ndarray) -> Tensor:
    """The rows for which `which` is true."""
    if which.all():
        return values
    return values[on_device(np.flatnonzero(which), values)]
