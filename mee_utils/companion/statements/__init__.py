"""What the papers state, a module per notebook; and bugs in their published code."""

from importlib import import_module
from pathlib import Path
from typing import Any

from ...common.errors import check_choice
from ...common.files import read_yaml
from ..statement import Statement

FOLDER = Path(__file__).parent
NOTEBOOKS = {  # notebook -> module of its statements
    "01_monotonicity": "monotonicity",
    "02_saturation": "saturation",
    "03_pruning": "pruning",
    "04_contrastive_decoding": "contrastive_decoding",
    "05_mee_classifiers": "mee_classifiers",
    "06_survey_rules": "survey_rules",
    "08_results": "results",
    "09_thresholds": "thresholds",
    "10_confidence": "confidence",
}


def statements_of(notebook: str) -> list[Statement]:
    """The statements that a notebook judges, in order; `MeeError` for a notebook that judges none."""
    module = import_module(f".{NOTEBOOKS[check_choice('notebook', notebook, NOTEBOOKS)]}", __name__)
    statements = []
    for value in vars(module).values():
        several = value if isinstance(value, tuple) else (value,)  # `statement_from_each_start` makes two
        statements += [each for each in several if isinstance(each, Statement)]
    return statements


BUGS: dict[str, dict[str, Any]] = read_yaml(FOLDER / "published_bugs.yaml")  # measured by `published_bugs`
