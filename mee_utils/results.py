"""The only ways out of a notebook: tables, figures with the data that was drawn, and a manifest.

Everything a notebook writes is collected beside its final place and put there by `finish`, all at once: a notebook that fails
half-way leaves the results of the last good run untouched. Each saved thing prints one line with its size, its range and a hash of
its numbers, which is how a strict comparison of stored outputs checks a figure. Times and machine names go to the manifest
alone, so that everything else is the same bytes on every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
import time
from importlib import metadata
from pathlib import Path

import pandas as pd

from .errors import CompanionError
from .profiles import PACKAGE

DECIMALS = 4
PACKAGES = ("torch", "transformers", "datasets", "numpy", "pandas", "matplotlib", "seaborn")


def output_root() -> Path:
    """The folder of all results: `figures` beside the package, or what the variable MEE_OUTPUT names."""
    return Path(os.environ.get("MEE_OUTPUT") or PACKAGE.parent / "figures")


class Run:
    """One run of one notebook.

    Args:
        notebook: its name, such as "01_monotonicity".
        profile: the profile's name.
        parameters: what the notebook was run with, for the manifest.
        root: where results go; `output_root()` by default.
    """

    def __init__(self, notebook: str, profile: str, parameters: dict, root: str | Path | None = None):
        base = Path(root) if root else output_root()
        self.notebook, self.profile, self.parameters = notebook, profile, dict(parameters)
        self.folder = base / profile / notebook
        self.partial = base / profile / f".{notebook}.partial"
        self.inputs: dict[str, str] = {}
        self.files: list[str] = []
        self.started = time.monotonic()
        shutil.rmtree(self.partial, ignore_errors=True)
        try:
            self.partial.mkdir(parents=True)
        except OSError as error:
            raise CompanionError(f"{base} cannot be written to ({error.strerror}): set MEE_OUTPUT to another folder.") from error

    def uses(self, name: str, digest: str) -> None:
        """Records an input (a corpus, a checkpoint) by its hash in the manifest."""
        self.inputs[name] = digest

    def save_table(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Writes a table as CSV with fixed decimals; prints its digest line; returns the rounded table for display."""
        rounded = round_table(table)
        text = rounded.to_csv(index=False, float_format=f"%.{DECIMALS}f", lineterminator="\n")
        (self.partial / f"{name}.csv").write_text(text, encoding="utf-8")
        self.files.append(f"{name}.csv")
        print(digest_line(name, rounded, text))
        return rounded

    def save_figure(self, figure, name: str, drawn: pd.DataFrame) -> None:
        """Writes a figure as PNG and PDF, with reproducible bytes, beside the table of what was drawn."""
        self.save_table(drawn, name)
        figure.savefig(self.partial / f"{name}.png", dpi=150, bbox_inches="tight", metadata={"Software": None})
        nothing = {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None}
        figure.savefig(self.partial / f"{name}.pdf", bbox_inches="tight", metadata=nothing)
        self.files += [f"{name}.png", f"{name}.pdf"]

    def finish(self) -> None:
        """Writes the manifest and puts all results in their place. Prints which files were written."""
        if not self.files:
            raise CompanionError(f"{self.notebook} saved nothing: call save_table or save_figure before finish.")
        manifest = {
            "notebook": self.notebook,
            "profile": self.profile,
            "parameters": self.parameters,
            "inputs": dict(sorted(self.inputs.items())),
            "files": {name: _file_hash(self.partial / name) for name in sorted(self.files)},
            "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "machine": {"processor": processor(), "cores": os.cpu_count(), "device": self.parameters.get("device", "cpu")},
            "seconds": round(time.monotonic() - self.started, 1),
            "peak_memory_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        (self.partial / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        old = self.folder.with_name(f".{self.notebook}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(old)
        self.partial.rename(self.folder)
        shutil.rmtree(old, ignore_errors=True)
        print(f"written to {self.profile}/{self.notebook}: {', '.join(sorted(self.files))}, manifest.json")


def round_table(table: pd.DataFrame) -> pd.DataFrame:
    """Rounds every float to `DECIMALS`, so that display, file and hash agree; -0.0 becomes 0.0."""
    rounded = table.copy()
    for column in rounded.select_dtypes("float"):
        rounded[column] = rounded[column].astype("float64").round(DECIMALS) + 0.0
    return rounded


def digest_line(name: str, table: pd.DataFrame, text: str) -> str:
    """ "figure_1: 48 rows x 6 columns, 0.0312 to 1.0000, sha256 1f2e3d4c": what identifies a table."""
    numbers = table.select_dtypes("float")
    span = f"{numbers.min().min():.{DECIMALS}f} to {numbers.max().max():.{DECIMALS}f}, " if numbers.size else ""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name}: {len(table)} rows x {len(table.columns)} columns, {span}sha256 {digest}"


def processor() -> str:
    """The processor's name, for manifests."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    return metadata.version(package).split("+")[0]


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
