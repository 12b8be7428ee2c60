"""Long inputs: the two long-document layouts, and what decisions cost when the source is long. Weights are random: cost only."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from ..exits.policy import ExitPolicy
from ..tasks import load_task

LAYOUTS = {"Multi-News": ("document", "summary"), "BigPatent": ("description", "abstract")}
STORIES = 24  # made stories in one made document


def long_tasks(source: str, limit: int, place: Path, **options) -> dict:
    """Long documents in both layouts of the papers.

    Args:
        source: "made" (made stories, joined), or a file, folder or hub id with the columns `document` and `summary`.
        limit: how many documents.
        place: the folder where files in the two layouts are written.
        options: of `load_task`, for a hub id.

    Returns:
        layout -> `Task`; the same documents in both, read by the same code.
    """
    if source == "made":
        stories = load_task("summarization", limit=STORIES * limit)
        texts = [text.removeprefix("summarize: ") for text in stories.inputs]
        pairs = [(" ".join(texts[i : i + STORIES]), stories.targets[i]) for i in range(0, len(texts), STORIES)]
    else:
        found = load_task("long_document_summarization", source, limit=limit, **options)
        pairs = [(text.removeprefix("summarize: "), target) for text, target in islice(zip(found.inputs, found.targets, strict=True), limit)]
    tasks = {}
    for layout, columns in LAYOUTS.items():
        path = Path(place) / f"{layout.lower()}.jsonl"
        path.write_text("".join(json.dumps(dict(zip(columns, pair, strict=True))) + "\n" for pair in pairs), encoding="utf-8")
        tasks[layout] = load_task("long_document_summarization", path)
    return tasks


def random_long_t5(tokenizer, folder: Path, encoder_attention: str = "transient-global", seed: int = 0):
    """A mini LongT5 with random weights, 12 + 12 blocks, saved and loaded as any checkpoint is. For cost only: it says nothing of quality."""
    import torch
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    from ..models.loading import load_model

    torch.manual_seed(seed)
    config = LongT5Config(
        vocab_size=len(tokenizer), d_model=96, d_kv=24, num_heads=4, d_ff=128, num_layers=12, num_decoder_layers=12, local_radius=127,
        global_block_size=16, encoder_attention_type=encoder_attention, decoder_start_token_id=0, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, dropout_rate=0.0,
    )  # fmt: skip
    LongT5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder, dtype="float64", name="random LongT5")


def costs_by_part(model, task, policies: dict[str, ExitPolicy | None], max_new_tokens: int, **labels) -> pd.DataFrame:
    """Operations of decoding by part, as shares of those of no exit: one row a policy.

    Args:
        model: from `load_model`.
        task: long inputs.
        policies: name -> policy; the first is what the others are set beside.
        max_new_tokens: the longest output.
        labels: constant columns.
    """
    from ..decoding.generation import generate

    lengths = [len(ids) for ids in model.tokenizer(list(task.inputs)).input_ids]
    rows, full = [], None
    for name, policy in policies.items():
        found = generate(model, task.inputs, policy, max_new_tokens=max_new_tokens, batch_size=1)
        full = full or found.flops.sum() / found.tokens
        parts = {f"{part}_share": values.sum() / found.tokens / full for part, values in found.flops_by_part.items()}
        rows.append({**labels, "source_tokens": float(np.mean(lengths)), "rule": name, "mean_exit_layer": found.mean_exit_layer,
                     "flops_share": found.flops.sum() / found.tokens / full, **parts})  # fmt: skip
    return pd.DataFrame(rows)


def counted_by_length(sizes, lengths, min_layer: int, top_k: int, tokens: int = 64) -> pd.DataFrame:
    """What deciding at every block adds to decoding at full depth, counted, as the source grows: `source_tokens`, `rule`, `flops_share`.

    Args:
        sizes: `DecoderSizes`.
        lengths: of the source, in tokens.
        min_layer: first block at which a token may exit (nobody does).
        top_k: ids kept by the pruned rule.
        tokens: of the output.
    """
    from ..models.costs import generation_flops

    exits, rows = np.full(tokens, sizes.layers), []
    decided = sizes.layers - min_layer
    read_outs = {"unpruned": decided + 1, "fixed": 1 + decided * top_k / sizes.vocabulary}
    for length in lengths:
        full = sum(generation_flops(sizes, exits, length, np.ones(tokens)).values())
        for rule, count in read_outs.items():
            spent = sum(generation_flops(sizes, exits, length, np.full(tokens, count)).values())
            rows.append({"source_tokens": length, "rule": rule, "flops_share": spent / full})
    return pd.DataFrame(rows)
