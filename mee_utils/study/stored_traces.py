"""Traces that are made once and read by every notebook that needs them (`python -m mee_utils trace`).

One a model and task: the model's own greedy output on the held-out examples that the sweep decodes. A file
beside each says what it belongs to; a trace of other weights, data, settings or code is made anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..common.files import PACKAGE, complete_file
from .inputs import load_profile_model, load_tasks, weights_digest
from .profiles import Profile
from .results import build_root, make_folder

CODE = ("common", "tasks", "models", "exits", "decoding", "traces")


def trace_path(profile: Profile, model: str, task: str) -> Path:
    """Where a trace is kept."""
    return build_root() / "traces" / profile.name / f"{model}-{task}.safetensors"


def code_files(*names: str) -> list[Path]:
    """Modules and tables of some folders of the package."""
    found = [path for name in names for path in sorted((PACKAGE / name).rglob("*.*"))]
    return [path for path in found if path.suffix in (".py", ".tsv", ".txt", ".yaml")]


def digest_of(*parts) -> str:
    """sha256 of what something was made from: these parts (for JSON), and the code that made it."""
    code = [path.read_text(encoding="utf-8") for path in code_files(*CODE)]
    return hashlib.sha256(json.dumps([code, *parts], sort_keys=True).encode()).hexdigest()


def stored_trace(
    profile: Profile, model: str, task: str, limit: int | None = None, longest: int | None = None
):
    """The `Trace` of a model of a profile on a task; made and stored where it is missing.

    At least `limit` examples are traced, and as many as the sweep decodes; outputs have at most `longest`
    tokens. What differs from the profile's own is kept apart.
    """
    from ..traces.trace import load_trace, states_path, trace

    settings, path = profile.results, trace_path(profile, model, task)
    needed = (max(limit or 0, settings.examples), longest or settings.max_new_tokens)
    if needed != (settings.examples, settings.max_new_tokens):
        path = path.with_stem(f"{path.stem}-{needed[0]}-{needed[1]}")
    (chosen,) = load_tasks(profile, limit=needed[0], only=task)
    key = digest_of(weights_digest(profile, model), chosen.digest, chosen.inputs, needed, profile.dtype)
    about = path.with_suffix(".key")
    if not about.exists() or about.read_text() != key:
        loaded = load_profile_model(profile, model)
        make_folder(path.parent)
        trace(loaded, chosen.inputs, max_new_tokens=needed[1], states=states_path(path)).save(path)
        with complete_file(about) as partial:
            partial.write_text(key)
    return load_trace(path)
