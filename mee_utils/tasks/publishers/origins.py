"""What `origins.yaml` says of each corpus."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...common.files import read_yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class RawFile:
    """A file as its publisher has it. `size` is in bytes; `checksum` is "kind:hexadecimal digits" or None."""

    name: str
    size: int
    checksum: str | None = None


@dataclass(frozen=True)
class Split:
    """A split as it was measured: the number of its rows, and the sha256 of their JSON lines."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class Origin:
    """Where a corpus comes from, and what becomes of it."""

    name: str
    title: str
    licence: str
    cite: str
    page: str  # for readers
    url: str  # what the names of the files are added to
    convert: str  # a key of `conversions.CONVERSIONS`
    files: tuple[RawFile, ...]
    splits: dict[str, Split]
    pinned: bool = True  # False: the publisher replaces the file, so rows come and go

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


@cache
def load_origins() -> dict[str, Origin]:
    """Every corpus by its name, which is also that of its folder."""
    origins = {}
    for name, entry in read_yaml("tasks/publishers/origins.yaml").items():
        files = []
        for file, facts in entry.pop("files").items():
            # where the name of a file has a "*", there is one for each article
            numbers = read_words("articles.txt") if "*" in file else [""]
            size = facts["bytes"] // len(numbers)
            checksum = facts.get("checksum")
            files += [RawFile(file.replace("*", number), size, checksum) for number in numbers]
        splits = {split: Split(**facts) for split, facts in entry.pop("splits").items()}
        origins[name] = Origin(name=name, files=tuple(files), splits=splits, **entry)
    return origins


def read_words(name: str) -> list[str]:
    """What a text file of this folder lists, separated by blanks and line ends."""
    return (FOLDER / name).read_text(encoding="utf-8").split()


def read_word_lines(name: str) -> list[list[str]]:
    """The same, a list for each line."""
    return [line.split() for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
