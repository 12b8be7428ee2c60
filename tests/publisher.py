"""A stand-in for the publishers of corpora: raw files that give certain rows, served on this machine.

Each `raw_...` undoes a conversion of `mee_utils.tasks.publishers.conversions`.
"""

import gzip
import io
import json
import random
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from mee_utils.common.files import read_yaml
from mee_utils.tasks.publishers.conversions import SEED
from mee_utils.tasks.publishers.origins import read_words


def raw_captions(splits):
    files = {}
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr")):
        for language in ("en", "fr"):
            lines = [row["translation"][language] + " \n" for row in splits[split]]
            files[f"{name}.{language}.gz"] = gzip.compress("".join(lines).encode(), 1)
    return files


def raw_dialogues(splits):
    def line(row):
        kept = {column: row[column] for column in ("summary", "dialogue", "topic")}
        return json.dumps({"fname": row["id"]} | kept)

    names = {"dialogsum.train.jsonl": "train", "dialogsum.dev.jsonl": "validation"}
    return {name: "\n".join(map(line, splits[split])).encode() for name, split in names.items()}


def raw_requests(splits):
    """SNIPS' requests; what the publisher's validation files hold is in Latin-1 where it can be."""
    files = {}
    questions = [row for rows in splits.values() for row in before_shuffling(rows)]
    for intent in read_yaml("tasks/publishers/snips.yaml")["questions"]:
        for kind, ending in (("train", "_full"), ("validate", "")):
            of_file = [row for row in questions if row["id"].startswith(f"{kind}-{intent}-")]
            text = json.dumps({intent: requests_of(of_file)}, ensure_ascii=False)
            try:
                content = text.encode("latin-1" if kind == "validate" else "utf-8")
            except UnicodeEncodeError:
                content = text.encode()
            files[f"{intent}/{kind}_{intent}{ending}.json"] = content
    return files


def before_shuffling(rows):
    order = list(range(len(rows)))
    random.Random(SEED).shuffle(order)
    return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]


def requests_of(questions):
    """The requests of one file, by their numbers; one that nothing is asked about has no slot."""
    by_number = {}
    for row in questions:
        by_number.setdefault(int(row["id"].split("-")[2]), []).append(row)
    numbers = range(max(by_number, default=-1) + 1)
    return [{"data": parts(by_number[n]) if n in by_number else [{"text": "well"}]} for n in numbers]


def parts(questions):
    """A request cut at its slots, which come in the order in which they are asked about."""
    context = questions[0]["context"]
    cut = []
    end = 0
    for row in questions:
        answer = row["answers"]["text"][0]
        start = context.index(answer, end)
        cut += [{"text": context[end:start]}, {"text": answer, "entity": row["id"].split("-")[3]}]
        end = start + len(answer)
    return [*cut, {"text": context[end:]}]


def raw_sentence_pairs(splits):
    """A pair a line, with its authors behind it."""
    rows = [*splits["validation"], *before_shuffling(splits["train"])]
    pairs = [row["translation"] for row in rows]
    lines = [f"{pair['en']}\t{pair['fr']}\tCC-BY 2.0, by X\n" for pair in pairs]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr("fra.txt", "".join(lines))
    return {"fra-eng.zip": buffer.getvalue()}


def raw_paragraphs(splits):
    """SQuAD with other questions before and behind the ones that are wanted, and in another order."""

    def asked(context, question, text, start):
        answer = {"answer_start": start, "text": text}
        return {"context": context, "qas": [{"id": "x", "question": question, "answers": [answer]}]}

    wanted = [
        asked(row["context"], row["question"], row["answers"]["text"][0], row["answers"]["answer_start"][0])
        for row in splits["validation"]
    ]
    other = asked("Of something else.", "Of what?", "something else", 3)
    data = [{"title": "A", "paragraphs": [other, *reversed(wanted)]}, {"title": "B", "paragraphs": [other]}]
    return {"train-v1.1.json": json.dumps({"version": "1.1", "data": data}).encode()}


def raw_news(splits):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for language in ("en", "fr"):
            texts = [row["translation"][language] for row in splits["validation"]]
            segments = [f'<seg id="{number}">{text}</seg>\n' for number, text in enumerate(texts)]
            content = f'<srcset setid="newstest2013">\n{"".join(segments)}</srcset>\n'.encode()
            member = tarfile.TarInfo(f"test/newstest2013-src.{language}.sgm")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return {"test.tgz": buffer.getvalue()}


def raw_articles(splits):
    files = {}
    for number, row in zip(read_words("articles.txt"), splits["validation"], strict=True):
        files[f"line_text/text_{number}.txt"] = f"{row['document']}\n".encode()
        files[f"shorter_abstract/abst_{number}.txt"] = f"{row['summary']}\n".encode()
    return files


UNDONE = {
    "captions": raw_captions,
    "dialogues": raw_dialogues,
    "requests": raw_requests,
    "sentence_pairs": raw_sentence_pairs,
    "paragraphs": raw_paragraphs,
    "news": raw_news,
    "articles": raw_articles,
}


class Publisher(BaseHTTPRequestHandler):
    """Serves `files` by their path; `cut` names files that break off half-way."""

    files: dict
    requests: list
    cut: set

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        path = unquote(self.path.lstrip("/"))
        self.requests.append(path)
        content = self.files.get(path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if path in self.cut else content)


@contextmanager
def served(files):
    """The address of a publisher of files, and its handler, which notes what was asked for."""
    handler = type("Handler", (Publisher,), {"files": files, "requests": [], "cut": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", handler
    finally:
        server.shutdown()
        server.server_close()
