"""The words of the synthetic world, English and French side by side, read from tables.

nouns.tsv       French gender; plurals where adding "s" would be wrong; what can be carried, where people meet
adjectives.tsv  the forms a rule does not give, "liaison" being the one before a vowel ("un vieil arbre")
words.tsv       names, cities (written alike in both languages), numbers, verbs in the past, phrases, wordings
facts.tsv       what can be asked of a person: the question, what stands before the value, what states it
"""

import csv
from pathlib import Path
from typing import NamedTuple


class Noun(NamedTuple):
    """A countable noun; `gender` is "m" or "f", `use` is "portable", "meeting" (a place to meet) or empty."""

    kind: str
    english: str
    french: str
    gender: str
    english_plural: str
    french_plural: str
    use: str

    def in_english(self, plural: bool) -> str:
        return (self.english_plural or self.english + "s") if plural else self.english

    def in_french(self, plural: bool) -> str:
        return (self.french_plural or self.french + "s") if plural else self.french


class Adjective(NamedTuple):
    """An adjective; `position` is "before" if it stands before its noun in French."""

    kind: str
    english: str
    masculine: str
    feminine: str
    masculine_plural: str
    position: str
    liaison: str

    def in_french(self, gender: str, plural: bool) -> str:
        if gender == "f":
            return self.feminine + ("s" if plural else "")
        return (self.masculine_plural or self.masculine + "s") if plural else self.masculine


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one of the tables."""
    with (Path(__file__).parent / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


NOUNS = tuple(Noun(**row) for row in rows("nouns"))
THINGS = tuple(noun for noun in NOUNS if noun.kind == "thing")
ANIMALS = tuple(noun for noun in NOUNS if noun.kind == "animal")
PEOPLE = tuple(noun for noun in NOUNS if noun.kind == "person")
PLACES = tuple(noun for noun in NOUNS if noun.kind == "place")
PORTABLE = tuple(noun for noun in THINGS if noun.use == "portable")
MEETING_PLACES = tuple(noun for noun in PLACES if noun.use == "meeting")
_adjectives = [Adjective(**row) for row in rows("adjectives")]
ADJECTIVES = tuple(adjective for adjective in _adjectives if adjective.kind == "quality")
MOODS = tuple(adjective for adjective in _adjectives if adjective.kind == "mood")
_words = rows("words")


def pairs(kind: str) -> list[tuple[str, str]]:
    """(English, French) of every word or phrase of one kind in words.tsv."""
    return [(row["english"], row["french"]) for row in _words if row["kind"] == kind]


def english(kind: str) -> list[str]:
    """The English words of one kind in words.tsv."""
    return [word for word, _ in pairs(kind)]


FEMALE_NAMES = english("female_name")
MALE_NAMES = english("male_name")
CITIES = english("city")
NUMBERS = pairs("number")
TRANSITIVE = pairs("transitive")
MOTION = pairs("motion")
TIMES = pairs("time")
WHERE = pairs("where")
NAMES = FEMALE_NAMES + MALE_NAMES
