"""Synthetic summarization: reports of what people bought, found or lost, and their summaries."""

from itertools import chain
from random import Random

from . import lexicon
from .people import NUMBERS, people, tell
from .words import SyntheticExample, Word, words, write

DAYS = lexicon.english("day")
WEATHER = lexicon.english("weather")
OPENINGS = lexicon.english("opening")
(SUMMARY,) = lexicon.english("summary")
DEEDS = [pair.split(" or ") for pair in lexicon.english("deed")]


def _event(random: Random) -> tuple[list[str], list[Word]]:
    """Two people do the same with the same things; a third does the opposite, not summarized."""
    first, second, third = people(random, 3)
    things = random.choice(lexicon.PORTABLE).in_english(True)
    city = random.choice(lexicon.CITIES)
    day = random.choice(DAYS)
    place = random.choice(lexicon.MEETING_PLACES).english
    deed, opposite = random.sample(random.choice(DEEDS), 2)
    counts = [random.randint(2, 10) for _ in range(3)]
    opening = random.choice(OPENINGS).format(day=day, place=place, city=city)
    body = [
        f"{person.name} {verb} {NUMBERS[count]} {things}."
        for person, verb, count in zip((first, second, third), (deed, deed, opposite), counts, strict=True)
    ]
    summarized = {first.name: body[0], second.name: body[1]}
    random.shuffle(body)
    body.insert(random.randint(0, 3), random.choice(WEATHER))
    if random.random() < 0.5:
        body.insert(random.randint(0, 4), tell(random, third, random.choice(["job", "dish"])))
    earlier, later = sorted(summarized, key=lambda name: body.index(summarized[name]))
    summary = words(
        SUMMARY,
        earlier,
        later,
        deed=[Word(deed, "one_fact")],
        total=NUMBERS[counts[0] + counts[1]],
        things=things,
        place=place,
        city=city,
        day=day,
    )
    if counts[0] != counts[1]:
        most = first if counts[0] > counts[1] else second
        summary += words("{0.name:compared} {1} the most .", most, [Word(deed, "grammatical")])
    return [opening, *body], summary


def report(random: Random, column: str, events: int) -> SyntheticExample:
    """Draws a report of one or more events, in a `column`, and its summary, event by event."""
    drawn = [_event(random) for _ in range(events)]
    document = " ".join(chain.from_iterable(sentences for sentences, _ in drawn))
    target, spans = write(list(chain.from_iterable(summary for _, summary in drawn)))
    return SyntheticExample({column: document, "summary": target}, document, target, spans)
