"""Any encoder-decoder or causal model of `transformers`, for traces: states, final norm and logits by layer.

Decoding with exits needs a decoder that is run layer by layer, which some families have (`load_model`). What
looks at a trace needs no more than what `output_hidden_states` gives: ranking, reliability, monotonicity,
saturation, and the replay of rules on probabilities.

Trap: the last of the L+1 hidden states of `transformers` has been normed already, those before it have not.
Norming it again would shift every curve at the last layer. What the final norm is given is caught instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..common.errors import MeeError, one_line, shown
from .checkpoints import checkpoint_config, name_of, read_checkpoint
from .costs import DecoderSizes
from .families import FAMILIES, why_not_decoded
from .loading import Fingerprint, Model, load_model, weights_fingerprint
from .states import output_scale

TOLERANCE = 1e-3  # of logits, as a share of the largest: our own against the model's
ROUNDINGS = 4  # in half precision, that many of its steps
# what configurations call the number of layers (of an encoder-decoder first), and further sizes
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "decoder_attention_heads", "n_head", "num_heads")
POSITIONS = ("max_position_embeddings", "n_positions")
DECODER_POSITIONS = ("max_decoder_position_embeddings", *POSITIONS)
ENCODER_POSITIONS = ("max_encoder_position_embeddings", *POSITIONS)
# The configuration of a decoder alone has its class's default in place of a `decoder_ffn_dim`, so that it is
# read from that of the whole model.
DECODER_FEED_FORWARD = ("decoder_ffn_dim",)
FEED_FORWARD = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff", "dff")
EXPERT_FEED_FORWARD = ("moe_intermediate_size", *FEED_FORWARD)
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
GATES = ("gate_proj", "gate_up_proj", "wi_1")  # parts of the names of weights in gated feed-forward layers
NOT_OF_THE_HEAD = "The logits of {} are not its LM head after its final norm: no trace of it."


class LayerStates(NamedTuple):
    """One forward pass, `[batch, position, d_model]` each; `after` has `h^1 .. h^L`, none of them normed."""

    embedding: Tensor
    after: list[Tensor]
    logits: Tensor  # `[batch, position, vocabulary]`, the model's own


@dataclass(repr=False)
class AnyModel:
    """A model of `transformers` with a language-modelling head, for `trace`.

    Attributes:
        network: an encoder-decoder (T5Gemma, BART) or causal (GPT-2, Llama, Qwen, Pythia, OPT) model.
        tokenizer: that belongs to it.
        name: what figures call it.
    """

    network: nn.Module
    tokenizer: object
    name: str
    _norm: nn.Module | None = field(default=None, init=False)  # the final norm, found by `run`
    _logit_scale: float = field(default=1.0, init=False)  # of all logits (Cohere, Granite), found by `run`
    _fingerprint: Fingerprint = field(default=Fingerprint(), init=False, compare=False)

    def __post_init__(self):
        if not isinstance(self.network, nn.Module) or getattr(self.network, "config", None) is None:
            raise MeeError(f"network={type(self.network).__name__}: give a model of transformers.")
        if self.network.get_output_embeddings() is None:
            raise MeeError(f"{type(self.network).__name__} predicts no tokens: give one with an LM head.")
        if not callable(self.tokenizer) or not hasattr(self.tokenizer, "pad_token_id"):
            raise MeeError(f"tokenizer={shown(self.tokenizer)}: give the one that belongs to {self.name}.")
        self.network.eval()
        self._try()

    def __repr__(self) -> str:
        return f'AnyModel("{self.name}": {self.config.model_type}, {self.layers} layers, {self.device})'

    @property
    def config(self):
        """The configuration of the decoding stack (the decoder's, for an encoder-decoder)."""
        return self.network.config.get_text_config(decoder=True)

    @property
    def causal(self) -> bool:
        """Whether the prompt is read by the layers that write the output."""
        return not self.network.config.is_encoder_decoder

    @property
    def layers(self) -> int:
        """Number L of layers that write the output."""
        layers = _first_setting(self.network.config, DECODER_LAYERS) or _first_setting(self.config, LAYERS)
        if layers is None:
            raise MeeError(f"The configuration of {self.name} does not say how many layers it has.")
        return layers

    @property
    def min_exit_layer(self) -> int:
        """Half the depth: nobody has recorded from which layer on its predictions can be trusted."""
        return max(1, self.layers // 2)

    @property
    def vocabulary(self) -> int:
        """Entries of the vocabulary, padding of the head included."""
        return self.network.get_output_embeddings().weight.shape[0]

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an output; none: all outputs are as long as they may be."""
        end = self.network.generation_config.eos_token_id
        ends = end if isinstance(end, list | tuple) else [end]
        return frozenset(token_id for token_id in ends if token_id is not None)

    @property
    def positions(self) -> int | None:
        """The most tokens of an output, the prompt of a causal model included; None: no limit."""
        return _first_setting(self.config, DECODER_POSITIONS)

    @property
    def source_positions(self) -> int | None:
        """The most tokens of an input; None: no limit."""
        if self.causal:
            return self.positions
        of_encoder = _first_setting(self.network.config, ENCODER_POSITIONS)
        return of_encoder or _first_setting(self.config, POSITIONS)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """As `Model.fingerprint`."""
        self._fingerprint = weights_fingerprint(self.network, self._fingerprint)
        return self._fingerprint.sha256

    @property
    def sizes(self) -> DecoderSizes:
        """The sizes that FLOPs are counted from.

        Of a mixture of experts, those that a token uses are counted.
        """
        config = self.config
        d_model = config.hidden_size
        heads = _first_setting(config, HEADS) or 1
        per_head = getattr(config, "head_dim", None) or d_model // heads
        keys = getattr(config, "num_key_value_heads", None)
        # feed-forward layers have a gate, as the names of their weights or their activation say
        gated = any(gate in name for name, _ in self.network.named_parameters() for gate in GATES)
        return DecoderSizes(
            d_model=d_model,
            inner=heads * per_head,
            d_ff=self._feed_forward,
            gated=gated or str(getattr(config, "hidden_act", "")).startswith(("silu", "swi")),
            layers=self.layers,
            vocabulary=self.vocabulary,
            cross_attention=not self.causal,
            key_inner=keys * per_head if keys else None,
        )

    @property
    def _feed_forward(self) -> int:
        """The inner size of a feed-forward layer, of all experts that a token uses together."""
        config = self.config
        experts = getattr(config, "num_experts_per_tok", None)
        if experts:
            shared = getattr(config, "shared_expert_intermediate_size", None) or 0
            return experts * (_first_setting(config, EXPERT_FEED_FORWARD) or 0) + shared
        of_decoder = _first_setting(self.network.config, DECODER_FEED_FORWARD)
        return of_decoder or _first_setting(config, FEED_FORWARD) or 4 * config.hidden_size

    @torch.inference_mode()
    def _try(self) -> None:
        """Two inputs of two tokens: what cannot be traced says so now, and not after hours of decoding."""
        pairs = torch.tensor([[1, 2], [1, 3]], device=self.device)  # [row, position]
        inputs = {"input_ids": pairs} if self.causal else {"input_ids": pairs, "decoder_input_ids": pairs}
        named = type(self.network).__name__
        try:
            logits = self.network(**inputs, use_cache=False).logits[:, 0]  # [row, vocabulary]
        except Exception as error:  # whatever a model needs beside ids, or finds wrong with its settings
            reason = f"does not run on token ids alone ({one_line(error)})"
            raise MeeError(f"{named} {reason}: no trace of it.") from error
        rounding = 10 * torch.finfo(logits.dtype).eps * logits.abs().max()
        # whether a token changes the logits of the one before it, as in BERT, which has a head too
        if self.causal and (logits[0] - logits[1]).abs().max() > rounding:
            reads = f'{self.name} is a "{self.config.model_type}" model that reads later tokens too'
            raise MeeError(f"{reads}, so that it writes no text: give a causal or encoder-decoder model.")
        try:
            self.run(**inputs)
        except (AttributeError, RuntimeError, TypeError) as error:  # a head of another width, or an embedding
            raise MeeError(NOT_OF_THE_HEAD.format(named)) from error

    def norm(self, states: Tensor) -> Tensor:
        """The final norm of states after any layer; the states themselves where the model has none (BART).

        Which module that is, `run` finds: it comes first.
        """
        return states if self._norm is None else self._norm(states)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits `[..., vocabulary]` of normed states, as the model computes them at its last layer."""
        head = self.network.get_output_embeddings()
        logits = head((normed * output_scale(self.network)).to(head.weight.dtype))
        bias = getattr(self.network, "final_logits_bias", None)
        if bias is not None:
            logits = logits + bias
        logits = logits * self._logit_scale
        cap = _first_setting(self.config, SOFT_CAPS)
        return torch.tanh(logits / cap) * cap if cap else logits

    def run(self, **inputs: Tensor) -> LayerStates:
        """One forward pass over inputs as the network takes them.

        Raises:
            MeeError: its logits are not those of its head after its final norm.
        """
        with _calls_of_norms(self.network) as normed:
            output = self.network(**inputs, output_hidden_states=True, use_cache=False, return_dict=True)
        states = output.hidden_states if self.causal else output.decoder_hidden_states
        embedding, *after = states
        self._norm = None
        for norm, given, result in normed:
            if _is_same(result, after[-1]):
                self._norm = norm
                after[-1] = given
            elif _is_same(given, after[-1]):  # as with `tie_last_hidden_states=False`
                self._norm = norm
        named = type(self.network).__name__
        if len(after) != self.layers:
            raise MeeError(f"{named} has {self.layers} layers and gives {len(after)} states: no trace of it.")
        if len({state.shape for state in after}) > 1 or after[-1].dim() > 3:
            sizes = ["x".join(map(str, state.shape[2:])) for state in (after[0], after[-1])]
            reason = f"has several residual streams, or projects its last state (from {' to '.join(sizes)})"
            raise MeeError(f"{named} {reason}: no trace of it.")
        if not self._gives(after[-1], output.logits):
            raise MeeError(NOT_OF_THE_HEAD.format(named))
        return LayerStates(embedding, after, output.logits)

    def _gives(self, last: Tensor, logits: Tensor) -> bool:
        """Whether the head makes the model's own logits of the state after the last layer.

        A constant factor between the two is found, and taken from then on.
        """
        ours = self.logits(self.norm(last))
        if _are_near(ours, logits) or not logits.isfinite().all():  # which `trace` reports by its layer
            return True
        wide = ours.double()
        factor = float((wide * logits).sum() / wide.square().sum())
        if factor > 0 and _are_near(ours * factor, logits):
            self._logit_scale *= factor
            return True
        return False


def load_any_model(
    source: str | Path,
    revision: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    device: str = "auto",
    name: str | None = None,
    tokenizer: str | Path | object | None = None,
) -> Model | AnyModel:
    """Loads a checkpoint for `trace`: as `load_model` does what it takes, any other as an `AnyModel`.

    Arguments and errors are those of `load_model`.
    """
    config = checkpoint_config(source, revision)
    if config.model_type in FAMILIES and not why_not_decoded(config):
        return load_model(source, revision, dtype, device, name, tokenizer)
    network, tokenizer = read_checkpoint(source, revision, dtype, device, tokenizer=tokenizer)
    return AnyModel(network, tokenizer, name or name_of(source))


def _are_near(ours: Tensor, logits: Tensor) -> bool:
    """Whether two computations of the same logits differ by rounding only."""
    tolerance = max(TOLERANCE, ROUNDINGS * torch.finfo(logits.dtype).eps)
    return bool((ours - logits).abs().max() <= tolerance * logits.abs().max())


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    return first.data_ptr() == second.data_ptr() and first.shape == second.shape


def _first_setting(config, names: tuple[str, ...]) -> int | None:
    """The first of some settings that a configuration has; None without any."""
    return next((getattr(config, name) for name in names if getattr(config, name, None)), None)


@contextmanager
def _calls_of_norms(network: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Collects what each norm that is in no layer is given in one pass, and what it returns.

    States are `[batch, position, d_model]` each.
    """
    calls = []

    def hook(module, inputs, result):
        if inputs and isinstance(result, Tensor):
            calls.append((module, inputs[0], result))

    layers = [name for name, module in network.named_modules() if isinstance(module, nn.ModuleList)]
    with ExitStack() as hooks:
        for name, module in network.named_modules():
            inside = any(name.startswith(f"{each}.") for each in layers)
            if "norm" in type(module).__name__.lower() and not inside:
                hooks.enter_context(module.register_forward_hook(hook))
        yield calls
