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

from .decoder import PARTS, WORKLOADS

DIGESTS = "digests.json"
ORDERS = {
    name: {x: place for place, x in enumerate(xs)} for name, xs in (("shape", WORKLOADS), ("group", PARTS))
}


def save(table: pd.DataFrame, name: str = "decoder", keys: Sequence[str] = ("shape", "group")) -> Path:
    """Writes a table as CSV; its first column is the processor, and `machines.json` says more of each.

    What was not timed now (by `keys`) is kept: all of other machines, and of this one with the same versions.
    `digests.json` has the sha256 of every table, as a manifest has it.
    """
    folder, keys = output_root() / "bench", ["processor", *keys]
    path, known = folder / f"{name}.csv", folder / MACHINES
    machines, about = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}, _machine()
    here, others = about.pop("processor"), machines.get(name, {})
    before = others.pop(here, {})
    about["ctranslate2"] = about["ctranslate2"] or before.get("ctranslate2")  # its stored lines may be kept
    same = before and all(before.get(name) in (None, value) for name, value in about.items())
    machines[name] = {here: about} | others  # what was timed last comes first
    table = table.assign(processor=here)[["processor", *table.columns]]
    if path.exists():
        stored = pd.read_csv(path, keep_default_na=False)
        own = stored.processor == here
        timed = stored.set_index(keys).index.isin(table.set_index(keys).index)
        table = pd.concat([table, stored[~(timed if same else own)]], ignore_index=True)
        orders = ORDERS | {"processor": {each: place for place, each in enumerate(machines[name])}}
        place = lambda column: column.map(orders[column.name]) if column.name in orders else column
        table = table.sort_values(keys, key=place, kind="stable")
    if "threshold" in table:
        exact = lambda level: f"{float(level):.10g}" if level != "" else level
        table["threshold"] = table.threshold.map(exact, na_action="ignore")
    rounded = lambda value: f"{value:.4g}" if isinstance(value, float) and value == value else value
    for name in table.select_dtypes(object, exclude="str"):  # floats beside lines that have none
        table[name] = table[name].map(rounded)
    text, stated = table.to_csv(index=False, float_format="%.4g", lineterminator="\n"), folder / DIGESTS
    digests = json.loads(stated.read_text(encoding="utf-8"))["files"] if stated.exists() else {}
    digests[path.name] = sha256(text.encode()).hexdigest()
    listed = {known: machines, stated: {"files": dict(sorted(digests.items()))}}
    texts = {path: text} | {file: json.dumps(about, indent=1) + "\n" for file, about in listed.items()}
    with ExitStack() as files:
        for file, content in texts.items():
            files.enter_context(complete_file(file)).write_text(content, encoding="utf-8")
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
