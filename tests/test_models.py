"""Layer states, the shared readout, and loading: wrong checkpoints are refused in one line."""

import copy
import json
import logging

import pytest
import torch
import transformers
from conftest import FAMILIES, build_network
from safetensors.torch import load_file, save_file

from mee_utils import MeeError, load_model
from mee_utils.models.checkpoints import load_tokenizer
from mee_utils.models.loading import Model
from mee_utils.models.states import compute_logits, layer_states


def run(network, **options):
    torch.manual_seed(0)
    size = network.config.vocab_size
    batch = {"input_ids": torch.randint(3, size, (2, 7)), "decoder_input_ids": torch.randint(3, size, (2, 5))}
    with torch.inference_mode(), layer_states(network) as states:
        output = network(**batch, use_cache=False, **options)
    return states, output


def test_the_logits_of_the_last_layer_is_the_models_own_output(model):
    states, output = run(model.network)
    assert len(states) == model.layers
    assert torch.allclose(compute_logits(model.network, states[-1]), output.logits, atol=1e-12)


def test_hidden_states_of_transformers_end_after_the_final_norm_and_ours_before(model):
    """The double-norm trap: the library's last entry is normalised already."""
    states, output = run(model.network, output_hidden_states=True)
    library = output.decoder_hidden_states
    assert len(library) == model.layers + 1
    for ours, theirs in zip(states[:-1], library[1:-1], strict=True):
        assert torch.equal(ours, theirs)
    norm = model.network.get_decoder().final_layer_norm
    assert torch.allclose(norm(states[-1]), library[-1], atol=1e-12)
    # With a norm whose weight is one, normalising twice changes next to nothing; any trained weight shows the
    # trap.
    with torch.no_grad():
        before = norm.weight.clone()
        norm.weight.copy_(torch.linspace(0.5, 2, len(before)))
        states, output = run(model.network, output_hidden_states=True)
        wrong = compute_logits(model.network, output.decoder_hidden_states[-1])
        right = compute_logits(model.network, states[-1])
        norm.weight.copy_(before)
    assert torch.allclose(right, output.logits, atol=1e-12) and not torch.allclose(
        wrong, output.logits, atol=1e-3
    )


def test_hooks_are_gone_afterwards(t5):
    blocks = t5.network.get_decoder().block
    before = [len(block._forward_hooks) for block in blocks]  # `transformers` leaves hooks of its own behind
    with layer_states(t5.network):
        assert [len(block._forward_hooks) for block in blocks] == [hooks + 1 for hooks in before]
    assert [len(block._forward_hooks) for block in blocks] == before


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
    kept = {name: t for name, t in load_file(path).items() if not name.startswith(prefix)}
    save_file(kept, path, metadata={"format": "pt"})


@pytest.fixture
def saved(tmp_path, tokenizer):
    build_network("t5", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_precision_does_not_follow_the_checkpoint(saved):
    build_network("t5", 632).half().save_pretrained(saved)
    assert load_model(saved).network.dtype == torch.float32
    assert load_model(saved, dtype="bfloat16").network.dtype == torch.bfloat16


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def put_into_a_weight(folder, value):
    weights = load_file(folder / "model.safetensors")
    weights["decoder.block.1.layer.0.SelfAttention.q.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


DAMAGE = {
    "corrupt": (lambda f: (f / "model.safetensors").write_bytes(b"nonsense"), "weights of .* cannot be read"),
    "truncated": (cut_short, "weights"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "weights of .* cannot be read"),
    "tensors missing": (
        lambda f: drop_tensors(f / "model.safetensors", "decoder.block.2"),
        "tensors are missing, such as decoder.block.2",
    ),
    "fewer layers in the config than in the weights": (
        lambda f: change_config(f, num_decoder_layers=2),
        r"tensors have no place in config.json, such as decoder.block.2",
    ),
    "other sizes in the config than in the weights": (
        lambda f: change_config(f, d_ff=32),
        r"tensors have other sizes: .*is \[.*\], and config.json says \[",
    ),
    "NaN": (lambda f: put_into_a_weight(f, float("nan")), "block.1.*SelfAttention.q.weight holds NaN or inf"),
    "infinity": (lambda f: put_into_a_weight(f, float("-inf")), "SelfAttention.q.weight holds NaN or inf"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "config.json of .* cannot be read"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json of .* cannot be read"),
    "config is a number": (lambda f: (f / "config.json").write_text("5"), "config.json of .* cannot be read"),
    "broken generation config": (
        lambda f: (f / "generation_config.json").write_text('{"repetition_penalty": 5.0,'),
        "The generation_config.json of .* cannot be read .*; copy the checkpoint again",
    ),
    "empty generation config": (
        lambda f: (f / "generation_config.json").write_text(""),
        "The generation_config.json of .* cannot be read",
    ),
    "generation config is a list": (
        lambda f: (f / "generation_config.json").write_text("[]"),
        "The generation_config.json of .* cannot be read",
    ),
    "broken tokenizer config": (
        lambda f: (f / "tokenizer_config.json").write_text("{"),
        "The tokenizer_config.json of .* cannot be read",
    ),
    "tokenizer config is a list": (
        lambda f: (f / "tokenizer_config.json").write_text("[]"),
        "The tokenizer_config.json of .* cannot be read .it holds no settings by name",
    ),
    "tokenizer config is a number": (
        lambda f: (f / "tokenizer_config.json").write_text("5"),
        "The tokenizer_config.json of .* cannot be read .it holds no settings by name",
    ),
    "broken tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{"),
        "The tokenizer of .* cannot be read",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json of .* cannot be read"),
    "no tokenizer": (
        lambda f: [(f / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")],
        "has no tokenizer",
    ),
    "other family": (
        lambda f: (f / "config.json").write_text(json.dumps({"model_type": "bert"})),
        '"bert" checkpoint.*T5 family',
    ),
    "broken manifest": (
        lambda f: (f / "manifest.json").write_text("{"),
        "manifest.json of .* cannot be read",
    ),
    "layer out of range": (
        lambda f: (f / "manifest.json").write_text('{"min_exit_layer": 9}'),
        "min_exit_layer=9 of .*: give a layer from 1 to 4",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_or_foreign_checkpoint_is_one_clear_line(saved, damage, message):
    damage(saved)
    with pytest.raises(MeeError, match=message) as error:
        load_model(saved)
    text = str(error.value)
    assert "\n" not in text
    assert "MeeError" not in text and "network" not in text, "an error in an error, advice on the hub"


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "_orig_mod.module."])
def test_weights_that_were_saved_from_a_wrapper_are_named_so(saved, prefix):
    """Before, they were missing, and the checkpoint was to be copied again."""
    weights = load_file(saved / "model.safetensors")
    named = {f"{prefix}{name}": weight for name, weight in weights.items()}
    save_file(named, saved / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        MeeError, match=f'^The weights of .* have "{prefix}" before their .*save the model inside it'
    ):
        load_model(saved)


def test_a_checkpoint_without_a_generation_config_is_fine(saved):
    (saved / "generation_config.json").unlink()
    assert load_model(saved).layers == 4


def test_a_damaged_generation_config_is_refused_for_traces_too(saved):
    """Before, a model was traced with the defaults in its place."""
    from transformers import GPT2Config

    from mee_utils import load_any_model

    GPT2Config(vocab_size=700, n_embd=8, n_layer=2, n_head=2).save_pretrained(saved)
    (saved / "generation_config.json").write_text("{")
    with pytest.raises(MeeError, match=r"The generation_config.json of .* cannot be read"):
        load_any_model(saved)


def test_a_file_or_a_folder_of_checkpoints_leads_to_the_checkpoint(saved):
    """Before, both were asked for as ids of the hub, or read as a model of no family."""
    for file in ("config.json", "model.safetensors"):
        with pytest.raises(MeeError, match="is a file: give the folder that it is in") as error:
            load_model(saved / file)
        assert str(error.value).endswith(f"{saved}.")
    folder = saved.parent / f"{saved.name} and others"
    folder.mkdir()
    saved.rename(folder / "one")
    with pytest.raises(MeeError, match=r"give one of the checkpoints in it, such as .*others/one\."):
        load_model(folder)


@pytest.mark.parametrize("saved_as", ["T5EncoderModel", "T5ForTokenClassification"])
def test_a_model_without_its_lm_head_is_named_by_its_class(saved, saved_as, tokenizer):
    """Before, the advice was to copy the checkpoint again."""
    config = build_network("t5", len(tokenizer)).config
    config.num_labels = 2
    getattr(transformers, saved_as)(config).save_pretrained(saved)
    with pytest.raises(MeeError, match=f"was saved as {saved_as}, and T5ForCond.*save the model with its LM"):
        load_model(saved)


@pytest.mark.parametrize("kind", ["T5EncoderModel", "T5Model"])
def test_a_network_without_an_lm_head_is_refused(t5, kind):
    """Before, an AttributeError, of the one at once and of the other in decoding."""
    network = getattr(transformers, kind)(copy.deepcopy(t5.network.config))
    with pytest.raises(MeeError, match=f"^{kind} predicts no tokens: give one with an LM head"):
        Model(network, t5.tokenizer, "headless")


def test_a_misspelt_name_asks_the_hub_for_one_file(monkeypatch):
    """Before, every file was asked for until the hub's client gave up: a minute and a half."""
    import transformers.utils

    asked = []

    def unreachable(where, name, **options):
        asked.append(name)
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr(transformers.utils, "cached_file", unreachable)
    with pytest.raises(MeeError, match="mine/t5 is no folder here: check its name and the network"):
        load_model("mine/t5")
    assert asked == ["config.json"]


def test_the_hubs_warnings_are_not_shown_beside_our_error():
    from mee_utils.models.checkpoints import _read

    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    shown = _read("weights", "a folder", lambda: logger.isEnabledFor(logging.WARNING))
    assert not shown, "it speaks of each retry"
    assert logger.level == before


def write_tokenizer(folder, files):
    """Puts other tokenizer files in place of a checkpoint's own."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)


BPE = {
    "vocab.json": {
        token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "ab"])
    },
    "merges.txt": "#version: 0.2\na b\n",
    "tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"},
}
WORDPIECE = {
    "vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]),
    "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
}
BYTES = {"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer"}}


@pytest.mark.parametrize(
    ("files", "text", "ids"),
    [(BYTES, "ab", [100, 101, 1]), (BPE, "ab", [0, 7, 2]), (WORDPIECE, "the cat", [2, 5, 6, 3])],
    ids=["ByT5", "CodeT5", "BERT"],
)
def test_the_tokenizer_is_the_one_that_the_checkpoint_names(saved, files, text, ids):
    from mee_utils import generate

    write_tokenizer(saved, files)
    model = load_model(saved)
    assert model.tokenizer(text).input_ids == ids
    assert len(generate(model, [text, f"{text} {text}"], max_new_tokens=3).texts) == 2


def test_the_class_of_the_tokenizer_may_stand_in_the_configuration(saved):
    write_tokenizer(saved, {})
    change_config(saved, tokenizer_class="ByT5Tokenizer")
    assert load_tokenizer(saved)("ab").input_ids == [100, 101, 1]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, "T5Tokenizer needs tokenizer.json or spiece.model"),
        ({"tokenizer_config.json": {}}, "T5Tokenizer needs"),
        ({"tokenizer.model": ""}, "T5Tokenizer needs"),
        ({"spiece.model": ""}, "T5Tokenizer needs"),
        ({"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}}, "T5Tokenizer needs"),
        (WORDPIECE | {"vocab.txt": ""}, "BertTokenizer needs tokenizer.json or vocab.txt"),
        (BPE | {"merges.txt": ""}, "RobertaTokenizer needs tokenizer.json or vocab.json and merges.txt"),
        ({"vocab.txt": "the\ncat\n"}, 'T5Tokenizer needs .* of another class, name it .* "tokenizer_class"'),
    ],
)
def test_a_tokenizer_without_its_vocabulary_is_refused_with_what_to_do(saved, files, wanted):
    write_tokenizer(saved, files)
    for load in (load_model, load_tokenizer):
        with pytest.raises(MeeError, match=f"has no tokenizer: {wanted}") as error:
            load(saved)
        assert "save_pretrained" in str(error.value) and "\n" not in str(error.value)


def test_batches_have_a_mask_whatever_the_tokenizer_says(saved):
    from mee_utils import generate

    path = saved / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids"]}))
    texts = ["The red house is near the river.", "Bob"]
    alone = generate(load_model(saved), texts[1:], max_new_tokens=4).texts
    assert generate(load_model(saved), texts, max_new_tokens=4).texts[1:] == alone


def test_a_tokenizer_without_padding_gets_the_models(saved):
    write_tokenizer(saved, BPE | {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}})
    model = load_model(saved)
    assert model.tokenizer.pad_token_id == model.network.config.pad_token_id


@pytest.mark.parametrize(
    "files", [["adapter_config.json"], ["adapter_model.safetensors"], ["adapter_model.bin"]]
)
@pytest.mark.parametrize("beside_a_full_model", [True, False])
def test_an_adapter_is_to_be_merged(saved, files, beside_a_full_model):
    if not beside_a_full_model:
        for name in ("config.json", "model.safetensors"):
            (saved / name).unlink()
    for name in files:
        (saved / name).write_text('{"peft_type": "LORA", "base_model_name_or_path": "google-t5/t5-base"}')
    with pytest.raises(MeeError, match=r"has an adapter .*: load the model that it is of ") as error:
        load_model(saved)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["fewer layers in the config than in the weights", "tensors missing"])
def test_only_the_error_is_shown_and_no_report_of_transformers(saved, damage, caplog):
    DAMAGE[damage][0](saved)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(MeeError):
            load_model(saved)
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


def test_a_revision_of_a_local_folder_is_refused(saved):
    for load in (load_model, load_tokenizer):
        with pytest.raises(
            MeeError, match="is a local folder and revision='v1' belongs to the hub: leave it out"
        ):
            load(saved, revision="v1")


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("kind", ["t5", "made_up"])
def test_code_of_a_checkpoint_is_never_run(saved, monkeypatch, place, kind):
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    code = f"open({str(saved / 'executed')!r}, 'w')\n"
    (saved / "remote.py").write_text(code)
    classes = {"AutoConfig": "remote.Config", "AutoTokenizer": [None, "remote.Tokenizer"]}
    change_config(saved, model_type=kind)
    settings = json.loads((saved / place).read_text()) | {"auto_map": classes, "tokenizer_class": "Remote"}
    (saved / place).write_text(json.dumps(settings))
    for load in (load_model, load_tokenizer):
        with pytest.raises(MeeError, match=f"{place} of .* run code of its own"):
            load(saved)
    assert not (saved / "executed").exists()


def test_the_first_safe_layer_is_the_manifests_or_half_of_the_depth(saved):
    assert load_model(saved).min_exit_layer == 2
    (saved / "manifest.json").write_text('{"min_exit_layer": 3}')
    assert load_model(saved).min_exit_layer == 3
    (saved / "manifest.json").write_text("[]")  # somebody else's
    assert load_model(saved).min_exit_layer == 2


def test_the_fingerprint_is_computed_once_and_follows_the_weights(saved, monkeypatch):
    import hashlib

    model, other = load_model(saved), load_model(saved, dtype="float64")
    first = model.fingerprint
    assert first == other.fingerprint
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "sha256", None)
        assert model.fingerprint == first
    with torch.no_grad():
        model.network.shared.weight[0, 0] += 1
    assert model.fingerprint != first


def test_a_model_is_shown_in_one_line(t5):
    assert repr(t5).startswith('Model("t5": t5, 4 layers, ') and "\n" not in repr(t5)


def test_the_tokenizer_of_another_model_is_refused(saved, tokenizer):
    build_network("t5", len(tokenizer) - 10).save_pretrained(saved)
    with pytest.raises(MeeError, match="belongs to another model"):
        load_model(saved)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("./no/such/folder", {}, "does not exist"),
        ("someone/never-downloaded", {}, "cannot be read"),
        (None, {"device": "cuda:99"}, "is not available here"),
        (None, {"device": "gpu"}, "is not available here"),
        (None, {"device": None}, "is not available here"),
        (None, {"device": "meta"}, "is not available here"),
        (None, {"dtype": "float23"}, "is not supported: use one of float64"),
        (None, {"dtype": "int8"}, "is not supported: use one of float64"),
        (None, {"dtype": torch.float8_e4m3fn}, "is not supported: use one of float64"),
        (None, {"tokenizer": 5}, "tokenizer=5: give a folder, a hub id or a loaded tokenizer"),
        (None, {"dtype": None}, "is not supported: use one of float64"),
    ],
)
def test_bad_arguments_are_named(saved, source, options, message):
    with pytest.raises(MeeError, match=message):
        load_model(source or saved, **options)


@pytest.mark.parametrize("source", [None, "", 7, ["a"]])
def test_a_source_that_is_no_name_is_refused(source):
    with pytest.raises(MeeError, match="give a folder written by save_pretrained, or a hub id"):
        load_model(source)
