"""Whether a network computes what its weights say, and nothing else.

Decoding layer by layer reads the weights of a network and does the rest itself. What else a module does would
be left out without a word: a bias, an adapter, quantized weights, a hook, a `forward` of its own. So each
module is compared with the one that `transformers` makes of the same settings.
"""

import copy
import re

import torch
from torch import nn

from ..common.errors import MeeError, shown
from .families import is_causal

METHODS = ("forward", "prepare_inputs_for_generation")  # what `transformers` calls in each step
# the beginnings of the names of modules that are called themselves
RUN_AS_THEY_ARE = ("encoder", "shared", "model.rotary_emb")
# whose hooks change no output: those that `output_hidden_states` and gradient checkpointing leave behind
IDLE = ("transformers.utils.output_capturing", "transformers.modeling_utils")


def check_plain(network: nn.Module) -> None:
    """Raises `MeeError` unless the decoder, the LM head and the steps are as `transformers` has them.

    A hook that makes a weight anew (pruning and norms of `torch.nn.utils`) is called, as each step would.
    """
    network = getattr(network, "_orig_mod", network)  # below `torch.compile`
    plain = _plain_modules(network.config)
    types: set[str] = set()
    for name, module in network.named_modules():
        expected = plain.get(re.sub(r"(block|layers)\.[1-9]\d*", r"\1.1", name))
        if expected is None or name.startswith(RUN_AS_THEY_ARE):
            continue
        _check_module(name, module, expected)
        weights = [getattr(module, weight) for weight in expected._parameters]
        types |= {str(weight.dtype) for weight in weights if weight is not None}
        for hook in hooks_of(module).values():
            if not type(hook).__module__.startswith("torch.nn.utils"):
                hooked = f"{name or 'The network'} has a hook ({shown(hook)}), which exits would pass over"
                raise MeeError(f"{hooked}: remove it, by its handle.remove().")
            hook(module, ())
    if len(types) > 1:
        mixed = f"The decoder's weights are of several types ({', '.join(sorted(types))})"
        raise MeeError(f"{mixed}: convert them to one, as in model.network.float().")


def hooks_of(module: nn.Module) -> dict[int, object]:
    """What runs before and after a module, each by a number that is never used twice."""
    hooks = {**module._forward_pre_hooks, **module._forward_hooks}
    return {number: hook for number, hook in hooks.items() if getattr(hook, "__module__", "") not in IDLE}


def _check_module(name: str, module: nn.Module, expected: nn.Module) -> None:
    """Compares the methods and the shapes of the weights of one module."""
    for method in METHODS:
        if method in vars(module):
            replaced = f"{method} of {name or 'the network'} was replaced, and exits would pass over it"
            raise MeeError(f"{replaced}: take the network as it was before (accelerate, steering).")
    kinds = [type(expected), nn.Identity] if isinstance(expected, nn.Dropout) else [type(expected)]
    methods, *usual = [[getattr(kind, method, None) for method in METHODS] for kind in (type(module), *kinds)]
    if methods not in usual and not name.endswith(".act"):  # an activation is called itself
        stands = f"A {type(module).__module__}.{type(module).__name__} stands where the model has a plain"
        advice = "merge the adapter (model.merge_and_unload()), load the weights without quantization"
        raise MeeError(f"{stands} {type(expected).__name__}: {advice}, or put the plain one back.")
    for weight in expected._parameters:
        both = [getattr(each, weight, None) for each in (module, expected)]
        shapes = [each if each is None else list(each.shape) for each in both]
        if shapes[0] != shapes[1]:
            differs = f"{name}.{weight} is {shapes[0]}, and by the settings of the model {shapes[1]}"
            raise MeeError(f"{differs}: exits decode models as transformers has them, without it.")


def _plain_modules(config) -> dict[str, nn.Module]:
    """The modules of a network with these settings by name, without weights; of its layers the first two."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

    config = copy.deepcopy(config)
    if is_causal(config):
        with_head = MODEL_FOR_CAUSAL_LM_MAPPING
        config.num_hidden_layers = 2
        for name in ("layer_types", "no_rope_layers"):  # of each layer
            if getattr(config, name, None):
                setattr(config, name, getattr(config, name)[:2])
    else:
        with_head = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        config.num_layers, config.num_decoder_layers = 1, 2
    kind = next(kind for kind in type(config).__mro__ if kind in with_head)
    with torch.device("meta"):
        return dict(with_head[kind](config).named_modules())
