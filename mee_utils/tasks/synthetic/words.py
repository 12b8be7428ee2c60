"""Target words with a known difficulty, and the text they make.

| difficulty | what producing the token takes |
|---|---|
| grammatical | a function word or mark that the kind of sentence calls for; the end token too |
| copied | a name, or going on with a span of the source |
| translated | one source word, looked up in the other language |
| agreement | the form of a French word that its neighbour decides |
| distant_agreement | the same across at least two other words |
| one_fact | one sentence of the source found and read |
| two_facts | two sentences joined |
| counted | sentences counted, or numbers added |
| compared | two numbers compared |
"""

from collections.abc import Sequence
from string import Formatter
from typing import NamedTuple

DIFFICULTIES = (
    "grammatical",
    "copied",
    "translated",
    "agreement",
    "distant_agreement",
    "one_fact",
    "two_facts",
    "counted",
    "compared",
)


class Word(NamedTuple):
    """One word of a target and how hard it is to produce, one of `DIFFICULTIES`."""

    text: str
    difficulty: str


class Span(NamedTuple):
    """Characters `start` to `end` of a target, and the difficulty of producing them."""

    start: int
    end: int
    difficulty: str


def words(template: str, *values, **named) -> list[Word]:
    """The words of a template; "l'an" is two words.

    `{value:difficulty}` is a text of that difficulty, `{value}` a list of words; all else is grammatical.

    >>> [word.text for word in words("{0:agreement} {1:translated}.", "l'", "école")]
    ["l'", 'école', '.']
    """
    formatter = Formatter()
    filled = []
    for literal, field, difficulty, _ in formatter.parse(template):
        filled += _split(literal, "grammatical")
        if field is None:
            continue
        value, _ = formatter.get_field(field, values, named)
        filled += _split(value, difficulty) if difficulty else value
    return filled


def _split(text: str, difficulty: str) -> list[Word]:
    """The words of a text, all of one difficulty; an apostrophe ends a word."""
    return [Word(word, difficulty) for word in text.replace("'", "' ").split()]


def write(words: Sequence[Word]) -> tuple[str, tuple[Span, ...]]:
    """Joins words to a text; returns it with the span of each word.

    >>> write(words("{0:agreement} {1:translated}.", "l'", "école"))[0]
    "l'école."
    """
    text = ""
    spans = []
    for word in words:
        if text and not text.endswith("'") and word.text not in (".", ",", ";", ":"):
            text += " "
        spans.append(Span(len(text), len(text) + len(word.text), word.difficulty))
        text += word.text
    return text, tuple(spans)


class SyntheticExample(NamedTuple):
    """One example in the columns of a hub corpus of its task."""

    columns: dict
    source: str  # decides the split
    target: str
    spans: tuple[Span, ...]
    form: str = ""  # of a question, as in `questions.FORMS`
