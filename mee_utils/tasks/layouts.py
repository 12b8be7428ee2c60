"""Column layouts of the papers' corpora on the hub: how a row becomes a prompt and its references.

A layout is recognised by its columns, so a local file, a folder and a hub id are read by the same code.
Prompts are the ones T5 was trained with (Raffel et al. 2020, appendix D).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import CompanionError

LANGUAGES = {"en": "English", "fr": "French", "de": "German", "ro": "Romanian"}


@dataclass(frozen=True)
class Layout:
    """One way to lay out a corpus: `read(row, (source, target) languages)` gives prompt and references."""

    corpora: str
    columns: tuple[str, ...]
    read: Callable[[dict, tuple[str, str]], tuple[str, list[str]]]


def _text(value: Any, what: str, empty: bool = False) -> str:
    """`value`, if it is a text; only documents may be `empty`, as one of SAMSum is."""
    if not isinstance(value, str) or not (value.strip() or empty):
        raise CompanionError(f"{what} holds {str(value)[:60]!r}, a text is expected: correct or remove it.")
    return value


def _record(value: Any, column: str, keys: Sequence[str], form: str) -> dict:
    """A nested column as a dict that has `keys`; in CSV files it is JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise CompanionError(
                f'Column "{column}" holds {value[:60]!r}, which is not JSON: write {form}.'
            ) from error
    if not isinstance(value, dict):
        raise CompanionError(f'Column "{column}" holds {str(value)[:60]!r}: write {form}.')
    present = {key: held for key, held in value.items() if held is not None}
    for key in keys:
        if key not in present:
            only = ", ".join(sorted(present)) or "nothing"
            raise CompanionError(f'Column "{column}" has no "{key}", only {only}: write {form}.')
    return present


def _squad(row: dict, languages: tuple[str, str]) -> tuple[str, list[str]]:
    form = '{"text": [...], "answer_start": [...]}'
    answers = _record(row["answers"], "answers", ["text"], form)
    question, context = (_text(row[column], f'Column "{column}"') for column in ("question", "context"))
    if not isinstance(answers["text"], list) or not answers["text"]:
        raise CompanionError(f'Column "answers" has no list of texts but {answers["text"]!r}: write {form}.')
    references = [_text(answer, 'Column "answers"') for answer in answers["text"]]
    return f"question: {question} context: {context}", references


def _translation(row: dict, languages: tuple[str, str]) -> tuple[str, list[str]]:
    form = "one text a language, and set `languages` to two that are there"
    pair = _record(row["translation"], "translation", languages, form)
    source, target = (
        _text(pair[language], f'Column "translation", language "{language}",') for language in languages
    )
    names = [LANGUAGES.get(language, language) for language in languages]
    return f"translate {names[0]} to {names[1]}: {source}", [target]


def _summary(corpora: str, document: str, summary: str) -> Layout:
    def read(row: dict, languages: tuple[str, str]) -> tuple[str, list[str]]:
        source = _text(row[document], f'Column "{document}"', empty=True)
        return f"summarize: {source}", [_text(row[summary], f'Column "{summary}"')]

    return Layout(corpora, (document, summary), read)


SQUAD = Layout("SQuAD", ("context", "question", "answers"), _squad)
CNN_DAILYMAIL = _summary("CNN/DailyMail", "article", "highlights")
DIALOGUES = _summary("SAMSum, DialogSum", "dialogue", "summary")
TRANSLATIONS = Layout("IWSLT 2017, WMT15, Multi30k", ("translation",), _translation)
MULTI_NEWS = _summary("Multi-News", "document", "summary")
BIG_PATENT = _summary("BigPatent", "description", "abstract")
