"""What the text rests on: each sentence that compares numbers of `real`, and the comparison itself.

A page is written by people; when its numbers change, nobody rereads it. So a module here, named as the
notebook (or the page) whose text it watches, has one function that yields sentences word for word, each with
whether it is true of the stored tables:

    def sentences(real):
        settled = real("01_monotonicity/figure_1_settled").query("layer == 4").pivot(...)
        yield "CALM's predictions are final first on every task.", (settled.calm > settled.vanilla).all()

`real("<notebook>/<table>")` reads a table of `figures/real`; `real("../bench/exits")` one beside it. A
sentence may be a part of one. `make results` names those that are not true, or not in the text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from ....common.errors import MeeError
from ....common.files import ROOT
from ...running.notebook_files import notebook_names, read_source

# module -> page; other modules are notebooks'
PAGES = {"readme": "README.md", "results_page": "RESULTS.md", "speed_page": "figures/results/speed.md"}


def real(table: str) -> pd.DataFrame:
    """A stored table of `figures/real`, by its path there without ending."""
    return pd.read_csv(ROOT / "figures" / "real" / f"{table}.csv")


def percent(*shares) -> list[float]:
    """Shares as a text has them, in whole percents."""
    return [float(np.round(100 * share)) for share in shares]


def ends(shares: pd.Series) -> list[float]:
    """The least and the largest of some shares, in whole percents."""
    return percent(shares.min(), shares.max())


def broken(pages: Mapping[str, str] | None = None) -> Iterator[str]:
    """A line for each sentence that is not true of the stored tables, or not in its text.

    `pages` has the new text of a page, by its path in the repository; else it is read.
    """
    for module, page, text in _texts(pages or {}):
        sentences: Callable = import_module(f".{module}", __name__).sentences
        for sentence, holds in sentences(real):
            if _one_line(sentence) not in text:
                yield f'{page} does not say "{sentence}": change sentences/{module}.py with the text.'
            elif not holds:
                yield f'{page}: "{sentence}" is not true of the stored tables.'


def check(pages: Mapping[str, str] | None = None) -> None:
    """An error that names every broken sentence (`broken`)."""
    lines = list(broken(pages))
    if lines:
        raise MeeError("\n".join(["The text no longer says what the tables say:", *lines]))


def _texts(pages: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Module, page and text of every page that is watched."""
    there = {path.stem for path in Path(__file__).parent.glob("*.py")}
    for name in notebook_names():
        module = name.partition("_")[2]
        if module in there:
            cells = [cell.source for cell in read_source(name).cells if cell.cell_type == "markdown"]
            yield module, f"notebook {name}", _one_line("\n".join(cells))
    for module, page in PAGES.items():
        if module in there:
            yield module, page, _one_line(pages.get(page) or (ROOT / page).read_text(encoding="utf-8"))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
