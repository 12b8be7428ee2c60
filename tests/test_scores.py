"""Scores agree with hand-computed and published values."""

import pytest

from mee_utils.tasks import TASKS, scores


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  old Bridge!", "old bridge"), ("an answer, a word", "answer word"), ("...", ""), ("U.S.", "us")],
)
def test_answers_are_normalised_as_the_official_script_does(text, expected):
    assert scores.normalize_answer(text) == expected


def test_exact_match_takes_any_reference():
    assert scores.exact_match("The Seine.", ["river", "seine"]) == 1.0
    assert scores.exact_match("Seine river", ["river", "seine"]) == 0.0


def test_token_f1_counts_common_words():
    # two words predicted, three expected, two in common: P = 1, R = 2/3
    assert scores.token_f1("red bicycle", ["three red bicycle"]) == pytest.approx(0.8)
    assert scores.token_f1("", [""]) == 1.0 and scores.token_f1("", ["x"]) == 0.0
    assert scores.token_f1("b b", ["b"]) == pytest.approx(2 / 3)


def test_bleu_is_sacrebleus():
    import sacrebleu

    texts, references = ["le chat noir dort bien ici"], [["le chat noir dort ici"]]
    found = TASKS["translation"].score(texts, references)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [[references[0][0]]]).score)
    assert TASKS["translation"].score(["a b c d e"], [["a b c d e"]])["bleu"] == pytest.approx(100)


def test_rouge_of_a_text_with_itself_is_full_and_partial_overlap_is_not():
    assert TASKS["summarization"].score(["one two three"], [["one two three"]])["rouge2"] == pytest.approx(
        100
    )
    # unigrams: 2 of 3 on both sides
    assert TASKS["summarization"].score(["one two four"], [["one two three"]])["rouge1"] == pytest.approx(
        100 * 2 / 3
    )


def test_unequal_numbers_of_references_are_scored():
    found = TASKS["translation"].score(["a b c d", "e f g h"], [["a b c d", "x y"], ["e f g h"]])
    assert found["bleu"] == pytest.approx(100)


def test_every_task_shows_a_metric_that_it_scores():
    for kind in TASKS.values():
        examples = kind.score_examples(["a red house"], [["a red house", "a house"]])
        assert kind.metric in examples and set(kind.score(["a"], [["a"]])) == set(examples)
        assert all(values == pytest.approx([100]) for values in examples.values())
