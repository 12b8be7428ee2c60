"""Where rows come from: a local file or folder in the hub's column layout, or a data set on the hub.

A file may be jsonl, jsonl.gz, parquet or csv. In a folder the split's file is named after the split, as
`validation.jsonl.gz` or `validation-00000-of-00001.parquet`, directly in it or in its `data` folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from pathlib import Path

import pandas as pd

from ..errors import CompanionError

READERS = {
    ".jsonl": lambda path: pd.read_json(path, lines=True, dtype=False),
    ".jsonl.gz": lambda path: pd.read_json(path, lines=True, compression="gzip", dtype=False),
    ".parquet": pd.read_parquet,
    ".csv": pd.read_csv,
}


def _ending(path: Path) -> str | None:
    return next((ending for ending in sorted(READERS, key=len, reverse=True) if path.name.endswith(ending)), None)


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of one split in a folder, in order, or an error that names the splits that are there."""
    for place in (folder, folder / "data"):
        files = [p for p in sorted(place.glob("*")) if _ending(p)]
        found = [p for p in files if p.name.split(".")[0] == split or p.name.startswith(f"{split}-")]
        if found:
            return found
    present = sorted({p.name.split(".")[0].split("-")[0] for p in folder.rglob("*") if _ending(p)})
    advice = f"it has {', '.join(present)}" if present else f"it has no {', '.join(READERS)} file at all"
    raise CompanionError(f'No file of the split "{split}" in {folder}: {advice}.')


def read_file(path: Path) -> pd.DataFrame:
    """Reads one file of rows; an empty or broken one is an error in one line."""
    ending = _ending(path)
    if ending is None:
        raise CompanionError(f"{path} is none of {', '.join(READERS)}: convert it, or name another file.")
    try:
        rows = READERS[ending](path)
    except (ValueError, OSError, EOFError, zlib.error, pd.errors.ParserError) as error:
        if isinstance(error, pd.errors.EmptyDataError) or path.stat().st_size == 0:
            raise CompanionError(f"{path} is empty: there is nothing to run on.") from error
        raise CompanionError(f"{path} cannot be read as {ending}: {' '.join(str(error).split())[:160]}") from error
    if rows.empty:
        raise CompanionError(f"{path} is empty: there is nothing to run on.")
    return rows


def local_files(source: Path, split: str) -> list[Path]:
    """A file as it is, or the files of one split of a folder."""
    return split_files(source, split) if source.is_dir() else [source]


def local_digest(source: Path, split: str) -> str:
    """sha256 of the bytes of a file, or of one split of a folder."""
    digest = hashlib.sha256()
    for path in local_files(source, split):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def local_rows(source: Path, split: str) -> tuple[pd.DataFrame, str]:
    """Returns the rows of a file, or of one split of a folder, and the hash of the bytes they came from."""
    rows = pd.concat([read_file(path) for path in local_files(source, split)], ignore_index=True)
    return rows, local_digest(source, split)


def hub_rows(
    identifier: str, split: str, revision: str | None, name: str | None = None, folder: str | None = None, limit: int | None = None
) -> tuple[pd.DataFrame, str]:
    """Returns rows of one split of a hub data set and what identifies them: of a commit its name, else the fingerprint of what was loaded.

    What was loaded at a commit once is read from the hub's cache from then on, without asking the hub.

    Args:
        identifier: the id.
        split: "train", "validation" or "test".
        revision: a commit, tag or branch.
        name: the configuration.
        folder: the folder of the repository that holds the splits, in place of a configuration.
        limit: how many rows to read into memory, from the beginning.

    Raises:
        CompanionError: the hub cannot be reached or has no such data set, or another commit than the one asked for is in the cache.
    """
    import datasets

    datasets.disable_progress_bars()
    key = hashlib.sha256("\n".join(map(str, (identifier, revision, name, folder, split))).encode()).hexdigest()
    files = _remembered(key) if is_commit(revision) else []
    if files:
        loaded = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in files])
    else:
        loaded = _from_hub(identifier, split, revision, name, folder)
    if is_commit(revision) and not files:
        _remember(key, [Path(file["filename"]) for file in loaded.cache_files])
    return loaded.select(range(min(limit or len(loaded), len(loaded)))).to_pandas(), key if is_commit(revision) else loaded._fingerprint


def _from_hub(identifier: str, split: str, revision: str | None, name: str | None, folder: str | None):
    """The data set as the hub's client gives it; a commit is checked, because without the hub the client gives the one it had last."""
    import datasets

    datasets.utils.logging.set_verbosity_error()
    try:
        loaded = datasets.load_dataset(identifier, name, split=split, revision=revision, data_dir=folder)
    except Exception as error:  # the hub's client raises a dozen kinds; the reader needs one line
        reason = " ".join(str(error).split())[:200]
        raise CompanionError(
            f'"{identifier}" is no local file or folder, and the hub did not give its split "{split}" ({reason}). '
            "Check the spelling and the network, or name a local folder in the hub's column layout."
        ) from error
    if is_commit(revision) and not all(revision in file["filename"] for file in loaded.cache_files):
        raise CompanionError(
            f'The hub did not give "{identifier}" at the commit {revision}, and its cache holds it at another one only: run once with the network.'
        )
    return loaded


def _note(key: str) -> Path:
    """Where it is noted which files of the hub's cache hold a split of a data set at a commit."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "mee_utils" / f"{key}.json"


def _remembered(key: str) -> list[Path]:
    """The files that hold a split, if all are still there; the client itself cannot find them by their commit without the hub."""
    note = _note(key)
    files = [note.parent.parent / name for name in json.loads(note.read_text())] if note.exists() else []
    return files if all(path.exists() for path in files) else []


def _remember(key: str, files: list[Path]) -> None:
    note = _note(key)
    note.parent.mkdir(parents=True, exist_ok=True)
    partial = note.with_name(f".{note.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps([os.path.relpath(path, note.parent.parent) for path in files]))
    os.replace(partial, note)


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a whole commit id, which can name only one thing."""
    return bool(revision and re.fullmatch("[0-9a-f]{40}", revision))
