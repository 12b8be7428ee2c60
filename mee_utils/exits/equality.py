"""Equality by value, so that equal policies are equal and can be keys of a dict."""

import numpy as np


class EqualByValue:
    """Two objects are equal if they are of one class and all of their attributes are equal.

    Arrays are compared element by element. Attributes that cannot be compared, such as tensors, are equal
    only if they are the same object.
    """

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or vars(self).keys() != vars(other).keys():
            return False
        return all(_equal(value, vars(other)[name]) for name, value in vars(self).items())

    def __hash__(self) -> int:
        return hash(type(self))  # attributes may be unhashable, or change


def _equal(first: object, second: object) -> bool:
    if first is second:
        return True
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    try:
        return bool(first == second)
    except (TypeError, ValueError, RuntimeError):
        return False
