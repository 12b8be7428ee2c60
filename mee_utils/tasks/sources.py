"""Where the files of a split are: in a local file or folder, or in a data set on the hub.

A file may be jsonl, jsonl.gz, parquet or csv. In a folder, also one on the hub, a split is a file or folder
named after it, as `validation.jsonl.gz`, `validation-00000-of-00001.parquet` or `validation/0000.parquet`, or
a data set that `datasets` saved (`rows.is_saved`).

The hub's client fetches the files, and not `datasets.load_dataset`, which fetches every split and, without
the network, gives the latest rows that it has, whatever commit `revision` is.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable
from pathlib import Path

from ..common.errors import MeeError, one_line
from ..common.sources import ENDINGS
from .rows import ending_of, is_saved

# where data sets have the splits of their only configuration
FOLDERS = ("", "data/", "plain_text/", "default/")
FORMS = (".*", "-*", "/*")  # what follows the name of a split: one file, shards, or a folder of shards
SHARD = re.compile(r"-(\d{5})-of-(\d{5})")  # the hub's numbering


def local_files(source: Path, split: str, folder: str | None = None) -> tuple[list[Path], str]:
    """The files to read of a local source, in order, and the sha256 of their bytes.

    Args:
        source: a file; a folder with a file or folder for each split; the folder that Spark writes in place
            of one file ("validation.parquet/part-00000.parquet"); or a data set that `datasets` saved.
        split: the split to look for in a folder; a file is taken as it is.
        folder: where in `source` the splits are.

    Raises `MeeError` for a split that is not there, incomplete, or there twice.
    """
    if folder:
        if not (source / folder).is_dir():
            raise MeeError(f'folder="{folder}": {source} has no such folder; leave it out, or give another.')
        source = source / folder
    in_place_of_a_file = source.name.lower().endswith(ENDINGS)
    one_split = in_place_of_a_file or not source.is_dir() or is_saved(source)
    files = _parts(source) if one_split else _find_split(source, split, FOLDERS)
    if not files:
        present = {re.split(r"[.-]", path.name)[0] for path in source.rglob("*") if ending_of(path)}
        present |= {path.parent.name for path in source.rglob("state.json")}
        names = ", ".join(sorted(present)[:8])
        advice = f"it has {names}" if names else f"it has no {', '.join(ENDINGS)} file"
        raise MeeError(f'No file of the split "{split}" in {source}: {advice}.')
    return files, _digest(files)


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        # of a saved data set the rows, and not what `datasets` may have cached beside them
        for content in sorted(path.glob("data*.arrow")) if path.is_dir() else [path]:
            try:
                digest.update(content.read_bytes())
            except OSError as error:
                advice = "restore it, or remove it"
                raise MeeError(f"{content} cannot be read ({error.strerror}): {advice}.") from error
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    """A file or a saved data set itself; of another folder the data files in it that are not hidden."""
    if not path.is_dir() or is_saved(path):
        return [path]
    return sorted(part for part in path.glob("[!._]*") if ending_of(part) and not part.is_dir())


def _find_split(source: Path, split: str, folders: tuple[str, ...]) -> list[Path]:
    """The files of a split in order; an error if it is there in two forms, which would double the data."""
    forms = []
    for inside in folders:
        stem = f"{inside}{split}"
        forms += [[path] for path in sorted(source.glob(f"{stem}.*")) if ending_of(path)]
        forms += _series(path for path in source.glob(f"{stem}-*") if ending_of(path))
        if is_saved(source / stem):
            forms.append([source / stem])
        elif (source / stem).is_dir():
            forms += _series(_parts(source / stem), any_name=True)
    if len(forms) > 1:
        raise _twice(source, split, [form[0] for form in forms])
    files = forms[0] if forms else []
    _check_shards(source, split, files)
    return [part for path in files for part in _parts(path)]


def _twice(source: Path, split: str, paths: list[Path]) -> MeeError:
    names = " and ".join(str(path.relative_to(source)) for path in paths[:2])
    advice = "remove one, or name the file to read"
    return MeeError(f'{source} has the split "{split}" twice, {names}: {advice}.')


def _series(paths: Iterable[Path], any_name: bool = False) -> list[list[Path]]:
    """Shards in series: of one ending, and numbered of the same total or, but for numbers, of one name."""
    series: dict[Hashable, list[Path]] = {}
    for path in sorted(paths):
        numbered = SHARD.search(path.name)
        name = "" if any_name else re.sub(r"\d", "", path.name)
        key = (ending_of(path), numbered[2] if numbered else name)
        series.setdefault(key, []).append(path)
    return list(series.values())


def _check_shards(source: Path, split: str, files: list[Path]) -> None:
    """Of shards that are numbered as on the hub, each must be there, and once."""
    paths: dict[int, Path] = {}
    total = 0
    for path in files:
        if numbered := SHARD.search(path.name):
            number, total = map(int, numbered.groups())
            if number in paths:
                raise _twice(source, split, [paths[number], path])
            paths[number] = path
    if len(paths) != total:
        missing = f"{len(paths)} of the {total} files that {files[0].name} belongs to"
        raise MeeError(f"{source} has only {missing}: copy the others too.")


def hub_files(source: str, split: str, revision: str | None, folder: str | None) -> tuple[list[Path], str]:
    """The files of one split of a hub data set in the hub's cache, and a digest of what they are.

    What was downloaded once is read without the network: a commit, or a branch or tag where the cache saw it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()
    folders = (f"{folder.strip('/')}/",) if folder else FOLDERS
    wanted = [f"{inside}{split}{form}" for inside in folders for form in FORMS]
    try:
        fetched = snapshot_download(source, repo_type="dataset", revision=revision, allow_patterns=wanted)
    except Exception as error:  # the hub's client raises a dozen kinds
        failed = f'no local file or folder, and the hub did not give its split "{split}" ({one_line(error)})'
        advice = "Check the spelling and the network, or name a local folder"
        raise MeeError(f'"{source}" is {failed}. {advice}.') from error
    files = _find_split(Path(fetched), split, folders)
    if not files:
        looked = f"({', '.join(ENDINGS)}) in {', '.join(inside or './' for inside in folders)}"
        advice = 'name the `folder` that has it, if need be of the revision "refs/convert/parquet"'
        raise MeeError(f'"{source}" has no file of the split "{split}" {looked}: {advice}.')
    commit = Path(fetched).name
    identity = "\n".join(map(str, (source, commit, folder, split)))
    return files, hashlib.sha256(identity.encode()).hexdigest()
