"""`load_model`: any checkpoint of the T5 family, from the hub or from a folder, as network and tokenizer together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..errors import CompanionError

FAMILIES = {"t5": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration", "longt5": "LongT5ForConditionalGeneration"}

TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")


@dataclass
class Model:
    """A loaded checkpoint.

    Attributes:
        network: the `transformers` model, in evaluation mode.
        tokenizer: its fast tokenizer.
        name: what figures call it.
    """

    network: nn.Module
    tokenizer: object
    name: str

    @property
    def layers(self) -> int:
        """Number L of decoder blocks."""
        return len(self.network.get_decoder().block)

    @property
    def fingerprint(self) -> str:
        """sha256 of the weights in single precision: what classifiers trained on its states belong to."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device


def load_model(
    source: str | Path,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str = "auto",
    name: str | None = None,
) -> Model:
    """Loads a T5, T5 v1.1, Flan-T5, mT5 or LongT5 checkpoint with its tokenizer.

    Args:
        source: a folder written by `save_pretrained`, or a hub id such as "google-t5/t5-large".
        revision: a commit or tag on the hub.
        dtype: the precision to compute in ("float32" or `torch.float32`). The default does not follow the checkpoint's own,
            because numbers of different checkpoints are compared.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" and so on.
        name: what figures call the model; the last part of `source` by default.

    Raises:
        CompanionError: no such folder, a checkpoint of another family, damaged weights, an unreachable hub, no such device.
    """
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(source).expanduser()
    if not folder.exists() and (str(source).startswith((".", "/", "~")) or str(source).count("/") > 1):
        raise CompanionError(f"{source} does not exist: give a folder written by save_pretrained, or a hub id.")
    where = str(folder) if folder.exists() else str(source)
    config = _read(lambda: AutoConfig.from_pretrained(where, revision=revision), where, "config.json")
    if config.model_type not in FAMILIES:
        raise CompanionError(
            f'{source} is a "{config.model_type}" checkpoint; this companion reads the T5 family only: {", ".join(FAMILIES)}.'
        )
    network = _read(lambda: _network(where, config, revision, check_dtype(dtype)), where, "weights")
    if folder.exists() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        # transformers would quietly make up an empty tokenizer
        raise CompanionError(f"{source} has no tokenizer: copy one of {', '.join(TOKENIZER_FILES)} into it.")
    tokenizer = _read(lambda: AutoTokenizer.from_pretrained(where, revision=revision), where, "tokenizer")
    if len(tokenizer) > config.vocab_size:
        raise CompanionError(
            f"The tokenizer of {source} has {len(tokenizer)} ids, the model {config.vocab_size}: it belongs to another model."
        )
    return Model(network.eval().to(pick_device(device)), tokenizer, name or Path(str(source)).name)


def load_tokenizer(source: str | Path, revision: str | None = None):
    """The fast tokenizer of a folder or hub id, without its weights.

    Raises:
        CompanionError: it cannot be read.
    """
    from transformers import AutoTokenizer

    return _read(lambda: AutoTokenizer.from_pretrained(str(source), revision=revision), str(source), "tokenizer")


def check_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """ "float64" -> `torch.float64`; anything that is no floating-point type is an error."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CompanionError(f'dtype="{dtype}" is no floating-point type: use float64, float32, bfloat16 or float16.')
    return found


def pick_device(device: str) -> torch.device:
    """Resolves "auto", and refuses a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
        torch.empty(1, device=picked)
    except (RuntimeError, AssertionError) as error:
        raise CompanionError(f'device="{device}" is not available here; use "auto" or "cpu".') from error
    return picked


def _network(where: str, config, revision: str | None, dtype: torch.dtype) -> nn.Module:
    import transformers

    loader = getattr(transformers, FAMILIES[config.model_type])
    network, found = loader.from_pretrained(where, config=config, revision=revision, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:
        raise CompanionError(f"{len(found['missing_keys'])} tensors are missing, such as {sorted(found['missing_keys'])[0]}")
    return network


def _read(load, where: str, what: str):
    """Runs a loader of `transformers`; its many kinds of failure become one line."""
    try:
        return load()
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise CompanionError(
            f"The {what} of {where} cannot be read ({type(error).__name__}: {reason}); "
            "copy the checkpoint again, or check its name and the network."
        ) from error
