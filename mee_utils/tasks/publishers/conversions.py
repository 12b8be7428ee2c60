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
from collections.abc import Callable, Iterator
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
    return {split: _pairs(*_caption_lines(raw, name)) for split, name in names.items()}


def _caption_lines(raw: Path, name: str) -> list[list[str]]:
    texts = [gzip.decompress((raw / f"{name}.{language}.gz").read_bytes()) for language in ("en", "fr")]
    return [[line.strip() for line in text.decode().rstrip("\n").split("\n")] for text in texts]


def _pairs(english: list[str], french: list[str]) -> Rows:
    return [{"translation": {"en": en, "fr": fr}} for en, fr in zip(english, french, strict=True)]


def dialogues(raw: Path) -> Splits:
    """DialogSum: `fname` becomes `id`."""
    names = {"train": "train", "validation": "dev"}
    return {split: _dialogues(raw / f"dialogsum.{name}.jsonl") for split, name in names.items()}


def _dialogues(path: Path) -> Rows:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    kept = ("dialogue", "summary", "topic")
    return [{"id": row["fname"]} | {column: row[column] for column in kept} for row in rows]


def requests(raw: Path) -> Splits:
    """SNIPS: a slot that occurs once in a request is asked for, and its text is the answer.

    "play [Yesterday](track) on [Deezer](service)" becomes "On which service?" with the answer "Deezer", and a
    question about the track. The publisher's validation file is our test split.
    """
    facts = read_yaml("tasks/publishers/snips.yaml")
    train: Rows = []
    validation: Rows = []
    test: Rows = []
    for intent, questions in facts["questions"].items():
        held_out = set(facts["validation"][intent])
        for number, row in _slot_questions(raw, intent, "train", questions):
            if row["id"] not in facts["left_out"]:
                (validation if number in held_out else train).append(row)
        test += [row for _, row in _slot_questions(raw, intent, "validate", questions)]
    splits = {"train": train, "validation": validation, "test": test}
    for rows in splits.values():
        random.Random(SEED).shuffle(rows)
    return splits


def _slot_questions(raw: Path, intent: str, kind: str, questions: dict) -> Iterator[tuple[int, dict]]:
    """Every question about the requests of one file, with the number of its request."""
    ending = "_full" if kind == "train" else ""
    content = (raw / intent / f"{kind}_{intent}{ending}.json").read_bytes()
    for number, request in enumerate(json.loads(_decoded(content))[intent]):
        parts = request["data"]
        context = _one_blank("".join(part["text"] for part in parts))
        counts = Counter(part.get("entity") for part in parts)
        for part in parts:
            slot = part.get("entity")
            if slot and counts[slot] == 1:
                identity = f"{kind}-{intent}-{number}-{slot}"
                answer = _one_blank(part["text"])
                yield number, _question(identity, intent, context, questions[slot], answer)


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:  # as some of SNIPS' files are
        return content.decode("latin-1")


def _question(identity: str, title: str, context: str, question: str, answer: str, start: int = -1) -> dict:
    """A row in SQuAD's columns."""
    start = context.find(answer) if start < 0 else start
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
    return {
        split: [{"translation": {"en": english, "fr": french}} for english, french in chosen]
        for split, chosen in (("train", training), ("validation", validation))
    }


def paragraphs(raw: Path) -> Splits:
    """SQuAD: five questions about each of 100 paragraphs, in our order."""
    keys = {}
    for paragraph, *fingerprints in read_word_lines("paragraphs.txt"):
        keys |= {key: f"{paragraph}-{number}" for number, key in enumerate(fingerprints)}
    rows = {}
    for context, question, answer in _squad_questions(raw / "train-v1.1.json"):
        key = fingerprint(context, question, answer["text"])
        if key in keys:
            rows[key] = _question(
                keys[key], "", context, question, answer["text"], start=answer["answer_start"]
            )
    return {"validation": [rows[key] for key in keys if key in rows]}


def _squad_questions(path: Path) -> Iterator[tuple[str, str, dict]]:
    """The context, question and first answer of everything that SQuAD asks."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph["context"], question["question"], question["answers"][0]


def news(raw: Path) -> Splits:
    """The test set of WMT 2013: one file of segments a language."""
    with tarfile.open(raw / "test.tgz") as archive:
        texts = [_archived(archive, f"test/newstest2013-src.{language}.sgm") for language in ("en", "fr")]
    return {"validation": _pairs(*(SEGMENT.findall(text) for text in texts))}


def _archived(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    return file.read().decode() if file else ""


def articles(raw: Path) -> Splits:
    """SumPubMed: an article and its abstract are two files of one number."""
    return {"validation": [_article(raw, number) for number in read_words("articles.txt")]}


def _article(raw: Path, number: str) -> dict:
    document = (raw / f"line_text/text_{number}.txt").read_text(encoding="utf-8")
    summary = (raw / f"shorter_abstract/abst_{number}.txt").read_text(encoding="utf-8")
    return {"document": document.strip(), "summary": summary.strip()}


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
