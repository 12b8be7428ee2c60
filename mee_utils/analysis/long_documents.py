"""Long inputs: the two long-document layouts, and what decisions cost when the source is long.

The weights are random: these functions say what decoding costs, and nothing about quality.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from ..decoding.generation import generate
from ..models.costs import DecoderSizes, generation_flops
from ..models.loading import load_model
from ..tasks import load_task

LAYOUTS = {"Multi-News": ("document", "summary"), "BigPatent": ("description", "abstract")}
STORIES = 24  # synthetic stories in one synthetic document
LONG_T5 = dict(d_model=96, d_kv=24, num_heads=4, d_ff=128, num_layers=12, num_decoder_layers=12)
LONG_T5 |= dict(local_radius=127, global_block_size=16, encoder_attention_type="transient-global")
LONG_T5 |= dict(decoder_start_token_id=0, dropout_rate=0.0)


def long_tasks(source: str, limit: int, place: Path) -> dict:
    """The same long documents in both layouts of the papers, read by the same code: layout -> `Task`.

    `source` is "synthetic" (stories joined), or a file, folder or hub id that has the columns `document` and
    `summary`; files in both layouts are written into the folder `place`.
    """
    if source == "synthetic":
        size, stories = STORIES, load_task("summarization", limit=STORIES * limit)
    else:
        size, stories = 1, load_task("long_document_summarization", source, limit=limit)
    targets, tasks = stories.targets[: size * limit : size], {}
    texts = iter([text.removeprefix("summarize: ") for text in stories.inputs])
    documents = [" ".join(islice(texts, size)) for _ in targets]
    for layout, columns in LAYOUTS.items():
        path = Path(place) / f"{layout.lower()}.jsonl"
        pairs = zip(documents, targets, strict=True)
        lines = [json.dumps(dict(zip(columns, pair, strict=True))) + "\n" for pair in pairs]
        path.write_text("".join(lines), encoding="utf-8")
        tasks[layout] = load_task("long_document_summarization", path)
    return tasks


def random_long_t5(tokenizer, folder: Path):
    """A mini LongT5 with random weights, 12 + 12 layers, saved and loaded as any checkpoint is."""
    import torch
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LongT5Config(vocab_size=len(tokenizer), **LONG_T5, **ids)
    LongT5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder, dtype="float64", name="random LongT5")


def costs_by_part(model, task, policies: Mapping, max_new_tokens: int, **labels) -> pd.DataFrame:
    """FLOPs a token by part, a row a policy (name -> policy), in shares of the first (full depth)."""
    source = float(np.mean([len(ids) for ids in model.tokenizer(list(task.inputs)).input_ids]))
    rows, full = [], None
    for name, policy in policies.items():
        found = generate(model, task.inputs, policy, max_new_tokens=max_new_tokens, batch_size=1)
        row = {"source_tokens": source, "rule": name, "mean_exit_layer": found.mean_exit_layer}
        parts = {"flops": found.flops, **found.flops_by_part}
        spent = {f"{part}_share": values.sum() / found.tokens for part, values in parts.items()}
        full = full or spent["flops_share"]
        rows.append({**labels, **row, **{name: value / full for name, value in spent.items()}})
    return pd.DataFrame(rows)


def counted_by_length(
    sizes: DecoderSizes, lengths: Iterable[int], min_layer: int, top_k: int, tokens: int = 64
) -> pd.DataFrame:
    """What deciding at every layer from `min_layer` on adds to full depth as the source grows: one row a
    length (in tokens) and rule ("unpruned", or "fixed" with `top_k` ids). No token of the output exits.
    """
    decided, vocabulary = sizes.layers - min_layer, sizes.vocabulary
    readout_rows = {"unpruned": (decided + 1) * vocabulary, "fixed": vocabulary + decided * top_k}

    def spent(length: int, rows: int) -> int:
        exits = np.full(tokens, sizes.layers)
        return sum(generation_flops(sizes, exits, length, np.full(tokens, rows)).values())

    places = [(length, rule) for length in lengths for rule in readout_rows]
    shares = [spent(length, readout_rows[rule]) / spent(length, vocabulary) for length, rule in places]
    return pd.DataFrame(places, columns=["source_tokens", "rule"]).assign(flops_share=shares)
