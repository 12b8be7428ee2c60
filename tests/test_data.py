"""`make data`: corpora come from their publishers whole, checked, and as the rows that were measured."""

import gzip
import hashlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from publisher import UNDONE, served

from mee_utils import MeeError, load_task
from mee_utils.companion import profiles
from mee_utils.companion.cli import main, new_parser
from mee_utils.companion.profiles import load_profile, profile_names
from mee_utils.companion.running import corpora
from mee_utils.tasks.kinds import TASKS
from mee_utils.tasks.publishers import conversions
from mee_utils.tasks.publishers.download import digest_of, download_file
from mee_utils.tasks.publishers.fetch import fetch, packed
from mee_utils.tasks.publishers.origins import RawFile, Split, load_origins

ROOT = Path(__file__).parent.parent
REAL = Path(os.environ.get("DATA") or ROOT.parent / "shared" / "data")
ORIGINS = load_origins()
needs_corpora = pytest.mark.skipif(
    not all((REAL / name).is_dir() for name in ORIGINS),
    reason=f"no corpora in {REAL}: set DATA to their folder",
)


def pairs(split, count=4):
    return [{"translation": {"en": f"{split} {n}", "fr": f"à {split} {n}"}} for n in range(count)]


def question(identity, context, asked, answer):
    answers = {"text": [answer], "answer_start": [context.find(answer)]}
    return {
        "id": identity,
        "title": identity.split("-")[1],
        "context": context,
        "question": asked,
        "answers": answers,
    }


def slot_questions(kind, intent, number):
    facts = conversions.read_yaml("tasks/publishers/snips.yaml")["questions"][intent]
    slots = list(facts)[:2]
    context = f"do the first {number} and the second café {number}"
    answers = (f"first {number}", f"second café {number}")
    stem = f"{kind}-{intent}-{number}"
    return [
        question(f"{stem}-{slot}", context, facts[slot], answer)
        for slot, answer in zip(slots, answers, strict=True)
    ]


def shuffled(rows):
    random.Random(conversions.SEED).shuffle(rows)
    return rows


def requests():
    """Two intents: requests 0 and 1 in training, the first listed one in validation, 0 and 2 in test."""
    facts = conversions.read_yaml("tasks/publishers/snips.yaml")
    splits = {"train": [], "validation": [], "test": []}
    for intent in list(facts["questions"])[:2]:
        held_out = facts["validation"][intent][0]
        for number in sorted({0, 1, held_out}):
            splits["validation" if number in facts["validation"][intent] else "train"] += slot_questions(
                "train", intent, number
            )
        for number in (0, 2):
            splits["test"] += slot_questions("validate", intent, number)
    return {name: shuffled(rows) for name, rows in splits.items()}


def dialogues(split):
    line = "#Person1#: Où?\n#Person2#: There.\u2028"
    return [{"id": f"{split}_{n}", "dialogue": line, "summary": f"{n}.", "topic": "x"} for n in range(3)]


@pytest.fixture
def small(monkeypatch):
    """Synthetic rows of every corpus by name and split; facts that list real rows list these instead."""
    squad = [question(f"v-7-{n}", f"The  {n} is here. ", f"Where is {n}? ", "here") for n in range(3)]
    tatoeba = {"train": pairs("again", 9), "validation": pairs("held out", 2)}
    keys = {
        "sentences.txt": [
            conversions.fingerprint(*row["translation"].values()) for row in tatoeba["validation"]
        ],
        "articles.txt": ["12", "7"],
    }
    listed = ["v-7"] + [
        conversions.fingerprint(row["context"], row["question"], row["answers"]["text"][0]) for row in squad
    ]
    monkeypatch.setattr(conversions, "read_words", keys.__getitem__)
    monkeypatch.setattr("publisher.read_words", keys.__getitem__)
    monkeypatch.setattr(conversions, "read_word_lines", lambda name: [listed])
    for row in squad:
        row["title"] = ""
    return {
        "multi30k_en_fr": {split: pairs(split) for split in ("train", "validation", "test")},
        "dialogsum": {split: dialogues(split) for split in ("train", "validation")},
        "snips_qa": requests(),
        "tatoeba_en_fr": tatoeba,
        "squad": {"validation": squad},
        "newstest2013_en_fr": {"validation": pairs("news\u00a0&")},
        "sumpubmed": {"validation": [{"document": f"A\n{n}", "summary": f"{n}"} for n in range(2)]},
    }


def published(name, splits, url=""):
    """The origin of a corpus as if these rows were it, and its raw files by path."""
    files = UNDONE[ORIGINS[name].convert](splits)
    listed = [
        RawFile(path, len(content), f"git:{digest_of('git', content)}") for path, content in files.items()
    ]
    measured = {}
    for split, rows in splits.items():
        lines = gzip.decompress(packed(rows, split))
        measured[split] = Split(len(rows), hashlib.sha256(lines).hexdigest())
    origin = replace(ORIGINS[name], url=f"{url}{name}/", files=tuple(listed), splits=measured)
    return origin, {f"{name}/{path}": content for path, content in files.items()}


def rows_in(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ORIGINS)
def test_a_corpus_arrives_as_it_was_measured(name, small, tmp_path):
    said = []
    with served({}) as (url, publisher):
        origin, files = published(name, small[name], url)
        publisher.files.update(files)
        fetch([origin], tmp_path, said.append)
        assert sorted(publisher.requests) == sorted(files), "every file once"
        assert origin.title in said[0] and origin.licence in said[0] and " MB" in said[0], "said first"
        assert said[1] == f"{name}: the rows that were measured"
        for split, rows in small[name].items():
            assert rows_in(tmp_path / name / f"{split}.jsonl.gz") == rows
        before = contents(tmp_path)
        assert set(before) == {f"{name}/{split}.jsonl.gz" for split in small[name]}, (
            "and nothing else is left"
        )
        fetch([origin], tmp_path, said.append)
        assert len(publisher.requests) == len(files) and contents(tmp_path) == before, "once is enough"
        assert said[2].endswith("there: the rows that were measured")


@pytest.fixture
def captions(small, tmp_path):
    """A publisher of captions: origin, handler, the folder to fetch into, and what was said."""
    with served({}) as (url, publisher):
        origin, files = published("multi30k_en_fr", small["multi30k_en_fr"], url)
        publisher.files.update(files)
        yield origin, publisher, tmp_path / "data", []


def test_an_interrupted_download_goes_on_where_it_ended(captions):
    origin, publisher, folder, said = captions
    path = "multi30k_en_fr/test_2016_flickr.fr.gz"
    publisher.cut.add(path)
    with pytest.raises(MeeError, match=r"1 of 1 corpora could not be fetched \(multi30k_en_fr\): .*again"):
        fetch([origin], folder, said.append)
    assert "broke off after" in said[-1] and "\n" not in said[-1]
    assert not (folder / "multi30k_en_fr").exists(), "no split of half a corpus"
    assert not list(folder.rglob("*partial*")) and not list(folder.rglob("test_2016_flickr.fr.gz"))
    arrived = {file.name for file in folder.rglob("*.gz")}
    publisher.cut.clear()
    publisher.requests.clear()
    fetch([origin], folder, said.append)
    assert {request.split("/")[1] for request in publisher.requests} == {
        f.name for f in origin.files
    } - arrived
    assert said[-1].endswith("the rows that were measured")


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda files, path: files.pop(path), "is not there any more (HTTP 404)"),
        (
            lambda files, path: files.update({path: gzip.compress(b"other\n", mtime=0)}),
            "is not the file that was measured",
        ),
        (lambda files, path: files.update({path: b""}), "is not the file that was measured"),
    ],
)
def test_a_publisher_that_is_gone_or_changed_is_one_line_and_harms_no_other(
    break_it, message, captions, small, tmp_path
):
    origin, publisher, folder, said = captions
    other, files = published("dialogsum", small["dialogsum"], origin.url.removesuffix("multi30k_en_fr/"))
    publisher.files.update(files)
    break_it(publisher.files, "multi30k_en_fr/val.fr.gz")
    with pytest.raises(MeeError, match=r"1 of 2 corpora could not be fetched \(multi30k_en_fr\)"):
        fetch([origin, other], folder, said.append)
    assert any(message in line and "val.fr.gz" in line for line in said)
    assert all("\n" not in line for line in said) and said[-1] == "dialogsum: the rows that were measured"
    assert (folder / "dialogsum" / "train.jsonl.gz").exists() and not (folder / "multi30k_en_fr").exists()


def test_a_server_that_does_not_answer_is_one_line(tmp_path):
    with served({}) as (url, _):
        pass
    with pytest.raises(MeeError, match=rf"^{url}x does not answer \(.*refused.*\): check the network.$"):
        download_file(f"{url}x", tmp_path / "x")
    assert contents(tmp_path) == {}


def test_a_page_in_place_of_an_unpinned_file_is_not_kept(small, tmp_path):
    """Its checksum is not known, so that what is wrong shows in its form."""
    said = []
    with served({"tatoeba_en_fr/fra-eng.zip": b"<html>"}) as (url, publisher):
        origin, files = published("tatoeba_en_fr", small["tatoeba_en_fr"], url)
        origin = replace(origin, files=(RawFile("fra-eng.zip", 9),))
        with pytest.raises(MeeError, match="1 of 1 corpora"):
            fetch([origin], tmp_path, said.append)
        assert "another form than expected" in said[-1] and contents(tmp_path) == {}
        publisher.files.update(files)
        fetch([origin], tmp_path, said.append)
    assert said[-1].endswith("the rows that were measured")


def test_a_collection_that_has_grown_keeps_our_validation_sentences_apart(small, tmp_path):
    said = []
    splits = small["tatoeba_en_fr"]
    held_out = splits["validation"][0]["translation"]["en"]
    grown = [*pairs("new"), {"translation": {"en": held_out, "fr": "une autre traduction"}}]
    with served({}) as (url, publisher):
        origin, _ = published("tatoeba_en_fr", splits, url)
        _, files = published("tatoeba_en_fr", splits | {"train": splits["train"] + grown})
        publisher.files.update(files)
        fetch([replace(origin, files=(RawFile("fra-eng.zip", 9),))], tmp_path, said.append)
    assert "train has 13 rows for 9; its publisher replaces the file" in said[-1]
    assert rows_in(tmp_path / "tatoeba_en_fr" / "validation.jsonl.gz") == splits["validation"]
    trained = {row["translation"]["en"] for row in rows_in(tmp_path / "tatoeba_en_fr" / "train.jsonl.gz")}
    assert held_out not in trained and "new 0" in trained


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], gzip.compress(b"{}\n", mtime=0)],
    ids=["no gzip", "cut short", "other rows"],
)
def test_what_is_there_and_differs_is_named_and_left_alone(captions, content):
    origin, publisher, folder, said = captions
    fetch([origin], folder, said.append)
    path = folder / "multi30k_en_fr" / "test.jsonl.gz"
    path.write_bytes(content)
    publisher.requests.clear()
    fetch([origin], folder, said.append)
    assert "test has" in said[-1] and "remove its folder to fetch it again" in said[-1]
    assert path.read_bytes() == content and not publisher.requests


def test_every_local_corpus_of_every_profile_has_a_publisher():
    local = {name: corpora.local_corpora(load_profile(name)) for name in profile_names()}
    assert set(local["real"]) == set(ORIGINS) and local["small"] == [] and local["paper"] == []
    for origin in ORIGINS.values():
        assert origin.convert in conversions.CONVERSIONS and origin.licence and origin.cite
        for file in origin.files:
            at_commit = "raw.githubusercontent.com" in origin.url
            assert at_commit or file.checksum or not origin.pinned, file.name


def test_the_command_says_what_a_profile_needs(capsys, monkeypatch, tmp_path):
    assert main(["data"]) == 0
    assert "profile small reads no files" in capsys.readouterr().out
    with served({}) as (url, _):
        gone = {name: replace(origin, url=url) for name, origin in ORIGINS.items()}
        monkeypatch.setattr(corpora, "load_origins", lambda: gone)
        assert main(["data", "--profile", "real", "--data", str(tmp_path / "new")]) == 2
    answer = capsys.readouterr()
    assert answer.out.count("Licence: ") == len(ORIGINS) == answer.out.count("(HTTP 404)")
    assert answer.err.startswith("error: 7 of 7 corpora could not be fetched") and answer.err.count("\n") == 1


def test_a_profile_of_unknown_corpora_says_so(tmp_path):
    text = (profiles.FOLDER / "real.yaml").read_text().replace("name: real", "name: mine")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("{data}/dialogsum", "{data}/meetings"))
    with pytest.raises(
        MeeError, match=r"No publisher of meetings is known, only those of multi30k_en_fr, .*yourself"
    ):
        corpora.fetch_corpora(load_profile(path), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_was_fetched_is_read_without_being_named(monkeypatch, small, tmp_path):
    monkeypatch.setattr(profiles, "FETCHED", tmp_path / "data")
    assert load_profile("real").data is None and not load_profile("real").has_data("translation")
    with served({}) as (url, publisher):
        origin, files = published("multi30k_en_fr", small["multi30k_en_fr"], url)
        publisher.files.update(files)
        fetch([origin], tmp_path / "data", print)
    source = load_profile("real").source("translation")
    assert load_task("translation", source=source, split="test").targets[0] == "à test 0"
    assert load_profile("real", "elsewhere").data == "elsewhere"
    assert new_parser().parse_args(["notebook", "07_lossless"]).data is None, "else it stands in the notebook"


@needs_corpora
@pytest.mark.parametrize("name", ORIGINS)
def test_the_measured_rows_come_back_from_raw_files(name, tmp_path):
    """The facts in this package against the corpora themselves, through the real download."""
    origin = ORIGINS[name]
    measured = {split: rows_in(REAL / name / f"{split}.jsonl.gz") for split in origin.splits}
    said = []
    with served({}) as (url, publisher):
        files = UNDONE[origin.convert](measured)
        assert set(files) == {file.name for file in origin.files}
        publisher.files.update(files)
        unchecked = tuple(RawFile(file.name, file.size) for file in origin.files)
        fetch([replace(origin, url=url, files=unchecked)], tmp_path, said.append)
    assert said[-1] == f"{name}: the rows that were measured"
    for split in origin.splits:
        path = tmp_path / name / f"{split}.jsonl.gz"
        assert path.read_bytes() == (REAL / name / path.name).read_bytes(), "the same file, byte for byte"


@needs_corpora
def test_no_text_of_a_corpus_is_in_the_package():
    folder = Path(conversions.__file__).parent
    kept = " ".join(path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file())
    for name, origin in ORIGINS.items():
        for split in origin.splits:
            for row in rows_in(REAL / name / f"{split}.jsonl.gz")[:200]:
                texts = row.get("translation", {}).values() or [
                    row.get("context") or row.get("document") or ""
                ]
                assert not [text for text in texts if len(text) > 30 and text in kept]


@pytest.mark.parametrize("kind", ["git", "sha256", "md5"])
def test_checksums_are_those_of_the_usual_tools(kind):
    known = {
        "git": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "md5": "d41d8cd98f00b204e9800998ecf8427e",
    }
    assert digest_of(kind, b"") == known[kind]


def test_the_tasks_of_the_corpora_read_their_rows(small, tmp_path):
    tasks = {"multi30k_en_fr": "translation", "dialogsum": "summarization", "snips_qa": "question_answering"}
    tasks |= {
        "squad": "question_answering",
        "tatoeba_en_fr": "translation",
        "newstest2013_en_fr": "translation",
    }
    tasks["sumpubmed"] = "long_document_summarization"
    assert set(tasks) == set(ORIGINS) and set(tasks.values()) == set(TASKS)
    for name, task in tasks.items():
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(packed(small[name]["validation"], name))
        assert len(load_task(task, source=str(path)).inputs) == len(small[name]["validation"])
