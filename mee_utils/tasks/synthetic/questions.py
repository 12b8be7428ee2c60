"""Synthetic question answering: sentences about people, and questions whose every hop is known.

A form of question is answered in a sentence that begins with what it looks up and says each hop, or, in a
fifth of the questions, by the bare value ("In one word: ..."):

    one fact    Where does Bella live?                   Bella lives in Oslo.
    two facts   Where does the sister of Otto live?      The sister of Otto is Bella and Bella lives in Oslo.
    counted     How many people live in Oslo?            Oslo is home to Anna, Ben and Bella: three people.
    compared    Who owns more bells, Otto or Bella?      Otto owns nine and Bella owns seven,
                                                         so the nine bells of Otto are more.

`LESSONS` ask several questions of one context, one for each kind of hop. They are for pre-training only.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from . import lexicon
from .people import NUMBERS, OTHERS, TOLD, Person, people, sibling, tell
from .words import SyntheticExample, Word, compared, copied, counted, grammatical, one_fact, two_facts, write

BARE = 0.2  # the share of questions that ask for the bare value
IN_ONE_WORD = "In one word: "
FACTS = {  # what is asked, the question, and what stands between the name and the value
    "city": ("Where does {} live?", "lives in"),
    "job": ("What is the job of {}?", "is"),
    "dish": ("What does {} like to eat?", "likes"),
    "transport": ("How did {} travel?", "went by"),
    "month": ("When did {} travel?", "went in"),
    "destination": ("Where did {} go?", "went to"),
    "goods": ("What does {} own?", "owns"),
}
TOLD_BY = {"transport": "trip", "month": "trip", "destination": "trip"}  # else the fact's own name
RELATED = ("{who.name} is the {relation} of {of.name}.", "The {relation} of {of.name} is {who.name}.")
OF_ANOTHER = ("city", "job", "dish")  # facts that two-fact questions ask for


class Asked(NamedTuple):
    """A question with the words of its answer in a sentence; and of its bare value, where one word is it."""

    question: str
    sentence: list[Word]
    bare: list[Word] | None = None


Case = tuple[list[str], list[Asked]]  # the sentences of a context, and questions about it


def _listed(names: Sequence[str]) -> list[Word]:
    """ "Anna, Ben and Carla", each name a fact that was found."""
    words = []
    for place, name in enumerate(names):
        between = "" if place == 0 else " and " if place == len(names) - 1 else ","
        words += [*grammatical(between), *one_fact(name)]
    return words


def _value(person: Person, what: str) -> list[Word]:
    """A person's city, job, ...; of their goods the number must be found, what follows it is copied."""
    first, _, rest = getattr(person, what).partition(" ")
    return [*one_fact(first), *(copied if what == "goods" else one_fact)(rest)]


def _fact(person: Person, what: str) -> Asked:
    asked, verb = FACTS[what]
    value = _value(person, what)
    sentence = copied(person.name) + grammatical(verb) + value + grammatical(".")
    return Asked(asked.format(person.name), sentence, None if what == "goods" else value[-1:])


def _who(person: Person) -> Asked:
    sentence = _home(person.city) + one_fact(person.name) + grammatical(".")
    return Asked(f"Who lives in {person.city}?", sentence, one_fact(person.name))


def _home(city: str) -> list[Word]:
    return copied(city) + grammatical("is home to")


def _relation(relation: str, of: Person, who: Person, what: str | None = None) -> Asked:
    """Who somebody's sister is, or with `what` where she lives, ..."""
    key = f"the {relation} of {of.name}"
    hop = grammatical("The") + copied(f"{relation} of {of.name}") + grammatical("is") + one_fact(who.name)
    if what is None:
        return Asked(f"Who is {key}?", hop + grammatical("."), one_fact(who.name))
    asked, verb = FACTS[what]
    value = _value(who, what)
    sentence = hop + grammatical("and") + copied(who.name) + grammatical(verb) + value + grammatical(".")
    return Asked(asked.format(key), sentence, two_facts(value[-1].text))


def _inhabitants(city: str, sentences: Sequence[str], everybody: Sequence[Person]) -> Asked:
    living = {person.name for person in everybody if person.city == city}
    names = [name for name in map(_subject, sentences) if name in living]
    noun = "person" if len(names) == 1 else "people"
    sentence, count = _home(city) + _listed(names) + grammatical(":"), counted(NUMBERS[len(names)])
    return Asked(f"How many people live in {city}?", sentence + count + grammatical(f"{noun} ."), count)


def _subject(sentence: str) -> str:
    """The person a sentence is about: names alone begin with a capital in front of the verb."""
    return next(word for word in sentence.split() if word in lexicon.NAMES)


def _comparison(random: Random, first: Person, second: Person) -> Asked:
    more = random.random() < 0.5
    winner = first if (first.count > second.count) == more else second
    things, word = first.thing.in_english(True), "more" if more else "fewer"
    sentence = copied(first.name) + grammatical("owns") + one_fact(NUMBERS[first.count]) + grammatical("and")
    sentence += copied(second.name) + grammatical("owns") + one_fact(NUMBERS[second.count])
    sentence += grammatical(", so the") + compared(NUMBERS[winner.count]) + copied(things) + grammatical("of")
    sentence += copied(winner.name) + grammatical(f"are {word} .")
    asked = f"Who owns {word} {things}, {first.name} or {second.name}?"
    return Asked(asked, sentence, compared(winner.name))


def _filler(random: Random, everybody: Sequence[Person], count: int, avoid: set[str]) -> list[str]:
    """Further true sentences that no question is about."""
    facts = [(person, what) for person in everybody for what in TOLD if what not in avoid | person.told]
    return [tell(random, person, what) for person, what in random.sample(facts, min(count, len(facts)))]


def _one_fact(random: Random) -> Case:
    everybody = people(random, 3)
    subject, other = everybody[:2]
    what = random.choice([*FACTS, "who"])
    told = "city" if what == "who" else TOLD_BY.get(what, what)
    if what == "who" and subject.city == other.city:
        return _one_fact(random)
    sentences = [tell(random, subject, told), tell(random, other, told)]
    sentences += _filler(random, everybody, 3, {"city"} if what == "who" else set())
    return _shuffled(random, sentences), [_who(subject) if what == "who" else _fact(subject, what)]


def _related(random: Random, pairs: int) -> tuple[list[str], list[tuple[str, Person, Person]]]:
    """Pairs of people, one the sister, friend, ... of the other: sentences and (relation, of whom, who)."""
    everybody = people(random, 2 * pairs)
    couples = zip(everybody[::2], everybody[1::2], strict=True)
    found = [(random.choice([sibling(who), *OTHERS]), of, who) for of, who in couples]
    if random.random() < 0.5:  # the same relation twice, so that it does not tell whom
        relation = found[0][0]
        found = [(relation if relation in (*OTHERS, sibling(w)) else r, of, w) for r, of, w in found]
    return [random.choice(RELATED).format(relation=r, of=of, who=who) for r, of, who in found], found


def _two_facts(random: Random) -> Case:
    sentences, related = _related(random, 2)
    what = random.choice(OF_ANOTHER)
    sentences += [tell(random, who, what) for _, _, who in related]
    sentences += _filler(random, [of for _, of, _ in related], 1, {what})
    return _shuffled(random, sentences), [_relation(*related[0], what)]


def _counted(random: Random, cities: int = 1) -> Case:
    everybody = people(random, random.randint(3, 6))
    asked = random.sample(lexicon.CITIES, cities)
    elsewhere = random.choice([city for city in lexicon.CITIES if city not in asked])
    lucky = random.sample(everybody, len(everybody))
    for person in lucky:
        person.city = random.choice([*asked, random.choice(lexicon.CITIES), elsewhere])
    for person, city in zip(lucky, asked, strict=False):
        person.city = city
    sentences = _shuffled(random, [tell(random, person, "city") for person in everybody])
    return sentences, [_inhabitants(city, sentences, everybody) for city in asked]


def _owners(random: Random, count: int) -> list[Person]:
    """People who own different numbers of the same thing."""
    everybody = people(random, count)
    for person, number in zip(everybody, random.sample(range(2, 13), count), strict=True):
        person.thing, person.count = everybody[0].thing, number
    return everybody


def _compared(random: Random) -> Case:
    owners = _owners(random, 2)
    sentences = [tell(random, person, "goods") for person in owners]
    sentences += _filler(random, owners, 2, {"goods"})
    return _shuffled(random, sentences), [_comparison(random, *random.sample(owners, 2))]


FORMS: dict[str, tuple[Callable[[Random], Case], int]] = {
    "one fact": (_one_fact, 40),
    "two facts": (_two_facts, 20),
    "counted": (_counted, 20),
    "compared": (_compared, 20),
}


def _shuffled(random: Random, items: Sequence) -> list:
    return random.sample(items, len(items))


def question(random: Random, bare: float = BARE) -> SyntheticExample:
    """Draws a context and a question about it, in the columns of SQuAD; a share asks for the `bare` value."""
    form = random.choices(list(FORMS), [weight for _, weight in FORMS.values()])[0]
    sentences, (asked,) = FORMS[form][0](random)
    if random.random() >= bare or asked.bare is None:
        return _example(sentences, asked.question, asked.sentence, form)
    one_word = IN_ONE_WORD + asked.question[0].lower() + asked.question[1:]
    return _example(sentences, one_word, asked.bare, f"{form}, bare")


def _example(sentences: Sequence[str], asked: str, answer: Sequence[Word], form: str) -> SyntheticExample:
    context, (target, spans) = " ".join(sentences), write(answer)
    place = re.search(rf"(?<!\w){re.escape(target)}(?!\w)", context)
    answers = {"text": [target], "answer_start": [place.start() if place else -1]}
    columns = {"title": "", "context": context, "question": asked, "answers": answers}
    return SyntheticExample(columns, context, target, spans, form)


def _pairs(random: Random) -> Case:
    everybody = people(random, random.randint(2, 5))
    sentences = [tell(random, person, "city") for person in everybody]
    order = _shuffled(random, everybody)
    listed = [word for p in order for word in [*copied(p.name), *one_fact(p.city), *grammatical(",")]][:-1]
    asked = f"Where do {', '.join(person.name for person in order)} live?"
    return _shuffled(random, sentences), [Asked(asked, listed, _listed([p.city for p in order]))]


def _same_fact(random: Random) -> Case:
    everybody, what = people(random, random.randint(3, 4)), random.choice(list(FACTS))
    sentences = [tell(random, person, TOLD_BY.get(what, what)) for person in everybody]
    return _shuffled(random, sentences), [_fact(person, what) for person in _shuffled(random, everybody)]


def _several_facts(random: Random) -> Case:
    everybody = people(random, 3)
    told = [(person, what) for person in everybody for what in random.sample(TOLD, 2)]
    sentences = [tell(random, person, what) for person, what in told]
    facts = [(p, what) for p in everybody for what in FACTS if TOLD_BY.get(what, what) in p.told]
    return _shuffled(random, sentences), [_fact(*fact) for fact in random.sample(facts, 4)]


def _relations(random: Random) -> Case:
    sentences, related = _related(random, 3)
    what = random.choice([None, *OF_ANOTHER])
    sentences += [tell(random, who, what) for _, _, who in related if what]
    return _shuffled(random, sentences), [_relation(*one, what) for one in _shuffled(random, related)]


def _comparisons(random: Random) -> Case:
    owners, sentences = _goods(random)
    return sentences, [_comparison(random, *random.sample(owners, 2)) for _ in range(3)]


def _holders(random: Random) -> Case:
    """The way back from a number to a name, which a comparison ends with."""
    owners, sentences = _goods(random)
    return sentences, [_holder(person) for person in _shuffled(random, owners)[:3]]


def _goods(random: Random) -> tuple[list[Person], list[str]]:
    owners = _owners(random, 4)
    return owners, _shuffled(random, [tell(random, person, "goods") for person in owners])


def _holder(person: Person) -> Asked:
    things = f"{NUMBERS[person.count]} {person.thing.in_english(True)}"
    sentence = grammatical("The") + copied(things) + grammatical("of") + one_fact(person.name)
    return Asked(f"Who owns {things}?", sentence + grammatical("."), one_fact(person.name))


_CASES = dict(pairs=_pairs, same_fact=_same_fact, several_facts=_several_facts, relations=_relations)
_CASES |= dict(cities=partial(_counted, cities=2), owners=_comparisons, holders=_holders)


def _lesson(random: Random, case: Callable[[Random], Case], alone: bool = False, silent: bool = False):
    """All questions of a context, or the first `alone`; `silent`: the bare value where a question has one."""
    sentences, asked = case(random)
    asked = asked[:1] if alone else asked
    words = [word for one in asked for word in (silent and one.bare) or one.sentence]
    return _example(sentences, " ".join(one.question for one in asked), words, "")


# the lessons of pre-training, and what they are compared with: one question a context, bare values
LESSONS: dict[str, Callable[[Random], SyntheticExample]] = {
    f"{name}{way}": partial(_lesson, case=case, **options)
    for way, options in {"": {}, ", alone": dict(alone=True), ", silent": dict(silent=True)}.items()
    for name, case in _CASES.items()
}
LESSONS["questions, silent"] = partial(question, bare=1)
