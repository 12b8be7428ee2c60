"""Synthetic data: correct French, answers that a reader finds, known difficulty, disjoint splits."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from mee_utils.tasks.loading import load_lesson, load_task
from mee_utils.tasks.synthetic import french as grammar
from mee_utils.tasks.synthetic import generator, lexicon, stored
from mee_utils.tasks.synthetic.lexicon import ADJECTIVES, ANIMALS, PEOPLE, PLACES, THINGS, Adjective, Noun
from mee_utils.tasks.synthetic.questions import LESSONS
from mee_utils.tasks.synthetic.words import DIFFICULTIES, write

NUMBERS = [english for english, _ in lexicon.NUMBERS]
TASKS = list(generator.GENERATORS)
QUESTIONS = ["question_answering", *LESSONS]
PLAIN = ["pairs", "same_fact", "several_facts", "relations", "cities", "owners", "holders"]
SPLITS = ("train", "validation", "test")
BY_FRENCH = {
    noun.in_french(plural): (noun, plural)
    for noun in THINGS + ANIMALS + PEOPLE + PLACES
    for plural in (True, False)
}


DRAWN = {}  # (task, split, seed) -> the examples so far, and what draws further ones


def draw(task, count=400, split="train", seed=0):
    """The first examples of a split; each is drawn once for all tests."""
    key = (task, split, seed)
    if key not in DRAWN:
        DRAWN[key] = ([], generator.examples(*key))
    examples, further = DRAWN[key]
    examples.extend(itertools.islice(further, max(0, count - len(examples))))
    return examples[:count]


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


@pytest.mark.parametrize("task", [*TASKS, *LESSONS])
def test_spans_cover_the_target_word_by_word(task):
    for example in draw(task, 60):
        covered = "".join(example.target[s.start : s.end] for s in example.spans)
        assert covered.replace(" ", "") == example.target.replace(" ", "")
        assert {s.difficulty for s in example.spans} <= set(DIFFICULTIES)


@pytest.mark.parametrize("task", [*TASKS, *LESSONS])
def test_splits_do_not_overlap_whatever_the_seed(task):
    count = 30 if task.startswith("long") or task in LESSONS else 250
    sets = {
        (split, seed): {e.source for e in draw(task, count, split, seed)}
        for split in SPLITS
        for seed in (0, 1)
    }
    for (first, a), (second, b) in itertools.combinations(sets.items(), 2):
        if first[0] != second[0]:
            assert not a & b


def test_the_same_seed_gives_the_same_examples_and_another_seed_others():
    anew = list(itertools.islice(generator.examples("translation", "train", 0), 50))
    assert draw("translation", 50) == anew
    assert draw("translation", 50) != draw("translation", 50, seed=1)


def test_summaries_add_up():
    for example in draw("summarization", 400):
        first, second, deed, total, thing = re.match(
            r"(\S+) and (\S+) (gave away|\S+) (\S+) (\S+) at", example.target
        ).groups()
        counts = dict(re.findall(rf"(\S+) {deed} (\S+) {thing}\.", example.columns["dialogue"]))
        assert NUMBERS.index(counts[first]) + NUMBERS.index(counts[second]) + 2 == NUMBERS.index(total) + 1


@pytest.mark.parametrize("task", [*TASKS, *LESSONS])
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


STATED = (  # the wordings of a context, written here once more: what is stated, and of whom
    (r"(\w+) lives in (\w+)", "city"),
    (r"(\w+) has a flat in (\w+)", "city"),
    (r"(\w+) works as an? (\w+)", "job"),
    (r"(\w+) is an? (\w+)", "job"),
    (r"(\w+) likes (\w+)", "dish"),
    (r"Every day (\w+) eats (\w+)", "dish"),
    (r"(\w+) owns (\w+ \w+ \w+)", "goods"),
    (r"At home (\w+) keeps (\w+ \w+ \w+)", "goods"),
    (r"(\w+) went to (?P<destination>\w+) by (?P<transport>\w+) in (?P<month>\w+)", "trip"),
    (r"(\w+) made a journey in (?P<month>\w+), by (?P<transport>\w+) to (?P<destination>\w+)", "trip"),
)
RELATED = r"The (?P<relation>\w+) of (?P<of>\w+) is (?P<who>\w+)"
ASKED = {  # a question of one person's fact, and the verb of its answer
    r"Where does (.+) live\?": ("city", "lives in"),
    r"What is the job of (.+)\?": ("job", "is"),
    r"What does (.+) like to eat\?": ("dish", "likes"),
    r"What does (.+) own\?": ("goods", "owns"),
    r"How did (.+) travel\?": ("transport", "went by"),
    r"When did (.+) travel\?": ("month", "went in"),
    r"Where did (.+) go\?": ("destination", "went to"),
}


def words(difficulty, text):
    return [(word, difficulty) for word in text.split()]


class Reader:
    """Reads a context and answers questions about it, by rules of its own.

    Answers are lists of (word, difficulty); `form` is that of the last question. A context that states
    anything twice or in an unknown way is an error, as is a question with no answer or with two.
    """

    def __init__(self, context):
        self.facts = {}
        self.related = {}
        self.people = set()
        for sentence in re.findall(r"[^.]+\.", context):
            sentence = sentence.strip()[:-1]
            forms = (r"(?P<who>\w+) is the (?P<relation>\w+) of (?P<of>\w+)", RELATED)
            if match := next(filter(None, (re.fullmatch(form, sentence) for form in forms)), None):
                who, relation, of = match.group("who", "relation", "of")
                assert (relation, of) not in self.related, "two people are meant"
                assert who != of
                self.related[relation, of] = who
                self.people |= {who, of}
                continue
            (found,) = [(m, what) for form, what in STATED if (m := re.fullmatch(form, sentence))]
            match, what = found
            stated = match.groupdict() if what == "trip" else {what: match[2]}
            self.people.add(match[1])
            for fact, value in stated.items():
                assert (fact, match[1]) not in self.facts, "stated twice"
                self.facts[fact, match[1]] = value

    def of_all(self, fact):
        """Everybody of whom the context states a fact, in its order."""
        return {name: value for (what, name), value in self.facts.items() if what == fact}

    def answers(self, questions):
        """For each question the words of its answer in a sentence, and of its bare value where it has one."""
        return [self.answer(question.strip()) for question in re.findall(r"[^?]+\?", questions)]

    def answer(self, question):
        """The words of a sentence, and of the bare value; they have the difficulties that the words have."""
        if match := re.fullmatch(r"Where do (.+) live\?", question):
            return self.all_cities(match[1].split(", "))
        if match := re.fullmatch(r"Who lives in (\w+)\?", question):
            return self.inhabitant(match[1])
        if match := re.fullmatch(r"How many people live in (\w+)\?", question):
            return self.count(match[1])
        if match := re.fullmatch(r"Who owns (more|fewer) (\w+), (\w+) or (\w+)\?", question):
            return self.compare(*match.groups())
        if match := re.fullmatch(r"Who owns (\w+) (\w+)\?", question):
            return self.holder(*match.groups())
        if match := re.fullmatch(r"Who is the (\w+) of (\w+)\?", question):
            self.form = "relation"
            name = self.related[match.groups()]
            return self.hop(*match.groups()) + words("grammatical", "."), words("one_fact", name)
        ((match, fact, verb),) = [
            (m, *about) for form, about in ASKED.items() if (m := re.fullmatch(form, question))
        ]
        return self.fact(match[1], fact, verb)

    def listed(self, names):
        found = words("one_fact", names[0])
        for name in names[1:-1]:
            found += words("grammatical", ",") + words("one_fact", name)
        return found + (words("grammatical", "and") + words("one_fact", names[-1])) * (len(names) > 1)

    def hop(self, relation, of):
        who = self.related[relation, of]
        found = words("grammatical", "The") + words("copied", f"{relation} of {of}")
        return found + words("grammatical", "is") + words("one_fact", who)

    def fact(self, whose, fact, verb):
        self.form = "one fact"
        name = whose
        start = []
        hard = "one_fact"
        if match := re.fullmatch(r"the (\w+) of (\w+)", whose):
            self.form, hard = "two facts", "two_facts"
            name = self.related[match.groups()]
            start = self.hop(*match.groups()) + words("grammatical", "and")
        value = self.facts[fact, name]
        number, *goods = value.split()
        said = words("one_fact", number) + words("copied", " ".join(goods))
        if fact == "job":
            said = words("one_fact", "an" if value[0] in "aeiou" else "a") + said
        sentence = words("copied", name) + words("grammatical", verb) + said + words("grammatical", ".")
        return start + sentence, None if goods else words(hard, value)

    def inhabitant(self, city):
        self.form = "one fact"
        (name,) = [name for name, place in self.of_all("city").items() if place == city]
        sentence = self.home(city) + words("one_fact", name) + words("grammatical", ".")
        return sentence, words("one_fact", name)

    def home(self, city):
        return words("copied", city) + words("grammatical", "is home to")

    def holder(self, number, things):
        ((name, _, _),) = [
            (name, of, thing)
            for name, goods in self.of_all("goods").items()
            for found, of, thing in [goods.split()]
            if (found, thing) == (number, things)
        ]
        sentence = words("grammatical", "The") + words("copied", f"{number} {things}")
        sentence += words("grammatical", "of") + words("one_fact", name) + words("grammatical", ".")
        return sentence, words("one_fact", name)

    def count(self, city):
        self.form = "counted"
        names = [name for name, place in self.of_all("city").items() if place == city]
        number = words("counted", NUMBERS[len(names) - 1])
        noun = "people ." if len(names) > 1 else "person ."
        sentence = self.home(city) + self.listed(names) + words("grammatical", ":") + number
        sentence += words("grammatical", noun)
        return sentence, number

    def compare(self, which, things, *names):
        self.form = "compared"
        numbers = []
        for name in names:
            number, _, thing = self.facts["goods", name].split()
            assert thing == things
            numbers.append(number)
        first, second = map(NUMBERS.index, numbers)
        assert first != second and names[0] != names[1]
        place = (first < second) == (which == "more")
        sentence = []
        for name, number, after in zip(names, numbers, ("and", ", so the"), strict=True):
            sentence += words("copied", name) + words("grammatical", "owns") + words("one_fact", number)
            sentence += words("grammatical", after)
        sentence += words("compared", numbers[place]) + words("copied", things) + words("grammatical", "of")
        sentence += words("copied", names[place]) + words("grammatical", f"are {which} .")
        return sentence, words("compared", names[place])

    def all_cities(self, names):
        assert len(set(names)) == len(names) > 1
        cities = [self.facts["city", name] for name in names]
        each = [
            words("copied", name) + words("one_fact", city) for name, city in zip(names, cities, strict=True)
        ]
        sentence = [word for one in each for word in [(",", "grammatical"), *one]][1:]
        return sentence, self.listed(cities)


def text_of(answer):
    return re.sub(r" ([.,;:])", r"\1", " ".join(word for word, _ in answer))


def spoken(example):
    """The words of a target with their difficulties, as the example has them."""
    return [(example.target[span.start : span.end], span.difficulty) for span in example.spans]


def test_the_reader_reads():
    context = "Bella has a flat in Oslo. At home Otto keeps two red bells. Bella is the sister of Otto. "
    context += "Anna lives in Oslo. Anna owns nine old bells. Emma made a journey in May, by car to Rome."
    reader = Reader(context)
    assert reader.people == {"Bella", "Otto", "Anna", "Emma"}
    for question, sentence, bare in (
        (
            "Where does the sister of Otto live?",
            "The sister of Otto is Bella and Bella lives in Oslo.",
            "Oslo",
        ),
        ("How many people live in Oslo?", "Oslo is home to Bella and Anna: two people.", "two"),
        (
            "Who owns fewer bells, Anna or Otto?",
            "Anna owns nine and Otto owns two, so the two bells of Otto are fewer.",
            "Otto",
        ),
        ("Who owns nine bells?", "The nine bells of Anna.", "Anna"),
        ("When did Emma travel?", "Emma went in May.", "May"),
    ):
        ((found, value),) = reader.answers(question)
        assert text_of(found) == sentence and text_of(value) == bare
    assert reader.answer("What does Otto own?")[1] is None
    sentence, cities = reader.answer("Where do Anna, Bella live?")
    assert text_of(sentence) == "Anna Oslo, Bella Oslo" and text_of(cities) == "Oslo and Oslo"
    for wrong in ("Who lives in Oslo?", "Who lives in Rome?", "Where does Otto live?", "Who is Otto?"):
        with pytest.raises((KeyError, ValueError)):
            reader.answers(wrong)
    for broken in ("Anna lives in Rome.", "Emma is the sister of Otto.", "Otto has no time."):
        with pytest.raises((AssertionError, ValueError)):
            Reader(f"{context} {broken}")


@pytest.fixture(scope="module")
def questions():
    """A few thousand questions of every kind, lessons among them, drawn once."""
    sizes = {"question_answering": 4000} | dict.fromkeys(PLAIN, 2000)
    return {kind: draw(kind, sizes.get(kind, 1000)) for kind in QUESTIONS}


def whole_question(asked):
    """A question without "In one word: ", and whether that was there."""
    start = "In one word: "
    if not asked.startswith(start):
        return asked, False
    assert asked[len(start)].islower()
    return asked[len(start)].upper() + asked[len(start) + 1 :], True


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_reader_answers_every_question_from_the_text_alone(kind, questions):
    """The words, and how hard each of them is; the bare value where that is asked for, or `silent` is."""
    for example in questions[kind]:
        reader = Reader(example.columns["context"])
        asked, bare = whole_question(example.columns["question"])
        answers = reader.answers(asked)
        bare_wanted = bare or kind.endswith(", silent")
        expected = [word for sentence, value in answers for word in (bare_wanted and value) or sentence]
        assert example.target == text_of(expected), example
        assert spoken(example) == expected, example
        form = f"{reader.form}{', bare' * bare}" if "question" in kind else ""
        assert example.form == form and not (bare and answers[0][1] is None)
        assert example.columns["answers"]["text"] == [example.target]


def test_lessons_ask_several_questions_of_one_kind(questions):
    variants = [f"{kind}, {variant}" for variant in ("alone", "silent") for kind in PLAIN]
    assert [*LESSONS] == [*PLAIN, *variants, "questions, silent"]
    for kind, sizes in zip(PLAIN, ({1}, {3, 4}, {4}, {3}, {2}, {3}, {3}), strict=True):
        for variant, expected in (("", sizes), (", alone", {1}), (", silent", sizes)):
            found = questions[kind + variant]
            assert {example.columns["question"].count("?") for example in found} == expected
    assert all(", " in example.columns["question"] for example in questions["pairs"])
    for example in questions["same_fact"]:
        asked = [question + "?" for question in example.columns["question"].split("?")[:-1]]
        forms = {form for form in ASKED for question in asked if re.fullmatch(form, question.strip())}
        assert len(forms) == 1
    one_hop = {"copied", "one_fact", "grammatical"}
    hops = {kind: {d for e in questions[kind] for _, d in spoken(e)} - one_hop for kind in QUESTIONS}
    for kind, last in {"cities": {"counted"}, "owners": {"compared"}}.items():
        assert hops.pop(kind) == hops.pop(f"{kind}, alone") == hops.pop(f"{kind}, silent") == last
    assert hops.pop("question_answering") == hops.pop("questions, silent")
    assert hops.pop("relations, silent") == {"two_facts"}  # where the hop is not said
    assert not any(hops.values())


def test_silent_questions_ask_for_the_bare_value_wherever_there_is_one(questions):
    for example in questions["questions, silent"]:
        asked, bare = whole_question(example.columns["question"])
        assert bare != asked.endswith("own?")


def test_every_form_has_its_share_and_a_fifth_is_answered_by_the_bare_value(questions):
    drawn = questions["question_answering"]
    forms = Counter(example.form for example in drawn)
    for form, share in (("one fact", 0.4), ("two facts", 0.2), ("counted", 0.2), ("compared", 0.2)):
        bare, count = forms.pop(f"{form}, bare"), forms.pop(form)
        assert (bare + count) / len(drawn) == pytest.approx(share, abs=0.03)
        whole = sum(e.columns["question"].endswith("own?") for e in drawn) if form == "one fact" else 0
        assert bare / (bare + count - whole) == pytest.approx(0.2, abs=0.04)
    assert not forms


def test_questions_of_one_fact_ask_for_every_kind_of_it(questions):
    asked = Counter()
    for example in questions["question_answering"]:
        if example.form.startswith("one fact"):
            question, _ = whole_question(example.columns["question"])
            asked.update(form for form in [*ASKED, r"Who lives in (\w+)\?"] if re.fullmatch(form, question))
    assert len(asked) == 8
    assert all(count / asked.total() == pytest.approx(1 / 8, abs=0.03) for count in asked.values())


def test_answers_are_spoken_hop_by_hop(questions):
    """What a later word takes is said before it: who it is, whom it counts, how many each of two owns."""
    for example in questions["question_answering"]:
        words, context = spoken(example), example.columns["context"]
        hard = [word for word, difficulty in words if difficulty in ("two_facts", "counted", "compared")]
        if example.form.endswith("bare"):
            assert len(words) == 1 and words[0][1] != "copied"
            continue
        assert words[-1] == (".", "grammatical")
        assert len(hard) == (example.form in ("counted", "compared"))
        if example.form == "compared":
            assert sum(word in NUMBERS for word, _ in words) == 3
            assert [word for word, _ in words].count(hard[0]) == 2
        if example.form == "counted":
            named = [word for word, difficulty in words if difficulty == "one_fact"]
            assert len(named) == NUMBERS.index(hard[0]) + 1 <= 6
            assert [context.index(f"{name} ") for name in named] == sorted(
                context.index(f"{name} ") for name in named
            )
        if example.form == "two facts":
            who = next(word for word, difficulty in words if difficulty == "one_fact")
            assert re.search(rf"{who} is the|is {who}\.", context) and f" {who} and {who} " in example.target


@pytest.mark.parametrize("kind", QUESTIONS)
def test_whom_a_question_names_the_context_knows(kind, questions):
    for example in questions[kind]:
        asked = re.findall(r"[A-Z]\w+", example.columns["question"])
        named = set(asked) & set(lexicon.NAMES)
        reader = Reader(example.columns["context"])
        assert named <= reader.people <= set(lexicon.NAMES)
        cities = set(asked) & set(lexicon.CITIES)
        assert cities <= set(reader.of_all("city").values())


def test_a_word_has_one_meaning():
    months = lexicon.english("month")
    kinds = (lexicon.NAMES, lexicon.CITIES, months, lexicon.english("dish"), lexicon.english("job"))
    drawn = [word for kind in kinds for word in kind]
    assert len(drawn) == len(set(drawn)) and all(re.fullmatch(r"\w+", word) for word in drawn)


def test_an_answer_takes_the_name_that_is_asked_for(questions):
    """Somebody else has the same kind of fact, and another relation leads to one too."""
    twice = 0
    for example in questions["question_answering"]:
        reader = Reader(example.columns["context"])
        reader.answers(whole_question(example.columns["question"])[0])
        if reader.form == "one fact":
            kinds = Counter(fact for fact, _ in reader.facts)
            asked = [fact for fact, count in kinds.items() if count > 1]
            assert asked
        if reader.form == "two facts":
            assert len(reader.related) == 2
            twice += len({relation for relation, _ in reader.related}) == 1
    assert twice > 300  # so that the relation alone does not tell whom


def test_answer_start_points_at_the_answer(questions):
    """Or is -1, where the answer does not stand in the context as it is."""
    found = Counter()
    for example in questions["question_answering"]:
        start, context = example.columns["answers"]["answer_start"][0], example.columns["context"]
        if start == -1:
            assert not re.search(rf"\b{re.escape(example.target)}(?!\w)", context)
        else:
            end = start + len(example.target)
            assert context[start:end] == example.target
            assert not re.match(r"\w\w", context[max(start - 1, 0) : start + 1] if start else "")
            assert not re.match(r"\w", context[end:]), (context, example.target, start)
        found[example.form, start == -1] += 1
    for form in ("one fact, bare", "two facts, bare", "compared, bare"):
        assert found[form, False] > 50 and not found[form, True]
    assert found["counted, bare", True] > 50 and not found["counted", False] and not found["two facts", False]


@pytest.mark.parametrize("kind", ["question_answering", "relations"])
def test_sisters_are_women_and_brothers_men(kind, questions):
    relations = Counter()
    for example in questions[kind]:
        context, first = example.columns["context"], r"(?P<who>\w+) is the (?P<relation>\w+) of"
        for match in itertools.chain(re.finditer(first, context), re.finditer(RELATED, context)):
            name, relation = match.group("who", "relation")
            relations[relation] += 1
            if relation in ("sister", "brother"):
                assert name in (lexicon.FEMALE_NAMES if relation == "sister" else lexicon.MALE_NAMES)
    assert set(relations) == {"sister", "brother", "friend", "boss", "neighbour"}
    assert min(relations.values()) > 100


@pytest.mark.parametrize("kind", QUESTIONS)
def test_the_split_of_a_question_is_that_of_its_context(kind, questions):
    """So that no lesson, and no other question, shows a context that is scored."""
    for example in questions[kind][:500]:
        assert example.source == example.columns["context"]
        other = example._replace(columns={}, target="other", spans=(), form="other")
        assert generator.split_of(other) == generator.split_of(example) == "train"


def test_loaded_questions_have_forms_and_a_slice_of_a_task_keeps_what_belongs_together():
    task = load_task("question_answering", split="test", limit=60)
    drawn = draw("question_answering", 60, "test")
    assert task.forms == [example.form for example in drawn] and task.targets == [e.target for e in drawn]
    part = task[20:50]
    assert len(part) == 30 and (part.digest, part.name) == (task.digest, task.name)
    for column in ("inputs", "references", "spans", "forms"):
        assert getattr(part, column) == getattr(task, column)[20:50]
    assert part.score(part.targets)["exact_match"] == 100
    assert (
        load_task("translation", limit=3).forms is None
        and load_task("translation", limit=3)[1:].forms is None
    )


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_loaded_as_questions(name):
    lesson = load_lesson(name, "train", 5, seed=3)
    drawn = draw(name, 5, seed=3)
    assert (lesson.forms is None) == (name != "questions, silent") and lesson.targets == [
        example.target for example in drawn
    ]
    asked = drawn[0].columns["question"]
    context = drawn[0].columns["context"]
    assert lesson.inputs[0] == f"question: {asked} context: {context}"
    assert lesson.inputs != load_lesson(name, "train", 5, seed=4).inputs


# Splits on disk


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """An empty build folder, and how often examples were drawn since."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    calls = []

    def examples(*arguments):
        calls.append(arguments)
        return draw_anew(*arguments)

    draw_anew = generator.examples
    monkeypatch.setattr(generator, "examples", examples)
    stored.first_examples.cache_clear()
    yield calls
    stored.first_examples.cache_clear()


def again(*arguments):
    """What another process would get."""
    stored.first_examples.cache_clear()
    return stored.first_examples(*arguments)


@pytest.mark.parametrize("task", [*TASKS, "cities, alone"])
def test_a_split_is_drawn_once_and_read_back_the_same(drawn, task):
    expected = draw(task, 12, "validation", 3)
    drawn.clear()
    assert again(task, "validation", 3, 12) == expected and len(drawn) == 1
    assert again(task, "validation", 3, 12) == again(task, "validation", 3, 12) == expected
    assert again(task, "validation", 3, 5) == expected[:5] and len(drawn) == 1
    assert len(again(task, "validation", 3, 14)) == 14 and len(drawn) == 2
    assert again(task, "validation", 3, 12) == expected and len(drawn) == 2
    assert again(task, "validation", 4, 2) != expected[:2] and len(drawn) == 3


@pytest.mark.parametrize("content", [b"", b"[", b"[1]\n" * 9, b"{}\n" * 9, b"\xff\xfe", b"null\n" * 9])
def test_a_broken_file_is_drawn_again(drawn, tmp_path, content):
    expected = again("translation", "test", 0, 4)
    (path,) = tmp_path.rglob("*.jsonl")
    path.write_bytes(content)
    assert again("translation", "test", 0, 4) == expected and len(drawn) == 2
    assert again("translation", "test", 0, 4) == expected and len(drawn) == 2


def test_examples_of_other_code_are_not_read(drawn, monkeypatch):
    again("translation", "test", 0, 2)
    monkeypatch.setattr(stored, "code_digest", lambda: "other")
    again("translation", "test", 0, 2)
    assert len(drawn) == 2


def test_a_checkout_that_cannot_be_written_draws_each_time(drawn, tmp_path):
    (tmp_path / "build").write_text("a file where the folder should be")
    assert again("translation", "test", 0, 2) == again("translation", "test", 0, 2)
    assert len(drawn) == 2


def test_processes_that_draw_at_once_leave_one_whole_file(tmp_path):
    code = "from mee_utils.tasks import load_task; print(load_task('translation', limit=30).digest)"
    environment = os.environ | {"MEE_OUTPUT": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    digests = {process.communicate()[0] for process in running}
    assert digests == {load_task("translation", limit=30).digest + "\n"}
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
