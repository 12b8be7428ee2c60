"""Are stored results those of the code, models and tables that are there? (`make status`)"""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import CompanionError
from ..common.files import PACKAGE, ROOT
from .inputs import weights_digest
from .notebooks import SOURCES, notebook_names, read_source, source_digest
from .profiles import Profile
from .result_tables import MACHINES, MEASURED, inputs_of
from .results import code_digests, output_root


def changes(profile: Profile, name: str) -> list[str] | None:
    """What has changed since results of a profile were made: files, code, inputs; None if there are none."""
    folder = output_root() / profile.name / name
    if not (folder / "manifest.json").exists():
        return None
    made, found = json.loads((folder / "manifest.json").read_text(encoding="utf-8")), []
    for file, digest in made["files"].items():
        path = folder / file
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(file)
    then = made.get("code", {})
    now = code_digests(path for path in map(PACKAGE.joinpath, then) if path.exists())
    found += [f"mee_utils/{file}" for file in then if now.get(file) != then[file]]
    inputs = {f"model {model}": weights_digest for model in profile.training.models}
    tables = inputs_of(profile.name)
    for key, digest in made["inputs"].items():
        current = inputs[key](profile, key.split()[1]) if key in inputs else tables.get(key, digest)
        found += [key] if current != digest else []
    executed = (SOURCES if profile.name == "small" else folder.parent) / f"{name}.ipynb"
    if name in notebook_names() and executed.exists():
        known = json.loads(executed.read_text(encoding="utf-8"))["metadata"].get("source_sha256")
        found += [f"notebooks/{name}.py"] if known != source_digest(read_source(name)) else []
    return found


def states(profile: Profile) -> Iterator[tuple[str, str]]:
    """ "fresh", "stale (and since what changed)" or "missing" for the measurements and every notebook."""
    for name in [MEASURED, *notebook_names()]:
        found = changes(profile, name)
        stale = f"stale, changed since: {', '.join(found or [])}"
        yield name, "missing" if found is None else stale if found else "fresh"


def origin(file: str) -> Iterator[str]:
    """Where a stored table or figure comes from, in lines: cell, parameters, inputs, machine, commit."""
    path = Path(file).resolve()
    about = next((p for p in map(path.with_name, ("manifest.json", MACHINES)) if p.exists()), None)
    made = json.loads(about.read_text(encoding="utf-8")) if about else {}
    timed = bool(about) and about.name == MACHINES
    made = {"files": [f"{name}.csv" for name in made], **made.get(path.stem, {})} if timed else made
    if not path.exists() or path.name not in made.get("files", []):
        raise CompanionError(f"{file} is no stored result: give a file that a manifest below figures lists.")
    if (name := made.get("notebook")) in notebook_names():
        cells = [n for n, cell in enumerate(read_source(name).cells) if f'"{path.stem}"' in cell.source]
        yield f"saved by notebooks/{name}.ipynb, cell {', '.join(map(str, cells)) or 'unknown'}"
    else:
        yield f"saved by make {'measure' if name == MEASURED else 'retrain' if name else 'bench'}"
    for key, value in made.items():
        if key not in ("notebook", "files", "code"):
            yield f"{key}: {value if isinstance(value, str | int | float) else json.dumps(value, indent=1)}"
    command = ["git", "log", "-1", "--format=%h of %as, %s", "--", str(path)]
    yield f"commit: {subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()}"
