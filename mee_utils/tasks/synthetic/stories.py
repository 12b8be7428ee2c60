"""Synthetic summarization: reports of what people bought, found or lost, and their summaries."""

from itertools import chain
from random import Random

from . import lexicon
from .people import NUMBERS, people, tell
from .words import SyntheticExample, Word, words, write

DAYS, WEATHER, OPENINGS, (SUMMARY,) = map(lexicon.english, ("day", "weather", "opening", "summary"))
DEEDS = [pair.split(" or ") for pair in lexicon.english("deed")]


def _event(random: Random) -> tuple[list[str], list[Word]]:
    """Two people do the same with the same things; a third does the opposite, not summarized."""
    first, second, third = people(random, 3)
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
        body.insert(random.randint(0, 4), tell(random, third, random.choice(["job", "dish"])))
    earlier, later = sorted(same, key=lambda name: body.index(same[name]))
    facts = {"deed": [Word(deed, "one_fact")], "total": NUMBERS[sum(counts[:2])], "things": things}
    summary = words(SUMMARY, earlier, later, **facts, place=place, city=city, day=day)
    if counts[0] != counts[1]:
        most = first if counts[0] > counts[1] else second
        summary += words("{0.name:compared} {1} the most .", most, [Word(deed, "grammatical")])
    return [opening, *body], summary


def report(random: Random, column: str, events: int) -> SyntheticExample:
    """Draws a report of one or more events, in a `column`, and its summary, event by event."""
    stories, summaries = zip(*(_event(random) for _ in range(events)), strict=False)
    document, (target, spans) = " ".join(chain(*stories)), write([*chain(*summaries)])
    return SyntheticExample({column: document, "summary": target}, document, target, spans)
