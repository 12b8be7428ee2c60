"""Where rows come from: local files in the hub's column layouts, or a data set on the hub.

A file may be jsonl, jsonl.gz, parquet or csv. In a folder, also one on the hub, a split is a file or folder
named after it, as `validation.jsonl.gz`, `validation-00000-of-00001.parquet` or `validation/0000.parquet`.
"""

import csv
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import MeeError, one_line
from ..common.files import ENDINGS

FOLDERS = (
    "",
    "data/",
    "plain_text/",
    "default/",
)  # where data sets have the splits of their only configuration
FORMS = (".*", "-*", "/*")  # what follows the name of a split: one file, shards, or a folder of shards
SHARD = re.compile(r"-(\d{5})-of-(\d{5})")  # the hub's numbering


def local_files(source: Path, split: str, folder: str | None = None) -> tuple[list[Path], str]:
    """The files to read of a local source, in order, and the sha256 of their bytes.

    Args:
        source: a file; a folder with a file or folder for each split; or the folder that Spark writes in
            place of one file ("validation.parquet/part-00000.parquet").
        split: the split to look for in a folder; a file is taken as it is.
        folder: where in `source` the splits are.

    Raises `MeeError` for a split that is not there, incomplete, or there twice.
    """
    files = _local_files(source, split, folder)
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return files, digest.hexdigest()


def _local_files(source: Path, split: str, folder: str | None) -> list[Path]:
    if folder:
        if not (source / folder).is_dir():
            raise MeeError(f'folder="{folder}": {source} has no such folder; leave it out, or give another.')
        source = source / folder
    if not source.is_dir():
        return [source]
    files = _parts(source) if source.name.endswith(ENDINGS) else _find_split(source, split, FOLDERS)
    if files:
        return files
    present = sorted(
        {re.split(r"[.-]", path.name)[0] for path in source.rglob("*") if path.name.endswith(ENDINGS)}
    )
    advice = f"it has {', '.join(present[:8])}" if present else f"it has no {', '.join(ENDINGS)} file"
    raise MeeError(f'No file of the split "{split}" in {source}: {advice}.')


def _parts(path: Path) -> list[Path]:
    """A file, or the data files of a folder in its place; Spark marks all others by "_" or "."."""
    if not path.is_dir():
        return [path]
    return sorted(part for part in path.glob("[!._]*") if part.name.endswith(ENDINGS) and part.is_file())


def _find_split(source: Path, split: str, folders: tuple[str, ...]) -> list[Path]:
    """The files of a split in order; an error if it is there in two forms, which would double the data."""
    forms = [form for inside in folders for form in _forms(source, f"{inside}{split}")]
    if len(forms) > 1:
        names = " and ".join(str(form[0].relative_to(source)) for form in forms[:2])
        raise MeeError(
            f'{source} has the split "{split}" twice, {names}: remove one, or name the file to read.'
        )
    files = forms[0] if forms else []
    _check_shards(source, files)
    return [part for path in files for part in _parts(path)]


def _forms(source: Path, stem: str) -> list[list[Path]]:
    """Every form in which a split is there: single files, shards of one ending, or a folder of one ending."""
    forms = [[path] for path in sorted(source.glob(f"{stem}.*")) if _ending(path)]
    for pattern in (f"{stem}-*", f"{stem}/*"):
        files = sorted(source.glob(pattern))
        by_ending = [[path for path in files if _ending(path) == ending] for ending in ENDINGS]
        forms += [shards for shards in by_ending if shards]
    return forms


def _check_shards(source: Path, files: list[Path]) -> None:
    numbered = [match for path in files if (match := SHARD.search(path.name))]
    if numbered and len(numbered) != int(numbered[0][2]):
        missing = f"{len(numbered)} of the {int(numbered[0][2])} files that {files[0].name} belongs to"
        raise MeeError(f"{source} has only {missing}: copy the others too.")


def _ending(path: Path) -> str | None:
    return next((ending for ending in ENDINGS if path.name.endswith(ending)), None)


def hub_files(source: str, split: str, revision: str | None, folder: str | None) -> tuple[list[Path], str]:
    """The files of one split of a hub data set in the hub's cache, and a digest of what they are.

    What was downloaded once is read without the network, if `revision` is a commit or still known there.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()
    folders = (f"{folder.strip('/')}/",) if folder else FOLDERS
    wanted = [f"{inside}{split}{form}" for inside in folders for form in FORMS]
    try:
        snapshot = Path(
            snapshot_download(source, repo_type="dataset", revision=revision, allow_patterns=wanted)
        )
    except Exception as error:  # the hub's client raises a dozen kinds
        failed = f'no local file or folder, and the hub did not give its split "{split}" ({one_line(error)})'
        advice = "Check the spelling and the network, or name a local folder"
        raise MeeError(f'"{source}" is {failed}. {advice}.') from error
    files = _find_split(snapshot, split, folders)
    if not files:
        looked = f"({', '.join(ENDINGS)}) in {', '.join(inside or './' for inside in folders)}"
        advice = 'name the `folder` that has it, if need be of the revision "refs/convert/parquet"'
        raise MeeError(f'"{source}" has no file of the split "{split}" {looked}: {advice}.')
    commit = snapshot.name
    identity = "\n".join(map(str, (source, commit, folder, split)))
    return files, hashlib.sha256(identity.encode()).hexdigest()


def rows(files: list[Path]) -> Iterator[tuple[str, dict]]:
    """Yields ("file, row 3", row) of some files; an empty or broken file is an error in one line."""
    for path in files:
        ending = _ending(path)
        if ending is None:
            raise MeeError(f"{path} is none of {', '.join(ENDINGS)}: convert it, or name another file.")
        number = 0
        for number, row in _readable_rows(path, ending):
            yield f"{path}, row {number}", row
        if not number:
            raise MeeError(f"{path} is empty: there is nothing to run on.")


def _readable_rows(path: Path, ending: str) -> Iterator[tuple[int, dict]]:
    """The numbered rows of a file; what its reader raises is one line, and an empty file has none."""
    try:
        yield from READERS[ending](path)
    except MeeError:
        raise
    except UnicodeError as error:
        raise MeeError(f"{path} is not UTF-8 ({one_line(error, 80)}): save it as UTF-8.") from error
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        if path.stat().st_size:
            raise MeeError(f"{path} cannot be read as {ending}: {one_line(error)}") from error


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
