"""What a measure sees of a token at a layer, and what is decided there.

After a layer, an `ExitState` shows the measure what is known of the token of several rows, each quantity
computed on first use. `decide` asks the measure for a confidence and the policy whether it is high enough.
`states_by_layer` makes the states of a token wherever they come from: from running the layers (`token`,
`verify`), or from a trace (`mee_utils.traces.replay`).
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
from .layerwise import LayerwiseDecoder, on_device
from .transfers import on_host


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
    before, `step_rows`, which rows of the `Step` these are, and `decision_layers`, where the policy decides.
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

    Raises `MeeError` if the measure returns something else.
    """
    returned = measure.confidence(state)
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
    """Which rows exit at this layer, `[rows]`, bool; `max_new_tokens` is the `N` of decaying thresholds."""
    state.confidence = confidence_of(bound.measure, state)
    return bound.exceeded(state.confidence, state, max_new_tokens)
