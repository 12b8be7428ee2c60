"""Where rows come from: local files in the hub's column layouts, or a data set on the hub.

A file may be jsonl, jsonl.gz, parquet or csv. In a folder, also one on the hub, a split is a file or folder
named after it, as `validation.jsonl.gz`, `validation-00000-of-00001.parquet` or `validation/0000.parquet`.
"""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import MeeError, one_line
from ..common.files import ENDINGS

PLACES = ("", "data/", "plain_text/", "default/")  # where data sets with one configuration have their splits
NAMES = (".*", "-*", "/*")  # what follows the name of the split


def local_files(source: Path, split: str) -> tuple[list[Path], str]:
    """A file as it is, or the files of one split of a folder, in order; and the sha256 of their bytes."""
    if files := _find_split(source, split, PLACES) if source.is_dir() else [source]:
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        return files, digest.hexdigest()
    paths = [path.relative_to(source) for path in source.rglob("*") if path.name.endswith(ENDINGS)]
    present = sorted({path.name.split(".")[0].split("-")[0] for path in paths})
    advice = f"it has {', '.join(present[:8])}" if present else f"it has no {', '.join(ENDINGS)} file"
    raise MeeError(f'No file of the split "{split}" in {source}: {advice}.')


def _find_split(folder: Path, split: str, places: tuple[str, ...]) -> list[Path]:
    for place in places:
        found = sorted(path for name in NAMES for path in folder.glob(f"{place}{split}{name}"))
        if files := [path for path in found if path.name.endswith(ENDINGS)]:
            return files
    return []


def hub_files(source: str, split: str, revision: str | None, folder: str | None) -> tuple[list[Path], str]:
    """The files of one split of a hub data set in the hub's cache, and a digest of what they are.

    What was downloaded once is read without the network, if `revision` is a commit or still known there.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()
    places = (f"{folder.strip('/')}/",) if folder else PLACES
    wanted = [f"{place}{split}{name}" for place in places for name in NAMES]
    try:
        found = snapshot_download(source, repo_type="dataset", revision=revision, allow_patterns=wanted)
    except Exception as error:  # the hub's client raises a dozen kinds
        failed = f'no local file or folder, and the hub did not give its split "{split}" ({one_line(error)})'
        advice = "Check the spelling and the network, or name a local folder"
        raise MeeError(f'"{source}" is {failed}. {advice}.') from error
    if not (files := _find_split(Path(found), split, places)):
        looked = f"({', '.join(ENDINGS)}) in {', '.join(place or './' for place in places)}"
        advice = 'name the `folder` that has it, if need be of the revision "refs/convert/parquet"'
        raise MeeError(f'"{source}" has no file of the split "{split}" {looked}: {advice}.')
    parts = (source, Path(found).name, folder, split)  # a snapshot is named by its commit
    return files, hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def rows(files: list[Path]) -> Iterator[tuple[str, dict]]:
    """Yields ("file, row 3", row) of some files; an empty or broken file is an error in one line."""
    for path in files:
        ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
        if ending is None:
            raise MeeError(f"{path} is none of {', '.join(ENDINGS)}: convert it, or name another file.")
        number = 0
        try:
            for number, row in READERS[ending](path):
                yield f"{path}, row {number}", row
        except MeeError:
            raise
        except UnicodeError as error:
            raise MeeError(f"{path} is not UTF-8 ({one_line(error, 80)}): save it as UTF-8.") from error
        except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
            if path.stat().st_size:
                raise MeeError(f"{path} cannot be read as {ending}: {one_line(error)}") from error
        if not number:
            raise MeeError(f"{path} is empty: there is nothing to run on.")


def _json_rows(path: Path) -> Iterator[tuple[int, dict]]:
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                reason = f"{error.msg} at character {error.pos + 1}"
                raise MeeError(f"{path}, line {number} is not JSON ({reason}): correct it.") from error
            if not isinstance(row, dict):
                raise MeeError(f"{path}, line {number} is {line.strip()[:40]!r}, no object.")
            yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        batches = file.iter_batches(batch_size=1000)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    csv.field_size_limit(2**31 - 1)  # a long document is one cell
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file, strict=True), start=1):
            if None in row or None in row.values():
                raise MeeError(f"{path}, row {number} has more or fewer cells than the header.")
            yield number, row


READERS = {".jsonl.gz": _json_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows, ".csv": _csv_rows}
