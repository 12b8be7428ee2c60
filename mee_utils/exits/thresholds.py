"""Threshold schedules: how sure is sure enough, at which place of the output.

| schedule | threshold at position t of at most N tokens | source |
|---|---|---|
| constant | `lam` | |
| decaying, "scaled" | `lam (0.9 + 0.1 exp(-tau t / N))` | every public implementation |
| decaying, "calm" | `clip(0.9 lam + 0.1 exp(-tau t / N), 0, 1)`, the same if `lam = 1` | CALM, Eq. 5 |
| adaptive | exit where the posterior of "shallow agrees with deep" exceeds `zeta` | FREE (Bae et al., 2023) |
| bandit | the arm with the largest upper confidence bound of its reward | UCBEE, CeeBERT |
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma, log

import numpy as np

from ..common.errors import MeeError


@dataclass(eq=False)
class Threshold:
    """A threshold `level`, constant (`decay` None) or decaying with the position (`decay` is `tau`)."""

    level: float
    decay: float | None = None
    form: str = "scaled"
    learns = False  # whether the tokens of deep layers teach it
    online = False  # whether its level is found while decoding

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and repr(vars(self)) == repr(vars(other))

    def at(self, position, length: int):
        """The threshold at `position` (from 0; a number or an array) of an output of at most `length` tokens.

        >>> Threshold(0.5, decay=4.0).at(0, 10), Threshold(0.5, decay=4.0, form="calm").at(0, 10)
        (0.5, 0.55)
        """
        if self.decay is None:
            return self.level
        fading = 0.1 * np.exp(-self.decay * np.asarray(position) / length)
        level = self.level * (0.9 + fading)
        if self.form == "calm":
            level = np.clip(0.9 * self.level + fading, 0.0, 1.0)
        return level if np.ndim(level) else float(level)

    def exceeded(self, confidence: np.ndarray, position, length: int, sequence=None, depth=1.0) -> np.ndarray:
        """Which rows exit, `[rows]`; a confidence that is NaN never does.

        A bandit needs `sequence`, the indices of the rows' inputs, and `depth`, the layer as a share of all.
        """
        return confidence > self.at(position, length)


class AdaptiveThreshold(Threshold):
    """FREE's adaptive threshold: two Beta distributions over the shallow confidence, refitted now and then.

    A token that has been through all layers is a label: did its shallow prediction agree with the deep one?
    Each kind's confidences get a Beta distribution by the method of moments, and a token exits where

        pi_1 Beta(c; a_1, b_1) / (pi_0 Beta(c; a_0, b_0) + pi_1 Beta(c; a_1, b_1)) > zeta.

    The mixing weights `pi` are the shares of the labels (published code leaves them out: how often the two
    agree). Until there are `least` labels of each kind, the constant threshold `initial` decides; then the
    distributions are fitted anew after `every` labels.
    """

    learns = online = True
    EDGE = 1e-4

    def __init__(self, zeta: float = 0.4, initial: float = 0.9, least: int = 10, every: int = 50):
        super().__init__(initial)
        self.zeta, self.least, self.every, self.fitted, self._since = zeta, least, every, None, 0
        self.labels: dict[bool, list[float]] = {True: [], False: []}

    def learn(self, confidence: np.ndarray, agrees: np.ndarray) -> None:
        """Takes in shallow confidences `[rows]` and whether the deep prediction was the same."""
        for value, label in zip(confidence.tolist(), agrees.tolist(), strict=True):
            self.labels[bool(label)].append(min(max(value, self.EDGE), 1 - self.EDGE))
        self._since += len(confidence)
        enough = min(map(len, self.labels.values())) >= self.least
        if enough and (self.fitted is None or self._since >= self.every):
            self.fitted = {label: self._fit(values) for label, values in self.labels.items()}
            self._since = 0

    @staticmethod
    def _fit(values: list[float]) -> tuple[float, float]:
        """Shape parameters of a Beta distribution with the sample's mean and variance."""
        mean, variance = float(np.mean(values)), max(float(np.var(values)), 1e-6)
        strength = max(mean * (1 - mean) / variance - 1, 1e-2)
        return mean * strength, (1 - mean) * strength

    def posterior(self, confidence: np.ndarray) -> np.ndarray:
        """Probability that shallow and deep agree, given the shallow confidence; needs a fit."""
        inside, logs = np.clip(np.asarray(confidence, dtype=np.float64), self.EDGE, 1 - self.EDGE), {}
        for label, (a, b) in self.fitted.items():
            weight = log(len(self.labels[label]) / sum(map(len, self.labels.values())))
            scale = weight + lgamma(a + b) - lgamma(a) - lgamma(b)
            logs[label] = scale + (a - 1) * np.log(inside) + (b - 1) * np.log1p(-inside)
        return 1.0 / (1.0 + np.exp(np.clip(logs[False] - logs[True], -700, 700)))

    def exceeded(self, confidence: np.ndarray, position, length: int, sequence=None, depth=1.0) -> np.ndarray:
        if self.fitted is None:
            return super().exceeded(confidence, position, length)
        return (self.posterior(confidence) > self.zeta) & ~np.isnan(confidence)


@dataclass
class _Round:
    """One token of a bandit's: its arm, the first and last confidence it saw, and how deep it went."""

    arm: float
    first: float
    last: float
    seen: float  # the depth of the last decision
    depth: float = 1.0  # where it left, a share of L


class BanditThreshold(Threshold):
    """UCB over thresholds, the `arms` (UCBEE, Pacheco et al. 2024; CeeBERT, Bajpai and Hanawal 2024).

    Each output plays by itself (in a batch a row gets what it gets alone), and each token is a round. Arms
    are tried once in their order, then the one with the largest `mean + exploration sqrt(ln t / n)`.
    The reward is the gain in confidence from the first decision to the last, minus `cost` times the share of
    the depth that was run: at a cost of 1 a layer pays off if it makes the model `1 / L` surer. What comes
    out is not guaranteed, unlike what learn-then-test finds. `MeeError` without two arms from 0 to 1.
    """

    online = True

    def __init__(self, arms: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9), exploration=1.0, cost=1.0):
        if len(arms) < 2 or not all(0 <= arm <= 1 for arm in arms):
            raise MeeError(f"arms={arms!r}: give at least two thresholds from 0 to 1.")
        super().__init__(max(arms))
        self.arms, self.exploration, self.cost = np.array(arms, dtype=np.float64), exploration, cost
        self.rounds: dict[int, list[_Round]] = defaultdict(list)

    def exceeded(self, confidence: np.ndarray, position, length: int, sequence=None, depth=1.0) -> np.ndarray:
        exits, positions = np.zeros(len(confidence), dtype=bool), np.broadcast_to(position, len(confidence))
        for row, (output, place) in enumerate(zip(sequence.tolist(), positions.tolist(), strict=True)):
            rounds, value = self.rounds[output], float(confidence[row])
            if len(rounds) <= place or depth <= rounds[place].seen:  # its first decision; again, if redrafted
                del rounds[place:]
                rounds.append(_Round(self._choose(rounds), value, value, depth))
            token = rounds[place]
            exits[row], token.seen = value > token.arm, depth
            if token.depth == 1.0:  # it has not left before
                token.last, token.depth = value, depth if exits[row] else 1.0
        return exits

    def _choose(self, rounds: list[_Round]) -> float:
        if len(rounds) < len(self.arms):
            return float(self.arms[len(rounds)])
        rewards = np.array([each.last - each.first - self.cost * each.depth for each in rounds])
        played = np.array([each.arm for each in rounds]) == self.arms[:, None]
        times = played.sum(axis=1)
        bounds = played @ rewards / times + self.exploration * np.sqrt(log(len(rounds)) / times)
        return float(self.arms[bounds.argmax()])
