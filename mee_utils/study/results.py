"""The only ways out of a notebook: tables, figures with the data that was drawn, and a manifest.

Only the strict runner puts them in their place (`figures/<profile>/<notebook>`), all at once. Each prints one
line with a hash, so that stored outputs check it. Only the manifest has times: all else is the same bytes.
"""

import ast
import hashlib
import io
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pandas as pd

from ..analysis.statistics import DRAWS
from ..common.errors import MeeError
from ..common.files import PACKAGE, ROOT, complete_file

DECIMALS = 4
COLOURS = 128  # of a figure's palette: a third of the size, and no difference to be seen
STAGED = "MEE_STAGED"  # the folder that collects a strict run's results; set for its kernel alone
PACKAGES = ("torch", "transformers", "datasets", "numpy", "pandas", "matplotlib", "seaborn")
READ: dict[str, str] = {}  # stored results that the run that began last has read: name -> digest ("": none)


def output_root() -> Path:
    """The folder of all results: `figures` beside the package, or what the variable MEE_OUTPUT names."""
    return Path(os.environ.get("MEE_OUTPUT") or ROOT / "figures")


def build_root() -> Path:
    """The folder of everything in between: `build`, inside MEE_OUTPUT if that is set."""
    return Path(os.environ.get("MEE_OUTPUT") or ROOT) / "build"


class Run:
    """One run of a notebook; `parameters`, and `inputs` by hash, are for the manifest in its `folder`."""

    def __init__(self, notebook: str, profile: str, parameters: dict, folder: Path | None = None):
        place = Path(os.environ.get(STAGED) or ".")
        trial = build_root() / "trials" / _checked(profile) / _checked(notebook)
        self.folder = folder or (place if place.name == notebook else trial)
        self.notebook, self.profile, self.parameters = notebook, profile, dict(parameters)
        self.inputs, self.files, self.started = {}, {}, time.monotonic()  # name -> sha256
        READ.clear()
        self.folder.mkdir(parents=True, exist_ok=True)

    def save_table(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Writes a table without bootstrap draws as CSV; prints its digest line; returns it rounded."""
        rounded = round_table(table)
        written = rounded.drop(columns=[column for column in table if str(column).endswith(DRAWS)])
        if "threshold" in table and table.threshold.dtype.kind == "f":
            written = written.assign(threshold=rounded.threshold.map(level_text, na_action="ignore"))
        text = written.to_csv(index=False, float_format=f"%.{DECIMALS}f", lineterminator="\n")
        self._write(f"{_checked(name)}.csv", text.encode())
        print(digest_line(name, written, text))
        return rounded

    def save_figure(self, figure, name: str, drawn: pd.DataFrame) -> None:
        """Writes a figure as PNG beside the table of what was drawn; with MEE_PDF=1 as PDF too, unlisted."""
        self.save_table(drawn, name)
        self._write(f"{name}.png", png(figure))
        if os.environ.get("MEE_PDF"):
            figure.savefig(self.folder / f"{name}.pdf", bbox_inches="tight")

    def save_json(self, content: dict, name: str) -> None:
        """Writes content that is no table as JSON; `name` with its ending."""
        self._write(_checked(name), (json.dumps(content, indent=1) + "\n").encode())

    def save_file(self, path: Path) -> None:
        """Copies a file that is a result."""
        self._write(_checked(path.stem) + path.suffix, path.read_bytes())

    def finish(self) -> None:
        """Writes the manifest. Prints which files were written."""
        device = self.parameters.get("device", "cpu")
        versions = {name: metadata.version(name).split("+")[0] for name in PACKAGES}
        manifest = {
            **{name: getattr(self, name) for name in ("notebook", "profile", "parameters")},
            "inputs": dict(sorted((READ | self.inputs).items())),
            "code": code_digests(),
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
        print(f"written to {self.profile}/{self.notebook} {where}: {names}, manifest.json")

    def _write(self, name: str, content: bytes) -> None:
        with complete_file(self.folder / name) as path:
            path.write_bytes(content)
        self.files[name] = hashlib.sha256(content).hexdigest()


def digest_of(content) -> str:
    """sha256 of what something was made from (for JSON)."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file, "" where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def code_digests(paths: Iterable[Path] | None = None) -> dict[str, str]:
    """Digests of files, comments and docstrings apart; by default of loaded modules and their tables."""
    if paths is None:
        modules = {Path(m.__file__) for n, m in list(sys.modules.items()) if n.split(".")[0] == PACKAGE.name}
        paths = modules | {table for module in modules for table in module.parent.glob("*.yaml")}
    return {str(path.relative_to(PACKAGE)): _digest(path) for path in sorted(paths)}


def _digest(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body = node.body[1:]
        text = ast.unparse(tree)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yields an empty folder; without an error it takes the place of `folder`: of two in turn the later."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(f".{os.getpid()}.partial", f".{folder.name}.", folder.parent) as place:
        new = Path(place) / folder.name
        new.mkdir()
        yield new
        with suppress(FileNotFoundError):
            folder.rename(Path(place) / "old")
        new.rename(folder)


def png(figure) -> bytes:
    """A figure as PNG with a palette in place of full colours."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    palette = dict(colors=COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    Image.open(full).convert("RGB").quantize(**palette).save(small, "PNG", optimize=True)
    return small.getvalue()


def round_table(table: pd.DataFrame) -> pd.DataFrame:
    """Rounds floats to `DECIMALS` (-0.0 becomes 0.0), so that display, file and hash agree; no threshold."""
    rounded, floats = table.copy(), table.select_dtypes("float").columns.difference(["threshold"])
    rounded[floats] = rounded[floats].astype("float64").round(DECIMALS) + 0.0
    return rounded


def level_text(level: float) -> str:
    """A threshold as text, with at least `DECIMALS` decimals: "0.9000", "0.999983"."""
    return max(f"{level:.{DECIMALS}f}", f"{level:.10g}", key=len)


def digest_line(name: str, table: pd.DataFrame, text: str) -> str:
    """ "figure_1: 48 rows x 6 columns, 0.0312 to 1.0000, sha256 1f2e3d4c": what identifies a table."""
    numbers = table.select_dtypes("float")
    lowest, highest = numbers.min().min(), numbers.max().max()
    span = f"{lowest:.{DECIMALS}f} to {highest:.{DECIMALS}f}, " if numbers.size else ""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name}: {len(table)} rows x {len(table.columns)} columns, {span}sha256 {digest}"


def processor() -> str:
    """The processor's name; on Linux with family and model, since virtual ones are called alike."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    about = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+)$", text, re.MULTILINE))
    name = about.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {about['cpu family']} model {about['model']})" if len(about) == 3 else name


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
