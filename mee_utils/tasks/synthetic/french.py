"""Synthetic translation: English sentences with their French, from a grammar with gender, number and elision.

Agreement is what makes the French hard, and its distance is known: in "Les maisons que Paul a vues hier
sont blanches" the article agrees with the next word ("agreement"); the participle and the last adjective
agree with a noun four and seven words before them ("distant_agreement").
"""

from random import Random

from . import lexicon
from .lexicon import Adjective, Noun
from .words import SyntheticExample, Word, words, write

VOWELS = "aeiouàâéèêëîïôûœ"
MUTE_H = ("homme", "horloge", "hôpital", "hôpitaux", "hôtel", "hiver")
TEMPLATES = {row["kind"]: (row["english"], row["french"]) for row in lexicon.rows("sentences")}
Pair = tuple[str, list[Word]]  # a text in English, and its French


def elides(word: str) -> bool:
    """Whether "le", "de" and "que" lose their vowel before this French word.

    >>> elides("école"), elides("homme"), elides("chat"), elides("Anna")
    (True, True, False, True)
    """
    return word.lower()[0] in VOWELS or word.lower().startswith(MUTE_H)


def elided(article: str, word: str) -> str:
    """ "le", "la", "de" or "que" as it is before a French word."""
    return article[:-1] + "'" if elides(word) else article


def inflect(participle: str, gender: str, plural: bool) -> str:
    """Regular agreement of a participle: vu, vue, vus, vues."""
    return participle + ("e" if gender == "f" else "") + ("s" if plural else "")


def say(kind: str, **parts: str | tuple) -> Pair:
    """Fills both templates of a kind of sentence; parts are (English, French), or a text for both."""
    english, french = TEMPLATES[kind]
    in_english = {}
    in_french = {}
    for name, part in parts.items():
        in_english[name], in_french[name] = (part, part) if isinstance(part, str) else part
    return english.format(**in_english), words(french, **in_french)


def _be(plural: bool) -> tuple[str, str]:
    return ("are", "sont") if plural else ("is", "est")


def _is_so(noun: Noun, plural: bool, adjective: Adjective) -> Pair:
    """ "is white" and "est blanche", where the subject stands further before."""
    return say("is_so", are=_be(plural), white=(adjective.english, adjective.in_french(noun.gender, plural)))


def noun_phrase(kind: str, noun: Noun, plural=False, adjective: Adjective | None = None, number=0) -> Pair:
    """A "definite" or "indefinite" noun phrase, or one with a `number` from 2 to 12, in both languages."""
    english = noun.in_english(plural)
    french = words("{0:translated}", noun.in_french(plural))
    before = adjective is not None and adjective.position == "before"
    if adjective:
        form = adjective.in_french(noun.gender, plural)
        if adjective.liaison and noun.gender == "m" and not plural and elides(noun.french):
            form = adjective.liaison
        english = f"{adjective.english} {english}"
        french = words("{0:agreement} {1}" if before else "{1} {0:agreement}", form, french)
    if kind == "number":
        three, trois = lexicon.NUMBERS[number - 1]
        return f"{three} {english}", words("{0:translated} {1}", trois, french)
    the, le = _articles(kind == "definite", noun.gender, plural, english, french[0].text, before)
    return f"{the} {english}".lstrip(), words("{0:agreement} {1}", le, french)


def _articles(
    definite: bool, gender: str, plural: bool, english: str, first_french: str, before: bool
) -> tuple[str, str]:
    """The articles in both languages, before the English words and the first French one.

    `before`: whether an adjective stands before the French noun ("de petites clés").
    """
    if definite:
        return "the", "les" if plural else elided({"m": "le", "f": "la"}[gender], first_french)
    if plural:
        return "", "de" if before else "des"
    return "an" if english[0] in "aeiou" else "a", {"m": "un", "f": "une"}[gender]


def _place(random: Random, of_what: Noun) -> Pair:
    """ "near the bridge" and "près du pont": "de le" becomes "du"; nothing stands near itself."""
    english, french = random.choice(lexicon.WHERE)
    place = random.choice([place for place in lexicon.PLACES if place.english != of_what.english])
    place_english, place_french = noun_phrase("definite", place)
    if french.endswith(" de") and place_french[0].text == "le":
        french = french.removesuffix(" de")
        place_french = words("{0:agreement}", "du") + place_french[1:]
    return f"{english} {place_english}", words("{0:translated} {1}", french, place_french)


def _name(random: Random) -> str:
    return random.choice(random.choice([lexicon.MALE_NAMES, lexicon.FEMALE_NAMES]))


def _thing(random: Random, things: tuple[Noun, ...] = lexicon.PORTABLE) -> Noun:
    """A thing or an animal, by default one that a person can buy, have or lose: no church."""
    return random.choice(things if random.random() < 0.8 else lexicon.ANIMALS)


def _maybe_adjective(random: Random) -> Adjective | None:
    return random.choice(lexicon.ADJECTIVES) if random.random() < 0.6 else None


def transitive(random: Random) -> Pair:
    """Paul found three small keys yesterday."""
    name = _name(random)
    verb = random.choice(lexicon.TRANSITIVE)
    noun = _thing(random)
    kind = random.choice(["definite", "indefinite", "number"])
    plural = kind == "number" or random.random() < 0.4
    it = noun_phrase(kind, noun, plural, _maybe_adjective(random), random.randint(2, 12))
    return say("transitive", name=name, verb=verb, it=it, time=random.choice(lexicon.TIMES))


def located(random: Random) -> Pair:
    """The old boats are near the bridge."""
    plural = random.random() < 0.5
    noun = _thing(random, lexicon.THINGS) if random.random() < 0.7 else random.choice(lexicon.PEOPLE)
    it = noun_phrase("definite", noun, plural, None if noun.kind == "person" else _maybe_adjective(random))
    return say("located", it=it, are=_be(plural), there=_place(random, noun))


def relative(random: Random) -> Pair:
    """The houses that Paul saw yesterday are white: participle and adjective agree across the clause."""
    name = _name(random)
    saw, vu = random.choice(lexicon.TRANSITIVE)
    noun = _thing(random)
    plural = random.random() < 0.5
    time = random.choice(lexicon.TIMES)
    it = noun_phrase("definite", noun, plural)
    so = _is_so(noun, plural, random.choice(lexicon.ADJECTIVES))
    verb = (saw, inflect(vu, noun.gender, plural))
    return say("relative", it=it, que=elided("que", name), name=name, verb=verb, time=time, so=so)


def motion(random: Random) -> Pair:
    """Anna and Marta arrived in Lyon on Monday: the participle agrees with the subject."""
    names = [_name(random) for _ in range(random.choice([1, 1, 2]))]
    arrived, in_french = random.choice(lexicon.MOTION)
    city = random.choice(lexicon.CITIES)
    time = random.choice(lexicon.TIMES)
    plural = len(names) > 1
    gender = "f" if set(names) <= set(lexicon.FEMALE_NAMES) else "m"
    participle, to = in_french.split()
    who = words("{0:copied} et {1:copied}" if plural else "{0:copied}", *names)
    agrees = [Word(inflect(participle, gender, plural), "distant_agreement" if plural else "agreement")]
    parts = {
        "who": (" and ".join(names), who),
        "verb": (arrived, agrees),
        "to": to,
        "city": city,
        "time": time,
    }
    return say("motion", are=_be(plural), **parts)


def predicate(random: Random) -> Pair:
    """The cup behind the house is empty: the adjective agrees with the subject, past another noun."""
    noun = _thing(random, lexicon.THINGS)
    plural = random.random() < 0.5
    it = noun_phrase("definite", noun, plural)
    there = _place(random, noun)
    so = _is_so(noun, plural, random.choice(lexicon.ADJECTIVES))
    return say("predicate", it=it, there=there, so=so)


def mood(random: Random) -> Pair:
    """The sisters of Paul are tired."""
    noun = random.choice(lexicon.PEOPLE)
    plural = random.random() < 0.5
    name = _name(random)
    it = noun_phrase("definite", noun, plural)
    so = _is_so(noun, plural, random.choice(lexicon.MOODS))
    return say("mood", it=it, de=elided("de", name), name=name, so=so)


def possession(random: Random) -> Pair:
    """Vera has a big grey horse and two cats."""
    name = _name(random)
    first = _thing(random)
    second = _thing(random)
    one = noun_phrase("indefinite", first, False, _maybe_adjective(random))
    many = noun_phrase("number", second, True, None, random.randint(2, 12))
    return say("possession", name=name, one=one, many=many)


def negation(random: Random) -> Pair:
    """Oscar does not have a ladder: "n'a pas d'échelle"."""
    name = _name(random)
    noun = _thing(random)
    english, _ = noun_phrase("indefinite", noun)
    return say("negation", name=name, de=elided("de", noun.french), it=(english, noun.french))


def question(random: Random) -> Pair:
    """Where are the new keys of Irene?"""
    noun = _thing(random)
    plural = random.random() < 0.5
    name = _name(random)
    it = noun_phrase("definite", noun, plural, _maybe_adjective(random))
    parts = {"where": ("where", "où"), "are": _be(plural), "it": it}
    return say("question", **parts, de=elided("de", name), name=name)


SENTENCES = (transitive, located, relative, relative, motion, predicate, mood, possession, negation, question)


def sentence_pair(random: Random) -> Pair:
    """Draws an English sentence and its French, with a capital at the beginning and a mark at the end."""
    english, french = random.choice(SENTENCES)(random)
    first = french[0].text
    french[0] = french[0]._replace(text=first[0].upper() + first[1:])
    if not english.endswith("?"):
        english += "."
        french += words(".")
    return english[0].upper() + english[1:], french


def translation(random: Random) -> SyntheticExample:
    """Draws an example in the columns of WMT15."""
    english, french = sentence_pair(random)
    target, spans = write(french)
    return SyntheticExample({"translation": {"en": english, "fr": target}}, english, target, spans)
