"""Synthetic translation: English sentences with their French, from a grammar with gender, number and elision.

Agreement is what makes the French hard, and its distance is known: in "Les maisons que Paul a vues hier
sont blanches" the article agrees with the next word ("agreement"); the participle and the last adjective
agree with a noun four and seven words before them ("distant_agreement").
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from . import lexicon
from .lexicon import Adjective, Noun
from .words import SyntheticExample, Word, agreement, copied, distant, grammatical, translated, write

VOWELS = "aeiouàâéèêëîïôûœ"
MUTE_H = ("homme", "horloge", "hôpital", "hôpitaux", "hôtel", "hiver")
Pair = tuple[str, list[Word]]


def elides(word: str) -> bool:
    """Whether "le", "de" and "que" lose their vowel before this French word.

    >>> elides("école"), elides("homme"), elides("chat"), elides("Anna")
    (True, True, False, True)
    """
    return word.lower()[0] in VOWELS or word.lower().startswith(MUTE_H)


def inflect(participle: str, gender: str, plural: bool) -> str:
    """Regular agreement of a participle: vu, vue, vus, vues."""
    return participle + ("e" if gender == "f" else "") + ("s" if plural else "")


def _be(plural: bool) -> tuple[str, str]:
    return ("are", "sont") if plural else ("is", "est")


def _of(word: str) -> list[Word]:
    return agreement("d'" if elides(word) else "de")


def _is_so(noun: Noun, plural: bool, adjective: Adjective) -> Pair:
    """ "is white" and "est blanche", where the subject stands further before."""
    is_, est = _be(plural)
    return f"{is_} {adjective.english}", distant(f"{est} {adjective.in_french(noun.gender, plural)}")


def noun_phrase(
    kind: str, noun: Noun, plural: bool = False, adjective: Adjective | None = None, number: int = 0
) -> Pair:
    """A "definite" or "indefinite" noun phrase, or one with a `number` from 2 to 12, in both languages."""
    english, french = noun.in_english(plural), translated(noun.in_french(plural))
    before = adjective is not None and adjective.position == "before"
    if adjective:
        form = adjective.in_french(noun.gender, plural)
        if adjective.liaison and noun.gender == "m" and not plural and elides(noun.french):
            form = adjective.liaison
        english = f"{adjective.english} {english}"
        french = agreement(form) + french if before else french + agreement(form)
    if kind == "number":
        in_english, in_french = lexicon.NUMBERS[number - 1]
        return f"{in_english} {english}", translated(in_french) + french
    if kind == "definite":
        singular = "l'" if elides(french[0].text) else {"m": "le", "f": "la"}[noun.gender]
        return f"the {english}", agreement("les" if plural else singular) + french
    if plural:
        return english, agreement("de" if before else "des") + french
    article = "an" if english[0] in "aeiou" else "a"
    return f"{article} {english}", agreement({"m": "un", "f": "une"}[noun.gender]) + french


def _place(random: Random, of_what: Noun) -> Pair:
    """ "near the bridge" and "près du pont": "de le" becomes "du"; nothing stands near itself."""
    english, french = random.choice(lexicon.WHERE)
    place = random.choice([place for place in lexicon.PLACES if place.english != of_what.english])
    place_english, place_french = noun_phrase("definite", place)
    if french.endswith(" de") and place_french[0].text == "le":
        french, place_french = french.removesuffix(" de"), agreement("du") + place_french[1:]
    return f"{english} {place_english}", translated(french) + place_french


def _person(random: Random) -> tuple[str, str]:
    gender = random.choice("mf")
    return random.choice(lexicon.FEMALE_NAMES if gender == "f" else lexicon.MALE_NAMES), gender


def _thing(random: Random, things: Sequence[Noun] = lexicon.THINGS) -> Noun:
    return random.choice(things if random.random() < 0.8 else lexicon.ANIMALS)


_belonging = partial(_thing, things=lexicon.PORTABLE)  # what a person can buy, have or lose; no church


def _maybe_adjective(random: Random) -> Adjective | None:
    return random.choice(lexicon.ADJECTIVES) if random.random() < 0.6 else None


def transitive(random: Random) -> Pair:
    """Paul found three small keys yesterday."""
    name, verb, noun = _person(random)[0], random.choice(lexicon.TRANSITIVE), _belonging(random)
    kind = random.choice(["definite", "indefinite", "number"])
    plural = kind == "number" or random.random() < 0.4
    english, french = noun_phrase(kind, noun, plural, _maybe_adjective(random), random.randint(2, 12))
    time = random.choice(lexicon.TIMES)
    subject = copied(name) + grammatical("a") + translated(verb[1])
    return f"{name} {verb[0]} {english} {time[0]}", subject + french + translated(time[1])


def located(random: Random) -> Pair:
    """The old boats are near the bridge."""
    plural = random.random() < 0.5
    noun = _thing(random) if random.random() < 0.7 else random.choice(lexicon.PEOPLE)
    adjective = None if noun.kind == "person" else _maybe_adjective(random)
    english, french = noun_phrase("definite", noun, plural, adjective)
    place, (is_, est) = _place(random, noun), _be(plural)
    return f"{english} {is_} {place[0]}", french + agreement(est) + place[1]


def relative(random: Random) -> Pair:
    """The houses that Paul saw yesterday are white: participle and adjective agree across the clause."""
    name, verb, noun = _person(random)[0], random.choice(lexicon.TRANSITIVE), _belonging(random)
    plural, time = random.random() < 0.5, random.choice(lexicon.TIMES)
    english, french = noun_phrase("definite", noun, plural)
    end = _is_so(noun, plural, random.choice(lexicon.ADJECTIVES))
    clause = agreement("qu'" if elides(name) else "que") + copied(name) + grammatical("a")
    clause += distant(inflect(verb[1], noun.gender, plural)) + translated(time[1])
    return f"{english} that {name} {verb[0]} {time[0]} {end[0]}", french + clause + end[1]


def motion(random: Random) -> Pair:
    """Anna and Marta arrived in Lyon on Monday: the participle agrees with the subject."""
    people = [_person(random) for _ in range(random.choice([1, 1, 2]))]
    verb, city, time = map(random.choice, (lexicon.MOTION, lexicon.CITIES, lexicon.TIMES))
    plural, gender = len(people) > 1, "f" if all(g == "f" for _, g in people) else "m"
    participle, preposition = verb[1].split()
    subject = copied(people[0][0])
    if plural:
        subject += grammatical("et") + copied(people[1][0])
    agree = distant if plural else agreement
    french = subject + agreement(_be(plural)[1]) + agree(inflect(participle, gender, plural))
    french += translated(preposition) + copied(city) + translated(time[1])
    return f"{' and '.join(name for name, _ in people)} {verb[0]} {city} {time[0]}", french


def predicate(random: Random) -> Pair:
    """The cup behind the house is empty: the adjective agrees with the subject, past another noun."""
    noun, plural = _thing(random), random.random() < 0.5
    english, french = noun_phrase("definite", noun, plural)
    place = _place(random, noun)
    end = _is_so(noun, plural, random.choice(lexicon.ADJECTIVES))
    return f"{english} {place[0]} {end[0]}", french + place[1] + end[1]


def mood(random: Random) -> Pair:
    """The sisters of Paul are tired."""
    noun, plural, name = random.choice(lexicon.PEOPLE), random.random() < 0.5, _person(random)[0]
    english, french = noun_phrase("definite", noun, plural)
    end = _is_so(noun, plural, random.choice(lexicon.MOODS))
    return f"{english} of {name} {end[0]}", french + _of(name) + copied(name) + end[1]


def possession(random: Random) -> Pair:
    """Vera has a big grey horse and two cats."""
    name, first, second = _person(random)[0], _belonging(random), _belonging(random)
    one = noun_phrase("indefinite", first, False, _maybe_adjective(random))
    many = noun_phrase("number", second, True, None, random.randint(2, 12))
    french = copied(name) + grammatical("a") + one[1] + grammatical("et") + many[1]
    return f"{name} has {one[0]} and {many[0]}", french


def negation(random: Random) -> Pair:
    """Oscar does not have a ladder: "n'a pas d'échelle"."""
    name, noun = _person(random)[0], _belonging(random)
    french = copied(name) + grammatical("n'a pas") + _of(noun.french) + translated(noun.french)
    return f"{name} does not have {noun_phrase('indefinite', noun)[0]}", french


def question(random: Random) -> Pair:
    """Where are the new keys of Irene?"""
    noun, plural, name = _belonging(random), random.random() < 0.5, _person(random)[0]
    english, french = noun_phrase("definite", noun, plural, _maybe_adjective(random))
    is_, est = _be(plural)
    french = translated("où") + agreement(est) + french + _of(name) + copied(name) + grammatical("?")
    return f"where {is_} {english} of {name}?", french


SENTENCES = (transitive, located, relative, relative, motion, predicate, mood, possession, negation, question)


def sentence_pair(random: Random) -> Pair:
    """Draws an English sentence and its French, with a capital at the beginning and a mark at the end."""
    english, french = random.choice(SENTENCES)(random)
    first = french[0]
    french[0] = Word(first.text[0].upper() + first.text[1:], first.difficulty)
    if english[-1] != "?":
        english, french = english + ".", french + grammatical(".")
    return english[0].upper() + english[1:], french


def translation(random: Random) -> SyntheticExample:
    """Draws an example in the columns of WMT15."""
    english, french = sentence_pair(random)
    target, spans = write(french)
    return SyntheticExample({"translation": {"en": english, "fr": target}}, english, target, spans)
