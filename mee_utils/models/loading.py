"""`load_model`: any checkpoint of the T5 family, from the hub or a folder, with its tokenizer."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from ..common.errors import MeeError, one_line
from ..common.files import find_local
from ..common.html import table

FAMILIES = ("t5", "mt5", "longt5")
DTYPES = ("float64", "float32", "bfloat16", "float16")
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")
WANTED = "a folder written by save_pretrained, or a hub id (google-t5/t5-large)"


@dataclass(repr=False)
class Model:
    """A loaded checkpoint: its `transformers` network in evaluation mode, and its fast tokenizer.

    `name` is what figures call it, `min_exit_layer` (half the depth) the first of policies that name none.
    """

    network: nn.Module
    tokenizer: object
    name: str
    min_exit_layer: int | None = None
    _fingerprint: tuple = field(default=(None, ""), init=False, compare=False)

    def __post_init__(self):
        if self.min_exit_layer is None:
            self.min_exit_layer = max(1, self.layers // 2)
        if type(self.min_exit_layer) is not int or not 1 <= self.min_exit_layer <= self.layers:
            given = f"min_exit_layer={self.min_exit_layer!r} of {self.name}"
            raise MeeError(f"{given}: give a layer from 1 to {self.layers}.")

    def __repr__(self) -> str:
        size = sum(weight.numel() for weight in self.network.parameters())
        kind, dtype = self.network.config.model_type, str(self.network.dtype).removeprefix("torch.")
        about = f"{kind}, {self.layers} layers, {size:,} parameters, {dtype}, {self.device}"
        return f'Model("{self.name}": {about})'

    def _repr_html_(self) -> str:
        names = "d_model d_kv num_heads d_ff num_layers num_decoder_layers vocab_size tie_word_embeddings"
        config = [(name.replace("_", " "), getattr(self.network.config, name)) for name in names.split()]
        return table([*config, ("first safe exit layer", self.min_exit_layer)], caption=repr(self))

    @property
    def layers(self) -> int:
        """Number L of decoder layers."""
        return len(self.network.get_decoder().block)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """sha256 of the weights in single precision, which classifiers trained on the states belong to.

        Computed once for as long as no weight changes.
        """
        weights = sorted(self.network.state_dict().items())
        state = [(name, weight.data_ptr(), weight._version) for name, weight in weights]
        if self._fingerprint[0] != state:
            digest = hashlib.sha256()
            for name, weight in weights:
                digest.update(name.encode())
                digest.update(weight.detach().float().cpu().contiguous().numpy())
            self._fingerprint = (state, digest.hexdigest())
        return self._fingerprint[1]


def load_model(
    source: str | Path,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str = "auto",
    name: str | None = None,
) -> Model:
    """Loads a T5, T5 v1.1, Flan-T5, mT5 or LongT5 checkpoint with its tokenizer. Never runs its code.

    Args:
        source: a folder written by `save_pretrained`, or a hub id such as "google-t5/t5-large".
        revision: a commit or tag on the hub.
        dtype: the precision to compute in, one of `DTYPES` or the `torch.dtype`, whatever the checkpoint's.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" and so on.
        name: what figures call the model; the last part of `source` by default.

    Raises `MeeError` for no such folder or device, another family, weights that are damaged or do not
    fit the config, a checkpoint with code of its own, an unreachable hub.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    where, place, dtype = str(find_local(source, WANTED) or source), _device(device), str(dtype)
    if (precision := dtype.removeprefix("torch.")) not in DTYPES:
        raise MeeError(f'dtype="{dtype}" is not supported: use one of {", ".join(DTYPES)}.')
    _refuse_remote_code(where, revision)
    options = dict(revision=revision, trust_remote_code=False)
    config = _read("config.json", where, lambda: AutoConfig.from_pretrained(where, **options))
    if config.model_type not in FAMILIES:
        kind = f'{source} is a "{config.model_type}" checkpoint'
        raise MeeError(f"{kind}; this companion reads the T5 family only: {', '.join(FAMILIES)}.")
    network = _read("weights", where, lambda: _network(where, config=config, dtype=precision, **options))
    tokenizer = load_tokenizer(where, revision)
    if len(tokenizer) > config.vocab_size:
        sizes = f"The tokenizer of {source} has {len(tokenizer)} ids, the model {config.vocab_size}"
        raise MeeError(f"{sizes}: it belongs to another model.")
    path, safe = Path(where) / "manifest.json", None
    if path.is_file():  # `make train` writes the first safe exit layer into it
        manifest = _read(path.name, where, lambda: json.loads(path.read_text(encoding="utf-8")))
        safe = manifest.get("min_exit_layer") if isinstance(manifest, dict) else None
    return Model(network.eval().to(place), tokenizer, name or Path(str(source)).name, safe)


def load_tokenizer(source: str | Path, revision: str | None = None):
    """The fast tokenizer of a folder or hub id, without its weights; errors as in `load_model`."""
    from transformers import AutoTokenizer

    where = str((folder := find_local(source, WANTED)) or source)
    _refuse_remote_code(where, revision)
    if folder and not any((folder / name).exists() for name in TOKENIZER_FILES):
        # transformers would quietly make up an empty tokenizer
        raise MeeError(f"{where} has no tokenizer: copy one of {', '.join(TOKENIZER_FILES)} into it.")
    options = dict(revision=revision, trust_remote_code=False)
    return _read("tokenizer", where, lambda: AutoTokenizer.from_pretrained(where, **options))


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(1, device=torch.device(device)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise MeeError(f'device="{device}" is not available here; use "auto" or "cpu".') from error


def _refuse_remote_code(where: str, revision: str | None) -> None:
    from transformers import PreTrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    config = lambda: PreTrainedConfig.get_config_dict(where, revision=revision)[0]
    tokenizer = lambda: get_tokenizer_config(where, revision=revision)
    for file, load in {"config.json": config, "tokenizer_config.json": tokenizer}.items():
        if "auto_map" in _read(file, where, load):
            asks = f"{file} of {where} asks to run code of its own (auto_map), which is never done here"
            raise MeeError(f"{asks}: use a checkpoint of the T5 family as transformers ships it.")


def _network(where: str, **options) -> nn.Module:
    from transformers import AutoModelForSeq2SeqLM

    network, found = AutoModelForSeq2SeqLM.from_pretrained(where, **options, output_loading_info=True)
    for kind, says in (("missing", "are missing"), ("unexpected", "have no place in config.json")):
        if keys := sorted(found[f"{kind}_keys"]):
            raise MeeError(f"{len(keys)} tensors {says}, such as {keys[0]}")
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise MeeError(f"{name} holds NaN or infinity")
    return network


def _read(what: str, where: str, load: Callable[[], object]):
    """Runs a loader of `transformers`; its many kinds of failure become one line."""
    try:
        return load()
    except Exception as error:
        failed = f"The {what} of {where} cannot be read ({type(error).__name__}: {one_line(error)})"
        advice = "copy the checkpoint again, or check its name and the network"
        raise MeeError(f"{failed}; {advice}.") from error
