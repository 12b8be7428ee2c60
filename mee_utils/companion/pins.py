"""Which commit of a hub repository a profile means: the `revision` beside its id.

`python -m mee_utils pin --profile paper` writes the present commit of every hub id into the profile's file.
Commit that file with the results: whoever runs it again gets the same data and weights. An id without a
revision, or at a branch, is taken at its newest commit.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from ..common.errors import MeeError, one_line
from ..common.files import complete_file
from ..common.sources import is_hub_id
from .profiles import Checkpoint, HubSource, Profile, Source, load_profile, profile_path

COMMIT = re.compile("[0-9a-f]{40}")
ALIAS = re.compile(r"\*[^\s,\[\]{}]+")
ANCHOR = re.compile(r"&\S+\s+")
MERGE = "tag:yaml.org,2002:merge"  # YAML's "<<"
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
    corpora = [*profile.corpora.values(), *profile.extra.values(), *profile.away.values()]
    ready = []
    for name in profile.training.models:
        for checkpoint in profile.training.checkpoints(name).values():
            ready += [checkpoint, checkpoint.tokenizer] if checkpoint.tokenizer else [checkpoint]
    return sorted({each.source for each in [*corpora, *ready] if _moves(each)})


def _moves(settings: Source | HubSource) -> bool:
    """Whether a source is on the hub, and at no commit."""
    at_commit = COMMIT.fullmatch(settings.revision or "")
    return not at_commit and "{data}" not in settings.source and is_hub_id(settings.source)


def how_to_pin(profile: Profile, given: str) -> str:
    """The end of a command's last line: which hub ids may move, and what would hold them; mostly nothing."""
    sources = ", ".join(unpinned(profile))
    command = shlex.join([sys.executable, "-m", "mee_utils", "pin", "--profile", str(given)])
    return f"; at their newest commit: {sources} (pin them by {command})" if sources else ""


class Edit(NamedTuple):
    """A text to put in place of the characters from `start` to `end` of a file."""

    start: int
    end: int
    text: str


def pin(name: str | Path) -> dict[str, str]:
    """Writes the commit of every hub id into a profile's file, and leaves all else in it as it is.

    Returns:
        hub id -> commit, of those that had none.
    """
    profile = load_profile(name)
    path = profile_path(name)
    text = path.read_bytes().decode("utf-8")
    commits: dict[str, str] = {}
    edits: dict[int, Edit] = {}
    for kind, settings, node in _sources(profile, yaml.compose(text, Loader=yaml.SafeLoader)):
        if _moves(settings):
            commit = hub_commit(kind, settings.source, settings.revision)
            commits[settings.source] = commit
            edit = _edit(node, commit, text)
            edits[edit.start] = edit  # one, where an alias stands for the same lines
    for edit in sorted(edits.values(), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    if edits:
        with complete_file(path) as partial:
            partial.write_bytes(text.encode("utf-8"))
    return commits


def _sources(
    profile: Profile, root: yaml.MappingNode
) -> Iterator[tuple[Kind, Source | HubSource, yaml.MappingNode]]:
    """The settings of a profile that may name a hub id, each with its mapping in the file."""
    top = _entries(root)
    for part in ("corpora", "extra", "away"):
        corpora = getattr(profile, part)
        nodes = _entries(top[part]) if corpora else {}
        for name, corpus in corpora.items():
            yield "dataset", corpus, nodes[name]
    training = _entries(top["training"])
    models = {"base": training["base"], **_entries(training["backbones"])}
    for name, node in models.items():
        for task, checkpoint in profile.training.checkpoints(name).items():
            yield from _of_checkpoint(checkpoint, _entries(_entries(node)["tasks"])[task] if task else node)


def _of_checkpoint(
    checkpoint: Checkpoint, node: yaml.MappingNode
) -> Iterator[tuple[Kind, HubSource, yaml.MappingNode]]:
    yield "model", checkpoint, node
    if checkpoint.tokenizer:
        yield "model", checkpoint.tokenizer, _entries(node)["tokenizer"]


def _entries(mapping: yaml.MappingNode) -> dict[str, yaml.Node]:
    """The values of a mapping by key, with those that "<<" takes over from other mappings."""
    entries: dict[str, yaml.Node] = {}
    for merged in reversed(_merged(mapping)):
        entries |= _entries(merged)
    return entries | {key.value: value for key, value in mapping.value if key.tag != MERGE}


def _merged(mapping: yaml.MappingNode) -> list[yaml.MappingNode]:
    """The mappings that "<<" takes over, the first being the strongest."""
    merged: list[yaml.MappingNode] = []
    for key, value in mapping.value:
        if key.tag == MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return merged


def _edit(mapping: yaml.MappingNode, commit: str, text: str) -> Edit:
    """What puts `revision: "<commit>"` into a mapping, in the style that it has.

    Without a source of its own, a mapping has it from another by "<<": there the revision is written, too.
    """
    keys = {key.value: (key, value) for key, value in mapping.value if key.tag != MERGE}
    quoted = f'"{commit}"'  # without quotes a commit of digits would be a number
    if "revision" in keys:
        start, end = _span(*keys["revision"], text)
        blank = "" if text[start - 1] == " " else " "
        return Edit(start, end, blank + quoted)
    if not SOURCE & keys.keys():
        origin = next(merged for merged in _merged(mapping) if SOURCE & _entries(merged).keys())
        return _edit(origin, commit, text)
    key, value = keys.get("source") or keys["checkpoint"]
    if mapping.flow_style:
        _, end = _span(key, value, text)
        return Edit(end, end, f", revision: {quoted}")
    start = key.start_mark.index
    line_end = "\r\n" if "\r\n" in text else "\n"
    return Edit(start, start, f"revision: {quoted}{line_end}{' ' * key.start_mark.column}")


def _span(key: yaml.Node, value: yaml.Node, text: str) -> tuple[int, int]:
    """From where to where a value is written: what follows its anchor, or the alias that stands for it."""
    start = value.start_mark.index
    if start < key.start_mark.index:  # where the anchor is
        return ALIAS.search(text, key.end_mark.index).span()
    anchor = ANCHOR.match(text, start)
    return anchor.end() if anchor else start, value.end_mark.index
