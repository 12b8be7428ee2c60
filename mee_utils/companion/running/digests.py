"""Digests (sha256) of what something was made from: by them, not by times, a product is fresh or stale."""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ...common.files import PACKAGE

TEXT = (".csv", ".ipynb", ".json", ".jsonl", ".md", ".py", ".tsv", ".txt", ".yaml", ".yml")


def digest_of(content) -> str:
    """sha256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def bytes_digest(content: bytes, name: str) -> str:
    """sha256 of a file's content; of texts with the line ends of Unix, since git may change them."""
    if name.endswith(TEXT):
        content = content.replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file, as `bytes_digest` has it; "" where there is none."""
    return bytes_digest(path.read_bytes(), path.name) if path.is_file() else ""


def code_digest(path: Path) -> str:
    """Of a module what it means, without comments, docstrings and formatting; of a table its text."""
    return _code_digest(path, path.stat().st_mtime_ns)


@lru_cache(None)
def _code_digest(path: Path, modified: int) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body = node.body[1:]
        text = ast.unparse(tree)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Path inside the package -> digest, of modules and tables."""
    return {str(path.relative_to(PACKAGE)): code_digest(path) for path in sorted(paths)}


def loaded_code() -> set[Path]:
    """The modules of the package that this process has loaded, and the tables beside them."""
    loaded = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == PACKAGE.name]
    modules = {Path(module.__file__) for module in loaded}
    return modules | {table for module in modules for table in module.parent.glob("*.yaml")}


def code_files(*folders: str) -> list[Path]:
    """Modules and tables of some folders of the package."""
    paths = [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.*"))]
    return [path for path in paths if path.suffix in (".py", ".tsv", ".csv", ".txt", ".yaml")]
