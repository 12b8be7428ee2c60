"""The profiles of the papers: their keys, pinned hub commits, and a whole run on a tiny checkpoint."""

import json
import os
import re
import subprocess
from pathlib import Path

import papers
import pytest
import yaml
from hub import serving

from mee_utils import MeeError
from mee_utils.companion import inputs, profiles
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import jobs, notebook_files, parameters, pins

pytestmark = pytest.mark.xdist_group("notebooks")
ROOT = Path(__file__).parent.parent
PAPERS = [name for name in profiles.profile_names() if name.startswith("paper")]
TRAINED = [name for name in PAPERS if not name.startswith("paper_published")]
A = "a" * 40
B = "b" * 40
C = "c" * 40


# What a profile may say


def edited(tmp_path, change, name="paper"):
    content = yaml.safe_load((ROOT / f"notebooks/profiles/{name}.yaml").read_text())
    change(content)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "p.yaml"


def test_the_profiles_of_the_papers_name_hub_ids_and_no_commit():
    corpora = {corpus.source for name in PAPERS for corpus in load_profile(name).corpora.values()}
    models = {load_profile(name).training.base.checkpoint for name in PAPERS}
    assert models == {"google-t5/t5-large", "google/long-t5-tglobal-base"}
    assert len(corpora) == 7 == len({corpus.split("/")[1] for corpus in corpora})
    for name in PAPERS:
        profile = load_profile(name)
        assert (profile.dtype, profile.device) == ("bfloat16", "auto")
        trained = {"calm", "free", "late_weighted"} if name in TRAINED else set()
        assert set(profile.training.backbones) == {"vanilla", *trained}
        ready = [
            each for model in profile.training.models for each in profile.training.checkpoints(model).values()
        ]
        assert {corpus.revision for corpus in profile.corpora.values()} <= {None, "refs/convert/parquet"}
        assert {checkpoint.revision for checkpoint in ready} == {None}


def test_the_published_checkpoints_are_those_of_the_paper():
    """Each profile of them trains nothing, and every checkpoint takes the tokenizer of its base."""
    ids = set()
    for name in set(PAPERS) - set(TRAINED):
        training = load_profile(name).training
        assert (
            training.is_all_ready and not training.objectives and not jobs.classifier_sets(load_profile(name))
        )
        for checkpoint in training.checkpoints("vanilla").values():
            assert checkpoint.tokenizer.checkpoint == training.base.checkpoint
            ids.add(checkpoint.checkpoint)
    names = ("squad", "cnndm", "IWSLT", "samsum", "multinews", "bigpatent")
    assert ids == {f"jvelja/t5-{name}" for name in names}


@pytest.mark.parametrize("name", PAPERS)
def test_every_notebook_takes_the_parameters_of_the_papers_profiles(name):
    profile = load_profile(name)
    for source, given in profile.notebooks.items():
        declared = notebook_files.declared_parameters(notebook_files.read_source(source))
        parameters.check_parameters(given, declared)
    without_parameters = {"08_results", "90_training"} & set(profile.run_notebooks)  # they run no model
    assert {*profile.notebooks, *without_parameters} == set(profile.run_notebooks)


def test_weights_of_the_papers_profiles_are_not_committed():
    def ignored(path):
        return subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0

    assert ignored("mee_utils/checkpoints/paper/calm/model.safetensors")
    assert not ignored("mee_utils/checkpoints/small/calm/model.safetensors")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "paper",
            lambda c: c["training"]["base"].update(stages=[]),
            'training.base: Unknown key "stages": valid are adapter, checkpoint',
        ),
        (
            "paper",
            lambda c: c["training"]["backbones"]["calm"].update(checkpoint="x/y"),
            'backbones.calm: Unknown key "\\w+": valid are adapter, checkpoint',
        ),
        (
            "paper",
            lambda c: c["training"].update(
                shape={
                    "vocab_size": 9,
                    "d_model": 9,
                    "d_kv": 9,
                    "num_heads": 9,
                    "d_ff": 9,
                    "num_layers": 9,
                    "num_decoder_layers": 9,
                }
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


READY = {
    "no checkpoint for a corpus": (
        lambda c: c["training"]["backbones"]["vanilla"]["tasks"].pop("translation"),
        "training.backbones.vanilla.tasks: no checkpoint for translation, of which there is a corpus",
    ),
    "no corpus for a checkpoint": (
        lambda c: c["corpora"].pop("translation"),
        "training.backbones.vanilla.tasks: there is no corpus of translation",
    ),
    "a misspelt task": (
        lambda c: c["training"]["backbones"]["vanilla"]["tasks"].update(translations={"checkpoint": "x/y"}),
        "training.backbones.vanilla.tasks.translations: Input should be 'question_answering'",
    ),
    "a misspelt key": (
        lambda c: c["training"]["backbones"]["vanilla"].update(task={}),
        'training.backbones.vanilla: Unknown key "task": did you mean "tasks"',
    ),
    "a base by task": (
        lambda c: c["training"].update(base=c["training"]["backbones"]["vanilla"]),
        'training.base: Unknown key "tasks"',
    ),
    "a tokenizer as text": (
        lambda c: c["training"]["base"].update(tokenizer="google-t5/t5-large"),
        "training.base.tokenizer: Input should be .* HubSource",
    ),
    "an unknown notebook left out": (
        lambda c: c["left_out"].update({"05_mee": "why"}),
        'left_out: no "05_mee": did you mean "05_mee_classifiers"',
    ),
    "left out and run": (
        lambda c: c["notebooks"].update({"05_mee_classifiers": {"limit": 5}}),
        'left_out: "05_mee_classifiers" has parameters in notebooks',
    ),
}


@pytest.mark.parametrize("case", READY)
def test_mistakes_in_a_profile_of_ready_checkpoints_are_one_line(tmp_path, case):
    change, message = READY[case]
    with pytest.raises(MeeError, match=message) as error:
        load_profile(edited(tmp_path, change, "paper_published"))
    assert "p.yaml: " in str(error.value) and "\n" not in str(error.value)


def test_what_a_profile_leaves_out_is_said_in_a_sentence():
    from mee_utils.companion.running import notebooks, pipeline, status

    profile = load_profile("paper_published")
    assert "05_mee_classifiers" not in profile.run_notebooks and "03_pruning" in profile.run_notebooks
    with pytest.raises(MeeError, match='"paper_published" leaves 05_mee_classifiers out: it compares exit'):
        notebooks.run_notebook("05_mee_classifiers", "paper_published")
    with pytest.raises(MeeError, match='"paper_published" has no model "calm", on which rules are measured'):
        pipeline.measure("paper_published", None, 1, force=False)
    said = dict(status.states(profile))
    assert said["90_training"] == "left out: no model is trained" and said["03_pruning"] == "missing"


def test_a_notebook_says_whose_text_it_has_and_whose_results_it_shows(tmp_path, monkeypatch, capsys):
    from mee_utils.companion import experiment

    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    variables = notebook_files.declared_parameters(notebook_files.read_source("03_pruning"))
    assert experiment.Experiment.of_notebook("03_pruning", variables).main == "calm"
    assert capsys.readouterr().out == (
        "The text speaks of profile real, figures and numbers are those of profile small.\n"
    )
    monkeypatch.setattr(experiment, "MAIN_MODEL", "another")
    last = experiment.Experiment.of_notebook("03_pruning", variables).main
    assert last == list(load_profile("small").training.backbones)[-1]
    assert "Where the text speaks of CALM, profile small shows" in capsys.readouterr().out


def test_a_model_with_a_checkpoint_a_task_asks_for_the_task():
    with pytest.raises(MeeError, match="one checkpoint per task: name one of question_answering, summ"):
        inputs.load_profile_model(load_profile("paper_published"), "vanilla")


# Pins, without a hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that says at which commit a revision is; it lists what it is asked."""
    questions = []
    commits = {None: A, "main": A, "v1": B, "refs/convert/parquet": C}

    def answer(kind, source, revision):
        questions.append((kind, source, revision))
        return commits[revision]

    monkeypatch.setattr(pins, "_ask_hub", answer)
    monkeypatch.setattr(pins, "_reference", lambda *arguments: tmp_path / "cache" / "ref")
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    pins.hub_commit.cache_clear()
    yield questions
    pins.hub_commit.cache_clear()


def profile_file(folder, name, change=lambda text: text):
    path = folder / f"{name}.yaml"
    path.write_bytes(change((ROOT / f"notebooks/profiles/{name}.yaml").read_text(encoding="utf-8")).encode())
    return path


def without_revisions(text):
    """A profile's text without revisions, and without the columns of the comments behind them."""
    text = re.sub(r'(, )?revision: ("[abc]{40}"|refs/convert/parquet)', "", text)
    return re.sub(" +#", " #", text)


@pytest.mark.parametrize("name", PAPERS)
def test_pinning_adds_commits_and_leaves_all_else_in_the_file(hub, tmp_path, name):
    path = profile_file(tmp_path, name)
    before = path.read_text(encoding="utf-8")
    profile = load_profile(name)
    ids = set(pins.unpinned(profile))
    commits = pins.pin(name)
    repositories = {source for _, source, _ in hub}
    assert set(commits) == ids and set(commits.values()) <= {A, C} and ids == repositories
    after = path.read_text(encoding="utf-8")
    assert without_revisions(after) == without_revisions(before)
    pinned = load_profile(name)
    for task, corpus in pinned.corpora.items():
        assert corpus.revision == (C if profile.corpora[task].revision else A)
    assert pinned.training.base.revision == A and pins.unpinned(pinned) == []
    hub.clear()
    assert pins.pin(name) == {} and path.read_text(encoding="utf-8") == after and hub == []


STYLES = {
    "block": "  question_answering:\n    train: 5\n    source: someone/questions  # of people\n",
    "windows": "  question_answering:\r\n    source: someone/questions\r\n    train: 5  # few\r\n",
    "quoted": '  question_answering: {"source": "someone/questions", train: 5}  # {one}\n',
    "several lines": "  question_answering: {train: 5,\n    source: someone/questions  # of people\n    }\n",
    "tag": "  question_answering: {source: someone/questions, revision: v1, train: 5}  # first\n",
    "tag in a block": "  question_answering:\n    revision: v1  # first\n    source: someone/questions\n",
    "null": "  question_answering:\n    revision:\n    source: someone/questions\n",
    "accents": "  # à la façon de Müller\n  question_answering: {source: someone/questions}\n",
}


FURTHER = """\
extra:
  web: {task: translation, source: someone/web, folder: en-fr, languages: [fr, en]}
away:
  quizzes: {task: question_answering, source: someone/quizzes, revision: v1, skip_unanswerable: true}
  shop: {task: translation, source: synthetic}
"""


def test_further_corpora_are_pinned_and_loaded_like_those_of_tasks(hub, tmp_path, monkeypatch):
    path = profile_file(tmp_path, "paper", lambda text: text.replace("training:\n", f"{FURTHER}training:\n"))
    assert {"someone/web", "someone/quizzes"} <= set(pins.unpinned(load_profile(path)))
    assert pins.pin(path).items() >= {"someone/web": A, "someone/quizzes": B}.items()
    profile = load_profile(path)
    assert pins.unpinned(profile) == []
    loads = {}

    def load(task, source, split, **options):
        loads[source] = {"task": task, "split": split} | options

    monkeypatch.setattr(inputs, "load_task", load)
    monkeypatch.setattr(inputs, "_fitting", lambda profile, tasks: tasks)
    inputs.load_corpus(profile, "web", "train")
    inputs.load_away(profile, 3)
    web = loads["someone/web"]
    quizzes = loads["someone/quizzes"]
    assert (web["task"], web["split"], web["limit"], web["revision"]) == ("translation", "train", None, A)
    assert (web["folder"], web["languages"]) == ("en-fr", ("fr", "en"))
    assert (quizzes["split"], quizzes["limit"], quizzes["revision"]) == ("validation", 3, B)
    assert quizzes["skip_unanswerable"] and loads["synthetic"]["revision"] is None


MERGED = {
    "source of an anchor": ("{source: someone/web}", "{<<: *one, folder: a}", (A, A)),
    "both of an anchor": ("{source: someone/web, revision: v1}", "{<<: *one, folder: a}", (B, B)),
    "its own source": ("{source: someone/web, revision: v1}", "{<<: *one, source: someone/else}", (B, B)),
    "its own revision": ("{source: someone/web}", "{<<: *one, revision: v1}", (A, B)),
    "several anchors": ("{source: someone/web}", "{<<: [{folder: a}, *one]}", (A, A)),
    "a chain": ("{source: someone/web, revision: v1}", "{<<: {<<: *one, folder: a}}", (B, B)),
    "aliases": ("{source: &id someone/web}", "{source: *id, task: translation}", (A, A)),
    "alias first": ("{source: &id someone/web}", "{task: translation, source: *id}", (A, A)),
    "alias of a revision": (
        "{source: someone/web, revision: &v v1}",
        "{source: someone/else, revision: *v, task: translation}",
        (B, B),
    ),
}


@pytest.mark.parametrize("case", MERGED)
def test_mappings_that_take_over_others_are_pinned(hub, tmp_path, case):
    """Before, a source that came by "<<" was a StopIteration, and an alias was pinned where its anchor is."""
    first, second, wanted = MERGED[case]
    further = f"away:\n  one: &one {first[:-1]}, task: translation}}\n  two: {second}\n"
    path = profile_file(tmp_path, "paper", lambda text: text.replace("training:\n", f"{further}training:\n"))
    before = load_profile(path).away
    pins.pin(path)
    after = load_profile(path).away
    assert (after["one"].revision, after["two"].revision) == wanted
    for name in before:
        assert after[name] == before[name].model_copy(update={"revision": after[name].revision})


KEPT = """\
away:
  one: &one
    # a mapping, of which a second takes over most
    <<: &all {skip_unanswerable: false, languages: [ 'en', "fr" ]}
    source: someone/web   # of people
    task: translation
    # behind it

  # and a second
  two: {<<: [*one, *all], folder: "a"}
"""


def test_comments_anchors_and_quotes_stay(hub, tmp_path):
    """Before, a text was cut at offsets of characters, which knew some of YAML's forms."""
    path = profile_file(tmp_path, "paper", lambda text: text.replace("training:\n", f"{KEPT}training:\n"))
    before = load_profile(path).away
    pins.pin(path)
    text = path.read_text(encoding="utf-8")
    for line in ("one: &one\n", "    # a mapping, of which", "'en', \"fr\"", "    # behind it\n\n  # and"):
        assert line in text
    assert f'    revision: "{A}"\n    source: someone/web   # of people\n' in text
    assert load_profile(path).away == {
        name: corpus.model_copy(update={"revision": A}) for name, corpus in before.items()
    }


def test_a_mark_of_byte_order_stays(hub, tmp_path):
    path = profile_file(tmp_path, "paper", lambda text: f"\ufeff{text}")
    pins.pin("paper")
    assert path.read_bytes().count(b"\xef\xbb\xbf") == 1 and pins.pin("paper") == {}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_a_profile_is_pinned(hub, tmp_path, style):
    wanted = B if "tag" in style else A

    def change(text):
        lines = [
            line
            for line in text.splitlines(keepends=True)
            if not line.startswith("  question_answering: {so")
        ]
        (corpora,) = [number for number, line in enumerate(lines) if line == "corpora:\n"]
        return "".join([*lines[: corpora + 1], STYLES[style], *lines[corpora + 1 :]])

    path = profile_file(tmp_path, "paper", change)
    comments = re.findall("#.*", path.read_text(encoding="utf-8"))
    pins.pin(path)
    assert load_profile("paper").corpora["question_answering"].revision == wanted
    assert re.findall("#.*", path.read_text(encoding="utf-8")) == comments
    assert (b"\r\n" in path.read_bytes()) == (style == "windows")


def test_local_sources_and_commits_are_left_alone(hub, tmp_path):
    for name in ("small", "real"):
        path = profile_file(tmp_path, name)
        before = path.read_bytes()
        assert pins.pin(name) == {} and path.read_bytes() == before
    assert pins.hub_commit("dataset", "synthetic", None) is None
    assert pins.hub_commit("model", str(tmp_path), "v1") is None
    assert pins.hub_commit("model", "other/fixed", C) == C and hub == []


def test_a_hub_that_cannot_be_asked_leaves_the_file_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pins.hub_commit.cache_clear()
    path = profile_file(tmp_path, "paper")
    before = path.read_bytes()
    with pytest.raises(
        MeeError, match=r'The hub could not be reached for "rajpurkar/squad" \(revision main; '
    ) as error:
        pins.pin("paper")
    assert "\n" not in str(error.value) and path.read_bytes() == before


def test_the_last_line_of_a_command_says_what_may_move(hub, tmp_path):
    profile_file(tmp_path, "paper")
    said = pins.how_to_pin(load_profile("paper"), "my paper.yaml")
    assert "google-t5/t5-large, rajpurkar/squad" in said and "pin --profile 'my paper.yaml'" in said
    pins.pin("paper")
    assert pins.how_to_pin(load_profile("paper"), "paper") == ""


# Pins, through the real clients and a loopback stand-in for the hub


READ = """
import json
from mee_utils import MeeError
from mee_utils.companion.inputs import check_recipe, load_profile_model, load_tasks
from mee_utils.companion.profiles import load_profile
profile = load_profile("paper")
try:
    targets = [task.targets[0] for task in load_tasks(profile)]
    weights = load_profile_model(profile, "base").network.shared.weight.double().sum()
    check_recipe(profile, "base")
    print(json.dumps([targets, round(float(weights), 3)]))
except MeeError as error:
    print(json.dumps(str(error)))
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


def test_a_moved_branch_moves_no_results_of_a_pinned_profile(tmp_path):
    tokenizer = papers.train_tokenizer()
    publish(tmp_path / "hub", A, tokenizer, 0, "Rome")
    publish(tmp_path / "hub", B, tokenizer, 1, "Oslo")
    commits = {"main": A, "refs/convert/parquet": A}
    clone = papers.Clone(tmp_path)
    clone.edit(from_a_hub)
    path = clone.profiles / "paper.yaml"
    base = clone.root / "mee_utils/checkpoints/paper/base"
    with serving(tmp_path, commits) as (asked, environment):

        def read(offline):
            done = clone.python("-c", READ, **environment, HF_HUB_OFFLINE=offline)
            assert done.returncode == 0, done.stderr[-2000:]
            return json.loads(done.stdout)

        trained = clone.run(
            "train", "--profile", "paper", "--model", "base", **environment, HF_HUB_OFFLINE="0"
        )
        assert trained.returncode == 0, trained.stderr[-2000:]
        assert "at their newest commit: someone/mini, someone/news, someone/pairs" in trained.stdout
        manifest = json.loads((base / "manifest.json").read_text())
        assert manifest["source"] == {"checkpoint": "someone/mini", "commit": A}
        assert manifest["shape"]["num_decoder_layers"] == 12
        assert os.listdir(base) == ["manifest.json"]  # weights stay in the hub's cache
        assert set(manifest["scores"]) == {"translation", "summarization"}
        assert len(manifest["layer_cross_entropy"][0]["cross_entropy"]) == 12

        unpinned = path.read_text()
        done = clone.run("pin", "--profile", "paper", **environment, HF_HUB_OFFLINE="0")
        assert done.returncode == 0, done.stderr[-2000:]
        pinned = path.read_text()
        assert pinned.count(A) == 3 and "refs/convert" not in pinned
        commits.update({"main": B, "refs/convert/parquet": B})
        # what was trained before it was pinned stays; without pins the other commit is found, and said
        before = read(offline="0")
        assert before[0] == ["Rome", "Rome 3.0.0"]
        asked.clear()
        assert read(offline="1") == before and asked == []
        path.write_text(unpinned)
        assert "was trained with another weights" in read(offline="0")
        path.write_text(pinned.replace(A, C))
        assert '"someone/pairs" is no local file or folder, and the hub did not give its split' in read("0")


def test_long_documents_lie_in_data():
    from mee_utils.companion.experiment import Experiment

    with pytest.raises(MeeError, match=r'DATA holds no folder "nothing": give DATA=.*, or long_corpus'):
        Experiment(None, "small").long_documents("nothing", 1)


# Up to the download


COMMANDS = """
import json, sys
from mee_utils.companion.cli import main
print([main([*command, "--profile", "paper"]) for command in json.loads(sys.argv[1])])
"""


def test_without_the_hub_every_command_says_in_one_line_what_it_needs(tmp_path):
    clone = papers.Clone(tmp_path)
    before = clone.files()
    commands = [["train"], *(["notebook", name] for name in notebook_files.notebook_names())]
    done = clone.python("-c", COMMANDS, json.dumps(commands))
    lines = done.stderr.splitlines()
    assert done.stdout == f"{[2] * len(commands)}\n" and len(lines) == len(commands), done.stderr
    asked = 'error: The hub could not be reached for "google-t5/t5-large" (revision main; '
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


def test_sources_are_cut_where_the_checkpoint_was_trained_to_be(trained):
    code = """
from mee_utils.companion.inputs import load_profile_tokenizer, load_tasks
from mee_utils.companion.profiles import load_profile
profile = load_profile("paper")
short = profile.training.model_copy(update={"max_source": 12})
tasks = load_tasks(profile.model_copy(update={"training": short}))
encode = load_profile_tokenizer(profile, "base")
print([max(map(len, encode(task.inputs).input_ids)) for task in tasks])
print([task.inputs[0][:10] for task in load_tasks(profile)])
"""
    done = trained.python("-c", code)
    longest = json.loads(done.stdout.split("]")[0] + "]")
    assert max(longest) <= 12 and "question: " in done.stdout, done.stderr[-1000:]


@pytest.fixture(scope="module")
def executed(trained):
    """What the commands said. 00 has a kernel, as users run it; then one corpus and two models are enough."""
    before = trained.files()
    (first, *rest), data = notebook_files.notebook_names(), str(trained.root.parent / "corpora")
    start = trained.run("notebook", first, "--profile", "paper", "--data", data)
    spared = {"corpora": ("question_answering", "summarization"), "backbones": ("free", "late_weighted")}

    def spare(content):
        for part, names in spared.items():
            for name in names:
                (content | content["training"])[part].pop(name)
        for backbone in content["training"]["backbones"].values():
            if "examples" in backbone:
                backbone["examples"] = {"translation": 15}

    trained.edit(spare)
    others = trained.python(str(ROOT / "tests/in_process.py"), "paper", data, "measure", *rest)
    assert trained.files() == before  # results are in their own folder
    return start.stdout + start.stderr + others.stdout + others.stderr


@pytest.mark.parametrize("name", notebook_files.notebook_names())
def test_every_notebook_runs_with_the_profile(trained, executed, name):
    """`vanilla` is a ready checkpoint in it, of which nobody knows the objective."""
    results = Path(trained.environment["MEE_OUTPUT"]) / "paper"
    assert (results / f"{name}.ipynb").exists(), executed[-3000:]
    manifest = json.loads((results / name / "manifest.json").read_text())
    assert manifest["profile"] == "paper" and manifest["parameters"].get("limit", 5) == 5
    read = {"00_models": 3, "08_results": 0, "90_training": 0}.get(name, 1)
    assert len([key for key in manifest["inputs"] if key.startswith("corpus")]) == read


def test_a_ready_backbone_with_another_tokenizer_is_refused(trained, tmp_path):
    from mee_utils.companion.training.mini import train_tokenizer

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
