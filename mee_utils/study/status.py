"""Are stored results those of the code, models and tables that are there? (`make status`)"""

import hashlib
import json
from collections.abc import Iterator

from ..common.files import PACKAGE
from .inputs import weights_digest
from .notebooks import SOURCES, notebook_names, read_source, source_digest
from .profiles import Profile
from .result_tables import MEASURED, inputs_of
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
