"""Vocabulary pruning: which ids the layers after the first deciding one still score ("Not all FLOPs").

| kind | ids at layer l | source |
|---|---|---|
| fixed | `k` | the paper |
| decaying | `k`, then `max(k*, floor(k' / (1 + (k' - k*) / k* . (l - 1) / L)))`, `k'` at l - 1 | the paper |
| decaying, "closed" | the same with `k` and `l` in place of `k'` and `l - 1`, from the first | its code |
| adaptive | `floor(V (1 - 0.9 c))`, `c` the confidence at the layer before | the paper |

The first layer that decides scores all `V` ids, and ranks them. The last layer, too, scores only the kept
ids, as published: a token whose id is not among them is wrong even if it never exits. With `last_layer=False`
it scores all ids, so that a token that runs through all layers is the one of full depth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

from ..common.errors import MeeError, check_choice, shown

PRUNINGS = ("fixed", "decaying", "adaptive")
PRUNING_FORMS = ("recursion", "closed")
NEEDED_SIZES = {"top_k": ("fixed", "decaying"), "least_k": ("decaying",)}  # the kinds that need each size


@dataclass(frozen=True)
class Pruning:
    """Which ids are kept.

    Attributes:
        kind: "fixed", "decaying" or "adaptive".
        top_k: ids that are kept after the first deciding layer (fixed, decaying).
        least_k: ids that are kept at least (decaying).
        form: of decaying pruning, "recursion" (the paper) or "closed" (its code).
        last_layer: whether the last layer, too, scores only the ids that are kept (the paper).
    """

    kind: str
    top_k: int | None = None
    least_k: int | None = None
    form: str = "recursion"
    last_layer: bool = True

    @property
    def adaptive(self) -> bool:
        """Whether the number of ids depends on the confidence."""
        return self.kind == "adaptive"

    def sizes(self, first: int, layers: int, vocabulary: int) -> dict[int, int]:
        """How many ids each layer from `first` on scores; if that depends on the confidence, at most.

        >>> Pruning("decaying", top_k=256, least_k=16).sizes(first=4, layers=12, vocabulary=1000)[6]
        35
        """
        largest = min(self.top_k or vocabulary, vocabulary)
        sizes = {first: vocabulary}
        for layer in range(first + 1, layers + 1):
            before = sizes[layer - 1]
            size = largest
            if self.kind == "decaying" and self.form == "closed":
                size = self._decayed(largest, layer, layers)
            elif self.kind == "decaying" and layer > first + 1:
                size = self._decayed(before, layer - 1, layers)
            sizes[layer] = min(before, size)
        return sizes

    def _decayed(self, size: int, layer: int, layers: int) -> int:
        """The fraction in the table of this module."""
        above_least = (size - self.least_k) / self.least_k
        return max(self.least_k, int(size / (1 + above_least * layer / layers)))


def pruning_of(
    kind: str | None, top_k: object, least_k: object, form: str, last_layer: object
) -> Pruning | None:
    """What these options of `ExitPolicy` describe; None without pruning.

    Raises `MeeError` for an unknown kind or form, sizes that are missing, out of range or mean nothing, and
    a last layer that is exempt from no pruning.
    """
    if kind is not None:
        check_choice("pruning", kind, PRUNINGS)
    check_choice("pruning_form", form, PRUNING_FORMS)
    sizes = {"top_k": top_k, "least_k": least_k}
    for mistake in _mistakes(kind, sizes, form, last_layer):
        raise MeeError(mistake)
    if kind is None:
        return None
    kept = {name: int(size) for name, size in sizes.items() if size is not None}
    return Pruning(kind, **kept, form=form, last_layer=last_layer)


def _mistakes(kind: str | None, sizes: dict[str, object], form: str, last_layer: object) -> Iterator[str]:
    for name, size in sizes.items():
        needed = kind in NEEDED_SIZES[name]
        whole = isinstance(size, Integral) and not isinstance(size, bool) and size >= 1
        if needed and not whole:
            yield f'{name}={shown(size)}: pruning="{kind}" needs a whole number of ids from 1 on.'
        if not needed and size is not None:
            kinds = " or ".join(map(repr, NEEDED_SIZES[name]))
            yield f"{name}={shown(size)} means nothing without pruning={kinds}: leave it out."
    if kind == "decaying" and sizes["least_k"] > sizes["top_k"]:
        yield f"least_k={sizes['least_k']} is more than top_k={sizes['top_k']}: ids can only become fewer."
    if kind != "decaying" and form != "recursion":
        yield f'pruning_form="{form}" belongs to pruning="decaying": leave it out.'
    if not isinstance(last_layer, bool):
        yield f"prune_last_layer={shown(last_layer)}: give True (as published) or False."
    elif kind is None and not last_layer:
        yield "prune_last_layer=False means nothing without pruning: leave it out."
