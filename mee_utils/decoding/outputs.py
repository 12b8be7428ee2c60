"""What decoding a batch returns: for every output its tokens, and what verified exits took."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Drafts(NamedTuple):
    """What verified exits took for one output; the arrays are `[token]` over all tokens that were executed.

    Tokens that were executed and thrown away are among them.
    """

    rounds: int  # how often the last layer verified
    judged: int  # drafts that were verified; those after a wrong one are dropped unverified
    kept: int  # drafts that were accepted
    in_round: np.ndarray  # the round that executed the token, from 1
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
        """Whose `exit_layers` and `readout_rows` are those of all tokens that were run, for FLOPs."""
        return self if self.drafts is None else self.drafts
