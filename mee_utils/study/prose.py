"""The words below a figure, about the profile on the page: the code computes every number in them.

conclude(f"After layer 4, {span(shares, '{:.0%}')} of CALM's predictions are final.")
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def conclude(*sentences: str) -> None:
    """Shows sentences as a paragraph of the page, below the figure of the cell; empty ones are left out."""
    from IPython.display import Markdown, display

    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline:
        inline.show(close=True)  # else figures come at the end of the cell
    text = " ".join(sentence for sentence in sentences if sentence)
    if text:
        display(Markdown(text))


def listed(parts: Iterable[str]) -> str:
    """Joins parts of a sentence: "a", "a and b", "a, b and c"; "none" where there are none."""
    *others, last = list(parts) or ["none"]
    return f"{', '.join(others)} and {last}" if others else last


def span(values: Iterable[float], form: str = "{:.2f}") -> str:
    """The least and the largest value: "70% to 93%", or "93%" where both are written alike."""
    values = list(values)
    texts = [form.format(min(values)), form.format(max(values))]
    return " to ".join(dict.fromkeys(texts))


def on_tasks(tasks: Iterable[str], among: Sequence[str]) -> str:
    """Names tasks: "on every task", "on no task", "on summarization and translation"."""
    from .figures import label

    tasks = list(tasks)
    if not tasks:
        return "on no task"
    return "on every task" if set(tasks) == set(among) else f"on {listed(map(label, tasks))}"
