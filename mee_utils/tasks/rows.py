"""The rows of a corpus: of JSON lines, parquet and CSV files, and of a data set that `datasets` saved.

A row is what its file says, text for text. `datasets.load_dataset` would not do for these files, whatever its
options: its JSON reader makes "1918-11-11 00:00:00" of the answer "1918-11-11", and its CSV reader drops
cells of a row that is too wide and takes a missing one as an empty text. Other formats, and corpora that need
its options, come in through the library: `load_dataset(...).save_to_disk(folder)` writes what is read here.
"""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..common.errors import MeeError, one_line, shown
from ..common.extras import needs_extra
from ..common.sources import ENDINGS

POINTER = b"version https://git-lfs"  # what Git LFS leaves in place of a file that it did not fetch
SAVED = "a data set saved by datasets"
BATCH = 1000  # rows that are made Python objects at a time


def ending_of(path: Path) -> str | None:
    """The one of `ENDINGS` that a file has; None if it has none of them."""
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)


def is_saved(folder: Path) -> bool:
    """Whether a folder is a data set that `datasets` saved, one split of it."""
    return (folder / "state.json").is_file()


def rows(paths: list[Path]) -> Iterator[tuple[str, dict]]:
    """Yields ("file, row 3", row) of files or saved data sets; whatever is wrong is an error in one line."""
    empty = True
    for path in paths:
        kind = SAVED if is_saved(path) else ending_of(path)
        if kind is None:
            raise MeeError(f"{path} is none of {', '.join(ENDINGS)}: convert it, or name another file.")
        try:
            for number, row in _numbered_rows(path, kind):
                empty = False
                yield f"{path}, row {number}", row
        except MeeError:
            raise
        except UnicodeError as error:
            raise MeeError(f"{path} is not UTF-8 ({one_line(error, 80)}): save it as UTF-8.") from error
        except Exception as error:  # csv, gzip, json and pyarrow raise a dozen kinds
            raise MeeError(f"{path} cannot be read as {kind}: {one_line(error)}") from error
    if empty:
        raise MeeError(f"{paths[0]} has no rows: there is nothing to run on.")


def _numbered_rows(path: Path, kind: str) -> Iterator[tuple[int, dict]]:
    """The rows of a file or a saved data set; in JSON lines their numbers count empty lines too."""
    if kind == SAVED:
        return _saved_rows(path)
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if not start:
        raise MeeError(f"{path} is empty: there is nothing to run on.")
    if start == POINTER:
        raise MeeError(f'{path} is a pointer of Git LFS, not the file: fetch it by "git lfs pull".')
    if kind == ".csv":
        return _csv_rows(path)
    return _parquet_rows(path) if kind == ".parquet" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[tuple[int, dict]]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = parsed_json(line)
            except MeeError as error:
                raise MeeError(f"{path}, line {number} {error}: correct it.") from error
            if not isinstance(row, dict):
                raise MeeError(f"{path}, line {number} is {line.strip()[:40]!r}, no object.")
            yield number, row


def parsed_json(text: str):
    """What a JSON text says; the `MeeError` of one that cannot be read goes on after its name.

    >>> parsed_json('{"article": "one", "article": "two"}')
    Traceback (most recent call last):
    mee_utils.common.errors.MeeError: has the key 'article' twice
    """
    try:
        return json.loads(text, object_pairs_hook=_with_each_key_once)
    except MeeError:
        raise
    except json.JSONDecodeError as error:
        raise MeeError(f"is not JSON ({error.msg} at character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise MeeError(f"cannot be read as JSON ({one_line(error, 80)})") from error


def _with_each_key_once(pairs: list[tuple]) -> dict:
    """A JSON object; of a key that is there twice it would keep the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MeeError(f"has the key {shown(twice)} twice")
    return content


def _csv_rows(path: Path) -> Iterator[tuple[int, dict]]:
    csv.field_size_limit(2**31 - 1)  # a long document is one cell
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        names = list(reader.fieldnames or [])
        _check_columns(path, names)
        if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
            raise MeeError(f"{path} has the one column {shown(names[0])}: separate columns by commas.")
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                cells = "has more or fewer cells than the header"
                raise MeeError(f"{path}, row {number} {cells}: correct it, with quotes around commas.")
            yield number, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict]]:
    with needs_extra("notebooks"):
        from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        _check_columns(path, file.schema_arrow.names)
        yield from _arrow_rows(file.iter_batches(batch_size=BATCH))


def _saved_rows(folder: Path) -> Iterator[tuple[int, dict]]:
    with needs_extra("notebooks"):
        from datasets import load_from_disk

    if not any(folder.glob("data*.arrow")):
        return  # no rows: `load_from_disk` would fail
    # as Arrow: whatever format it was saved in, and no image or sound beside the texts is decoded
    dataset = load_from_disk(str(folder)).with_format("arrow")

    def tables():
        for table in dataset.iter(batch_size=BATCH):
            table.validate(full=True)  # an error where a file is damaged, which else would end the process
            yield table

    yield from _arrow_rows(tables())


def _arrow_rows(batches: Iterable) -> Iterator[tuple[int, dict]]:
    """The numbered rows of Arrow tables or record batches."""
    return enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _check_columns(path: Path, names: list[str]) -> None:
    """Of two columns of one name a row would keep the last."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MeeError(f"{path} has the column {shown(twice)} twice: remove or rename one.")
