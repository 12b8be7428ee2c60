"""A stand-in for the hub on loopback, as far as the clients of `transformers` and `datasets` ask."""

import hashlib
import json
import os
import shutil
import threading
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


def digest(path):
    """The sha1 of a file, computed once for as long as it is not written again."""
    return _digest(path.resolve(), path.stat().st_mtime_ns)


@lru_cache
def _digest(path, modified):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()


class Hub(BaseHTTPRequestHandler):
    """Serves `root/<models|datasets>/<owner>/<name>/<revision>/...` as far as the hub's clients ask."""

    root: Path
    requests: list
    commits: dict = COMMITS

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.answer(body=True, wanted=content.get("paths"))

    def answer(self, body, wanted=None):
        parts = [unquote(p) for p in urlparse(self.path).path.strip("/").split("/")]
        self.requests.append("/".join(parts))
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
        headers = {"X-Repo-Commit": self.commit(revision), "ETag": f'"{digest(file)}"'}
        size = file.stat().st_size
        self.reply(b"", headers, size)
        if body:
            with file.open("rb") as content:
                shutil.copyfileobj(content, self.wfile)

    def answer_api(self, kind, repository, rest, wanted):
        below = rest[1:] if len(rest) > 1 and rest[0] in ("revision", "tree", "paths-info") else ["main"]
        revision = (
            below[0] if rest[:1] != ["revision"] else "/".join(below)
        )  # of the three only the first may hold a branch with slashes
        folder = self.find(kind, repository, revision)
        if folder is None:
            return self.refuse_repository(kind, repository)
        files = [
            {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": digest(p)}
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        ]
        if rest and rest[0] == "paths-info":
            return self.reply(json.dumps([f for f in files if f["path"] in (wanted or [])]).encode())
        if rest and rest[0] == "tree":
            inside = folder / "/".join(rest[2:])
            if not inside.is_dir():
                return self.refuse("EntryNotFound", 404)
            paths = sorted(inside.rglob("*") if "recursive=true" in self.path.lower() else inside.iterdir())
            folders = [
                {"type": "directory", "path": str(p.relative_to(folder)), "size": 0, "oid": "0" * 40}
                for p in paths
                if p.is_dir()
            ]
            return self.reply(
                json.dumps([*folders, *(f for f in files if folder / f["path"] in paths)]).encode()
            )
        description = {
            "id": repository,
            "sha": self.commit(revision),
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        self.reply(json.dumps(description | {"siblings": [{"rfilename": f["path"]} for f in files]}).encode())

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
            "Content-Length": str(len(content) if length is None else length),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(folder, commits=COMMITS):
    """Serves `folder/hub`; yields its requests, and the environment in which clients turn to it."""
    requests = []
    handler = type("Handler", (Hub,), {"root": folder / "hub", "requests": requests, "commits": commits})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "cache"),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    yield requests, environment
    server.shutdown()
