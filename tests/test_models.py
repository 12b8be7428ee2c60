"""Block states, the shared read-out, and loading: right checkpoints load exactly, wrong ones are refused in one line."""

import json

import pytest
import torch
from conftest import FAMILIES, build_network

from mee_utils import CompanionError, load_model
from mee_utils.models.states import BlockStates, decoder_inputs, read_out


def run(network, **options):
    torch.manual_seed(0)
    size = network.config.vocab_size
    batch = {"input_ids": torch.randint(3, size, (2, 7)), "decoder_input_ids": torch.randint(3, size, (2, 5))}
    with torch.inference_mode(), BlockStates(network) as states:
        output = network(**batch, use_cache=False, **options)
    return states, output


def test_the_read_out_of_the_last_block_is_the_models_own_output(model):
    states, output = run(model.network)
    assert len(states) == model.layers
    assert torch.allclose(read_out(model.network, states[-1]), output.logits, atol=1e-12)


def test_hidden_states_of_transformers_end_after_the_final_norm_and_ours_before(model):
    """The double-norm trap: the library's last entry is normalised already, so reading it out again gives other logits."""
    states, output = run(model.network, output_hidden_states=True)
    library = output.decoder_hidden_states
    assert len(library) == model.layers + 1
    for ours, theirs in zip(states[:-1], library[1:-1], strict=True):
        assert torch.equal(ours, theirs)
    norm = model.network.get_decoder().final_layer_norm
    assert torch.allclose(norm(states[-1]), library[-1], atol=1e-12)
    # With a norm whose weight is one, normalising twice changes next to nothing; any trained weight shows the trap.
    with torch.no_grad():
        before = norm.weight.clone()
        norm.weight.copy_(torch.linspace(0.5, 2, len(before)))
        states, output = run(model.network, output_hidden_states=True)
        wrong = read_out(model.network, output.decoder_hidden_states[-1])
        right = read_out(model.network, states[-1])
        norm.weight.copy_(before)
    assert torch.allclose(right, output.logits, atol=1e-12) and not torch.allclose(wrong, output.logits, atol=1e-3)


def test_hooks_are_gone_afterwards(t5):
    run(t5.network)
    assert all(not block._forward_hooks for block in t5.network.get_decoder().block)


def test_targets_are_shifted_as_the_library_shifts_them(t5):
    labels = torch.tensor([[5, 6, 1, -100], [7, 1, -100, -100]])
    assert torch.equal(decoder_inputs(t5.network, labels), t5.network._shift_right(labels))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_checkpoint_loads_to_the_same_numbers(tmp_path, family, tokenizer):
    network = build_network(family, len(tokenizer))
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.layers == len(network.get_decoder().block)
    assert torch.allclose(run(loaded.network)[1].logits, run(network)[1].logits, atol=1e-6)
    text = "The red house is near the river."
    assert loaded.tokenizer(text).input_ids == tokenizer(text).input_ids


def test_an_untied_head_is_not_scaled_and_a_tied_one_is(tokenizer):
    from mee_utils.models.states import output_scale

    assert output_scale(build_network("t5", len(tokenizer))) == pytest.approx(32**-0.5)
    assert output_scale(build_network("t5-v1.1", len(tokenizer))) == 1.0
    assert output_scale(build_network("mt5", len(tokenizer))) == 1.0


def drop_tensors(path, prefix):
    from safetensors.torch import load_file, save_file

    save_file({name: t for name, t in load_file(path).items() if not name.startswith(prefix)}, path, metadata={"format": "pt"})


@pytest.fixture
def saved(tmp_path, tokenizer):
    build_network("t5", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_precision_does_not_follow_the_checkpoint(saved):
    build_network("t5", 632).half().save_pretrained(saved)
    assert load_model(saved).network.dtype == torch.float32
    assert load_model(saved, dtype="bfloat16").network.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), "weights of .* cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000]), "weights"),
        (lambda folder: (folder / "model.safetensors").unlink(), "weights of .* cannot be read"),
        (lambda folder: drop_tensors(folder / "model.safetensors", "decoder.block.2"), "tensors are missing, such as decoder.block.2"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json of .* cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), "config.json of .* cannot be read"),
        (lambda folder: [(folder / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")], "has no tokenizer"),
        (lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "bert"})), '"bert" checkpoint.*T5 family'),
    ],
    ids=["corrupt", "truncated", "no weights", "tensors missing", "broken config", "no config", "no tokenizer", "other family"],
)
def test_a_damaged_or_foreign_checkpoint_is_one_clear_line(saved, damage, message):
    damage(saved)
    with pytest.raises(CompanionError, match=message) as error:
        load_model(saved)
    assert "\n" not in str(error.value)


def test_the_tokenizer_of_another_model_is_refused(saved, tokenizer):
    build_network("t5", len(tokenizer) - 10).save_pretrained(saved)
    with pytest.raises(CompanionError, match="belongs to another model"):
        load_model(saved)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("./no/such/folder", {}, "does not exist"),
        ("someone/never-downloaded", {}, "cannot be read"),
        (None, {"device": "cuda:99"}, "is not available here"),
        (None, {"device": "gpu"}, "is not available here"),
        (None, {"dtype": "float23"}, "no floating-point type"),
        (None, {"dtype": "int8"}, "no floating-point type"),
    ],
)
def test_bad_arguments_are_named(saved, source, options, message):
    with pytest.raises(CompanionError, match=message):
        load_model(source or saved, **options)
