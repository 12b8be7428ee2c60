"""`Readout`: logits where a policy prunes the vocabulary or contrasts layers ("Not all FLOPs").

The first layer at which a policy computes logits scores all `V` ids. Where the policy prunes the vocabulary,
later layers score only kept ids, best first; how many, the table of `mee_utils.exits.pruning` says. A policy
without pruning and contrast has no `Readout`, unless its measure has a `lens` or an `ensemble`: its logits
are `ExitState.full_logits`.

Probabilities are exact softmaxes over the kept ids. The token is the best of them, at the last layer too
unless the policy says `prune_last_layer=False`.
Every row keeps its own ids; their rows of the LM head are gathered when the ids change, not at every
layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .contrast import Distribution, contrast_with, farthest, jsd_contrast, weighted_contrast

LOWEST = -1e4  # a logit whose probability is 0 in single precision
GATHER_UP_TO = 0.5  # gather rows of the LM head if k <= V / 2; else compute all logits and index them


@dataclass
class ReadoutLogits:
    """What a layer predicts for some rows."""

    logits: Tensor  # `[rows, kept]`, in single precision at least
    ids: Tensor | None  # `[rows, kept]`, their tokens, in the order of the layer before; None: all ids
    readout_rows: int | np.ndarray  # rows of the LM head that each row multiplies here if alone
    scores: Tensor  # what confidence is taken from: `logits`, or the log-probabilities of the contrast

    def tokens(self, from_scores: bool) -> Tensor:
        """The id of the best score or logit, `[rows]`; ties go to the first, as when all ids are scored."""
        values = self.scores if from_scores else self.logits
        if self.ids is None:
            return values.argmax(dim=-1)
        worse = values < values.amax(dim=-1, keepdim=True)
        return self.ids.masked_fill(worse, torch.iinfo(self.ids.dtype).max).amin(dim=-1)


class Kept(NamedTuple):
    """The ids that the next layer scores."""

    ids: Tensor  # `[rows, k]`, best first
    weights: Tensor | None  # their rows of the LM head, `[rows, k, d_model]`; None: all logits are computed
    count: np.ndarray  # `[rows]`, how many of the ids are valid for each row
    readout_rows: np.ndarray  # `[rows]`, rows of the LM head that each row multiplies alone


class Earlier(NamedTuple):
    """The earlier layers whose logits a layer needs: amateurs of a contrast, or members of an ensemble."""

    layers: list[int]
    unseen: int  # how many of them compute logits over all ids for this layer first


class Readout:
    """Computes a layer's logits where a policy or its measure changes them; other policies have no `Readout`.

    A row alone gathers the rows of the LM head of its kept ids. A batch that would gather more than `V` of
    them computes all logits once and indexes them: more FLOPs in less time. What is counted is what a row
    needs alone. A contrast with pruning scores its amateurs anew at every layer, over the ids kept there; an
    ensemble too.

    It is made from an `ExitPolicy`, the layers at which it decides (at least one), and depth and vocabulary
    of the decoder, whose last layer computes logits too. Before it, a measure's `lens` and `ensemble` change
    what logits are computed from.
    """

    def __init__(self, policy, decision_layers: tuple[int, ...], layers: int, vocabulary: int):
        self.policy = policy
        self.pruning = policy.vocabulary_pruning
        self.contrast = policy.layer_contrast
        self.ensemble = policy.measure.ensemble
        self.vocabulary = vocabulary
        self.first = decision_layers[0]  # the first layer that computes logits
        self.last_pruned = layers if not self.pruning or self.pruning.last_layer else layers - 1
        # whether the token is the best by `ReadoutLogits.scores`; else it is the best by its `logits`
        self.token_from_scores = self.ensemble is not None or bool(self.contrast and self.contrast.token)
        # layer -> how many ids it scores, at most
        self.sizes = dict.fromkeys(range(self.first, layers + 1), vocabulary)
        if self.pruning:
            self.sizes = self.pruning.sizes(self.first, layers, vocabulary)
        # layer -> the earlier layers that it needs, where it is contrasted or in an ensemble
        self.needs: dict[int, Earlier] = {}
        if self.contrast:
            last = [layers] if self.token_from_scores else []
            self.needs = self._amateurs([*decision_layers, *last], layers)
        elif self.ensemble:
            for number, layer in enumerate(decision_layers):
                self.needs[layer] = Earlier(list(decision_layers[:number]), unseen=0)

    def _amateurs(self, contrasted: Sequence[int], layers: int) -> dict[int, Earlier]:
        """The amateurs of these layers, in a decoder of so many.

        With decisions at layers 4 and 5 and the weighted contrast, both have layer 2 as their amateur: it is
        unseen at layer 4, and has been seen at layer 5.
        """
        seen = set(range(self.first, layers + 1))
        amateurs = {}
        for layer in contrasted:
            of_layer = self.contrast.amateur_layers(layer)
            new = set(of_layer) - seen
            amateurs[layer] = Earlier(of_layer, unseen=len(new))
            seen |= new
        return amateurs

    def read(self, state) -> ReadoutLogits:
        """Computes the logits of one layer, given as `ExitState`."""
        kept = None
        if self.pruning and self.first < state.layer <= self.last_pruned:
            kept = state.earlier(1).memo("kept", self._keep)
        logits = self._logits(state, kept)
        if kept is None:
            computed = ReadoutLogits(logits, None, self.vocabulary, scores=logits)
        else:
            computed = ReadoutLogits(logits, kept.ids, kept.readout_rows, scores=logits)
        if state.layer in self.needs:
            self._contrast(state, computed, kept)
        return computed

    def _logits(self, state, kept: Kept | None) -> Tensor:
        """Logits over the kept ids, `[rows, kept]`; minus infinity where an id is not valid for the row."""
        if kept is None:
            return state.full_logits
        if kept.weights is None:
            logits = state.full_logits.gather(1, kept.ids)
        else:
            logits = at_least_single(torch.bmm(kept.weights, state.read_state.unsqueeze(-1)).squeeze(-1))
        if self.pruning.adaptive:
            beyond = np.arange(kept.ids.shape[1])[None] >= kept.count[:, None]
            if beyond.any():
                logits = logits.masked_fill(
                    torch.from_numpy(beyond).to(logits.device, non_blocking=True), -torch.inf
                )
        return logits

    def _keep(self, state) -> Kept | None:
        """What the layer after `state` keeps; None if every row keeps all ids.

        If it keeps as many ids as this layer scored, they are the same ids: what was gathered is used again.
        """
        if self.pruning.adaptive:  # fewer where the row was more confident
            confidence = np.broadcast_to(np.asarray(state.confidence, dtype=np.float64), len(state.step_rows))
            share = 1 - 0.9 * np.nan_to_num(confidence).clip(0, 1)
            count = np.floor(self.vocabulary * share).astype(np.int64).clip(min=1)
        else:
            size = self.sizes[state.layer + 1]
            if size == self.sizes[state.layer] and state.layer > self.first:
                return state.earlier(1).memo("kept", self._keep)
            count = np.full(len(state.step_rows), size)
        if (count >= self.vocabulary).all():
            return None
        ids = self._best(state, int(count.max()))
        gather = self._few(ids.shape[1]) and ids.numel() <= self.vocabulary
        weights = state.decoder.head_rows(ids) if gather else None
        return Kept(ids, weights, count, np.where(self._few(count), count, self.vocabulary))

    def _best(self, state, size: int) -> Tensor:
        """Ids of the `size` best that `state` scores (adaptive: the first layer), best first."""
        if self.pruning.adaptive:
            (order,) = state.earlier(state.layer - self.first).memo("order", _ranking)
            return order[:, :size]
        computed = state.readout_logits
        order = computed.logits.topk(size, dim=-1).indices
        return order if computed.ids is None else computed.ids.gather(1, order)

    def _few(self, count):
        """Whether so many ids (a number or `[rows]`) are few enough to gather their rows of the LM head."""
        return count <= GATHER_UP_TO * self.vocabulary

    def _contrast(self, state, computed: ReadoutLogits, kept: Kept | None) -> None:
        """Sets `scores`: of the contrast with earlier layers, or of their ensemble. Counts what these cost.

        Three layers, the JSD contrast without pruning, decisions at layers 2 and 3: layer 1 computes its
        logits for layer 2, which counts them. Layer 3 is contrasted with layer 1 or 2, whichever is farther
        from it, and counts nothing: both have computed their logits before.
        """
        needed = self.needs[state.layer]
        earlier = [state.earlier(state.layer - layer) for layer in needed.layers]
        logits = [self._logits(each, kept) for each in earlier]
        logits.append(computed.logits)  # [rows, kept] each, this layer's last
        if kept is not None:  # ids that are not valid for a row are left out at every layer
            invalid = torch.isinf(computed.logits)
            logits = [of_layer.masked_fill(invalid, LOWEST) for of_layer in logits]
        *amateurs, expert = logits
        if self.ensemble:
            ids = None if kept is None else kept.ids
            computed.scores = self.ensemble([*needed.layers, state.layer], logits, ids)
        elif self.contrast.kind == "weighted":
            computed.scores = weighted_contrast(expert, amateurs[0], self.contrast.alpha)
        elif kept is None:
            # as `jsd_contrast`; a layer keeps its distribution for those after it
            *others, own = [each.memo("distribution", _distribution) for each in (*earlier, state)]
            chosen = farthest(own, others)
            computed.scores = contrast_with(expert, torch.stack(amateurs), chosen, self.contrast.alpha)
        else:
            computed.scores, _ = jsd_contrast(expert, torch.stack(amateurs), self.contrast.alpha)
        # earlier layers that compute logits for the first time score all ids; over a few kept ids each anew
        rows = needed.unseen * self.vocabulary
        if kept is not None:
            rows = np.where(self._few(kept.count), len(needed.layers) * kept.readout_rows, rows)
        computed.readout_rows = computed.readout_rows + rows


def _ranking(state) -> tuple[Tensor]:
    """All ids of a layer, best first, `[rows, vocabulary]`."""
    return (state.full_logits.argsort(dim=-1, descending=True, stable=True),)


def _distribution(state) -> Distribution:
    """Over all ids; kept with the layer, since every later layer is compared with it."""
    return Distribution.from_logits(state.full_logits)


def at_least_single(logits: Tensor) -> Tensor:
    """The same logits in single precision, or in double if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()
