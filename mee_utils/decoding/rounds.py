"""The rounds of verified exits, from what full depth predicts; the model is not run again.

A draft that is verified was made behind a right prefix, from the states that full depth has there too. One
full-depth pass therefore shows every round of drafts exactly: how long it is, which of its drafts are right,
and where the next round begins. Only how far a draft goes on behind a wrong token is an estimate: the policy
is taken to be as confident there as at the output's own tokens.

A worked example: an output of three tokens, a decoder of four layers, a policy that decides at layers 1 and
2, and drafts of at most two tokens. Exit 2 stands for "not confident at any decision".

| token | exit | drafted at | is the draft right? | `run_to`, if a round begins here | `next_round` |
|---|---|---|---|---|---|
| 0 | 0 | layer 1 | yes | 2, a draft has at most two tokens | 2, both drafts are right |
| 1 | 1 | layer 2 | yes | 3 | 3, the last layer's token is token 2 |
| 2 | 2 | not at all; it waits at layer 2 | no draft | 3, the output ends | 3 |

Rounds begin at tokens 0 and 2: two rounds, two drafts verified, two accepted. Were the draft of token 0
wrong, then `next_round` of token 0 would be 1: the last layer's token replaces it, token 1 is dropped, and
the next round begins at token 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import product
from typing import NamedTuple

import numpy as np

from ..exits.copies import Copier, Copies
from ..exits.policy import BoundPolicy


class Copied(NamedTuple):
    """What a round that begins at each token would copy, `[token]`."""

    offered: np.ndarray  # how many tokens; 0: there is no copy
    right: np.ndarray  # how many of them are the output's own

    @classmethod
    def along(
        cls, copies: Copies, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], longest: int
    ) -> Copied:
        """What is copied of the inputs `sources` along their `outputs`, both as ids.

        The tokens of all outputs follow each other. An output has room for `longest` tokens.
        """
        found = []
        for source, output in zip(sources, outputs, strict=True):
            copier = Copier(copies, source)
            for position, token in enumerate(output):
                copied = copier.draft(most=longest - position)
                agrees = np.cumprod([a == b for a, b in zip(copied, output[position:], strict=False)])
                found.append((len(copied), int(agrees.sum())))
                copier.write(token)
        return cls(*np.array(found).reshape(-1, 2).T)


class Run(NamedTuple):
    """Every token that the rounds of one setting run, thrown away or not, `[run]`; see `run_of`."""

    token: np.ndarray
    final: np.ndarray  # whether it is not thrown away
    copies: np.ndarray  # whether its round copies
    copied: np.ndarray  # whether it is one of the copied tokens
    right: np.ndarray  # whether it is drafted, and as the last layer's token


class Rounds(NamedTuple):
    """What happens in a round that begins at each token, `[setting, token]`.

    A setting is an exit threshold with a draft length; tokens of all outputs follow each other.
    """

    depth: np.ndarray  # the layer after which the token waits to be verified
    right: np.ndarray  # whether the token is drafted, and as the last layer's token
    run_to: np.ndarray  # the first token that is not run in the round
    next_round: np.ndarray  # the first token of the next round
    copied: Copied | None = None  # what a round that begins there copies; None: none does

    @property
    def copies(self) -> np.ndarray | None:
        """`[token]`, whether a round that begins there copies; None: none does."""
        return None if self.copied is None else self.copied.offered > 0

    @property
    def begins(self) -> np.ndarray:
        """`[setting, token]`, whether a round begins at the token.

        No round goes past the end of an output, so that one chain goes through all outputs.
        """
        settings, tokens = self.next_round.shape
        begins = np.zeros((settings, tokens + 1), dtype=bool)
        begins[:, 0] = True
        for token in range(tokens):
            here = begins[:, token]
            begins[here, self.next_round[here, token]] = True
        return begins[:, :-1]


def run_of(rounds: Rounds) -> Run:
    """The tokens that are run in the rounds of one setting, the first."""
    starts = np.flatnonzero(rounds.begins[0])
    counts = rounds.run_to[0, starts] - starts
    start = np.repeat(starts, counts)  # [run], of its round
    number = np.arange(len(start)) - np.repeat(np.cumsum(counts) - counts, counts)  # in its round
    token = start + number
    copies = copied = np.zeros(len(token), dtype=bool)
    right = rounds.right[0, token]
    if rounds.copied is not None:
        copies = rounds.copies[start]
        copied = number < rounds.copied.offered[start]
        right = np.where(copies, number < rounds.copied.right[start], right)
    return Run(token, token < rounds.next_round[0, start], copies, copied, right)


def rounds_of(
    exits: np.ndarray,
    same_token: np.ndarray,
    decision_layers: tuple[int, ...],
    sequence: np.ndarray,
    max_draft: np.ndarray,
    copied: Copied | None = None,
) -> Rounds:
    """The rounds of several settings.

    Args:
        exits: `[setting, token]`, the index of the decision at which each token exits; equal to the number of
            decisions if it exits at none.
        same_token: `[token, decision]`, whether the prediction there is the last layer's; a further column,
            of the last layer itself, is passed over.
        decision_layers: the layers before the last at which the policy decides.
        sequence: `[token]`, the index of the output that each token belongs to, ascending.
        max_draft: `[setting]`, the most tokens of a draft of exits.
        copied: what is copied where a round begins; exits draft where that is nothing.
    """
    decisions = len(decision_layers)
    tokens = np.arange(len(sequence))
    drafted = exits < decisions
    no_draft = np.zeros((len(sequence), 1), dtype=bool)
    right = np.hstack([same_token[:, :decisions], no_draft])[tokens, exits]
    ends = np.searchsorted(sequence, sequence, side="right")  # [token], the end of its output
    run_to = np.minimum(tokens + max_draft[:, None], ends)
    run_to = np.minimum(run_to, _next_true(~drafted) + 1)
    next_round = np.minimum(run_to, _next_true(~right) + 1)
    deepest = max(decision_layers, default=0)
    depth = np.array([*decision_layers, deepest])[exits]
    if copied is None:
        return Rounds(depth, right, run_to, next_round)
    copies = copied.offered > 0
    run_to = np.where(copies, np.minimum(tokens + copied.offered + 1, ends), run_to)
    next_round = np.where(copies, np.minimum(tokens + copied.right + 1, ends), next_round)
    return Rounds(depth, right, run_to, next_round, copied)


def _next_true(mask: np.ndarray) -> np.ndarray:
    """`[setting, token]`, the first token from each one on where the mask is true; else the end.

    >>> _next_true(np.array([[False, True, False]]))
    array([[1, 1, 3]])
    """
    tokens = mask.shape[1]
    index = np.where(mask, np.arange(tokens), tokens)
    return np.minimum.accumulate(index[:, ::-1], axis=1)[:, ::-1]


def exceeded_decisions(
    bound: BoundPolicy,
    confidences: np.ndarray,
    sequence: np.ndarray,
    position: np.ndarray,
    max_new_tokens: int,
) -> np.ndarray:
    """Where stored confidences exceed the policy's threshold, `[token, decision]`.

    Args:
        confidences: `[token, decision]`, as if no token exited.
        sequence: `[token]`, the index of the output that each token belongs to.
        position: `[token]`, its position in the output; the threshold may fall with it.
        max_new_tokens: of decoding, the `N` of thresholds that decay.
    """
    schedule = bound.schedule
    if not schedule.online:
        return schedule.exceeded(confidences, position[:, None], max_new_tokens)
    schedule = deepcopy(schedule)  # one that learns begins anew
    exceeded = np.zeros(confidences.shape, dtype=bool)
    positions = range(position.max() + 1)
    for present, (decision, layer) in product(positions, enumerate(bound.decision_layers)):
        tokens = np.flatnonzero(position == present)
        exceeded[tokens, decision] = schedule.exceeded(
            confidences[tokens, decision], present, max_new_tokens, sequence[tokens], layer / bound.layers
        )
    return exceeded


def first_exits(
    bound: BoundPolicy,
    confidences: np.ndarray,
    sequence: np.ndarray,
    position: np.ndarray,
    max_new_tokens: int,
) -> np.ndarray:
    """The index of the decision at which each token exits, `[token]`.

    It is equal to the number of decisions if the token exits at none.
    """
    return first_exceeded(exceeded_decisions(bound, confidences, sequence, position, max_new_tokens))


def first_exceeded(exceeded: np.ndarray) -> np.ndarray:
    """`[token]`, the first decision at which a threshold is exceeded, `[token, decision]`; else their number.

    >>> first_exceeded(np.array([[False, True, True], [False, False, False]])).tolist()
    [1, 3]
    """
    at_the_end = np.ones((len(exceeded), 1), dtype=bool)
    return np.hstack([exceeded, at_the_end]).argmax(axis=1)
