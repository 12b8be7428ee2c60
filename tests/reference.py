"""Slow decoders that are plainly right: the model's own forward pass over the whole prefix, no cache, one row at a time."""

import torch


class SkippedBlocks:
    """Within this context, block j of the decoder passes on unchanged the state of every position that has exited before it.

    Keys and values of block j are then made from that state by the block itself, which is what "copy" means.
    """

    def __init__(self, network, exits):
        self.blocks, self.exits = network.get_decoder().block, torch.as_tensor(exits)

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
    """Ids of greedy decoding in which token t leaves at block `exits[t]`; stops after the end token or the last of `exits`."""
    network, encoded = model.network, model.tokenizer(text, return_tensors="pt")
    fed, found = [network.config.decoder_start_token_id], []
    for position in range(len(exits)):
        layers = [len(network.get_decoder().block)] * position + [exits[position]] if parallel else exits[: position + 1]
        with SkippedBlocks(network, layers):
            logits = network(
                input_ids=encoded.input_ids, attention_mask=encoded.attention_mask,
                decoder_input_ids=torch.tensor([fed]), use_cache=False,
            ).logits  # fmt: skip
        found.append(int(logits[0, -1].argmax()))
        if found[-1] == network.config.eos_token_id:
            break
        fed.append(found[-1])
    return found
