"""Are stored results those of the code, models and tables that are there? (`make status`)"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..common.errors import MeeError
from ..common.files import PACKAGE, ROOT
from .digests import code_digests, file_digest
from .inputs import is_trained, weights_digest
from .notebook_files import SOURCES, notebook_names, outputs_digest, read_executed, read_source, source_digest
from .profiles import Profile
from .result_tables import BENCH, MACHINES, MEASURED, RETRAINED, inputs_of
from .results import output_root


def changes(profile: Profile, name: str) -> list[str] | None:
    """What has changed since results were made: files, code, inputs, the notebook; None: they are missing."""
    folder, models = output_root() / profile.name / name, profile.training.models
    executed = SOURCES if folder.parent == ROOT / "figures" / "small" else folder.parent
    needed = [folder / "manifest.json"] + [executed / f"{n}.ipynb" for n in notebook_names() if n == name]
    if not all(path.exists() for path in needed):
        return None
    made = json.loads(needed[0].read_text(encoding="utf-8"))
    found = [file for file, digest in made["files"].items() if file_digest(folder / file) != digest]
    then = made.get("code", {})
    now = code_digests(path for path in map(PACKAGE.joinpath, then) if path.exists())
    found += [f"mee_utils/{file}" for file in then if now.get(file) != then[file]]
    inputs = {f"results bench/{path.name}": file_digest(path) for path in BENCH.glob("*.csv")}
    inputs |= inputs_of(profile.name)
    for model in [model for model in models if is_trained(profile, model)]:
        inputs[f"model {model}"] = inputs[model] = weights_digest(profile, model)  # as manifests name it
    asked = [key for key in made["inputs"] if key.split()[0] in ("model", "results", *models)]
    found += [key for key in asked if inputs.get(key, "") != made["inputs"][key]]
    for path in needed[1:]:
        stored = read_executed(path)
        known, outputs = stored.metadata.get("source_sha256"), outputs_digest(stored)
        parts = {f"notebooks/{name}.py": source_digest(read_source(name)), path.name: source_digest(stored)}
        found += [part for part, digest in parts.items() if digest != known]
        found += [f"outputs of {path.name}"] * (stored.metadata.get("outputs_sha256", outputs) != outputs)
    return found


def states(profile: Profile) -> Iterator[tuple[str, str]]:
    """ "fresh", "stale (and since what changed)" or "missing" for the measurements and every notebook."""
    retrained = [RETRAINED] if (output_root() / profile.name / RETRAINED).exists() else []
    for name in [MEASURED, *retrained, *notebook_names()]:
        found = changes(profile, name)
        stale = f"stale, changed since: {', '.join(found or [])}"
        yield name, "missing" if found is None else stale if found else "fresh"


def origin(file: str) -> Iterator[str]:
    """Where a stored table or figure comes from, in lines: cell, parameters, inputs, machine, commit."""
    path = Path(file).resolve()
    about = next(filter(Path.exists, map(path.with_name, ("manifest.json", MACHINES))), None)
    made = json.loads(about.read_text(encoding="utf-8")) if about else {}
    if not path.exists() or path.name not in made.get("files", [f"{table}.csv" for table in made]):
        raise MeeError(f"{file} is no stored result: give a file that a manifest below figures lists.")
    made = made if "files" in made else made[path.stem]
    if (name := made.get("notebook")) in notebook_names():
        beside = path.parent.with_suffix(".ipynb")
        book = beside if beside.exists() else SOURCES / f"{name}.ipynb"
        line = re.compile(rf"^{path.stem}: .*sha256 {made['files'][f'{path.stem}.csv'][:8]}$", re.MULTILINE)
        printed = lambda cell: any(line.search(output.get("text", "")) for output in cell.get("outputs", []))
        cells = [str(n) for n, cell in enumerate(read_executed(book).cells) if printed(cell)]
        yield f"saved by {str(book).removeprefix(f'{ROOT}/')}, cell {', '.join(cells) or 'unknown'}"
    else:
        yield f"saved by make {'measure' if name == MEASURED else 'retrain' if name else 'bench'}"
    for key, value in made.items():
        if key not in ("notebook", "files", "code"):
            yield f"{key}: {value if isinstance(value, str | int | float) else json.dumps(value, indent=1)}"
    command = ["git", "log", "-1", "--format=%h of %as, %s", "--", str(path)]
    yield f"commit: {subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()}"
