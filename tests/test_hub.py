"""Hub ids go through the real clients to a stand-in for the hub: revisions are obeyed, an error is a line."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from conftest import build_network

ROOT = Path(__file__).parent.parent
COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub(BaseHTTPRequestHandler):
    """Serves `root/<models|datasets>/<owner>/<name>/<revision>/...` as far as the hub's clients ask."""

    root: Path
    asked: list
    commits: dict = COMMITS

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.answer(body=True, wanted=asked.get("paths"))

    def answer(self, body, wanted=None):
        parts = [unquote(p) for p in urlparse(self.path).path.strip("/").split("/")]
        self.asked.append("/".join(parts))
        if parts[0] == "api":
            return self.answer_api(parts[1], "/".join(parts[2:4]), parts[4:], wanted)
        kind = parts.pop(0) if parts[0] == "datasets" else "models"
        repository = "/".join(parts[:2])
        revision = parts[3]
        name = "/".join(parts[4:])
        folder = self.find(kind, repository, revision)
        if folder is None:
            return self.refuse_repository(kind, repository)
        file = folder / name
        if not file.is_file():
            return self.refuse("EntryNotFound", 404, {"X-Repo-Commit": self.commit(revision)})
        content = file.read_bytes()
        headers = {"X-Repo-Commit": self.commit(revision), "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        self.reply(content if body else b"", headers, len(content))

    def answer_api(self, kind, repository, rest, wanted):
        below = rest[1:] if len(rest) > 1 and rest[0] in ("revision", "tree", "paths-info") else ["main"]
        revision = (
            below[0] if rest[:1] != ["revision"] else "/".join(below)
        )  # of the three only the first may hold a branch with slashes
        folder = self.find(kind, repository, revision)
        if folder is None:
            return self.refuse_repository(kind, repository)
        files = [
            {
                "type": "file",
                "path": str(p.relative_to(folder)),
                "size": p.stat().st_size,
                "oid": hashlib.sha1(p.read_bytes()).hexdigest(),
            }
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        ]
        if rest and rest[0] == "paths-info":
            return self.reply(json.dumps([f for f in files if f["path"] in (wanted or [])]).encode())
        if rest and rest[0] == "tree":
            place = folder / "/".join(rest[2:])
            if not place.is_dir():
                return self.refuse("EntryNotFound", 404)
            found = sorted(place.rglob("*") if "recursive=true" in self.path.lower() else place.iterdir())
            folders = [
                {"type": "directory", "path": str(p.relative_to(folder)), "size": 0, "oid": "0" * 40}
                for p in found
                if p.is_dir()
            ]
            return self.reply(
                json.dumps([*folders, *(f for f in files if folder / f["path"] in found)]).encode()
            )
        about = {
            "id": repository,
            "sha": self.commit(revision),
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        self.reply(json.dumps(about | {"siblings": [{"rfilename": f["path"]} for f in files]}).encode())

    def commit(self, revision):
        return self.commits.get(revision, revision)

    def find(self, kind, repository, revision):
        """The folder of a revision: named by the commit, or by the branch that is at it."""
        names = {commit: name for name, commit in self.commits.items()}
        folders = [
            self.root / kind / repository / name
            for name in (self.commit(revision), names.get(revision, revision))
        ]
        return next((folder for folder in folders if folder.is_dir()), None)

    def refuse_repository(self, kind, repository):
        self.refuse("RevisionNotFound" if (self.root / kind / repository).is_dir() else "RepoNotFound", 404)

    def refuse(self, code, status, headers=None):
        self.send_response(status)
        for name, value in {"X-Error-Code": code, "Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, content, headers=None, length=None):
        self.send_response(200)
        for name, value in {
            "Content-Length": str(length or len(content)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(folder, commits=COMMITS):
    """Serves `folder/hub`; yields what it was asked for, and the environment in which clients turn to it."""
    asked = []
    handler = type("Handler", (Hub,), {"root": folder / "hub", "asked": asked, "commits": commits})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "cache"),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    yield asked, environment
    server.shutdown()


@pytest.fixture
def hub(tmp_path):
    with serving(tmp_path) as (asked, environment):

        def run(code):
            return subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                text=True,
                env=environment,
                cwd=ROOT,
                check=False,
            )

        yield tmp_path / "hub", asked, run


def test_a_checkpoint_comes_from_the_hub_at_its_revision(hub, tokenizer):
    root, asked, run = hub
    for revision, seed in (("main", 0), ("v1", 1)):
        build_network("t5", len(tokenizer), seed).save_pretrained(root / "models/someone/mini" / revision)
        tokenizer.save_pretrained(root / "models/someone/mini" / revision)
    code = (
        "from mee_utils import load_model; m = load_model('someone/mini', revision={}); "
        "print(float(m.network.shared.weight.sum()))"
    )
    sums = []
    for revision in ("None", "'v1'"):
        done = run(code.format(revision))
        assert done.returncode == 0, done.stderr[-1500:]
        sums.append(float(done.stdout))
    expected = [float(build_network("t5", len(tokenizer), seed).shared.weight.sum()) for seed in (0, 1)]
    assert sums == pytest.approx(expected, rel=1e-4) and any("model.safetensors" in path for path in asked)


def test_a_corpus_comes_from_the_hub_at_its_revision(hub):
    root, _, run = hub
    for revision, french in (("main", "Oui"), ("v1", "Si")):
        folder = root / "datasets/someone/pairs" / revision
        folder.mkdir(parents=True)
        (folder / "validation.jsonl").write_text(
            json.dumps({"translation": {"en": "Yes", "fr": french}}) + "\n"
        )
    code = (
        "from mee_utils import load_task; t = load_task('translation', 'someone/pairs', revision={}); "
        "print(t.inputs, t.targets)"
    )
    for revision, french in (("None", "Oui"), ("'v1'", "Si")):
        done = run(code.format(revision))
        assert done.returncode == 0, done.stderr[-2500:]
        assert done.stdout.strip() == f"['translate English to French: Yes'] ['{french}']"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("load_model('someone/nothing')", "config.json of someone/nothing cannot be read"),
        (
            "load_task('translation', 'someone/nothing')",
            "is no local file or folder, and the hub did not give",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(hub, call, message):
    _, _, run = hub
    done = run(
        f"import mee_utils\nfrom mee_utils import *\ntry:\n    mee_utils.{call}\n"
        "except MeeError as e:\n    print(e)"
    )
    assert message in done.stdout and done.stdout.count("\n") == 1, done.stderr[-1500:]


READ = """
from mee_utils import MeeError, load_task
from mee_utils.study.pins import hub_commit
try:
    commit = hub_commit("dataset", "someone/pairs", {revision!r})
    print(commit[0], load_task("translation", "someone/pairs", revision=commit, folder="en-fr").targets)
except MeeError as error:
    print(error)
"""


def test_a_pinned_commit_is_read_again_also_without_the_hub(tmp_path):
    a = "a" * 40
    b = "b" * 40
    c = "c" * 40
    for commit, french in ((a, "Oui"), (b, "Si")):
        folder = tmp_path / "hub/datasets/someone/pairs" / commit / "en-fr/validation"
        folder.mkdir(parents=True)
        for part in ("0000", "0001"):
            row = {"translation": {"en": "Yes", "fr": f"{french} {part}"}}
            (folder / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    commits = {"main": a}
    first = "a ['Oui 0000', 'Oui 0001']"
    second = "b ['Si 0000', 'Si 0001']"
    with serving(tmp_path, commits) as (asked, environment):

        def read(revision, **variables):
            command = [sys.executable, "-c", READ.format(revision=revision)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment | variables, cwd=ROOT, check=False
            )
            assert done.returncode == 0, done.stderr[-2500:]
            return done.stdout.strip()

        assert read(None) == read("main") == first
        assert read(None, HF_HUB_OFFLINE="1") == first  # what the cache last knew
        commits["main"] = b
        assert read(a) == first
        asked.clear()
        assert read(a, HF_HUB_OFFLINE="1") == first and asked == []
        assert "the hub did not give its split" in read(c)
        assert "the hub did not give its split" in read(
            b, HF_HUB_OFFLINE="1"
        )  # another commit is in the cache
        assert read(None) == read(b) == second
        (part,) = (tmp_path / "cache").rglob(f"{b}/en-fr/validation/0001.jsonl")
        part.unlink()
        assert "the hub did not give its split" in read(b, HF_HUB_OFFLINE="1")  # half a download is none


def test_a_split_in_no_usual_folder_asks_for_the_folder(hub):
    root, _, run = hub
    folder = root / "datasets/someone/pairs/main/en-fr"
    folder.mkdir(parents=True)
    (folder / "validation.jsonl").write_text('{"translation": {"en": "Yes", "fr": "Oui"}}\n')
    code = (
        "from mee_utils import *\ntry:\n    load_task('translation', 'someone/pairs'{})\n"
        "except MeeError as e:\n    print(e)"
    )
    done = run(code.format(""))
    assert "name the `folder` that has it" in done.stdout and done.stdout.count("\n") == 1, done.stderr
    assert run(code.format(", folder='en-fr'")).stdout == ""
