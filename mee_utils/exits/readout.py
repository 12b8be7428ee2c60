"""Readouts: from a state to scores over token ids, all or a few ("Not all FLOPs", vocabulary pruning).

The first layer that a policy reads out scores all `V` ids. Later layers score only kept ids, best first:

| pruning | ids at layer l | source |
|---|---|---|
| none | `V` | |
| fixed | `k` | the paper |
| decaying | `max(k*, floor(k' / (1 + (k' - k*) / k* . l / L)))`, `k'` of layer l - 1, first `k` | the paper |
| decaying, "closed" | the same with `k` in place of `k'` | its code |
| adaptive | `floor(V (1 - 0.9 c))`, `c` the confidence at the layer before | the paper |

Probabilities are exact softmaxes over the kept ids. The token is the best of them, at the last layer too.
Every row keeps ids of its own; their rows of `W` are gathered when the ids change, not at every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import CompanionError, check_choice
from .contrast import ALPHA, CONTRASTS, check_alpha, jsd_contrast, weighted_contrast

PRUNINGS = ("fixed", "decaying", "adaptive")
FORMS = ("recursion", "closed")
LOWEST = -1e4  # a logit whose probability is 0 in single precision
GATHER_UP_TO = 0.5  # gather kept rows of W if k <= V / 2; else compute all logits and index


@dataclass(frozen=True)
class ReadoutOptions:
    """How a policy reads out.

    Attributes:
        pruning: "fixed", "decaying", "adaptive", or None for all ids.
        top_k: ids kept at first (fixed, decaying).
        least_k: `k*`, ids kept at least (decaying).
        form: of the decay, "recursion" or "closed".
        contrast: "weighted", "jsd", or None.
        alpha: of the contrast.
        contrast_token: whether the contrast picks the token too, or gives the confidence alone.
    """

    pruning: str | None = None
    top_k: int | None = None
    least_k: int | None = None
    form: str = "recursion"
    contrast: str | None = None
    alpha: float = ALPHA
    contrast_token: bool = False

    def __post_init__(self):
        if self.pruning is not None:
            check_choice("pruning", self.pruning, PRUNINGS)
        if self.contrast is not None:
            check_choice("contrast", self.contrast, CONTRASTS)
        check_choice("pruning_form", self.form, FORMS)
        check_alpha(self.alpha)
        for name, value, kinds in (
            ("top_k", self.top_k, ("fixed", "decaying")),
            ("least_k", self.least_k, ("decaying",)),
        ):
            if self.pruning in kinds:
                if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                    raise CompanionError(
                        f'{name}={value!r}: pruning="{self.pruning}" needs a whole number of ids from 1 on.'
                    )
            elif value is not None:
                needed = " or ".join(map(repr, kinds))
                raise CompanionError(
                    f"{name}={value!r} means nothing without pruning={needed}: leave it out."
                )
        if self.pruning == "decaying" and self.least_k > self.top_k:
            raise CompanionError(
                f"least_k={self.least_k} is more than top_k={self.top_k}: ids can only become fewer."
            )
        if self.form != "recursion" and self.pruning != "decaying":
            raise CompanionError(f'pruning_form="{self.form}" belongs to pruning="decaying": leave it out.')
        if self.contrast is None and (self.contrast_token or self.alpha != ALPHA):
            raise CompanionError('contrast_token and contrast_alpha need contrast="weighted" or "jsd".')

    @property
    def plain(self) -> bool:
        """Whether all ids are read out and nothing is contrasted."""
        return self.pruning is None and self.contrast is None

    def sizes(self, first: int, layers: int, vocabulary: int) -> dict[int, int]:
        """How many ids layers `first` to `layers` score, if that does not depend on the confidence."""
        kept, found = vocabulary, {}
        for layer in range(first, layers + 1):
            if layer > first and self.pruning == "fixed":
                kept = min(self.top_k, vocabulary)
            elif layer > first and self.pruning == "decaying":
                start = min(self.top_k, vocabulary)
                before = start if layer == first + 1 or self.form == "closed" else kept
                shrunk = int(before / (1 + (before - self.least_k) / self.least_k * layer / layers))
                kept = min(kept, max(min(self.least_k, vocabulary), shrunk))
            found[layer] = kept
        return found

    def looks_back_to(self, first: int) -> int:
        """The first layer whose state is needed if the first decision reads out layer `first`."""
        return {"weighted": max(1, first // 2), "jsd": 1}.get(self.contrast, first)


@dataclass
class ReadoutLogits:
    """What a layer predicts for some rows.

    Attributes:
        logits: `[rows, kept]`, in single precision at least.
        ids: `[rows, kept]`, the tokens they belong to, in the order of the layer before; None: all ids.
        readout_rows: rows of `W` that each row multiplies here if alone; a number or `[rows]`.
        scores: what confidence is taken from: `logits`, or the log-probabilities of the contrast.
    """

    logits: Tensor
    ids: Tensor | None
    readout_rows: int | np.ndarray
    scores: Tensor

    def tokens(self, contrast: bool) -> Tensor:
        """The best id of every row; of equals the first, as where all ids are read out."""
        values = self.scores if contrast else self.logits
        if self.ids is None:
            return values.argmax(dim=-1)
        worse = values < values.amax(dim=-1, keepdim=True)
        return self.ids.masked_fill(worse, torch.iinfo(self.ids.dtype).max).amin(dim=-1)


class Kept(NamedTuple):
    """The ids that the next layer scores.

    Attributes:
        ids: `[rows, k]`, best first.
        weights: their rows of `W`, `[rows, k, d_model]`; `[rows, 0]` where all logits are computed.
        count: `[rows]`, how many of the ids count for each row.
        readout_rows: `[rows]`, rows of `W` that each row multiplies alone.
        everything: whether every row keeps all ids.
    """

    ids: Tensor
    weights: Tensor
    count: np.ndarray
    readout_rows: np.ndarray
    everything: bool


class Readout:
    """Reads out layers as `ReadoutOptions` say.

    A row alone gathers the rows of `W` of its kept ids. A batch that would gather more than `V` rows computes
    all logits once and indexes them: more FLOPs in less time. What is counted is what a row needs alone. A
    contrast with pruning scores its amateurs anew at every layer, over the ids kept there.

    Args:
        options: how.
        decisions: the layers at which the policy decides, ascending.
        layers: depth of the decoder; its last layer is read out too.
        vocabulary: V.
    """

    def __init__(self, options: ReadoutOptions, decisions: tuple[int, ...], layers: int, vocabulary: int):
        self.options, self.layers, self.vocabulary = options, layers, vocabulary
        self.first = decisions[0] if decisions else layers  # its best ids are kept
        self.plain = options.plain or not decisions
        self.sizes = options.sizes(self.first, layers, vocabulary)
        contrasted = (*decisions, layers) if options.contrast_token else decisions
        self.amateurs: dict[int, list[int]] = {}
        self.unseen: dict[int, int] = {}  # how many amateurs are read out for the first time, over all ids
        seen = set(range(self.first, layers + 1))
        for layer in contrasted if options.contrast and not self.plain else ():
            amateurs = [layer // 2] if options.contrast == "weighted" else list(range(1, layer))
            self.amateurs[layer], self.unseen[layer] = amateurs, len(set(amateurs) - seen)
            seen |= set(amateurs)

    def read(self, state) -> ReadoutLogits:
        """Reads out one layer, given as `ExitState`."""
        kept = None
        if self.options.pruning is not None and state.layer > self.first:
            kept = state.earlier(1).recall("kept", self._keep)
        if kept is None or kept.everything:
            kept, logits = None, state.full_logits
            read = ReadoutLogits(logits, None, self.vocabulary, logits)
        else:
            logits = self._over(state, state, kept)
            read = ReadoutLogits(logits, kept.ids, kept.readout_rows, logits)
        if state.layer in self.amateurs:
            self._contrast(state, read, kept)
        return read

    def _over(self, state, layer, kept: Kept) -> Tensor:
        """Logits of a layer over the kept ids, `[rows, kept]`; minus infinity where an id does not count."""
        if kept.weights.ndim == 3:
            logits = state.times(layer.state, kept.weights)
        else:
            logits = layer.full_logits.gather(1, kept.ids)
        if self.options.pruning == "adaptive":
            beyond = np.arange(kept.ids.shape[1])[None] >= kept.count[:, None]
            if beyond.any():
                logits = logits.masked_fill(torch.from_numpy(beyond).to(logits.device), -torch.inf)
        return logits

    def _few(self, count):
        return count <= GATHER_UP_TO * self.vocabulary

    def _keep(self, state) -> Kept:
        """What the layer after `state` keeps."""
        if self.options.pruning == "adaptive":
            confidence = np.broadcast_to(np.asarray(state.confidence, dtype=np.float64), len(state.rows))
            share = 1 - 0.9 * np.nan_to_num(confidence).clip(0, 1)
            count = np.floor(self.vocabulary * share).astype(np.int64).clip(min=1)
            first = state.earlier(state.layer - self.first)
            (order,) = first.recall("order", _ranking)
            return self._kept(state, order[:, : int(count.max())], count)
        size, before = self.sizes[state.layer + 1], self.sizes[state.layer]
        if size == before and state.layer > self.first:
            return state.earlier(1).recall("kept", self._keep)
        read = state.readout_logits
        order = read.logits.topk(min(size, read.logits.shape[-1]), dim=-1).indices
        ids = order if read.ids is None else read.ids.gather(1, order)
        return self._kept(state, ids, np.full(len(ids), size))

    def _kept(self, state, ids: Tensor, count: np.ndarray) -> Kept:
        few = self._few(ids.shape[1]) and ids.numel() <= self.vocabulary
        weights = state.rows_of_head(ids) if few else ids.new_empty((len(ids), 0))
        alone = np.where(self._few(count), count, self.vocabulary)
        return Kept(ids, weights, count, alone, bool((count >= self.vocabulary).all()))

    def _contrast(self, state, read: ReadoutLogits, kept: Kept | None) -> None:
        """Puts the contrast into `read.scores`, and what its amateurs cost into `read.readout_rows`."""
        amateurs, logits = self.amateurs[state.layer], read.logits
        earlier = [state.earlier(state.layer - layer) for layer in amateurs]
        over = [layer.full_logits if kept is None else self._over(state, layer, kept) for layer in earlier]
        if kept is not None:  # ids that do not count are left out of both distributions
            gone = torch.isinf(logits)
            logits, *over = (scores.masked_fill(gone, LOWEST) for scores in (logits, *over))
        if self.options.contrast == "weighted":
            read.scores = weighted_contrast(logits, over[0], self.options.alpha)
        else:
            read.scores, _ = jsd_contrast(logits, torch.stack(over), self.options.alpha)
        added = self.unseen[state.layer] * self.vocabulary
        if kept is not None:
            added = np.where(self._few(kept.count), len(amateurs) * kept.readout_rows, added)
        read.readout_rows = read.readout_rows + added


def _ranking(state) -> tuple[Tensor]:
    return (state.full_logits.argsort(dim=-1, descending=True, stable=True),)
