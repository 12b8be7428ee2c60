"""Synthetic question answering and summarization: short stories about people, questions and summaries."""

from itertools import chain
from random import Random
from types import SimpleNamespace

from . import lexicon
from .words import SyntheticExample, Word, compared, copied, counted, grammatical, one_fact, two_facts, write

NAMES = lexicon.FEMALE_NAMES + lexicon.MALE_NAMES
KINDS = ("job", "transport", "month", "day", "dish", "weather")
JOBS, TRANSPORTS, MONTHS, DAYS, DISHES, WEATHER = map(lexicon.english, KINDS)
JOBS = [("an " if job[0] in "aeiou" else "a ") + job for job in JOBS]
QUALITIES = [adjective.english for adjective in lexicon.ADJECTIVES]
GOODS = lexicon.PORTABLE + lexicon.ANIMALS
TRAVEL = dict(transport=TRANSPORTS, month=MONTHS, destination=lexicon.CITIES)
OWNED = dict(count=range(2, 13), adjective=QUALITIES, thing=GOODS)
DRAWN = {"city": lexicon.CITIES, "job": JOBS, **TRAVEL, "dish": DISHES, **OWNED}  # of a person, in this order
NUMBERS = ["none", *(english for english, _ in lexicon.NUMBERS)]
DEEDS = [pair.split(" or ") for pair in lexicon.english("deed")]
OTHERS = ("friend", "boss", "neighbour")
QUESTIONS = {what: lexicon.english(f"asks_{what}")[0] for what in ("city", "job", "dish")}
WORDINGS = {what: lexicon.english(f"tells_{what}") for what in ("city", "job", "trip", "goods", "dish")}
OPENINGS = lexicon.english("opening")
Question = tuple[list[str], str, list[Word]]  # sentences of the context, question, answer


class Person(SimpleNamespace):
    """A name and what is drawn of a person; only what the context states (`told`) can be asked."""

    @property
    def goods(self) -> str:
        """ "three red bells"."""
        return f"{NUMBERS[self.count]} {self.adjective} {self.thing.in_english(self.count > 1)}"


def _people(random: Random, count: int) -> list[Person]:
    drawn = lambda: {fact: random.choice(values) for fact, values in DRAWN.items()}
    return [Person(name=name, told=set(), **drawn()) for name in random.sample(NAMES, count)]


def _tell(random: Random, person: Person, what: str) -> str:
    """States one fact about a person, in one of two wordings."""
    person.told.add(what)
    return random.choice(WORDINGS[what]).format(person)


def _filler(random: Random, people: list[Person], count: int, avoid: set[str]) -> list[str]:
    """Further true sentences that the question is not about."""
    facts = [(p, what) for p in people for what in WORDINGS if what not in avoid | p.told]
    return [_tell(random, person, what) for person, what in random.sample(facts, min(count, len(facts)))]


def _one_fact(random: Random) -> Question:
    people = _people(random, 3)
    subject, other = people[:2]
    what = random.choice(["city", "job", "trip", "goods", "dish", "who"])
    stated = "city" if what == "who" else what
    sentences = [_tell(random, subject, stated), _tell(random, other, stated)]
    sentences += _filler(random, people, 3, avoid={"city"} if what == "who" else set())
    if what == "who" and subject.city == other.city:
        return _one_fact(random)
    name, to, by = subject.name, subject.destination, subject.transport
    count, goods = subject.goods.split(maxsplit=1)
    pairs = {key: [(text.format(name), one_fact(getattr(subject, key)))] for key, text in QUESTIONS.items()}
    pairs |= {
        "trip": [
            (f"How did {name} travel to {to}?", grammatical("by") + one_fact(by)),
            (f"When did {name} travel?", grammatical("in") + one_fact(subject.month)),
            (f"Where did {name} go by {by}?", grammatical("to") + one_fact(to)),
        ],
        "goods": [(f"What does {name} own?", one_fact(count) + copied(goods))],
        "who": [(f"Who lives in {subject.city}?", one_fact(name))],
    }
    return sentences, *random.choice(pairs[what])


def _two_facts(random: Random) -> Question:
    first, second, third, fourth = _people(random, 4)
    sibling = lambda person: "sister" if person.name in lexicon.FEMALE_NAMES else "brother"
    relation = random.choice([sibling(second), *OTHERS])
    fits = relation in (*OTHERS, sibling(fourth))
    what = random.choice(list(QUESTIONS))
    sentences = [
        f"{second.name} is the {relation} of {first.name}.",
        f"{fourth.name} is the {relation if fits else 'friend'} of {third.name}.",
    ]
    sentences += [_tell(random, person, what) for person in (second, fourth)]
    sentences += _filler(random, [first, third], 1, avoid={what})
    asked = QUESTIONS[what].format(f"the {relation} of {first.name}")
    return sentences, asked, two_facts(getattr(second, what))


def _counted(random: Random) -> Question:
    people = _people(random, random.randint(3, 6))
    city, count = random.choice(lexicon.CITIES), random.randint(1, len(people))
    for person in people[:count]:
        person.city = city
    if any(person.city == city for person in people[count:]):
        return _counted(random)
    sentences = [_tell(random, person, "city") for person in people]
    return sentences, f"How many people live in {city}?", counted(NUMBERS[count])


def _compared(random: Random) -> Question:
    people = _people(random, 3)
    first, second, _ = people
    first.thing = second.thing
    if first.count == second.count:
        return _compared(random)
    more = random.random() < 0.5
    winner = first if (first.count > second.count) == more else second
    sentences = [_tell(random, person, "goods") for person in (first, second)]
    sentences += _filler(random, people, 2, avoid={"goods"})
    pair = [first.name, second.name]
    random.shuffle(pair)
    things = first.thing.in_english(True)
    asked = f"Who owns {'more' if more else 'fewer'} {things}, {' or '.join(pair)}?"
    return sentences, asked, compared(winner.name)


def question(random: Random) -> SyntheticExample:
    """Draws a context and a question about it, in the columns of SQuAD."""
    kind = random.choices([_one_fact, _two_facts, _counted, _compared], weights=[50, 20, 15, 15])[0]
    sentences, asked, answer = kind(random)
    random.shuffle(sentences)
    context, (target, spans) = " ".join(sentences), write(answer)
    start = -1 if spans[0].difficulty == "counted" else context.find(target)
    answers = {"text": [target], "answer_start": [start]}
    columns = {"title": "", "context": context, "question": asked, "answers": answers}
    return SyntheticExample(columns, f"{context} {asked}", target, spans)


def _event(random: Random) -> tuple[list[str], list[Word]]:
    """Two people do the same with the same things; a third does the opposite, not summarized."""
    first, second, third = _people(random, 3)
    things = random.choice(lexicon.PORTABLE).in_english(True)
    city, day = random.choice(lexicon.CITIES), random.choice(DAYS)
    place = random.choice(lexicon.MEETING_PLACES).english
    deed, opposite = random.sample(random.choice(DEEDS), 2)
    counts = [random.randint(2, 10) for _ in range(3)]
    opening = random.choice(OPENINGS).format(day=day, place=place, city=city)
    deeds = zip((first, second, third), (deed, deed, opposite), counts, strict=True)
    body = [f"{person.name} {verb} {NUMBERS[count]} {things}." for person, verb, count in deeds]
    same = {first.name: body[0], second.name: body[1]}
    random.shuffle(body)
    body.insert(random.randint(0, 3), random.choice(WEATHER))
    if random.random() < 0.5:
        body.insert(random.randint(0, 4), _tell(random, third, random.choice(["job", "dish"])))
    earlier, later = sorted(same, key=lambda name: body.index(same[name]))
    summary = two_facts(earlier) + grammatical("and") + two_facts(later) + [Word(deed, "one_fact")]
    summary += counted(NUMBERS[counts[0] + counts[1]]) + copied(things)
    summary += grammatical("at the") + one_fact(place) + grammatical("in") + copied(city)
    summary += grammatical("on") + one_fact(day) + grammatical(".")
    if counts[0] != counts[1]:
        most = first if counts[0] > counts[1] else second
        summary += [*compared(most.name), Word(deed, "grammatical"), *grammatical("the most .")]
    return [opening, *body], summary


def report(random: Random, column: str, events: int) -> SyntheticExample:
    """Draws a report of one or more events, in a `column`, and its summary, event by event."""
    stories, summaries = zip(*(_event(random) for _ in range(events)))
    document, (target, spans) = " ".join(chain(*stories)), write([*chain(*summaries)])
    return SyntheticExample({column: document, "summary": target}, document, target, spans)
