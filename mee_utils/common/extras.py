"""Packages that the library works without; `pyproject.toml` lists them as extras."""

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MeeError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Imports inside it may fail for want of an extra: a `MeeError` then says how to install it.

    >>> with needs_extra("site"):
    ...     import no_such_module
    Traceback (most recent call last):
    mee_utils.common.errors.MeeError: no_such_module is missing; install it with pip install "mee-utils[site]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == __package__.split(".")[0]:
            raise
        install = f'pip install "mee-utils[{extra}]"'
        raise MeeError(f"{package} is missing; install it with {install}") from error
