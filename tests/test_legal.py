"""Licences, citation, cards and the size of a clone: what a stranger asks before using the repository."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from mee_utils.companion.reporting import cards
from mee_utils.tasks.publishers.origins import load_origins

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LARGEST = 2_000_000  # bytes of a file that is no weights


def tracked():
    """Every file of the repository, by its path."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.splitlines() if (ROOT / path).is_file()]


def licence_of(path):
    """The licence that REUSE.toml gives to a file: of the annotations that fit, the last one's."""
    licences = [
        annotation["SPDX-License-Identifier"]
        for annotation in tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
        if fnmatch(path, annotation["path"].replace("**", "*"))
    ]
    return licences[-1] if licences else None


def test_every_file_has_a_licence_and_every_licence_its_text():
    used = {licence_of(path) for path in tracked()}
    assert used == {path.stem for path in (ROOT / "LICENSES").iterdir()} == {"MIT", "LicenseRef-Weights-Real"}
    assert (ROOT / "LICENSE").read_text() == (ROOT / "LICENSES" / "MIT.txt").read_text()
    for path in tracked():
        is_real = path.startswith(("mee_utils/checkpoints/real/", "mee_utils/checkpoints/smollm2/"))
        assert (licence_of(path) == "LicenseRef-Weights-Real") == is_real, path


@pytest.mark.skipif(not importlib.util.find_spec("reuse"), reason="reuse is not installed: pip install reuse")
def test_reuse_agrees():
    done = subprocess.run(
        [sys.executable, "-m", "reuse", "lint"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_terms_of_the_real_weights_name_what_they_were_trained_on():
    text = (ROOT / "LICENSES" / "LicenseRef-Weights-Real.txt").read_text()
    sources = set()
    for manifest in (ROOT / "mee_utils/checkpoints/real").glob("*/manifest.json"):
        data = json.loads(manifest.read_text())["data"].values()
        sources |= {Path(facts["source"]).name for facts in data}
    assert sources == {"snips_qa", "dialogsum", "multi30k_en_fr", "tatoeba_en_fr"}
    for name in sources:
        assert load_origins()[name].title.split(":")[0] in text, name


@pytest.mark.parametrize(
    "path", ["DATA.md", *(f"mee_utils/checkpoints/{name}/README.md" for name in cards.DATA)]
)
def test_cards_say_what_manifests_and_tables_say(path):
    assert (ROOT / path).read_text(encoding="utf-8") == cards.pages()[path], "python -m mee_utils results"


def test_links_of_the_pages_at_the_top_lead_somewhere():
    for page in (*cards.pages(), "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)[)#]", text.replace("\n", " ")):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_every_page_states_the_same_version_and_both_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    assert citation["version"] == zenodo["version"] == VERSION
    assert f"## {VERSION} ({citation['date-released']})" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    readme = (ROOT / "README.md").read_text()
    flat = " ".join(readme.split())
    for reference in citation["references"]:
        assert reference["title"] in flat and reference["url"] in readme
        for author in reference["authors"]:
            assert author["family-names"] in readme


@pytest.mark.parametrize(
    "path", [path for path in tracked() if path.startswith((".github", ".devcontainer", "binder"))]
)
def test_files_for_hosts_can_be_read(path):
    text = (ROOT / path).read_text()
    if path.endswith(".json"):
        json.loads(text)
    if path.endswith(".yml"):
        content = yaml.safe_load(text)
        assert content["name"]
        for target in re.findall(r"run: make ([\w ]+)", text):
            for word in target.split():
                assert re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.M), word


def test_what_archives_ask_for_runs_the_commands_that_are_there():
    makefile = (ROOT / "Makefile").read_text()
    script, container = ((ROOT / name).read_text() for name in ("reproduce.sh", "Dockerfile"))
    targets = re.findall(r"^(?:RUN )?make (\w+)$", script + container, re.M)
    assert targets == ["reproduce", "results", "setup"]
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    assert os.access(ROOT / "reproduce.sh", os.X_OK) and 'CMD ["./reproduce.sh"]' in container
    assert "FROM python:3.11" in container and (ROOT / ".dockerignore").read_text().split() == [
        ".venv",
        "build",
    ]


def test_no_file_is_large_but_weights():
    sizes = {path: (ROOT / path).stat().st_size for path in tracked() if not path.endswith(".safetensors")}
    large = {path: size for path, size in sizes.items() if size > LARGEST}
    assert not large
