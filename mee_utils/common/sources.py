"""Where a model or a corpus comes from: a path here, or an id of the hub."""

from pathlib import Path

from .errors import MeeError

ENDINGS = (".jsonl.gz", ".jsonl", ".parquet", ".csv")  # of corpora, the longer one first


def is_hub_id(source: str) -> bool:
    """Whether a source can only be on the hub: it is neither "synthetic" nor a path, there or misspelt."""
    path_like = (
        source.startswith((".", "/", "~")) or source.count("/") > 1 or source.lower().endswith(ENDINGS)
    )
    return source != "synthetic" and not path_like and not _exists(source)


def _exists(source: str | Path) -> bool:
    try:
        return Path(source).expanduser().exists()
    except (RuntimeError, OSError):  # "~" of no user; a name that is too long
        return False


def find_local(source: str | Path, wanted: str) -> Path | None:
    """The path of a local source, None for a hub id; else an error that says what to give."""
    if not source or not isinstance(source, str | Path):
        raise MeeError(f"source={source!r}: give {wanted}.")
    if is_hub_id(str(source)):
        return None
    if not _exists(source):
        raise MeeError(f"{source} does not exist: give {wanted}.")
    return Path(source).expanduser()
