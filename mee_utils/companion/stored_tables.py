"""The committed tables of all profiles and of the benchmark, read for the pages, and Markdown made of them.

`StoredTables` remembers what was read, for the line below a table that says where its numbers come from.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ..common.files import ROOT, read_yaml
from . import result_tables
from .figures import label
from .prose import listed
from .result_tables import BENCH, GPU, PARTS, missed, one_machine, read_timings

FIGURES = ROOT / "figures"
DATA = {"real": "real", "small": "synthetic"}  # profile -> its data, for readers; in the order of the pages
PROFILES = tuple(DATA)
TASK = ["profile", "task"]
FORMATS = read_yaml("companion/styles.yaml")["formats"]


class StoredTables:
    """Reads the committed tables of all profiles, and those of the benchmark.

    Args:
        folder: of the page, below which its links begin.
    """

    def __init__(self, folder: Path = ROOT):
        self.folder = folder
        self.machines: dict[Path, set[str]] = {}  # table that was read -> machines on which rows were timed

    def table(self, notebook: str, name: str) -> pd.DataFrame:
        """A table of every profile that has it, with `profile` as the first column; no rows: none has."""
        tables = [pd.DataFrame(columns=["profile"])]
        for profile in PROFILES:
            path = FIGURES / profile / notebook / f"{name}.csv"
            if path.exists():
                self._note(path)
                table = pd.read_csv(path)
                table.insert(0, "profile", profile)
                tables.append(table)
        return pd.concat(tables[1:] or tables, ignore_index=True)

    def decoder_lines(self) -> pd.DataFrame:
        """All lines of `decoder.csv`, of CPUs."""
        return pd.read_csv(BENCH / "decoder.csv", keep_default_na=False)

    def gpu_bench(self) -> pd.DataFrame:
        """The lines of `decoder.csv` of the GPU that timed most of them; no rows: no GPU was timed."""
        path = BENCH / GPU / "decoder.csv"
        if not path.exists():
            return self.decoder_lines().iloc[:0]
        return one_machine(pd.read_csv(path, keep_default_na=False))

    def note_gpu(self) -> None:
        """Remembers the GPU whose timings are shown."""
        for path in (BENCH / GPU / "decoder.csv", BENCH / GPU / "shapes.csv"):
            if path.exists():
                self._note(path, one_machine(pd.read_csv(path)).processor)

    def decoder_bench(self, group: str, every_machine: bool = False) -> pd.DataFrame:
        """The rows of one group of `decoder.csv`; `measured` is "1.26 (1.12 to 1.32)"."""
        table = self.decoder_lines()
        table = table[table.group == group]
        return self._timed(BENCH / "decoder.csv", table if every_machine else one_machine(table), "median")

    def missed_targets(self) -> pd.DataFrame:
        """The rows of `decoder.csv` that miss their target."""
        table = one_machine(self.decoder_lines())
        return missed(self._timed(BENCH / "decoder.csv", table, "median"))

    def lossless_bench(self) -> pd.DataFrame:
        """The rows of `lossless.csv`: verified exits."""
        return self._timed(BENCH / "lossless.csv", one_machine(pd.read_csv(BENCH / "lossless.csv")), "speed")

    def shapes_bench(self) -> pd.DataFrame:
        """The fastest exits in decoders of other sizes, from `shapes.csv`."""
        return self._timed(BENCH / "shapes.csv", result_tables.fastest_by_shape(), "speed")

    def timings(self, rows: pd.DataFrame, part: str) -> pd.DataFrame:
        """Settings of several profiles with their timings; `tokens_per_second` is `speed` as text."""
        tables = []
        for profile, settings in rows.groupby("profile", sort=False):
            timed = read_timings(part, settings, profile)
            self._note(BENCH / f"{PARTS[part][0]}.csv", [timed.attrs["processor"]] if len(timed) else [])
            tables.append(timed)
        together = pd.concat(tables)
        return together.assign(tokens_per_second=with_range(together, "speed", "lowest", "highest"))

    def note_timings(self, rows: pd.DataFrame) -> None:
        """Remembers timings by their `part` of the benchmark and their `processor`."""
        for part, of_part in rows.groupby("part", sort=False):  # without what was not timed
            self._note(BENCH / f"{PARTS[part][0]}.csv", of_part.processor)

    def sources(self) -> str:
        """The line below a table: links to what was measured and timed, and the machines ("" for nothing)."""
        measured = [path for path in self.machines if BENCH not in path.parents]
        timed = [path for path in self.machines if BENCH in path.parents]
        parts = []
        if measured:
            parts.append(f"Measurements: {', '.join(self._links(measured))}.")
        if timed:
            times = ", ".join(f"[{path.stem}]({self.link(path)})" for path in timed)
            parts.append(f"Times: {times}{self._timed_on(timed)}.")
        return f"*{' '.join(parts)}*" if parts else ""

    def _links(self, paths: list[Path]) -> list[str]:
        """ "[01 figure_1_settled](...)": a link for each table, to that of the first profile that has it."""
        links: dict[str, str] = {}
        for path in sorted(paths, key=self._turn):
            _, notebook, *_ = path.relative_to(FIGURES).parts
            chapter = notebook[:2] if notebook[:2].isdigit() else notebook
            name = f"{chapter} {path.stem}"
            links.setdefault(name, f"[{name}]({self.link(path)})")
        return list(links.values())

    @staticmethod
    def _turn(path: Path) -> int:
        """The place of a table's profile."""
        profile, *_ = path.relative_to(FIGURES).parts
        return list(PROFILES).index(profile) if profile in PROFILES else len(PROFILES)

    def _timed_on(self, paths: list[Path]) -> str:
        """The machines that timed what is shown: ", on AMD EPYC with 2 cores (torch 2.13.0)".

        Machines with the same cores and torch stand together: ", on A and B with 2 cores (torch 2.13.0)".
        """
        alike: dict[str, list[str]] = {}
        for path in paths:
            for name, equipment in _describe_machines(path, self.machines[path]):
                names = alike.setdefault(equipment, [])
                if name not in names:
                    names.append(name)
        machines = [f"{listed(names)} {equipment}" for equipment, names in alike.items()]
        return f", on {' and on '.join(machines)}" if machines else ""

    def link(self, path: Path) -> str:
        """The address of a file, seen from the page."""
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def _timed(self, path: Path, rows: pd.DataFrame, middle: str) -> pd.DataFrame:
        self._note(path, rows.processor)
        return rows.assign(measured=with_range(rows, middle, "lowest", "highest"))

    def _note(self, path: Path, machines: Iterable[str] = ()) -> None:
        self.machines.setdefault(path, set()).update(machines)


def _describe_machines(path: Path, shown: set[str]) -> list[tuple[str, str]]:
    """("AMD EPYC", "with 2 cores (torch 2.13.0)") for each machine that timed what is shown of a table.

    Of a GPU ("NVIDIA H100 80GB HBM3", "(torch 2.11.0)").
    """
    all_machines = json.loads(path.with_name(result_tables.MACHINES).read_text(encoding="utf-8"))
    described = []
    for name, machine in all_machines[path.stem].items():
        if name in shown:
            cores = "" if "cuda" in machine else f"with {machine['cores']} cores "
            described.append((name, f"{cores}(torch {machine['torch']})"))
    return described


def with_range(rows: pd.DataFrame, middle: str, low: str, high: str, form: str = ".2f") -> list[str]:
    """ "1.26 (1.12 to 1.32)" for every row."""
    values = zip(rows[middle], rows[low], rows[high], strict=True)
    return [f"{m:{form}} ({a:{form}} to {b:{form}})" for m, a, b in values]


def wide(rows: pd.DataFrame, keys: list[str], columns: str, values: str) -> pd.DataFrame:
    """A row for each of the `keys` and a column for each of `columns`, both in the order of the rows."""
    table = rows.pivot(index=keys, columns=columns, values=values)[rows[columns].unique()]
    return table.loc[rows.set_index(keys).index.unique()].reset_index()


def in_order(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Rows by profile (real text first), task, and further columns."""
    return rows.sort_values([*TASK, *columns], kind="stable")


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown: numbers by their column's format, names as a reader knows them.

    A text in a column of numbers stays as it is ("none measured"). A profile is named by its data.
    """
    shown = table.astype(object).where(table.notna(), "")
    if "profile" in shown:
        shown = shown.rename(columns={"profile": "data"}).replace({"data": DATA})
    for column in shown:
        form = FORMATS.get(column, "")
        shown[column] = [_cell(value, form) for value in shown[column]]
    shown.columns = [label(column) for column in shown]
    return plain_markdown(shown)


def plain_markdown(table: pd.DataFrame) -> str:
    """A table of texts as Markdown, each as it is."""
    text = table.to_markdown(index=False, disable_numparse=True)
    # one long cell would widen its whole column: spaces and rules that only align are left out
    return re.sub("-{4,}", "---", re.sub(" {2,}", " ", text))


def _cell(value, form: str) -> str:
    if form and not isinstance(value, str):
        return f"{value:{form}}"
    return label(value) if re.fullmatch(r"[\w ,]+", str(value)) else str(value)
