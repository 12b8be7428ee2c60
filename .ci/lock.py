"""`make lock`: the version of every package that the extra "all" brings, as installed, in requirements.lock.

Pip and uv read the file as constraints: what one platform needs beside these, such as CUDA's libraries, is
taken as the locked packages ask for it.
"""

import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[1] / "requirements.lock"
HEAD = "# Every package of the environment at its version. `make lock` writes it, from what is installed.\n"


def closure(requirement: Requirement, versions: dict[str, str]) -> None:
    """Adds a package, and everything that it needs here, to `versions`: name -> version."""
    name = canonicalize_name(requirement.name)
    package = distribution(name)
    versions.setdefault(
        name, package.version.split("+")[0]
    )  # without the build: torch has one for each device
    for text in package.requires or []:
        needed = Requirement(text)
        asked_for = [extra for extra in ("", *requirement.extras) if applies(needed, extra)]
        is_new = canonicalize_name(needed.name) not in versions or needed.extras
        if asked_for and is_new:
            closure(needed, versions)


def applies(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement holds on this machine, of a package with an extra ("": none)."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def locked() -> str:
    """The text of the lock for what is installed."""
    versions: dict[str, str] = {}
    closure(Requirement("mee-utils[all]"), versions)
    del versions["mee-utils"]
    return HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    LOCK.write_text(locked(), encoding="utf-8")
    sys.stdout.write(f"{LOCK}\n")
