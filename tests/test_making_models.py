"""`make train` on a tiny profile: what each model starts from, is trained on, chosen by and scored on."""

import copy
import itertools
import json
import re
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

from mee_utils import MeeError, Objective, generate, load_task
from mee_utils.companion import inputs
from mee_utils.companion.profiles import Profile, load_profile
from mee_utils.companion.training import build, loop
from mee_utils.companion.training.batches import pad_pairs
from mee_utils.companion.training.mini import grow
from mee_utils.tasks.loading import load_lesson
from mee_utils.tasks.synthetic.questions import LESSONS

SHAPE = {
    "vocab_size": 500,
    "d_model": 32,
    "d_kv": 8,
    "num_heads": 4,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 3,
}
EXAMPLES = {"question_answering": 70, "translation": 50}
BUDGET = {"examples": EXAMPLES, "learning_rate": 0.02, "decay": 0.5}
SPANS = {"examples": {"spans": 100}, "learning_rate": 0.02, "layers": 1}
CONTENT = {
    "name": "tiny",
    "device": "cpu",
    "dtype": "float64",
    "corpora": {  # one corpus for each rule of where choices come from
        "question_answering": {
            "source": "synthetic",
            "train": 60,
            "held_out": 14,
            "held_out_split": "test",
            "choices": 11,
        },
        "translation": {"source": "synthetic", "train": 40, "held_out": 8, "choices": 6},
    },
    "training": {
        "shape": SHAPE,
        "seed": 3,
        "max_source": 120,
        "max_target": 30,
        "tokens_per_batch": 2000,
        "pretrained": {"stages": [SPANS, {"examples": {"spans": 40}, "learning_rate": 0.01, "decay": 0.5}]},
        "base": {
            "stages": [
                SPANS,
                {"examples": {"pairs": 60, "owners": 20, "translation": 30}, "learning_rate": 0.02},
                {"examples": {"question_answering": 60, "spans": 20}, "learning_rate": 0.01},
            ]
        },
        "backbones": {
            "vanilla": {"objective": "vanilla", **BUDGET},
            "calm": {"objective": "calm", "intermediate": "one", **BUDGET},
        },
    },
}
MODELS = ["pretrained", "base", "vanilla", "calm"]


def tiny(change=lambda content: None):
    content = copy.deepcopy(CONTENT)
    change(content)
    return Profile.model_validate(content)


class StageTraining(NamedTuple):
    """What a stage of a model was trained with."""

    model: str
    stage: str
    objective: Objective
    pairs: list
    held_out: list
    schedule: loop.Schedule


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The models of the profile in a folder of their own, and what each stage was trained on."""
    folder = tmp_path_factory.mktemp("making")
    trainings = []
    original = loop.train_backbone

    def recorded(network, objective, pairs, held_out, schedule, folder, name):
        trainings.append(StageTraining(name, folder.name, objective, pairs, held_out, schedule))
        return original(network, objective, pairs, held_out, schedule, folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "PACKAGE", folder)
        patch.setenv("MEE_OUTPUT", str(folder))
        patch.setattr(loop, "train_backbone", recorded)
        folders = build.train(tiny())
        assert folders == [folder / "checkpoints" / "tiny" / name for name in MODELS]
        yield folder, list(trainings)


def manifest(name):
    return inputs.manifest(tiny(), name)


def curve_pairs():
    return build.new_builder(tiny()).curve_pairs()


def as_sets(pairs):
    return {(tuple(source), tuple(target)) for source, target in pairs}


def test_pretrained_comes_first_then_base_then_the_backbones(made):
    folder, trainings = made
    stages = [(training.model, training.stage) for training in trainings]
    assert stages == [
        ("pretrained", "stage-1"),
        ("pretrained", "stage-2"),
        ("base", "stage-1"),
        ("base", "stage-2"),
        ("base", "stage-3"),
        ("vanilla", "stage-1"),
        ("calm", "stage-1"),
    ]
    objectives = [(training.objective.name, training.objective.intermediate) for training in trainings]
    assert objectives == [("vanilla", "all")] * 6 + [("calm", "one")]
    schedules = [training.schedule for training in trainings]
    assert [s.seed for s in schedules] == [3, 4, 3, 4, 5, 3, 3]
    assert [s.decay for s in schedules] == [0, 0.5, 0, 0, 0, 0.5, 0.5]
    assert all(s.muon and not s.half and s.tokens_per_batch == 2000 for s in schedules)
    assert not list((folder / "build").rglob("*.pt")), "unfinished work is gone"


@pytest.mark.parametrize("name", MODELS)
def test_a_manifest_says_how_a_model_was_made_and_how_well_it_does(made, name):
    content = manifest(name)
    settings = tiny().training
    assert content["recipe"] == settings.recipe(name).model_dump() and content["seed"] == 3
    assert (content["profile"], content["model"]) == ("tiny", name)
    assert content["shape"] == settings.shape.model_dump()
    weights = load_file(made[0] / "checkpoints" / "tiny" / name / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    assert content["parameters"] == sum(weight.numel() for weight in weights.values())
    steps = [row["step"] for row in content["layer_cross_entropy"]]
    assert steps[0] == 0 and steps == sorted(set(steps)) and steps[-1] == content["steps"] > 0
    depths = [len(row["cross_entropy"]) for row in content["layer_cross_entropy"]]
    assert set(depths) == ({3} if name in ("vanilla", "calm") else {1, 3}) and depths == sorted(depths)
    examples = {task: origin["examples"] for task, origin in content["data"].items()}
    assert examples == {"question_answering": 60, "translation": 40}
    assert 1 <= content["min_exit_layer"] <= 3


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_held_out_examples_and_of_each_form(made, name):
    profile = tiny()
    scores = manifest(name)["scores"]
    model = inputs.load_profile_model(profile, name, "float32")
    tasks = inputs.load_tasks(profile, "held_out")
    assert {task.name for task in tasks} == set(scores)
    for task in tasks:
        generation = generate(model, task.inputs, max_new_tokens=30, batch_size=64)
        stored = scores[task.name]
        assert (stored["split"], stored["examples"], stored["sha256"]) == (task.split, len(task), task.digest)
        for metric, value in task.score(generation.texts).items():
            assert stored[metric] == pytest.approx(value, abs=0.01)
        assert ("exact_match_by_form" in stored) == (task.name == "question_answering")
    forms = np.array(tasks[0].forms)
    by_form = scores["question_answering"]["exact_match_by_form"]
    assert set(by_form) == set(forms) and len(by_form) > 2
    mean = sum(value * (forms == form).mean() for form, value in by_form.items())
    assert mean == pytest.approx(scores["question_answering"]["exact_match"], abs=0.02)


def test_base_begins_as_pretrained_did(made):
    (first, *_), (other, *_) = (manifest(name)["layer_cross_entropy"] for name in ("pretrained", "base"))
    assert first == other
    vocabularies = [
        inputs.load_profile_tokenizer(tiny(), name).get_vocab() for name in ("pretrained", "base")
    ]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("name", ["vanilla", "calm"])
def test_a_backbone_starts_from_base(made, name):
    network = inputs.load_profile_model(tiny(), "base", "float32").network
    pad = network.config.pad_token_id
    losses = loop.layer_losses(network, [pad_pairs(curve_pairs(), pad)])
    assert manifest(name)["layer_cross_entropy"][0]["cross_entropy"] == pytest.approx(losses, abs=2e-4)
    tokenizers = [inputs.load_profile_tokenizer(tiny(), model).get_vocab() for model in (name, "base")]
    assert tokenizers[0] == tokenizers[1]


def test_choices_are_neither_trained_on_nor_scored():
    """Of the validation split where scores are the test split's; else the first examples for training."""
    profile = tiny()
    parts = {part: inputs.load_tasks(profile, part) for part in ("train", "choices", "held_out")}
    sizes = {part: [len(task) for task in tasks] for part, tasks in parts.items()}
    assert sizes == {"train": [60, 40], "choices": [11, 6], "held_out": [14, 8]}
    splits = {part: [task.split for task in tasks] for part, tasks in parts.items()}
    assert splits == {
        "train": ["train", "train"],
        "choices": ["validation", "train"],
        "held_out": ["test", "validation"],
    }
    for number in range(2):
        inputs_of = {part: set(tasks[number].inputs) for part, tasks in parts.items()}
        for first, second in itertools.combinations(inputs_of.values(), 2):
            assert not first & second
    whole = load_task("translation", split="train", limit=46, seed=3)
    assert parts["choices"][1].inputs == whole.inputs[:6] and parts["train"][1].inputs == whole.inputs[6:]
    assert parts["train"][1].targets == whole.targets[6:]
    limited = inputs.load_tasks(profile, "train", limit=10)
    assert [task.inputs for task in limited] == [task.inputs[:10] for task in parts["train"]]
    assert len(inputs.load_tasks(profile, "choices", limit=4)[1]) == 4


@pytest.mark.parametrize("held_out_split", ["test", "validation"])
def test_choices_of_a_whole_local_corpus(tmp_path, held_out_split):
    """Where no number of examples is given, all that are not choices are trained on."""
    for split in ("train", "validation", "test"):
        rows = [{"translation": {"en": f"{split} {n}", "fr": "x"}} for n in range(9)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = {"source": str(tmp_path), "choices": 4, "held_out_split": held_out_split}
    profile = tiny(lambda c: c["corpora"].update(translation=corpus))

    def numbers(part, **options):
        (task,) = inputs.load_tasks(profile, part, only="translation", **options)
        return [text.removeprefix("translate English to French: ") for text in task.inputs]

    assert numbers("held_out") == [f"{held_out_split} {n}" for n in range(9)]
    if held_out_split == "test":
        assert numbers("choices") == [f"validation {n}" for n in range(4)]
        assert numbers("train") == [f"train {n}" for n in range(9)]
    else:
        assert numbers("choices") == [f"train {n}" for n in range(4)]
        assert numbers("train") == [f"train {n}" for n in range(4, 9)]
        assert numbers("train", limit=2) == ["train 4", "train 5"]


def test_no_stage_is_trained_on_a_choice_or_a_held_out_example_and_each_is_evaluated_on_the_choices(made):
    builder = build.new_builder(tiny())
    choices = as_sets(builder.pairs(builder.choices))
    scored = as_sets(builder.pairs(builder.held_out))
    trained = as_sets(builder.pairs(builder.tasks))
    texts = {(*source[:-1], *target[:-1]) for source, target in trained}
    assert len(choices) == 17 and not choices & trained and not scored & trained and not choices & scored
    sentinels = set(builder.tokenizer.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(32)]))
    for training in made[1]:
        assert as_sets(training.held_out) == choices
        corrupted = [pair for pair in training.pairs if sentinels & set(pair[1])]
        assert all(restored(*pair, sentinels) in texts for pair in corrupted)
        plain = as_sets(training.pairs) - as_sets(corrupted)
        assert not plain & choices and not plain & scored
        if training.model in ("vanilla", "calm"):
            assert plain == trained and len(training.pairs) == 120 and not corrupted
        if training.model == "pretrained":
            assert not plain and len(corrupted) in (100, 40)


def restored(corrupted, target, sentinels):
    """A text of which spans were corrupted, without its end token."""
    spans = {}
    current = None
    for token in target[:-1]:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return tuple(t for token in corrupted[:-1] for t in spans.get(token, [token]))


def test_a_stage_has_the_examples_that_it_asks_for(made, tmp_path):
    rows = [{"translation": {"en": f"It is {letter}.", "fr": f"{letter}."}} for letter in "abcdefg"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    further = {"further": {"task": "translation", "source": str(tmp_path)}}
    wanted = {"translation": 90, "further": 16, "cities": 25, "spans": 10}
    stage = {"examples": wanted, "learning_rate": 0.02}
    profile = tiny(lambda c: c.update(extra=further) or c["training"]["base"]["stages"].append(stage))
    builder = build.new_builder(profile)
    stage = profile.training.base.stages[-1]
    pairs = builder.stage_pairs(stage, seed=5)
    translations = pairs[:90]
    extra = pairs[90:106]
    lesson = pairs[106:131]
    spans = pairs[131:]
    task_pairs = builder.pairs([builder.tasks[1]])
    assert sorted(translations.count(pair) for pair in task_pairs) == [2] * 30 + [3] * 10
    further_pairs = builder.pairs([load_task("translation", tmp_path, "train")])
    assert (
        len(further_pairs) == 7 and sorted(extra.count(pair) for pair in further_pairs) == [2] * 5 + [3] * 2
    )
    assert lesson == builder.pairs([load_lesson("cities", "train", 25, 5)])
    assert len(spans) == 10
    assert pairs == builder.stage_pairs(stage, seed=5)
    other = builder.stage_pairs(stage, seed=6)
    assert len(other) == 141 and other[:90] != translations and other[106:131] != lesson


def test_pairs_are_cut_to_the_lengths_that_are_trained_on(made):
    short = tiny(lambda c: c["training"].update(max_source=9, max_target=5))
    builder = build.new_builder(short)
    whole = build.new_builder(tiny())
    for (source, target), (text, answer) in zip(
        builder.pairs(builder.tasks), whole.pairs(whole.tasks), strict=True
    ):
        assert source == (text if len(text) <= 9 else [*text[:8], text[-1]])
        assert target == (answer if len(answer) <= 5 else [*answer[:4], answer[-1]])


def test_the_curves_are_drawn_from_the_choices_of_all_tasks(made, monkeypatch):
    builder = build.new_builder(tiny())
    assert as_sets(builder.curve_pairs()) == as_sets(builder.pairs(builder.choices))
    monkeypatch.setattr(build, "CURVE_PAIRS", 8)
    few = builder.curve_pairs()
    assert len(as_sets(few)) == 8 and few == Random(3).sample(builder.pairs(builder.choices), 8)


def test_a_seed_decides_what_a_training_gives(made, tmp_path):
    """The profile's seed gives the model that is stored, another one another model."""
    builder = build.new_builder(tiny())
    stored = load_file(made[0] / "checkpoints" / "tiny" / "calm" / "model.safetensors")
    for seed, same in ((3, True), (4, False)):
        network, curve = builder.train_model("calm", seed, tmp_path / str(seed))
        weights = network.state_dict()
        assert all(torch.equal(weights[name].half(), stored[name]) for name in stored) == same
        assert (curve.loss == manifest("calm")["loss"]) == same
    assert not (made[0] / "build" / "training" / "tiny" / "calm").exists()


def test_what_is_there_is_not_made_again(made, monkeypatch):
    def never(*given, **options):
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(build, "new_builder", never)
    assert len(build.train(tiny())) == 4

    def backbones_alone(profile, name):
        return name in ("vanilla", "calm")

    monkeypatch.setattr(inputs, "is_trained", backbones_alone)
    monkeypatch.setattr(build, "is_trained", backbones_alone)
    assert [path.name for path in build.train(tiny())] == ["vanilla", "calm"]
    with pytest.raises(AssertionError, match="nothing is missing"):
        build.train(tiny(), ["pretrained"])
    monkeypatch.setattr(build, "is_trained", lambda profile, name: name == "pretrained")
    with pytest.raises(MeeError, match='"calm" starts from "base", which is not trained yet'):
        build.train(tiny(), ["calm"])
    with pytest.raises(MeeError, match='Unknown model "pretraind": did you mean "pretrained"'):
        build.train(tiny(), ["pretraind"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["backbones"]["calm"].update(learning_rate=0.01), "tiny/calm was .* another recipe: del"),
        (lambda t: t["backbones"]["calm"].update(decay=0.4), "tiny/calm was trained with another recipe"),
        (
            lambda t: t["backbones"]["vanilla"].update(examples={"translation": 50}),
            "tiny/vanilla was trained with another recipe",
        ),
        (
            lambda t: t["pretrained"]["stages"][0]["examples"].update(spans=99),
            "tiny/pretrained was trained with another recipe",
        ),
        (
            lambda t: t["base"]["stages"][1]["examples"].update(owners=21),
            "tiny/base was trained with another recipe",
        ),
        (lambda t: t.update(seed=4), "tiny/pretrained was trained with another seed"),
        (lambda t: t["shape"].update(d_ff=64), "tiny/pretrained was trained with another shape"),
    ],
)
def test_a_model_of_another_recipe_is_refused(made, change, message):
    changed = tiny(lambda content: change(content["training"]))
    with pytest.raises(MeeError, match=message) as error:
        build.train(changed)
    assert "\n" not in str(error.value)


def test_backbones_start_from_base_and_the_others_from_random_weights():
    settings = tiny().training
    assert settings.models == MODELS
    assert [settings.start(name) for name in MODELS] == [None, None, "base", "base"]
    assert settings.recipe("pretrained") == settings.pretrained and settings.recipe("base") == settings.base
    alone = tiny(lambda c: c["training"].pop("pretrained")).training
    assert alone.models == MODELS[1:] and alone.start("base") is None and alone.start("calm") == "base"
    paper = load_profile("paper").training
    assert paper.models[0] == "base" and paper.start("base") is None and paper.start("calm") == "base"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2, None], "the stages of base have .2, 3. layers: each must be a multiple"),
        ([None, 1], "the stages of base have .2, 1. layers"),
        ([1, 2, None], "have .1, 2, 3. layers"),
    ],
)
def test_layers_of_stages_grow_to_those_of_the_shape(layers, message):
    stages = [{**SPANS, "layers": count} for count in layers]
    with pytest.raises(ValueError, match=message):
        tiny(lambda c: c["training"]["base"].update(stages=stages))


def test_a_grown_network_has_its_layers_in_order_and_adds_their_parts():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 24, "pad_token_id": 0}
    small = T5ForConditionalGeneration(T5Config(num_layers=1, num_decoder_layers=2, **sizes)).eval()
    with torch.no_grad():
        for weight in small.parameters():
            weight.normal_()
    grown = grow(small, 3, 4).eval()
    assert (grown.config.num_layers, grown.config.num_decoder_layers) == (3, 4)
    assert grow(small, 1, 2) is small and small.config.num_layers == 1
    for stack, times in (("encoder", 3), ("decoder", 2)):
        old = getattr(small, stack).state_dict()
        for name, weight in getattr(grown, stack).state_dict().items():
            block = re.match(r"block.(\d+)", name)
            source = name.replace(block[0], f"block.{int(block[1]) // times}") if block else name
            part = times if re.search(r"\.(o|wo)\.weight", name) else 1
            assert torch.equal(weight, old[source] / part), name
    with torch.no_grad():  # of one layer whose input hardly changes, the parts add up
        for network in (small, grown):
            for name, weight in network.named_parameters():
                if name.endswith((".o.weight", ".wo.weight")):
                    weight *= 1e-4
    source = torch.randint(3, 40, (2, 7))
    target = torch.randint(3, 40, (2, 5))
    with torch.no_grad():
        first, second = (n(input_ids=source, decoder_input_ids=target).logits for n in (small, grown))
    assert torch.allclose(first, second, rtol=1e-2, atol=1e-2 * float(first.std()))


def test_examples_of_a_stage_are_those_that_there_are():
    with pytest.raises(ValueError, match=r'training.backbones.calm: there are no examples of "pairs": '):
        tiny(lambda c: c["training"]["backbones"]["calm"].update(examples={"pairs": 5}))
    with pytest.raises(ValueError, match=r'ablations.runs.odd.stages: there are no examples of "spins": '):
        runs = {"odd": {"stages": [{"examples": {"spins": 5}, "learning_rate": 0.1}]}}
        tiny(lambda c: c.update(ablations={"layers": 1, "runs": runs}))
    with pytest.raises(ValueError, match=r'training.base.stages: there are no examples of "summarization": '):
        tiny(lambda c: c["training"]["base"]["stages"][2]["examples"].update(summarization=5))
    every = {"spans": 1, "further": 1, "translation": 1} | dict.fromkeys(LESSONS, 1)
    further = {"further": {"task": "translation", "source": "synthetic"}}
    tiny(lambda c: c.update(extra=further) or c["training"]["base"]["stages"][1].update(examples=every))


@pytest.mark.parametrize("name", ["small", "real"])
def test_objectives_are_compared_at_equal_budgets(name):
    """The same examples, rate and decay; one kind of intermediate loss for all that have some."""
    profile = load_profile(name)
    backbones = profile.training.backbones
    assert [backbone.objective for backbone in backbones.values()] == list(backbones)
    assert set(backbones) == {"vanilla", "calm", "free", "late_weighted"}
    budgets = [(one.examples, one.learning_rate, one.decay) for one in backbones.values()]
    assert all(budget == budgets[0] for budget in budgets)
    assert set(budgets[0][0]) == set(profile.corpora) and budgets[0][2] > 0
    weighted = {one.intermediate for one in backbones.values() if one.objective in ("calm", "late_weighted")}
    assert len(weighted) == 1
    assert backbones["vanilla"].seeds >= 2 and backbones["calm"].seeds == backbones["vanilla"].seeds
