"""A `Trace`: what measures and figures need of every token and layer of a full-depth pass, and its files.

`tracing` makes one. What is kept does not grow with the vocabulary. The states, which are large, lie in a
file beside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from ..common.errors import MeeError, check_whole
from ..common.files import check_file, complete_file
from ..common.html import shaded, table
from ..models.costs import DecoderSizes
from ..models.loading import Model

FORMAT = "mee_utils.trace.4"
STATES_AT_ONCE = 1024  # tokens whose states are compared at a time


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
        """`[token]` as one array per output. Raises `MeeError` unless there is one value for each token."""
        if len(values) != len(self):
            raise MeeError(f"{len(values)} values for {len(self)} tokens: give one for each.")
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
        """The trace of the inputs `first` to `last - 1`, of which there is at least one; states stay on disk.

        As in a slice, `last` may lie beyond the end. Raises `MeeError` for a part without inputs.
        """
        first = check_whole("first", first, 0)
        last = check_whole("last", last, first + 1)
        inputs = len(self.source_ids)
        if first >= inputs:
            raise MeeError(f"first={first} of {inputs} inputs: give a number from 0 to {inputs - 1}.")
        last = min(last, inputs)
        tokens = slice(*np.searchsorted(self.sequence, [first, last]))
        arrays = {name: each[tokens] for name, each in vars(self).items() if isinstance(each, np.ndarray)}
        arrays["sequence"] = arrays["sequence"] - first
        return replace(self, **arrays, source_ids=self.source_ids[first:last])

    def save(self, path: str | Path) -> Path:
        """Writes the trace as safetensors, its states beside it (.npy). Files appear only when complete.

        Raises `MeeError` for a path that cannot be written to, or that holds the states of this trace.
        """
        from safetensors.numpy import save_file

        path = check_file("path", path, "trace.safetensors")
        if self._states_are_mapped_from(path):
            advice = "give another file, such as trace.safetensors"
            raise MeeError(f"{path} holds the states of this trace: {advice}.")
        metadata = {name: getattr(self, name) for name in _METADATA}
        metadata["sizes"] = asdict(self.sizes)
        metadata["states"] = self.states is not None
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        with complete_file(path) as partial:
            save_file(arrays, partial, {"format": FORMAT, "about": json.dumps(metadata)})
            if self.states is None:
                states_path(path).unlink(missing_ok=True)
            elif not self._states_are_stored_in(states_path(path)):
                with complete_file(states_path(path)) as stored, stored.open("wb") as file:
                    np.save(file, self.states)
        return path

    def _states_are_mapped_from(self, path: Path) -> bool:
        mapped = getattr(self.states, "filename", None)
        return mapped is not None and Path(mapped).resolve() == path.resolve()

    def _states_are_stored_in(self, path: Path) -> bool:
        """Whether a file holds these very states, and no others.

        A part of a trace maps the file of the whole trace; and a file may have been replaced since it was
        mapped.
        """
        if not self._states_are_mapped_from(path) or not path.exists():
            return False
        try:
            stored = np.load(path, mmap_mode="r")
        except (ValueError, EOFError, OSError):
            return False
        if stored.shape != self.states.shape or stored.dtype != self.states.dtype:
            return False
        starts = range(0, len(stored), STATES_AT_ONCE)
        parts = [slice(start, start + STATES_AT_ONCE) for start in starts]
        return all(np.array_equal(stored[part], self.states[part]) for part in parts)


_ARRAYS = [field.name for field in fields(Trace) if field.type == "np.ndarray"]
_METADATA = ("along", "model", "min_exit_layer", "source_ids", "fingerprint")


def states_path(path: Path) -> Path:
    """Where the states of a saved trace are; `Trace.save` keeps those that `trace` wrote there."""
    return path.with_suffix(".states.npy")


def load_trace(path: str | Path) -> Trace:
    """Reads what `Trace.save` wrote. Raises `MeeError` if a file is missing, damaged or no trace."""
    from safetensors import SafetensorError, safe_open

    path = check_file("path", path, "trace.safetensors")
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
