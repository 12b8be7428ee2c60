"""`python -m mee_utils train-exits MODEL --data FILE`: a checkpoint of yours, trained for exits."""

from collections.abc import Mapping
from pathlib import Path

from ..common.errors import MeeError
from ..tasks.rows import rows

COLUMNS = ("input", "target")


def write(model: str, data: str, output: str, recipe: Mapping) -> Path:
    """Trains the adapter of a model on the rows of a file, and writes it to a folder.

    Args:
        model: a folder or hub id, see `load_model`.
        data: a file with columns "input" and "target", prompts as they are given to `generate`.
        output: the folder; an interrupted training goes on there.
        recipe: what differs from the defaults of `ExitRecipe`.
    """
    from ..models.exit_training import ExitRecipe, train_exits  # loads torch
    from ..models.loading import load_model

    given = dict(recipe)
    if given.get("exit_layers") is not None:
        given["exit_layers"] = tuple(given["exit_layers"])
    checked = ExitRecipe(**given)
    pairs = _pairs(Path(data).expanduser())
    return train_exits(load_model(model), pairs, output, checked)


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Inputs and targets of a file."""
    if not path.is_file():
        raise MeeError(f"data={path} is no file: give one with columns {' and '.join(COLUMNS)}.")
    pairs = []
    for where, row in rows([path]):
        for column in COLUMNS:
            if not isinstance(row.get(column), str) or not row[column].strip():
                raise MeeError(f'{where} has no text in a column "{column}".')
        pairs.append((row["input"], row["target"]))
    return pairs
