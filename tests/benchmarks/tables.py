"""The tables of `make bench`: lines of every machine that it ran on, beside descriptions of them.

GPUs have tables of their own, so that no page takes their lines for those of a CPU.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd

from mee_utils.common.files import complete_file
from mee_utils.companion.result_tables import GPU, MACHINES
from mee_utils.companion.results import output_root, processor

from .decoder import PARTS
from .workloads import WORKLOADS

DIGESTS = "digests.json"
ORDERS = {"shape": list(WORKLOADS), "group": list(PARTS)}  # of lines in a table
PEERS = ("ctranslate2", "economize")  # by their packages' names
NUMBERS = ("batch", "decoder_layers", "exit_layer")  # among the keys, which are texts
THRESHOLD_DIGITS = 10  # of other numbers four


def save(table: pd.DataFrame, name: str, keys: Sequence[str], device: str = "cpu") -> Path:
    """Writes a table as CSV; its first column is the processor, and `machines.json` says more of each.

    What was not timed now (by `keys`) is kept: all of other machines, and of this one with the same versions.
    `digests.json` has the sha256 of every table, as a manifest has it.
    """
    folder = output_root() / "bench"
    if device != "cpu":
        folder = folder / GPU
    path = folder / f"{name}.csv"
    machine = _machine(device)
    machines = _read_json(folder / MACHINES)
    others = machines.get(name, {})
    before = others.pop(machine["processor"], {})
    for peer in PEERS:  # without it its stored lines may be kept
        machine[peer] = machine.get(peer) or before.get(peer)
    table = _as_text(table.assign(processor=machine["processor"]))
    if path.exists():
        stored = pd.read_csv(path, dtype=str, keep_default_na=False)
        replaced = stored.processor.isin(table.processor)
        if before and all(before.get(key) in (None, value) for key, value in machine.items()):
            lines = ["processor", *keys]  # the same versions, as far as they were described before
            replaced = stored.set_index(lines).index.isin(table.set_index(lines).index)
        table = pd.concat([table, stored[~replaced]], ignore_index=True).fillna("")
    description = {key: value for key, value in machine.items() if key != "processor"} | CONDITIONS
    machines[name] = {machine["processor"]: description} | others  # what was timed last comes first
    columns = ["processor", *(column for column in table if column != "processor")]
    text = _sorted(table[columns], keys, list(machines[name])).to_csv(index=False, lineterminator="\n")
    digests = _read_json(folder / DIGESTS).get("files", {})
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


def _conditions() -> dict:
    """What else this machine does, and how fast its cores run: load over a minute, MHz where it says so."""
    cores = Path("/proc/cpuinfo")
    text = cores.read_text(encoding="utf-8") if cores.exists() else ""
    megahertz = [round(float(value)) for value in re.findall(r"cpu MHz\s*: ([\d.]+)", text)]
    return {"load_before": round(os.getloadavg()[0], 2), "megahertz_before": megahertz}


CONDITIONS = _conditions()  # before anything was timed


def _read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """A table with every value as it is stored."""

    def text(value, digits: int) -> str:
        if pd.isna(value):
            return ""
        return f"{value:.{digits}g}" if isinstance(value, float | np.floating) else str(value)

    columns = {}
    for name in table:
        digits = THRESHOLD_DIGITS if name == "threshold" else 4
        columns[name] = [text(value, digits) for value in table[name]]
    return pd.DataFrame(columns, dtype=str)


def _sorted(table: pd.DataFrame, keys: Sequence[str], processors: list[str]) -> pd.DataFrame:
    """Lines in the order of their keys: sizes and parts as they are defined, processors as given."""
    orders = ORDERS | {"processor": processors}

    def rank(column: pd.Series) -> pd.Series:
        if column.name not in orders:
            return pd.to_numeric(column) if column.name in NUMBERS else column
        return column.map({value: index for index, value in enumerate(orders[column.name])})

    return table.sort_values(["processor", *keys], key=rank, kind="stable")


def _machine(device: str = "cpu") -> dict:
    """What is said of this machine, or of its GPU if that is the device."""
    import torch
    import transformers

    installed = {package.metadata["Name"].lower(): package.version for package in metadata.distributions()}
    on_gpu = {}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        on_gpu = {
            "processor": properties.name,
            "host": processor(),
            "gpu_gigabytes": round(properties.total_memory / 2**30, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,  # of several installed the one that runs
        **{peer: installed.get(peer) for peer in PEERS},
        "mkldnn": torch.backends.mkldnn.is_available(),
        **on_gpu,
    }


def _driver() -> str | None:
    """The version of NVIDIA's driver; None where the command that knows it is missing."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
