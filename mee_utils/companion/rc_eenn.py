"""Published exits of a T5-large: CALM on CNN/DailyMail, 2,000 summaries at 100 thresholds (RC-EENN).

Jazbec et al. 2024, "Fast yet Safe: Early-Exiting with Risk Control". Their file `calm/data/calm_cnndm.p` has
no licence: it is read from where the reader puts it, and no part of it is kept.
"""

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..common.errors import MeeError

FILE = "rc_eenn/calm_cnndm.p"  # in the DATA folder
ADDRESS = "https://github.com/metodj/RC-EENN, calm/data/calm_cnndm.p"
OF_NUMPY = {"_reconstruct", "ndarray", "dtype", "scalar"}  # all that a pickle of arrays needs


class PublishedExits(NamedTuple):
    """What was published; settings stand from the strictest threshold to the loosest."""

    thresholds: np.ndarray  # `[setting]`
    layers: np.ndarray  # `[setting]`, mean exit layer of 24
    scores: np.ndarray  # `[setting, summary]`, ROUGE-L from 0 to 1


class _Arrays(pickle.Unpickler):
    """Reads arrays, and runs no code of the file's."""

    def find_class(self, module: str, name: str):
        if module.split(".")[0] == "numpy" and name in OF_NUMPY:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_exits(path: Path) -> PublishedExits:
    """The published exits in a file.

    Raises:
        MeeError: the file is no pickle of three arrays that fit each other.
    """
    try:
        with path.open("rb") as file:
            arrays = [np.asarray(each, dtype=np.float64) for each in _Arrays(file).load()]
        thresholds, layers, scores = arrays
        fits = scores.shape == (*thresholds.shape, scores.shape[1]) and layers.shape == thresholds.shape
        if not fits or (np.diff(thresholds) >= 0).any():
            raise ValueError("its arrays do not fit each other")
    except (OSError, pickle.UnpicklingError, EOFError, TypeError, ValueError, IndexError) as error:
        raise MeeError(
            f"{path} cannot be read as published exits: {error}. Get it again: {ADDRESS}."
        ) from error
    return PublishedExits(thresholds, layers, scores)
