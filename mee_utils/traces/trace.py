"""`trace`: one full-depth pass that keeps what measures and figures need of every token and layer.

The output (the model's own greedy one, or a reference) is fed to the decoder at once, and the shared LM head
computes logits at every layer. What is kept does not grow with the vocabulary, logits exist for a few hundred
tokens at a time, and states go to a file as they come: memory stays bounded however long the trace is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from ..common.errors import MeeError, check_whole
from ..common.files import complete_file
from ..common.html import shaded, table
from ..decoding.generation import generate
from ..decoding.inputs import UNLIMITED, batches_by_length, check_evaluation, check_inputs, input_ids
from ..decoding.layerwise import start_and_end_ids
from ..exits.contrast import entropy
from ..models.any_model import AnyModel
from ..models.costs import DecoderSizes
from ..models.loading import Model
from ..models.states import readout, teacher_forced
from .any_passes import AnyPasses

LOGITS_AT_ONCE = 8_000_000  # elements of `[token, layer, vocabulary]` that are in memory at a time
FORMAT = "mee_utils.trace.4"
IGNORED = -100  # the label of padding, as in `transformers`


@dataclass(repr=False)
class Trace:
    """What is kept of a full-depth pass; `token` runs over the tokens of all outputs, in input order."""

    sequence: np.ndarray  # `[token]`, the index of its input
    position: np.ndarray  # `[token]`, its place in the output, from 0
    token_id: np.ndarray  # `[token]`, emitted (along "greedy") or of the reference
    top_ids: np.ndarray  # `[token, layer, k]`, the k most probable tokens, descending
    top_probabilities: np.ndarray  # `[token, layer, k]`, of these
    entropy: np.ndarray  # `[token, layer]`, in nats
    final_probability: np.ndarray  # `[token, layer]`, of the last layer's prediction
    final_rank: np.ndarray  # `[token, layer]`, of the last layer's prediction (1 is the top)
    token_probability: np.ndarray  # `[token, layer]`, of `token_id`
    # `[token, layer]`, cosines of normalised states with the layer before (first: the embedding) and the last
    similarity: np.ndarray
    final_similarity: np.ndarray
    along: str  # "greedy" or "reference"
    model: str  # its name
    min_exit_layer: int  # of the model
    sizes: DecoderSizes
    source_ids: list[list[int]]  # each input, as ids
    states: np.ndarray | None = None  # `[token, layer, d_model]`, raw, where they were kept; a memory map
    fingerprint: str | None = None  # of the weights that were traced, see `Model.fingerprint`

    def __len__(self) -> int:
        return len(self.sequence)

    def __repr__(self) -> str:
        states = "no states" if self.states is None else "with states"
        size = f"{len(self)} tokens of {len(self.source_tokens)} inputs"
        return f'Trace("{self.model}", along="{self.along}": {size}, {self.layers} layers, {states})'

    def _repr_html_(self) -> str:
        """What each layer predicts and how surely, means over tokens."""
        by_layer = {
            "says what the last layer says": self.top1_id == self.final_id[:, None],
            "probability of the final prediction": self.final_probability,
            "margin": self.margin,
            "similarity to the layer before": self.similarity,
        }
        rows = []
        for name, values in by_layer.items():
            means = values.mean(axis=0).tolist()
            rows.append((name, *(shaded(f"{mean:.2f}", max(0.0, mean)) for mean in means)))
        return table(rows, ("layer", *range(1, self.layers + 1)), repr(self))

    @property
    def layers(self) -> int:
        """Number L of layers; array index `l - 1` holds layer `l`."""
        return self.top_ids.shape[1]

    @property
    def source_tokens(self) -> list[int]:
        """Length of each input, in tokens."""
        return [len(ids) for ids in self.source_ids]

    def source_of(self, tokens) -> np.ndarray:
        """The input ids behind the given tokens (a slice or indices): `[token, source]`, padded with -1."""
        inputs, rows = np.unique(self.sequence[tokens], return_inverse=True)
        ids = [torch.tensor(self.source_ids[number]) for number in inputs]
        return pad_sequence(ids, batch_first=True, padding_value=-1).numpy()[rows]

    @property
    def top1_id(self) -> np.ndarray:
        """`[token, layer]`, the prediction of each layer."""
        return self.top_ids[:, :, 0]

    @property
    def top1_probability(self) -> np.ndarray:
        """`[token, layer]`, the probability of each layer's own prediction."""
        return self.top_probabilities[:, :, 0]

    @property
    def margin(self) -> np.ndarray:
        """`[token, layer]`, difference of the two largest probabilities (CALM's softmax measure)."""
        return self.top_probabilities[:, :, 0] - self.top_probabilities[:, :, 1]

    @property
    def final_id(self) -> np.ndarray:
        """`[token]`, the prediction of the last layer."""
        return self.top_ids[:, -1, 0]

    @property
    def token_before(self) -> np.ndarray:
        """`[token]`, what was emitted before, -1 at the start."""
        return np.where(self.position == 0, -1, np.roll(self.token_id, 1))

    def by_output(self, values: np.ndarray) -> list[np.ndarray]:
        """`[token]` as one array per output."""
        return np.split(values, np.flatnonzero(np.diff(self.sequence)) + 1)

    def check_model(self, model: Model) -> None:
        """Raises `MeeError` unless the model has the weights that were traced."""
        if not isinstance(model, Model):
            raise MeeError(f"model={type(model).__name__}: give what load_model returns.")
        if self.model != model.name:
            raise MeeError(f'The trace is of "{self.model}": give this model, not "{model.name}".')
        if self.fingerprint not in (None, model.fingerprint):
            raise MeeError(f'The trace is of other weights than "{model.name}" has now: trace again.')

    def check_own(self, inputs: int) -> None:
        """Raises `MeeError` unless these are the model's own outputs for so many inputs."""
        if self.along != "greedy" or len(self.source_tokens) != inputs:
            raise MeeError("Give a trace of the model's own output, on the inputs that were decoded.")

    def first(self, limit: int) -> Trace:
        """The trace of the first `limit` inputs."""
        return self.part(0, check_whole("limit", limit))

    def part(self, first: int, last: int) -> Trace:
        """The trace of the inputs `first` to `last - 1`; states stay on disk."""
        tokens = slice(*np.searchsorted(self.sequence, [first, last]))
        arrays = {name: each[tokens] for name, each in vars(self).items() if isinstance(each, np.ndarray)}
        arrays["sequence"] = arrays["sequence"] - first
        return replace(self, **arrays, source_ids=self.source_ids[first:last])

    def save(self, path: str | Path) -> Path:
        """Writes the trace as safetensors, its states beside it (.npy). Files appear only when complete."""
        from safetensors.numpy import save_file

        path = _check_file("path", path, "trace.safetensors")
        metadata = {name: getattr(self, name) for name in _METADATA}
        metadata["sizes"] = asdict(self.sizes)
        metadata["states"] = self.states is not None
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        with complete_file(path) as partial:
            save_file(arrays, partial, {"format": FORMAT, "about": json.dumps(metadata)})
            if self.states is None:
                states_path(path).unlink(missing_ok=True)
            elif not self._states_lie_in(states_path(path)):
                with complete_file(states_path(path)) as stored, stored.open("wb") as file:
                    np.save(file, self.states)
        return path

    def _states_lie_in(self, path: Path) -> bool:
        mapped = getattr(self.states, "filename", None)
        return mapped is not None and Path(mapped).resolve() == path.resolve()


_ARRAYS = [field.name for field in fields(Trace) if field.type == "np.ndarray"]
_METADATA = ("along", "model", "min_exit_layer", "source_ids", "fingerprint")


def states_path(path: Path) -> Path:
    """Where the states of a saved trace are; `Trace.save` keeps those that `trace` wrote there."""
    return path.with_suffix(".states.npy")


def load_trace(path: str | Path) -> Trace:
    """Reads what `Trace.save` wrote. Raises `MeeError` if a file is missing, damaged or no trace."""
    from safetensors import SafetensorError, safe_open

    path = _check_file("path", path, "trace.safetensors")
    if not path.exists():
        raise MeeError(f"{path} does not exist: write it with Trace.save first.")
    try:
        with safe_open(path, framework="np") as file:
            stored = file.metadata() or {}
            if stored.get("format") != FORMAT:
                raise MeeError(f'{path} is no trace of the format "{FORMAT}": trace again.')
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
    except (SafetensorError, OSError) as error:
        raise MeeError(f"{path} is no trace, or damaged: trace again, and Trace.save.") from error
    metadata = json.loads(stored["about"])
    metadata["sizes"] = DecoderSizes(**metadata["sizes"])
    with_states = metadata.pop("states")
    loaded = Trace(**arrays, **metadata)
    if with_states:
        loaded.states = _load_states(states_path(path), len(loaded))
    return loaded


def _load_states(path: Path, tokens: int) -> np.ndarray:
    """The states `[token, layer, d_model]` of a saved trace, as a memory map."""
    if not path.exists():
        raise MeeError(f"{path} is missing: copy it along with its trace.")
    try:
        states = np.load(path, mmap_mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise MeeError(f"{path} is cut short or damaged: copy it again, or trace again.") from error
    if len(states) != tokens:
        raise MeeError(f"{path} holds {len(states)} tokens, its trace {tokens}: copy both again.")
    return states


def _check_file(name: str, path: object, example: str) -> Path:
    """The path of a file that may be there or not; an error for a folder, or what is no path at all."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise MeeError(f"{name}={path!r:.60}: give the path of a file, such as {example}.")
    if Path(path).is_dir():
        raise MeeError(f"{path} is a folder: give a file in it, such as {example}.")
    return Path(path)


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
        top_k: how many vocabulary entries to keep for each token and layer (at least 2, for the margin).
        states: a file for the raw states `[token, layer, d_model]` (.npy); not kept by default.
        max_new_tokens: longest output, end token included; longer references are cut.
        batch_size: inputs at a time; changes numbers by rounding only.

    Raises:
        MeeError: no inputs, an empty one, a missing reference, ids that the model does not have, states that
            are not finite, no room on the disk.
    """
    passes = _passes_of(model)
    texts = check_inputs(inputs)
    check_whole("top_k", top_k)
    check_whole("max_new_tokens", max_new_tokens)
    check_whole("batch_size", batch_size)
    if not 2 <= top_k <= passes.sizes.vocabulary:
        raise MeeError(f"top_k={top_k}: keep at least 2 (for the margin) and at most the vocabulary.")
    if states is not None:
        states = _check_file("states", states, "states.npy")
    token_ids = _outputs_to_trace(passes, texts, references, outputs, max_new_tokens, batch_size)
    arrays = _trace_outputs(passes, texts, token_ids, top_k, states, batch_size)
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
        source_ids=input_ids(model.tokenizer, texts),
        states=None if states is None else np.load(states, mmap_mode="r"),
        **arrays,
    )


class T5Passes:
    """Passes of a model of the T5 family over inputs and outputs; `AnyPasses` is the same of other models."""

    def __init__(self, model: Model):
        self.model = model
        self.network = model.network
        self.norm = model.network.get_decoder().final_layer_norm
        self.sizes = DecoderSizes.of(model.network.config)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits `[..., vocabulary]` of normed states."""
        return readout(self.network, normed)

    def reference_ids(self, references: list[str], longest: int) -> list[list[int]]:
        """Ids of references, end token included."""
        return self.model.tokenizer(references, truncation=True, max_length=longest).input_ids

    def greedy(self, texts: list[str], longest: int, batch_size: int) -> list[list[int]]:
        """Ids of the model's own greedy output, `[output][token]`."""
        generation = generate(
            self.model, texts, batch_size=batch_size, max_new_tokens=longest, max_source_tokens=UNLIMITED
        )
        return generation.token_ids

    def batches(self, texts: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], dict]]:
        """Yields (indices, encoded inputs), long inputs first."""
        return batches_by_length(self.model, texts, batch_size)

    def states(self, batch: dict, outputs: list[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """One pass at full depth along outputs, as `AnyPasses.states`."""
        labels = _padded(self.model, outputs)
        real = labels != IGNORED
        fed = _fed_ids(self.network, labels)
        states, _ = teacher_forced(self.network, batch, fed)
        raw = torch.stack([state[real] for state in states], dim=1)  # [token, layer, d_model]
        embedding = self.network.get_decoder().embed_tokens(fed)[real]  # [token, d_model]
        return raw, embedding, labels[real]


def _passes_of(model: object) -> T5Passes | AnyPasses:
    if isinstance(model, AnyModel | Model):
        check_evaluation(model)
        return AnyPasses(model) if isinstance(model, AnyModel) else T5Passes(model)
    advice = "give what load_model returns, or an AnyModel(network, tokenizer, name)"
    raise MeeError(f"model={type(model).__name__}: {advice}.")


class Predictions(NamedTuple):
    """What full depth predicts along references, `[token]` each, as in a `Trace` along them."""

    sequence: np.ndarray  # the index of the input
    token_id: np.ndarray  # of the reference
    final_id: np.ndarray  # the prediction of the last layer


@torch.inference_mode()
def final_predictions(
    model: Model,
    inputs: Sequence[str],
    references: Sequence[str],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 32,
) -> Predictions:
    """What the last layer alone predicts along `references`: the same as a trace says, in half the time."""
    texts = check_inputs(inputs)
    outputs = _outputs_to_trace(T5Passes(model), texts, references, None, max_new_tokens, batch_size)
    final_ids: list[np.ndarray] = [np.empty(0)] * len(outputs)
    for indices, batch in batches_by_length(model, texts, batch_size):
        labels = _padded(model, [outputs[index] for index in indices])
        _, last = teacher_forced(model.network, batch, _fed_ids(model.network, labels))
        predicted = readout(model.network, last).argmax(dim=-1).cpu().numpy()  # [output, position]
        for index, ids in zip(indices, predicted, strict=True):
            final_ids[index] = ids[: len(outputs[index])]
    return Predictions(
        sequence=np.repeat(np.arange(len(texts)), [len(ids) for ids in outputs]),
        token_id=np.concatenate(outputs),
        final_id=np.concatenate(final_ids),
    )


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
    texts: list[str],
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
            passes.batches(texts, batch_size),
            desc="trace",
            total=-(-len(texts) // batch_size),
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
    """Runs a batch, fills the `rows` of its tokens; returns their raw states `[token, layer, d_model]`."""
    raw, embedding, token_ids = passes.states(batch, outputs)
    _check_finite(passes.model.name, raw)
    tokens = np.concatenate(rows)
    top_k = arrays["top_ids"].shape[-1]
    size = max(1, LOGITS_AT_ONCE // (passes.sizes.vocabulary * passes.sizes.layers))
    for start in range(0, len(tokens), size):
        part = slice(start, start + size)
        described = _describe(passes, raw[part], embedding[part], token_ids[part], top_k)
        for name, values in described.items():
            arrays[name][tokens[part]] = values.cpu().numpy()
    return raw


def _padded(model: Model, outputs: list[np.ndarray]) -> Tensor:
    """Ids of some outputs, `[output, position]`, with `IGNORED` behind the shorter ones."""
    ids = [torch.as_tensor(output, dtype=torch.long) for output in outputs]
    return pad_sequence(ids, batch_first=True, padding_value=IGNORED).to(model.device)


def _fed_ids(network, labels: Tensor) -> Tensor:
    """What the decoder is fed along outputs, `[output, position]` both: the start id, then the ids before."""
    start, _ = start_and_end_ids(network)
    return functional.pad(labels, (1, -1), value=start).masked_fill(labels == IGNORED, start)


def _check_finite(name: str, raw: Tensor) -> None:
    """Raises `MeeError` naming the first layer after which a state is not finite."""
    broken_layers = (~torch.isfinite(raw)).any(-1).any(0).nonzero()
    if len(broken_layers):
        states = f"The states of {name} are not finite from layer {int(broken_layers[0]) + 1} on"
        raise MeeError(f"{states}: use dtype float32 or bfloat16, or look for damaged weights.")


def _describe(passes, raw: Tensor, embedding: Tensor, token_ids: Tensor, top_k: int) -> dict[str, Tensor]:
    """What is kept of some tokens at every layer, `[token, layer]` or `[token, layer, k]`.

    Args:
        raw: states after each layer, `[token, layer, d_model]`.
        embedding: states before the first, `[token, d_model]`.
        token_ids: of the tokens, `[token]`.
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
