"""Threshold schedules: how confident is confident enough, at each position of the output.

| schedule | threshold at position t of at most N tokens | source |
|---|---|---|
| constant | `lam` | |
| decaying, "scaled" | `lam (0.9 + 0.1 exp(-tau t / N))` | every public implementation |
| decaying, "calm" | `clip(0.9 lam + 0.1 exp(-tau t / N), 0, 1)`, the same if `lam = 1` | CALM, Eq. 5 |
| adaptive | exit where the posterior of "shallow agrees with deep" exceeds `zeta` | FREE (Bae et al., 2023) |
| bandit | the arm with the largest upper confidence bound of its reward | UCBEE, CeeBERT |
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, lgamma, log
from typing import ClassVar

import numpy as np

from ..common.errors import MeeError, check_choice, check_number, check_whole, is_number, plain_number, shown
from .equality import EqualByValue

DECAY_FORMS = ("scaled", "calm")


@dataclass(frozen=True, eq=False)
class Threshold(EqualByValue):
    """A threshold `level` that is constant, or decays with the position in the output.

    With `decay` (the temperature `tau`) early tokens need more confidence than late ones, since errors there
    are read by more tokens. An example of three tokens, all with a confidence of 0.85 at the same layer:

    | position | threshold | exits there? |
    |---|---|---|
    | 0 | 0.9 (0.9 + 0.1 exp(0)) = 0.900 | no |
    | 1 | 0.9 (0.9 + 0.1 exp(-4/3)) = 0.834 | yes |
    | 2 | 0.9 (0.9 + 0.1 exp(-8/3)) = 0.816 | yes |

    >>> Threshold(0.9, decay=4.0).at([0, 1, 2], max_new_tokens=3).round(3).tolist()
    [0.9, 0.834, 0.816]

    Attributes:
        level: the threshold; with a decay, that of the first token.
        decay: the temperature `tau` (CALM: 4), or None for a constant threshold.
        form: "scaled" or "calm", see the table of this module.

    Raises `MeeError` for a level that is no number, a decay not above 0 or an unknown form.
    """

    level: float
    decay: float | None = None
    form: str = "scaled"
    learns: ClassVar[bool] = False  # whether it learns from the tokens that run all layers
    online: ClassVar[bool] = False  # whether its level is found while decoding

    def __post_init__(self):
        self._check_level(self.level)
        if self.decay is not None and (not is_number(self.decay) or not 0 < self.decay < inf):
            wanted = "give a temperature above 0 (CALM: 4), or None for none"
            raise MeeError(f"decay={shown(self.decay)}: {wanted}.")
        check_choice("decay_form", self.form, DECAY_FORMS)
        # a frozen dataclass is written here, and only when made
        object.__setattr__(self, "level", plain_number(self.level))
        if self.decay is not None:
            object.__setattr__(self, "decay", plain_number(self.decay))

    def with_level(self, level: float) -> "Threshold":
        """The same schedule at another level; a `MeeError` if that is no number."""
        self._check_level(level)
        other = copy.copy(self)
        object.__setattr__(other, "level", float(level))
        return other

    @staticmethod
    def _check_level(level: object) -> None:
        """Refuses a level that is no number."""
        if not is_number(level):
            raise MeeError(f"threshold={shown(level)}: give a number.")

    def at(self, position, max_new_tokens: int):
        """The threshold at a position of an output of at most `max_new_tokens` tokens.

        Args:
            position: from 0; a number or an array.
            max_new_tokens: the `N` of the table above.

        Returns:
            A number, or an array of the shape of `position`.
        """
        if self.decay is None:
            return self.level
        fading = 0.1 * np.exp(-self.decay * np.asarray(position) / max_new_tokens)
        level = self.level * (0.9 + fading)
        if self.form == "calm":
            level = np.clip(0.9 * self.level + fading, 0.0, 1.0)
        return level if np.ndim(level) else float(level)

    def exceeded(
        self, confidence: np.ndarray, position, max_new_tokens: int, sequence=None, depth=1.0
    ) -> np.ndarray:
        """Which rows exit at this layer.

        Args:
            confidence: `[rows]`; one that is NaN never exceeds.
            position: of the rows' tokens in their outputs, a number or `[rows]`.
            max_new_tokens: the most tokens of an output.
            sequence: `[rows]`, the index of each row's input; only a bandit needs it.
            depth: this layer as a share of all layers; only a bandit needs it.

        Returns:
            `[rows]`, bool.
        """
        return confidence > self.at(position, max_new_tokens)


class AdaptiveThreshold(Threshold):
    """FREE's adaptive threshold: two Beta distributions over the shallow confidence, refitted now and then.

    A token that has run all layers is a label: did its shallow prediction agree with the deep one?
    Each kind's confidences get a Beta distribution by the method of moments, and a token exits where

        pi_1 Beta(c; a_1, b_1) / (pi_0 Beta(c; a_0, b_0) + pi_1 Beta(c; a_1, b_1)) > zeta.

    The mixing weights `pi` are the shares of the labels (published code leaves them out: how often the two
    agree). Until there are `least` labels of each kind, the constant threshold `initial` decides; then the
    distributions are fitted anew after every `every` labels.

    Attributes:
        zeta: the posterior that has to be exceeded, from 0 to 1.
        initial: the constant threshold before the first fit, from 0 to 1.
        least: labels of each kind before the first fit, at least 1.
        every: labels between two fits, at least 1.
        labels: shallow confidences so far, by whether shallow and deep agreed.
        fitted: shape parameters `(a, b)` of each kind's distribution; None before the first fit.
    """

    learns = True
    online = True
    EDGE = 1e-4  # confidences are kept this far from 0 and 1, where a Beta density may be infinite

    def __init__(self, zeta: float = 0.4, initial: float = 0.9, least: int = 10, every: int = 50):
        super().__init__(check_number("initial", initial, 0, 1))
        self.zeta = check_number("zeta", zeta, 0, 1)
        self.least = check_whole("least", least)
        self.every = check_whole("every", every)
        self.labels: dict[bool, list[float]] = {True: [], False: []}
        self.fitted: dict[bool, tuple[float, float]] | None = None
        self._since_fit = 0  # labels since the last fit

    def __repr__(self) -> str:
        settings = f"zeta={self.zeta}, initial={self.level}, least={self.least}, every={self.every}"
        return f"{type(self).__name__}({settings})"

    def learn(self, confidence: np.ndarray, agrees: np.ndarray) -> None:
        """Adds labels `[rows]`: shallow confidences, and whether the deep prediction was the same."""
        for value, label in zip(confidence.tolist(), agrees.tolist(), strict=True):
            self.labels[bool(label)].append(min(max(value, self.EDGE), 1 - self.EDGE))
        self._since_fit += len(confidence)
        enough = min(map(len, self.labels.values())) >= self.least
        if enough and (self.fitted is None or self._since_fit >= self.every):
            self.fitted = {label: self._fit(values) for label, values in self.labels.items()}
            self._since_fit = 0

    @staticmethod
    def _fit(values: list[float]) -> tuple[float, float]:
        """Shape parameters of a Beta distribution with the sample's mean and variance."""
        mean = float(np.mean(values))
        variance = max(float(np.var(values)), 1e-6)
        strength = max(mean * (1 - mean) / variance - 1, 1e-2)
        return mean * strength, (1 - mean) * strength

    def posterior(self, confidence: np.ndarray) -> np.ndarray:
        """Probability that shallow and deep agree, given the shallow confidence `[rows]`; needs a fit."""
        inside = np.clip(np.asarray(confidence, dtype=np.float64), self.EDGE, 1 - self.EDGE)
        total = sum(map(len, self.labels.values()))
        log_joint = {}  # of the label and the confidence
        for label, (a, b) in self.fitted.items():
            weight = log(len(self.labels[label]) / total)
            scale = weight + lgamma(a + b) - lgamma(a) - lgamma(b)
            log_joint[label] = scale + (a - 1) * np.log(inside) + (b - 1) * np.log1p(-inside)
        return 1.0 / (1.0 + np.exp(np.clip(log_joint[False] - log_joint[True], -700, 700)))

    def exceeded(
        self, confidence: np.ndarray, position, max_new_tokens: int, sequence=None, depth=1.0
    ) -> np.ndarray:
        if self.fitted is None:
            return super().exceeded(confidence, position, max_new_tokens)
        return (self.posterior(confidence) > self.zeta) & ~np.isnan(confidence)


@dataclass
class _Play:
    """One token as a play of a bandit. Depths are shares of all layers."""

    arm: float
    first_confidence: float
    last_confidence: float
    decided_depth: float  # of the last decision
    exit_depth: float = 1.0

    def reward(self, cost: float) -> float:
        """The gain in confidence, minus what the depth costs."""
        return self.last_confidence - self.first_confidence - cost * self.exit_depth


class BanditThreshold(Threshold):
    """A bandit over thresholds, the `arms` (UCBEE, Pacheco et al. 2024; CeeBERT, Bajpai and Hanawal 2024).

    Each output has a bandit to itself, so that a row of a batch gets what it would get alone. Each token is a
    play.

    Arms are tried once in their order, then the one with the largest `mean + exploration sqrt(ln t / n)`.
    The reward is the gain in confidence from the first decision to the last, minus `cost` times the share of
    the depth that was run: at a cost of 1 a layer pays off if it raises the confidence by `1 / L`. No loss is
    guaranteed, unlike with a threshold that learn-then-test finds.

    Attributes:
        arms: at least two thresholds from 0 to 1.
        exploration: how much an arm's bonus for being rarely tried weighs, from 0 on.
        cost: of running all layers, in units of confidence, from 0 on.
        plays: by index of the input, the tokens so far.

    Raises `MeeError` for settings out of range.
    """

    online = True

    def __init__(self, arms: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9), exploration=1.0, cost=1.0):
        listed = arms.tolist() if isinstance(arms, np.ndarray) else arms
        several = isinstance(listed, Sequence) and len(listed) >= 2
        if not several or not all(is_number(arm) and 0 <= arm <= 1 for arm in listed):
            raise MeeError(f"arms={shown(listed)}: give at least two thresholds from 0 to 1.")
        self.arms = tuple(map(float, listed))
        super().__init__(max(self.arms))
        self.exploration = check_number("exploration", exploration)
        self.cost = check_number("cost", cost)
        self.plays: dict[int, list[_Play]] = defaultdict(list)

    def __repr__(self) -> str:
        settings = f"arms={self.arms}, exploration={self.exploration}, cost={self.cost}"
        return f"{type(self).__name__}({settings})"

    def exceeded(
        self, confidence: np.ndarray, position, max_new_tokens: int, sequence=None, depth=1.0
    ) -> np.ndarray:
        exits = []
        positions = np.broadcast_to(position, len(confidence)).tolist()
        for output, at, value in zip(sequence.tolist(), positions, confidence.tolist(), strict=True):
            plays = self.plays[output]
            first_decision = at >= len(plays) or depth <= plays[at].decided_depth
            if first_decision:  # if the token was drafted before, that play and what followed it are void
                del plays[at:]
                plays.append(_Play(self._choose(plays), value, value, depth))
            token = plays[at]
            token.decided_depth = depth
            exits.append(value > token.arm)
            # a row whose token has exited may stay in the batch, masked, and is asked again at deeper layers
            # (see `mee_utils.decoding.token.TokenRun`): what it says there does not count
            if token.exit_depth == 1.0:
                token.last_confidence = value
                token.exit_depth = depth if exits[-1] else 1.0
        return np.array(exits, dtype=bool)

    def _choose(self, plays: list[_Play]) -> float:
        """The arm of the next token."""
        if len(plays) < len(self.arms):
            return self.arms[len(plays)]
        rewards = np.array([each.reward(self.cost) for each in plays])
        played = np.array([each.arm for each in plays]) == np.array(self.arms)[:, None]  # [arm, play]
        times = played.sum(axis=1)
        bounds = played @ rewards / times + self.exploration * np.sqrt(log(len(plays)) / times)
        return self.arms[int(bounds.argmax())]
