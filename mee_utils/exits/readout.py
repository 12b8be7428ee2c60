"""Readouts: from a state to scores over token ids, all or a few ("Not all FLOPs", vocabulary pruning).

The first layer that a policy reads out scores all `V` ids. Later layers score only kept ids, best first:

| pruning | ids at layer l | source |
|---|---|---|
| none | `V` | |
| fixed | `k` | the paper |
| decaying | `k`, then `max(k*, floor(k' / (1 + (k' - k*) / k* . (l - 1) / L)))`, `k'` at l - 1 | the paper |
| decaying, "closed" | the same with `k` and `l` in place of `k'` and `l - 1`, from the first | its code |
| adaptive | `floor(V (1 - 0.9 c))`, `c` the confidence at the layer before | the paper |

Probabilities are exact softmaxes over the kept ids. The token is the best of them, at the last layer too.
Every row keeps ids of its own; their rows of `W` are gathered when the ids change, not at every layer.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .contrast import Distribution, contrast_with, farthest, jsd_contrast, weighted_contrast

LOWEST = -1e4  # a logit whose probability is 0 in single precision
GATHER_UP_TO = 0.5  # gather kept rows of W if k <= V / 2; else compute all logits and index


@dataclass
class ReadoutLogits:
    """What a layer predicts for some rows."""

    logits: Tensor  # `[rows, kept]`, in single precision at least
    ids: Tensor | None  # `[rows, kept]`, their tokens, in the order of the layer before; None: all ids
    readout_rows: int | np.ndarray  # rows of `W` that each row multiplies here if alone
    scores: Tensor  # what confidence is taken from: `logits`, or the log-probabilities of the contrast

    def tokens(self, contrast: bool) -> Tensor:
        """The best id of every row; of equals the first, as where all ids are read out."""
        values = self.scores if contrast else self.logits
        if self.ids is None:
            return values.argmax(dim=-1)
        worse = values < values.amax(dim=-1, keepdim=True)
        return self.ids.masked_fill(worse, torch.iinfo(self.ids.dtype).max).amin(dim=-1)


class Kept(NamedTuple):
    """The ids that the next layer scores."""

    ids: Tensor  # `[rows, k]`, best first
    weights: Tensor | None  # their rows of `W`, `[rows, k, d_model]`; None where all logits are computed
    count: np.ndarray  # `[rows]`, how many of the ids count for each row
    readout_rows: np.ndarray  # `[rows]`, rows of `W` that each row multiplies alone


class Readout:
    """Reads out layers as a policy says.

    A row alone gathers the rows of `W` of its kept ids. A batch that would gather more than `V` rows computes
    all logits once and indexes them: more FLOPs in less time. What is counted is what a row needs alone. A
    contrast with pruning scores its amateurs anew at every layer, over the ids kept there; an ensemble too.

    It is made from an `ExitPolicy`, the layers at which it decides, and depth and vocabulary of the decoder,
    whose last layer is read out too. A measure's `lens` and `ensemble` change what is read before that.
    """

    def __init__(self, policy, decisions: tuple[int, ...], layers: int, vocabulary: int):
        self.policy, self.layers, self.vocabulary, self.decisions = policy, layers, vocabulary, decisions
        self.pruning, self.contrast = policy.vocabulary_pruning, policy.layer_contrast
        self.lens, self.ensemble = policy.measure.lens, policy.measure.ensemble
        own = self.lens or self.ensemble or not policy.plain
        self.plain = not (own and decisions)  # all ids are read out, and nothing is changed
        self.scored = self.ensemble is not None or bool(
            self.contrast and self.contrast.token
        )  # whether tokens come from `scores`
        self.first = decisions[0] if decisions else layers  # the first layer that is read out
        # layer -> how many ids it scores, at most
        self.sizes = dict.fromkeys(range(self.first, layers + 1), vocabulary)
        if self.pruning:
            self.sizes = self.pruning.sizes(self.first, layers, vocabulary)
        self.amateurs: dict[int, list[int]] = {}  # the earlier layers that a layer is contrasted with
        self._unseen: dict[int, int] = {}  # how many of them are read out for the first time, over all ids
        contrasted = (*decisions, layers) if self.scored else decisions
        seen = set(range(self.first, layers + 1))
        for layer in contrasted if self.contrast and not self.plain else ():
            amateurs = self.contrast.amateur_layers(layer)
            self.amateurs[layer], self._unseen[layer] = amateurs, len(set(amateurs) - seen)
            seen |= set(amateurs)
        for place, layer in enumerate(decisions if self.ensemble else ()):
            self.amateurs[layer], self._unseen[layer] = list(decisions[:place]), 0

    def read(self, state) -> ReadoutLogits:
        """Reads out one layer, given as `ExitState`."""
        kept = None
        if self.pruning and state.layer > self.first:
            kept = state.earlier(1).recall("kept", self._keep)
        logits = self._logits(state, kept)
        ids, rows = (None, self.vocabulary) if kept is None else (kept.ids, kept.readout_rows)
        read = ReadoutLogits(logits, ids, rows, logits)
        if state.layer in self.amateurs:
            self._contrast(state, read, kept)
        return read

    def _logits(self, state, kept: Kept | None) -> Tensor:
        """Logits over the kept ids, `[rows, kept]`; minus infinity where an id does not count."""
        if kept is None:
            return state.full_logits
        if kept.weights is None:
            logits = state.full_logits.gather(1, kept.ids)
        else:
            logits = single(torch.bmm(kept.weights, state.read_state.unsqueeze(-1)).squeeze(-1))
        if self.pruning.adaptive:
            beyond = np.arange(kept.ids.shape[1])[None] >= kept.count[:, None]
            if beyond.any():
                logits = logits.masked_fill(torch.from_numpy(beyond).to(logits.device), -torch.inf)
        return logits

    def _keep(self, state) -> Kept | None:
        """What the layer after `state` keeps; None if every row keeps all ids."""
        if self.pruning.adaptive:
            confidence = np.broadcast_to(np.asarray(state.confidence, dtype=np.float64), len(state.rows))
            share = 1 - 0.9 * np.nan_to_num(confidence).clip(0, 1)
            count = np.floor(self.vocabulary * share).astype(np.int64).clip(min=1)
        else:
            size, before = self.sizes[state.layer + 1], self.sizes[state.layer]
            if size == before and state.layer > self.first:
                return state.earlier(1).recall("kept", self._keep)
            count = np.full(len(state.rows), size)
        if (count >= self.vocabulary).all():
            return None
        ids = self._best(state, int(count.max()))
        few = self._few(ids.shape[1]) and ids.numel() <= self.vocabulary
        weights = state.decoder.head_rows(ids) if few else None
        return Kept(ids, weights, count, np.where(self._few(count), count, self.vocabulary))

    def _best(self, state, size: int) -> Tensor:
        """Ids of the `size` best of what `state` reads out (adaptive: the first layer), best first."""
        if self.pruning.adaptive:
            ranking = lambda first: (first.full_logits.argsort(dim=-1, descending=True, stable=True),)
            return state.earlier(state.layer - self.first).recall("order", ranking)[0][:, :size]
        read = state.readout_logits
        order = read.logits.topk(size, dim=-1).indices
        return order if read.ids is None else read.ids.gather(1, order)

    def _few(self, count):
        return count <= GATHER_UP_TO * self.vocabulary

    def _contrast(self, state, read: ReadoutLogits, kept: Kept | None) -> None:
        """Puts contrast or ensemble into `read.scores`, what earlier layers cost into `read.readout_rows`."""
        amateurs, logits = self.amateurs[state.layer], read.logits
        over = [self._logits(state.earlier(state.layer - layer), kept) for layer in amateurs]
        if kept is not None:  # ids that do not count are left out of both distributions
            gone = torch.isinf(logits)
            logits, *over = (scores.masked_fill(gone, LOWEST) for scores in (logits, *over))
        if self.ensemble:
            ids = None if kept is None else kept.ids
            read.scores = self.ensemble([*amateurs, state.layer], [*over, logits], ids)
        elif self.contrast.kind == "weighted":
            read.scores = weighted_contrast(logits, over[0], self.contrast.alpha)
        elif kept is None:
            distributions = [
                state.earlier(state.layer - layer).recall("distribution", _distribution) for layer in amateurs
            ]
            chosen = farthest(state.recall("distribution", _distribution), distributions)
            read.scores = contrast_with(logits, torch.stack(over), chosen, self.contrast.alpha)
        else:
            read.scores, _ = jsd_contrast(logits, torch.stack(over), self.contrast.alpha)
        added = self._unseen[state.layer] * self.vocabulary
        if kept is not None:
            added = np.where(self._few(kept.count), len(amateurs) * kept.readout_rows, added)
        read.readout_rows = read.readout_rows + added


def _distribution(state) -> Distribution:
    """Over all ids; kept with the layer, since every later layer is compared with it."""
    return Distribution.from_logits(state.full_logits)


def single(logits: Tensor) -> Tensor:
    """The same in single precision at least."""
    return logits if logits.dtype == torch.float64 else logits.float()
