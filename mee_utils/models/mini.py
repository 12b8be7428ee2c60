"""Mini T5s, with the depth of the papers' models at a width that trains on a laptop, and their tokenizer."""

from collections.abc import Iterable

import torch

SENTINELS = 32
PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"


def train_tokenizer(texts: Iterable[str], vocab_size: int):
    """Trains a byte-pair tokenizer on texts and wraps it as a fast tokenizer with T5's special tokens.

    As in T5, ids 0, 1, 2 are padding, end and unknown, and the last ids the sentinels of span corruption.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFKC()
    pieces = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(pieces), decoders.Metaspace()
    size = dict(vocab_size=vocab_size - SENTINELS, min_frequency=2)
    trainer = trainers.BpeTrainer(**size, special_tokens=[PAD, EOS, UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = dict(single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, 1)])
    tokenizer.post_processor = processors.TemplateProcessing(**ends)
    special = dict(pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN)
    special["additional_special_tokens"] = [f"<extra_id_{i}>" for i in range(SENTINELS)]
    options = dict(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    return PreTrainedTokenizerFast(**options, **special)


def new_network(tokenizer, **sizes):
    """A mini T5 with random weights; `sizes` as in `T5Config`, the vocabulary as the tokenizer has it."""
    from transformers import T5Config, T5ForConditionalGeneration

    ids = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    sizes["vocab_size"] = len(tokenizer)
    network = T5ForConditionalGeneration(T5Config(**sizes, **ids, decoder_start_token_id=0))
    begin_as_look_up(network)
    return network


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
