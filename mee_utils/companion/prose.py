"""The words below a figure, about the profile on the page: the code computes every number in them.

conclude(f"After layer 4, {span(shares, '{:.0%}')} of CALM's predictions are final.")
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence


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


def task_span(values: Mapping[str, float], form: str = ".0%") -> str:
    """The least and the largest value, each with its task: what a list of all tasks would bury.

    >>> task_span({"translation": 0.9, "summarization": 0.7, "question_answering": 0.8})
    '70% (summarization) to 90% (translation)'
    >>> task_span({"translation": 0.9, "summarization": 0.9})
    '90%'
    """
    import pandas as pd

    from .figures import label

    numbers = pd.Series(values, dtype=float).dropna()
    if numbers.empty:
        return "unknown"
    ends = numbers[[numbers.idxmin(), numbers.idxmax()]]
    texts = [f"{value:{form}}" for value in ends]
    if texts[0] == texts[1]:
        return texts[0]
    named = [f"{text} ({label(task)})" for text, task in zip(texts, ends.index, strict=True)]
    return " to ".join(named)


def on_tasks(tasks: Iterable[str], among: Sequence[str]) -> str:
    """Names tasks: "on every task", "on no task", "on summarization and translation"."""
    from .figures import label

    tasks = list(tasks)
    if not tasks:
        return "on no task"
    return "on every task" if set(tasks) == set(among) else f"on {listed(map(label, tasks))}"
