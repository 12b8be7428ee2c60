"""One loader for synthetic tasks, local files and the hub; every mistake is one clear line."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError, load_task
from mee_utils.tasks import TASKS
from mee_utils.tasks.loading import shortened
from mee_utils.tasks.synthetic.generator import GENERATORS

ROWS = {
    "squad": (
        "question_answering",
        {
            "id": "1",
            "title": "t",
            "context": "Ann is in Rome.",
            "question": "Where is Ann?",
            "answers": {"text": ["Rome", "in Rome"], "answer_start": [10, 7]},
        },
    ),
    "cnn_dailymail": ("summarization", {"article": "Much text.", "highlights": "Text.", "id": "1"}),
    "samsum": ("summarization", {"id": "1", "dialogue": "A: hi\nB: hi", "summary": "They greet."}),
    "dialogsum": (
        "summarization",
        {"id": "1", "dialogue": "A: hi", "summary": "A greets.", "topic": "greeting"},
    ),
    "multi_news": ("long_document_summarization", {"document": "News. More news.", "summary": "News."}),
    "big_patent": ("long_document_summarization", {"description": "A device.", "abstract": "Device."}),
    "iwslt2017": ("translation", {"translation": {"en": "Hello", "fr": "Bonjour"}}),
    "wmt15": ("translation", {"translation": {"en": "Yes", "fr": "Oui"}}),
}


def write(path, rows, kind):
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "jsonl.gz":
        with gzip.open(path, "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        nested = [{k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()} for row in rows]
        pd.DataFrame(nested).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "csv"])
@pytest.mark.parametrize("corpus", ROWS)
def test_every_layout_reads_the_same_from_every_format(tmp_path, corpus, kind):
    name, row = ROWS[corpus]
    task = load_task(name, write(tmp_path / f"validation.{kind}", [row, row], kind))
    assert len(task) == 2
    values = [v for value in row.values() for v in (value.values() if isinstance(value, dict) else [value])]
    flat = [item for v in values for item in (v if isinstance(v, list) else [v])]
    assert task.targets[0] in flat
    assert any(str(v) in task.inputs[0] for v in flat if v != task.targets[0])


def test_prompts_are_t5s(tmp_path):
    prompts = {}
    for corpus in ("squad", "cnn_dailymail", "iwslt2017"):
        name, row = ROWS[corpus]
        prompts[corpus] = load_task(name, write(tmp_path / f"{corpus}.jsonl", [row], "jsonl")).inputs[0]
    assert prompts["squad"] == "question: Where is Ann? context: Ann is in Rome."
    assert prompts["cnn_dailymail"] == "summarize: Much text."
    assert prompts["iwslt2017"] == "translate English to French: Hello"


def test_all_answers_of_a_question_are_references(tmp_path):
    name, row = ROWS["squad"]
    assert load_task(name, write(tmp_path / "a.jsonl", [row], "jsonl")).references == [["Rome", "in Rome"]]


def test_a_folder_is_read_by_split_also_in_the_hubs_file_names(tmp_path):
    name, row = ROWS["samsum"]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train-00000-of-00002.parquet", [row] * 2, "parquet")
    write(tmp_path / "data" / "train-00001-of-00002.parquet", [row] * 3, "parquet")
    assert len(load_task(name, tmp_path, "train")) == 5
    with pytest.raises(MeeError, match=r'No file of the split "test".*it has train'):
        load_task(name, tmp_path, "test")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("validation.jsonl", "validation.csv"),
        ("validation.jsonl", "validation.jsonl.gz"),
        ("validation.jsonl", "validation.old.jsonl"),
        ("validation.jsonl", "validation-00000-of-00001.jsonl"),
        ("validation.parquet", "validation/0000.parquet"),
        ("validation-0.jsonl", "validation-0.csv"),
        ("validation.csv", "data/validation.csv"),
    ],
)
def test_a_split_that_is_there_twice_is_one_line_that_names_both(tmp_path, first, second):
    name, row = ROWS["samsum"]
    for file in (first, second):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        write(
            path,
            [row],
            next(ending for ending in ("jsonl.gz", "jsonl", "csv", "parquet") if file.endswith(ending)),
        )
    with pytest.raises(MeeError, match='has the split "validation" twice') as error:
        load_task(name, tmp_path)
    assert first in str(error.value) and second in str(error.value) and "\n" not in str(error.value)
    assert len(load_task(name, tmp_path / first)) == 1


def test_shards_that_are_not_all_there_are_one_line(tmp_path):
    name, row = ROWS["samsum"]
    write(tmp_path / "train-00001-of-00003.parquet", [row], "parquet")
    with pytest.raises(MeeError, match=r"only 1 of the 3 files that train-00001-of-00003.parquet belongs to"):
        load_task(name, tmp_path, "train")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_folder_as_spark_writes_it_in_place_of_a_file_is_read(tmp_path, kind):
    name, row = ROWS["samsum"]
    folder = tmp_path / f"validation.{kind}"
    folder.mkdir()
    for part in (0, 1):
        write(folder / f"part-0000{part}-c000.{kind}", [row] * (part + 1), kind)
    (folder / "_SUCCESS").touch()
    (folder / f".part-00000-c000.{kind}.crc").touch()
    for source in (tmp_path, folder):
        assert len(load_task(name, source)) == 3


def test_an_empty_folder_in_place_of_a_file_is_one_line(tmp_path):
    (tmp_path / "validation.parquet").mkdir()
    (tmp_path / "validation.parquet" / "_SUCCESS").touch()
    for source in (tmp_path, tmp_path / "validation.parquet"):
        with pytest.raises(MeeError, match='No file of the split "validation"') as error:
            load_task("summarization", source)
        assert "\n" not in str(error.value)


def test_the_folder_of_a_local_source_is_where_its_splits_are(tmp_path):
    name, row = ROWS["samsum"]
    (tmp_path / "3.0.0").mkdir()
    path = write(tmp_path / "3.0.0" / "validation.jsonl", [row] * 2, "jsonl")
    write(tmp_path / "validation.jsonl", [row], "jsonl")
    assert len(load_task(name, tmp_path, folder="3.0.0")) == 2 and len(load_task(name, tmp_path)) == 1
    for source, folder in ((tmp_path, "2.0.0"), (path, "3.0.0")):
        with pytest.raises(MeeError, match=rf'folder="{folder}": .* has no such folder'):
            load_task(name, source, folder=folder)


def test_other_language_pairs(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"translation": {"de": "Ja", "en": "Yes"}}], "jsonl")
    task = load_task("translation", path, languages=("de", "en"))
    assert task.inputs == ["translate German to English: Ja"] and task.targets == ["Yes"]
    with pytest.raises(MeeError, match='has no "fr", only de, en'):
        load_task("translation", path, languages=("de", "fr"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tranlation", "limit": 1}, 'Unknown task "tranlation": did you mean "translation"'),
        ({"name": "translation", "split": "dev", "limit": 1}, 'Unknown split "dev"'),
        ({"name": "translation"}, "never ends: set limit"),
        ({"name": "translation", "limit": 0}, "limit=0: give a whole number from 1 on"),
        ({"name": "translation", "limit": True}, "limit=True: give a whole number"),
        ({"name": "translation", "limit": 2.0}, "limit=2.0: give a whole number"),
        ({"name": "translation", "limit": 1, "seed": "a"}, "seed='a': give a whole number"),
        ({"name": "translation", "limit": 1, "seed": -1}, "seed=-1: give a whole number"),
        ({"name": "translation", "limit": 1, "seed": 2**70}, f"seed={2**70}: give a whole number"),
        (
            {"name": "translation", "source": None},
            'source=None: give a file, a folder, a hub id, or "synthetic"',
        ),
        ({"name": "translation", "source": ""}, "source='': give a file"),
        ({"name": "translation", "source": ["a.jsonl"]}, "give a file, a folder"),
        ({"name": "translation", "limit": 1, "languages": ("en",)}, "give source and target, as in"),
        ({"name": "translation", "limit": 1, "languages": "en"}, "languages='en': give source and target"),
        ({"name": None, "limit": 1}, 'Unknown task "None"'),
        (
            {"name": "paraphrase"},
            r'"paraphrase": valid are .*\. A new task is an entry of TASKS in mee_utils/',
        ),
        ({"name": "translation", "limit": 1, "languages": ("en", "xx")}, '"xx" is the code of no language'),
        ({"name": "translation", "limit": 1, "languages": ("fr", "fr")}, "give source and target, as in"),
        ({"name": "translation", "limit": 1, "languages": ("fr", "en")}, 'is from "en" to "fr" only'),
        ({"name": "translation", "limit": 1, "folder": "a"}, "folder='a' belongs to a corpus"),
        ({"name": "translation", "limit": 1, "revision": "v1"}, "revision='v1' belongs to a corpus"),
        (
            {"name": "translation", "source": ".", "revision": "v1"},
            "is local and revision='v1' belongs to the hub",
        ),
        ({"name": "translation", "source": "./nowhere"}, "does not exist"),
        ({"name": "translation", "source": "nowhere.jsonl.gz"}, "does not exist"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(MeeError, match=message) as error:
        load_task(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", "", "is empty"),
        ("empty.csv", "", "is empty"),
        ("header.csv", "translation\n", "has no rows"),
        (
            "semicolons.csv",
            "english;french\na;b\n",
            r"has the one column 'english;french': separate .* commas",
        ),
        ("tabs.csv", "english\tfrench\na\tb\n", "separate columns by commas"),
        ("wide.csv", "translation\na,b\n", "row 1 has more or fewer cells .*: correct it, with quotes"),
        ("broken.jsonl", "{not json}\n", "line 1 is not JSON"),
        ("broken.parquet", "PAR0", "cannot be read"),
        ("broken.jsonl.gz", "not gzip", "cannot be read"),
        ("notes.txt", "hello", "is none of"),
        (
            "columns.jsonl",
            '{"english": "a"}\n',
            r"row 1 has the columns english; this task needs translation \(IWSLT.*: rename yours",
        ),
        (
            "null.jsonl",
            '{"translation": null}\n',
            "row 1: Column \"translation\" holds 'None': write one text",
        ),
        (
            "line.jsonl",
            '{"translation": {"en": "a", "fr": "b"}}\n\n{"translation"\n',
            "line.jsonl, line 3 is not JSON",
        ),
        ("array.jsonl", "[1]\n", r"line 1 is '\[1\]', no object"),
        ("latin.jsonl", '{"translation": {"en": "é"}}'.encode("latin-1"), "is not UTF-8 .*save it as UTF-8"),
        ("latin.csv", "translation\né\n".encode("latin-1"), "is not UTF-8"),
        (
            "nested.jsonl",
            '{"translation": {"en": ["a"], "fr": "b"}}\n',
            r"row 1: .*\"en\", holds \"\['a'\]\", a text is",
        ),
        ("number.jsonl", '{"translation": {"en": 5, "fr": "b"}}\n', "holds '5', a text is expected"),
        ("blank.jsonl", '{"translation": {"en": "a", "fr": " "}}\n', 'language "fr", holds'),
        ("text.csv", "translation\nhello\n", "is not JSON"),
        ("list.jsonl", '{"translation": ["a"]}\n', "write one text a language"),
        ("half.jsonl", '{"translation": {"en": "a", "fr": null}}\n', 'no "fr", only en'),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MeeError, match=message) as error:
        load_task("translation", tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_file_cut_short_by_a_broken_download_is_one_line(tmp_path):
    whole = gzip.compress(b'{"translation": {"en": "a", "fr": "b"}}\n' * 50)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MeeError, match=r"cannot be read as .jsonl.gz"):
        load_task("translation", tmp_path / "cut.jsonl.gz")


def test_answers_that_are_no_dictionary_are_named(tmp_path):
    row = ROWS["squad"][1] | {"answers": ["Rome"]}
    with pytest.raises(MeeError, match='row 1: Column "answers" holds'):
        load_task("question_answering", write(tmp_path / "a.jsonl", [row], "jsonl"))


NO_ANSWERS = [
    {"text": [], "answer_start": []},
    {"text": [""], "answer_start": [-1]},
    {"text": None, "answer_start": None},
    None,
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("answers", NO_ANSWERS, ids=str)
def test_unanswerable_questions_are_refused_or_left_out_and_counted(tmp_path, answers, kind):
    answered = ROWS["squad"][1]
    rows = [answered, answered | {"answers": answers}, answered, answered | {"question": "Where, Ann?"}]
    path = write(tmp_path / f"a.{kind}", rows, kind)
    with pytest.raises(
        MeeError, match=r"row 2: the question has no answer .*: set skip_unanswerable=True"
    ) as error:
        load_task("question_answering", path)
    assert "\n" not in str(error.value)
    task = load_task("question_answering", path, skip_unanswerable=True)
    assert len(task) == 3 and task.skipped == 1 and "1 unanswerable questions left out" in repr(task)
    assert task.inputs[-1].startswith("question: Where, Ann?")
    assert len(load_task("question_answering", path, limit=2, skip_unanswerable=True)) == 2


def test_a_corpus_of_unanswerable_questions_is_one_line(tmp_path):
    row = ROWS["squad"][1] | {"answers": NO_ANSWERS[0]}
    path = write(tmp_path / "a.jsonl", [row] * 2, "jsonl")
    with pytest.raises(MeeError, match=r"None of the 2 questions of .* has an answer"):
        load_task("question_answering", path, skip_unanswerable=True)


@pytest.mark.parametrize(
    "answers",
    [{"answer": ["Rome"]}, {"answer_start": [10]}, {"text": None, "answer_start": [10]}, {"text": 5}],
)
def test_answers_of_another_form_are_no_unanswerable_question(tmp_path, answers):
    path = write(tmp_path / "a.jsonl", [ROWS["squad"][1] | {"answers": answers}], "jsonl")
    with pytest.raises(MeeError, match=r'row 1: Column "answers" has no list of texts but .*: write'):
        load_task("question_answering", path, skip_unanswerable=True)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    row = ROWS["samsum"][1]
    for kind in ("jsonl", "csv"):
        path = write(tmp_path / f"a.{kind}", [row], kind)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert load_task("summarization", path).inputs == ["summarize: A: hi\nB: hi"]


def test_rows_of_arrays_are_named_and_arrays_of_answers_are_read(tmp_path):
    path = write(tmp_path / "a.parquet", [{"document": ["a", "b"], "summary": "s"}], "parquet")
    with pytest.raises(
        MeeError, match=r"row 1: Column \"document\" holds \"\['a', 'b'\]\", a text is expected"
    ):
        load_task("long_document_summarization", path)
    name, row = ROWS["squad"]
    assert load_task(name, write(tmp_path / "b.parquet", [row], "parquet")).references == [
        ["Rome", "in Rome"]
    ]


def test_a_limit_reads_no_further(tmp_path):
    path = write(tmp_path / "a.jsonl", [ROWS["samsum"][1]] * 2, "jsonl")
    path.write_text(path.read_text() + "{broken\n")
    assert len(load_task("summarization", path, limit=np.int64(2))) == 2
    with pytest.raises(MeeError, match="line 3 is not JSON"):
        load_task("summarization", path)


def test_csv_texts_stay_texts(tmp_path):
    (tmp_path / "a.csv").write_text("dialogue,summary\n007,NA\n,None\n")
    task = load_task("summarization", tmp_path / "a.csv")
    assert task.inputs == ["summarize: 007", "summarize: "] and task.targets == ["NA", "None"]


@pytest.mark.parametrize("texts", [[None, "a", "b"], [["a"], "b", "c"], "abc", None, 3])
def test_only_a_list_of_texts_is_scored(texts):
    task = load_task("translation", limit=3)
    for score in (task.score, task.score_examples):
        with pytest.raises(MeeError, match=r"^Cannot score .*: give a list of texts"):
            score(texts)


def test_prompts_name_the_languages_of_the_corpus(tmp_path):
    path = write(
        tmp_path / "a.jsonl", [{"translation": {"en": "Yes", "zh-CN": "是", "english": "Aye"}}], "jsonl"
    )
    task = load_task("translation", path, languages=("en", "zh-CN"))
    assert task.inputs == ["translate English to Chinese: Yes"] and task.score(["是"])[
        "chrf"
    ] == pytest.approx(100)
    assert load_task("translation", path, languages=("zh-CN", "english")).targets == ["Aye"]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_task_is_a_sequence_of_examples(name):
    task = load_task(name, limit=6)
    assert [example.prompt for example in task] == task.inputs
    assert task[0] == task[-6] == next(iter(task)) and task[np.int64(1)].references == task.references[1]
    prompt, references = task[2]
    assert prompt == task.inputs[2] and references[0] == task.targets[2]


@pytest.mark.parametrize(
    "part", [slice(2), slice(-2, None), slice(None, None, 2), slice(None, None, -1), slice(9, 5)]
)
def test_a_slice_of_a_task_is_a_task(part):
    task = load_task("question_answering", limit=6)
    chosen = task[part]
    assert chosen.inputs == task.inputs[part] and chosen.references == task.references[part]
    assert chosen.spans == task.spans[part] and chosen.forms == task.forms[part]
    assert len(chosen) == len(range(6)[part]) and chosen.digest == task.digest


@pytest.mark.parametrize("part", [6, -7, "a", 1.5, None, [0, 1], slice(0, 2, 0), slice("a", None)])
def test_a_part_that_is_not_there_is_one_line(part):
    with pytest.raises(
        MeeError, match=r"^task.*: .*(give a number from 0 to 5, or a slice|give whole numbers)"
    ) as error:
        load_task("translation", limit=6)[part]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("text", ["", "!!!", "  ", ". . .", "你好", "?\n\n?"])
def test_baselines_take_every_text_that_loading_allows(name, text):
    """An empty document, a training target without a word, nothing but marks."""
    ordinary = load_task(name, limit=2)
    train = load_task(name, split="train", limit=5)
    prefix = {"translation": "translate English to French: ", "question_answering": "question: ? context: "}
    prompts = [prefix.get(name, "summarize: ") + text, *ordinary.inputs]
    odd = replace(ordinary, inputs=prompts, references=[["!!!"], *ordinary.references])
    trained_on = [train, odd, odd[:1], train[:1]]
    for training in trained_on:
        for texts in odd.baseline_texts(training).values():
            assert len(texts) == 3 and all(isinstance(output, str) for output in texts)
            assert odd.score(texts)
    with pytest.raises(MeeError, match="training split holds no examples"):
        odd.baseline_texts(train[:0])


def test_every_synthetic_task_has_trivial_baselines():
    for name in GENERATORS:
        task = load_task(name, limit=2)
        train = load_task(name, split="train", limit=20)
        for texts in task.baseline_texts(train).values():
            assert len(texts) == 2 and all(texts)


def test_a_task_without_a_generator_needs_a_source(tmp_path, monkeypatch):
    """Before, the message listed the lessons of pre-training as synthetic tasks."""
    monkeypatch.setitem(TASKS, "headlines", TASKS["summarization"])
    with pytest.raises(
        MeeError, match=r'^Task "headlines" has no synthetic examples: give the source'
    ) as error:
        load_task("headlines", limit=3)
    assert "\n" not in str(error.value)
    path = write(tmp_path / "a.jsonl", [{"article": "Much text.", "highlights": "Text."}], "jsonl")
    assert load_task("headlines", path).targets == ["Text."]


def test_documents_of_spaces_alone_are_counted(tmp_path):
    """SAMSum has an empty one, so that they are taken; before, nothing said so."""
    rows = [{"dialogue": text, "summary": "One: more."} for text in ("A: hi", " ", "", "\n\t", "A:")]
    task = load_task("summarization", write(tmp_path / "d.jsonl", rows, "jsonl"))
    assert ": 5 examples, 3 of them without a text, digest" in repr(task)
    assert "without" not in repr(task[:1]) and "1 of them without" in repr(task[:2])


def test_scoring_needs_one_text_for_each_input():
    task = load_task("translation", limit=3)
    with pytest.raises(MeeError, match="2 texts for 3 examples"):
        task.score(["a", "b"])
    assert task.score(task.targets)["bleu"] == pytest.approx(100)


def test_the_digest_follows_the_content():
    assert load_task("translation", limit=5).digest == load_task("translation", limit=5).digest
    assert load_task("translation", limit=5).digest != load_task("translation", limit=6).digest


def test_an_empty_split_is_not_tokenized():
    """Of a corpus with no more examples than thresholds are chosen on, the rest is empty."""
    empty = load_task("translation", limit=5)[5:]
    assert shortened(empty, lambda *_, **__: pytest.fail("a tokenizer takes no empty list"), 10) == empty


@pytest.mark.parametrize("texts", [{"a": 1}, {"a"}, frozenset("a"), b"a"], ids=repr)
def test_texts_without_an_order_are_not_scored(texts):
    """Before, the keys of a dict and a set in any order were scored."""
    with pytest.raises(MeeError, match="give a list of texts"):
        load_task("translation", limit=1).score(texts)
