"""One loader for synthetic tasks, local files and the hub; every mistake is one clear line."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError, load_task
from mee_utils.tasks import TASKS

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
    with pytest.raises(MeeError, match='No file of the split "test".*it has train'):
        load_task(name, tmp_path, "test")


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
        (
            {"name": "translation", "source": None},
            'source=None: give a file, a folder, a hub id, or "synthetic"',
        ),
        ({"name": "translation", "source": ""}, "source='': give a file"),
        ({"name": "translation", "source": ["a.jsonl"]}, "give a file, a folder"),
        ({"name": "translation", "limit": 1, "languages": ("en",)}, "give source and target, as in"),
        ({"name": "translation", "limit": 1, "languages": "en"}, "languages='en': give source and target"),
        ({"name": None, "limit": 1}, 'Unknown task "None"'),
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
        ("header.csv", "translation\n", "is empty"),
        ("broken.jsonl", "{not json}\n", "line 1 is not JSON"),
        ("broken.parquet", "PAR0", "cannot be read"),
        ("broken.jsonl.gz", "not gzip", "cannot be read"),
        ("notes.txt", "hello", "is none of"),
        (
            "columns.jsonl",
            '{"english": "a"}\n',
            r"row 1 has the columns english; this task needs translation \(IWSLT",
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
        ("wide.csv", "translation\na,b\n", "row 1 has more or fewer cells"),
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
    with pytest.raises(MeeError, match="cannot be read as .jsonl.gz"):
        load_task("translation", tmp_path / "cut.jsonl.gz")


def test_answers_that_are_no_dictionary_are_named(tmp_path):
    row = ROWS["squad"][1] | {"answers": ["Rome"]}
    with pytest.raises(MeeError, match='row 1: Column "answers" holds'):
        load_task("question_answering", write(tmp_path / "a.jsonl", [row], "jsonl"))


def test_a_question_without_answers_is_refused(tmp_path):
    row = ROWS["squad"][1] | {"answers": {"text": [], "answer_start": []}}
    with pytest.raises(MeeError, match='row 1: Column "answers" has no list of texts'):
        load_task("question_answering", write(tmp_path / "a.jsonl", [row], "jsonl"))


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
        with pytest.raises(MeeError, match="^Cannot score .*: give a list of texts"):
            score(texts)


def test_every_task_has_trivial_baselines():
    for name in TASKS:
        task, train = load_task(name, limit=2), load_task(name, split="train", limit=20)
        for texts in task.baseline_texts(train).values():
            assert len(texts) == 2 and all(texts)


def test_scoring_needs_one_text_for_each_input():
    task = load_task("translation", limit=3)
    with pytest.raises(MeeError, match="2 texts for 3 examples"):
        task.score(["a", "b"])
    assert task.score(task.targets)["bleu"] == pytest.approx(100)


def test_the_digest_follows_the_content():
    assert load_task("translation", limit=5).digest == load_task("translation", limit=5).digest
    assert load_task("translation", limit=5).digest != load_task("translation", limit=6).digest
