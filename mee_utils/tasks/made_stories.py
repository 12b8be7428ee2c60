"""Made question answering and summarization: small stories about people, and what can be asked or said about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from . import lexicon
from .lexicon import Noun
from .made_french import Word

GOODS = lexicon.PORTABLE + lexicon.ANIMALS
LARGEST_NUMBER = 12


@dataclass
class Person:
    """One inhabitant and what is true of them; only what the context states can be asked."""

    name: str
    female: bool
    city: str
    job: str
    transport: str
    month: str
    destination: str
    dish: str
    count: int
    adjective: str
    thing: Noun
    told: set[str] = field(default_factory=set)

    @property
    def goods(self) -> list[str]:
        """ "three red bells", word by word."""
        return [lexicon.NUMBERS[self.count - 1], self.adjective, self.thing.in_english(self.count > 1)]


def with_article(noun: str) -> str:
    """ "a baker", "an engineer"."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _people(random: Random, number: int) -> list[Person]:
    names = random.sample([(n, True) for n in lexicon.FEMALE_NAMES] + [(n, False) for n in lexicon.MALE_NAMES], number)
    return [
        Person(
            name=name, female=female, city=random.choice(lexicon.CITIES), job=random.choice(lexicon.JOBS),
            transport=random.choice(lexicon.TRANSPORTS), month=random.choice(lexicon.MONTHS),
            destination=random.choice(lexicon.CITIES), dish=random.choice(lexicon.DISHES),
            count=random.randint(2, LARGEST_NUMBER), adjective=random.choice(lexicon.ADJECTIVES).english,
            thing=random.choice(GOODS),
        )
        for name, female in names
    ]  # fmt: skip


def _tell(random: Random, person: Person, what: str) -> str:
    """States one fact about a person, in one of several wordings."""
    person.told.add(what)
    wordings = {
        "city": [f"{person.name} lives in {person.city}.", f"{person.name} has a flat in {person.city}."],
        "job": [f"{person.name} works as {with_article(person.job)}.", f"{person.name} is {with_article(person.job)}."],
        "trip": [
            f"{person.name} went to {person.destination} by {person.transport} in {person.month}.",
            f"{person.name} made a journey in {person.month}, by {person.transport} to {person.destination}.",
        ],
        "goods": [
            f"{person.name} owns {' '.join(person.goods)}.",
            f"At home {person.name} keeps {' '.join(person.goods)}.",
        ],
        "dish": [f"{person.name} likes {person.dish}.", f"Every day {person.name} eats {person.dish}."],
    }
    return random.choice(wordings[what])


def _context(random: Random, sentences: list[str]) -> str:
    random.shuffle(sentences)
    return " ".join(sentences)


def _filler(random: Random, people: list[Person], number: int, avoid: set[str]) -> list[str]:
    """Further true sentences that the question is not about."""
    facts = [(p, what) for p in people for what in ("city", "job", "trip", "goods", "dish") if what not in avoid | p.told]
    return [_tell(random, person, what) for person, what in random.sample(facts, min(number, len(facts)))]


def _one_fact(random: Random):
    people = _people(random, 3)
    asked = people[0]
    what = random.choice(["city", "job", "trip", "goods", "dish", "who"])
    sentences = [_tell(random, asked, "city" if what == "who" else what)]
    sentences.append(_tell(random, people[1], "city" if what == "who" else what))
    sentences += _filler(random, people, 3, avoid={"city"} if what == "who" else set())
    goods = [Word(asked.goods[0], "one_fact"), *[Word(w, "copied") for w in asked.goods[1:]]]
    pairs = {
        "city": [(f"Where does {asked.name} live?", [Word(asked.city, "one_fact")])],
        "job": [
            (f"What is the job of {asked.name}?",
             [Word(with_article(asked.job).split()[0], "one_fact"), Word(asked.job, "one_fact")]),
        ],
        "trip": [
            (f"How did {asked.name} travel to {asked.destination}?",
             [Word("by"), Word(asked.transport, "one_fact")]),
            (f"When did {asked.name} travel?", [Word("in"), Word(asked.month, "one_fact")]),
            (f"Where did {asked.name} go by {asked.transport}?", [Word("to"), Word(asked.destination, "one_fact")]),
        ],
        "goods": [(f"What does {asked.name} own?", goods)],
        "dish": [(f"What does {asked.name} like to eat?", [Word(asked.dish, "one_fact")])],
        "who": [(f"Who lives in {asked.city}?", [Word(asked.name, "one_fact")])],
    }  # fmt: skip
    if what == "who" and asked.city == people[1].city:
        return _one_fact(random)
    return sentences, *random.choice(pairs[what])


def _two_facts(random: Random):
    people = _people(random, 4)
    first, second, third, fourth = people
    relation = random.choice(["sister" if second.female else "brother", "friend", "boss", "neighbour"])
    fits = relation in ("friend", "boss", "neighbour") or fourth.female == second.female
    what = random.choice(["city", "job", "dish"])
    sentences = [
        f"{second.name} is the {relation} of {first.name}.",
        f"{fourth.name} is the {relation if fits else 'friend'} of {third.name}.",
    ]
    sentences += [_tell(random, person, what) for person in (second, fourth)]
    sentences += _filler(random, [first, third], 1, avoid={what})
    question, answer = {
        "city": (f"Where does the {relation} of {first.name} live?", [Word(second.city, "two_facts")]),
        "job": (
            f"What is the job of the {relation} of {first.name}?",
            [Word(with_article(second.job).split()[0], "two_facts"), Word(second.job, "two_facts")],
        ),
        "dish": (f"What does the {relation} of {first.name} like to eat?", [Word(second.dish, "two_facts")]),
    }[what]
    return sentences, question, answer


def _counted(random: Random):
    people = _people(random, random.randint(3, 6))
    city, number = random.choice(lexicon.CITIES), random.randint(1, len(people))
    for index, person in enumerate(people):
        if index < number:
            person.city = city
        elif person.city == city:
            return _counted(random)
    sentences = [_tell(random, person, "city") for person in people]
    return sentences, f"How many people live in {city}?", [Word(lexicon.NUMBERS[number - 1], "counted")]


def _compared(random: Random):
    people = _people(random, 3)
    first, second, third = people
    first.thing = second.thing
    if first.count == second.count:
        return _compared(random)
    more = random.random() < 0.5
    winner = first if (first.count > second.count) == more else second
    sentences = [_tell(random, person, "goods") for person in (first, second)]
    sentences += _filler(random, people, 2, avoid={"goods"})
    pair = [first.name, second.name]
    random.shuffle(pair)
    question = f"Who owns {'more' if more else 'fewer'} {first.thing.in_english(True)}, {pair[0]} or {pair[1]}?"
    return sentences, question, [Word(winner.name, "compared")]


def question(random: Random) -> tuple[str, str, list[Word]]:
    """Draws a context, a question about it and the words of its answer.

    One fact in half of the questions, two facts in a fifth, counting and comparing in 15 % each.
    """
    kind = random.choices([_one_fact, _two_facts, _counted, _compared], weights=[50, 20, 15, 15])[0]
    sentences, asked, answer = kind(random)
    return _context(random, sentences), asked, answer


WEATHER = (
    "It was raining.", "The sun was shining.", "It was cold.", "There was a strong wind.", "It had been snowing.",
    "The streets were empty.", "The shops were closed.", "Nobody was in a hurry.", "The music was loud.",
    "Many people were there.", "A dog was barking.", "The bells were ringing.",
)  # fmt: skip
DEEDS = (("bought", "sold"), ("found", "lost"), ("painted", "broke"), ("collected", "gave away"), ("borrowed", "returned"))


def _event(random: Random) -> tuple[list[str], list[Word]]:
    """One event: two people do the same with the same things; a third does the opposite, which the summary leaves out."""
    first, second, third = _people(random, 3)
    thing, city, day = random.choice(lexicon.PORTABLE), random.choice(lexicon.CITIES), random.choice(lexicon.DAYS)
    place = random.choice(lexicon.MEETING_PLACES).english
    deed, opposite = random.sample(random.choice(DEEDS), 2)
    counts = [random.randint(2, 10) for _ in range(3)]
    things = thing.in_english(True)

    def done(person: Person, verb: str, count: int) -> str:
        return f"{person.name} {verb} {lexicon.NUMBERS[count - 1]} {things}."

    opening = random.choice(
        [f"On {day} there was a meeting at the {place} in {city}.", f"The {place} in {city} was open on {day}."]
    )
    same = {first.name: done(first, deed, counts[0]), second.name: done(second, deed, counts[1])}
    body = [*same.values(), done(third, opposite, counts[2])]
    random.shuffle(body)
    body.insert(random.randint(0, 3), random.choice(WEATHER))
    if random.random() < 0.5:
        body.insert(random.randint(0, 4), _tell(random, third, random.choice(["job", "dish"])))
    named = sorted(same, key=lambda name: body.index(same[name]))
    most = first if counts[0] >= counts[1] else second
    total = lexicon.NUMBERS[counts[0] + counts[1] - 1]
    summary = [
        Word(named[0], "two_facts"), Word("and"), Word(named[1], "two_facts"), Word(deed, "one_fact"),
        Word(total, "counted"), Word(things, "copied"), Word("at"), Word("the"), Word(place, "one_fact"), Word("in"),
        Word(city, "copied"), Word("on"), Word(day, "one_fact"), Word("."),
    ]  # fmt: skip
    if counts[0] != counts[1]:
        summary += [Word(most.name, "compared"), Word(deed), Word("the"), Word("most"), Word(".")]
    return [opening, *body], summary


def report(random: Random, events: int = 1) -> tuple[list[str], list[Word]]:
    """Draws a report of one or more events: its sentences, and the words of its summary, event by event."""
    drawn = [_event(random) for _ in range(events)]
    return [sentence for story, _ in drawn for sentence in story], [word for _, summary in drawn for word in summary]
