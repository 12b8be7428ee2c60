"""Long inputs: the two long-document layouts, and what decisions cost when the source is long.

The weights are random: these functions say what decoding costs, and nothing about quality.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd

from ..decoding.generation import generate
from ..decoding.inputs import UNLIMITED, EncoderCache
from ..models.costs import DecoderSizes, generation_flops
from ..models.loading import Model
from ..tasks import load_task

LAYOUTS = {"Multi-News": ("document", "summary"), "BigPatent": ("description", "abstract")}
STORIES = 24  # synthetic stories in one synthetic document
LONG_T5 = {
    "d_model": 96,
    "d_kv": 24,
    "num_heads": 4,
    "d_ff": 128,
    "num_layers": 12,
    "num_decoder_layers": 12,
    "local_radius": 127,
    "global_block_size": 16,
    "encoder_attention_type": "transient-global",
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}


def long_tasks(source: str, limit: int, folder: Path) -> dict:
    """The same long documents in both layouts of the papers, read by the same code: layout -> `Task`.

    `source` is "synthetic" (stories joined), or a file, folder or hub id that has the columns `document` and
    `summary`; files in both layouts are written into `folder`.
    """
    if source == "synthetic":
        stories = load_task("summarization", limit=STORIES * limit)
        documents = _joined(stories.inputs, STORIES)
        summaries = stories.targets[::STORIES]  # of the first story of each document
    else:
        corpus = load_task("long_document_summarization", source, limit=limit)
        documents = _joined(corpus.inputs, 1)
        summaries = corpus.targets
    tasks = {}
    for layout, (document_column, summary_column) in LAYOUTS.items():
        path = Path(folder) / f"{layout.lower()}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for document, summary in zip(documents, summaries, strict=True):
                file.write(json.dumps({document_column: document, summary_column: summary}) + "\n")
        tasks[layout] = load_task("long_document_summarization", path)
    return tasks


def _joined(inputs: Sequence[str], size: int) -> list[str]:
    """Documents of `size` inputs each, without their prompts."""
    texts = [text.removeprefix("summarize: ") for text in inputs]
    return [" ".join(texts[start : start + size]) for start in range(0, len(texts), size)]


def random_long_t5(tokenizer) -> Model:
    """A mini LongT5 with random weights, 12 + 12 layers, in double precision."""
    import torch
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    config = LongT5Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **LONG_T5,
    )
    tokenizer = copy(tokenizer)
    tokenizer.model_max_length = UNLIMITED  # LongT5 reads more than the tokenizer of a T5 says
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LongT5ForConditionalGeneration(config)
    return Model(network.double().eval().requires_grad_(False), tokenizer, "random LongT5")


def costs_by_part(model, task, policies: Mapping, max_new_tokens: int, **labels) -> pd.DataFrame:
    """FLOPs per token by part, one row per policy (name -> policy), in shares of the first (full depth)."""
    source_tokens = float(np.mean([len(ids) for ids in model.tokenizer(list(task.inputs)).input_ids]))
    rows = []
    full_depth = None  # FLOPs a token of the first policy
    encodings = EncoderCache()
    for rule, policy in policies.items():
        generation = generate(
            model, task.inputs, policy, max_new_tokens=max_new_tokens, batch_size=1, encodings=encodings
        )
        row = {
            **labels,
            "source_tokens": source_tokens,
            "rule": rule,
            "mean_exit_layer": generation.mean_exit_layer,
        }
        parts = {"flops": generation.flops, **generation.flops_by_part}  # part -> [output]
        full_depth = full_depth or generation.flops.sum() / generation.tokens
        for part, flops in parts.items():
            row[f"{part}_share"] = flops.sum() / generation.tokens / full_depth
        rows.append(row)
    return pd.DataFrame(rows)


def counted_by_length(
    sizes: DecoderSizes, lengths: Iterable[int], min_layer: int, top_k: int, tokens: int = 64
) -> pd.DataFrame:
    """What deciding at every layer from `min_layer` on adds to full depth as the source grows.

    One row a length (in tokens) and rule ("unpruned", or "fixed" with `top_k` ids): `flops_share`. No token
    of the output exits.
    """
    decided = sizes.layers - min_layer
    readout_rows = {  # a token, of the LM head
        "unpruned": (decided + 1) * sizes.vocabulary,
        "fixed": sizes.vocabulary + decided * top_k,
    }
    exit_layers = np.full(tokens, sizes.layers)

    def flops(length: int, rows_a_token: int) -> int:
        return sum(generation_flops(sizes, exit_layers, length, np.full(tokens, rows_a_token)).values())

    rows = []
    for length in lengths:
        full_depth = flops(length, sizes.vocabulary)
        for rule, rows_a_token in readout_rows.items():
            share = flops(length, rows_a_token) / full_depth
            rows.append({"source_tokens": length, "rule": rule, "flops_share": share})
    return pd.DataFrame(rows)
