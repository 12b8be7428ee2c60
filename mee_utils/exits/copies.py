"""Copied drafts: where the output's last tokens stand in the input, what follows there may follow here.

Prompt lookup decoding (Saxena 2023) and LLMA (Yang et al. 2023), for an encoder and decoder: the input's
tokens are searched, and then the output's own. A copy costs no layer and no decision; the last layer verifies
it together with drafts of exits (`mee_utils.decoding.verify`), so that the output is that of full depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.errors import MeeError, check_whole


@dataclass(frozen=True)
class Copies:
    """Prompt lookup: after which n-grams tokens are copied, and how many.

    Attributes:
        longest: length of the n-gram at the end of the output that is searched for first.
        shortest: length of the last, where longer ones are not found.
        max_draft: the most tokens of a copy.

    Raises:
        MeeError: for anything but whole numbers from 1 on, or shortest above longest.
    """

    longest: int = 3
    shortest: int = 1
    max_draft: int = 8

    def __post_init__(self):
        for name in ("longest", "shortest", "max_draft"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name)))
        if self.shortest > self.longest:
            raise MeeError(f"shortest={self.shortest} is more than longest={self.longest}: give it no more.")


class Copier:
    """Looks for copies for one output.

    >>> copier = Copier(Copies(max_draft=2), source=[7, 8, 9, 7, 5])
    >>> for token in (1, 8):
    ...     copier.write(token)
    >>> copier.draft(most=8)
    [9, 7]
    """

    def __init__(self, copies: Copies, source: Sequence[int]):
        self.copies = copies
        self.source = list(source)
        self.written: list[int] = []  # the output so far
        # tokens that follow each other -> the place behind them, of the first such in the input and of the
        # last in the output
        self.in_source: dict[tuple[int, ...], int] = {}
        self.in_output: dict[tuple[int, ...], int] = {}
        for place in reversed(range(1, len(self.source))):
            before = self.source[max(0, place - copies.longest) : place]
            self.in_source |= dict.fromkeys(self._endings(before), place)

    def write(self, token: int) -> None:
        """Takes the next token of the output, once it is final."""
        self.in_output |= dict.fromkeys(self._endings(self.written), len(self.written))
        self.written.append(token)

    def draft(self, most: int) -> list[int]:
        """The tokens, at most so many, that may come next; none: there is no copy."""
        most = min(most, self.copies.max_draft)
        for ending in self._endings(self.written):
            for places, text in ((self.in_source, self.source), (self.in_output, self.written)):
                if ending in places:
                    place = places[ending]
                    return text[place : place + most]
        return []

    def _endings(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The ends of some tokens that are looked for, the longest first."""
        longest = min(self.copies.longest, len(tokens))
        return [tuple(tokens[-length:]) for length in range(longest, self.copies.shortest - 1, -1)]
