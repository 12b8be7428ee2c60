"""Strictness of profiles and training. A mistake is one line; nothing half-written; no result lost."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from mee_utils import MeeError
from mee_utils.common import files
from mee_utils.common.files import read_yaml
from mee_utils.companion import catalogue, inputs, profiles, result_tables
from mee_utils.companion.profiles import Profile, load_profile, profile_names

pytestmark = pytest.mark.xdist_group("notebooks")
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_loads(name):
    assert load_profile(name).name == name


def edited(tmp_path, change, name="mine"):
    """A copy of the profile `small` in a file elsewhere, with a name of its own and a change."""
    content = yaml.safe_load((ROOT / "notebooks/profiles/small.yaml").read_text())
    content["name"] = name
    change(content)
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(devise="cpu"), 'key "devise": did you mean "device"'),
        (lambda c: c["training"].update(sed=1), 'training: Unknown key "sed": did you mean "seed"'),
        (lambda c: c["training"]["shape"].update(d_modle=9), 'training.shape: .*did you mean "d_model"'),
        (lambda c: c["corpora"]["translation"].update(sorce="x"), 'did you mean "source"'),
        (
            lambda c: c["training"]["backbones"]["calm"].update(objective="clam"),
            "calm.objective: Input should be 'vanilla', 'calm'.*it is 'clam'",
        ),
        (lambda c: c["training"]["backbones"]["calm"].update(decay=-1), "equal to 0 .it is -1"),
        (
            lambda c: c["training"]["backbones"]["calm"].update(examples={"translation": 0}),
            "calm.examples.translation: .*greater than 0 .it is 0",
        ),
        (
            lambda c: c["training"]["backbones"]["calm"].update(examples={}),
            "calm.examples: .* at least 1 item",
        ),
        (lambda c: c["training"]["backbones"]["calm"].update(passes=1.0), 'calm: Unknown key "passes"'),
        (
            lambda c: c["training"]["backbones"]["calm"].update(examples={"translations": 5}),
            'training.backbones.calm: there are no examples of "translations": did you mean "translation"',
        ),
        (
            lambda c: c["training"]["backbones"]["calm"].update(examples={"spans": 5}),
            'training.backbones.calm: there are no examples of "spans": ',
        ),
        (
            lambda c: c["training"]["base"]["stages"][1]["examples"].update(owner=5),
            'training.base.stages: there are no examples of "owner": did you mean "owners"',
        ),
        (lambda c: c["corpora"].pop("summarization"), 'there are no examples of "summarization"'),
        (lambda c: c.update(results={"models": ["calmer"]}), 'results.models: .* did you mean "calm"'),
        (
            lambda c: c.update(results={"most_candidates": {"summary": 8}}),
            "results.most_candidates.*'summarization'",
        ),
        (
            lambda c: c["training"]["backbones"].update(pretrained={"checkpoint": "x/y"}),
            '"pretrained" is the name of the pre-trained model',
        ),
        (lambda c: c["corpora"]["translation"].update(choices=0), "choices: .*greater than 0 .it is 0"),
        (
            lambda c: c.update(extra={"more": {"task": "translating", "source": "synthetic"}}),
            "extra.more.task: Input should be .*it is 'translating'",
        ),
        (lambda c: c["training"]["base"].update(stages=[]), "stages: .* at least 1 item"),
        (lambda c: c["training"].update(seed="zero"), "training.seed: .*valid integer"),
        (lambda c: c.pop("corpora"), "corpora: Field required"),
        (lambda c: c["corpora"].update(translating={"source": "synthetic"}), "translating"),
        (lambda c: c.update(name="../small"), "name: .*pattern"),
        (lambda c: c["training"]["backbones"].update({"../x": {"checkpoint": "x/y"}}), r"\.\./x: .*pattern"),
        (lambda c: c["training"]["backbones"].update(base={"checkpoint": "x/y"}), '"base" is the name of'),
        (
            lambda c: c.update(notebooks={"06_survey_rule": {"limit": 9}}),
            'notebooks: no "06_survey_rule": did you mean "06_survey_rules"',
        ),
        (lambda c: c["training"].update(backbones={}), "backbones: .* at least 1 item"),
        (
            lambda c: c.update(rivals={"decoder_layers": [3, 12]}),
            "rivals.decoder_layers: 12 is not below the 12 of the shape",
        ),
        (lambda c: c.update(rivals={"decoder_layers": []}), "rivals.decoder_layers: .* at least 1 item"),
        (lambda c: c.update(rivals={"decoder_layers": [0]}), "rivals.decoder_layers.0: .*greater than 0"),
        (lambda c: c.update(rivals={"decoder_layer": [3]}), 'rivals: .*did you mean "decoder_layers"'),
        (lambda c: c["training"]["backbones"].pop("vanilla"), 'rivals: they are trained as the .* "vanilla"'),
        (lambda c: c.update(corpora={}), "corpora: .* at least 1 item"),
        (lambda c: c["corpora"]["translation"].update(source=""), "source: .*at least 1 character"),
        (lambda c: c["corpora"]["translation"].update(languages=["en", "en"]), "translation: languages="),
        (lambda c: c["corpora"]["translation"].update(languages=["en", "xx"]), '"xx" is the code of no'),
        (lambda c: c.update(results={"deltas": [2.0]}), "results.deltas.0: .*less than 1"),
        (lambda c: c.update(results={"risk_deltas": [0.0]}), "results.risk_deltas.0: .*greater than 0"),
        (lambda c: c.update(classifiers={"learning_rate": float("inf")}), "learning_rate: .*finite number"),
        *(
            (lambda c, device=device: c.update(device=device), f"device: .* match pattern .*it is '{device}'")
            for device in ("gpu", "cuda:one", "")
        ),
        (lambda c: c.update(device=0), "device: .*valid string .it is 0"),
        (lambda c: c.update(dtype="float23"), "dtype: Input should be 'float64', .*it is 'float23'"),
        (lambda c: c.update(dtype="float16"), "dtype: Input should be 'float64', .*it is 'float16'"),
        (lambda c: c["training"].update(seed=-1), "training.seed: .*equal to 0 .it is -1"),
        (lambda c: c["training"].update(seed=2**70), f"training.seed: .*equal to {2**63 - 1}"),
        (lambda c: c["training"]["backbones"]["calm"].update(seeds=-1), "seeds: .*greater than 0 .it is -1"),
        (lambda c: c["classifiers"].update(seeds=-1), "classifiers.seeds: .*equal to 0 .it is -1"),
        (lambda c: c["corpora"]["translation"].update(train=-5), "train: .*greater than 0 .it is -5"),
        (lambda c: c.update(results={"test": -1}), "results.test: .*greater than 0 .it is -1"),
        (
            lambda c: c.update(results={"least_k": 300}),
            "results: least_k=300 is more than first_k=256: entries can only become fewer",
        ),
        (
            lambda c: c["training"]["backbones"]["free"].update(exit_layer=12),
            "training.backbones.free.exit_layer: 12 is too deep for the 12 layers of the shape; at most 11",
        ),
        (
            lambda c: c["training"]["compared"]["alternating"].update(exit_layer=40),
            "training.compared.alternating.exit_layer: 40 is too deep",
        ),
        (lambda c: c.update(results={"min_layer": 12}), "results.min_layer: 12 is too deep .* at most 11"),
        (
            lambda c: c.update(notebooks={"03_pruning": {"min_layer": 12}}),
            "notebooks.03_pruning.min_layer: 12 is too deep .* at most 11",
        ),
        (
            lambda c: c.update(notebooks={"04_contrastive_decoding": {"expert_layer": 13}}),
            "notebooks.04_contrastive_decoding.expert_layer: 13 is too deep .* at most 12",
        ),
        (lambda c: c["ablations"].update(layers=13), "ablations.layers: 13 is too deep .* at most 12"),
        (
            lambda c: c["training"]["compared"].update(calm=c["training"]["backbones"]["calm"]),
            'training: compared: "calm" is one of the backbones',
        ),
    ],
)
def test_a_profile_with_a_mistake_names_it(tmp_path, change, message):
    with pytest.raises(MeeError, match=message) as error:
        load_profile(edited(tmp_path, change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "p.yaml is empty: a profile has keys"),
        (b"- name\n- corpora\n", "p.yaml holds a list: a profile has keys"),
        (b"small", "p.yaml holds a str: a profile has keys"),
        (b"name: caf\xe9", "p.yaml is no YAML in UTF-8"),
        (b"name: [", "p.yaml is no YAML in UTF-8"),
        (b"name: a\nname: b\n", 'the key "name" is there twice, line 1 on'),
        (b"a: [{b: {c: 1, c: 1}}]", 'the key "c" is there twice, line 1 on'),
        (b"corpora:\n  x: {revision: 2024-31-12}", "p.yaml: line 2: '2024-31-12' is no timestamp"),
        (b"a: !!int abc", "p.yaml: line 1: 'abc' is no int that YAML can read; put a text in quotes"),
        (b"a: [1, 0x_]", "p.yaml: line 1: '0x_' is no int"),
        (b"a: 0b", "p.yaml holds a dict|Unknown key"),
        (b"a: " + b"1" * 5000, "p.yaml: line 1: '1{59}... is no int"),
        (b"2024-31-12: a", "p.yaml: line 1: '2024-31-12' is no timestamp"),
        (b"a: =", "p.yaml: line 1: '=' is no value"),
        (b"a: !mine x", "p.yaml: line 1: 'x' is no !mine"),
        (b"a: !!python/name:os.system x", "p.yaml: line 1: 'x' is no"),
        (b"a: {[1]: 2}", "p.yaml"),
        (b"? {a: 1}\n: 2", "p.yaml"),
        (b"a: {<<: 5}", "p.yaml is no YAML in UTF-8: .*expected a mapping"),
        (b"a: " + b"[" * 20_000, "p.yaml has lists or mappings nested too deeply"),
        (b"{a: " * 400 + b"1" + b"}" * 400, "p.yaml"),
        (b"name: &a [*a]", "p.yaml: "),
        (b"name: &a {b: *a}", "p.yaml: "),
        (b"name: a\n---\nname: b", "p.yaml is no YAML in UTF-8: expected a single document"),
        (b"name: \x00", "p.yaml is no YAML in UTF-8"),
        (b"name: 2024-12-31", "p.yaml: name: Input should be a valid string"),
    ],
    ids=lambda value: "",
)
def test_a_file_that_is_no_profile_is_one_line(tmp_path, content, message):
    (tmp_path / "p.yaml").write_bytes(content)
    with pytest.raises(MeeError, match=message) as error:
        load_profile(tmp_path / "p.yaml")
    assert "\n" not in str(error.value)


MERGES = {
    "of a merge": "a: &a {x: 1, y: 1}\nb:\n  c: &b {<<: *a, x: 2}\nd: {<<: *b, z: 3}\ne: {<<: *b, y: 5}\n",
    "less deep": "outer:\n  inner: &b\n    <<: {x: 1}\n    x: 2\ntop:\n  <<: *b\n",
    "of several": "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, *a], y: 1}\nd: {<<: [*a, *b], x: 9}\n",
    "twice": "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: &c {<<: *b, x: 3}\nd: {<<: *c}\ne: *c\n",
    "at the top": "base: &a {x: 1}\n<<: *a\nx: 2\n",
}


@pytest.mark.parametrize("case", MERGES)
def test_merges_are_read_as_yaml_reads_them(tmp_path, case):
    """Before, a mapping that was merged was refused: its keys were there twice once it had merged its own."""
    path = tmp_path / "p.yaml"
    path.write_text(MERGES[case])
    assert profiles._read_mapping(path) == yaml.safe_load(MERGES[case])


@pytest.mark.parametrize("name", profile_names())
def test_profiles_are_read_as_yaml_reads_them(name):
    path = profiles.FOLDER / f"{name}.yaml"
    assert profiles._read_mapping(path) == yaml.safe_load(path.read_text(encoding="utf-8"))


def test_a_byte_order_mark_is_no_part_of_a_profile(tmp_path):
    content = (ROOT / "notebooks/profiles/small.yaml").read_bytes().replace(b"name: small", b"name: mine")
    (tmp_path / "p.yaml").write_bytes(b"\xef\xbb\xbf" + content)
    mine = load_profile(tmp_path / "p.yaml")
    assert mine.name == "mine"
    assert mine.model_dump() == load_profile("small").model_dump() | {"name": "mine"}


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda:12", "mps"])
def test_a_profile_may_name_any_device_of_torch(tmp_path, device):
    assert load_profile(edited(tmp_path, lambda c: c.update(device=device))).device == device


def test_the_deepest_layers_that_a_profile_may_name(tmp_path):
    def change(content):
        content["training"]["backbones"]["free"]["exit_layer"] = 11
        content["results"] = {"min_layer": 11, "first_k": 16, "least_k": 16}
        content["ablations"]["layers"] = 12
        content["notebooks"] = {"06_survey_rules": {"min_layer": 11, "layer": 12}}

    profile = load_profile(edited(tmp_path, change))
    assert profile.training.exit_layer("free", 12) == profile.results.min_layer == 11


def test_layers_of_a_ready_model_are_not_known_beforehand(tmp_path):
    content = yaml.safe_load((ROOT / "notebooks/profiles/paper.yaml").read_text())
    content["name"] = "mine"
    content["training"]["backbones"]["free"]["exit_layer"] = 23
    assert Profile.model_validate(content).training.exit_layer("free", 24) == 23
    content["ablations"] = {"layers": 4, "runs": {"recipe": {"stages": [{"examples": {"pairs": 5}}]}}}
    content["ablations"]["runs"]["recipe"]["stages"][0]["learning_rate"] = 0.02
    with pytest.raises(ValueError, match="ablations: they begin with random weights, and there is no shape"):
        Profile.model_validate(content)


@pytest.mark.parametrize("name", ["missing.yaml", "missing.yml", "./some/where/small.yaml"])
def test_a_file_that_is_not_there_is_named_and_no_unknown_profile(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for given in (name, Path(name)):
        with pytest.raises(
            MeeError, match=r"does not exist: give the file of a profile, or .*, small, smollm2\.$"
        ):
            load_profile(given)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(MeeError, match=r"folder\.yaml is a folder: give the file of a profile"):
        load_profile("folder.yaml")


def test_a_file_with_another_ending_is_no_unknown_profile(tmp_path):
    path = edited(tmp_path, lambda c: None).rename(tmp_path / "p.txt")
    with pytest.raises(MeeError, match=r"p\.txt is no YAML file: .* ends in \.yaml or \.yml"):
        load_profile(path)


@pytest.mark.parametrize("name", ["../profiles/small", "", None, "."])
def test_a_profile_is_found_by_name_and_not_by_path(name):
    with pytest.raises(MeeError, match=f'Unknown profile "{name}": .*(Valid:|valid are) paper'):
        load_profile(name)


def test_the_exit_layer_of_free_is_the_recipes_or_a_third():
    assert load_profile("paper").training.exit_layer("free", 24) == 6
    assert load_profile("small").training.exit_layer("free", 12) == 4
    samsum = load_profile("paper_samsum").training
    assert samsum.exit_layer("vanilla", 24) == 8  # a ready checkpoint says nothing of it


def test_notebook_00_weighs_the_objectives_of_models_that_are_trained_here_only():
    samsum = load_profile("paper_samsum").training
    assert set(samsum.backbones) - set(samsum.objectives) == {"vanilla"}  # a ready checkpoint
    small = load_profile("small").training.objectives
    assert {name: settings.objective for name, settings in small.items()} == {name: name for name in small}


def test_a_misspelt_profile_names_the_nearest():
    with pytest.raises(MeeError, match='Unknown profile "smal": did you mean "small"'):
        load_profile("smal")


def test_a_profile_of_local_corpora_asks_for_their_folder(tmp_path):
    with pytest.raises(MeeError, match="DATA=path/to/corpora"):
        load_profile("real").source("translation")
    with pytest.raises(MeeError, match="is no folder"):
        load_profile("real", str(tmp_path / "no")).source("translation")
    with pytest.raises(MeeError, match="must hold a folder multi30k_en_fr"):
        load_profile("real", str(tmp_path)).source("translation")
    corpus = tmp_path / "multi30k_en_fr"
    corpus.mkdir()
    assert load_profile("real", str(tmp_path)).source("translation") == str(corpus)


def test_a_profile_is_named_after_its_file(monkeypatch, tmp_path):
    path = edited(tmp_path, lambda c: None)
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    with pytest.raises(MeeError, match='calls itself "mine": its name must be "p"'):
        load_profile(path)


@pytest.mark.parametrize("name", ["small", "real", "paper", "SMALL", "bench", "build"])
def test_a_file_elsewhere_does_not_take_the_name_of_other_results(tmp_path, monkeypatch, name):
    """Before, its notebooks and tables replaced those that are committed."""
    path = edited(tmp_path, lambda c: None, name)
    (tmp_path / "linked.yaml").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for spelling in (path, tmp_path / "linked.yaml", "p.yaml", "./p.yaml", f"../{tmp_path.name}/p.yaml"):
        with pytest.raises(MeeError, match=f'calls itself "{name}", .*: give it another name') as error:
            load_profile(spelling)
        assert "\n" not in str(error.value)


def test_the_file_of_a_profile_is_that_profile_however_it_is_spelled(tmp_path, monkeypatch):
    (tmp_path / "linked.yaml").symlink_to(ROOT / "notebooks/profiles/small.yaml")
    (tmp_path / "folder").symlink_to(ROOT / "notebooks/profiles")
    monkeypatch.chdir(ROOT)
    for spelling in (
        tmp_path / "linked.yaml",
        tmp_path / "folder/small.yaml",
        "notebooks/profiles/small.yaml",
    ):
        assert load_profile(spelling) == load_profile("small")
        assert profiles.profile_name(spelling) == "small"
    assert profiles.profile_name("small") == "small"


def test_stored_tables_are_found_by_the_name_of_a_profile_that_is_given_as_a_file(tmp_path, monkeypatch):
    """Before, notebooks 00, 01, 03, 05 and 06 looked for them below the path, at the end of a long run."""
    path = str(edited(tmp_path, lambda c: None))
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    for name in ("measured", "retrained", "01_monotonicity"):
        shutil.copytree(ROOT / "figures/small" / name, tmp_path / "mine" / name)
    read = result_tables.read_measurements
    assert read(path, "vanilla-translation").equals(read("mine", "vanilla-translation"))
    assert len(result_tables.read_retrained(path, "seeds"))
    assert len(result_tables.read_table(path, "01_monotonicity", "claims"))
    assert result_tables.read_manifest(path, "measured")["profile"] == "small"
    assert result_tables.inputs_of(path) == result_tables.inputs_of("mine") != {}


def test_groups_of_rules_are_read_by_their_names(monkeypatch):
    """Before, by their order in the file: another order made another group the main sweep."""
    tables = read_yaml("companion/rules.yaml")
    tables["groups"] = dict(reversed(tables["groups"].items()))
    monkeypatch.setattr(files, "read_yaml", lambda name: tables)
    spec = importlib.util.spec_from_file_location("mee_utils.companion.catalogue_again", catalogue.__file__)
    monkeypatch.setitem(sys.modules, spec.name, importlib.util.module_from_spec(spec))
    again = sys.modules[spec.name]
    spec.loader.exec_module(again)
    assert list(again.MAIN_SWEEP) == tables["groups"]["main_sweep"]
    assert list(again.MEE_RULES) == tables["groups"]["mee"]


def trained(monkeypatch, tmp_path, **changes):
    """A profile of translation on a local corpus, and the manifest of a model trained on it."""
    from mee_utils.companion.training import build as train
    from mee_utils.tasks.sources import local_files

    corpus = tmp_path / "corpus"
    corpus.mkdir(exist_ok=True)
    for split in ("train", "test"):
        (corpus / f"{split}.jsonl").write_text(json.dumps({"translation": {"en": split, "fr": "x"}}) + "\n")
    content = yaml.safe_load((ROOT / "notebooks/profiles/real.yaml").read_text())
    content["corpora"] = {"translation": content["corpora"]["translation"] | {"source": str(corpus)}}
    content["extra"] = {}
    content["training"]["base"]["stages"] = [{"examples": {"translation": 9}, "learning_rate": 0.02}]
    for models in ("backbones", "compared"):
        for backbone in content["training"][models].values():
            backbone["examples"] = {"translation": 9}
    profile = Profile.model_validate(content)
    about = {
        "recipe": profile.training.backbones["calm"].model_dump(),
        "shape": profile.training.shape.model_dump(),
        "seed": profile.training.seed,
        "data": {"translation": {"sha256": local_files(corpus, "train")[1]}},
    } | changes
    monkeypatch.setattr(inputs, "manifest", lambda profile, name: about)
    monkeypatch.setattr(inputs, "PACKAGE", tmp_path)
    return profile, corpus, train


def test_a_model_trained_on_other_data_or_by_another_recipe_is_not_taken_for_this_one(monkeypatch, tmp_path):
    profile, corpus, _ = trained(monkeypatch, tmp_path)
    inputs.check_recipe(profile, "calm")
    (corpus / "train.jsonl").write_text(json.dumps({"translation": {"en": "other", "fr": "y"}}) + "\n")
    with pytest.raises(MeeError, match="trained with another training data of translation: delete"):
        inputs.check_recipe(profile, "calm")
    profile, _, _train = trained(monkeypatch, tmp_path, seed=5)
    with pytest.raises(MeeError, match="another seed"):
        inputs.check_recipe(profile, "calm")


def test_training_and_measuring_on_the_same_file_is_refused(monkeypatch, tmp_path):
    profile, corpus, train = trained(monkeypatch, tmp_path)
    one_file = profile.corpora["translation"].model_copy(update={"source": str(corpus / "train.jsonl")})
    profile = profile.model_copy(update={"corpora": {"translation": one_file}})
    with pytest.raises(MeeError, match=r"training and held-out data at once: give .* one file a split"):
        train.new_builder(profile)


def test_what_a_profile_lacks_names_the_ready_checkpoint_and_the_file_to_give(tmp_path):
    """Before, it named the checkpoint of the base, and a profile of no such name."""
    content = yaml.safe_load((ROOT / "notebooks/profiles/paper_published.yaml").read_text())
    content["name"] = "mine"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    first, recipe = next(iter(content["training"]["backbones"].items()))
    ready = recipe.get("checkpoint") or next(iter(recipe["tasks"].values()))["checkpoint"]
    with pytest.raises(MeeError) as error:
        inputs.manifest(load_profile(path), first)
    assert f'no record of the ready model "{first}" ({ready}' in str(error.value)
    assert f'run "make train PROFILE={path}"' in str(error.value)
    with pytest.raises(MeeError, match='run "make train PROFILE=paper_published"'):
        inputs.manifest(load_profile("paper_published"), first)


def test_a_run_with_another_recipe_does_not_resume_an_old_one(monkeypatch, tmp_path):
    from types import SimpleNamespace

    profile, _, train = trained(monkeypatch, tmp_path)
    monkeypatch.setattr(train, "weights_digest", lambda profile, name: "base")
    first, second = ([SimpleNamespace(digest=digest)] for digest in "ab")
    folder = train.work_folder(profile, "calm", 0, first)
    assert folder == train.work_folder(profile, "calm", 0, first)
    others = [("calm", 0, second), ("calm", 1, first), ("free", 0, first)]
    assert len({folder, *(train.work_folder(profile, *other) for other in others)}) == 4
    changed = profile.training.model_copy(update={"max_source": 9})
    assert folder != train.work_folder(profile.model_copy(update={"training": changed}), "calm", 0, first)
    monkeypatch.setattr(train, "weights_digest", lambda profile, name: "another base")
    assert folder != train.work_folder(profile, "calm", 0, first)


def test_a_corpus_that_is_new_in_a_trained_profile_is_one_line(monkeypatch, tmp_path):
    profile, _corpus, _train = trained(monkeypatch, tmp_path, data={})
    with pytest.raises(MeeError, match="trained with another training data of translation: delete"):
        inputs.check_recipe(profile, "calm")


def test_a_corpus_in_a_folder_of_its_source_is_the_one_a_model_was_trained_on(monkeypatch, tmp_path):
    """Before, the files beside the folder were compared."""
    (tmp_path / "en-fr").mkdir()
    (tmp_path / "en-fr" / "train.jsonl").write_text('{"translation": {"en": "a", "fr": "b"}}\n')
    content = yaml.safe_load((ROOT / "notebooks/profiles/small.yaml").read_text())
    content["corpora"]["translation"] = {"source": str(tmp_path), "folder": "en-fr"}
    profile = Profile.model_validate(content)
    recorded = {"sha256": inputs.load_corpus(profile, "translation", "train").digest}
    assert inputs._is_training_data(profile, "translation", recorded)
    (tmp_path / "en-fr" / "train.jsonl").write_text('{"translation": {"en": "a", "fr": "c"}}\n')
    assert not inputs._is_training_data(profile, "translation", recorded)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"extra": {"translation": "a"}}, 'extra: "translation" is the name of a task'),
        ({"away": {"question_answering": "a"}}, 'away: "question_answering" is the name of a task'),
        ({"extra": {"news": "a"}, "away": {"news": "b"}}, 'extra: "news" is another corpus in away'),
    ],
)
def test_a_name_means_one_corpus(parts, message):
    """Before, the corpus named last took the place of the other."""
    content = yaml.safe_load((ROOT / "notebooks/profiles/small.yaml").read_text())
    for part, corpora in parts.items():
        content[part] = {name: {"task": "translation", "source": file} for name, file in corpora.items()}
    with pytest.raises(ValueError, match=message):
        Profile.model_validate(content)


def test_corpora_of_other_domains_are_loaded_by_name():
    from mee_utils.companion.experiment import Experiment

    content = yaml.safe_load((ROOT / "notebooks/profiles/small.yaml").read_text())
    assert Experiment(None, "small").away(3) == {}
    content["away"] = {"shop": {"task": "translation", "source": "synthetic"}}
    experiment = Experiment(None, Profile.model_validate(content))
    ((name, task),) = experiment.away(3).items()
    assert (name, task.name, task.split, len(task)) == ("shop", "translation", "validation", 3)
    assert experiment.used["corpus shop"] == task.digest
    content["away"]["shop"]["task"] = "translations"
    with pytest.raises(ValueError, match="away"):
        Profile.model_validate(content)


def test_the_profile_of_ones_own_model_leaves_out_what_needs_more_models(tmp_path):
    """Before, four of its notebooks stopped: they look for a CALM model, or for exit classifiers."""
    page = (ROOT / "notebooks" / "profiles" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(name: mine\n.*?)```", page, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(block)
    mine = load_profile(str(path), str(tmp_path))
    assert set(mine.left_out) == set(load_profile("paper_published").left_out)
    with pytest.raises(MeeError, match=r'"linear" has no exit classifier here: .* left_out'):
        catalogue.RULES["linear"].policy(0.5, mine.results.model_dump(), {})
