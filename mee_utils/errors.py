"""The one exception that users of the companion are meant to read.

Every mistake a user can make (a wrong file, an unknown name, a number out of range) ends in a `CompanionError` whose
text is a single line: the value, what was expected, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CompanionError(ValueError):
    """A mistake in the input. The message is one line that says what to do."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns the tail of an error message: the nearest valid name, and all of them.

    >>> nearest("tranlation", ["summarization", "translation"])
    'did you mean "translation"? Valid: summarization, translation.'
    """
    names = sorted(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f'did you mean "{close[0]}"? ' if close else ""
    return f"{hint}Valid: {', '.join(names)}."


def check_choice(kind: str, name: str, valid: Iterable[str]) -> str:
    """Returns `name` if it is one of `valid`, else raises a `CompanionError` that names the nearest one."""
    names = list(valid)
    if name not in names:
        raise CompanionError(f'Unknown {kind} "{name}": {nearest(name, names)}')
    return name
