"""The profiles of the papers: what their keys may say, the lock that pins hub commits, and a whole run on a tiny checkpoint and local files."""

import json
import os
import subprocess
from pathlib import Path

import papers
import pytest
import yaml
from test_hub import serving

from mee_utils import CompanionError, lock, notebook, profiles
from mee_utils.profiles import load_profile

pytestmark = pytest.mark.xdist_group("notebooks")
ROOT = Path(__file__).parent.parent
PAPERS = [name for name in profiles.profile_names() if name.startswith("paper")]
A, B, C = "a" * 40, "b" * 40, "c" * 40


# What a profile may say


def edited(tmp_path, change, name="paper"):
    content = yaml.safe_load((ROOT / f"notebooks/profiles/{name}.yaml").read_text())
    change(content)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "p.yaml"


def test_the_profiles_of_the_papers_name_hub_ids_and_no_commit():
    corpora = {corpus.source for name in PAPERS for corpus in load_profile(name).corpora.values()}
    models = {load_profile(name).training.base.checkpoint for name in PAPERS}
    assert models == {"google-t5/t5-large", "google/long-t5-tglobal-base"} and len(corpora) == 7 == len({c.split("/")[1] for c in corpora})
    for name in PAPERS:
        profile = load_profile(name)
        assert profile.dtype == "bfloat16" and profile.device == "auto" and {"calm", "vanilla", "free"} <= set(profile.training.backbones)
        revisions = [corpus.revision for corpus in profile.corpora.values()] + [profile.training.base.revision]
        assert set(revisions) <= {None, "refs/convert/parquet"}


@pytest.mark.parametrize("name", PAPERS)
def test_every_notebook_takes_the_parameters_of_the_papers_profiles(name):
    for source, given in load_profile(name).notebooks.items():
        notebook.check_parameters(given, notebook.declared_parameters(notebook.read_source(source)))
    assert set(load_profile(name).notebooks) == set(notebook.notebook_names()) - {"06_results"}  # which runs nothing


def test_the_lock_is_meant_to_be_committed_and_weights_are_not():
    def ignored(path):
        return subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0

    assert not ignored("notebooks/profiles/paper.lock.json")
    assert ignored("mee_utils/checkpoints/paper/calm/model.safetensors") and not ignored("mee_utils/checkpoints/small/calm/model.safetensors")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("paper", lambda c: c["training"]["base"].update(stages=[]), '"training.base.stages" contradicts "checkpoint" beside it'),
        ("paper", lambda c: c["training"]["backbones"]["calm"].update(checkpoint="x/y"), 'calm.\\w+" contradicts "checkpoint" beside it'),
        ("paper", lambda c: c["training"].update(shape=dict(vocab_size=9, d_model=9, d_kv=9, num_heads=9, d_ff=9, num_layers=9, num_decoder_layers=9)),
         "training: shape contradicts the checkpoint of base"),
        ("paper", lambda c: c["training"]["base"].update(revison="v1"), 'unknown key "training.base.revison": did you mean "revision"'),
        ("paper", lambda c: c["training"]["backbones"].update(calm={"chekpoint": "x/y"}), 'unknown key .*chekpoint": did you mean "checkpoint"'),
        ("paper", lambda c: c["training"]["backbones"]["calm"].pop("passes"), 'the key "training.backbones.calm.passes" is missing: add it .or name a "checkpoint"'),
        ("paper", lambda c: c["training"]["base"].update(checkpoint=7), '"training.base.checkpoint" is 7'),
        ("paper", lambda c: c["corpora"]["summarization"].update(folder="3.0.0"), "corpora.summarization: config and folder contradict each other"),
        ("small", lambda c: c["training"].pop("shape"), "training: a base that is made from scratch needs a shape"),
        ("small", lambda c: c["training"].update(base={"checkpoint": "x/y"}), "shape contradicts the checkpoint of base"),
    ],
)  # fmt: skip
def test_contradictions_and_gaps_are_named_with_the_profile(tmp_path, name, change, message):
    with pytest.raises(CompanionError, match=message) as error:
        load_profile(edited(tmp_path, change, name))
    assert "p.yaml: " in str(error.value) and "\n" not in str(error.value)


def test_a_backbone_may_be_a_ready_checkpoint():
    vanilla = load_profile("paper_samsum").training.recipe("vanilla")
    assert vanilla.checkpoint == vanilla.source == "jvelja/t5-samsum"


# The lock, without a hub


class Hub:
    """Says which commit a revision is at, and counts how often it is asked."""

    def __init__(self, monkeypatch, folder):
        self.commits, self.asked = {None: A, "v1": B}, []
        monkeypatch.setattr(profiles, "FOLDER", folder)
        monkeypatch.setattr(lock, "PACKAGE", folder / "package")
        monkeypatch.setattr(lock, "_information", lambda kind: self.answer)
        self.path = folder / "paper.lock.json"

    def answer(self, identifier, revision=None):
        self.asked.append((identifier, revision))
        return type("Information", (), {"sha": self.commits[revision]})

    def load(self, identifier="some/thing", revision=None, kind="models", load=lambda commit: commit):
        return lock.at_locked_commit(PAPER, kind, identifier, revision, load)


PAPER = load_profile("paper")


@pytest.fixture
def told(monkeypatch, tmp_path):
    return Hub(monkeypatch, tmp_path)


def test_the_first_load_writes_what_later_loads_obey(told):
    assert told.load() == A and told.asked == [("some/thing", None)]
    told.commits[None] = B
    assert told.load() == A and len(told.asked) == 1  # the hub is not even asked
    assert told.load("other/data", kind="datasets") == B
    assert told.load("other/fixed", C) == C and len(told.asked) == 2  # a whole commit needs no asking
    assert json.loads(told.path.read_text()) == {
        "datasets": {"other/data": {"commit": B, "revision": "main"}},
        "models": {"other/fixed": {"commit": C, "revision": C}, "some/thing": {"commit": A, "revision": "main"}},
    }
    assert told.path.read_text() == json.dumps(json.loads(told.path.read_text()), indent=1, sort_keys=True) + "\n"


def test_a_load_that_fails_pins_nothing(told):
    def fails(commit):
        raise CompanionError("no")

    with pytest.raises(CompanionError, match="^no$"):
        told.load(load=fails)
    assert not told.path.exists() and not list(told.path.parent.glob(".*"))


def test_a_revision_of_the_profile_that_the_lock_contradicts_is_refused(told):
    told.load()
    assert told.load(revision=A) == A  # the same commit by its own name
    with pytest.raises(CompanionError, match=f'pins "some/thing" at {A} for the revision "main", but the profile asks for "v1": delete this entry'):
        told.load(revision="v1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON .*restore it from version control, or delete it"),
        ("[]", "is no lock: its keys must be datasets and models"),
        ('{"model": {}}', "is no lock"),
        ('{"models": {"some/thing": "aaa"}}', 'the entry of "some/thing" must have a revision and a commit'),
        ('{"models": {"some/thing": {"revision": "main", "commit": "abc"}}}', "a commit of 40 hexadecimal digits"),
        (b"\xff\xfe", "is no JSON"),
    ],
)
def test_a_broken_lock_is_named_and_kept(told, content, message):
    told.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = told.path.read_bytes()
    with pytest.raises(CompanionError, match=f"paper.lock.json.*{message}"):
        told.load()
    assert told.path.read_bytes() == before and told.asked == []


def test_a_lock_that_cannot_be_read_or_written_is_said_before_anything_is_loaded(told, monkeypatch):
    loaded = []
    told.path.mkdir()
    with pytest.raises(CompanionError, match="paper.lock.json cannot be read"):
        told.load(load=loaded.append)
    told.path.rmdir()
    real = Path.write_text

    def read_only(path, *arguments, **options):
        if path.parent == told.path.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", read_only)
    with pytest.raises(CompanionError, match=r"paper.lock.json cannot be written \(Permission denied\): make its folder writable"):
        told.load(load=loaded.append)
    assert loaded == [] and told.asked == []


def test_what_two_runs_pin_is_joined_and_never_overwritten(told):
    def other_run(commit):
        told.load("other/thing")
        return commit

    assert told.load(load=other_run) == A
    assert set(json.loads(told.path.read_text())["models"]) == {"some/thing", "other/thing"}

    def sooner(commit):
        content = json.loads(told.path.read_text())
        content["models"]["third/thing"] = {"revision": "main", "commit": B}
        told.path.write_text(json.dumps(content))

    with pytest.raises(CompanionError, match=f'has just pinned "third/thing" at {B}'):
        told.load("third/thing", load=sooner)


# The lock, through the real clients and a loopback stand-in for the hub


READ = """
from mee_utils.companion import load_profile_model, load_tasks
from mee_utils.profiles import load_profile
profile = load_profile("paper")
print([task.targets[0] for task in load_tasks(profile, None)], round(float(load_profile_model(profile, "base").network.shared.weight.double().sum()), 3))
"""


def from_a_hub(content):
    """The profile `paper` on the stand-in's small repositories: one of files at the top, one in the layout of refs/convert/parquet."""
    content["corpora"] = {
        "translation": {"source": "someone/pairs", "train": 20, "held_out": 4},
        "summarization": {"source": "someone/news", "revision": "refs/convert/parquet", "folder": "3.0.0", "train": 20, "held_out": 4},
    }
    content["training"].update(base={"checkpoint": "someone/mini"}, max_source=48, max_target=12)


def publish(folder, commit, tokenizer, seed, word):
    """Writes the three repositories at one commit; their contents tell commits apart."""
    import pandas as pd

    papers.write_checkpoint(folder / "models/someone/mini" / commit, tokenizer, seed=seed)
    pairs = folder / "datasets/someone/pairs" / commit
    pairs.mkdir(parents=True)
    for split in ("train", "validation"):
        (pairs / f"{split}.jsonl").write_text(json.dumps({"translation": {"en": f"Bob {split}.", "fr": word}}) + "\n")
        for config in ("1.0.0", "3.0.0"):
            news = folder / "datasets/someone/news" / commit / config / split
            news.mkdir(parents=True)
            pd.DataFrame({"article": [f"It rains. {split}"], "highlights": [f"{word} {config}"]}).to_parquet(news / "0000.parquet")


def test_a_moved_branch_does_not_move_results(tmp_path):
    tokenizer = papers.train_tokenizer()
    publish(tmp_path / "hub", A, tokenizer, 0, "Rome")
    publish(tmp_path / "hub", B, tokenizer, 1, "Oslo")
    commits = {"main": A, "refs/convert/parquet": A}
    clone = papers.Clone(tmp_path)
    clone.edit(from_a_hub)
    path = clone.profiles / "paper.lock.json"
    with serving(tmp_path, commits) as (asked, environment):
        made = clone.run("train", "--profile", "paper", "--model", "base", **environment, HF_HUB_OFFLINE="0")
        assert made.returncode == 0, made.stderr[-2000:]
        content = json.loads(path.read_text())
        assert {kind: {name: entry["commit"] for name, entry in found.items()} for kind, found in content.items()} == {
            "datasets": {"someone/news": A, "someone/pairs": A}, "models": {"someone/mini": A},
        }  # fmt: skip
        manifest = json.loads((clone.root / "mee_utils/checkpoints/paper/base/manifest.json").read_text())
        assert manifest["source"] == {"checkpoint": "someone/mini", "commit": A} and manifest["shape"]["num_decoder_layers"] == 12
        assert os.listdir(clone.root / "mee_utils/checkpoints/paper/base") == ["manifest.json"]  # weights stay in the hub's cache
        assert set(manifest["scores"]) == {"translation", "summarization"} and len(manifest["block_cross_entropy"][0]["cross_entropy"]) == 12
        before = path.read_bytes()
        commits.update({"main": B, "refs/convert/parquet": B})
        pinned = clone.python("-c", READ, **environment, HF_HUB_OFFLINE="0")
        assert pinned.returncode == 0, pinned.stderr[-2000:]
        assert pinned.stdout.startswith("['Rome', 'Rome 3.0.0'] ") and path.read_bytes() == before
        path.unlink()
        moved = clone.python("-c", READ, **environment, HF_HUB_OFFLINE="0")  # without the lock the same code takes the other commit
        assert moved.stdout.startswith("['Oslo', 'Oslo 3.0.0'] ") and moved.stdout.split()[-1] != pinned.stdout.split()[-1]
        path.write_bytes(before.replace(A.encode(), C.encode()))
        gone = clone.python("-c", READ, **environment, HF_HUB_OFFLINE="0")
        assert f'CompanionError: The hub no longer has the commit {C} of "someone/pairs" that' in gone.stderr.splitlines()[-1]
        path.write_bytes(before)
        asked.clear()
        offline = clone.python("-c", READ, **environment, HF_HUB_OFFLINE="1")
        assert offline.stdout == pinned.stdout and asked == [], offline.stderr[-2000:]


def test_a_cache_that_holds_another_commit_is_not_taken_for_the_right_one(monkeypatch, tmp_path):
    """Without the hub the client of data sets gives the commit that it had last, whichever was asked for."""
    import datasets

    from mee_utils.tasks import sources

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    other = datasets.Dataset.from_dict({"translation": [{"en": "Yes", "fr": "Oui"}]})
    other.save_to_disk(tmp_path / B)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **options: datasets.load_from_disk(str(tmp_path / B)))
    assert len(sources.hub_rows("some/thing", "train", B)[0]) == 1
    with pytest.raises(CompanionError, match=f'did not give "some/thing" at the commit {A}, and its cache holds it at another one only'):
        sources.hub_rows("some/thing", "train", A)


def test_long_documents_may_come_from_the_hub(monkeypatch, tmp_path):
    import pandas as pd

    from mee_utils.companion import Companion
    from mee_utils.tasks import sources

    companion, asked = Companion.reader("small"), []
    hub = Hub(monkeypatch, tmp_path)
    hub.commits["refs/convert/parquet"] = C

    def hub_rows(identifier, split, revision, name, folder, limit):
        asked.append((identifier, split, revision, folder, limit))
        return pd.DataFrame({"document": ["It rains. It rains.", "Bob."], "summary": ["Rain.", "Bob."]}), "digest"

    monkeypatch.setattr(sources, "hub_rows", hub_rows)
    found = companion.long_documents("some/news@refs/convert/parquet:default", 2)
    assert set(found) == {"Multi-News", "BigPatent"} and found["BigPatent"].targets == ["Rain.", "Bob."]
    companion.long_documents("other/news", 1)
    assert asked == [("some/news", "validation", C, "default", 2), ("other/news", "validation", A, None, 1)]
    assert set(json.loads((tmp_path / "small.lock.json").read_text())["datasets"]) == {"some/news", "other/news"}
    with pytest.raises(CompanionError, match='DATA holds no folder "nothing": give DATA=.*, a hub id such as owner/name, or long_corpus="made"'):
        companion.long_documents("nothing", 1)


# Up to the download


def test_without_the_hub_every_command_says_in_one_line_what_it_needs(tmp_path):
    clone = papers.Clone(tmp_path)
    before = clone.files()
    done = clone.run("train", "--profile", "paper")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert 'error: The hub could not be asked for "google-t5/t5-large" (profile paper, revision main' in done.stderr and "Check the id and the network" in done.stderr
    done = clone.python("-c", "import sys; from mee_utils.__main__ import main; sys.exit(sum(main(['notebook', n, '--profile', 'paper']) for n in sys.argv[1:]))",
                        *notebook.notebook_names())  # fmt: skip
    lines = done.stderr.splitlines()
    assert done.returncode == 2 * len(notebook.notebook_names()) == 2 * len(lines), done.stderr
    wanted = 'error: Profile "paper" has no trained model "vanilla" (from google-t5/t5-large): run "make train PROFILE=paper"'
    assert all(line.startswith(wanted) for line in lines)
    left = {name for name in clone.files() - before if not name.endswith("lock.lock")}
    assert left == set() and not (tmp_path / "figures").exists()


# The whole profile


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The profile `paper` after `make train`, on a tiny checkpoint and local files."""
    folder, tokenizer = tmp_path_factory.mktemp("paper"), papers.train_tokenizer()
    papers.write_checkpoint(folder / "checkpoint", tokenizer, steps=40)
    corpora = papers.write_corpora(folder / "corpora")
    clone = papers.Clone(folder)
    clone.edit(lambda content: papers.shrink(content, folder / "checkpoint", corpora))
    models = [option for name in ("base", "vanilla", "calm", "free", "late_weighted") for option in ("--model", name)]
    clone.done = clone.run("train", "--profile", "paper", *models)
    return clone


def test_models_are_fine_tuned_from_the_checkpoint_and_say_so(trained):
    assert trained.done.returncode == 0, trained.done.stderr[-3000:]
    folder = trained.root / "mee_utils/checkpoints/paper"
    about = {path.name: json.loads((path / "manifest.json").read_text()) for path in folder.iterdir()}
    assert set(about) == {"base", "vanilla", "calm", "free", "late_weighted"} and not (folder / "base/model.safetensors").exists()
    for name in set(about) - {"base"}:
        assert about[name]["base"] == about["base"]["weights"] and about[name]["steps"] > 0 and about[name]["shape"]["d_model"] == 32
    assert about["base"]["steps"] == 0 and about["base"]["source"]["commit"] is None and about["base"]["scores"]["translation"]["bleu"] > 20
    from safetensors import safe_open

    with safe_open(folder / "calm/model.safetensors", framework="pt") as weights:
        assert {str(weights.get_tensor(name).dtype) for name in weights.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    assert not list(trained.profiles.glob("*.lock.json"))  # nothing came from the hub


def test_sources_are_cut_where_the_checkpoint_was_trained_to_be(trained):
    code = ("from mee_utils.companion import load_profile_tokenizer as t, load_tasks; from mee_utils.profiles import load_profile; p = load_profile('paper')\n"
            "print([max(map(len, t(p, 'base')(x.inputs).input_ids)) for x in load_tasks(p.model_copy(update={'training': p.training.model_copy("
            "update={'max_source': 12})}), None)], [x.inputs[0][:10] for x in load_tasks(p, None)])")  # fmt: skip
    done = trained.python("-c", code)
    longest = json.loads(done.stdout.split("]")[0] + "]")
    assert max(longest) <= 13 and "question: " in done.stdout, done.stderr[-1000:]


EVERY = """
import json, sys
from mee_utils import CompanionError
from mee_utils.notebook import run_notebook
for name in sys.argv[2:]:
    try:
        print(json.dumps([name, str(run_notebook(name, "paper", sys.argv[1]))]))
    except CompanionError as error:
        print(json.dumps([name, f"error: {error}"]))
"""


@pytest.fixture(scope="module")
def executed(trained):
    """What became of each notebook; after 00 one corpus and the two models that all need are enough, since what takes time is drawing."""
    before = {path for path in trained.files() if not path.startswith("build/")}
    (first, *rest), data = notebook.notebook_names(), str(trained.root.parent / "corpora")
    lines = trained.python("-c", EVERY, data, first).stdout.splitlines()
    spared = {"corpora": ("question_answering", "summarization"), "backbones": ("free", "late_weighted")}
    trained.edit(lambda content: [(content | content["training"])[part].pop(name) for part, names in spared.items() for name in names])
    decoded = trained.run("decode", "--profile", "paper", "--data", data)
    assert decoded.returncode == 0 and "decoded curves: calm, translation" in decoded.stdout, decoded.stderr[-2000:]
    lines += trained.python("-c", EVERY, data, *rest).stdout.splitlines()
    assert {path for path in trained.files() if not path.startswith("build/")} == before  # results are in their own folder
    return dict(json.loads(line) for line in lines if line.startswith("["))


@pytest.mark.parametrize("name", notebook.notebook_names())
def test_every_notebook_runs_with_the_profile(trained, executed, name):
    results = Path(trained.environment["MEE_OUTPUT"]) / "paper"
    assert executed[name] == str(results / f"{name}.ipynb")
    manifest = json.loads((results / name / "manifest.json").read_text())
    assert manifest["profile"] == "paper" and manifest["parameters"].get("limit", 5) == 5
    read = {"00_models": 3, "06_results": 0}.get(name, 1)
    assert len([key for key in manifest["inputs"] if key.startswith("corpus")]) == read


def test_a_ready_backbone_with_another_tokenizer_is_refused(trained, tmp_path):
    from mee_utils.models.mini import train_tokenizer

    papers.write_checkpoint(tmp_path / "foreign", train_tokenizer(["Ann has a key in Rome.", "Bob has a hat in Oslo."] * 2, 90))
    trained.edit(lambda content: content["training"]["backbones"].update(foreign={"checkpoint": str(tmp_path / "foreign")}))
    done = trained.run("train", "--profile", "paper", "--model", "foreign")
    trained.edit(lambda content: content["training"]["backbones"].pop("foreign"))
    assert done.returncode == 2 and f"{tmp_path / 'foreign'} has another tokenizer than the base" in done.stderr
    assert not [path for path in trained.files() if "foreign" in path]


def test_another_checkpoint_under_the_same_name_is_noticed(trained, tmp_path):
    papers.write_checkpoint(tmp_path / "other", papers.train_tokenizer(), seed=5)
    trained.edit(lambda content: content["training"].update(base={"checkpoint": str(tmp_path / "other")}))
    done = trained.run("train", "--profile", "paper", "--model", "calm")
    assert done.returncode == 2 and "paper/calm was trained with another base: delete mee_utils/checkpoints/paper/calm" in done.stderr
