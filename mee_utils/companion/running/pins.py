"""Which commit of a hub repository a profile means: the `revision` beside its id.

`python -m mee_utils pin --profile paper` writes the present commit of every hub id into the profile's file.
Commit that file with the results: whoever runs it again gets the same data and weights. An id without a
revision, or at a branch, is taken at its newest commit.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Literal

from ...common.errors import MeeError, one_line
from ...common.files import complete_file
from ...common.sources import is_hub_id
from ..profiles import HubSource, Profile, Source, load_profile, profile_path

COMMIT = re.compile("[0-9a-f]{40}")
MARK = "\ufeff"  # of the order of bytes, which a file may begin with
SOURCE = {"source", "checkpoint"}  # the keys that may hold a hub id
Kind = Literal["dataset", "model"]


@lru_cache
def hub_commit(kind: Kind, source: str, revision: str | None) -> str | None:
    """The commit of a hub id: that of its revision, or the newest; None for a source that is not on the hub.

    Without the network it is what the hub's cache last knew. The answer holds for the whole process.
    """
    if not is_hub_id(source):
        return None
    if revision and COMMIT.fullmatch(revision):
        return revision
    reference = _reference(kind, source, revision)
    try:
        commit = _ask_hub(kind, source, revision)
    except Exception as error:  # the hub's client raises a dozen kinds
        if reference.is_file():
            return reference.read_text(encoding="utf-8").strip()
        reason = f"revision {revision or 'main'}; {one_line(error)}"
        advice = "or copy the hub's cache from a machine that has it, and pin the profile there"
        raise MeeError(
            f'The hub could not be reached for "{source}" ({reason}). Check the id and the network, {advice}.'
        ) from error
    with suppress(OSError):
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
    return commit


def _ask_hub(kind: Kind, source: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    return HfApi().repo_info(source, revision=revision, repo_type=kind).sha


def _reference(kind: Kind, source: str, revision: str | None) -> Path:
    """Where the hub's cache keeps the commit that a revision was last seen at."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source, repo_type=kind)
    return folder / "refs" / (revision or "main")


def unpinned(profile: Profile) -> list[str]:
    """The hub ids of a profile that stand at no commit."""
    return sorted({settings.source for _, settings, _ in _sources(profile) if _moves(settings)})


def _moves(settings: Source | HubSource) -> bool:
    """Whether a source is on the hub, and at no commit."""
    at_commit = COMMIT.fullmatch(settings.revision or "")
    return not at_commit and "{data}" not in settings.source and is_hub_id(settings.source)


def how_to_pin(profile: Profile, given: str) -> str:
    """The end of a command's last line: which hub ids may move, and what would hold them; mostly nothing."""
    sources = ", ".join(unpinned(profile))
    command = shlex.join([sys.executable, "-m", "mee_utils", "pin", "--profile", str(given)])
    return f"; at their newest commit: {sources} (pin them by {command})" if sources else ""


def pin(name: str | Path) -> dict[str, str]:
    """Writes the commit of every hub id into a profile's file, with comments, anchors and quotes as they are.

    Returns:
        hub id -> commit, of those that had none.
    """
    from ruamel.yaml import YAML

    profile = load_profile(name)
    path = profile_path(name)
    text = path.read_bytes().decode("utf-8")
    file = YAML()  # writes in the style of our profiles
    file.preserve_quotes = True
    file.width = 10**6
    file.indent(mapping=2, sequence=4, offset=2)
    content = file.load(text.removeprefix(MARK))
    commits: dict[str, str] = {}
    for kind, settings, place in _sources(profile):
        if _moves(settings):
            commit = hub_commit(kind, settings.source, settings.revision)
            commits[settings.source] = commit
            _write_revision(reduce(getitem, place, content), commit)
    if commits:
        with io.StringIO() as written, complete_file(path) as partial:
            file.dump(content, written)
            lines = written.getvalue().replace("\n", "\r\n" if "\r\n" in text else "\n")
            partial.write_bytes((MARK * text.startswith(MARK) + lines).encode("utf-8"))
    return commits


def _sources(profile: Profile) -> Iterator[tuple[Kind, Source | HubSource, list[str]]]:
    """The settings of a profile that may name a hub id, each with its place in the file."""
    for part in ("corpora", "extra", "away"):
        for name, corpus in getattr(profile, part).items():
            yield "dataset", corpus, [part, name]
    for name in ("base", *profile.training.backbones):
        model = ["training", "base"] if name == "base" else ["training", "backbones", name]
        for task, checkpoint in profile.training.checkpoints(name).items():
            place = [*model, "tasks", task] if task else model
            yield "model", checkpoint, place
            if checkpoint.tokenizer:
                yield "model", checkpoint.tokenizer, [*place, "tokenizer"]


def _write_revision(mapping, commit: str) -> None:
    """Puts `revision: "<commit>"` beside the source of a mapping.

    Without a source of its own, a mapping has it from another by "<<": there the revision is written, too.
    """
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    own = [key for key, _ in mapping.non_merged_items()]
    source = next((key for key in own if key in SOURCE), None)
    quoted = DoubleQuotedScalarString(commit)  # without quotes a commit of digits would be a number
    if "revision" in own:
        mapping["revision"] = quoted
    elif source:
        # before it in a block, where the comments of a line follow it; "<<" counts too
        place = own.index(source) + bool(mapping.merge) + bool(mapping.fa.flow_style())
        mapping.insert(place, "revision", quoted)
    else:
        _write_revision(next(merged for merged in mapping.merge if SOURCE & merged.keys()), commit)
