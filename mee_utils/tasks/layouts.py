"""The column layouts in which the corpora of the papers come from the hub, and how a row becomes input and references.

A layout is recognised by its columns, so a local file, a folder and a hub id are read by the same code. Prompts are the
ones T5 was trained with (Raffel et al. 2020, appendix D).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import CompanionError

LANGUAGES = {"en": "English", "fr": "French", "de": "German", "ro": "Romanian"}


@dataclass(frozen=True)
class Layout:
    """One way to lay out a corpus: the columns it needs, and what a row says.

    Attributes:
        corpora: the corpora that have this layout.
        columns: columns that must be there.
        read: `(row, languages) -> (input text, references)`.
    """

    corpora: str
    columns: tuple[str, ...]
    read: Callable[[dict, tuple[str, str]], tuple[str, list[str]]]


def _structure(value, column: str):
    """A nested column as a dict; in CSV files it stands as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise CompanionError(f'Column "{column}" holds text that is not JSON: {value[:60]!r}; write it as JSON.') from error


def _squad(row: dict, languages) -> tuple[str, list[str]]:
    answers = _structure(row["answers"], "answers")
    if not isinstance(answers, dict) or "text" not in answers:
        raise CompanionError(f'Column "answers" holds {str(answers)[:60]!r}; SQuAD has {{"text": [...], "answer_start": [...]}}.')
    texts = [str(text) for text in answers["text"]]
    return f"question: {row['question']} context: {row['context']}", texts


def _translation(row: dict, languages: tuple[str, str]) -> tuple[str, list[str]]:
    pair, (source, target) = _structure(row["translation"], "translation"), languages
    if not isinstance(pair, dict):
        raise CompanionError(f'Column "translation" holds {str(pair)[:60]!r}; it must hold one text a language.')
    for language in languages:
        if not pair.get(language):
            raise CompanionError(
                f'Column "translation" has no language "{language}", only {", ".join(sorted(k for k, v in pair.items() if v))}: set `languages`.'
            )
    return f"translate {LANGUAGES.get(source, source)} to {LANGUAGES.get(target, target)}: {pair[source]}", [str(pair[target])]


def _summary(document: str, summary: str):
    return lambda row, languages: (f"summarize: {row[document]}", [str(row[summary])])


LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "question_answering": (Layout("SQuAD", ("context", "question", "answers"), _squad),),
    "summarization": (
        Layout("CNN/DailyMail", ("article", "highlights"), _summary("article", "highlights")),
        Layout("SAMSum, DialogSum", ("dialogue", "summary"), _summary("dialogue", "summary")),
    ),
    "translation": (Layout("IWSLT 2017, WMT15, Multi30k", ("translation",), _translation),),
    "long_document_summarization": (
        Layout("Multi-News", ("document", "summary"), _summary("document", "summary")),
        Layout("BigPatent", ("description", "abstract"), _summary("description", "abstract")),
    ),
}


def find_layout(task: str, columns: list[str], where: str) -> Layout:
    """Returns the layout of `task` whose columns are all there, or says which are missing."""
    for layout in LAYOUTS[task]:
        if set(layout.columns) <= set(columns):
            return layout
    wanted = " or ".join(f"{', '.join(layout.columns)} ({layout.corpora})" for layout in LAYOUTS[task])
    raise CompanionError(f"{where} has the columns {', '.join(sorted(columns))}; {task} needs {wanted}.")
