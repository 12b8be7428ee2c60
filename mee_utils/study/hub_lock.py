"""The lock of a profile: which commit of each hub repository its results belong to.

The first load that succeeds writes the commit to `notebooks/profiles/<profile>.lock.json`; every later load
asks for that commit and no other. The lock is to be committed; delete an entry to take a newer commit.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ..common.errors import MeeError, one_line
from ..common.files import complete_file, is_hub_id
from .profiles import first_mistake

COMMIT = "^[0-9a-f]{40}$"


class Entry(BaseModel, extra="forbid"):
    """What was asked for, and the commit that it was."""

    revision: str
    commit: Annotated[str, Field(pattern=COMMIT)]


LOCK = TypeAdapter(dict[Literal["datasets", "models"], dict[str, Entry]])


def _read(lock: Path) -> dict[str, dict[str, Entry]]:
    try:
        return LOCK.validate_json(lock.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        reason = error.strerror
    except ValidationError as error:
        reason = first_mistake(error)
    advice = "restore it from version control, or delete it so that the next download writes it anew"
    raise MeeError(f"{lock} cannot be read ({reason}): {advice}.")


def locked_commit(lock: Path, kind: str, identifier: str, revision: str | None = None) -> str | None:
    """The commit that a lock names for one of its "models" or "datasets"; None if there is none yet."""
    entry, wanted = _read(lock).get(kind, {}).get(identifier), revision or "main"
    if entry and wanted not in (entry.revision, entry.commit):
        pinned = f'{lock} pins "{identifier}" at {entry.commit} for the revision "{entry.revision}"'
        advice = f'delete this entry, or ask for "{entry.revision}" again'
        raise MeeError(f'{pinned}, but the profile asks for "{wanted}": {advice}.')
    return entry and entry.commit


def at_locked_commit(lock: Path, kind: str, identifier: str, revision: str | None, load: Callable):
    """`load(commit)` at the locked commit, else at the present one, then pinned; None if it is no hub id."""
    if not is_hub_id(identifier):
        return load(None)
    if commit := locked_commit(lock, kind, identifier, revision):
        try:
            return load(commit)
        except MeeError as error:
            if not _is_gone(kind, identifier, commit):
                raise
            raise MeeError(
                f'The hub no longer has the commit {commit} of "{identifier}" that {lock} pins: delete this '
                "entry to take the present commit (numbers may differ), or copy a hub cache that has it."
            ) from error
    with complete_file(lock) as partial:
        partial.touch()  # a lock that cannot be written is said before anything large is downloaded
        commit = _present_commit(kind, identifier, revision)
        loaded = load(commit)
        content, entry = _read(lock), Entry(revision=revision or "main", commit=commit)
        found = content.setdefault(kind, {}).setdefault(identifier, entry)  # another run may have added to it
        if found.commit != commit:
            pinned = f'"{identifier}" at {found.commit} in {lock}'
            raise MeeError(f"Another run has just pinned {pinned}: run again.")
        text = json.dumps(LOCK.dump_python(content), indent=1, sort_keys=True)
        partial.write_text(text + "\n", encoding="utf-8")
    return loaded


def _info(kind: str, identifier: str, revision: str | None):
    from huggingface_hub import HfApi

    return HfApi().repo_info(identifier, revision=revision, repo_type=kind.removesuffix("s"))


def _present_commit(kind: str, identifier: str, revision: str | None) -> str:
    if revision and re.match(COMMIT, revision):
        return revision
    try:
        return _info(kind, identifier, revision).sha
    except Exception as error:  # the hub's client raises a dozen kinds
        reason = f"revision {revision or 'main'}; {one_line(error)}"
        told = f'The hub could not be asked for "{identifier}" ({reason})'
        advice = "or copy the hub's cache and the lock from a machine that has them"
        raise MeeError(f"{told}. Check the id and the network, {advice}.") from error


def _is_gone(kind: str, identifier: str, commit: str) -> bool:
    """Whether the hub says that it does not have the commit; False if it cannot be asked."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        _info(kind, identifier, commit)
    except Exception as error:
        return isinstance(error, RevisionNotFoundError)
    return False
