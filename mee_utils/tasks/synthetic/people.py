"""The people of the synthetic world: what is drawn of each, and sentences that state it."""

from random import Random
from types import SimpleNamespace

from . import lexicon

DRAWN = {  # of a person, in this order
    "city": lexicon.CITIES,
    "job": [("an " if job[0] in "aeiou" else "a ") + job for job in lexicon.english("job")],
    "transport": lexicon.english("transport"),
    "month": lexicon.english("month"),
    "destination": lexicon.CITIES,
    "dish": lexicon.english("dish"),
    "count": range(2, 13),
    "adjective": [adjective.english for adjective in lexicon.ADJECTIVES],
    "thing": lexicon.PORTABLE + lexicon.ANIMALS,
}
NUMBERS = ["none", *(english for english, _ in lexicon.NUMBERS)]
OTHERS = ("friend", "boss", "neighbour")
TOLD = ("city", "job", "trip", "goods", "dish")
WORDINGS = {what: lexicon.english(f"tells_{what}") for what in TOLD}


class Person(SimpleNamespace):
    """A name and what is drawn of a person; only what the context states (`told`) can be asked."""

    @property
    def number(self) -> str:
        """How many things they own, in words."""
        return NUMBERS[self.count]

    @property
    def things(self) -> str:
        """ "bells"."""
        return self.thing.in_english(True)

    @property
    def goods(self) -> str:
        """ "three red bells"."""
        return f"{self.number} {self.adjective} {self.things}"


def people(random: Random, count: int) -> list[Person]:
    """Draws people of different names."""

    def drawn():
        return {fact: random.choice(values) for fact, values in DRAWN.items()}

    return [Person(name=name, told=set(), **drawn()) for name in random.sample(lexicon.NAMES, count)]


def tell(random: Random, person: Person, what: str) -> str:
    """States one fact about a person, in one of two wordings."""
    person.told.add(what)
    return random.choice(WORDINGS[what]).format(person)


def sibling(person: Person) -> str:
    """ "sister" or "brother"."""
    return "sister" if person.name in lexicon.FEMALE_NAMES else "brother"
