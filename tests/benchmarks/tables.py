"""The tables of `make bench`: lines of every machine that it ran on, beside descriptions of them."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pandas as pd

from mee_utils.common.files import complete_file
from mee_utils.study.result_tables import MACHINES
from mee_utils.study.results import output_root, processor

from .decoder import PARTS
from .workloads import WORKLOADS

DIGESTS = "digests.json"
ORDERS = {"shape": list(WORKLOADS), "group": list(PARTS)}  # of lines in a table


def save(table: pd.DataFrame, name: str = "decoder", keys: Sequence[str] = ("shape", "group")) -> Path:
    """Writes a table as CSV; its first column is the processor, and `machines.json` says more of each.

    What was not timed now (by `keys`) is kept: all of other machines, and of this one with the same versions.
    `digests.json` has the sha256 of every table, as a manifest has it.
    """
    folder = output_root() / "bench"
    path = folder / f"{name}.csv"
    machines = _read_json(folder / MACHINES)
    digests = _read_json(folder / DIGESTS).get("files", {})
    keys = ["processor", *keys]
    machine = _machine()
    processor_name = machine.pop("processor")
    others = machines.get(name, {})
    before = others.pop(processor_name, {})
    # its stored lines may be kept
    machine["ctranslate2"] = machine["ctranslate2"] or before.get("ctranslate2")
    same_versions = bool(before) and all(before.get(key) in (None, value) for key, value in machine.items())
    machines[name] = {processor_name: machine} | others  # what was timed last comes first
    table = table.assign(processor=processor_name)[["processor", *table.columns]]
    if path.exists():
        stored = pd.read_csv(path, keep_default_na=False)
        table = _with_stored(table, stored, keys, same_versions)
        table = _sorted(table, keys, processors=list(machines[name]))
    text = _rounded(table).to_csv(index=False, float_format="%.4g", lineterminator="\n")
    digests[path.name] = sha256(text.encode()).hexdigest()
    texts = {
        path: text,
        folder / MACHINES: json.dumps(machines, indent=1) + "\n",
        folder / DIGESTS: json.dumps({"files": dict(sorted(digests.items()))}, indent=1) + "\n",
    }
    with ExitStack() as files:
        for file, content in texts.items():
            files.enter_context(complete_file(file)).write_text(content, encoding="utf-8")
    return path


def _read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _with_stored(
    table: pd.DataFrame, stored: pd.DataFrame, keys: list[str], same_versions: bool
) -> pd.DataFrame:
    """The lines timed now, and those stored that they do not replace."""
    replaced = stored.set_index(keys).index.isin(table.set_index(keys).index)
    if not same_versions:
        replaced = stored.processor == table.processor.iloc[0]
    return pd.concat([table, stored[~replaced]], ignore_index=True)


def _sorted(table: pd.DataFrame, keys: list[str], processors: list[str]) -> pd.DataFrame:
    """Lines in the order of their keys: sizes and parts as they are defined, processors as given."""
    orders = ORDERS | {"processor": processors}

    def rank(column: pd.Series) -> pd.Series:
        if column.name not in orders:
            return column
        return column.map({value: index for index, value in enumerate(orders[column.name])})

    return table.sort_values(keys, key=rank, kind="stable")


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Floats that stand in columns beside empty cells with four digits, thresholds with ten."""

    def four_digits(value):
        return f"{value:.4g}" if isinstance(value, float) and value == value else value

    def ten_digits(level):
        return f"{float(level):.10g}" if level != "" else level

    table = table.copy()
    if "threshold" in table:
        table["threshold"] = table.threshold.map(ten_digits, na_action="ignore")
    for name in table.select_dtypes(object, exclude="str"):
        table[name] = table[name].map(four_digits)
    return table


def _machine() -> dict:
    import torch

    installed = {package.metadata["Name"].lower(): package.version for package in metadata.distributions()}
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": installed["torch"].split("+")[0],
        "transformers": installed["transformers"],
        "ctranslate2": installed.get("ctranslate2"),
        "mkldnn": torch.backends.mkldnn.is_available(),
    }
