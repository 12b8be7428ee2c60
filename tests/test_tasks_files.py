"""Files and folders as they occur: saved by `datasets`, half there, there twice, of odd content."""

import gzip
import json
import os

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mee_utils import MeeError, load_task
from mee_utils.common.sources import is_hub_id
from mee_utils.tasks.sources import local_files

ROW = {"dialogue": "A: hi", "summary": "1918-11-11"}
LINE = json.dumps(ROW) + "\n"


@pytest.fixture(autouse=True)
def no_progress_bars():
    datasets.disable_progress_bars()


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refused(source, task="summarization", **options):
    """What `load_task` says of a source, which is one line."""
    with pytest.raises(MeeError) as error:
        load_task(task, source, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# Data sets that `datasets` saved


def numbered(count):
    return datasets.Dataset.from_list([ROW | {"dialogue": f"A: {number}"} for number in range(count)])


@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_data_set_is_read_like_a_file(tmp_path, shards):
    numbered(7).save_to_disk(str(tmp_path), num_shards=shards)
    for split in ("validation", "test"):
        task = load_task("summarization", tmp_path, split)
        assert task.inputs == [f"summarize: A: {number}" for number in range(7)]
        assert task.targets == ["1918-11-11"] * 7  # a text, and no date
    assert len(load_task("summarization", tmp_path, limit=2)) == 2


def test_a_saved_dictionary_of_data_sets_has_splits(tmp_path):
    splits = {"train": numbered(5), "validation": numbered(2)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path))
    assert len(load_task("summarization", tmp_path, "train")) == 5
    assert len(load_task("summarization", tmp_path, "validation")) == 2
    assert len(load_task("summarization", tmp_path, folder="train")) == 5
    assert 'No file of the split "test"' in refused(tmp_path, split="test")
    assert "it has train, validation" in refused(tmp_path, split="test")
    write(tmp_path, {"validation.jsonl": LINE})
    assert 'has the split "validation" twice, validation.jsonl and validation:' in refused(tmp_path)


def test_rows_do_not_depend_on_the_format_or_selection_that_was_saved(tmp_path):
    numbered(5).with_format("numpy").select([4, 0]).save_to_disk(str(tmp_path))
    assert load_task("summarization", tmp_path).inputs == ["summarize: A: 4", "summarize: A: 0"]


@pytest.mark.parametrize(
    "features",
    [
        datasets.Features({"text": datasets.List(datasets.Value("string"))}),
        datasets.Json(),
        datasets.Value("string"),
    ],
    ids=["struct", "json", "text"],
)
def test_nested_columns_are_read_in_every_type(tmp_path, features):
    answers = {"text": ["1918", "in 1918"]}
    columns = {"context": ["c"], "question": ["q"], "answers": [answers]}
    if features == datasets.Value("string"):
        columns["answers"] = [json.dumps(answers)]
    text = datasets.Value("string")
    types = datasets.Features({"context": text, "question": text, "answers": features})
    datasets.Dataset.from_dict(columns, features=types).save_to_disk(str(tmp_path))
    assert load_task("question_answering", tmp_path).references == [["1918", "in 1918"]]


def test_a_saved_data_set_that_changes_is_never_stale(tmp_path):
    numbered(3).save_to_disk(str(tmp_path))
    first = load_task("summarization", tmp_path)
    (tmp_path / "cache-1234.arrow").write_bytes(b"left behind by Dataset.map")
    assert load_task("summarization", tmp_path).digest == first.digest
    numbered(4).save_to_disk(str(tmp_path))
    second = load_task("summarization", tmp_path)
    assert len(second) == 4 and second.digest != first.digest


def test_a_damaged_saved_data_set_is_one_line(tmp_path):
    numbered(0).save_to_disk(str(tmp_path / "empty"))
    assert "has no rows" in refused(tmp_path / "empty")
    numbered(3).save_to_disk(str(tmp_path / "part"), num_shards=3)
    (tmp_path / "part" / "data-00001-of-00003.arrow").unlink()
    assert "data-00001-of-00003.arrow" in refused(tmp_path / "part")
    numbered(3).save_to_disk(str(tmp_path / "cut"))
    (path,) = (tmp_path / "cut").glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as a data set saved by datasets" in refused(tmp_path / "cut")
    (tmp_path / "cut" / "state.json").write_text("{")
    assert "cannot be read as a data set saved by datasets" in refused(tmp_path / "cut")


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_damaged_bytes_are_one_line_wherever_they_are(tmp_path, form):
    """Before, wrong offsets in a saved data set ended the process: Arrow does not look at them by itself."""
    if form == "saved":
        numbered(50).save_to_disk(str(tmp_path))
        (path,) = tmp_path.glob("*.arrow")
    else:
        path = tmp_path / "a.parquet"
        numbered(50).to_parquet(path)
    whole = path.read_bytes()
    source = tmp_path if form == "saved" else path
    refusals = 0
    for start in range(0, len(whole) - 8, len(whole) // 100):
        path.write_bytes(whole[:start] + b"\x7f" * 8 + whole[start + 8 :])
        try:
            load_task("summarization", source)  # in a text, eight other letters
        except MeeError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 10


# Which files are a split


@pytest.mark.parametrize("name", ["._0000.jsonl", "_0000.jsonl", ".0000.jsonl"])
def test_hidden_files_in_the_folder_of_a_split_are_no_data(tmp_path, name):
    write(tmp_path, {"validation/0000.jsonl": LINE, f"validation/{name}": b"\0\5\x16\7"})
    assert len(load_task("summarization", tmp_path)) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("validation-00000-of-00001.jsonl", "validation-00000-of-00002.jsonl"),
        ("validation-00000-of-00001-0a1b.jsonl", "validation-00000-of-00001-2c3d.jsonl"),
        ("validation-00000-of-00001.jsonl", "validation-extra.jsonl"),
        ("validation-de.jsonl", "validation-en.jsonl"),
        ("validation/data-00000-of-00001.jsonl", "validation/data-00000-of-00002.jsonl"),
        ("validation/0000.jsonl", "validation/data-00000-of-00001.jsonl"),
        ("validation/0000.csv", "validation/0000.jsonl"),
    ],
)
def test_files_that_are_no_shards_of_one_another_are_a_split_twice(tmp_path, first, second):
    """Before, the rows of all of them were joined, or "3 of the 1 files" were there."""
    third = second.replace("-00000-of-00002", "-00001-of-00002")
    write(tmp_path, dict.fromkeys([first, second, third], LINE))
    assert f'has the split "validation" twice, {first} and {second}' in refused(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["validation-0.jsonl", "validation-1.jsonl", "validation-10.jsonl"],
        ["validation-00000-of-00002-0a1b.jsonl", "validation-00001-of-00002-2c3d.jsonl"],
        ["validation/part-00000-2f6a-c000.jsonl", "validation/part-00000-77ab-c000.jsonl"],
        ["validation-de.jsonl"],
    ],
)
def test_shards_are_joined(tmp_path, names):
    write(tmp_path, dict.fromkeys(names, LINE))
    assert len(load_task("summarization", tmp_path)) == len(names)


def parquet(columns):
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue().to_pybytes()


def test_a_part_without_rows_is_read_where_others_have_some(tmp_path):
    """Spark writes such parts; a file of no byte may also be half a copy."""
    text = pa.array([], pa.string())
    empty = parquet({"dialogue": text, "summary": text})
    full = parquet({"dialogue": ["A: hi"], "summary": ["Hi."]})
    write(tmp_path / "a/validation.parquet", {"part-0.parquet": empty, "part-1.parquet": full})
    assert len(load_task("summarization", tmp_path / "a")) == 1
    write(tmp_path / "b", {"validation.parquet": empty})
    assert "validation.parquet has no rows" in refused(tmp_path / "b")
    write(tmp_path / "c", {"validation/0000.jsonl": LINE, "validation/0001.jsonl": ""})
    assert "0001.jsonl is empty" in refused(tmp_path / "c")


def test_a_link_to_nothing_is_one_line(tmp_path):
    (tmp_path / "validation.jsonl").symlink_to(tmp_path / "fetched" / "later.jsonl")
    assert "validation.jsonl cannot be read (No such file" in refused(tmp_path)
    with pytest.raises(MeeError, match="cannot be read"):
        local_files(tmp_path, "validation")


# What a file holds


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.jsonl.gz"])
def test_a_pointer_of_git_lfs_says_what_to_do(tmp_path, name):
    write(tmp_path, {name: "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"})
    assert 'is a pointer of Git LFS, not the file: fetch it by "git lfs pull"' in refused(tmp_path / name)


DEEP = "[" * 100_000
ODD = {
    "deep.jsonl": (DEEP, "line 1 cannot be read as JSON"),
    "nested.jsonl": ('{"dialogue": ' + DEEP, "line 1 cannot be read as JSON"),
    "long.jsonl": (f'{LINE}{{"dialogue": ' + "1" * 5000 + "}", "line 2 cannot be read as JSON"),
    "key.jsonl": (LINE[:-2] + ', "dialogue": "B: no"}', "line 1 has the key 'dialogue' twice"),
    "inner.jsonl": ('{"id": {"a": [{"b": 1, "b": 1}]}}', "line 1 has the key 'b' twice"),
    "half.jsonl": ('{"dialogue": "a", "summary": "\\ud83d"}', "half of a character"),
    "halves.jsonl": ('{"dialogue": "a \\ude00 b", "summary": "s"}', "half of a character"),
    "twice.csv": ("dialogue,dialogue,summary\na,b,c\n", "has the column 'dialogue' twice"),
    "open.csv": ('dialogue,summary\na,"b\n', "cannot be read as .csv"),
    "cut.csv": ("dialogue,summary\na,b\nc\n", "row 2 has more or fewer cells"),
    "wide.csv": ("dialogue,summary\na,b,\n", "row 1 has more or fewer cells"),
    "packed.jsonl": (gzip.compress(LINE.encode()), "is not UTF-8"),
    "garbage.jsonl.gz": (gzip.compress(LINE.encode()) + b"garbage", "cannot be read as .jsonl.gz"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_content_is_one_line(tmp_path, name):
    content, message = ODD[name]
    write(tmp_path, {name: content})
    assert message in refused(tmp_path / name)


NESTED = {
    "digits": '{"text": ["Rome"], "answer_start": [' + "1" * 5000 + "]}",
    "brackets": '{"text": ' + "[" * 200_000,
    "a key twice": '{"text": ["Rome"], "text": ["Oslo"]}',
    "no JSON": "Rome",
}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("case", NESTED)
def test_json_in_a_cell_that_cannot_be_read_names_file_and_row(tmp_path, case, ending):
    """Before, ValueError and RecursionError of Python; of a key that is there twice the last was taken."""
    path = tmp_path / f"a.{ending}"
    good = '{"text": ["Rome"]}'
    columns = {"question": ["q"] * 2, "context": ["Rome"] * 2, "answers": [good, NESTED[case]]}
    table = pd.DataFrame(columns)
    if ending == "csv":
        table.to_csv(path, index=False)
    elif ending == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        path.write_bytes(parquet(columns))
    said = refused(path, "question_answering")
    assert f'{path}, row 2: Column "answers" holds \'' in said and len(said) < 400
    assert {"a key twice": "which has the key 'text' twice", "no JSON": "is not JSON"}.get(case, "") in said


@pytest.mark.parametrize("depth", [500, 900, 3000, 9000])
def test_brackets_that_json_just_takes_are_one_line(tmp_path, depth):
    nested = "[" * depth + "]" * depth
    write(tmp_path, {"a.jsonl": f'{{"dialogue": {nested}, "summary": "s"}}'})
    assert "a.jsonl" in refused(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["V.JSONL.GZ", "V.JSONL", "v.Jsonl.Gz", "V.CSV", "V.PARQUET"])
def test_endings_may_be_in_capitals(tmp_path, name):
    """Before, V.JSONL.GZ was read as text, and misspelt it was an id of the hub."""
    path = tmp_path / "Validation" / name
    path.parent.mkdir()
    if name.lower().endswith(".gz"):
        path.write_bytes(gzip.compress(LINE.encode()))
    elif name.lower().endswith(".jsonl"):
        path.write_text(LINE)
    else:
        row = pd.DataFrame([json.loads(LINE)])
        path.write_bytes(row.to_csv(index=False).encode() if "CSV" in name else row.to_parquet())
    assert len(load_task("summarization", path)) == 1
    assert not is_hub_id(name)


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_a_column_that_python_cannot_hold_is_one_line(tmp_path, kind):
    far = {
        "date": pa.array([2**30], pa.int32()).cast(pa.date32()),
        "timestamp": pa.array([9 * 10**12], pa.timestamp("s")),
    }
    write(tmp_path, {"a.parquet": parquet({"dialogue": ["d"], "summary": ["s"], "when": far[kind]})})
    assert "a.parquet cannot be read as .parquet" in refused(tmp_path / "a.parquet")


def test_two_parquet_columns_of_one_name_are_one_line(tmp_path):
    columns = [pa.array([text]) for text in ("a", "b", "s")]
    table = pa.Table.from_arrays(columns, names=["dialogue", "dialogue", "summary"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "has the column 'dialogue' twice" in refused(tmp_path / "a.parquet")


TEXTS = ["007", "2020-01-01", "NA", "null", "1e5", "True", "a\u2028b", " a ", "a\r\nb"]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_stay_what_they_are_in_every_format(tmp_path, ending, text):
    path = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        path.write_text(json.dumps({"dialogue": text, "summary": text}, ensure_ascii=False), "utf-8")
    elif ending == "csv":
        path.write_bytes(f'dialogue,summary\n"{text}","{text}"\n'.encode())
    else:
        path.write_bytes(parquet({"dialogue": [text], "summary": [text]}))
    task = load_task("summarization", path)
    assert task.inputs == [f"summarize: {text}"] and task.targets == [text]


@pytest.mark.parametrize("source", ["~nobody-of-this-name/corpus", "a" * 300, f"{'b' * 300}.jsonl"])
def test_a_path_that_cannot_be_is_one_line(source, monkeypatch):
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    refused(source)


@pytest.mark.parametrize("option", ["folder", "revision"])
@pytest.mark.parametrize("value", [3, 3.0, ["a"], b"a"])
def test_a_folder_and_a_revision_are_texts(option, value):
    for source in (".", "someone/pairs"):
        assert f"{option}={value!r}: give a text" in refused(source, **{option: value})
