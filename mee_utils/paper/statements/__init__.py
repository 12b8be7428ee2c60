"""What the papers state, and the bugs of their published code: the YAML files of this folder, read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.errors import check_choice
from ...common.files import read_yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Claim:
    """One testable statement of a paper; judged by `mee_utils.paper.claims`."""

    claim: str  # a short name, for tables
    source: str  # paper and place
    statement: str
    published: str
    values: dict[str, list]  # name -> where to look it up: table, column, {column: value, ...}, reduction
    ours: str  # template of our value
    holds: str  # a comparison of values, parameters and numbers
    models: tuple[str, ...] = ("calm",)  # it speaks of; without one of them it cannot be tested
    nothing: str | None = None  # our value where no row is found: it does not hold; "": it cannot be tested


def read_claims(notebook: str) -> list[Claim]:
    """The statements that a notebook judges ("01_monotonicity"); `MeeError` for an unknown name."""
    known = [path.stem for path in FOLDER.glob("[0-9]*.yaml")]
    return [Claim(**row) for row in read_yaml(FOLDER / f"{check_choice('notebook', notebook, known)}.yaml")]


BELIEFS: list[dict[str, Any]] = read_yaml(FOLDER / "beliefs.yaml")  # weighed by `paper.results_tables`
BUGS: dict[str, dict[str, Any]] = read_yaml(FOLDER / "published_bugs.yaml")  # measured by `published_bugs`
