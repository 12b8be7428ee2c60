"""The one exception that users are meant to read, and checks that raise it."""

import difflib
from collections.abc import Iterable
from math import inf, isnan
from numbers import Integral, Real

LARGEST_SEED = 2**63 - 1  # torch, numpy and the columns of tables hold it


class MeeError(ValueError):
    """A mistake in the input: one line with the value, what was expected, and what to do about it."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message: the nearest valid name, and all of them.

    >>> nearest("tranlation", ["summarization", "translation"])
    'did you mean "translation"? Valid: summarization, translation.'
    """
    names = sorted(valid)
    begin_so = [other for other in names if name and other.startswith(str(name))]
    close = begin_so or difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f'did you mean "{close[0]}"? Valid:' if close else "valid are"
    return f"{hint} {', '.join(names)}."


def check_choice(kind: str, name: str, valid: Iterable[str]) -> str:
    """Returns `name` if it is one of `valid`; else a `MeeError` names the nearest one."""
    names = list(valid)
    if name not in names:
        raise MeeError(f'Unknown {kind} "{name}": {nearest(name, names)}')
    return name


def check_whole(name: str, value: object, least: int = 1) -> int:
    """A whole number from `least` on, numpy's included; else a `MeeError` names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise MeeError(f"{name}={shown(value)}: give a whole number from {least} on.")
    return int(value)


def check_seed(seed: object, name: str = "seed") -> int:
    """A seed that torch and numpy take, a whole number from 0 to `LARGEST_SEED`; else a `MeeError`."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed <= LARGEST_SEED:
        raise MeeError(f"{name}={shown(seed)}: give a whole number from 0 to 2**63 - 1.")
    return int(seed)


def is_number(value: object) -> bool:
    """Whether a value is a real number that a float can hold, numpy's and fractions included.

    Neither a bool nor NaN is one.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not isnan(value)
    except OverflowError:  # a whole number or a fraction beyond the largest float
        return False


def plain_number(value: Real) -> int | float:
    """A number as an `int` or a `float` of Python, whatever kind it was given as; these stay as they are."""
    return int(value) if isinstance(value, Integral) else float(value)


def check_number(name: str, value: object, low: float = 0.0, high: float = inf) -> float:
    """A finite number from `low` to `high` as a float; else a `MeeError` names it."""
    if not is_number(value) or not low <= value <= high or value == inf:
        expected = f"from {low:g} to {high:g}" if high < inf else f"from {low:g} on"
        raise MeeError(f"{name}={shown(value)}: give a number {expected}.")
    return float(value)


def shown(value: object, longest: int = 60) -> str:
    """A value in an error message: its `repr` in one line, cut short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[:longest]}..."


def one_line(error: Exception, longest: int = 160) -> str:
    """The message of another library's error in one line; its type if the message is empty."""
    return " ".join(str(error).split())[:longest] or type(error).__name__
