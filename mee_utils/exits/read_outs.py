"""Read-outs: from a state to scores over token ids, all of them or a kept few ("Not all FLOPs", vocabulary pruning).

At the first block that a policy reads out, all `V` ids are scored, once. Later blocks score only ids that are kept, in order of score:

| pruning | ids at block l | source |
|---|---|---|
| none | `V` | |
| fixed | `k` | the paper |
| decaying | `k_l = max(k*, floor(k_(l-1) / (1 + (k_(l-1) - k*) / k* . l / L)))`, begun at `k` | the paper's recursion |
| decaying, "closed" | the same with `k` in place of `k_(l-1)` | its code |
| adaptive | `floor(V (1 - 0.9 c))`, `c` the confidence at the block before | the paper |

Probabilities are exact softmaxes over the kept ids; the token is the id of the best of them, at the last block too. Every row keeps ids of its own,
and the rows of `W` that belong to them are gathered when the ids change, not at every block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import CompanionError, check_choice
from .contrast import ALPHA, CONTRASTS, check_alpha, jsd_contrast, weighted_contrast

PRUNINGS = ("fixed", "decaying", "adaptive")
FORMS = ("recursion", "closed")
LOWEST = -1e4  # a logit that gives no probability to speak of
GATHER_BELOW = 2  # a row alone gathers its rows of W where it keeps at most one id in so many; else all are multiplied and the kept ones picked


@dataclass(frozen=True)
class ReadOut:
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
        for name, value, kinds in (("top_k", self.top_k, ("fixed", "decaying")), ("least_k", self.least_k, ("decaying",))):
            if self.pruning in kinds:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise CompanionError(f'{name}={value!r}: pruning="{self.pruning}" needs a whole number of ids from 1 on.')
            elif value is not None:
                raise CompanionError(f"{name}={value!r} means nothing without pruning={' or '.join(map(repr, kinds))}: leave it out.")
        if self.pruning == "decaying" and self.least_k > self.top_k:
            raise CompanionError(f"least_k={self.least_k} is more than top_k={self.top_k}: ids can only become fewer.")
        if self.form != "recursion" and self.pruning != "decaying":
            raise CompanionError(f'pruning_form="{self.form}" belongs to pruning="decaying": leave it out.')
        if self.contrast is None and (self.contrast_token or self.alpha != ALPHA):
            raise CompanionError('contrast_token and contrast_alpha need contrast="weighted" or "jsd".')

    @property
    def plain(self) -> bool:
        """Whether all ids are read out and nothing is contrasted."""
        return self.pruning is None and self.contrast is None

    def sizes(self, first: int, layers: int, vocabulary: int) -> dict[int, int]:
        """How many ids blocks `first` to `layers` read out; not for "adaptive", where it depends on the confidence."""
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
        """The first block whose state is needed where the first decision reads out block `first`."""
        return {"weighted": max(1, first // 2), "jsd": 1}.get(self.contrast, first)


@dataclass
class Reading:
    """What a block says of some rows.

    Attributes:
        logits: `[rows, kept]`, in single precision at least.
        ids: `[rows, kept]`, which tokens they belong to, best first as the block before had them; None: all ids in their order.
        products: for each row, how many rows of `W` it multiplies at this block, `[rows]`, as if it were alone (see `Reader`).
        scores: what confidence is taken from: `logits`, or the log-probabilities of the contrast.
    """

    logits: Tensor
    ids: Tensor | None
    products: np.ndarray
    scores: Tensor

    def tokens(self, contrast: bool) -> Tensor:
        """The best id of every row."""
        values = self.scores if contrast else self.logits
        if self.ids is None:
            return values.argmax(dim=-1)
        worse = values < values.amax(dim=-1, keepdim=True)  # of equals the first id, as where all are read out
        return self.ids.masked_fill(worse, torch.iinfo(self.ids.dtype).max).amin(dim=-1)


class Reader:
    """Reads out blocks as a `ReadOut` says.

    A row alone gathers the rows of `W` of the ids it keeps. A batch whose rows would gather more than all of `W` multiplies all of it, once for
    everyone, and picks: more operations in less time. `Reading.products` counts what the row needs alone, so that it does not depend on its neighbours.
    A pruned contrast scores its amateurs anew at every block, over the ids kept there; scores that some of them had earlier are not looked up.

    Args:
        read_out: how.
        asked: the blocks at which the policy decides, ascending; the last block, where the token is read out at the latest, is added.
        first: the block whose best ids are kept; blocks before it that a measure looks back at are read out in full.
        layers: blocks of the decoder.
        vocabulary: ids.
    """

    def __init__(self, read_out: ReadOut, asked: tuple[int, ...], first: int, layers: int, vocabulary: int):
        self.read_out, self.first, self.layers, self.vocabulary = read_out, first, layers, vocabulary
        self.sizes = read_out.sizes(first, layers, vocabulary) if read_out.pruning != "adaptive" else {}
        contrasted = [*asked, *([layers] if read_out.contrast_token else [])] if read_out.contrast else []
        self.amateurs = {layer: self._amateurs(layer) for layer in contrasted}
        seen = set(range(first, layers + 1))
        self.unseen = {}  # amateurs whose scores over all ids are made at this block for the first time
        for layer in contrasted:
            self.unseen[layer] = [block for block in self.amateurs[layer] if block not in seen]
            seen |= set(self.unseen[layer])

    def _amateurs(self, layer: int) -> list[int]:
        return [layer // 2] if self.read_out.contrast == "weighted" else list(range(1, layer))

    def read(self, now) -> Reading:
        """Reads out the present token at one block; of `now`, `state`, `logits`, `rows_of_head`, `times`, `earlier` and `recall` are used."""
        kept = None
        if self.read_out.pruning is not None and now.layer > self.first:
            kept = now.earlier(1).recall("kept", self._keep)
        if kept is None or kept[4]:
            reading = Reading(now.logits, None, np.full(len(now.state), self.vocabulary), now.logits)
            kept = None
        else:
            logits = self._over(now, now, kept)
            reading = Reading(logits, kept[0], kept[3], logits)
        if now.layer in self.amateurs:
            self._contrast(now, reading, kept)
        return reading

    def _over(self, now, block, kept) -> Tensor:
        """Scores of a block's state over the kept ids, `[rows, kept]`; what does not count for a row is minus infinity."""
        ids, weights, count, *_ = kept
        logits = now.times(block.state, weights) if weights.ndim == 3 else block.logits.gather(1, ids)
        if self.read_out.pruning == "adaptive":
            beyond = np.arange(ids.shape[1])[None] >= count[:, None]
            if beyond.any():
                logits = logits.masked_fill(torch.from_numpy(beyond).to(ids.device), -torch.inf)
        return logits

    def _few(self, count):
        return count * GATHER_BELOW <= self.vocabulary

    def _keep(self, now) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray, bool]:
        """What the next block keeps: `ids` `[rows, k]`, their `weights` `[rows, k, d_model]` (or none, `[rows, 0]`); on the host `count` `[rows]`, rows
        of `W` that each multiplies alone, and whether all ids are kept by all rows."""
        if self.read_out.pruning == "adaptive":
            confidence = np.nan_to_num(np.broadcast_to(np.asarray(now.asked, dtype=np.float64), len(now.rows))).clip(0, 1)
            count = np.floor(self.vocabulary * (1 - 0.9 * confidence)).astype(np.int64).clip(min=1)
            ordered = now.earlier(now.layer - self.first).recall("order", lambda block: (block.logits.argsort(dim=-1, descending=True, stable=True),))
            return self._kept(now, ordered[0][:, : int(count.max())], count)
        size, before = self.sizes[now.layer + 1], self.sizes[now.layer]
        if size == before and now.layer > self.first:
            return now.earlier(1).recall("kept", self._keep)
        reading = now.reading
        order = reading.logits.topk(min(size, reading.logits.shape[-1]), dim=-1).indices
        ids = order if reading.ids is None else reading.ids.gather(1, order)
        return self._kept(now, ids, np.full(len(ids), size))

    def _kept(self, now, ids: Tensor, count: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray, bool]:
        few = self._few(ids.shape[1]) and ids.numel() <= self.vocabulary
        weights = now.rows_of_head(ids) if few else ids.new_empty((len(ids), 0))
        return ids, weights, count, np.where(self._few(count), count, self.vocabulary), bool((count >= self.vocabulary).all())

    def _contrast(self, now, reading: Reading, kept) -> None:
        """Puts the contrast into `reading.scores`, and what its amateurs cost into `reading.products`."""
        blocks, logits = self.amateurs[now.layer], reading.logits
        earlier = [now.earlier(now.layer - block) for block in blocks]
        over = [block.logits if kept is None else self._over(now, block, kept) for block in earlier]
        if kept is not None:  # ids that do not count are left out of both distributions
            gone = torch.isinf(logits)
            logits, over = logits.masked_fill(gone, LOWEST), [scores.masked_fill(gone, LOWEST) for scores in over]
        if self.read_out.contrast == "weighted":
            reading.scores = weighted_contrast(logits, over[0], self.read_out.alpha)
        else:
            reading.scores, _ = jsd_contrast(logits, torch.stack(over), self.read_out.alpha)
        anew = len(self.unseen[now.layer]) * self.vocabulary
        if kept is not None:
            anew = np.where(self._few(kept[2]), len(blocks) * kept[3], anew)
        reading.products = reading.products + anew
