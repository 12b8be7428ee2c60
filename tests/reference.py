"""Slow decoders that are plainly right: the model's own forward pass over the whole prefix, no cache."""

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import GenerationConfig

from mee_utils.decoding.generation import bind_policy
from mee_utils.decoding.inputs import batches_by_length, decode_batch, input_ids
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.models.costs import DecoderSizes
from mee_utils.models.families import layers_of


def greedy(model, inputs, max_new_tokens=64, batch_size=32):
    """`transformers`' own greedy search: the output ids of each input, up to and with the end token."""
    network, config = model.network, model.network.config
    stored = network.generation_config
    end = config.eos_token_id if stored.eos_token_id is None else stored.eos_token_id
    start = stored.decoder_start_token_id
    start = config.decoder_start_token_id if start is None else start
    ends = [] if end is None else np.atleast_1d(end).tolist()
    # Settings of its own: a checkpoint's may hide a repetition penalty or a length. The cache is sized by the
    # encoder's depth, so that it fails where the decoder is deeper.
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=(config.num_decoder_layers or config.num_layers) <= config.num_layers,
        pad_token_id=config.pad_token_id,
        eos_token_id=end,
        decoder_start_token_id=start,
    )
    network.generation_config = settings
    outputs = [None] * len(inputs)
    for chosen, batch in batches_by_length(model, input_ids(model.tokenizer, inputs), batch_size):
        for index, row in zip(chosen, network.generate(**batch)[:, 1:].tolist(), strict=True):
            first = next((place for place, token in enumerate(row) if token in ends), len(row))
            outputs[index] = row[: first + 1]
    network.generation_config = stored
    return outputs


class SkippedBlocks:
    """Within this context, layer j passes on unchanged the state of every position that exited before it.

    Keys and values of layer j are then made from that state by the layer itself, which is what "copy" means.
    """

    def __init__(self, network, exits):
        self.blocks, self.exits = layers_of(network), torch.as_tensor(exits)

    def __enter__(self):
        self.state = None
        self.handles = [b.register_forward_hook(self.hook(j)) for j, b in enumerate(self.blocks, start=1)]

    def hook(self, layer):
        def keep(module, args, output):
            made = output[0] if isinstance(output, tuple) else output
            skipped = (self.exits < layer)[None, :, None]
            self.state = made if self.state is None else torch.where(skipped, self.state, made)
            return (self.state, *output[1:]) if isinstance(output, tuple) else self.state

        return keep

    def __exit__(self, *exception):
        for handle in self.handles:
            handle.remove()


@torch.inference_mode()
def uncached(model, text, exits, parallel=False):
    """Greedy decoding in which token t exits at layer `exits[t]`, up to the end token or end of `exits`."""
    network, encoded = model.network, model.tokenizer(text, return_tensors="pt")
    fed, found = [network.generation_config.decoder_start_token_id], []
    for position in range(len(exits)):
        layers = (
            [len(network.get_decoder().block)] * position + [exits[position]]
            if parallel
            else exits[: position + 1]
        )
        with SkippedBlocks(network, layers):
            logits = network(
                input_ids=encoded.input_ids,
                attention_mask=encoded.attention_mask,
                decoder_input_ids=torch.tensor([fed]),
                use_cache=False,
            ).logits
        found.append(int(logits[0, -1].argmax()))
        if found[-1] == network.generation_config.eos_token_id:
            break
        fed.append(found[-1])
    return found


def counted_and_profiled(model, text, policy, max_new_tokens):
    """Decodes one input: its output, its FLOPs by part as the policy counts them, and their sum by torch.

    Attention is done as products of matrices: the profiler does not count the fused kernel of processors.
    """
    decoder, encoded = LayerwiseDecoder(model.network), model.tokenizer(text, return_tensors="pt")
    policy = bind_policy(policy, decoder)
    with sdpa_kernel(SDPBackend.MATH):
        with torch.inference_mode():
            read = decoder.encode(dict(encoded))
        with FlopCounterMode(display=False) as counter:
            row = decode_batch(decoder, dict(encoded), policy, max_new_tokens, np.array([0]), read)[0]
    source, sizes = [encoded.input_ids.shape[1]], DecoderSizes.of(model.network.config)
    executed = row.executed
    positions = None if row.drafts is None else [executed.positions]
    counted = policy.flops(sizes, [executed.exit_layers], [executed.readout_rows], source, positions)
    return row, {part: flops[0] for part, flops in counted.items()}, counter.get_total_flops()
