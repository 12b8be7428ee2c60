"""The only ways out of a notebook: tables, figures with the data that was drawn, and a manifest.

Only the strict runner puts them in their place (`figures/<profile>/<notebook>`), all at once. Each leaves a
line with a hash in the notebook, as an output that pages do not show, so that nbval compares it. Only the
manifest has times: all else is the same bytes.
"""

import hashlib
import io
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pandas as pd

from ..analysis.statistics import without_draws
from ..common.errors import MeeError
from ..common.files import ROOT, build_root, complete_file, read_json
from . import figures
from .running import notebook_files
from .running.digests import bytes_digest, code_digests, digest_of, loaded_code
from .running.locks import locked, own_folder
from .running.parameters import injected_parameters

DECIMALS = 4
COLOURS = 128  # of a figure's palette: a third of the size, and no difference to be seen
DIGEST = "application/x-mee-digest"  # the type of an output that holds a line with a hash: shown nowhere
DIGESTS = ("inputs", "code", "files")  # parts of a manifest: name -> digest
STAGED = "MEE_STAGED"  # "notebook=folder" that collects a strict run's results; set for its kernel alone
PACKAGES = ("torch", "transformers", "datasets", "numpy", "pandas", "matplotlib", "seaborn")
READ: dict[str, str] = {}  # stored results that the run that began last has read: name -> digest ("": none)


def output_root() -> Path:
    """The folder of all results: `figures` beside the package, or what the variable MEE_OUTPUT names."""
    return Path(os.environ.get("MEE_OUTPUT") or ROOT / "figures")


def executed_path(profile: str, notebook: str) -> Path:
    """Where an executed notebook is kept: beside its source (`small`), or with its results."""
    if profile == "small" and not os.environ.get("MEE_OUTPUT"):
        return notebook_files.SOURCES / f"{notebook}.ipynb"
    return output_root() / profile / f"{notebook}.ipynb"


def trial_folder(profile: str, notebook: str, parameters: dict) -> Path:
    """Where results of a run by hand or with other parameters are kept: a folder for each choice of them."""
    return build_root() / "trials" / _checked(profile) / _checked(notebook) / digest_of(parameters)[:8]


def stored_seconds(profile: str) -> dict[str, float]:
    """How long the notebooks took whose results are stored."""
    seconds = {}
    for path in (output_root() / profile).glob("[0-9]*/manifest.json"):
        with suppress(MeeError, KeyError):  # `make status` says that it cannot be read
            seconds[path.parent.name] = manifest_of(path)["seconds"]
    return seconds


def manifest_of(path: Path) -> dict:
    """The manifest of stored results, as `Run.finish` writes it."""
    content = read_json(path, "parameters", *DIGESTS)
    for name, digest in [pair for part in DIGESTS for pair in content[part].items()]:
        if not isinstance(digest, str):
            raise MeeError(f"{path} has no digest of {name}: restore it from version control.")
    return content


class Run:
    """One run of a notebook, or of another command that makes tables.

    Args:
        notebook: its name, or "measured" and the like.
        profile: the name of a profile.
        parameters: what it was run with, for the manifest.
        folder: where results go; by default that of a strict run, else that of a trial.

    `inputs` (name -> sha256) is for the manifest too.
    """

    def __init__(self, notebook: str, profile: str, parameters: dict, folder: Path | None = None):
        running, _, staged_results = os.environ.get(STAGED, "").partition("=")
        if folder is None and running and running == notebook:
            folder = Path(staged_results)
        self.folder = folder or trial_folder(profile, notebook, parameters | injected_parameters())
        self.notebook = notebook
        self.profile = profile
        self.parameters = dict(parameters)
        self.inputs: dict[str, str] = {}
        self.files: dict[str, str] = {}  # name -> sha256
        self.started = time.monotonic()
        READ.clear()
        self.folder.mkdir(parents=True, exist_ok=True)

    def save_table(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Writes a table without bootstrap draws as CSV; returns it rounded.

        Leaves a line that identifies it: "t: 48 rows x 6 columns, 0.0312 to 1.0000, sha256 1f2e3d4c".
        """
        rounded = round_table(table)
        written = without_draws(rounded)
        if "threshold" in table and table.threshold.dtype.kind == "f":
            written = written.assign(threshold=rounded.threshold.map(level_text, na_action="ignore"))
        text = written.to_csv(index=False, float_format=f"%.{DECIMALS}f", lineterminator="\n")
        self._write(f"{_checked(name)}.csv", text.encode())
        numbers = written.select_dtypes("float")
        span = ""
        if numbers.size:
            span = f"{numbers.min().min():.{DECIMALS}f} to {numbers.max().max():.{DECIMALS}f}, "
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        size = f"{len(written)} rows x {len(written.columns)} columns"
        note_digest(f"{name}: {size}, {span}sha256 {digest}")
        return rounded

    def save_figure(self, figure, name: str, drawn: pd.DataFrame, with_legend: bool = True) -> None:
        """Writes a figure as PNG beside the table of what was drawn; with MEE_PDF=1 as PDF too, unlisted.

        `figures.finish` puts a legend below it, unless titles or ticks name all that is drawn.
        """
        figures.finish(figure, with_legend)
        self.save_table(drawn, name)
        self._write(f"{name}.png", png(figure))
        if os.environ.get("MEE_PDF"):
            figure.savefig(self.folder / f"{name}.pdf", bbox_inches="tight")

    def save_file(self, path: Path) -> None:
        """Copies a file that is a result."""
        self._write(_checked(path.stem) + path.suffix, path.read_bytes())

    def finish(self) -> None:
        """Writes the manifest, and notes which files were written."""
        device = self.parameters.get("device", "cpu")
        versions = {name: metadata.version(name).split("+")[0] for name in PACKAGES}
        manifest = {
            "notebook": self.notebook,
            "profile": self.profile,
            "parameters": self.parameters,
            "inputs": dict(sorted((READ | self.inputs).items())),
            "code": code_digests(loaded_code()),
            "files": dict(sorted(self.files.items())),
            "versions": versions | {"python": platform.python_version()},
            "machine": {"processor": processor(), "cores": os.cpu_count(), "device": device},
            "seconds": round(time.monotonic() - self.started, 1),
            "peak_memory_megabytes": peak_megabytes(),
        }
        with complete_file(self.folder / "manifest.json") as path:
            path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        where = "below figures (make reproduce) or build/trials (any other run)"  # one line, for nbval
        names = ", ".join(sorted(self.files))
        note_digest(f"written to {self.profile}/{self.notebook} {where}: {names}, manifest.json")

    def _write(self, name: str, content: bytes) -> None:
        with complete_file(self.folder / name) as path:
            path.write_bytes(content)
        self.files[name] = bytes_digest(content, name)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yields an empty folder; without an error it takes the place of `folder`: of two in turn the later."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with own_folder(folder.parent, f".{folder.name}.") as temporary:
        new = temporary / folder.name
        new.mkdir()
        yield new
        with locked(folder.parent):  # two may end at the same time
            with suppress(FileNotFoundError):
                folder.rename(temporary / "old")
            new.rename(folder)


def png(figure) -> bytes:
    """A figure as PNG with a palette in place of full colours."""
    full_colours = io.BytesIO()
    figure.savefig(full_colours, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    return with_palette(full_colours.getvalue())


def with_palette(picture: bytes) -> bytes:
    """A PNG with a palette in place of full colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image = image.quantize(colors=COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    image.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def round_table(table: pd.DataFrame) -> pd.DataFrame:
    """Rounds floats to `DECIMALS` (-0.0 becomes 0.0), so that display, file and hash agree; no threshold."""
    floats = table.select_dtypes("float").columns.difference(["threshold"])
    rounded = table.copy()
    rounded[floats] = rounded[floats].astype("float64").round(DECIMALS) + 0.0
    return rounded


def level_text(level: float) -> str:
    """A threshold as text, with at least `DECIMALS` decimals: "0.9000", "0.999983"."""
    return max(f"{level:.{DECIMALS}f}", f"{level:.10g}", key=len)


def note_digest(line: str) -> None:
    """Leaves a line in the running notebook where pages do not show it; prints it anywhere else."""
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():
        ipython.display.display({DIGEST: line}, raw=True)
    else:
        print(line)


def noted_digests(outputs: Iterable[Mapping]) -> str:
    """The lines that a cell has left, from its outputs."""
    lines = [output.get("data", {}).get(DIGEST, "") for output in outputs]
    return "\n".join(lines)


def processor() -> str:
    """The processor's name; on Linux with family and model, since virtual ones are called alike."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+)$", text, re.MULTILINE))
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {fields['cpu family']} model {fields['model']})" if len(fields) == 3 else name


def peak_megabytes() -> int:
    """The most memory that this process has held."""
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


def _checked(name: str) -> str:
    """A name that is safe as a file's."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise MeeError(f'"{name}" is no name for a result: use letters, digits, "_", "-" and ".".')
    return name
