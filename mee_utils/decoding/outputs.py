"""What decoding a batch returns: the tokens of every output, and its drafts where exits were verified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Drafts(NamedTuple):
    """The drafts of one output, where exits were verified.

    The arrays are `[token]`, over all tokens that were run, thrown away or not.
    """

    rounds: int  # how often the last layer verified
    verified: int  # drafts that were verified; those after a wrong one are dropped unverified
    accepted: int  # drafts that were accepted
    in_round: np.ndarray  # the round that ran the token, from 1
    positions: np.ndarray
    exit_layers: np.ndarray  # L where the policy was not confident at any layer
    readout_rows: np.ndarray


class Output(NamedTuple):
    """One decoded output; the arrays are `[token]`, see `Generation`."""

    token_ids: list[int]
    exit_layers: np.ndarray
    confidences: np.ndarray
    readout_rows: np.ndarray
    drafts: Drafts | None = None  # where exits were verified

    @property
    def executed(self) -> Output | Drafts:
        """What FLOPs are counted on: all tokens that were run, drafts that were thrown away included."""
        return self if self.drafts is None else self.drafts
