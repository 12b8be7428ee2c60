"""`load_model`: any checkpoint that decodes with exits, from the hub or a folder, with its tokenizer."""

import hashlib
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..common.errors import MeeError
from ..common.html import table
from ..common.sources import find_local
from .adapters import merged_adapter
from .checkpoints import WANTED, name_of, read_checkpoint, recorded_exit_layer
from .families import FAMILIES, NAMED, is_causal, layers_of, why_not_decoded


class Fingerprint(NamedTuple):
    """The sha256 of weights, and by what it is known that they have not changed since."""

    state: object = None
    sha256: str = ""


UNKNOWN = Fingerprint()


@dataclass(repr=False)
class Model:
    """A loaded checkpoint: its `transformers` network in evaluation mode, and its fast tokenizer.

    Attributes:
        network: the `transformers` model.
        tokenizer: the fast tokenizer that belongs to it.
        name: what figures call it.
        min_exit_layer: the first layer at which a policy that names no layer may exit. Shipped models record
            it (see `companion.training.model_manifest`: from there on at least 95 % of confident predictions
            are final); without a record it is half the depth.
    """

    network: nn.Module
    tokenizer: object
    name: str
    min_exit_layer: int | None = None
    _fingerprint: Fingerprint = field(default=Fingerprint(), init=False, compare=False)

    def __post_init__(self):
        family = getattr(getattr(self.network, "config", None), "model_type", type(self.network).__name__)
        if family not in FAMILIES:
            advice = f"give one of {NAMED}; AnyModel takes others, for traces"
            raise MeeError(f'The network of {self.name} is a "{family}": {advice}.')
        if reason := why_not_decoded(self.network.config):
            raise MeeError(f"{self.name} has {reason}: AnyModel takes it, for traces.")
        if self.network.get_output_embeddings() is None:
            raise MeeError(f"{type(self.network).__name__} predicts no tokens: give one with an LM head.")
        if self.min_exit_layer is None:
            self.min_exit_layer = max(1, self.layers // 2)
        layer = self.min_exit_layer
        whole = isinstance(layer, Integral) and not isinstance(layer, bool)
        if not whole or not 1 <= layer <= self.layers:
            given = f"min_exit_layer={layer!r} of {self.name}"
            raise MeeError(f"{given}: give a layer from 1 to {self.layers}.")
        self.min_exit_layer = int(layer)

    def __repr__(self) -> str:
        size = sum(weight.numel() for weight in self.network.parameters())
        family = self.network.config.model_type
        dtype = str(self.network.dtype).removeprefix("torch.")
        facts = f"{family}, {self.layers} layers, {size:,} parameters, {dtype}, {self.device}"
        return f'Model("{self.name}": {facts})'

    def _repr_html_(self) -> str:
        if self.causal:
            sizes = "hidden_size head_dim num_attention_heads num_key_value_heads intermediate_size"
            layers = "num_hidden_layers"
        else:
            sizes = "d_model d_kv num_heads d_ff"
            layers = "num_layers num_decoder_layers"
        names = f"{sizes} {layers} vocab_size tie_word_embeddings".split()
        config = [(name.replace("_", " "), getattr(self.network.config, name)) for name in names]
        return table([*config, ("first safe exit layer", self.min_exit_layer)], caption=repr(self))

    @property
    def layers(self) -> int:
        """Number L of layers that write the output."""
        return len(layers_of(self.network))

    @property
    def causal(self) -> bool:
        """Whether these layers have read the prompt; else an encoder has read the input."""
        return is_causal(self.network.config)

    @property
    def source_positions(self) -> int | None:
        """The most tokens of a prompt and its output; None: no limit, as in a T5."""
        return self.network.config.max_position_embeddings if self.causal else None

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """sha256 of the weights in single precision; it ties trained classifiers to their model.

        Cached until a weight changes.
        """
        self._fingerprint = weights_fingerprint(self.network, self._fingerprint)
        return self._fingerprint.sha256


def weights_fingerprint(network: nn.Module, before: Fingerprint = UNKNOWN) -> Fingerprint:
    """The sha256 of all weights in single precision.

    `before` is what an earlier call returned: if no weight has changed since, nothing is computed again.
    """
    weights = sorted(network.state_dict().items())
    state = [(name, weight.data_ptr(), weight._version) for name, weight in weights]
    if before.state == state:
        return before
    digest = hashlib.sha256()
    for name, weight in weights:
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy())
    return Fingerprint(state, digest.hexdigest())


def load_model(
    source: str | Path,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str = "auto",
    name: str | None = None,
    tokenizer: str | Path | object | None = None,
    adapter: str | Path | None = None,
) -> Model:
    """Loads a checkpoint of the T5 family or a causal model like Llama; never runs code that comes with it.

    Decoded with exits are T5, T5 v1.1, Flan-T5, mT5 and LongT5, and Llama, Qwen2, Qwen3 and SmolLM3 with what
    is built like them (SmolLM2, for one, is a Llama).

    Args:
        source: a folder written by `save_pretrained`, or a hub id such as "google-t5/t5-large".
        revision: a commit or tag on the hub.
        dtype: the precision to compute in, one of `DTYPES` or the `torch.dtype`, whatever the checkpoint's.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" and so on.
        name: what figures call the model; the last part of `source` by default.
        tokenizer: a folder, a hub id or a loaded tokenizer, for a checkpoint that comes without one.
        adapter: the folder of a LoRA adapter, such as `train_exits` writes, to merge into the weights.

    Raises `MeeError` if the folder or device is missing, for another family, weights or settings that are
    damaged, weights that do not fit the config, a checkpoint with code of its own, an unreachable hub.
    """
    network, tokenizer = read_checkpoint(source, revision, dtype, device, FAMILIES, tokenizer)
    if tokenizer.pad_token_id is None:  # padding is masked: any token will do
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(network.config.pad_token_id or 0)
    if adapter is not None:  # merged in single precision, and rounded once
        exact = network
        if network.dtype != torch.float32:
            exact, _ = read_checkpoint(source, revision, torch.float32, device, FAMILIES, tokenizer)
        merged = merged_adapter(exact, adapter, weights_fingerprint(exact).sha256)
        network.load_state_dict(merged.state_dict())
    return Model(
        network=network,
        tokenizer=tokenizer,
        name=name or name_of(source if adapter is None else adapter),
        min_exit_layer=recorded_exit_layer(find_local(source, WANTED)),
    )
