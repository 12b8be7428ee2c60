"""Checkpoints of `transformers`, from the hub or a folder: their networks, tokenizers and configurations.

What cannot be used is refused in one line: adapters, code of their own, damaged weights, no vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from ..common.errors import MeeError, one_line
from ..common.sources import find_local, is_hub_id
from .families import NAMED, T5_FAMILY

DTYPES = ("float64", "float32", "bfloat16", "float16")
CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
T = TypeVar("T")
WANTED = "a folder written by save_pretrained, or a hub id (google-t5/t5-large)"


def read_checkpoint(
    source: str | Path,
    revision: str | None,
    dtype: torch.dtype | str,
    device: str,
    families: Sequence[str] | None = None,
    tokenizer: str | Path | object | None = None,
) -> tuple[nn.Module, object]:
    """The network of a checkpoint in evaluation mode, and its tokenizer; arguments as in `load_model`.

    `families` are the model types that are taken; None: any that `transformers` has with an LM head. Raises
    `MeeError` as `load_model` does.
    """
    from transformers import GenerationConfig

    _, where = _located(source, revision)
    target = find_device(device)
    precision = str(dtype).removeprefix("torch.")
    if precision not in DTYPES:
        raise MeeError(f'dtype="{dtype}" is not supported: use one of {", ".join(DTYPES)}.')
    config = checkpoint_config(where, revision, families)
    # in place of one that is damaged `transformers` takes its defaults without a word; none at all is fine
    if _read(GENERATION_CONFIG, where, lambda: _file_path(where, GENERATION_CONFIG, revision)):
        _read(GENERATION_CONFIG, where, lambda: GenerationConfig.from_pretrained(where, revision=revision))
    network = _read("weights", where, lambda: _load_network(where, revision, config, precision))
    if tokenizer is None:
        tokenizer = load_tokenizer(where, revision)
    elif isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    if not callable(tokenizer):
        raise MeeError(f"tokenizer={tokenizer!r:.60}: give a folder, a hub id or a loaded tokenizer.")
    vocabulary = network.config.get_text_config(decoder=True).vocab_size
    if len(tokenizer) > vocabulary:
        sizes = f"The tokenizer of {where} has {len(tokenizer)} ids, the model {vocabulary}"
        added = "tokens were added to it without network.resize_token_embeddings(len(tokenizer))"
        raise MeeError(f"{sizes}: it belongs to another model, or {added}.")
    return network.eval().to(target), tokenizer


def name_of(source: str | Path) -> str:
    """The last part of a folder or hub id, by which figures call a model."""
    return Path(str(source)).name or Path(str(source)).resolve().name


def load_tokenizer(source: str | Path, revision: str | None = None):
    """The tokenizer of a folder or hub id, without the weights; errors as in `load_model`.

    Its class is the one that `tokenizer_config.json` or `config.json` names. ByT5 needs no further file, the
    others need their vocabulary.
    """
    from transformers import AutoTokenizer

    _, where = _located(source, revision)
    _refuse_remote_code(where, revision)
    tokenizer = _read(
        "tokenizer",
        where,
        lambda: AutoTokenizer.from_pretrained(where, revision=revision, trust_remote_code=False),
    )
    _check_vocabulary(tokenizer, where, revision)
    if "attention_mask" not in tokenizer.model_input_names:  # batches need it, whatever the model of its name
        tokenizer.model_input_names = [*tokenizer.model_input_names, "attention_mask"]
    return tokenizer


def _located(source: str | Path, revision: str | None) -> tuple[Path | None, str]:
    """The path of a local source (None for a hub id), and what to load it by; no revision of a local one."""
    path = find_local(source, WANTED)
    if path and revision:
        local = f"{path} is a local folder and revision={revision!r} belongs to the hub"
        raise MeeError(f"{local}: leave it out.")
    return path, str(path or source)


def checkpoint_config(source: str | Path, revision: str | None, families: Sequence[str] | None = None):
    """The configuration of a checkpoint, from a folder or hub id; its weights are not read.

    Raises `MeeError` for a model type that is not one of the `families` (None: any will do), an adapter, code
    of its own, and what cannot be read.
    """
    from transformers import AutoConfig

    path, where = _located(source, revision)
    if path:
        _check_folder(path)
    else:  # a misspelt id fails at this first file, not once for each file that is looked for below
        _read(CONFIG, where, lambda: _file_path(where, CONFIG, revision, strict=True))
    for name in ADAPTER_FILES:  # of LoRA, alone or beside the full model whose output it would change
        if _read(name, where, lambda name=name: _has_file(where, name, revision)):
            merged = 'PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained("merged")'
            raise MeeError(
                f"{where} has an adapter ({name}, as of LoRA), which is not applied here: load the model "
                f"that it is of with load_model(model, adapter={where!r}), or merge it, as in {merged}."
            )
    _refuse_remote_code(where, revision)
    config = _read(
        CONFIG, where, lambda: AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=False)
    )
    if families and config.model_type not in families:
        kind = f'{where} is a "{config.model_type}" checkpoint'
        tracing = "load_any_model loads other models that write text, for traces"
        raise MeeError(f"{kind}; exits decode {NAMED}: {tracing}.")
    return config


def _check_folder(path: Path) -> None:
    """Refuses a file in place of its folder, and a folder that holds no checkpoint itself."""
    if path.is_file():
        raise MeeError(f"{path} is a file: give the folder that it is in, {path.parent}.")
    if any((path / name).is_file() for name in (CONFIG, *ADAPTER_FILES)):
        return
    inside = sorted(str(config.parent) for config in path.glob(f"*/{CONFIG}"))
    advice = f"give one of the checkpoints in it, such as {inside[0]}" if inside else f"give {WANTED}"
    raise MeeError(f"The {CONFIG} of {path} cannot be read (there is none): {advice}.")


def recorded_exit_layer(folder: Path | None) -> int | None:
    """`Model.min_exit_layer`, as `make train` writes it into a checkpoint's manifest; None without one."""
    path = folder and folder / "manifest.json"
    if path is None or not path.is_file():
        return None
    manifest = _read(path.name, str(folder), lambda: json.loads(path.read_text(encoding="utf-8")))
    return manifest.get("min_exit_layer") if isinstance(manifest, dict) else None


def _has_file(where: str, name: str, revision: str | None) -> bool:
    """Whether a folder, or a repository on the hub, has a file that is not empty."""
    path = _file_path(where, name, revision)
    return path is not None and Path(path).stat().st_size > 0


def _file_path(where: str, name: str, revision: str | None, strict: bool = False) -> str | None:
    """The path of a file of a checkpoint, fetched from the hub if need be; None if it has no such file.

    `strict`: an error where the hub cannot be asked, else None.
    """
    from transformers.utils import cached_file

    return cached_file(
        where,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_gated_repo=strict,
        _raise_exceptions_for_connection_errors=strict,
    )


def _check_vocabulary(tokenizer, where: str, revision: str | None) -> None:
    """Refuses a tokenizer without its vocabulary: transformers makes one of a few tokens in its place."""
    names = dict(type(tokenizer).vocab_files_names)
    complete = names.pop("tokenizer_file", "tokenizer.json")
    if not names or _has_file(where, complete, revision):
        return
    if all(_has_file(where, name, revision) for name in names.values()):
        return
    if "vocab_file" in names and _has_file(where, "tokenizer.model", revision):
        return
    example = f'AutoTokenizer.from_pretrained("that checkpoint").save_pretrained({where!r})'
    raise MeeError(
        f"{where} has no tokenizer: {type(tokenizer).__name__} needs {complete} or "
        f"{' and '.join(names.values())}. Name one (tokenizer= of load_model or load_any_model, or in a "
        f"profile), or save that of the checkpoint which the model was trained from, as in {example}; if it "
        'is of another class, name it in tokenizer_config.json as "tokenizer_class".'
    )


def find_device(device: str) -> torch.device:
    """The device of a name, "auto" being a GPU if there is one; raises `MeeError` if it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unavailable = f'device="{device}" is not available here; use "auto" or "cpu".'
    try:
        target = torch.empty(1, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise MeeError(unavailable) from error
    if target.type == "meta":  # tensors there have shapes and no numbers
        raise MeeError(unavailable)
    return target


@cache
def fast_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 faster than single precision: GPUs, and CPUs that say so."""
    if device == "cuda":
        return True
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _refuse_remote_code(where: str, revision: str | None) -> None:
    """Refuses a checkpoint whose model or tokenizer is code of its own."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    config = _read(CONFIG, where, lambda: PreTrainedConfig.get_config_dict(where, revision=revision)[0])
    tokenizer = _read(TOKENIZER_CONFIG, where, lambda: get_tokenizer_config(where, revision=revision))
    for file, settings in {CONFIG: config, TOKENIZER_CONFIG: tokenizer}.items():
        if not isinstance(settings, dict):
            raise _unreadable(file, where, "it holds no settings by name")
        if "auto_map" in settings:
            raise MeeError(
                f"{file} of {where} asks to run code of its own (auto_map), which is never done here: use a "
                "checkpoint as transformers itself has its family."
            )


def _load_network(where: str, revision: str | None, config, precision: str) -> nn.Module:
    """The network with its weights; refuses weights that are not all there, or not finite."""
    with_head = _class_with_head(where, config)
    network, report = with_head.from_pretrained(
        where,
        revision=revision,
        trust_remote_code=False,
        config=config,
        dtype=precision,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by name
    )
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        sizes = f"{name} is {list(stored)}, and config.json says {list(wanted)}"
        raise _unreadable("weights", where, f"{len(mismatched)} tensors have other sizes: {sizes}")
    for kind, problem in (("missing", "are missing"), ("unexpected", "have no place in config.json")):
        if keys := sorted(report[f"{kind}_keys"]):
            reason = f"{len(keys)} tensors {problem}, such as {keys[0]}"
            raise _misfit(where, config, network, report, reason)
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise _unreadable("weights", where, f"{name} holds NaN or infinity")
    return network


def _misfit(where: str, config, network: nn.Module, report: dict, reason: str) -> MeeError:
    """The error for tensors that do not fit: another class was saved, or a wrapper, or they are damaged."""
    saved = (config.architectures or [""])[0]
    loaded = type(network).__name__
    if saved not in ("", loaded):
        needed = f"{where} was saved as {saved}, and {loaded} is needed ({reason})"
        return MeeError(f"{needed}: save the model with its LM head.")
    for name in sorted(report["missing_keys"]):
        for stored in sorted(report["unexpected_keys"]):
            if stored.endswith(f".{name}"):  # a wrapper puts its name before each of theirs
                prefix = stored.removesuffix(name)
                wrapped = f'The weights of {where} have "{prefix}" before their names, as of a wrapper'
                inside = "save the model inside it (DistributedDataParallel: model.module.save_pretrained)"
                return MeeError(f"{wrapped}: {inside}.")
    return _unreadable("weights", where, reason)


def _class_with_head(where: str, config):
    """The class of `transformers` that loads a configuration with its LM head."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
    )

    if config.is_encoder_decoder or config.model_type in T5_FAMILY:
        auto_class = AutoModelForSeq2SeqLM
        known = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    else:
        auto_class = AutoModelForCausalLM
        known = MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        kind = f'{where} is a "{config.model_type}" checkpoint, and no such model writes text'
        raise MeeError(f"{kind}: give an encoder-decoder or causal model (T5, BART, GPT-2, Llama ...).")
    return auto_class


def _read(what: str, where: str, load: Callable[[], T]) -> T:
    """Runs a loader of `transformers`; its many kinds of failure become one line.

    Bars and reports of it and the hub are kept off the screen: our own error has what matters.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    hub_verbosity = hub_logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    hub_logging.set_verbosity(logging.CRITICAL)
    try:
        return load()
    except MeeError:
        raise
    except Exception as error:
        raise _unreadable(what, where, f"{type(error).__name__}: {one_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)


def _unreadable(what: str, where: str, reason: str) -> MeeError:
    """The error for a part of a checkpoint that cannot be read."""
    if is_hub_id(where):
        advice = f"{where} is no folder here: check its name and the network"
    else:
        advice = "copy the checkpoint again"
    return MeeError(f"The {what} of {where} cannot be read ({reason}); {advice}.")
