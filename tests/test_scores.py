"""Scores agree with hand-computed and published values."""

import unicodedata

import numpy as np
import pytest

from mee_utils import MeeError, load_task
from mee_utils.tasks import TASKS, scores
from mee_utils.tasks.languages import language_code, language_name, split_at_spaces, words


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


SENTENCES = {
    "zh": ("今天天气很好，我们去公园散步。", "今天天气不好，我们在家看书。"),
    "ja": ("今日は天気がいいので公園を散歩します。", "今日は雨なので家で本を読みます。"),
    "ko": ("오늘은 날씨가 좋아서 공원을 산책합니다.", "오늘은 비가 와서 집에서 책을 읽습니다."),
    "th": ("วันนี้อากาศดีเราไปเดินเล่นในสวน", "วันนี้ฝนตกเราอ่านหนังสือที่บ้าน"),
    "lo": ("ມື້ນີ້ອາກາດດີພວກເຮົາໄປຍ່າງຫຼິ້ນ", "ມື້ນີ້ຝົນຕົກພວກເຮົາຢູ່ເຮືອນ"),
    "km": ("ថ្ងៃនេះអាកាសធាតុល្អយើងទៅដើរលេង", "ថ្ងៃនេះភ្លៀងយើងនៅផ្ទះ"),
    "my": ("ဒီနေ့ရာသီဥတုကောင်းတယ်", "ဒီနေ့မိုးရွာတယ်"),
    "ru": ("Сегодня хорошая погода, и мы гуляем в парке.", "Сегодня идёт дождь, и мы читаем дома."),
    "ar": ("الطقس جميل اليوم ونحن نتمشى في الحديقة.", "الطقس ممطر اليوم ونحن نقرأ في البيت."),
    "hi": ("आज मौसम अच्छा है और हम पार्क में टहल रहे हैं।", "आज बारिश हो रही है और हम घर पर हैं।"),
    "de": ("Müller läuft über die schöne grüne Brücke.", "Müller sitzt auf der schönen grünen Bank."),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_text_in_any_script_scores_full_against_itself_and_between_0_and_full_against_another(language):
    same, other = SENTENCES[language]
    texts = [same, other]
    references = [[same], [same]]
    scored = {
        "bleu": scores.translation_scores(texts, references, language)["bleu"],
        "f1": scores.answer_scores(texts, references)["f1"],
        **scores.rouge_scores(texts, references),
    }
    for metric, (full, part) in scored.items():
        assert full == pytest.approx(100), metric
        assert part < 99, metric
    assert scored["bleu"][1] > 0 and scored["rouge1"][1] > 0 and scored["rougeL"][1] > 0
    corpus = scores.corpus_translation([same], [[same]], language)
    assert corpus["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("language", "tokenizers"),
    [
        ("fr", {"13a"}),
        ("zh", {"zh"}),
        ("zh-CN", {"zh"}),
        ("zho_Hans", {"zh"}),
        ("Chinese", {"zh"}),
        ("yue", {"zh"}),
        ("ja", {"ja-mecab", "char"}),
        ("ko", {"ko-mecab", "char"}),
        ("th", {"char"}),
    ],
)
def test_bleu_splits_texts_as_their_language_asks(language, tokenizers):
    assert scores.bleu_tokenizer(language) in tokenizers


def test_a_task_says_which_tokenizer_its_bleu_has_unless_it_is_the_usual_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"translation": {"en": "Good day", "th": "สวัสดี"}}\n')
    thai = load_task("translation", path, languages=("en", "th"))
    assert 'BLEU tokenizer "char"' in repr(thai) and thai.score(["สวัสดี"])["bleu"] == pytest.approx(100)
    assert "tokenizer" not in repr(load_task("translation", path, languages=("th", "en")))


def test_rouge_keeps_words_with_accents_whole_however_they_are_written():
    composed, spelled_out = (unicodedata.normalize(form, "Müller naïve") for form in ("NFC", "NFD"))
    assert scores.rouge_scores([composed], [[spelled_out]])["rouge2"] == pytest.approx(100)
    assert scores.rouge_scores(["m ller"], [["Müller"]])["rouge1"] == pytest.approx(0)
    assert scores.exact_match(composed, [spelled_out]) == 1.0


def test_rouge_of_ascii_texts_is_rouge_scores_own(synthetic_tasks):
    from rouge_score.rouge_scorer import RougeScorer

    official = RougeScorer(list(scores.ROUGE_TYPES), use_stemmer=True)
    targets = [*synthetic_tasks["summarization"].targets, "It's 3.5_x (running) C-3PO's!", "", "...", "a"]
    texts = [*targets[1:], "It isn't 3 5 X; he runs -- c3po"]
    ours = scores.rouge_scores(texts, [[target] for target in targets])
    for number, (text, target) in enumerate(zip(texts, targets, strict=True)):
        theirs = official.score(target, text)
        assert all(ours[name][number] == 100 * theirs[name].fmeasure for name in scores.ROUGE_TYPES)


def test_words_and_parts_of_texts():
    assert words("Ünal's e-mail: 50 % of 2023_x") == ["Ünal", "s", "e", "mail", "50", "of", "2023", "x"]
    assert words("สวัสดี") == ["ส", "วั", "ส", "ดี"]
    assert split_at_spaces("3.5 % à Paris") == ["3.5", "%", "à", "Paris"]


@pytest.mark.parametrize(
    ("language", "code", "name"),
    [
        ("es", "es", "Spanish"),
        ("EN", "en", "English"),
        ("pt-BR", "pt", "Portuguese"),
        ("de_DE", "de", "German"),
        ("fra_Latn", "fr", "French"),
        ("jpn", "ja", "Japanese"),
        ("iw", "he", "Hebrew"),
        ("Swahili", "sw", "Swahili"),
    ],
)
def test_languages_have_names(language, code, name):
    assert language_code(language) == code and language_name(language) == name


@pytest.mark.parametrize("language", ["xx", "source", "e n", "und", "mul", "12", "-"])
def test_what_is_no_language_is_one_line(language):
    with pytest.raises(MeeError, match=f'"{language}" is the code of no language: give codes such as'):
        language_code(language)


def test_nothing_is_scored_in_an_empty_task():
    empty = load_task("translation", limit=3)[9:]
    assert len(empty) == 0
    for score in (empty.score, empty.score_examples):
        with pytest.raises(MeeError, match="has no examples, so that there is nothing to score"):
            score([])


def test_texts_may_come_from_any_iterable_once():
    task = load_task("translation", limit=3)
    assert task.score(iter(task.targets))["bleu"] == pytest.approx(100)
    assert task.score_examples(np.array(task.targets))["bleu"] == pytest.approx(100)
