"""Folders of the checkout, and files that appear only when they are complete."""

import errno
import json
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from .errors import MeeError, one_line, shown

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent


def build_root() -> Path:
    """The folder of everything in between: `build`, inside MEE_OUTPUT if that is set."""
    return Path(os.environ.get("MEE_OUTPUT") or ROOT) / "build"


def read_yaml(name: str | Path):
    """A table of the package, such as "companion/rules.yaml", or another file by its full path."""
    return yaml.safe_load((PACKAGE / name).read_text(encoding="utf-8"))


def read_json(path: Path, *needed: str) -> dict:
    """What a JSON file of ours holds: an object in which the keys that are `needed` have objects.

    A `MeeError` says that it is damaged, as by the conflict marks of a merge.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MeeError(f"{path} is no JSON ({one_line(error)}): restore it from version control.") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(key), dict) for key in needed):
        expected = f"an object with {', '.join(needed)}" if needed else "an object"
        raise MeeError(f"{path} holds {shown(content)}, not {expected}: restore it from version control.")
    return content


def check_file(name: str, path: object, example: str) -> Path:
    """The path of a file that may be there or not; an error for a folder, or what is no path at all."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise MeeError(f"{name}={shown(path)}: give the path of a file, such as {example}.")
    if Path(path).is_dir():
        raise MeeError(f"{path} is a folder: give a file in it, such as {example}.")
    return Path(path)


def machine() -> str:
    """The name of this machine, as part of a file's."""
    return re.sub(r"\W", "_", platform.node())[:40]


@contextmanager
def complete_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it becomes `path` when the block ends without an error.

    Of two that write one file at the same time the later one's is kept, whole. Where `path` is a link, what
    it points to is written, and the link stays.

    A `MeeError` says that the folder cannot be written to, that the disk is full, or that something is there
    which is no file, such as a folder or a device; nothing half stays.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    unique = (
        f"{secrets.token_hex(4)}.{machine()}.{os.getpid()}"  # `companion.running.locks` sees whose it was
    )
    partial = target.with_name(f".{target.stem[:40]}.{unique}.partial{target.suffix}")
    try:
        if target.is_symlink() or (target.exists() and not target.is_file()):  # links in a circle
            raise OSError(errno.EINVAL, "it is no plain file", str(partial))
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, target)
    except Exception as error:
        paths = (None, str(target), str(partial), *map(str, partial.parents))
        concerns_this_file = isinstance(error, OSError) and error.filename in paths
        disk_is_full = "No space left" in str(error)  # safetensors and torch have errors of their own for it
        if isinstance(error, MeeError) or not (concerns_this_file or disk_is_full):
            raise
        reason = getattr(error, "strerror", None) or one_line(error)
        raise MeeError(f"{path} cannot be written ({reason}): choose another place.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


class _Tried(Exception):
    """Ends the attempt of `check_writable`."""


def check_writable(path: Path) -> None:
    """Refuses in one line, before hours of work, what `complete_file` could not write; leaves nothing."""
    with suppress(_Tried), complete_file(path) as partial:
        partial.touch()
        raise _Tried
