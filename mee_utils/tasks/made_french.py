"""Made translation: English sentences with their French, from a grammar that knows gender, number and elision.

Agreement is what makes the French hard, and its distance is known: in "Les maisons que Paul a vues hier sont blanches"
the article agrees with the next word ("agreement"), while the participle and the last adjective agree with a noun that
stands four and seven words before them ("distant_agreement"). A sentence is a list of `Word`s; `mee_utils.tasks.made.write`
joins them (an elided "l'" takes no space).
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from . import lexicon
from .lexicon import Adjective, Noun

VOWELS = "aeiouàâéèêëîïôûœ"
MUTE_H = ("homme", "horloge", "hôpital", "hôpitaux", "hôtel", "hiver")


class Word(NamedTuple):
    """One word of a made sentence and how hard it is to produce (a name of `made.DIFFICULTIES`)."""

    text: str
    difficulty: str = "grammatical"


def elides(word: str) -> bool:
    """Whether "le", "de" and "que" lose their vowel before this French word.

    >>> elides("école"), elides("homme"), elides("chat"), elides("Anna")
    (True, True, False, True)
    """
    return word.lower()[0] in VOWELS or word.lower().startswith(MUTE_H)


def inflect(base: str, gender: str, plural: bool) -> str:
    """Regular agreement of a participle: vu, vue, vus, vues."""
    return base + ("e" if gender == "f" else "") + ("s" if plural else "")


def article(kind: str, gender: str, plural: bool, following: str) -> str:
    """The French article ("definite" or "indefinite") before the word `following`."""
    if kind == "definite":
        if plural:
            return "les"
        return "l'" if elides(following) else {"m": "le", "f": "la"}[gender]
    return "des" if plural else {"m": "un", "f": "une"}[gender]


def of(name: str) -> list[Word]:
    """ "de Paul", "d'Anna"."""
    return [Word("d'" if elides(name) else "de", "agreement"), Word(name, "copied")]


def noun_phrase(
    kind: str, noun: Noun, plural: bool, adjective: Adjective | None = None, number: int = 0
) -> tuple[list[Word], list[Word]]:
    """Returns a noun phrase in English and in French.

    Args:
        kind: "definite", "indefinite" or "number".
        noun: the head noun.
        plural: its number.
        adjective: an optional adjective; it stands before or after its noun in French as French has it.
        number: the count, when `kind` is "number" (2 to 12).
    """
    english_words = ([Word(adjective.english)] if adjective else []) + [Word(noun.in_english(plural))]
    core = [Word(noun.in_french(plural), "translated")]
    if adjective:
        form = adjective.in_french(noun.gender, plural)
        if adjective.liaison and noun.gender == "m" and not plural and elides(core[0].text):
            form = adjective.liaison
        core.insert(0 if adjective.before else 1, Word(form, "agreement"))
    if kind == "number":
        english = [Word(lexicon.NUMBERS[number - 1])]
        french = [Word(lexicon.FRENCH_NUMBERS[number - 1], "translated")]
    elif kind == "definite":
        english = [Word("the")]
        french = [Word(article("definite", noun.gender, plural, core[0].text), "agreement")]
    else:
        english = [] if plural else [Word("an" if english_words[0].text[0] in "aeiou" else "a")]
        shortened = plural and adjective is not None and adjective.before
        french = [Word("de" if shortened else article("indefinite", noun.gender, plural, core[0].text), "agreement")]
    return english + english_words, french + core


def place_phrase(random: Random, of_what: Noun) -> tuple[list[Word], list[Word]]:
    """ "near the bridge" and "près du pont": "de" melts with "le"; nothing stands near itself."""
    english, french = random.choice(lexicon.WHERE)
    place = random.choice([place for place in lexicon.PLACES if place.english != of_what.english])
    noun_english, noun_french = noun_phrase("definite", place, False)
    words = [Word(text, "translated") for text in french.split()]
    if french.endswith(" de") and noun_french[0].text == "le":
        return [Word(english), *noun_english], [*words[:-1], Word("du", "agreement"), *noun_french[1:]]
    return [Word(english), *noun_english], [*words, *noun_french]


def _phrase(text: str, difficulty: str = "translated") -> list[Word]:
    return [Word(word, difficulty) for word in text.replace("'", "' ").split()]


def _person(random: Random) -> tuple[str, str]:
    gender = random.choice("mf")
    return random.choice(lexicon.FEMALE_NAMES if gender == "f" else lexicon.MALE_NAMES), gender


def _thing(random: Random) -> Noun:
    return random.choice(lexicon.THINGS if random.random() < 0.8 else lexicon.ANIMALS)


def _belonging(random: Random) -> Noun:
    """What a person can buy, have or lose; nobody owns a church."""
    return random.choice(lexicon.PORTABLE if random.random() < 0.8 else lexicon.ANIMALS)


def _maybe_adjective(random: Random) -> Adjective | None:
    return random.choice(lexicon.ADJECTIVES) if random.random() < 0.6 else None


def transitive(random: Random):
    """Paul found three small keys yesterday."""
    (name, _), verb, noun = _person(random), random.choice(lexicon.TRANSITIVE), _belonging(random)
    kind = random.choice(["definite", "indefinite", "number"])
    plural = kind == "number" or random.random() < 0.4
    english, french = noun_phrase(kind, noun, plural, _maybe_adjective(random), random.randint(2, 12))
    time = random.choice(lexicon.TIMES)
    return (
        [Word(name), Word(verb.english), *english, Word(time[0])],
        [Word(name, "copied"), Word("a"), Word(verb.participle, "translated"), *french, *_phrase(time[1])],
    )


def located(random: Random):
    """The old boats are near the bridge."""
    plural = random.random() < 0.5
    noun = _thing(random) if random.random() < 0.7 else random.choice(lexicon.PEOPLE)
    adjective = _maybe_adjective(random) if noun not in lexicon.PEOPLE else None
    english, french = noun_phrase("definite", noun, plural, adjective)
    place_english, place_french = place_phrase(random, noun)
    return (
        [*english, Word("are" if plural else "is"), *place_english],
        [*french, Word("sont" if plural else "est", "agreement"), *place_french],
    )


def relative(random: Random):
    """The houses that Paul saw yesterday are white: participle and adjective agree across the clause."""
    (name, _), verb, noun = _person(random), random.choice(lexicon.TRANSITIVE), _belonging(random)
    plural, time = random.random() < 0.5, random.choice(lexicon.TIMES)
    english, french = noun_phrase("definite", noun, plural)
    adjective = random.choice(lexicon.ADJECTIVES)
    return (
        [*english, Word("that"), Word(name), Word(verb.english), Word(time[0]), Word("are" if plural else "is"),
         Word(adjective.english)],
        [*french, Word("qu'" if elides(name) else "que", "agreement"), Word(name, "copied"), Word("a"),
         Word(inflect(verb.participle, noun.gender, plural), "distant_agreement"), *_phrase(time[1]),
         Word("sont" if plural else "est", "distant_agreement"),
         Word(adjective.in_french(noun.gender, plural), "distant_agreement")],
    )  # fmt: skip


def motion(random: Random):
    """Anna and Marta arrived in Lyon on Monday: the participle agrees with the subject."""
    people = [_person(random) for _ in range(random.choice([1, 1, 2]))]
    verb, city, time = random.choice(lexicon.MOTION), random.choice(lexicon.CITIES), random.choice(lexicon.TIMES)
    plural, gender = len(people) > 1, "f" if all(g == "f" for _, g in people) else "m"
    participle, preposition = verb.participle.split()
    subject_english, subject_french = [Word(people[0][0])], [Word(people[0][0], "copied")]
    if plural:
        subject_english += [Word("and"), Word(people[1][0])]
        subject_french += [Word("et"), Word(people[1][0], "copied")]
    return (
        [*subject_english, Word(verb.english), Word(city), Word(time[0])],
        [*subject_french, Word("sont" if plural else "est", "agreement"),
         Word(inflect(participle, gender, plural), "distant_agreement" if plural else "agreement"),
         Word(preposition, "translated"), Word(city, "copied"), *_phrase(time[1])],
    )  # fmt: skip


def predicate(random: Random):
    """The cup behind the house is empty: the adjective agrees with the subject, past another noun."""
    noun, plural = _thing(random), random.random() < 0.5
    english, french = noun_phrase("definite", noun, plural)
    place_english, place_french = place_phrase(random, noun)
    adjective = random.choice(lexicon.ADJECTIVES)
    return (
        [*english, *place_english, Word("are" if plural else "is"), Word(adjective.english)],
        [*french, *place_french, Word("sont" if plural else "est", "distant_agreement"),
         Word(adjective.in_french(noun.gender, plural), "distant_agreement")],
    )  # fmt: skip


def mood(random: Random):
    """The sisters of Paul are tired."""
    noun, plural, (name, _) = random.choice(lexicon.PEOPLE), random.random() < 0.5, _person(random)
    english, french = noun_phrase("definite", noun, plural)
    adjective = random.choice(lexicon.MOODS)
    return (
        [*english, Word("of"), Word(name), Word("are" if plural else "is"), Word(adjective.english)],
        [*french, *of(name), Word("sont" if plural else "est", "distant_agreement"),
         Word(adjective.in_french(noun.gender, plural), "distant_agreement")],
    )  # fmt: skip


def possession(random: Random):
    """Vera has a big grey horse and two cats."""
    (name, _), first, second = _person(random), _belonging(random), _belonging(random)
    first_phrase = noun_phrase("indefinite", first, False, _maybe_adjective(random))
    second_phrase = noun_phrase("number", second, True, None, random.randint(2, 12))
    return (
        [Word(name), Word("has"), *first_phrase[0], Word("and"), *second_phrase[0]],
        [Word(name, "copied"), Word("a"), *first_phrase[1], Word("et"), *second_phrase[1]],
    )


def negation(random: Random):
    """Oscar does not have a ladder: "n'a pas d'échelle"."""
    (name, _), noun = _person(random), _belonging(random)
    english, _ = noun_phrase("indefinite", noun, False)
    return (
        [Word(name), Word("does not have"), *english],
        [Word(name, "copied"), Word("n'"), Word("a"), Word("pas"), Word("d'" if elides(noun.french) else "de", "agreement"),
         Word(noun.french, "translated")],
    )  # fmt: skip


def question(random: Random):
    """Where are the new keys of Irene?"""
    noun, plural, (name, _) = _belonging(random), random.random() < 0.5, _person(random)
    english, french = noun_phrase("definite", noun, plural, _maybe_adjective(random))
    return (
        [Word("where"), Word("are" if plural else "is"), *english, Word("of"), Word(name), Word("?")],
        [Word("où", "translated"), Word("sont" if plural else "est", "agreement"), *french, *of(name), Word("?")],
    )


SENTENCES = (transitive, located, relative, relative, motion, predicate, mood, possession, negation, question)


def sentence_pair(random: Random) -> tuple[list[Word], list[Word]]:
    """Draws one English sentence and its French, as words without their final point or capital."""
    return random.choice(SENTENCES)(random)
