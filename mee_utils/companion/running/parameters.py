"""Parameters of notebooks: what a notebook declares, what it is given, and a refusal of what does not fit.

A notebook may be run by `python -m mee_utils notebook`, which checks before a kernel starts, or by papermill
alone: then the notebook itself checks what was injected, in its first call (`Experiment`).
"""

import ast
from typing import Annotated

from pydantic import Field, ValidationError, create_model

from ...common.errors import LARGEST_SEED, MeeError
from ..profiles import ResultSettings, Strict, first_mistake
from .notebook_files import assigned_literals, declared_parameters, notebook_names, read_source

PAPERMILL = "# Parameters"  # the first line of the cell that papermill puts in
# With fewer, tables have no rows to compare, or intervals no two outputs that differ.
LEAST = {
    "limit": 5,
    "decoded": 5,
    "choosing": 5,
    "frequency_limit": 20,
    "max_new_tokens": 8,
    "bins": 2,
    "splits": 2,
}


def check_parameters(given: dict, declared: dict) -> dict:
    """Refuses unknown, ill-typed and impossible parameters; whole numbers serve where a float is declared.

    What is declared positive stays positive, and what is declared as a share stays between 0 and 1.

    Args:
        given: names and values.
        declared: the notebook's own parameters with their defaults (`declared_parameters`).

    Returns:
        The given parameters, of the declared types.

    Raises:
        MeeError: names the first parameter that does not fit.
    """
    fields = {name: (_field_type(name, default), default) for name, default in declared.items()}
    parameters = create_model("Parameters", __base__=Strict, **fields)
    try:
        return parameters(**given).model_dump(include=given.keys())
    except ValidationError as error:
        raise MeeError(f"Parameters: {first_mistake(error)}") from error


def _field_type(name: str, default):
    """The type of a parameter, and the range of numbers that its name and its default suggest."""
    if default is None:  # what the profile's measurements have
        return ResultSettings.model_fields[name].annotation | None
    if name == "seed":
        return Annotated[int, Field(ge=0, le=LARGEST_SEED)]
    if type(default) is int:
        return Annotated[int, Field(ge=min(default, LEAST.get(name, 1)))]
    if type(default) is float:
        return Annotated[float, Field(ge=0, le=1 if default <= 1 else None, allow_inf_nan=False)]
    return type(default)


def parse_assignments(assignments: list[str]) -> dict:
    """["limit=20", "models=['calm']"] -> values; what is no Python literal is taken as text."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise MeeError(f'"{assignment}" is no parameter: write name=value, as in limit=20.')
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[1]: 2}, many brackets
            values[name] = text
    return values


def injected_parameters() -> dict:
    """What papermill has put into the notebook that runs now; nothing elsewhere."""
    import sys

    if "IPython" not in sys.modules:
        return {}
    from IPython import get_ipython

    shell = get_ipython()
    cells = shell.user_ns.get("In", []) if shell else []
    values = {}
    for cell in cells:
        if cell.startswith(PAPERMILL):
            values |= assigned_literals(cell)
    return values


def check_injected(notebook: str) -> None:
    """Checks what papermill has put into the notebook that runs now, where it has a source here."""
    given = injected_parameters()
    if given and notebook in notebook_names():
        check_parameters(given, declared_parameters(read_source(notebook)))
