"""The profiles of the papers: their keys, pinned hub commits, and a whole run on a tiny checkpoint."""

import json
import os
import subprocess
from pathlib import Path

import papers
import pytest
import yaml
from test_hub import serving

from mee_utils import MeeError
from mee_utils.study import hub_lock as lock
from mee_utils.study import notebook_files, parameters, profiles
from mee_utils.study.profiles import load_profile

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
    assert models == {"google-t5/t5-large", "google/long-t5-tglobal-base"} and len(corpora) == 7 == len(
        {c.split("/")[1] for c in corpora}
    )
    for name in PAPERS:
        profile = load_profile(name)
        assert (
            profile.dtype == "bfloat16"
            and profile.device == "auto"
            and {"calm", "vanilla", "free"} <= set(profile.training.backbones)
        )
        revisions = [corpus.revision for corpus in profile.corpora.values()] + [
            profile.training.base.revision
        ]
        assert set(revisions) <= {None, "refs/convert/parquet"}


@pytest.mark.parametrize("name", PAPERS)
def test_every_notebook_takes_the_parameters_of_the_papers_profiles(name):
    for source, given in load_profile(name).notebooks.items():
        parameters.check_parameters(
            given, notebook_files.declared_parameters(notebook_files.read_source(source))
        )
    assert set(load_profile(name).notebooks) == set(notebook_files.notebook_names()) - {
        "08_results"
    }  # which runs nothing


def test_the_lock_is_meant_to_be_committed_and_weights_are_not():
    def ignored(path):
        return subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0

    assert not ignored("notebooks/profiles/paper.lock.json")
    assert ignored("mee_utils/checkpoints/paper/calm/model.safetensors") and not ignored(
        "mee_utils/checkpoints/small/calm/model.safetensors"
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "paper",
            lambda c: c["training"]["base"].update(stages=[]),
            'training.base: Unknown key "stages": Valid: checkpoint',
        ),
        (
            "paper",
            lambda c: c["training"]["backbones"]["calm"].update(checkpoint="x/y"),
            'backbones.calm: Unknown key "\\w+": Valid: checkpoint',
        ),
        (
            "paper",
            lambda c: c["training"].update(
                shape=dict(
                    vocab_size=9, d_model=9, d_kv=9, num_heads=9, d_ff=9, num_layers=9, num_decoder_layers=9
                )
            ),
            "training: shape contradicts the checkpoint of base",
        ),
        (
            "paper",
            lambda c: c["training"]["base"].update(revison="v1"),
            'training.base: Unknown key "revison": did you mean "revision"',
        ),
        (
            "paper",
            lambda c: c["training"]["backbones"].update(calm={"chekpoint": "x/y"}),
            'Unknown key "chekpoint": did you mean "checkpoint"',
        ),
        (
            "paper",
            lambda c: c["training"]["backbones"]["calm"].pop("examples"),
            "training.backbones.calm.examples: Field required",
        ),
        (
            "paper",
            lambda c: c["training"]["base"].update(checkpoint=7),
            "training.base.checkpoint: .* valid string .it is 7",
        ),
        ("paper", lambda c: c["corpora"]["summarization"].update(config="3.0.0"), 'Unknown key "config"'),
        (
            "small",
            lambda c: c["training"].pop("shape"),
            "training: a base trained from scratch needs a shape",
        ),
        (
            "small",
            lambda c: c["training"].update(base={"checkpoint": "x/y"}),
            "shape contradicts the checkpoint of base",
        ),
    ],
)
def test_contradictions_and_gaps_are_named_with_the_profile(tmp_path, name, change, message):
    with pytest.raises(MeeError, match=message) as error:
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
        monkeypatch.setattr(lock, "_info", self.answer)
        self.path = folder / "paper.lock.json"

    def answer(self, kind, identifier, revision=None):
        self.asked.append((identifier, revision))
        return type("Information", (), {"sha": self.commits[revision]})

    def load(self, identifier="some/thing", revision=None, kind="models", load=lambda commit: commit):
        return lock.at_locked_commit(PAPER.lock, kind, identifier, revision, load)


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
        "models": {
            "other/fixed": {"commit": C, "revision": C},
            "some/thing": {"commit": A, "revision": "main"},
        },
    }
    assert (
        told.path.read_text()
        == json.dumps(json.loads(told.path.read_text()), indent=1, sort_keys=True) + "\n"
    )


def test_a_load_that_fails_pins_nothing(told):
    def fails(commit):
        raise MeeError("no")

    with pytest.raises(MeeError, match="^no$"):
        told.load(load=fails)
    assert not told.path.exists() and not list(told.path.parent.glob(".*"))


def test_a_revision_of_the_profile_that_the_lock_contradicts_is_refused(told):
    told.load()
    assert told.load(revision=A) == A  # the same commit by its own name
    with pytest.raises(
        MeeError,
        match=f'pins "some/thing" at {A} for the revision "main", but the profile asks for "v1": delete',
    ):
        told.load(revision="v1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read .*Invalid JSON.*: restore it from version control, or delete it"),
        ("[]", "should be an object"),
        ('{"model": {}}', "model: .*'datasets' or 'models'"),
        ('{"models": {"some/thing": "aaa"}}', "models.some/thing: .*should be an object"),
        (
            '{"models": {"some/thing": {"revision": "main", "commit": "abc"}}}',
            "models.some/thing.commit: String should match pattern",
        ),
        (b"\xff\xfe", "Invalid JSON"),
    ],
)
def test_a_broken_lock_is_named_and_kept(told, content, message):
    told.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = told.path.read_bytes()
    with pytest.raises(MeeError, match=f"paper.lock.json.*{message}"):
        told.load()
    assert told.path.read_bytes() == before and told.asked == []


def test_a_lock_that_cannot_be_read_or_written_is_said_before_anything_is_loaded(told, monkeypatch):
    loaded = []
    told.path.mkdir()
    with pytest.raises(MeeError, match="paper.lock.json cannot be read"):
        told.load(load=loaded.append)
    told.path.rmdir()
    real = Path.touch

    def read_only(path, *arguments, **options):
        if path.parent == told.path.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "touch", read_only)
    with pytest.raises(
        MeeError, match=r"paper.lock.json cannot be written \(Permission denied\): choose another place"
    ):
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

    with pytest.raises(MeeError, match=f'has just pinned "third/thing" at {B}'):
        told.load("third/thing", load=sooner)


# The lock, through the real clients and a loopback stand-in for the hub


READ = """
import json, sys
from pathlib import Path
from mee_utils import MeeError
from mee_utils.study.inputs import load_profile_model, load_tasks
from mee_utils.study.profiles import load_profile
profile = load_profile("paper")
for lock in json.loads(sys.argv[1]):
    profile.lock.write_text(lock) if lock else profile.lock.unlink()
    try:
        targets = [task.targets[0] for task in load_tasks(profile)]
        weights = load_profile_model(profile, "base").network.shared.weight.double().sum()
        print(json.dumps([targets, round(float(weights), 3)]))
    except MeeError as error:
        print(json.dumps(str(error)))
    if lock and profile.lock.read_text() != lock:
        print("the lock was changed")
"""


def from_a_hub(content):
    """The profile `paper` on the stand-in's repositories; one has the layout of refs/convert/parquet."""
    content["corpora"] = {
        "translation": {"source": "someone/pairs", "train": 20, "held_out": 4, "choices": 1},
        "summarization": {
            "source": "someone/news",
            "revision": "refs/convert/parquet",
            "folder": "3.0.0",
            "train": 20,
            "held_out": 4,
            "choices": 1,
        },
    }
    content["training"].update(base={"checkpoint": "someone/mini"}, max_source=48, max_target=12)
    for backbone in content["training"]["backbones"].values():
        backbone["examples"] = dict.fromkeys(content["corpora"], 20)


def publish(folder, commit, tokenizer, seed, word):
    """Writes the three repositories at one commit; their contents tell commits apart."""
    import pandas as pd

    papers.write_checkpoint(folder / "models/someone/mini" / commit, tokenizer, seed=seed)
    pairs = folder / "datasets/someone/pairs" / commit
    pairs.mkdir(parents=True)
    for split in ("train", "validation"):
        (pairs / f"{split}.jsonl").write_text(
            (json.dumps({"translation": {"en": f"Bob {split}.", "fr": word}}) + "\n") * 2
        )
        for config in ("1.0.0", "3.0.0"):
            news = folder / "datasets/someone/news" / commit / config / split
            news.mkdir(parents=True)
            rows = {"article": [f"It rains. {split}"] * 2, "highlights": [f"{word} {config}"] * 2}
            pd.DataFrame(rows).to_parquet(news / "0000.parquet")


def test_a_moved_branch_does_not_move_results(tmp_path):
    tokenizer = papers.train_tokenizer()
    publish(tmp_path / "hub", A, tokenizer, 0, "Rome")
    publish(tmp_path / "hub", B, tokenizer, 1, "Oslo")
    commits = {"main": A, "refs/convert/parquet": A}
    clone = papers.Clone(tmp_path)
    clone.edit(from_a_hub)
    path, base = clone.profiles / "paper.lock.json", clone.root / "mee_utils/checkpoints/paper/base"
    with serving(tmp_path, commits) as (asked, environment):

        def read(*locks, offline):
            more = environment | {"HF_HUB_OFFLINE": offline}
            done = clone.python("-c", READ, json.dumps(locks), **more)
            assert done.returncode == 0, done.stderr[-2000:]
            return [json.loads(line) for line in done.stdout.splitlines()]

        made = clone.run("train", "--profile", "paper", "--model", "base", **environment, HF_HUB_OFFLINE="0")
        assert made.returncode == 0, made.stderr[-2000:]
        lock = path.read_text()
        found = {kind: {n: e["commit"] for n, e in names.items()} for kind, names in json.loads(lock).items()}
        datasets = {"someone/news": A, "someone/pairs": A}
        assert found == {"datasets": datasets, "models": {"someone/mini": A}}
        manifest = json.loads((base / "manifest.json").read_text())
        assert manifest["source"] == {"checkpoint": "someone/mini", "commit": A}
        assert manifest["shape"]["num_decoder_layers"] == 12
        assert os.listdir(base) == ["manifest.json"]  # weights stay in the hub's cache
        assert set(manifest["scores"]) == {"translation", "summarization"}
        assert len(manifest["layer_cross_entropy"][0]["cross_entropy"]) == 12
        commits.update({"main": B, "refs/convert/parquet": B})
        # as it was; without the lock, where the same code takes the other commit; at a commit that is gone
        pinned, moved, gone = read(lock, None, lock.replace(A, C), offline="0")
        assert pinned[0] == ["Rome", "Rome 3.0.0"] and moved[0] == ["Oslo", "Oslo 3.0.0"]
        assert moved[1] != pinned[1]
        assert f'The hub no longer has the commit {C} of "someone/pairs" that' in gone
        asked.clear()
        assert read(lock, offline="1") == [pinned] and asked == []


def test_long_documents_lie_in_data():
    from mee_utils.study.experiment import Experiment

    with pytest.raises(MeeError, match='DATA holds no folder "nothing": give DATA=.*, or long_corpus'):
        Experiment(None, "small").long_documents("nothing", 1)


# Up to the download


COMMANDS = """
import json, sys
from mee_utils.__main__ import main
print([main([*command, "--profile", "paper"]) for command in json.loads(sys.argv[1])])
"""


def test_without_the_hub_every_command_says_in_one_line_what_it_needs(tmp_path):
    clone = papers.Clone(tmp_path)
    before = clone.files()
    commands = [["train"], *(["notebook", name] for name in notebook_files.notebook_names())]
    done = clone.python("-c", COMMANDS, json.dumps(commands))
    lines = done.stderr.splitlines()
    assert done.stdout == f"{[2] * len(commands)}\n" and len(lines) == len(commands), done.stderr
    asked = 'error: The hub could not be asked for "google-t5/t5-large" (revision main; '
    assert lines[0].startswith(asked) and "Check the id and the network" in lines[0]
    wanted = (
        'error: Profile "paper" has no trained model "vanilla" (from google-t5/t5-large): '
        'run "make train PROFILE=paper"'
    )
    assert all(line.startswith(wanted) for line in lines[1:]), lines
    assert clone.files() == before and not (tmp_path / "figures").exists()


# The whole profile


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The profile `paper` after `make train`, on a tiny checkpoint and local files."""
    folder, tokenizer = tmp_path_factory.mktemp("paper"), papers.train_tokenizer()
    papers.write_checkpoint(folder / "checkpoint", tokenizer, steps=40)
    corpora = papers.write_corpora(folder / "corpora")
    clone = papers.Clone(folder)
    clone.edit(lambda content: papers.shrink(content, folder / "checkpoint", corpora))
    models = [
        part for name in ("base", "vanilla", "calm", "free", "late_weighted") for part in ("--model", name)
    ]
    clone.done = clone.run("train", "--profile", "paper", *models)
    return clone


def test_models_are_fine_tuned_from_the_checkpoint_and_say_so(trained):
    assert trained.done.returncode == 0, trained.done.stderr[-3000:]
    folder = trained.root / "mee_utils/checkpoints/paper"
    about = {path.name: json.loads((path / "manifest.json").read_text()) for path in folder.iterdir()}
    assert set(about) == {"base", "vanilla", "calm", "free", "late_weighted"}
    for name in ("base", "vanilla"):
        assert about[name]["steps"] == 0 and about[name]["source"]["commit"] is None
        assert about[name]["scores"]["translation"]["bleu"] > 20
        assert not (folder / name / "model.safetensors").exists()
    for name in ("calm", "free", "late_weighted"):
        assert about[name]["base"] == about["base"]["weights"] and about[name]["steps"] > 0
        assert about[name]["shape"]["d_model"] == 32
    assert all(4 <= found["min_exit_layer"] <= 12 for found in about.values())
    from safetensors import safe_open

    with safe_open(folder / "calm/model.safetensors", framework="pt") as weights:
        dtypes = {str(weights.get_tensor(name).dtype) for name in weights.keys()}  # noqa: SIM118
        assert dtypes == {"torch.bfloat16"}
    assert not list(trained.profiles.glob("*.lock.json"))  # nothing came from the hub


def test_sources_are_cut_where_the_checkpoint_was_trained_to_be(trained):
    code = """
from mee_utils.study.inputs import load_profile_tokenizer, load_tasks
from mee_utils.study.profiles import load_profile
profile = load_profile("paper")
short = profile.training.model_copy(update={"max_source": 12})
tasks = load_tasks(profile.model_copy(update={"training": short}))
encode = load_profile_tokenizer(profile, "base")
print([max(map(len, encode(task.inputs).input_ids)) for task in tasks])
print([task.inputs[0][:10] for task in load_tasks(profile)])
"""
    done = trained.python("-c", code)
    longest = json.loads(done.stdout.split("]")[0] + "]")
    assert max(longest) <= 13 and "question: " in done.stdout, done.stderr[-1000:]


EVERY = """
import sys
from mee_utils.__main__ import main
from mee_utils.study import jobs
from mee_utils.study.profiles import load_profile
where = ["--profile", "paper", "--data", sys.argv[1]]
for name in sys.argv[2:]:
    if name == "measure":
        for job in jobs.measurements(load_profile("paper")):
            main(["job", job.kind, "--model", job.model, "--task", job.task, *where])
        main(["job", "tables", "--name", "measured", *where])
    else:
        main(["notebook", name, *where])
"""


@pytest.fixture(scope="module")
def executed(trained):
    """What the commands said. After 00 one corpus and the two models that all need are enough."""
    before = trained.files()
    (first, *rest), data = notebook_files.notebook_names(), str(trained.root.parent / "corpora")
    start = trained.python("-c", EVERY, data, first)
    spared = {"corpora": ("question_answering", "summarization"), "backbones": ("free", "late_weighted")}

    def spare(content):
        for part, names in spared.items():
            for name in names:
                (content | content["training"])[part].pop(name)
        for backbone in content["training"]["backbones"].values():
            if "examples" in backbone:
                backbone["examples"] = {"translation": 15}

    trained.edit(spare)
    others = trained.python("-c", EVERY, data, "measure", *rest)
    assert trained.files() == before  # results are in their own folder
    return start.stdout + start.stderr + others.stdout + others.stderr


@pytest.mark.parametrize("name", notebook_files.notebook_names())
def test_every_notebook_runs_with_the_profile(trained, executed, name):
    """`vanilla` is a ready checkpoint in it, of which nobody knows the objective."""
    results = Path(trained.environment["MEE_OUTPUT"]) / "paper"
    assert (results / f"{name}.ipynb").exists(), executed[-3000:]
    manifest = json.loads((results / name / "manifest.json").read_text())
    assert manifest["profile"] == "paper" and manifest["parameters"].get("limit", 5) == 5
    read = {"00_models": 3, "08_results": 0}.get(name, 1)
    assert len([key for key in manifest["inputs"] if key.startswith("corpus")]) == read


def test_a_ready_backbone_with_another_tokenizer_is_refused(trained, tmp_path):
    from mee_utils.training.mini import train_tokenizer

    papers.write_checkpoint(
        tmp_path / "foreign", train_tokenizer(["Ann has a key in Rome.", "Bob has a hat in Oslo."] * 2, 90)
    )
    trained.edit(
        lambda content: content["training"]["backbones"].update(
            foreign={"checkpoint": str(tmp_path / "foreign")}
        )
    )
    done = trained.run("train", "--profile", "paper", "--model", "foreign")
    trained.edit(lambda content: content["training"]["backbones"].pop("foreign"))
    assert (
        done.returncode == 2 and f"{tmp_path / 'foreign'} has another tokenizer than the base" in done.stderr
    )
    assert not [path for path in trained.files() if "foreign" in path]


def test_another_checkpoint_under_the_same_name_is_noticed(trained, tmp_path):
    papers.write_checkpoint(tmp_path / "other", papers.train_tokenizer(), seed=5)
    trained.edit(lambda content: content["training"].update(base={"checkpoint": str(tmp_path / "other")}))
    done = trained.run("train", "--profile", "paper", "--model", "calm")
    assert (
        done.returncode == 2
        and "paper/calm was trained with another" in done.stderr
        and "base: delete it" in done.stderr
    )
