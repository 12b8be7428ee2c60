"""Training for exits with low-rank adapters; skipped nowhere: the extra is part of the tests' set-up."""

import json

import numpy as np
import pytest
import torch
from causal_models import build_causal
from conftest import INPUTS, build_lively

from mee_utils import ExitRecipe, MeeError, generate, load_model, train_exits
from mee_utils.companion.cli import main
from mee_utils.models import exit_training
from mee_utils.models.exit_training import Pairs, layer_losses, tokenized
from mee_utils.models.states import compute_logits, teacher_forced

PAIRS = [(f"{text} {number}", f"answer {number % 3} of it") for number in range(8) for text in INPUTS]
SMALL = {"tokens": 3000, "tokens_per_step": 150, "rank": 4, "learning_rate": 0.01}


@pytest.fixture(scope="module", params=["t5", "llama", "qwen3"])
def folder(request, tokenizer, tmp_path_factory):
    """A checkpoint of each kind."""
    build = build_lively if request.param == "t5" else build_causal
    model = build(request.param, tokenizer, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("checkpoint")
    model.network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(folder, output, **changed):
    return train_exits(load_model(folder), PAIRS, output, ExitRecipe(**SMALL | changed))


def test_all_trained_layers_learn_and_the_adapter_is_merged(folder, tmp_path):
    adapter = trained(folder, tmp_path / "adapter", exit_layers=(1, 2))
    recipe = json.loads((adapter / "recipe.json").read_text())
    first, last = (recipe["held_out"][index]["cross_entropy"] for index in (0, -1))
    assert set(first) == {"1", "2", "4"} and all(last[layer] < first[layer] - 0.2 for layer in first)
    base, merged = load_model(folder), load_model(folder, adapter=adapter)
    assert merged.fingerprint != base.fingerprint and merged.name == "adapter"
    out = generate(merged, INPUTS, max_new_tokens=6)
    assert out.token_ids != generate(base, INPUTS, max_new_tokens=6).token_ids
    recipe_again = trained(folder, adapter, exit_layers=(1, 2))  # there already
    assert recipe_again == adapter
    with pytest.raises(MeeError, match="another recipe or model"):
        trained(folder, adapter, exit_layers=(1,))


def test_an_interrupted_training_ends_as_a_whole_one_does(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(exit_training, "SAVED_EVERY", 5)
    whole = trained(folder, tmp_path / "whole")
    steps = []
    original = exit_training._Training._take_step

    def stop(self):
        if len(steps) == 8:
            raise KeyboardInterrupt
        steps.append(self.step)
        original(self)

    monkeypatch.setattr(exit_training._Training, "_take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        trained(folder, tmp_path / "parts")
    assert not (tmp_path / "parts" / "recipe.json").exists()
    monkeypatch.setattr(exit_training._Training, "_take_step", original)
    parts = trained(folder, tmp_path / "parts")
    for name in ("adapter_model.safetensors", "recipe.json"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert not (parts / "training.pt").exists()


def test_losses_are_those_of_passes_without_padding(tokenizer):
    model = build_lively("t5", tokenizer, dtype=torch.float64)
    data = Pairs([[5, 6, 7], [8, 9]], [[10, 11, 1], [12, 1]])
    losses = layer_losses(model.network, data, [0, 1], [2, 4])
    expected = {2: [], 4: []}
    for source, target in zip(data.sources, data.targets, strict=True):
        batch = {"input_ids": torch.tensor([source]), "attention_mask": torch.ones(1, len(source))}
        states, _ = teacher_forced(model.network, batch, torch.tensor([[0, *target[:-1]]]))
        for layer, of_layer in expected.items():
            logits = compute_logits(model.network, states[layer - 1])[0]
            of_layer += torch.nn.functional.cross_entropy(
                logits, torch.tensor(target), reduction="none"
            ).tolist()
    for layer, of_layer in expected.items():
        assert float(losses[layer]) == pytest.approx(np.mean(of_layer), rel=1e-5)


def test_causal_losses_are_those_of_transformers(tokenizer):
    model = build_causal("llama", tokenizer)
    data = tokenized(model, [(text, "an answer") for text in INPUTS * 5], ExitRecipe())
    found = float(layer_losses(model.network, data, [0, 1, 2], [4])[4])
    losses, tokens = 0.0, 0
    for index in range(3):
        source, target = data.sources[index], data.targets[index]
        assert target[-1] == model.network.generation_config.eos_token_id
        labels = torch.tensor([[-100] * len(source) + target])
        loss = model.network(input_ids=torch.tensor([source + target]), labels=labels).loss
        losses += float(loss) * len(target)
        tokens += len(target)
    assert found == pytest.approx(losses / tokens, rel=1e-5)


def test_the_last_layer_alone_is_trained_without_exits(folder, tmp_path):
    adapter = trained(folder, tmp_path / "last", exit_layers=())
    assert json.loads((adapter / "recipe.json").read_text())["recipe"]["exit_layers"] == []


def test_what_cannot_be_trained_is_said(folder, tmp_path):
    for changed, message in (
        ({"exit_layers": (4,)}, "layers from 1 to 3"),
        ({"rank": 0}, "rank=0"),
        ({"learning_rate": 2.0}, "learning_rate=2.0"),
        ({"max_source": 2}, "pairs have inputs of at most 2 tokens"),
    ):
        with pytest.raises(MeeError, match=message):
            trained(folder, tmp_path / "none", **changed)
    assert not (tmp_path / "none").exists()


def test_an_adapter_is_merged_in_single_precision_and_rounded_once(folder, tmp_path):
    adapter = trained(folder, tmp_path / "adapter", tokens=300)
    exact = load_model(folder, adapter=adapter).network
    rounded = load_model(folder, adapter=adapter, dtype="bfloat16").network
    assert {weight.dtype for weight in rounded.parameters()} == {torch.bfloat16}
    for name, weight in exact.named_parameters():
        assert torch.equal(weight.bfloat16(), rounded.get_parameter(name)), name
    for name, buffer in exact.named_buffers():  # rotary frequencies: never rounded
        assert torch.equal(buffer, rounded.get_buffer(name)), name


def test_an_adapter_of_other_weights_is_refused(folder, tokenizer, tmp_path):
    adapter = trained(folder, tmp_path / "adapter", tokens=300)
    other = tmp_path / "other"
    build_causal("llama", tokenizer, seed=3, dtype=torch.float32).network.save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(MeeError, match="trained on other weights"):
        load_model(other, adapter=adapter)
    with pytest.raises(MeeError, match="give the folder of an adapter"):
        load_model(folder, adapter=tmp_path)


def test_the_command_trains_on_a_file(folder, tmp_path, capsys):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"input": a, "target": b}) + "\n" for a, b in PAIRS))
    arguments = ["train-exits", str(folder), "--data", str(file), "--output", str(tmp_path / "out")]
    assert main([*arguments, "--tokens", "400", "--layers", "1", "--rank", "2"]) == 0
    assert "adapter: " in capsys.readouterr().out and (tmp_path / "out" / "recipe.json").exists()
    file.write_text('{"input": "a"}\n')
    assert main(arguments) == 2
    assert 'row 1 has no text in a column "target"' in capsys.readouterr().err
