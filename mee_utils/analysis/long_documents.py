"""Long inputs: the two long-document layouts, and what decisions cost when the source is long.

The weights are random: these functions say what decoding costs, and nothing about quality.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from ..exits.policy import ExitPolicy
from ..models.costs import DecoderSizes, generation_flops
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
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}


def long_tasks(source: str, limit: int, place: Path, **options) -> dict:
    """The same long documents in both layouts of the papers, read by the same code: layout -> `Task`.

    Args:
        source: "synthetic" (stories joined), or a file, folder or hub id with the columns `document` and
            `summary`.
        limit: how many documents.
        place: the folder where files in the two layouts are written.
        options: of `load_task`, for a hub id.
    """
    if source == "synthetic":
        stories = load_task("summarization", limit=STORIES * limit)
        targets = stories.targets[::STORIES]
    else:
        stories = load_task("long_document_summarization", source, limit=limit, **options)
        targets = stories.targets[:limit]
    texts = iter([text.removeprefix("summarize: ") for text in stories.inputs])
    size, tasks = STORIES if source == "synthetic" else 1, {}
    documents = [" ".join(islice(texts, size)) for _ in targets]
    for layout, columns in LAYOUTS.items():
        path = Path(place) / f"{layout.lower()}.jsonl"
        pairs = zip(documents, targets, strict=True)
        lines = [json.dumps(dict(zip(columns, pair, strict=True))) + "\n" for pair in pairs]
        path.write_text("".join(lines), encoding="utf-8")
        tasks[layout] = load_task("long_document_summarization", path)
    return tasks


def random_long_t5(tokenizer, folder: Path, encoder_attention: str = "transient-global", seed: int = 0):
    """A mini LongT5 with random weights, 12 + 12 layers, saved and loaded as any checkpoint is."""
    import torch
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    from ..models.loading import load_model

    torch.manual_seed(seed)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = {"vocab_size": len(tokenizer), "encoder_attention_type": encoder_attention}
    LongT5ForConditionalGeneration(LongT5Config(**LONG_T5, **size, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder, dtype="float64", name="random LongT5")


def costs_by_part(
    model, task, policies: Mapping[str, ExitPolicy | None], max_new_tokens: int, **labels
) -> pd.DataFrame:
    """FLOPs of decoding by part, a token, as shares of those of the first policy: one row a policy.

    Args:
        model: from `load_model`.
        task: long inputs.
        policies: name -> policy; the first is full depth (None).
        max_new_tokens: the longest output.
        labels: constant columns.
    """
    from ..decoding.generation import generate

    source = float(np.mean([len(ids) for ids in model.tokenizer(list(task.inputs)).input_ids]))
    rows, full = [], None
    for name, policy in policies.items():
        found = generate(model, task.inputs, policy, max_new_tokens=max_new_tokens, batch_size=1)
        spent = found.flops.sum() / found.tokens
        full = full or spent
        row = {"source_tokens": source, "rule": name, "mean_exit_layer": found.mean_exit_layer}
        parts = {part: values.sum() / found.tokens / full for part, values in found.flops_by_part.items()}
        shares = {f"{part}_share": share for part, share in parts.items()}
        rows.append({**labels, **row, "flops_share": spent / full, **shares})
    return pd.DataFrame(rows)


def counted_by_length(
    sizes: DecoderSizes, lengths: Iterable[int], min_layer: int, top_k: int, tokens: int = 64
) -> pd.DataFrame:
    """What deciding at every layer adds to full depth as the source grows: `source_tokens`, `rule`,
    `flops_share`.

    Args:
        sizes: of the decoder.
        lengths: of the source, in tokens.
        min_layer: first layer at which a token may exit (none does).
        top_k: ids kept by the pruned rule.
        tokens: of the output.
    """
    decided = sizes.layers - min_layer
    vocabulary = sizes.vocabulary
    readout_rows = {"unpruned": (decided + 1) * vocabulary, "fixed": vocabulary + decided * top_k}

    def spent(length: int, rows: int) -> int:
        exits = np.full(tokens, sizes.layers)
        return sum(generation_flops(sizes, exits, length, np.full(tokens, rows)).values())

    places = [(length, rule) for length in lengths for rule in readout_rows]
    shares = [spent(length, readout_rows[rule]) / spent(length, vocabulary) for length, rule in places]
    return pd.DataFrame(places, columns=["source_tokens", "rule"]).assign(flops_share=shares)
