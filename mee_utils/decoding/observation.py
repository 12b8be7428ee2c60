"""What a confidence measure sees while decoding: one token a row, at one block. Everything is made when it is first asked for."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..errors import CompanionError
from ..exits.read_outs import Reader, Reading
from .layerwise import LayerwiseDecoder


class Observation:
    """The present token of some rows at one block; see the table in `mee_utils.exits.measures`.

    Args:
        decoder: the decoder.
        layer: the block, 1 to L.
        after: the states after it, `[rows, d_model]`.
        before: the states before it.
        rows: numbers of the rows, ascending, `[rows]`; they tell which rows of an earlier block are still there.
        sequence: index of each row's input, `[rows]`.
        position: how many tokens the rows have emitted.
        previous: the observation one block before.
        reader: what prunes or contrasts the read-out; by default all ids are read out.
    """

    settled: np.ndarray  # set by the generation loop for measures that look ahead
    asked: np.ndarray | float = float("nan")  # the confidence at this block, set by the generation loop once it is known

    def __init__(
        self, decoder: LayerwiseDecoder, layer: int, after: Tensor, before: Tensor, rows: np.ndarray, sequence: np.ndarray,
        position: int, previous: Observation | None = None, reader: Reader | None = None,
    ):  # fmt: skip
        self.decoder, self.layer, self.layers, self.after, self.before = decoder, layer, decoder.layers, after, before
        self.rows, self.sequence, self.position, self.previous, self.reader = rows, sequence, position, previous, reader
        self._kept: dict = {}

    @cached_property
    def state(self) -> Tensor:
        """`n(h)`, `[rows, d_model]`."""
        return self.decoder.normalize(self.after)

    @cached_property
    def logits(self) -> Tensor:
        """Of all ids, `[rows, vocabulary]`, in single precision at least."""
        return _single(self.decoder.read_out(self.state))

    def rows_of_head(self, ids: Tensor) -> Tensor:
        """The rows of `W` that belong to ids `[rows, k]`, with the scale of the read-out: `[rows, k, d_model]`."""
        rows = torch.nn.functional.embedding(ids, self.decoder.head_rows)
        return rows if self.decoder.scale == 1.0 else rows.mul_(self.decoder.scale)

    def times(self, state: Tensor, weights: Tensor) -> Tensor:
        """Logits `[rows, k]` of states `[rows, d_model]` over rows of `W` that were gathered, in single precision at least."""
        return _single(torch.bmm(weights, state.unsqueeze(-1)).squeeze(-1))

    @cached_property
    def reading(self) -> Reading:
        """What this block says over the ids that are read out."""
        return self.reader.read(self)

    @cached_property
    def spent(self) -> np.ndarray:
        """`[rows]`, rows of `W` that were multiplied for them at this block and all before; asked for once the block has been read out."""
        found, seen = np.zeros(len(self.rows), dtype=np.int64), self
        while seen is not None:
            known = vars(seen)
            if "spent" in known or "reading" in known:
                products = known["spent"] if "spent" in known else seen.reading.products
                found += products if len(seen.rows) == len(self.rows) else products[np.searchsorted(seen.rows, self.rows)]
            seen = None if "spent" in known else seen.previous
        return found

    @cached_property
    def scores(self) -> Tensor:
        """What probabilities are taken from: logits, or the log-probabilities of a contrast, over the ids that are read out."""
        return self.reading.scores if self.reader else self.logits

    @cached_property
    def probabilities(self) -> Tensor:
        """`[rows, ids]`, over the ids that are read out (`softmax` is ten times as fast on CPUs as `logsumexp`)."""
        return torch.softmax(self.scores, dim=-1)

    @cached_property
    def _top(self) -> Tensor:
        top = torch.topk(self.probabilities, min(2, self.scores.shape[-1]), dim=-1).values
        return top if top.shape[-1] == 2 else torch.cat([top, torch.zeros_like(top)], dim=-1)

    @cached_property
    def top1_id(self) -> Tensor:
        """`[rows]`; of equal logits the first, as everywhere (`topk` picks another)."""
        return self.reading.tokens(self.reader.read_out.contrast_token) if self.reader else self.logits.argmax(dim=-1)

    @cached_property
    def top1_probability(self) -> Tensor:
        """`[rows]`."""
        return self._top[:, 0]

    @cached_property
    def margin(self) -> Tensor:
        """`[rows]`."""
        first, second = self._top.unbind(-1)
        return first - second

    @cached_property
    def entropy(self) -> Tensor:
        """`[rows]`, in nats."""
        return torch.special.entr(self.probabilities).sum(-1)

    @cached_property
    def similarity(self) -> Tensor:
        """`[rows]`; the norm's division by the length cancels, so that its weight alone is applied."""
        wide = torch.float64 if self.after.dtype == torch.float64 else torch.float32
        after, before = (states.to(wide) * self.decoder.norm.weight for states in (self.after, self.before))
        return torch.nn.functional.cosine_similarity(after, before, dim=-1).clamp_(max=1.0)

    def recall(self, key, make) -> tuple[Tensor, ...]:
        """What a measure keeps with this block, `make(now)`: tensors that begin with the rows; made once, then looked up."""
        if key not in self._kept:
            self._kept[key] = make(self)
        return self._kept[key]

    def earlier(self, blocks: int) -> Observation | Kept:
        """The same rows, `blocks` blocks before."""
        found = self
        for _ in range(blocks):
            found = found.previous
            if found is None:
                raise CompanionError(f"There is no block {blocks} before block {self.layer} to look at: raise the measure's lookback.")
        return found if len(found.rows) == len(self.rows) else Kept(found, np.searchsorted(found.rows, self.rows))


def _single(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


class Kept:
    """An observation (or such a view of one) seen by the rows that are still there."""

    def __init__(self, observation: Observation | Kept, index: np.ndarray):
        self.observation, self.index = observation, index

    def _pick(self, values):
        if isinstance(values, Tensor):
            return values[torch.from_numpy(self.index).to(values.device)]
        return values[self.index] if isinstance(values, np.ndarray) else values

    def recall(self, key, make) -> tuple[Tensor, ...]:
        """What a measure kept with that block, for the rows that are still there."""
        return tuple(map(self._pick, self.observation.recall(key, make)))

    def earlier(self, blocks: int) -> Kept:
        """The same rows, further back."""
        return Kept(self.observation.earlier(blocks), self.index)

    def __getattr__(self, name: str):
        return self._pick(getattr(self.observation, name))
