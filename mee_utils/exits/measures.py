"""Confidence measures: from what is known of a token at a layer to one number, its confidence.

A measure is a class with one method, `confidence(state)`. It returns one number per row, `[rows]`; the token
exits at the first layer where that number exceeds the threshold. `state` is the present token of several rows
(outputs of a batch) at one layer. Its attributes are computed on first use:

| attribute | per row |
|---|---|
| `layer`, `layers` | this layer, from 1 on, and the depth L (one number for all rows) |
| `top1_probability`, `top1_id` | the largest probability of this layer, and the id that has it |
| `margin` | the largest probability minus the second largest |
| `entropy` | of this layer's probabilities, in nats: from 0 to the log of the number of ids |
| `similarity` | cosine of this layer's normalised state with the layer before's (layer 1: the embedding) |
| `state` | the normalised state `n(h)`, `[rows, d_model]`, a tensor |
| `logits`, `probabilities` | `[rows, ids]`, of all ids or of those that pruning keeps, tensors |
| `sequence`, `position` | index of the input, and how many tokens its output has so far |
| `token_before` | the token emitted before this one, -1 at the start |
| `source_tokens`, `in_source` | how long the input is, and whether the token predicted here stands in it |
| `earlier(k)` | the same rows k layers before |
| `so_far(name)` | an attribute at every decision layer so far, this one last: a tuple of `[rows]` |
| `memo(key, compute)` | `compute(state)`, a tuple of `[rows, ...]`, computed once for each layer |

A *decision layer* is a layer at which the policy decides. An example with three of them: a token is decided
at layers 2, 4 and 6, where the most probable ids are 7, 9 and 9. At layer 6 `so_far("top1_id")` is
`(7, 9, 9)`; `Patience` gives 2 (the last two agree), and so does `Vote` (two of three predict 9).

The token of an exit is this layer's own top-1 (of its lens or ensemble, where a measure has one): rules that
count decision layers count those that predict that token too.

Attributes are tensors while decoding and numpy arrays in a replay; a measure that keeps to operators works on
both. `state`, `logits` and `probabilities` are tensors in a replay too: it computes them from the states that
`trace(..., states=file)` has stored.

To add a measure, write its class. Pass an instance to use it. Name it in `MEASURES` to use it by name and in
`companion/rules.yaml`; add a case with its definition to `tests/test_policies.py`, and run it with
`pytest tests/test_policies.py tests/test_planning.py`.
"""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from itertools import pairwise
from math import e, inf

import numpy as np
import torch

from ..common.errors import MeeError, check_whole, is_number, nearest, shown
from .equality import EqualByValue

NEVER = np.iinfo(np.int64).max  # a layer that no decoder has


class Measure(EqualByValue):
    """Base class of confidence measures: a new one overrides `confidence`, and whatever else differs.

    Measures of one class are equal if their attributes are, so that equal policies are equal.
    """

    name = ""  # as in `ExitPolicy(measure=...)`; by default that of the class
    range = (0.0, 1.0)  # lowest and highest threshold; confidences do not exceed the highest
    default_threshold = 0.9  # set it too where `range` is another
    has_threshold = True  # False: confidence is 0 or 1, and decides alone
    integer_threshold = False
    min_layer: int | None = None  # first layer that decides by default; None: the model's `min_exit_layer`

    # whether it looks at this layer's logits, or at what is computed from them (probabilities, `margin`,
    # `in_source` and so on): a product with the LM head at each decision
    readout = False
    lookback = 0  # how many layers before this one it needs, by `earlier`
    uses_exit_history = False  # whether it needs all decision layers so far, by `so_far`
    recurrent = False  # whether it has to run at every layer from the first on, deciding there or not
    needs_all_layers = False  # whether it needs later layers too (the oracle): decoding then runs all of them

    # `lens(state)`: the states that are multiplied with the LM head before the last layer, `[rows, d_model]`
    lens = None
    # `ensemble(layers, logits, ids)`: scores `[rows, ids]` from the logits at all decision layers so far
    ensemble = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        unnamed = ["", *(base.__name__ for base in cls.__bases__)]  # a parent without a name has its class's
        if cls.name in unnamed:
            cls.name = cls.__name__

    def confidence(self, state):
        """One number per row, `[rows]`; the token exits if it exceeds the threshold."""
        missing = f"{type(self).__name__} has no method confidence(self, state)"
        raise MeeError(f"{missing}: write one that returns one number per row.")

    @property
    def layers_used(self) -> int | None:
        """How many layers one decision looks at; None: all so far."""
        return None if self.recurrent or self.uses_exit_history else 1 + self.lookback

    def flops(self, d_model: int) -> int:
        """FLOPs of one decision besides the logits; products of matrices only."""
        return 0

    def check_model(self, model) -> None:
        """Raises `MeeError` if the measure belongs to another model (trained measures)."""

    def __repr__(self) -> str:
        options = [name for name in signature(type(self)).parameters if name in vars(self)]
        values = ", ".join(f"{name}={vars(self)[name]!r}" for name in options)
        return f"{type(self).__name__}({values})"


# ---- one layer


class SoftmaxMargin(Measure):
    """`p(1) - p(2)`, the difference of the two largest probabilities (CALM)."""

    name = "softmax_margin"
    readout = True

    def confidence(self, state):
        return state.margin


class MaxProbability(Measure):
    """`p(1)`, the largest probability (the default of CALM's code)."""

    name = "max_probability"
    readout = True

    def confidence(self, state):
        return state.top1_probability


class Entropy(Measure):
    """`exp(-H)`, one over the perplexity: exceeds t where `H < -log t` (BranchyNet, DeeBERT)."""

    name = "entropy"
    readout = True

    def confidence(self, state):
        return e**-state.entropy


# ---- the last two or three layers


class HiddenSimilarity(Measure):
    """`cos(n(h^l), n(h^(l-1)))`: the state has stopped changing (CALM). Needs no logits."""

    name = "hidden_similarity"
    range = (-1.0, 1.0)
    layers_used = 2

    def confidence(self, state):
        return state.similarity


class RisingTop1(Measure):
    """The top-1 probability, if it rose strictly over the last three layers, else 0 (MEE, section 5).

    A threshold of 0.9 gives the rule as published.
    """

    name = "rising_top1"
    readout = True
    lookback = 2

    def confidence(self, state):
        first = state.earlier(2).top1_probability
        second = state.earlier(1).top1_probability
        third = state.top1_probability
        return third * ((third > second) & (second > first))


# ---- all decision layers so far


class Patience(Measure):
    """At how many decision layers in a row, this one included, the top-1 was the same (PABEE, LeeBERT).

    The patience p is the threshold: a token exits after p + 1 equal predictions. PABEE's best p is 6.
    """

    name = "patience"
    range = (0.0, inf)
    default_threshold = 6.0
    integer_threshold = True
    readout = True
    uses_exit_history = True

    def confidence(self, state):
        ids = state.so_far("top1_id")
        agrees = stack(ids[::-1]) == ids[-1]  # [decision layer, rows], the latest first
        return agrees.cumprod(0).sum(0) * 1.0


class Vote(Patience):
    """How many decision layers so far predict what this one does, in a row or not (Sun et al. 2021)."""

    name = "vote"

    def confidence(self, state):
        ids = state.so_far("top1_id")
        agrees = stack(ids) == ids[-1]  # [decision layer, rows]
        return agrees.sum(0) * 1.0


class WeightedVote(Vote):
    """The same, each vote weighted by the probability that its decision layer gives to its prediction."""

    name = "weighted_vote"
    integer_threshold = False

    def confidence(self, state):
        ids = state.so_far("top1_id")
        probabilities = state.so_far("top1_probability")
        votes = 0.0
        for top1_id, probability in zip(ids, probabilities, strict=True):
            votes = votes + (top1_id == ids[-1]) * probability
        return votes


class PatientEntropy(Measure):
    """The least `exp(-H)` of the last `patience` decision layers, 0 before there are so many (PCEE-BERT).

    It is high if that many decision layers in a row were confident, whatever they predicted. This is the
    rule as the paper has it; its public code computes `H`, does not use it, and is `Patience`.
    """

    name = "pcee"
    readout = True
    uses_exit_history = True

    def __init__(self, patience: int = 2):
        self.patience = check_whole("patience", patience)

    @property
    def layers_used(self) -> int:
        return self.patience

    def confidence(self, state):
        entropies = state.so_far("entropy")[-self.patience :]
        stacked = stack(entropies)  # [decision layer, rows]
        largest = stacked.amax(0) if isinstance(stacked, torch.Tensor) else stacked.max(0)
        return e**-largest * (len(entropies) == self.patience)


class ConfidenceWindow(Measure):
    """`exp(-H)`, or 1 where the top-1 probability has risen to far above one half (ELBERT).

    Risen: strictly over the last `window` decision layers; far: by `distance` (0.4 above one half is MEE's
    0.9). MEE's rising top-1, published later, is the second half alone.
    """

    name = "elbert"
    readout = True
    uses_exit_history = True

    def __init__(self, window: int = 3, distance: float = 0.4):
        self.window = check_whole("window", window, 2)
        if not is_number(distance):
            raise MeeError(f"distance={shown(distance)}: give a number (MEE: 0.4).")
        self.distance = float(distance)

    @property
    def layers_used(self) -> int:
        return self.window

    def confidence(self, state):
        certainty = e**-state.entropy
        window = state.so_far("top1_probability")[-self.window :]
        if len(window) < self.window:
            return certainty
        risen = window[-1] > 0.5 + self.distance
        for before, after in pairwise(window):
            risen = risen & (after > before)
        return certainty * ~risen + risen


# ---- without a threshold


class Static(Measure):
    """Exits at one fixed layer, the policy's `min_layer`, whatever the token."""

    name = "static"
    has_threshold = False

    def confidence(self, state):
        return np.ones(len(state.sequence))


class Oracle(Measure):
    """Exits at the first layer from which on the prediction is the last layer's; no rule can know it."""

    name = "oracle"
    has_threshold = False
    min_layer = 1
    needs_all_layers = True

    def confidence(self, state):
        return state.settled


class ForcedExits(Measure):
    """Exits that are given beforehand: for tests, for benchmarks, and to decode again as another run did.

    `ForcedExits([[2, 3], [6]])` lets the first output's tokens exit at layers 2 and 3, and the first token of
    the second output at layer 6. Tokens beyond the end of a list run all layers.
    """

    name = "forced"
    has_threshold = False
    min_layer = 1

    def __init__(self, layers: Sequence[Sequence[int]]):
        try:
            lists = [np.asarray(each) for each in layers]
        except (TypeError, ValueError):
            lists = []
        if not lists or not all(map(_are_layers, lists)):
            wanted = "one list of layers (whole numbers from 1 on) for each input"
            raise MeeError(f"ForcedExits takes {wanted}.")
        longest = max(map(len, lists))
        # [token, input]; the last row is for all tokens beyond the longest list
        self.table = np.full((longest + 1, len(lists)), NEVER)
        for number, each in enumerate(lists):
            self.table[: len(each), number] = each

    def confidence(self, state):
        tokens, inputs = self.table.shape
        if state.sequence.max() >= inputs:
            raise MeeError(f"ForcedExits has lists for {inputs} inputs: give one for each.")
        token = np.minimum(state.position, tokens - 1)
        return (self.table[token, state.sequence] <= state.layer).astype(np.float64)


def _are_layers(values: np.ndarray) -> bool:
    """Whether an array is a list of whole numbers from 1 on; an empty list is one."""
    return values.ndim == 1 and (not values.size or (values.dtype.kind in "iu" and values.min() >= 1))


def check_not_infinite(measure: Measure, confidences: np.ndarray) -> None:
    """Raises `MeeError` for infinite confidences: no threshold is larger, so such a token always exits."""
    if np.isinf(confidences).any():
        raise MeeError(f'"{measure.name}" gives infinite confidences: let it give finite ones.')


def stack(values: Sequence):
    """The values at several decision layers, `[rows]` each, as one array or tensor `[layer, rows]`."""
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else np.stack(values)


MEASURES: dict[str, type[Measure]] = {
    measure.name: measure
    for measure in (
        SoftmaxMargin,
        MaxProbability,
        HiddenSimilarity,
        RisingTop1,
        Static,
        Oracle,
        Entropy,
        Patience,
        Vote,
        WeightedVote,
        PatientEntropy,
        ConfidenceWindow,
    )
}
TRAINED = [
    "linear_classifier",
    "hidden_classifier",
    "low_rank_classifier",
    "three_hidden_classifier",
    "lstm_classifier",
    "learning_to_exit",
    "q_exit",
    "ztw",
    "past_future",
    "exit_heads",
    "token_hash",
    "history_classifier",
]


def find_measure(measure: str | Measure) -> Measure:
    """A measure by name, always the same object, or the object given.

    Raises `MeeError` for an unknown name, one that needs training, or something that is no measure.
    """
    if isinstance(measure, Measure):
        return measure
    if isinstance(measure, type) and issubclass(measure, Measure):
        raise MeeError(f"measure={measure.__name__} is a class: give an instance, {measure.__name__}(...).")
    if not isinstance(measure, str):
        raise MeeError(f'measure={shown(measure)}: give a name, such as "softmax_margin", or a Measure.')
    if measure in TRAINED:
        raise MeeError(f'"{measure}" needs a trained classifier: give the classifier as the measure.')
    if measure not in MEASURES:
        names = nearest(measure, [*MEASURES, *TRAINED])
        raise MeeError(f'Unknown measure "{measure}": {names} Or give a Measure object.')
    return _named(measure)


@cache
def _named(name: str) -> Measure:
    return MEASURES[name]()
