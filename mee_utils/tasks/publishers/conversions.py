"""From a publisher's files to rows in the columns that `load_task` reads (`tasks.kinds`).

A conversion takes the folder of the raw files and returns the rows of each split. Those of Multi30k, SNIPS,
SumPubMed and DialogSum's validation split were run on the pinned commits; they give the measured rows.
"""

import gzip
import hashlib
import json
import random
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...common.files import read_yaml
from .origins import read_word_lines, read_words

Rows = list[dict]
Splits = dict[str, Rows]
SEED = 0  # of the order of SNIPS' questions and of Tatoeba's pairs for training
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")  # a sentence in a file of WMT


def captions(raw: Path) -> Splits:
    """Multi30k: a file a language, a caption a line."""
    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    splits = {}
    for split, name in names.items():
        by_language = []
        for language in ("en", "fr"):
            text = gzip.decompress((raw / f"{name}.{language}.gz").read_bytes()).decode()
            by_language.append([line.strip() for line in text.rstrip("\n").split("\n")])
        splits[split] = _pairs(zip(*by_language, strict=True))
    return splits


def _pairs(pairs: Iterable[tuple[str, str]]) -> Rows:
    return [{"translation": {"en": english, "fr": french}} for english, french in pairs]


def dialogues(raw: Path) -> Splits:
    """DialogSum: `fname` becomes `id`."""
    kept = ("dialogue", "summary", "topic")
    splits = {}
    for split, name in {"train": "train", "validation": "dev"}.items():
        lines = (raw / f"dialogsum.{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line]
        splits[split] = [{"id": row["fname"]} | {column: row[column] for column in kept} for row in rows]
    return splits


def requests(raw: Path) -> Splits:
    """SNIPS: a slot that occurs once in a request is asked for, and its text is the answer.

    "play [Yesterday](track) on [Deezer](service)" becomes "On which service?" with the answer "Deezer", and a
    question about the track. The publisher's validation file is our test split.
    """
    facts = read_yaml("tasks/publishers/snips.yaml")
    splits: Splits = {"train": [], "validation": [], "test": []}
    for intent, questions in facts["questions"].items():
        held_out = set(facts["validation"][intent])
        for number, row in _slot_questions(raw, intent, "train", questions):
            if row["id"] not in facts["left_out"]:
                splits["validation" if number in held_out else "train"].append(row)
        splits["test"] += [row for _, row in _slot_questions(raw, intent, "validate", questions)]
    for rows in splits.values():
        random.Random(SEED).shuffle(rows)
    return splits


def _slot_questions(raw: Path, intent: str, kind: str, questions: dict) -> Iterator[tuple[int, dict]]:
    """Every question about the requests of one file, with the number of its request."""
    ending = "_full" if kind == "train" else ""
    content = (raw / intent / f"{kind}_{intent}{ending}.json").read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError:  # as some of SNIPS' files are
        text = content.decode("latin-1")
    for number, request in enumerate(json.loads(text)[intent]):
        parts = request["data"]
        context = _one_blank("".join(part["text"] for part in parts))
        counts = Counter(part.get("entity") for part in parts)
        for part in parts:
            slot = part.get("entity")
            if slot and counts[slot] == 1:
                identity = f"{kind}-{intent}-{number}-{slot}"
                answer = _one_blank(part["text"])
                start = context.find(answer)
                yield number, _question(identity, intent, context, questions[slot], answer, start)


def _question(identity: str, title: str, context: str, question: str, answer: str, start: int) -> dict:
    """A row in SQuAD's columns."""
    return {
        "id": identity,
        "title": title,
        "context": context,
        "question": question,
        "answers": {"text": [answer], "answer_start": [start]},
    }


def _one_blank(text: str) -> str:
    return " ".join(text.split())


def sentence_pairs(raw: Path) -> Splits:
    """Tatoeba: English, French and their authors in a line. Validation sentences are never trained on."""
    with zipfile.ZipFile(raw / "fra-eng.zip") as archive:
        lines = archive.read("fra.txt").decode().splitlines()
    pairs = dict.fromkeys(tuple(line.split("\t")[:2]) for line in lines if "\t" in line)
    order = {key: number for number, key in enumerate(read_words("sentences.txt"))}
    held_out = {order[key]: pair for pair in pairs if (key := fingerprint(*pair)) in order}
    sentences = {english for english, _ in held_out.values()}
    training = [pair for pair in pairs if pair[0] not in sentences]
    random.Random(SEED).shuffle(training)
    validation = [held_out[number] for number in sorted(held_out)]
    return {"train": _pairs(training), "validation": _pairs(validation)}


def paragraphs(raw: Path) -> Splits:
    """SQuAD: five questions about each of 100 paragraphs, in our order."""
    keys = {}
    for paragraph, *fingerprints in read_word_lines("paragraphs.txt"):
        keys |= {key: f"{paragraph}-{number}" for number, key in enumerate(fingerprints)}
    rows = {}
    for context, question, answer in _squad_questions(raw / "train-v1.1.json"):
        text = answer["text"]
        key = fingerprint(context, question, text)
        if key in keys:
            rows[key] = _question(keys[key], "", context, question, text, answer["answer_start"])
    return {"validation": [rows[key] for key in keys if key in rows]}


def _squad_questions(path: Path) -> Iterator[tuple[str, str, dict]]:
    """The context, question and first answer of everything that SQuAD asks."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question["question"], question["answers"][0]


def news(raw: Path) -> Splits:
    """The test set of WMT 2013: one file of segments a language."""
    sentences = []
    with tarfile.open(raw / "test.tgz") as archive:
        for language in ("en", "fr"):
            file = archive.extractfile(f"test/newstest2013-src.{language}.sgm")
            sentences.append(SEGMENT.findall(file.read().decode()))
    return {"validation": _pairs(zip(*sentences, strict=True))}


def articles(raw: Path) -> Splits:
    """SumPubMed: an article and its abstract are two files of one number."""
    rows = []
    for number in read_words("articles.txt"):
        document = (raw / f"line_text/text_{number}.txt").read_text(encoding="utf-8")
        summary = (raw / f"shorter_abstract/abst_{number}.txt").read_text(encoding="utf-8")
        rows.append({"document": document.strip(), "summary": summary.strip()})
    return {"validation": rows}


def fingerprint(*texts: str) -> str:
    """Ten hexadecimal digits by which a row is known without its text: of its sha256, blanks made one."""
    return hashlib.sha256(_one_blank(" ".join(texts)).encode()).hexdigest()[:10]


CONVERSIONS: dict[str, Callable[[Path], Splits]] = {
    "captions": captions,
    "dialogues": dialogues,
    "requests": requests,
    "sentence_pairs": sentence_pairs,
    "paragraphs": paragraphs,
    "news": news,
    "articles": articles,
}
