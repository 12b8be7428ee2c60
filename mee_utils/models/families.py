"""Which model families decode with exits, and what `transformers` calls their parts.

Two kinds: encoder-decoders of the T5 family, whose decoder attends to an encoded input, and causal models
like Llama, whose layers read the prompt and write the output.
"""

from __future__ import annotations

from torch import nn

T5_FAMILY = ("t5", "mt5", "longt5")
CAUSAL = ("llama", "qwen2", "qwen3", "smollm3")
FAMILIES = (*T5_FAMILY, *CAUSAL)
NAMED = f"the T5 family ({', '.join(T5_FAMILY)}) and causal models like Llama ({', '.join(CAUSAL)})"
# rotary positions whose angles depend on the position alone, and not on how long a text is
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")


def is_causal(config) -> bool:
    """Whether the layers that write the output have read the prompt; of a configuration in `FAMILIES`."""
    return config.model_type in CAUSAL


def layers_of(network: nn.Module) -> nn.ModuleList:
    """The layers that write the output."""
    decoder = network.get_decoder()
    return decoder.layers if is_causal(network.config) else decoder.block


def final_norm_of(network: nn.Module) -> nn.Module:
    """What comes between the last layer and the LM head."""
    decoder = network.get_decoder()
    return decoder.norm if is_causal(network.config) else decoder.final_layer_norm


def why_not_decoded(config) -> str:
    """What of a configuration in `FAMILIES` is not decoded here, in words; "": nothing, all of it is."""
    if not is_causal(config):
        return ""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        windows = ", ".join(sorted(kinds - {"full_attention"}))
        return f"layers with {windows}, and exits decode full attention alone"
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotation not in FIXED_ROTATIONS:
        return f'rotary positions of type "{rotation}", and exits decode {", ".join(FIXED_ROTATIONS)}'
    return ""
