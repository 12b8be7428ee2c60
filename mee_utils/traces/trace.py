"""`trace`: one full-depth pass that keeps what measures and figures need of every token and layer.

The output (the model's own greedy one, or a reference) is fed to the decoder at once, and the shared LM head
reads out every layer. What is kept does not grow with the vocabulary, logits exist for a few hundred tokens
at a time, and states go to a file as they come: memory stays bounded however long the trace is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO

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
from ..decoding.inputs import UNLIMITED, batches_by_length, check_inputs
from ..models.costs import DecoderSizes
from ..models.loading import Model
from ..models.states import layer_states, output_scale

READ_OUT_ELEMENTS = 8_000_000
FORMAT = "mee_utils.trace.2"


@dataclass(repr=False)
class Trace:
    """What is kept of a full-depth pass; `token` counts the tokens of all outputs, in the order of inputs."""

    sequence: np.ndarray  # `[token]`, the index of its input
    position: np.ndarray  # `[token]`, its place in the output, from 0
    token_id: np.ndarray  # `[token]`, what was emitted (along "greedy") or stands in the reference
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
    source_tokens: list[int]  # length of each input, in tokens
    states: np.ndarray | None = None  # `[token, layer, d_model]`, raw, if asked for; a memory map

    def __len__(self) -> int:
        return len(self.sequence)

    def __repr__(self) -> str:
        states = "no states" if self.states is None else "with states"
        inputs = f"{len(self)} tokens of {len(self.source_tokens)} inputs"
        return f'Trace("{self.model}", along="{self.along}": {inputs}, {self.layers} layers, {states})'

    def _repr_html_(self) -> str:
        """What each layer predicts and how surely, means over tokens."""
        means = {"says what the last layer says": self.top1_id == self.final_id[:, None]}
        means |= {"probability of the final prediction": self.final_probability, "margin": self.margin}
        means |= {"similarity to the layer before": self.similarity}
        shown = lambda means: [shaded(f"{mean:.2f}", max(0.0, mean)) for mean in means.tolist()]
        rows = [(name, *shown(values.mean(axis=0))) for name, values in means.items()]
        return table(rows, ("layer", *range(1, self.layers + 1)), repr(self))

    @property
    def layers(self) -> int:
        """Number L of layers; array index `l - 1` holds layer `l`."""
        return self.top_ids.shape[1]

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
        """`[token]` as one array an output."""
        return np.split(values, np.flatnonzero(np.diff(self.sequence)) + 1)

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
        return replace(self, **arrays, source_tokens=self.source_tokens[first:last])

    def save(self, path: str | Path) -> Path:
        """Writes the trace as safetensors, its states beside it (.npy). Files appear only when complete."""
        from safetensors.numpy import save_file

        path = Path(path)
        if path.is_dir():
            raise MeeError(f"{path} is a folder: give a file in it, such as trace.safetensors.")
        about = {name: getattr(self, name) for name in ("along", "model", "min_exit_layer", "source_tokens")}
        about |= {"sizes": asdict(self.sizes), "states": self.states is not None}
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        with complete_file(path) as partial:
            save_file(arrays, partial, {"format": FORMAT, "about": json.dumps(about)})
            if self.states is None:
                states_path(path).unlink(missing_ok=True)
            elif Path(getattr(self.states, "filename", None) or "").resolve() != states_path(path).resolve():
                with complete_file(states_path(path)) as stored, stored.open("wb") as file:
                    np.save(file, self.states)
        return path


_ARRAYS = [field.name for field in fields(Trace) if field.type == "np.ndarray"]


def states_path(path: Path) -> Path:
    """Where the states of a saved trace are; `Trace.save` leaves those that `trace` wrote there."""
    return path.with_suffix(".states.npy")


def load_trace(path: str | Path) -> Trace:
    """Reads what `Trace.save` wrote. Raises `MeeError` if a file is missing, damaged or no trace."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise MeeError(f"{path} does not exist: write it with Trace.save first.")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise MeeError(f'{path} is no trace of the format "{FORMAT}": trace again.')
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
    except (SafetensorError, OSError) as error:
        raise MeeError(f"{path} is no trace, or damaged: trace again, and Trace.save.") from error
    about = json.loads(metadata["about"])
    found = Trace(**arrays, **about | {"sizes": DecoderSizes(**about["sizes"]), "states": None})
    if about["states"]:
        path = states_path(path)
        if not path.exists():
            raise MeeError(f"{path} is missing: copy it along with its trace.")
        try:
            found.states = np.load(path, mmap_mode="r")
        except (ValueError, EOFError, OSError) as error:
            raise MeeError(f"{path} is cut short or damaged: copy it again, or trace again.") from error
        if (many := len(found.states)) != len(found):
            raise MeeError(f"{path} holds {many} tokens, its trace {len(found)}: copy both again.")
    return found


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
) -> Trace:
    """Traces a model at full depth, along `references` or, without them, its own greedy output.

    Args:
        outputs: ids of the greedy output, if they are known already.
        top_k: how many ids to keep for each token and layer (at least 2, for the margin).
        states: a file for the raw states `[token, layer, d_model]` (.npy); not kept by default.
        max_new_tokens: longest output, end token included; longer references are cut.

    Raises `MeeError` for no inputs, an empty one, a missing reference, ids that the model does not
    have, states that are not finite, no room on the disk.
    """
    texts = check_inputs(inputs)
    for name, value in (("top_k", top_k), ("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
        check_whole(name, value)
    vocabulary = model.network.config.vocab_size
    if not 2 <= top_k <= vocabulary:
        raise MeeError(f"top_k={top_k}: keep at least 2 (for the margin) and at most the vocabulary.")
    if references is not None:
        if len(references) != len(texts):
            raise MeeError(f"{len(references)} references for {len(texts)} inputs: give one for each.")
        checked = check_inputs(references, "Reference")
        outputs = model.tokenizer(checked, truncation=True, max_length=max_new_tokens).input_ids
    elif outputs is None:
        longest = dict(max_new_tokens=max_new_tokens, max_source_tokens=UNLIMITED)
        outputs = generate(model, texts, batch_size=batch_size, **longest).token_ids
    outputs = _check_outputs(outputs, len(texts), vocabulary)
    lengths = [len(ids) for ids in outputs]
    places = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    shape = (sum(lengths), model.layers)
    arrays = {name: np.empty(shape, np.float32) for name in _ARRAYS[3:]}
    arrays |= {"final_rank": np.empty(shape, np.int32), "top_ids": np.empty((*shape, top_k), np.int32)}
    arrays["top_probabilities"] = np.empty((*shape, top_k), np.float32)
    with ExitStack() as stack:
        store = None
        if states is not None:
            file = stack.enter_context(stack.enter_context(complete_file(states)).open("wb"))
            store = _StatesFile(file, (*shape, model.network.config.d_model))
        batches = -(-len(texts) // batch_size)
        bar = tqdm(batches_by_length(model, texts, batch_size), "trace", batches, delay=5, disable=None)
        for chosen, batch in bar:
            rows = [places[i] for i in chosen]
            raw = _trace_batch(model, batch, [outputs[i] for i in chosen], np.concatenate(rows), arrays)
            if store:
                store.write(rows, raw)
    return Trace(
        sequence=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        token_id=np.concatenate(outputs),
        along="greedy" if references is None else "reference",
        model=model.name,
        min_exit_layer=model.min_exit_layer,
        sizes=DecoderSizes.of(model.network.config),
        source_tokens=[len(ids) for ids in model.tokenizer(texts).input_ids],
        states=None if states is None else np.load(states, mmap_mode="r"),
        **arrays,
    )


def _check_outputs(outputs: Sequence[Sequence[int]], inputs: int, vocabulary: int) -> list[np.ndarray]:
    """Ids of every output as an array, or an error that says which one is none."""
    if len(outputs) != inputs or not all(map(len, outputs)):
        raise MeeError(f"{len(outputs)} outputs for {inputs} inputs, or one of no tokens: give ids.")
    arrays = [np.asarray(ids) for ids in outputs]
    for number, ids in enumerate(arrays):
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= vocabulary:
            raise MeeError(f"Output {number} must be a list of token ids from 0 to {vocabulary - 1}.")
    return [ids.astype(np.int32) for ids in arrays]


class _StatesFile:
    """A .npy file of states, written without a memory map: a full disk is an error, not a bus error."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...]):
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        self.file, self.start = file, file.tell()

    def write(self, rows: list[np.ndarray], raw: Tensor) -> None:
        """Writes states `[token, layer, d_model]` of some outputs; `rows` says where each of them goes."""
        states, done = raw.float().cpu().numpy(), 0
        for tokens in rows:
            self.file.seek(self.start + int(tokens[0]) * states[0].nbytes)
            self.file.write(states[done : done + len(tokens)].tobytes())
            done += len(tokens)


@torch.inference_mode()
def _trace_batch(model: Model, batch: dict, outputs: list, rows: np.ndarray, arrays: dict) -> Tensor:
    """Runs a batch, fills the rows of its tokens, and returns their raw states `[token, layer, d_model]`."""
    network, outputs = model.network, [torch.as_tensor(ids, dtype=torch.long) for ids in outputs]
    labels = pad_sequence(outputs, batch_first=True, padding_value=-100).to(model.device)
    fed, real = network.prepare_decoder_input_ids_from_labels(labels), labels != -100
    decoder, source = network.get_decoder(), dict(encoder_attention_mask=batch["attention_mask"])
    source |= dict(encoder_hidden_states=network.get_encoder()(**batch)[0])
    with layer_states(network) as states:
        decoder(input_ids=fed, **source, use_cache=False)
    embedding, token_ids = decoder.embed_tokens(fed)[real], labels[real]
    raw = torch.stack([state[real] for state in states], dim=1)
    wrong = (~torch.isfinite(raw)).any(-1).any(0).nonzero()
    if len(wrong):
        found = f"The states of {model.name} are not finite from layer {int(wrong[0]) + 1} on"
        raise MeeError(f"{found}: use dtype float32 or bfloat16, or look for damaged weights.")
    size = max(1, READ_OUT_ELEMENTS // (network.config.vocab_size * model.layers))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        seen = raw[part], embedding[part], token_ids[part]
        for name, values in _describe(network, *seen, arrays["top_ids"].shape[-1]).items():
            arrays[name][rows[part]] = values.cpu().numpy()
    return raw


def _describe(network, raw: Tensor, embedding: Tensor, token_ids: Tensor, top_k: int) -> dict[str, Tensor]:
    """What is kept of some tokens: `raw` is `[token, layer, d_model]`, `embedding` `[token, d_model]`."""
    norm = network.get_decoder().final_layer_norm
    states, wide = norm(raw), torch.promote_types(raw.dtype, torch.float32)
    before = torch.cat([norm(embedding)[:, None], states[:, :-1]], dim=1)
    probabilities = torch.softmax(network.lm_head(states * output_scale(network)).to(wide), dim=-1)
    top = probabilities.topk(top_k, dim=-1)
    top_ids = first_of_equals(probabilities, top.indices)
    # probabilities of one id a token, at every layer
    at = lambda ids: probabilities.gather(-1, ids[:, None, None].expand(-1, raw.shape[1], 1))[..., 0]
    cosine = lambda a, b: functional.cosine_similarity(a.to(wide), b.to(wide), dim=-1).clamp(max=1.0)
    final = at(top_ids[:, -1, 0])
    return {
        "top_ids": top_ids,
        "top_probabilities": top.values,
        "entropy": torch.special.entr(probabilities).sum(-1),
        "final_probability": final,
        "final_rank": (probabilities > final[..., None]).sum(-1) + 1,
        "token_probability": at(token_ids),
        "similarity": cosine(states, before),
        "final_similarity": cosine(states, states[:, -1:]),
    }


def first_of_equals(probabilities: Tensor, ids: Tensor) -> Tensor:
    """Ids `[..., k]` from `topk`, the first of equally probable ones in front, as greedy decoding picks."""
    first = probabilities.argmax(dim=-1, keepdim=True)
    ids = torch.where(ids == first, ids[..., :1], ids)
    return torch.cat([first, ids[..., 1:]], dim=-1)
