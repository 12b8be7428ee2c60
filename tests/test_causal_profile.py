"""A profile of a causal model: prompts in its chat template, an adapter, and what identifies its weights."""

import pytest
import torch
import yaml
from causal_models import build_causal

from mee_utils import ExitRecipe, MeeError, generate, load_model, train_exits
from mee_utils.companion import inputs
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.training.model_manifest import shape_of

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def profile(tokenizer, tmp_path_factory):
    """A profile of a tiny Llama, as it is and with an adapter."""
    folder = tmp_path_factory.mktemp("profile")
    model = build_causal("llama", tokenizer, dtype=torch.float32)
    model.network.save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    (folder / "llama" / "chat_template.jinja").write_text(TEMPLATE)
    pairs = [(f"a {number}", "b") for number in range(40)]
    train_exits(load_model(folder / "llama"), pairs, folder / "adapter", ExitRecipe(tokens=500, rank=2))
    checkpoint = {"checkpoint": str(folder / "llama")}
    content = {
        "name": "tiny_llama",
        "device": "cpu",
        "dtype": "float32",
        "chat": True,
        "corpora": {"translation": {"source": "synthetic", "held_out": 3, "choices": 2}},
        "training": {
            "seed": 0,
            "max_source": 12,
            "max_target": 8,
            "base": checkpoint,
            "backbones": {"calm": checkpoint | {"adapter": str(folder / "adapter")}},
        },
        "classifiers": {"seeds": 0},
    }
    (folder / "tiny_llama.yaml").write_text(yaml.safe_dump(content))
    return load_profile(folder / "tiny_llama.yaml")


def test_prompts_are_messages_in_the_template(profile):
    (task,) = inputs.load_tasks(profile)
    assert len(task) == 3
    for prompt in task.inputs:
        assert prompt.startswith("<user> translate English to French: ") and prompt.endswith("<assistant>")
    model = inputs.load_profile_model(profile, "calm")
    assert generate(model, task.inputs, max_new_tokens=3).tokens > 0


def test_the_adapter_is_merged_and_part_of_what_identifies_a_model(profile):
    base, adapted = (inputs.load_profile_model(profile, name) for name in ("base", "calm"))
    assert base.fingerprint != adapted.fingerprint
    assert inputs.ready_digest(profile, "base") != inputs.ready_digest(profile, "calm")


def test_its_shape_has_the_names_of_a_t5s(profile):
    model = inputs.load_profile_model(profile, "base")
    shape = shape_of(model)
    assert shape["num_decoder_layers"] == model.layers == 4 and shape["d_model"] == 32 and shape["d_kv"] == 8


def test_a_model_that_make_data_makes_is_named_if_it_is_not_there():
    profile = load_profile("smollm2")
    folder = profile.training.base.model_copy(update={"checkpoint": "build/published/no-such-model"})
    with pytest.raises(MeeError, match="build/published/no-such-model is not there yet: make data"):
        folder.source  # noqa: B018
