"""`trace`: one full-depth pass that keeps, for every token and block, what any confidence measure or figure needs.

The output (the model's own greedy one, or a reference) is fed to the decoder at once, teacher-forced; every block's state is
read out by the shared head. What is kept does not grow with the vocabulary, the logits are made for a few hundred tokens at
a time, and states, where they are wanted, go to a file as they come: memory stays bounded however long the trace is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ..errors import CompanionError
from ..models.loading import Model
from ..models.states import BlockStates, decoder_inputs, output_scale
from .generation import UNLIMITED, generate
from .greedy import batches_by_length, check_inputs

READ_OUT_ELEMENTS = 8_000_000
FORMAT = "mee_utils.trace.1"


@dataclass
class Trace:
    """Everything kept of a full-depth pass. `token` counts the output tokens of all sequences, in order of the inputs.

    Attributes:
        sequence: `[token]`, the index of the input that the token belongs to.
        position: `[token]`, its place in the output, from 0.
        token_id: `[token]`, the token that was emitted (along "greedy") or that stands in the reference.
        top_ids: `[token, layer, k]`, ids of the k most probable tokens at each block.
        top_probabilities: `[token, layer, k]`, their probabilities, descending.
        entropy: `[token, layer]`, in nats.
        final_probability: `[token, layer]`, probability of the prediction of the last block.
        final_rank: `[token, layer]`, its rank (1 is the top).
        token_probability: `[token, layer]`, probability of `token_id`.
        similarity: `[token, layer]`, cosine of the normalised states of this block and the one before (block 1: the embedding).
        final_similarity: `[token, layer]`, cosine with the normalised state of the last block.
        along: "greedy" or "reference".
        model: the model's name.
        states: `[token, layer, d_model]` raw block states, if they were asked for; a memory map.
    """

    sequence: np.ndarray
    position: np.ndarray
    token_id: np.ndarray
    top_ids: np.ndarray
    top_probabilities: np.ndarray
    entropy: np.ndarray
    final_probability: np.ndarray
    final_rank: np.ndarray
    token_probability: np.ndarray
    similarity: np.ndarray
    final_similarity: np.ndarray
    along: str
    model: str
    states: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def layers(self) -> int:
        """Number L of blocks; array index `l - 1` holds block `l`."""
        return self.top_ids.shape[1]

    @property
    def top1_id(self) -> np.ndarray:
        """`[token, layer]`, the prediction of each block."""
        return self.top_ids[:, :, 0]

    @property
    def top1_probability(self) -> np.ndarray:
        """`[token, layer]`, the probability of each block's own prediction."""
        return self.top_probabilities[:, :, 0]

    @property
    def margin(self) -> np.ndarray:
        """`[token, layer]`, difference of the two largest probabilities (CALM's softmax measure)."""
        return self.top_probabilities[:, :, 0] - self.top_probabilities[:, :, 1]

    @property
    def final_id(self) -> np.ndarray:
        """`[token]`, the prediction of the last block."""
        return self.top_ids[:, -1, 0]

    def save(self, path: str | Path) -> Path:
        """Writes the trace as one parquet file, one row a token; states go beside it. The file appears only when complete."""
        import pyarrow
        import pyarrow.parquet

        path = Path(path)
        columns = {}
        for name in _arrays():
            values = getattr(self, name)
            flat = pyarrow.array(values.reshape(-1))
            width = int(np.prod(values.shape[1:]))
            columns[name] = flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, width)
        about = {"format": FORMAT, "layers": self.layers, "along": self.along, "model": self.model, "states": self.states is not None}
        table = pyarrow.table(columns).replace_schema_metadata({"trace": json.dumps(about)})
        partial = _partial(path)
        pyarrow.parquet.write_table(table, partial)
        if self.states is not None:
            np.save(_partial(states_path(path)), self.states)
            os.replace(_partial(states_path(path)), states_path(path))
        else:
            states_path(path).unlink(missing_ok=True)
        os.replace(partial, path)
        return path


def _arrays() -> list[str]:
    return [f.name for f in fields(Trace) if f.name not in ("along", "model", "states")]


def states_path(path: Path) -> Path:
    """Where the states of a saved trace are."""
    return path.with_suffix(".states.npy")


def _partial(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.stem}.partial{path.suffix}")
        probe.touch()
    except OSError as error:
        raise CompanionError(f"{path.parent} cannot be written to ({error.strerror}): choose another folder.") from error
    return probe


def load_trace(path: str | Path) -> Trace:
    """Reads a trace written by `Trace.save`."""
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    if not path.exists():
        raise CompanionError(f"{path} does not exist: write it with Trace.save first.")
    try:
        table = pyarrow.parquet.read_table(path)
        about = json.loads((table.schema.metadata or {})[b"trace"])
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        raise CompanionError(f"{path} is no trace of this companion: make it anew with trace(...).save(path).") from error
    if about["format"] != FORMAT:
        raise CompanionError(f'{path} has the format "{about["format"]}", this version reads "{FORMAT}": make it anew.')
    arrays = {}
    for name in _arrays():
        column = table.column(name).combine_chunks()
        listed = pyarrow.types.is_fixed_size_list(column.type)
        values = (column.flatten() if listed else column).to_numpy(zero_copy_only=False)
        arrays[name] = values.reshape(len(column), about["layers"], -1) if listed else values
        if listed and name not in ("top_ids", "top_probabilities"):
            arrays[name] = arrays[name][:, :, 0]
    if about["states"] and not states_path(path).exists():
        raise CompanionError(f"{states_path(path)} is missing: it belongs to {path}; copy it along.")
    states = np.load(states_path(path), mmap_mode="r") if about["states"] else None
    return Trace(**arrays, along=about["along"], model=about["model"], states=states)


def trace(
    model: Model,
    inputs: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    outputs: Sequence[Sequence[int]] | None = None,
    top_k: int = 5,
    states: str | Path | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
    progress: bool = False,
) -> Trace:
    """Traces a model at full depth.

    Args:
        model: from `load_model`.
        inputs: prompts.
        references: texts to follow; by default the model follows its own greedy output.
        outputs: ids of the model's own greedy output, where they are known already (from `generate` or `greedy`).
        top_k: how many ids and probabilities to keep for each token and block (at least 2, for the margin).
        states: a file for the raw states `[token, layer, d_model]` (.npy); not kept by default.
        max_new_tokens: longest output, end token included; longer references are cut.
        batch_size: sequences at a time.
        progress: show a progress bar on the terminal.

    Returns:
        The `Trace`, its tokens in the order of the inputs.

    Raises:
        CompanionError: no inputs, an empty one, a reference missing, or states that are not finite.
    """
    texts = check_inputs(inputs)
    if not 2 <= top_k <= model.network.config.vocab_size:
        raise CompanionError(f"top_k={top_k}: keep at least 2 (the margin needs two) and at most the vocabulary.")
    if references is not None:
        if len(references) != len(texts):
            raise CompanionError(f"{len(references)} references for {len(texts)} inputs: give one for each.")
        outputs = model.tokenizer(check_inputs(references, "Reference"), truncation=True, max_length=max_new_tokens).input_ids
    elif outputs is None:
        longest = dict(max_new_tokens=max_new_tokens, max_source_tokens=UNLIMITED)
        outputs = generate(model, texts, batch_size=batch_size, progress=progress, **longest).token_ids
    if len(outputs) != len(texts) or not all(len(ids) for ids in outputs):
        raise CompanionError(f"{len(outputs)} outputs for {len(texts)} inputs, or one of no tokens: give ids for each input.")
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in outputs])])
    store = _Store(model, int(starts[-1]), top_k, states)
    bar = tqdm(total=len(texts), desc="trace", disable=not progress)
    for chosen, batch in batches_by_length(model, texts, batch_size):
        _trace_batch(model, batch, [outputs[i] for i in chosen], [int(starts[i]) for i in chosen], store)
        bar.update(len(chosen))
    bar.close()
    store.finish()
    lengths = np.diff(starts)
    return Trace(
        sequence=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        position=(np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)).astype(np.int32),
        token_id=np.concatenate([np.asarray(ids, dtype=np.int32) for ids in outputs]),
        along="greedy" if references is None else "reference", model=model.name, states=store.states, **store.arrays,
    )  # fmt: skip


@torch.inference_mode()
def right_at_full_depth(
    model: Model, inputs: Sequence[str], references: Sequence[str], max_new_tokens: int = 64, batch_size: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Which reference tokens the last block predicts when the references are fed in: all that is wanted of a trace where only the last block counts.

    Args:
        model: from `load_model`.
        inputs: prompts.
        references: texts to follow, one for each.
        max_new_tokens: longer references are cut.
        batch_size: sequences at a time.

    Returns:
        `[token]` of truth values, and `[token]`, the input that each belongs to; tokens in the order of the inputs.
    """
    outputs = model.tokenizer(check_inputs(references, "Reference"), truncation=True, max_length=max_new_tokens).input_ids
    right: list[np.ndarray] = [np.empty(0, dtype=bool)] * len(outputs)
    for chosen, batch in batches_by_length(model, check_inputs(inputs), batch_size):
        labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(outputs[i]) for i in chosen], batch_first=True, padding_value=-100).to(model.device)
        same = model.network(**batch, labels=labels).logits.argmax(dim=-1) == labels
        for index, row in zip(chosen, same.cpu().numpy(), strict=True):
            right[index] = row[: len(outputs[index])]
    return np.concatenate(right), np.repeat(np.arange(len(outputs)), [len(ids) for ids in outputs])


class _Store:
    """The arrays of a trace while it is being made, indexed by token."""

    def __init__(self, model: Model, tokens: int, top_k: int, states: str | Path | None):
        shape = (tokens, model.layers)
        self.arrays = {
            "top_ids": np.empty((*shape, top_k), np.int32),
            "top_probabilities": np.empty((*shape, top_k), np.float32),
            "final_rank": np.empty(shape, np.int32),
        }
        for name in ("entropy", "final_probability", "token_probability", "similarity", "final_similarity"):
            self.arrays[name] = np.empty(shape, np.float32)
        self.states = None
        if states is not None:
            self.path, self.unfinished = Path(states), _partial(Path(states))
            size = (*shape, model.network.config.d_model)
            self.states = np.lib.format.open_memmap(self.unfinished, mode="w+", dtype=np.float32, shape=size)

    def finish(self) -> None:
        """Gives the file of states its name, now that it is complete."""
        if self.states is not None:
            self.states.flush()
            os.replace(self.unfinished, self.path)


@torch.inference_mode()
def _trace_batch(model: Model, batch: dict, outputs: list[list[int]], starts: list[int], store: _Store) -> None:
    """Runs one batch and writes its tokens to their places."""
    network = model.network
    labels = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(ids) for ids in outputs], batch_first=True, padding_value=-100
    ).to(model.device)
    fed = decoder_inputs(network, labels)
    with BlockStates(network) as states:
        network.get_decoder()(
            input_ids=fed, encoder_hidden_states=network.get_encoder()(**batch)[0],
            encoder_attention_mask=batch["attention_mask"], use_cache=False,
        )  # fmt: skip
    real = labels != -100
    embedding = network.get_decoder().embed_tokens(fed)[real]
    raw = torch.stack([state[real] for state in states], dim=1)
    if not torch.isfinite(raw).all():
        layer = int((~torch.isfinite(raw)).flatten(2).any(-1).any(0).nonzero()[0]) + 1
        raise CompanionError(f"The states of {model.name} are not finite from block {layer} on: use dtype float32 or bfloat16.")
    rows = np.concatenate([np.arange(start, start + len(ids)) for start, ids in zip(starts, outputs, strict=True)])
    size = max(1, READ_OUT_ELEMENTS // (network.config.vocab_size * model.layers))
    for begin in range(0, len(rows), size):
        part = slice(begin, begin + size)
        _describe(network, raw[part], embedding[part], labels[real][part], rows[part], store)


def _describe(network, raw, embedding, token_ids, rows: np.ndarray, store: _Store) -> None:
    """Computes what is kept of some tokens: `raw` is `[token, layer, d_model]`, `embedding` `[token, d_model]`."""
    norm = network.get_decoder().final_layer_norm
    states = norm(raw)
    before = torch.cat([norm(embedding)[:, None], states[:, :-1]], dim=1)
    probabilities = torch.softmax(network.lm_head(states * output_scale(network)).to(_wide(raw)), dim=-1)
    top = probabilities.topk(store.arrays["top_ids"].shape[-1], dim=-1)
    top_ids = first_of_equals(probabilities, top.indices)
    final = probabilities.gather(-1, top_ids[:, -1:, :1].expand(-1, raw.shape[1], 1))
    cosine = torch.nn.functional.cosine_similarity
    described = {
        "top_ids": top_ids,
        "top_probabilities": top.values,
        "entropy": torch.special.entr(probabilities).sum(-1),
        "final_probability": final[..., 0],
        "final_rank": (probabilities > final).sum(-1) + 1,
        "token_probability": probabilities.gather(-1, token_ids[:, None, None].expand(-1, raw.shape[1], 1))[..., 0],
        "similarity": cosine(states.to(_wide(raw)), before.to(_wide(raw)), dim=-1).clamp(max=1.0),
        "final_similarity": cosine(states.to(_wide(raw)), states[:, -1:].to(_wide(raw)), dim=-1).clamp(max=1.0),
    }
    for name, values in described.items():
        store.arrays[name][rows] = values.cpu().numpy()
    if store.states is not None:
        store.states[rows] = raw.float().cpu().numpy()


def first_of_equals(probabilities: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Ids `[..., k]` from `topk`, with the first of equally probable tokens in front, as greedy decoding picks it."""
    first = probabilities.argmax(dim=-1, keepdim=True)
    ids = torch.where(ids == first, ids[..., :1], ids)
    return torch.cat([first, ids[..., 1:]], dim=-1)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    """Probabilities and cosines are computed in float32 at least."""
    return tensor.dtype if tensor.dtype == torch.float64 else torch.float32
