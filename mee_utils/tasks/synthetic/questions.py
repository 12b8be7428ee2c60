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

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from . import lexicon
from .people import NUMBERS, OTHERS, TOLD, Person, people, sibling, tell
from .words import SyntheticExample, Word, words, write

BARE = 0.2  # the share of questions that ask for the bare value
IN_ONE_WORD = "In one word: "
FACTS = {row["fact"]: row for row in lexicon.rows("facts")}
OF_ANOTHER = ("city", "job", "dish")  # facts that two-fact questions ask for
RELATED = lexicon.english("related")
(COMPARED,) = lexicon.english("comparison")


class Asked(NamedTuple):
    """A question with the words of its answer in a sentence; and of its bare value, where one word is it."""

    question: str
    sentence: list[Word]
    bare: list[Word] | None = None


Case = tuple[list[str], list[Asked]]  # the sentences of a context, and questions about it


def _listed(names: Sequence[str]) -> list[Word]:
    """ "Anna, Ben and Carla", each name a fact that was found."""
    *before, last = (f"{{{place}:one_fact}}" for place in range(len(names)))
    return words(f"{', '.join(before)} and {last}" if before else last, *names)


def _fact(person: Person, what: str, whose: str = "") -> Asked:
    """A person's city, job, ...; of their goods the number must be found, what follows it is copied."""
    asked = FACTS[what]
    first, _, rest = getattr(person, what).partition(" ")
    value = words("{0:one_fact} {1:copied}" if what == "goods" else "{0:one_fact} {1:one_fact}", first, rest)
    sentence = words("{0:copied} {1:grammatical} {2}.", person.name, asked["verb"], value)
    question = asked["question"].format(whose or person.name)
    return Asked(question, sentence, None if what == "goods" else value[-1:])


def _who(person: Person) -> Asked:
    sentence = words("{0.city:copied} is home to {0.name:one_fact}.", person)
    return Asked(f"Who lives in {person.city}?", sentence, words("{0.name:one_fact}", person))


def _relation(relation: str, of: Person, who: Person, what: str | None = None) -> Asked:
    """Who somebody's sister is, or with `what` where she lives, ..."""
    key = f"{relation} of {of.name}"
    hop = words("The {0:copied} is {1.name:one_fact}", key, who)
    if what is None:
        return Asked(f"Who is the {key}?", hop + words("."), words("{0.name:one_fact}", who))
    asked = _fact(who, what, f"the {key}")
    value = words("{0:two_facts}", asked.bare[0].text)
    return Asked(asked.question, words("{0} and {1}", hop, asked.sentence), value)


def _inhabitants(city: str, sentences: Sequence[str], everybody: Sequence[Person]) -> Asked:
    living = {person.name for person in everybody if person.city == city}
    names = [word for sentence in sentences for word in sentence.split() if word in living]
    count = words("{0:counted}", NUMBERS[len(names)])
    noun = "person" if len(names) == 1 else "people"
    answer = words("{0:copied} is home to {1}: {2} {3:grammatical}.", city, _listed(names), count, noun)
    return Asked(f"How many people live in {city}?", answer, count)


def _comparison(random: Random, first: Person, second: Person) -> Asked:
    more = random.random() < 0.5
    word = "more" if more else "fewer"
    winner = first if (first.count > second.count) == more else second
    question = f"Who owns {word} {first.things}, {first.name} or {second.name}?"
    return Asked(question, words(COMPARED, first, second, winner, word), words("{0.name:compared}", winner))


def _shuffled(random: Random, items: Sequence) -> list:
    return random.sample(items, len(items))


def _filler(random: Random, everybody: Sequence[Person], count: int, avoid: set[str]) -> list[str]:
    """Further true sentences that no question is about."""
    facts = [(person, what) for person in everybody for what in TOLD if what not in avoid | person.told]
    return [tell(random, person, what) for person, what in random.sample(facts, min(count, len(facts)))]


def _one_fact(random: Random) -> Case:
    everybody = people(random, 3)
    subject, other = everybody[:2]
    what = random.choice([*FACTS, "who"])
    if what == "who" and subject.city == other.city:
        return _one_fact(random)
    told = "city" if what == "who" else FACTS[what]["told"]
    sentences = [tell(random, subject, told), tell(random, other, told)]
    sentences += _filler(random, everybody, 3, {"city"} if what == "who" else set())
    return _shuffled(random, sentences), [_who(subject) if what == "who" else _fact(subject, what)]


def _related(random: Random, pairs: int) -> tuple[list[str], list[tuple[str, Person, Person]]]:
    """Pairs of people, one the sister, friend, ... of the other: sentences and (relation, of whom, who)."""
    everybody = people(random, 2 * pairs)
    couples = zip(everybody[::2], everybody[1::2], strict=True)
    related = [(random.choice([sibling(who), *OTHERS]), of, who) for of, who in couples]
    if random.random() < 0.5:  # the same relation twice, so that it does not tell whom
        first_relation = related[0][0]
        related = [
            (first_relation if first_relation in (*OTHERS, sibling(who)) else relation, of, who)
            for relation, of, who in related
        ]
    sentences = [
        random.choice(RELATED).format(relation=relation, of=of, who=who) for relation, of, who in related
    ]
    return sentences, related


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
    lucky = _shuffled(random, everybody)
    for person in lucky:
        person.city = random.choice([*asked, random.choice(lexicon.CITIES), elsewhere])
    for person, city in zip(lucky, asked, strict=False):
        person.city = city
    sentences = _shuffled(random, [tell(random, person, "city") for person in everybody])
    return sentences, [_inhabitants(city, sentences, everybody) for city in asked]


def _owners(random: Random, count: int, fillers: int = 0) -> tuple[list[str], list[Person]]:
    """People who own different numbers of the same thing, and the sentences that say so."""
    everybody = people(random, count)
    for person, number in zip(everybody, random.sample(range(2, 13), count), strict=True):
        person.thing = everybody[0].thing
        person.count = number
    sentences = [tell(random, person, "goods") for person in everybody]
    return _shuffled(random, sentences + _filler(random, everybody, fillers, {"goods"})), everybody


def _compared(random: Random, owners: int = 2, fillers: int = 2, questions: int = 1) -> Case:
    sentences, everybody = _owners(random, owners, fillers)
    return sentences, [_comparison(random, *random.sample(everybody, 2)) for _ in range(questions)]


FORMS = {"one fact": _one_fact, "two facts": _two_facts, "counted": _counted, "compared": _compared}
WEIGHTS = (40, 20, 20, 20)


def question(random: Random, bare: float = BARE) -> SyntheticExample:
    """Draws a context and a question about it, in the columns of SQuAD; a share asks for the `bare` value."""
    form = random.choices(list(FORMS), WEIGHTS)[0]
    sentences, (asked,) = FORMS[form](random)
    if random.random() >= bare or asked.bare is None:
        return _example(sentences, asked.question, asked.sentence, form)
    one_word = IN_ONE_WORD + asked.question[0].lower() + asked.question[1:]
    return _example(sentences, one_word, asked.bare, f"{form}, bare")


def _place(context: str, answer: str) -> int:
    """Where an answer stands in a context as whole words; -1 if nowhere."""
    at = context.find(answer)
    while at >= 0 and (context[at - 1 : at].isalnum() or context[at + len(answer) :][:1].isalnum()):
        at = context.find(answer, at + 1)
    return at


def _example(sentences: list[str], asked: str, answer: list[Word], form: str = "") -> SyntheticExample:
    context = " ".join(sentences)
    target, spans = write(answer)
    answers = {"text": [target], "answer_start": [_place(context, target)]}
    columns = {"title": "", "context": context, "question": asked, "answers": answers}
    return SyntheticExample(columns, context, target, spans, form)


def _pairs(random: Random) -> Case:
    everybody = people(random, random.randint(2, 5))
    sentences = [tell(random, person, "city") for person in everybody]
    order = _shuffled(random, everybody)
    answer = [word for person in order for word in words("{0.name:copied} {0.city:one_fact},", person)][:-1]
    asked = f"Where do {', '.join(person.name for person in order)} live?"
    return _shuffled(random, sentences), [Asked(asked, answer, _listed([person.city for person in order]))]


def _same_fact(random: Random) -> Case:
    everybody = people(random, random.randint(3, 4))
    what = random.choice(list(FACTS))
    sentences = [tell(random, person, FACTS[what]["told"]) for person in everybody]
    return _shuffled(random, sentences), [_fact(person, what) for person in _shuffled(random, everybody)]


def _several_facts(random: Random) -> Case:
    everybody = people(random, 3)
    told = [(person, what) for person in everybody for what in random.sample(TOLD, 2)]
    sentences = [tell(random, person, what) for person, what in told]
    facts = [(person, what) for person in everybody for what in FACTS if FACTS[what]["told"] in person.told]
    return _shuffled(random, sentences), [_fact(*fact) for fact in random.sample(facts, 4)]


def _relations(random: Random) -> Case:
    sentences, related = _related(random, 3)
    what = random.choice([None, *OF_ANOTHER])
    sentences += [tell(random, who, what) for _, _, who in related if what]
    return _shuffled(random, sentences), [_relation(*one, what) for one in _shuffled(random, related)]


def _holders(random: Random) -> Case:
    """The way back from a number to a name, which a comparison ends with."""
    sentences, owners = _owners(random, 4)
    asked = []
    for who in _shuffled(random, owners)[:3]:
        sentence = words("The {0.number:copied} {0.things:copied} of {0.name:one_fact}.", who)
        asked.append(Asked(f"Who owns {who.number} {who.things}?", sentence, words("{0.name:one_fact}", who)))
    return sentences, asked


_CASES = {
    "pairs": _pairs,
    "same_fact": _same_fact,
    "several_facts": _several_facts,
    "relations": _relations,
    "cities": partial(_counted, cities=2),
    "owners": partial(_compared, owners=4, fillers=0, questions=3),
    "holders": _holders,
}


def _lesson(
    random: Random, case: Callable[[Random], Case], alone: bool = False, silent: bool = False
) -> SyntheticExample:
    """All questions of a context, or the first `alone`; `silent`: the bare value where a question has one."""
    sentences, asked = case(random)
    if alone:
        asked = asked[:1]
    answer = []
    for one in asked:
        bare = one.bare if silent else None
        answer += bare or one.sentence
    return _example(sentences, " ".join(one.question for one in asked), answer)


# the lessons of pre-training, and what they are compared with: one question a context, bare values
LESSONS: dict[str, Callable[[Random], SyntheticExample]] = {
    f"{name}{way}": partial(_lesson, case=case, **options)
    for way, options in {"": {}, ", alone": {"alone": True}, ", silent": {"silent": True}}.items()
    for name, case in _CASES.items()
}
LESSONS["questions, silent"] = partial(question, bare=1)
