"""The lock of a profile: which commit of each hub repository its results belong to.

A profile names models and data sets by hub id, and a hub id names something else tomorrow. The first load that succeeds writes the
commit that the hub reported to `notebooks/profiles/<profile>.lock.json`; every later load asks for that commit and for no other. Made
data and local files never come here. The lock is meant to be committed: deleting an entry is how a newer commit is taken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from .errors import CompanionError
from .profiles import PACKAGE, Profile

KINDS = ("datasets", "models")


def lock_path(profile: Profile) -> Path:
    """The lock's file, beside the profile's."""
    from . import profiles

    return profiles.FOLDER / f"{profile.name}.lock.json"


def read_lock(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Kind -> id -> {"revision": what was asked for, "commit": what the hub said that it is}; empty where there is no lock.

    Raises:
        CompanionError: the file cannot be read, or is no lock.
    """
    from .tasks.sources import is_commit

    advice = "restore it from version control, or delete it so that the next download writes it anew."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CompanionError(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except ValueError as error:
        raise CompanionError(f"{path} is no JSON ({' '.join(str(error).split())[:80]}): {advice}") from error
    if not isinstance(content, dict) or not all(kind in KINDS and isinstance(found, dict) for kind, found in content.items()):
        raise CompanionError(f"{path} is no lock: its keys must be {' and '.join(KINDS)}; {advice}")
    for found in content.values():
        for identifier, entry in found.items():
            if not isinstance(entry, dict) or set(entry) != {"revision", "commit"} or not is_commit(str(entry["commit"])):
                raise CompanionError(f'{path}: the entry of "{identifier}" must have a revision and a commit of 40 hexadecimal digits; {advice}')
    return content


def locked_commit(profile: Profile, kind: str, identifier: str, revision: str | None = None) -> str | None:
    """The commit that the lock names, or None where nothing was loaded yet.

    Args:
        profile: whose lock.
        kind: "models" or "datasets".
        identifier: the hub id.
        revision: what the profile asks for; "main" by default.

    Raises:
        CompanionError: the lock cannot be read, or was written for another revision than the profile asks for.
    """
    entry = read_lock(lock_path(profile)).get(kind, {}).get(identifier)
    if entry is None:
        return None
    if (revision or "main") not in entry.values():
        raise CompanionError(
            f'{lock_path(profile)} pins "{identifier}" at {entry["commit"]} for the revision "{entry["revision"]}", but the profile asks for '
            f'"{revision or "main"}": delete this entry from the lock, or ask for "{entry["revision"]}" again.'
        )
    return entry["commit"]


def at_locked_commit(profile: Profile, kind: str, identifier: str, revision: str | None, load: Callable[[str], object]):
    """Loads a hub repository at the commit that the lock names; where it names none, at the present one, which is then written down.

    Args:
        profile: whose lock.
        kind: "models" or "datasets".
        identifier: the hub id.
        revision: what the profile asks for; "main" by default.
        load: is given the commit.

    Returns:
        What `load` returns.

    Raises:
        CompanionError: as `load` raises; the lock cannot be read or written, contradicts the profile, or names a commit that is gone.
    """
    commit = locked_commit(profile, kind, identifier, revision)
    if commit is None:
        with _alone():  # refuses a lock that cannot be written before anything large is downloaded
            _write(lock_path(profile), read_lock(lock_path(profile)), commit=False)
        commit = _present_commit(profile, kind, identifier, revision)
        loaded = load(commit)
        _add(profile, kind, identifier, revision or "main", commit)
        return loaded
    try:
        return load(commit)
    except CompanionError as error:
        if _is_gone(kind, identifier, commit):
            raise CompanionError(
                f'The hub no longer has the commit {commit} of "{identifier}" that {lock_path(profile)} pins: delete this entry from the lock to '
                "take the present commit (numbers may differ from then on), or bring back a copy of the hub's cache that has it."
            ) from error
        raise


def _information(kind: str) -> Callable:
    from huggingface_hub import HfApi

    return HfApi().model_info if kind == "models" else HfApi().dataset_info


def _present_commit(profile: Profile, kind: str, identifier: str, revision: str | None) -> str:
    """The commit that a revision is at present."""
    from .tasks.sources import is_commit

    if is_commit(revision):
        return revision
    try:
        return _information(kind)(identifier, revision=revision).sha
    except Exception as error:  # the hub's client raises a dozen kinds; the reader needs one line
        reason = " ".join(str(error).split())[:160]
        raise CompanionError(
            f'The hub could not be asked for "{identifier}" (profile {profile.name}, revision {revision or "main"}; {reason}). Check the id and the '
            "network; where there is none, load it once where there is one and copy the hub's cache and the profile's lock."
        ) from error


def _is_gone(kind: str, identifier: str, commit: str) -> bool:
    """Whether the hub has the repository and says that it does not have the commit; False where it cannot be asked."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        _information(kind)(identifier, revision=commit)
    except RevisionNotFoundError:
        return True
    except Exception:  # no network, no access: the first error says so
        return False
    return False


@contextmanager
def _alone():
    """One writer at a time: notebooks of one run load at the same time."""
    import fcntl

    place = PACKAGE.parent / "build" / "lock.lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise CompanionError(f"{error.filename} cannot be written ({error.strerror}): make its folder writable.") from error


def _add(profile: Profile, kind: str, identifier: str, revision: str, commit: str) -> None:
    """Adds one entry to what the lock holds by now."""
    path = lock_path(profile)
    with _alone():
        content = read_lock(path)
        entry = content.setdefault(kind, {}).setdefault(identifier, {"revision": revision, "commit": commit})
        if entry["commit"] != commit:
            raise CompanionError(f'Another run has just pinned "{identifier}" at {entry["commit"]} in {path}: run the same command again.')
        _write(path, content)


def _write(path: Path, content: dict, commit: bool = True) -> None:
    """Puts the lock in its place, all of it or nothing; with `commit` false only tries whether that would be possible."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if commit:
            os.replace(partial, path)
        else:
            partial.unlink()
    except OSError as error:
        raise CompanionError(
            f"{path} cannot be written ({error.strerror}): make its folder writable; without the lock nothing says which commit results belong to."
        ) from error
