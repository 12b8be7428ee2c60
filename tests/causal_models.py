"""Small random causal models of every family that is decoded, and a slow decoder that is plainly right."""

import numpy as np
import torch
import transformers
from conftest import INPUTS, LENGTH, SAFE, end_with
from reference import SkippedBlocks

from mee_utils.models.loading import Model

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# family -> the name of its class, and what it has beside the sizes
CAUSAL_FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama, scaled positions": ("Llama", {"num_key_value_heads": 1, "rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0]}),
}


def build_causal(family, tokenizer, seed=0, dtype=torch.float64, **changed):
    """A random model whose output varies from token to token and ends at different places."""
    kind, own = CAUSAL_FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **SIZES | own | changed)
    torch.manual_seed(seed)
    network = getattr(transformers, f"{kind}ForCausalLM")(config).eval().to(dtype)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" in name:
                weight.uniform_(0.6, 1.4)
            elif name.endswith("bias"):
                weight.normal_(0, 0.3)
            elif ".layers." in name:
                weight.mul_(6)
    model = Model(network, tokenizer, family, SAFE)
    end_with(network, None)
    outputs = greedy(model, INPUTS)

    def variety(end):
        lengths = [output.index(end) + 1 if end in output else LENGTH for output in outputs]
        return len(set(lengths)), sum(lengths)

    end_with(network, max(sorted({token for output in outputs for token in output}), key=variety))
    return model


def prompts(model, texts):
    """Texts as a batch that is padded on the left."""
    encoded = model.tokenizer(list(texts), padding=True, padding_side="left", return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def greedy(model, texts, **options):
    """The new ids of each text by `transformers`' own greedy search, up to and with the end token."""
    batch = prompts(model, texts)
    settings = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 0} | options
    new = model.network.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :].tolist()
    end = model.network.generation_config.eos_token_id
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in new]


@torch.inference_mode()
def uncached(model, text, exits, parallel=False):
    """Greedy decoding in which token t exits at layer `exits[t]`, by whole passes without a cache."""
    network = model.network
    prompt = model.tokenizer(text).input_ids
    depth = len(network.model.layers)
    found = []
    for position, exit_layer in enumerate(exits.tolist()):
        before = [depth] * position if parallel else exits[:position].tolist()
        # all of the prompt but its last token is read at full depth
        layers = np.array([depth] * (len(prompt) - 1) + before + [exit_layer])
        with SkippedBlocks(network, layers):
            fed = torch.tensor([[*prompt, *found]])
            found.append(int(network(input_ids=fed, use_cache=False).logits[0, -1].argmax()))
        if found[-1] == network.generation_config.eos_token_id:
            break
    return found
