"""Synthetic data: correct French, answers that follow from the text, known difficulty, disjoint splits."""

import itertools
import re
from random import Random

import pytest

from mee_utils.tasks.synthetic import french as grammar
from mee_utils.tasks.synthetic import generator, lexicon
from mee_utils.tasks.synthetic.lexicon import ADJECTIVES, ANIMALS, PEOPLE, PLACES, THINGS, Adjective, Noun
from mee_utils.tasks.synthetic.words import DIFFICULTIES, write

NUMBERS = [english for english, _ in lexicon.NUMBERS]
TASKS = list(generator.GENERATORS)
SPLITS = ("train", "validation", "test")
BY_FRENCH = {
    noun.in_french(plural): (noun, plural)
    for noun in THINGS + ANIMALS + PEOPLE + PLACES
    for plural in (True, False)
}


def draw(task, count=400, split="train", seed=0):
    return list(itertools.islice(generator.examples(task, split, seed), count))


def phrase(*arguments, **options):
    return write(grammar.noun_phrase(*arguments, **options)[1])[0]


def noun(french):
    return next(n for n in THINGS + ANIMALS + PEOPLE + PLACES if n.french == french)


def adjective(english):
    return next(a for a in ADJECTIVES if a.english == english)


@pytest.mark.parametrize(
    ("kind", "french", "plural", "english_adjective", "expected"),
    [
        ("definite", "pomme", False, None, "la pomme"),
        ("definite", "vélo", False, None, "le vélo"),
        ("definite", "échelle", False, None, "l'échelle"),
        ("definite", "horloge", False, None, "l'horloge"),
        ("definite", "homme", True, None, "les hommes"),
        ("indefinite", "cheval", True, "black", "des chevaux noirs"),
        ("indefinite", "chien", True, "small", "de petits chiens"),
        ("indefinite", "maison", False, "white", "une maison blanche"),
        ("definite", "arbre", False, "old", "le vieil arbre"),
        ("definite", "arbre", True, "old", "les vieux arbres"),
        ("indefinite", "oiseau", False, "beautiful", "un bel oiseau"),
        ("indefinite", "outil", False, "new", "un nouvel outil"),
        ("definite", "souris", True, "grey", "les souris grises"),
        ("definite", "île", False, None, "l'île"),
    ],
)
def test_noun_phrases_agree_and_elide(kind, french, plural, english_adjective, expected):
    assert (
        phrase(kind, noun(french), plural, adjective(english_adjective) if english_adjective else None)
        == expected
    )


@pytest.mark.parametrize(
    ("gender", "plural", "expected"),
    [("m", False, "vu"), ("f", False, "vue"), ("m", True, "vus"), ("f", True, "vues")],
)
def test_participles_agree(gender, plural, expected):
    assert grammar.inflect("vu", gender, plural) == expected


def test_de_melts_with_le_and_elides_before_vowels():
    sentences = " ".join(e.target for e in draw("translation", 3000))
    assert "près du pont" in sentences and "loin de la " in sentences
    assert not re.search(r"\bde (le|les) \b", sentences)
    assert not re.search(r"\b(le|la|de|que|je|ne) [aeiouàâéèêîôœ]", sentences)


def test_in_a_relative_clause_participle_verb_and_adjective_agree_with_the_noun():
    pattern = re.compile(r"^(L'|Le |La |Les )(\S+) qu(?:e |')(\S+) a (\S+) (.+) (est|sont) (\S+)\.$")
    found = 0
    for example in draw("translation", 3000):
        match = pattern.match(example.target)
        if not match or match[2] not in BY_FRENCH:
            continue
        head, _ = BY_FRENCH[match[2]]
        plural = match[1] == "Les "
        found += 1
        assert (match[6] == "sont") == plural
        assert match[4].endswith(
            "es"
            if head.gender == "f" and plural
            else "s"
            if plural
            else "e"
            if head.gender == "f"
            else ("é", "u", "t", "i")
        )
        forms = {a.in_french(head.gender, plural) for a in ADJECTIVES}
        assert match[7] in forms
    assert found > 100


def test_mixed_subjects_take_the_masculine_and_female_ones_the_feminine():
    pattern = re.compile(r"^(\S+) et (\S+) sont (\S+) ")
    seen = set()
    for example in draw("translation", 3000):
        if match := pattern.match(example.target):
            female = all(name in lexicon.FEMALE_NAMES for name in match.group(1, 2))
            assert match[3].endswith("ées") == female or match[3] in (
                "parties",
                "parti" + "s",
                "revenues",
                "revenus",
            )
            assert match[3].endswith("es") == female
            seen.add(female)
    assert seen == {True, False}


@pytest.mark.parametrize("task", TASKS)
def test_spans_cover_the_target_word_by_word(task):
    for example in draw(task, 60):
        covered = "".join(example.target[s.start : s.end] for s in example.spans)
        assert covered.replace(" ", "") == example.target.replace(" ", "")
        assert {s.difficulty for s in example.spans} <= set(DIFFICULTIES)


@pytest.mark.parametrize("task", TASKS)
def test_splits_do_not_overlap_whatever_the_seed(task):
    count = 30 if task.startswith("long") else 250
    sets = {
        (split, seed): {e.source for e in draw(task, count, split, seed)}
        for split in SPLITS
        for seed in (0, 1)
    }
    for (first, a), (second, b) in itertools.combinations(sets.items(), 2):
        if first[0] != second[0]:
            assert not a & b


def test_the_same_seed_gives_the_same_examples_and_another_seed_others():
    assert draw("translation", 50) == draw("translation", 50)
    assert draw("translation", 50) != draw("translation", 50, seed=1)


def test_one_fact_answers_stand_in_the_context():
    for example in draw("question_answering", 600):
        kinds = {s.difficulty for s in example.spans}
        if kinds & {"one_fact", "two_facts"}:
            last_word = example.target.split()[-1]
            assert last_word in example.columns["context"]


def test_counted_answers_are_the_count_in_the_context():
    found = 0
    for example in draw("question_answering", 1500):
        if match := re.match(r"How many people live in (\S+)\?", example.columns["question"]):
            sentences = example.columns["context"].split(". ")
            living = sum(f"lives in {match[1]}" in s or f"has a flat in {match[1]}" in s for s in sentences)
            assert NUMBERS[living - 1] == example.target
            found += 1
    assert found > 100


def test_compared_answers_own_more_or_fewer():
    found = 0
    for example in draw("question_answering", 1500):
        if match := re.match(r"Who owns (more|fewer) (\S+), (\S+) or (\S+)\?", example.columns["question"]):
            owned = dict(
                re.findall(r"(\S+) (?:owns|keeps) (\S+) \S+ " + match[2], example.columns["context"])
            )
            counts = {name: NUMBERS.index(owned[name]) for name in match.group(3, 4)}
            pick = max if match[1] == "more" else min
            assert example.target == pick(counts, key=counts.get)
            found += 1
    assert found > 100


def test_summaries_add_up():
    for example in draw("summarization", 400):
        first, second, deed, total, thing = re.match(
            r"(\S+) and (\S+) (gave away|\S+) (\S+) (\S+) at", example.target
        ).groups()
        counts = dict(re.findall(rf"(\S+) {deed} (\S+) {thing}\.", example.columns["dialogue"]))
        assert NUMBERS.index(counts[first]) + NUMBERS.index(counts[second]) + 2 == NUMBERS.index(total) + 1


def test_answer_start_points_at_the_answer():
    for example in draw("question_answering", 3000):
        start, text = example.columns["answers"]["answer_start"][0], example.target
        if any(span.difficulty == "counted" for span in example.spans):
            assert start == -1
        else:
            assert start >= 0 and example.columns["context"][start : start + len(text)] == text


@pytest.mark.parametrize("task", TASKS)
def test_a_source_has_one_target(task):
    drawn = draw(task, 40 if task.startswith("long") else 3000)
    assert len({example.source for example in drawn}) == len(drawn)


def test_nothing_stands_near_itself_and_nobody_owns_a_church():
    immovable = {n.english for n in set(THINGS) - set(lexicon.PORTABLE)}
    places = {n.english for n in PLACES}
    located = owned = 0
    for example in draw("translation", 6000):
        if match := re.match(r"The (?:\w+ )?(\w+) (?:is|are) [\w ]+ the (\w+)\.$", example.source):
            located += match[2] in places
            assert match[1] != match[2]
        if match := re.search(
            r"(?:has|does not have|bought|found|sold) (?:an? |the )?(?:\w+ )*?(\w+)(?: and|\.)",
            example.source,
        ):
            owned += 1
            assert match[1] not in immovable
    assert located > 100 and owned > 100


def test_a_summary_names_people_in_the_order_of_the_report():
    for example in draw("summarization", 400):
        first, second, deed = re.match(r"(\S+) and (\S+) (gave away|\S+) ", example.target).groups()
        assert example.source.index(f"{first} {deed}") < example.source.index(f"{second} {deed}")


def test_the_world_has_hundreds_of_word_types():
    words = {
        w
        for t in TASKS[:3]
        for e in draw(t, 4000)
        for text in (e.target, str(e.columns))
        for w in re.findall(r"[^\W\d_]+", text)
    }
    assert 600 <= len(words) <= 1500


def test_no_two_adjectives_or_nouns_share_an_english_word():
    english = [n.english for n in THINGS + ANIMALS]
    assert len(english) == len(set(english))
    assert all(isinstance(n, Noun) and n.gender in "mf" for n in THINGS + ANIMALS + PEOPLE + PLACES)
    assert all(isinstance(a, Adjective) and a.masculine for a in ADJECTIVES)


def test_nouns_that_look_plural_are_declared():
    rows = [n for n in THINGS + ANIMALS + PEOPLE + PLACES if n.french.endswith(("s", "x", "z"))]
    assert all(n.in_french(True) == n.french for n in rows)
    endings = [n for n in THINGS + ANIMALS + PEOPLE + PLACES if n.french.endswith(("eau", "al"))]
    assert endings and all(n.in_french(True).endswith("x") for n in endings)


def test_sentences_begin_with_a_capital_and_end_with_a_mark():
    random = Random(0)
    for _ in range(300):
        english, french = grammar.sentence_pair(random)
        for text in (english, write(french)[0]):
            assert text[0].isupper() and text[-1] in ".?" and "  " not in text


def test_sisters_are_women_and_brothers_men():
    found = 0
    for example in draw("question_answering", 2500):
        for name, relation in re.findall(r"(\S+) is the (sister|brother) of", example.columns["context"]):
            assert name in (lexicon.FEMALE_NAMES if relation == "sister" else lexicon.MALE_NAMES)
            found += 1
    assert found > 100
