"""Mini T5s, with the depth of the papers' models at a width that trains on a laptop, and their tokenizer."""

import copy
from collections.abc import Iterable, Sequence

import torch

from ...common.errors import MeeError

SENTINELS = 32
PAD = "<pad>"
EOS = "</s>"
UNKNOWN = "<unk>"
STARTS = ("spaced", "first")  # of a decoder with fewer layers, see `kept_layers`

# Heads that begin as views of their neighbours, see `begin_local`.
SLOPE = 0.7  # by how much the bias of a local head falls with each token of distance
OTHER_SIDE = -8.0  # the bias of a one-sided head on the other side
LOCAL_QUERY_SCALE = 0.1


def train_tokenizer(texts: Iterable[str], vocab_size: int):
    """Trains a byte-pair tokenizer on texts and wraps it as a fast tokenizer with T5's special tokens.

    As in T5, ids 0, 1, 2 are padding, end and unknown, and the last ids the sentinels of span corruption.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - SENTINELS,
        min_frequency=2,
        special_tokens=[PAD, EOS, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=sentinel_tokens(),
    )


def sentinel_tokens() -> list[str]:
    """The tokens that stand for hidden spans, in T5's order."""
    return [f"<extra_id_{number}>" for number in range(SENTINELS)]


def new_network(tokenizer, local: bool = True, **sizes):
    """A mini T5 with random weights; `sizes` as in `T5Config`, the vocabulary as the tokenizer has it.

    Attention begins as a look-up of equal tokens, and with `local` some heads as views of the neighbours.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    sizes["vocab_size"] = len(tokenizer)
    config = T5Config(
        **sizes,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=0,
    )
    network = T5ForConditionalGeneration(config)
    begin_as_look_up(network)
    if local:
        begin_local(network)
    return network


def set_dropout(network, rate: float) -> None:
    """Changes the dropout rate of a T5, wherever it keeps it."""
    network.config.dropout_rate = rate
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = rate


@torch.no_grad()
def grow(network, layers: int, decoder_layers: int):
    """A deeper T5 that begins as nearly the same function: each layer several times in a row, in equal parts.

    What a copy adds to the state is divided by the number of copies. Depth is cheap to grow (Gong et al.
    2019, "Efficient training of BERT by progressively stacking"); copies in place keep the order in which a
    model works, and divided outputs leave something to do for every layer.
    """
    if (network.config.num_layers, network.config.num_decoder_layers) == (layers, decoder_layers):
        return network
    config = copy.deepcopy(network.config)
    config.num_layers = layers
    config.num_decoder_layers = decoder_layers
    grown = type(network)(config)
    outside_blocks = {name: w for name, w in network.state_dict().items() if ".block." not in name}
    grown.load_state_dict(outside_blocks, strict=False)
    _repeat_blocks(network.encoder.block, grown.encoder.block)
    _repeat_blocks(network.decoder.block, grown.decoder.block)
    return grown


def _repeat_blocks(old_blocks, new_blocks) -> None:
    """Fills new blocks with copies of old ones whose outputs add up to those of the originals."""
    copies = len(new_blocks) // len(old_blocks)
    for number, block in enumerate(new_blocks):
        original = old_blocks[number // copies].state_dict()
        block.load_state_dict(original, strict=False)  # only the first block has a table of positions
        for name, weight in block.named_parameters():
            if name.endswith((".o.weight", ".wo.weight")):
                weight /= copies


def kept_layers(start: str, layers: int, of: int) -> list[int]:
    """Which of a decoder's layers (from 0) a decoder of fewer layers starts with.

    "spaced" takes them evenly spaced, with the first and the last among them (Shleifer and Rush 2020,
    "Pre-trained summarization distillation"), "first" the lowest ones.

    >>> kept_layers("spaced", 4, of=12), kept_layers("first", 4, of=12)
    ([0, 4, 7, 11], [0, 1, 2, 3])
    """
    if layers > of:
        raise MeeError(f"decoder_layers={layers}: a decoder that starts from {of} layers has at most {of}.")
    if start == "first" or layers == 1:
        return list(range(layers))
    return [round(number * (of - 1) / (layers - 1)) for number in range(layers)]


@torch.no_grad()
def with_decoder_layers(network, kept: Sequence[int]):
    """A copy of a T5 with the same encoder and only the `kept` layers (from 0) of its decoder.

    The first of them must be layer 0, which holds the decoder's table of position biases.
    """
    config = copy.deepcopy(network.config)
    config.num_decoder_layers = len(kept)
    shallow = type(network)(config)
    of_decoder = "decoder.block."
    shared = {name: w for name, w in network.state_dict().items() if not name.startswith(of_decoder)}
    shallow.load_state_dict(shared, strict=False)
    for number, block in zip(kept, shallow.decoder.block, strict=True):
        block.load_state_dict(network.decoder.block[number].state_dict())
    return shallow


@torch.no_grad()
def begin_as_look_up(network) -> None:
    """Draws every attention anew so that it begins as a soft look-up of equal tokens.

    Queries begin as (scaled) keys, so that a state attends to states like itself; the output projection is
    the transpose of orthogonal values, so that what is attended to is copied. Trained attention is close to
    such products, and training from them is faster (Trockman and Kolter 2023, "Mimetic initialization").
    """
    for block in [*network.encoder.block, *network.decoder.block]:
        for layer in block.layer[:-1]:
            attention = layer.EncDecAttention if hasattr(layer, "EncDecAttention") else layer.SelfAttention
            attention.q.weight.copy_(attention.k.weight * network.config.d_kv**-0.5)
            torch.nn.init.orthogonal_(attention.v.weight)
            attention.o.weight.copy_(attention.v.weight.T)


@torch.no_grad()
def begin_local(network) -> None:
    """Makes heads 1 to 3 of the encoder, and 1 and 2 of the decoder, prefer near tokens from the start.

    T5 draws its table of position biases near 0, and Adam moves a weight by its rate at most: without a start
    like this a head needs thousands of steps before it prefers neighbours, and names are bound to no facts.
    In the encoder head 1 looks both ways, head 2 backwards and head 3 forwards, in the decoder head 2 further
    than head 1. The queries of these heads begin ten times smaller. Head 0 stays a look-up of equal tokens.
    """
    size = network.config.d_kv
    for stack in (network.encoder, network.decoder):
        table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [bucket, head]
        local_heads = range(1, network.config.num_heads)
        for head, bias in zip(local_heads, _local_biases(len(table), stack.is_decoder), strict=False):
            table[:, head] = bias
            for block in stack.block:
                block.layer[0].SelfAttention.q.weight[head * size : (head + 1) * size] *= LOCAL_QUERY_SCALE


def _local_biases(buckets: int, is_decoder: bool) -> list[torch.Tensor]:
    """The position biases of the local heads, each `[bucket]`.

    All buckets of a decoder are for earlier keys, nearest first. The second half of an encoder's is for keys
    further on.
    """
    if is_decoder:
        near = -SLOPE * torch.arange(buckets)
        return [near, near / 3]
    near = -SLOPE * torch.arange(buckets // 2)
    away = torch.full_like(near, OTHER_SIDE)
    return [torch.cat([near, near]), torch.cat([near, away]), torch.cat([away, near])]
