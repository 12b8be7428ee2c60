"""Corpora as folders of gzipped JSON lines: which are there, and how those that are missing get there."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from ...common.errors import MeeError, one_line
from ...common.files import complete_file
from .conversions import CONVERSIONS, Rows
from .download import download
from .origins import Origin

RAW = ".raw"  # where downloads wait until their corpus is complete
OTHER_FORM = (  # what a conversion raises where a file is not what it was: a page in place of an archive, say
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


def fetch(origins: Iterable[Origin], folder: Path, say: Callable[[str], None] = print) -> None:
    """Fetches and converts the corpora that a folder lacks; says first what each is, its licence, its size.

    Args:
        origins: the corpora that are wanted.
        folder: gets one folder for each, with a `<split>.jsonl.gz` for each split.
        say: called with one line at a time.

    Raises:
        MeeError: some could not be fetched. The others are there, and another call goes on where this ended.
    """
    origins = list(origins)
    for origin in origins:
        say(described(origin, folder))
    missing = [origin for origin in origins if not is_there(origin, folder)]
    failed = []
    for origin in missing:
        try:
            say(f"{origin.name}: {fetch_corpus(origin, folder)}")
        except MeeError as error:
            failed.append(origin.name)
            say(f"{origin.name}: {error}")
    if failed:
        count = f"{len(failed)} of {len(origins)} corpora could not be fetched"
        kept = "what has arrived is kept; run the command again later"
        raise MeeError(f"{count} ({', '.join(failed)}): {kept}.")


def described(origin: Origin, folder: Path) -> str:
    """One line about a corpus: what it is, its licence, its size, and whether it is there."""
    size = f"{origin.size / 1e6:.1f} MB"
    state = f"there: {compared(origin, folder)}" if is_there(origin, folder) else f"to download: {size}"
    return f"{origin.name}: {origin.title}. Licence: {origin.licence}. From {origin.page}. {state}"


def is_there(origin: Origin, folder: Path) -> bool:
    """Whether a folder has all splits of a corpus."""
    return all(_path(origin, folder, split).exists() for split in origin.splits)


def fetch_corpus(origin: Origin, folder: Path) -> str:
    """Fetches one corpus; returns in a few words how its rows compare with those that were measured."""
    raw = folder / RAW / origin.name
    download(origin, raw)
    try:
        splits = CONVERSIONS[origin.convert](raw)
    except OTHER_FORM as error:
        shutil.rmtree(raw)
        differs = f"the files of {origin.page} have another form than expected"
        raise MeeError(f"{differs} ({one_line(error)}): please report it.") from error
    for split in origin.splits:
        with complete_file(_path(origin, folder, split)) as path:
            path.write_bytes(packed(splits[split], f"{split}.jsonl"))
    shutil.rmtree(raw)
    return compared(origin, folder)


def _path(origin: Origin, folder: Path, split: str) -> Path:
    return folder / origin.name / f"{split}.jsonl.gz"


def packed(rows: Rows, name: str) -> bytes:
    """Rows as gzipped JSON lines, without the time: the same rows are the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(name, mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return buffer.getvalue()


def compared(origin: Origin, folder: Path) -> str:
    """How the rows of a corpus compare with those that were measured, as far as `origins.yaml` says."""
    differing = []
    for name, split in origin.splits.items():
        try:
            content = gzip.decompress(_path(origin, folder, name).read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            differing.append(f"{name} has a damaged file ({one_line(error)})")
            continue
        if hashlib.sha256(content).hexdigest() != split.sha256:
            rows = content.count(b"\n")
            measured = f" for {split.rows}" if rows != split.rows else ", some of another text"
            differing.append(f"{name} has {rows} rows{measured}")
    if not differing:
        return "the rows that were measured"
    rolling = "its publisher replaces the file now and then"
    advice = "remove its folder to fetch it again" if origin.pinned else rolling
    return f"other rows than were measured: {', '.join(differing)}; {advice}"
