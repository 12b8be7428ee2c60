"""The tables of `make bench`: stored beside a description of the machine."""

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd

from ..common.files import complete_file
from ..study.results import output_root, processor
from .decoder import PARTS, WORKLOADS

ORDERS = {
    name: {x: place for place, x in enumerate(xs)} for name, xs in (("shape", WORKLOADS), ("group", PARTS))
}


def save(table: pd.DataFrame, name: str = "decoder", keys: Sequence[str] = ("shape", "group")) -> Path:
    """Writes a table as CSV, and a description of the machine beside it.

    Where the stored table is of the same machine and versions, what was not timed now (by `keys`) is kept.
    """
    path, keys = output_root() / "bench" / f"{name}.csv", list(keys)
    machine = path.with_name("machine.json" if name == "decoder" else f"{name}_machine.json")
    about, before = _machine(), json.loads(machine.read_text(encoding="utf-8")) if machine.exists() else {}
    about["ctranslate2"] = about["ctranslate2"] or before.get("ctranslate2")  # its stored lines may be kept
    if path.exists() and before == about:
        stored = pd.read_csv(path, keep_default_na=False)
        new = stored.set_index(keys).index.isin(table.set_index(keys).index)
        place = lambda column: column.map(ORDERS[column.name]) if column.name in ORDERS else column
        table = pd.concat([table, stored[~new]], ignore_index=True)
        table = table.sort_values(keys, key=place, kind="stable")
    with complete_file(path) as csv, complete_file(machine) as description:
        table.to_csv(csv, index=False, float_format="%.4g", lineterminator="\n")
        description.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path


def _machine() -> dict:
    import torch

    installed = {found.metadata["Name"].lower(): found.version for found in metadata.distributions()}
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
