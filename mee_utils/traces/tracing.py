"""`trace`: one full-depth pass that keeps what measures and figures need of every token and layer.

The output (the model's own greedy one, or a reference) is fed to the decoder at once, and the shared LM head
computes logits at every layer. What is kept does not grow with the vocabulary, logits exist for a few hundred
tokens at a time, and states go to a file as they come. So memory hardly grows with the trace: where the model
writes the output itself, the encoder's states wait from the search to the pass along what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from ..common.errors import MeeError, check_whole
from ..common.files import check_file, complete_file
from ..decoding.inputs import check_evaluation, check_inputs
from ..exits.contrast import entropy
from ..models.any_model import AnyModel
from ..models.loading import Model
from .any_passes import AnyPasses
from .causal_passes import CausalPasses
from .t5_passes import T5Passes
from .trace import Trace

LEAST_AGREEMENT = 0.9  # of the tokens of its own output that a model's last layer predicts along it
LOGITS_AT_ONCE = 8_000_000  # elements of `[token, layer, vocabulary]` that are in memory at a time


def trace(
    model: Model | AnyModel,
    inputs: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    outputs: Sequence[Sequence[int]] | None = None,
    top_k: int = 5,
    states: str | Path | None = None,
    max_new_tokens: int = 64,
    batch_size: int = 32,
) -> Trace:
    """Traces a model at full depth, along `references` or, without them, its own greedy output.

    Args:
        model: from `load_model`, or any other model of `transformers` that writes text, as `AnyModel`.
        outputs: ids of the greedy output, if it was decoded already.
        top_k: how many vocabulary tokens to keep for each token and layer (at least 2, for the margin).
        states: a file for the raw states `[token, layer, d_model]` (.npy); not kept by default.
        max_new_tokens: longest output, end token included; longer references are cut.
        batch_size: inputs at a time; changes numbers by rounding only.

    Raises:
        MeeError: no inputs, an empty one, a missing reference, ids that the model does not have, states that
            are not finite, an output that the last layer does not predict, no room on the disk.
    """
    passes = _passes_of(model)
    texts = check_inputs(inputs)
    check_whole("top_k", top_k)
    check_whole("max_new_tokens", max_new_tokens)
    check_whole("batch_size", batch_size)
    if not 2 <= top_k <= passes.sizes.vocabulary:
        raise MeeError(f"top_k={top_k}: keep at least 2 (for the margin) and at most the vocabulary.")
    if states is not None:
        states = check_file("states", states, "states.npy")
    token_ids = _outputs_to_trace(passes, texts, references, outputs, max_new_tokens, batch_size)
    source_ids = passes.input_ids(texts)
    arrays = _trace_outputs(passes, source_ids, token_ids, top_k, states, batch_size)
    if isinstance(model, AnyModel) and references is None and outputs is None:
        # a model that takes padding for tokens of its input writes one thing in a batch and predicts another
        # along it; so does one whose search is not greedy. Rounding may change a few.
        agrees = (np.concatenate(token_ids) == arrays["top_ids"][:, -1, 0]).mean()
        if agrees < LEAST_AGREEMENT:
            tokens = f"For {1 - agrees:.0%} of the tokens that {model.name} wrote, its last layer predicts"
            raise MeeError(f"{tokens} another one: if it does not mask padding, use batch_size=1.")
    lengths = [len(ids) for ids in token_ids]
    return Trace(
        sequence=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        token_id=np.concatenate(token_ids),
        along="greedy" if references is None else "reference",
        model=model.name,
        fingerprint=model.fingerprint,
        min_exit_layer=model.min_exit_layer,
        sizes=passes.sizes,
        source_ids=source_ids,
        states=None if states is None else np.load(states, mmap_mode="r"),
        **arrays,
    )


def _passes_of(model: object) -> T5Passes | AnyPasses:
    if isinstance(model, AnyModel | Model):
        check_evaluation(model)
        if isinstance(model, AnyModel):
            return AnyPasses(model)
        return CausalPasses(model) if model.causal else T5Passes(model)
    advice = "give what load_model returns, or an AnyModel(network, tokenizer, name)"
    raise MeeError(f"model={type(model).__name__}: {advice}.")


def _outputs_to_trace(
    passes: T5Passes | AnyPasses,
    texts: list[str],
    references: Iterable[str] | None,
    outputs: Iterable[Sequence[int]] | None,
    max_new_tokens: int,
    batch_size: int,
) -> list[np.ndarray]:
    """Ids of every output to trace, `[token]` each: of the references, those given, or decoded now."""
    if references is not None and outputs is not None:
        raise MeeError("references and outputs contradict each other: give one of them.")
    if references is not None:
        references = _check_one_each("references", references, len(texts))
        checked = check_inputs(references, "Reference")
        outputs = passes.reference_ids(checked, max_new_tokens)
    elif outputs is None:
        outputs = passes.greedy(texts, max_new_tokens, batch_size)
    outputs = _check_one_each("outputs", outputs, len(texts))
    vocabulary = passes.sizes.vocabulary
    return [_check_output(number, ids, vocabulary) for number, ids in enumerate(outputs)]


def _check_one_each(name: str, values: object, inputs: int) -> list:
    """A list with a value for each input."""
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, Iterable):
        raise MeeError(f"{name}={values!r:.60}: give a list, one for each input.")
    values = list(values)
    if len(values) != inputs:
        raise MeeError(f"{len(values)} {name} for {inputs} inputs: give one for each.")
    return values


def _check_output(number: int, token_ids: Sequence[int], vocabulary: int) -> np.ndarray:
    """The ids of an output as an array `[token]`, or an error that says which output is none."""
    try:
        ids = np.asarray(token_ids)
        valid = ids.ndim == 1 and ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < vocabulary
    except ValueError:  # no token at all, or lists of unequal lengths
        valid = False
    if not valid:
        raise MeeError(f"Output {number} must be a list of token ids from 0 to {vocabulary - 1}.")
    return ids.astype(np.int32)


def _trace_outputs(
    passes: T5Passes | AnyPasses,
    source_ids: list[list[int]],
    outputs: list[np.ndarray],
    top_k: int,
    states: Path | None,
    batch_size: int,
) -> dict[str, np.ndarray]:
    """The arrays of a trace along some outputs; raw states go to the file `states`, if there is one."""
    lengths = [len(ids) for ids in outputs]
    tokens = sum(lengths)
    token_indices = np.split(np.arange(tokens), np.cumsum(lengths)[:-1])  # of each output
    sizes = passes.sizes
    arrays = _empty_arrays(tokens, sizes.layers, top_k)
    with ExitStack() as stack:
        states_file = None
        if states is not None:
            file = stack.enter_context(stack.enter_context(complete_file(states)).open("wb"))
            states_file = _StatesFile(file, (tokens, sizes.layers, sizes.d_model))
        batches = tqdm(
            passes.batches(source_ids, batch_size),
            desc="trace",
            total=-(-len(source_ids) // batch_size),
            delay=5,
            disable=None,
        )
        for indices, batch in batches:
            rows = [token_indices[index] for index in indices]
            raw = _trace_batch(passes, batch, [outputs[index] for index in indices], rows, arrays)
            if states_file:
                states_file.write(rows, raw)
    return arrays


def _empty_arrays(tokens: int, layers: int, top_k: int) -> dict[str, np.ndarray]:
    """Arrays for what `_describe` says of every token and layer."""
    return {
        "top_ids": np.empty((tokens, layers, top_k), np.int32),
        "top_probabilities": np.empty((tokens, layers, top_k), np.float32),
        "entropy": np.empty((tokens, layers), np.float32),
        "final_probability": np.empty((tokens, layers), np.float32),
        "final_rank": np.empty((tokens, layers), np.int32),
        "token_probability": np.empty((tokens, layers), np.float32),
        "similarity": np.empty((tokens, layers), np.float32),
        "final_similarity": np.empty((tokens, layers), np.float32),
    }


class _StatesFile:
    """A .npy file of states, written without a memory map: a full disk is an error, not a bus error."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...]):
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self.file = file
        self.start = file.tell()

    def write(self, rows: list[np.ndarray], raw: Tensor) -> None:
        """Writes states `[token, layer, d_model]` of some outputs; `rows` are the token indices of each."""
        states = raw.float().cpu().numpy()
        bytes_per_token = states[0].nbytes
        written = 0
        for tokens in rows:
            self.file.seek(self.start + int(tokens[0]) * bytes_per_token)
            self.file.write(states[written : written + len(tokens)].tobytes())
            written += len(tokens)


@torch.inference_mode()
def _trace_batch(
    passes: T5Passes | AnyPasses,
    batch,
    outputs: list[np.ndarray],
    rows: list[np.ndarray],
    arrays: dict[str, np.ndarray],
) -> Tensor:
    """Runs a batch along its outputs; what is kept goes into the `rows` of `arrays`, `[token]` of each one.

    Returns the raw states of these tokens, `[token, layer, d_model]`.
    """
    states = passes.states(batch, outputs)
    broken_layers = (~torch.isfinite(states.after)).any(-1).any(0).nonzero()
    if len(broken_layers):
        broken = f"The states of {passes.model.name} are not finite from layer {int(broken_layers[0]) + 1} on"
        raise MeeError(f"{broken}: use dtype float32 or bfloat16, or look for damaged weights.")
    tokens = np.concatenate(rows)
    top_k = arrays["top_ids"].shape[-1]
    size = max(1, LOGITS_AT_ONCE // (passes.sizes.vocabulary * passes.sizes.layers))
    for start in range(0, len(tokens), size):
        part = slice(start, start + size)
        described = _describe(
            passes, states.after[part], states.embedding[part], states.token_ids[part], top_k
        )
        for name, values in described.items():
            arrays[name][tokens[part]] = values.cpu().numpy()
    return states.after


def _describe(passes, raw: Tensor, embedding: Tensor, token_ids: Tensor, top_k: int) -> dict[str, Tensor]:
    """What is kept of tokens with `raw` states `[token, layer, d_model]`, `embedding` those before layer 1.

    Each value is `[token, layer]` or `[token, layer, k]`.
    """
    states = passes.norm(raw)
    wide = torch.promote_types(raw.dtype, torch.float32)
    logits = passes.logits(states)  # [token, layer, vocabulary]
    probabilities = torch.softmax(logits.to(wide), dim=-1)
    top = probabilities.topk(top_k, dim=-1)
    top_ids = first_of_equals(probabilities, top.indices)
    final_probability = _probability_of(probabilities, top_ids[:, -1, 0])
    states_before = torch.cat([passes.norm(embedding)[:, None], states[:, :-1]], dim=1)
    return {
        "top_ids": top_ids,
        "top_probabilities": top.values,
        "entropy": entropy(probabilities),
        "final_probability": final_probability,
        "final_rank": (probabilities > final_probability[..., None]).sum(-1) + 1,
        "token_probability": _probability_of(probabilities, token_ids),
        "similarity": _cosine(states, states_before, wide),
        "final_similarity": _cosine(states, states[:, -1:], wide),
    }


def _probability_of(probabilities: Tensor, ids: Tensor) -> Tensor:
    """`[token, layer]`, the probability at every layer of one id `[token]` a token."""
    index = ids[:, None, None].expand(-1, probabilities.shape[1], 1)
    return probabilities.gather(-1, index)[..., 0]


def _cosine(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """`[token, layer]`, cosine similarity of states `[token, layer, d_model]`."""
    return functional.cosine_similarity(first.to(dtype), second.to(dtype), dim=-1).clamp(max=1.0)


def first_of_equals(probabilities: Tensor, ids: Tensor) -> Tensor:
    """Ids `[..., k]` from `topk`, the first of equally probable ones in front, as greedy decoding picks."""
    first = probabilities.argmax(dim=-1, keepdim=True)
    ids = torch.where(ids == first, ids[..., :1], ids)
    return torch.cat([first, ids[..., 1:]], dim=-1)
