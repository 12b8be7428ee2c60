"""What a measure sees while decoding: one token of several rows, at one layer; computed on first use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError
from ..exits.readout import Readout, ReadoutLogits, single
from .layerwise import LayerwiseDecoder


@dataclass(repr=False, eq=False)
class Step:
    """What the states of one token share at all layers."""

    decoder: LayerwiseDecoder
    readout: Readout
    sequence: np.ndarray  # `[row]`, index of each row's input
    position: int | np.ndarray  # how many tokens the rows have emitted; a number for all, or `[row]`
    fed: Tensor  # `[row]`, the token before, at the start the decoder's start token

    def __post_init__(self):
        # `[row]`, rows of `W` multiplied so far: the one place where readouts are counted
        self.readout_rows = np.zeros(len(self.sequence), dtype=np.int64)


class LayerState:
    """What a measure sees of one layer, while decoding (`ExitState`) or in a replay."""

    def recall(self, key, make):
        """What a measure keeps with this layer, `make(state)`: a tuple of `[rows, ...]`, made once."""
        kept = vars(self).setdefault("_kept", {})
        if key not in kept:
            kept[key] = make(self)
        return kept[key]

    def so_far(self, name: str) -> tuple:
        """An attribute at every exit so far, this one last: `[rows]` each."""

        def gather(state):
            before = [layer for layer in state.decisions if layer < state.layer]
            known = state.earlier(state.layer - before[-1]).recall(name, gather) if before else ()
            return *known, getattr(state, name)

        return self.recall(name, gather)

    def earlier(self, layers: int) -> LayerState | RowView:
        """The same rows, `layers` layers before."""
        state = self
        for _ in range(layers):
            if (state := state.previous) is None:
                missing = f"There is no layer {layers} before layer {self.layer} to look at"
                raise MeeError(f"{missing}: raise the measure's lookback.")
        same = len(state.rows) == len(self.rows)
        return state if same else RowView(state, np.searchsorted(state.rows, self.rows))


@dataclass(repr=False, eq=False)
class ExitState(LayerState):
    """The present token of some rows at one layer; see the table in `mee_utils.exits.measures`."""

    step: Step
    layer: int  # 1 to L
    after: Tensor  # the states after the layer, `[rows, d_model]`
    before: Tensor  # the states before it
    rows: np.ndarray  # which rows of the step these are, ascending
    previous: ExitState | None = None  # one layer before
    confidence: np.ndarray | float = float("nan")  # set by the decoding loop once the measure has decided
    settled: np.ndarray | None = None  # set by the decoding loop for measures that look ahead

    def __post_init__(self):
        self.decoder, self.layers = self.step.decoder, self.step.decoder.layers
        self.decisions = self.step.readout.decisions  # the layers at which the policy decides
        position = self.step.position
        self.position = position[self.rows] if np.ndim(position) else position

    @property
    def sequence(self) -> np.ndarray:
        return self.step.sequence[self.rows]

    @property
    def token_before(self) -> Tensor:
        """`[rows]`, -1 at the start."""
        ids = self.step.fed[torch.from_numpy(self.rows).to(self.step.fed.device)]
        return torch.where(torch.as_tensor(self.position == 0, device=ids.device), -1, ids)

    @cached_property
    def state(self) -> Tensor:
        """`n(h)`, `[rows, d_model]`."""
        return self.decoder.norm(self.after)

    @cached_property
    def read_state(self) -> Tensor:
        """What is read out, `[rows, d_model]`: `n(h)`, before the last layer through the measure's lens."""
        lens = self.step.readout.lens
        return lens(self) if lens and self.layer < self.layers else self.state

    @cached_property
    def full_logits(self) -> Tensor:
        """Of all ids, `[rows, vocabulary]`, in single precision at least."""
        return single(self.decoder.readout(self.read_state))

    @cached_property
    def readout_logits(self) -> ReadoutLogits:
        """What this layer predicts over the ids that are read out; counted in `Step.readout_rows`."""
        made = self.step.readout.read(self)
        self.step.readout_rows[self.rows] += made.readout_rows
        return made

    @property
    def logits(self) -> Tensor:
        """`[rows, ids]`, over the ids that are read out."""
        return self.readout_logits.logits

    @cached_property
    def probabilities(self) -> Tensor:
        """`[rows, ids]`, over the ids that are read out (`softmax` is faster on CPUs than `logsumexp`)."""
        return torch.softmax(self.readout_logits.scores, dim=-1)

    @cached_property
    def _top(self) -> Tensor:
        top = torch.topk(self.probabilities, min(2, self.probabilities.shape[-1]), dim=-1).values
        return top if top.shape[-1] == 2 else torch.cat([top, torch.zeros_like(top)], dim=-1)

    @cached_property
    def top1_id(self) -> Tensor:
        """`[rows]`; of equal logits the first, as everywhere (`topk` picks another)."""
        return self.readout_logits.tokens(self.step.readout.scored)

    @cached_property
    def top1_probability(self) -> Tensor:
        return self._top[:, 0]

    @cached_property
    def margin(self) -> Tensor:
        return self._top[:, 0] - self._top[:, 1]

    @cached_property
    def entropy(self) -> Tensor:
        return torch.special.entr(self.probabilities).sum(-1)

    @cached_property
    def similarity(self) -> Tensor:
        """`[rows]`; the norm's division by the length cancels, so that only its weight is applied."""
        wide = torch.float64 if self.after.dtype == torch.float64 else torch.float32
        after, before = (states.to(wide) * self.decoder.norm.weight for states in (self.after, self.before))
        return torch.nn.functional.cosine_similarity(after, before, dim=-1).clamp_(max=1.0)


class RowView(LayerState):
    """An `ExitState` restricted to the rows that are still there."""

    def __init__(self, state: ExitState, index: np.ndarray):
        self._state, self._index = state, index

    def _pick(self, values):
        if isinstance(values, tuple):  # of whatever kind
            return tuple.__new__(type(values), map(self._pick, values))
        if isinstance(values, Tensor):
            return values[torch.from_numpy(self._index).to(values.device)]
        return values[self._index] if isinstance(values, np.ndarray) else values

    def recall(self, key, make):
        return self._pick(self._state.recall(key, make))

    def __getattr__(self, name: str):
        return self._pick(getattr(self._state, name))
