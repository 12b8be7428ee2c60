"""Confidence measures: what is known of a token at a layer -> one number a row.

A measure is a class with one method, `confidence(state)`. `state` is the token at one layer, for several rows
at once. It offers, each computed on first use:

| attribute | per row |
|---|---|
| `layer`, `layers` | this layer and the depth (one number for all rows) |
| `top1_probability`, `top1_id`, `margin`, `entropy` | of the readout at this layer |
| `similarity` | cosine of this layer's normalised state with the layer before's (layer 1: the embedding) |
| `state` | the normalised state `n(h)`, `[rows, d_model]` |
| `sequence`, `position` | index of the input, and how many tokens it has emitted |
| `token_before` | the token emitted before this one, -1 at the start |
| `earlier(k)` | the same rows k layers before |
| `recall(key, make)` | what a measure keeps with this layer: `make(state)`, a tuple of `[rows, ...]` |
| `so_far(name)` | an attribute at every exit so far, this one last: a tuple of `[rows]` |

An *exit* is a layer at which the policy decides. The token that leaves is always this layer's own top-1, so
that rules which count exits ask how many of them support that token.

The attributes are tensors while decoding and numpy arrays in a replay; a measure that keeps to operators
works on both. To add one: write its class here and name it in `MEASURES`.
"""

from collections.abc import Sequence
from functools import cache, reduce
from itertools import accumulate, pairwise, zip_longest
from math import e, inf
from operator import and_, attrgetter

import numpy as np

from ..common.errors import MeeError, check_choice, check_whole
from .equality import EqualByValue

NEVER = np.iinfo(np.int64).max  # a layer that no decoder has


class Measure(EqualByValue):
    """What every measure has; a new one overrides `confidence` and what of the rest differs.

    Measures of one class are equal if their attributes are, so that equal policies are equal.
    """

    name = ""  # as in `ExitPolicy(measure=...)`
    range = (0.0, 1.0)  # the values that thresholds may take
    default_threshold = 0.9
    whole = False  # whether thresholds are whole numbers
    readout = False  # whether it looks at probabilities, that is, multiplies by the vocabulary
    lookback = 0  # how many earlier layers it looks at
    min_layer: int | None = None  # where it begins to decide by default; None: the model's `min_exit_layer`
    from_first = False  # whether it must have seen every layer from the first on (recurrent measures)
    looks_ahead = False  # whether it needs later layers too (the oracle): decoding then runs all of them
    has_threshold = True  # whether a threshold means anything to it
    counts_exits = False  # whether it joins the exits so far
    sees: int | None = None  # how many layers a decision sees; None: one and `lookback`, or all exits so far
    lens = None  # `lens(state)`: what is read out in place of `n(h)` before the last layer, `[rows, d_model]`
    ensemble = None  # `ensemble(layers, logits, ids)`: scores `[rows, ids]`, from the logits of exits so far

    def confidence(self, state):
        """One number per row, `[rows]`; the token exits if it exceeds the threshold."""
        raise NotImplementedError

    def flops(self, d_model: int) -> int:
        """FLOPs of one decision besides the readout; products of matrices only."""
        return 0

    def check_model(self, model) -> None:
        """Raises `MeeError` if the measure belongs to another model (trained measures)."""

    def __repr__(self) -> str:
        return f'{type(self).__name__}("{self.name}")'


class SoftmaxMargin(Measure):
    """`p(1) - p(2)`, the two largest probabilities (CALM)."""

    name, readout, confidence = "softmax_margin", True, attrgetter("margin")


class MaxProbability(Measure):
    """`p(1)`, the largest probability (the default of CALM's code)."""

    name, readout, confidence = "max_probability", True, attrgetter("top1_probability")


class HiddenSimilarity(Measure):
    """`cos(n(h^l), n(h^(l-1)))`: the state has stopped changing (CALM). Needs no readout."""

    name, range, confidence, sees = "hidden_similarity", (-1.0, 1.0), attrgetter("similarity"), 2


class RisingTop1(Measure):
    """The top-1 probability, if it rose strictly over the last three layers, else 0 (MEE, section 5).

    A threshold of 0.9 gives the rule as published.
    """

    name, readout, lookback = "rising_top1", True, 2

    def confidence(self, state):
        first, second = (state.earlier(back).top1_probability for back in (2, 1))
        third = state.top1_probability
        return third * ((third > second) & (second > first))


class Entropy(Measure):
    """`exp(-H)`, one over the perplexity: exceeds t where `H < -log t` (BranchyNet, DeeBERT)."""

    name, readout = "entropy", True

    def confidence(self, state):
        return e**-state.entropy


class Patience(Measure):
    """At how many exits in a row, this one included, the top-1 was the same (PABEE, LeeBERT).

    The patience p is the threshold: a token leaves after p + 1 equal predictions. PABEE's best p is 6.
    """

    name, readout, counts_exits = "patience", True, True
    range, default_threshold, whole = (0.0, inf), 6.0, True

    def confidence(self, state):
        ids = state.so_far("top1_id")
        return sum(accumulate((before == ids[-1] for before in ids[::-1]), and_)) * 1.0


class Vote(Patience):
    """How many of the exits so far predict what this one does, in a row or not (Sun et al. 2021)."""

    name = "vote"

    def confidence(self, state):
        ids = state.so_far("top1_id")
        return sum((before == ids[-1]) * 1.0 for before in ids)


class WeightedVote(Vote):
    """The same, a vote weighing as much as the probability that its exit gives it."""

    name, whole = "weighted_vote", False

    def confidence(self, state):
        ids, votes = state.so_far("top1_id"), state.so_far("top1_probability")
        return sum((before == ids[-1]) * vote for before, vote in zip(ids, votes, strict=True))


class PatientEntropy(Measure):
    """The least `exp(-H)` of the last `patience` exits, 0 until there are so many (PCEE-BERT, as written).

    So many exits in a row were sure, whatever they predicted. (The public code is `Patience`: `H` is unused.)
    """

    name, readout, counts_exits = "pcee", True, True

    def __init__(self, patience: int = 2):
        self.patience = self.sees = check_whole("patience", patience)

    def confidence(self, state):
        entropies = state.so_far("entropy")[-self.patience :]
        highest = reduce(lambda a, b: a * (a >= b) + b * (b > a), entropies)
        return e**-highest * (len(entropies) == self.patience)


class ConfidenceWindow(Measure):
    """`exp(-H)`, or 1 where the top-1 probability has risen to far above one half (ELBERT).

    Risen: strictly over the last `window` exits; far: by `distance` (0.4 is MEE's 0.9). The forerunner of
    MEE's rising top-1, which has no first half.
    """

    name, readout, counts_exits = "elbert", True, True

    def __init__(self, window: int = 3, distance: float = 0.4):
        self.window, self.distance = check_whole("window", window, 2), distance
        self.sees = self.window

    def confidence(self, state):
        window, sure = state.so_far("top1_probability")[-self.window :], e**-state.entropy
        risen = (window[-1] > 0.5 + self.distance) & (len(window) == self.window)
        for before, after in pairwise(window):
            risen = risen & (after > before)
        return sure * ~risen + risen


class Static(Measure):
    """Exits at one fixed layer, the policy's `min_layer`, whatever the token."""

    name, has_threshold = "static", False

    def confidence(self, state):
        return np.ones(len(state.sequence))


class Oracle(Measure):
    """Exits at the first layer from which the prediction is the last layer's for good; no rule knows it."""

    name, looks_ahead, has_threshold, readout, min_layer = "oracle", True, False, True, 1
    confidence = attrgetter("settled")


class ForcedExits(Measure):
    """Exits that are given beforehand: for tests, for benchmarks, and to decode again as another run did.

    `layers` are the exit layers of each token for each input; tokens beyond the end of a list run all layers.
    """

    name, has_threshold, min_layer = "forced", False, 1

    def __init__(self, layers: Sequence[Sequence[int]]):
        try:  # `[token, input]`, and a last row for the tokens beyond
            self.table = np.array([*zip_longest(*layers, fillvalue=NEVER), [NEVER] * len(layers)])
        except (TypeError, ValueError):
            self.table = np.empty(0)
        given = self.table.ndim == 2 and self.table.size and self.table.dtype.kind in "iu"
        if not given or self.table.min() < 1:
            wanted = "one list of layers (whole numbers from 1 on) for each input"
            raise MeeError(f"ForcedExits takes {wanted}.")

    def confidence(self, state):
        tokens, inputs = self.table.shape
        if state.sequence.max() >= inputs:
            raise MeeError(f"ForcedExits has lists for {inputs} inputs: give one for each.")
        place = np.minimum(state.position, tokens - 1)
        return (self.table[place, state.sequence] <= state.layer).astype(np.float64)


_NAMED = (SoftmaxMargin, MaxProbability, HiddenSimilarity, RisingTop1, Static, Oracle)
_SURVEY = (Entropy, Patience, Vote, WeightedVote, PatientEntropy, ConfidenceWindow)
MEASURES: dict[str, type[Measure]] = {measure.name: measure for measure in (*_NAMED, *_SURVEY)}
TRAINED = [f"{kind}_classifier" for kind in ("linear", "hidden", "low_rank", "three_hidden", "lstm")]
TRAINED += ["learning_to_exit", "q_exit", "ztw", "past_future", "token_hash"]


def find_measure(measure: str | Measure) -> Measure:
    """A measure by name, always the same object, or the object given.

    Raises `MeeError` for an unknown name, one that needs training, or something that is no measure.
    """
    if isinstance(measure, Measure):
        return measure
    if isinstance(measure, type):
        raise MeeError(f"measure={measure.__name__} is a class: give an instance, {measure.__name__}(...).")
    if not isinstance(measure, str):
        shown = " ".join(repr(measure).split())
        raise MeeError(f'measure={shown:.60}: give a name, such as "softmax_margin", or a Measure.')
    if measure in TRAINED:
        raise MeeError(f'"{measure}" needs a trained classifier: give the classifier as the measure.')
    check_choice("measure", measure, [*MEASURES, *TRAINED])
    return _named(measure)


@cache
def _named(name: str) -> Measure:
    return MEASURES[name]()
