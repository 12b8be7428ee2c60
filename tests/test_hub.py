"""Hub ids go through the real clients to a stand-in for the hub: revisions are obeyed, an error is a line."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import datasets
import pytest
from conftest import build_network
from hub import serving

ROOT = Path(__file__).parent.parent

EVALUATE = """
import json, sys
import mee_utils
from mee_utils.companion.running import pins
for expression in sys.stdin:
    pins.hub_commit.cache_clear()  # which else answers once in a process
    try:
        print(json.dumps(eval(expression)), flush=True)
    except mee_utils.MeeError as error:
        print(json.dumps(f"error: {error}"), flush=True)
"""


@contextmanager
def evaluating(environment, **variables):
    """Yields what evaluates an expression in a process with these variables: clients read them once.

    A `MeeError` becomes the text "error: ...".
    """
    command = [sys.executable, "-c", EVALUATE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment | variables, cwd=ROOT, **pipes) as process:

        def evaluate(expression):
            process.stdin.write(f"{expression}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield evaluate


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One hub and one client for all tests; each has repositories of its own."""
    folder = tmp_path_factory.mktemp("hub")
    with serving(folder) as (requests, environment), evaluating(environment) as evaluate:
        yield folder / "hub", requests, evaluate


def write_pair(path, french):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"translation": {"en": "Yes", "fr": french}}) + "\n")


def test_a_checkpoint_comes_from_the_hub_at_its_revision(hub, tokenizer):
    root, requests, evaluate = hub
    for revision, seed in (("main", 0), ("v1", 1)):
        build_network("t5", len(tokenizer), seed).save_pretrained(root / "models/someone/mini" / revision)
        tokenizer.save_pretrained(root / "models/someone/mini" / revision)
    for revision, seed in ((None, 0), ("v1", 1)):
        load = f"mee_utils.load_model('someone/mini', revision={revision!r})"
        weights = evaluate(f"float({load}.network.shared.weight.detach().sum())")
        expected = build_network("t5", len(tokenizer), seed).shared.weight.detach().sum()
        assert weights == pytest.approx(float(expected), rel=1e-4)
    assert any("model.safetensors" in path for path in requests)


def test_a_corpus_comes_from_the_hub_at_its_revision(hub):
    root, _, evaluate = hub
    write_pair(root / "datasets/someone/pairs/main/validation.jsonl", "Oui")
    write_pair(root / "datasets/someone/pairs/v1/validation.jsonl", "Si")
    for revision, french in ((None, "Oui"), ("v1", "Si")):
        load = f"mee_utils.load_task('translation', 'someone/pairs', revision={revision!r})"
        assert evaluate(f"list({load})") == [["translate English to French: Yes", [french]]]


def test_a_corpus_that_datasets_saved_comes_from_the_hub(hub):
    root, _, evaluate = hub
    datasets.disable_progress_bars()
    rows = [{"translation": {"en": "Yes", "fr": "Oui"}}, {"translation": {"en": "No", "fr": "Non"}}]
    saved = datasets.DatasetDict(validation=datasets.Dataset.from_list(rows))
    saved.save_to_disk(str(root / "datasets/someone/saved/main"), num_shards={"validation": 2})
    assert evaluate("mee_utils.load_task('translation', 'someone/saved').targets") == ["Oui", "Non"]
    message = evaluate("mee_utils.load_task('translation', 'someone/saved', 'test').targets")
    assert message.startswith('error: "someone/saved" has no file of the split "test"')


def test_what_the_hub_does_not_have_is_one_line(hub):
    _, _, evaluate = hub
    message = evaluate("mee_utils.load_model('someone/nothing')")
    assert "config.json of someone/nothing cannot be read" in message and "\n" not in message
    message = evaluate("mee_utils.load_task('translation', 'someone/nothing')")
    assert "is no local file or folder, and the hub did not give" in message and "\n" not in message


def test_a_pinned_commit_is_read_again_also_without_the_hub(tmp_path):
    a = "a" * 40
    b = "b" * 40
    c = "c" * 40
    for commit, french in ((a, "Oui"), (b, "Si")):
        for part in ("0000", "0001"):
            path = f"hub/datasets/someone/pairs/{commit}/en-fr/validation/{part}.jsonl"
            write_pair(tmp_path / path, f"{french} {part}")
    commits = {"main": a}
    first = ["a", ["Oui 0000", "Oui 0001"]]
    second = ["b", ["Si 0000", "Si 0001"]]
    with (
        serving(tmp_path, commits) as (requests, environment),
        evaluating(environment) as online,
        evaluating(environment, HF_HUB_OFFLINE="1") as offline,
    ):

        def read(evaluate, revision):
            commit = f"(commit := pins.hub_commit('dataset', 'someone/pairs', {revision!r}))[0]"
            load = "mee_utils.load_task('translation', 'someone/pairs', revision=commit, folder='en-fr')"
            return evaluate(f"[{commit}, {load}.targets]")

        assert read(online, None) == read(online, "main") == first
        assert read(offline, None) == first  # what the cache last knew
        commits["main"] = b
        assert read(online, a) == first
        requests.clear()
        assert read(offline, a) == first and requests == []
        assert "the hub did not give its split" in read(online, c)
        assert "the hub did not give its split" in read(offline, b)  # another commit is in the cache
        assert read(online, None) == read(online, b) == second
        assert read(offline, a) == first and read(offline, b) == second  # both are in the cache
        (part,) = (tmp_path / "cache").rglob(f"{b}/en-fr/validation/0001.jsonl")
        part.unlink()
        assert "the hub did not give its split" in read(offline, b)  # half a download is none


def test_a_split_in_no_usual_folder_asks_for_the_folder(hub):
    root, _, evaluate = hub
    write_pair(root / "datasets/someone/inside/main/en-fr/validation.jsonl", "Oui")
    message = evaluate("mee_utils.load_task('translation', 'someone/inside').targets")
    assert "name the `folder` that has it" in message and "\n" not in message
    assert evaluate("mee_utils.load_task('translation', 'someone/inside', folder='en-fr').targets") == ["Oui"]
