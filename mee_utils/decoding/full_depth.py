"""A few inputs at full depth, and exit policies replayed on the states of their tokens.

A policy that is replayed sees every token at every decision, as decoding shows it if no token exits. Drafts
are planned in this way (`planning`); `mee_utils.traces` does the same from files, for many inputs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..exits.measures import Measure
from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.loading import Model
from .cache import on_host, source_ids_of
from .inputs import EncoderCache, batches_by_length, decode_batch
from .layerwise import LayerwiseDecoder, decoder_of
from .token import ExitState, Step, confidence_of, states_by_layer

LOGITS_AT_ONCE = 16_000_000  # elements of `[layer, token, vocabulary]` that a replay holds at a time


class Batch(NamedTuple):
    """Some inputs that are decoded together, with the encoder's states."""

    indices: np.ndarray  # of the inputs among all
    tokens: dict[str, Tensor]
    encoded: Tensor  # [row, source, d_model]


class _Keep(Measure):
    """A measure that never exits and keeps the states that it is shown."""

    name = "keep"

    def __init__(self):
        self.states: list[ExitState] = []

    def confidence(self, state: ExitState) -> np.ndarray:
        self.states.append(state)
        return np.zeros(len(state.step_rows))


class FullDepthStates(NamedTuple):
    """Full-depth outputs of some inputs with the states of every token; tokens in the order of outputs."""

    sequence: np.ndarray  # [token], the index of its input
    position: np.ndarray  # [token], from 0
    fed: Tensor  # [token], the id before, at the start the decoder's start id
    final_id: np.ndarray  # [token]
    source_ids: Tensor  # [input, source], -1 at padding
    source_rows: np.ndarray  # [token], which of these inputs is its own
    states: list[Tensor]  # the embedding, then those after layers 1 to L - 1: [token, d_model] each


@torch.inference_mode()
def encode_batches(
    model: Model,
    ids: list[list[int]],
    indices: np.ndarray | None = None,
    batch_size: int = 8,
    encodings: EncoderCache | None = None,
) -> list[Batch]:
    """The tokenized inputs with these indices (by default all) in batches, encoded."""
    decoder = decoder_of(model.network)
    indices = np.arange(len(ids)) if indices is None else indices
    batches = []
    for rows, tokens in batches_by_length(model, [ids[index] for index in indices], batch_size):
        encoded = encodings.states(decoder, tokens) if encodings else decoder.encode(tokens)
        batches.append(Batch(indices[rows], tokens, encoded))
    return batches


def bind_to_model(model: Model, policy: ExitPolicy) -> BoundPolicy:
    """The policy bound to the model's decoder."""
    return policy.bind(model.layers, model.network.config.vocab_size, model.min_exit_layer)


def full_depth_states(model: Model, batches: Sequence[Batch], max_new_tokens: int) -> FullDepthStates:
    """Decodes some batches at full depth and keeps the states of all tokens."""
    decoder = decoder_of(model.network)
    keep = _Keep()
    bound = bind_to_model(model, ExitPolicy(keep, min_layer=1))
    ids: dict[int, list[int]] = {}  # index of an input -> its output
    source: dict[int, Tensor] = {}  # index of an input -> its ids, [source], -1 at padding
    starts: dict[int, int] = {}  # index of an input -> the id that its output begins after
    for batch in batches:
        outputs = decode_batch(decoder, batch.tokens, bound, max_new_tokens, batch.indices, batch.encoded)
        source_ids = source_ids_of(batch.tokens)
        starts |= zip(batch.indices.tolist(), decoder.starts(source_ids).tolist(), strict=True)
        for row, index in enumerate(batch.indices.tolist()):
            ids[index] = outputs[row].token_ids
            source[index] = source_ids[row]
    indices = sorted(ids)
    lengths = [len(ids[index]) for index in indices]
    fed = [before for index in indices for before in (starts[index], *ids[index][:-1])]
    return FullDepthStates(
        sequence=np.repeat(indices, lengths),
        position=np.concatenate([np.arange(length) for length in lengths]),
        fed=torch.tensor(fed, device=decoder.embedding.device),
        final_id=np.concatenate([ids[index] for index in indices]),
        source_ids=pad_sequence([source[index] for index in indices], batch_first=True, padding_value=-1),
        source_rows=np.repeat(np.arange(len(indices)), lengths),
        states=_in_order(keep.states, decoder.layers),
    )


def _in_order(kept: list[ExitState], layers: int) -> list[Tensor]:
    """The embedding and the states after layers 1 to L - 1, `[token, d_model]`, in the order of outputs."""
    first_layer = [state for state in kept if state.layer == 1]
    if not first_layer:
        return []
    sequence = np.concatenate([state.sequence for state in first_layer])
    positions = [np.broadcast_to(state.position, len(state.step_rows)) for state in first_layer]
    position = np.concatenate(positions)
    order = torch.from_numpy(np.lexsort((position, sequence))).to(first_layer[0].after.device)
    states = [torch.cat([state.before for state in first_layer])[order]]
    for layer in range(1, layers):
        states.append(torch.cat([state.after for state in kept if state.layer == layer])[order])
    return states


class Replay(NamedTuple):
    """What a policy sees at each of its decisions if no token exits, `[token, decision]`.

    `mee_utils.traces.replay.PolicyReplay` says the same of a trace, and of the last layer too; its readout
    rows are those of all decisions so far.
    """

    bound: BoundPolicy
    confidences: np.ndarray
    token_ids: np.ndarray  # predicted there
    readout_rows: np.ndarray  # rows of the LM head multiplied for this decision


@torch.inference_mode()
def replay_states(model: Model, states: FullDepthStates, policy: ExitPolicy) -> Replay:
    """Replays a policy, with at least one decision, on the states of all tokens."""
    decoder = decoder_of(model.network)
    bound = bind_to_model(model, policy)
    size = max(1, LOGITS_AT_ONCE // (decoder.config.vocab_size * decoder.layers))
    parts = []
    for start in range(0, len(states.sequence), size):
        parts.append(replay_tokens(decoder, states, bound, slice(start, start + size)))
    return Replay(
        bound,
        confidences=np.concatenate([part.confidences for part in parts]),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        readout_rows=np.concatenate([part.readout_rows for part in parts]),
    )


def replay_tokens(
    decoder: LayerwiseDecoder, states: FullDepthStates, bound: BoundPolicy, tokens: slice
) -> Replay:
    """The replay of some tokens."""
    step = Step(
        decoder,
        bound,
        states.sequence[tokens],
        states.position[tokens],
        states.fed[tokens],
        states.source_ids,
        states.source_rows[tokens],
    )
    rows = np.arange(len(step.sequence))
    confidences = []
    token_ids = []
    readout_rows = []  # of this decision and those before

    def state_after(layer: int, previous: ExitState | None) -> ExitState:
        after = states.states[layer][tokens]  # [token, d_model]
        before = states.states[layer - 1][tokens]
        return ExitState(step, layer, after, before, rows, previous)

    for state in states_by_layer(state_after, bound.decision_layers[-1]):
        if state.layer not in bound.decision_layers:
            continue
        state.confidence = confidence_of(bound.measure, state)
        confidences.append(state.confidence)
        if bound.measure.readout:
            token_ids.append(on_host(state.top1_id))
        else:
            token_ids.append(on_host(decoder.logits(state.state).argmax(dim=-1)))
        readout_rows.append(step.readout_rows.copy())
    return Replay(
        bound,
        confidences=np.stack(confidences, axis=1),
        token_ids=np.stack(token_ids, axis=1),
        readout_rows=np.diff(np.stack(readout_rows, axis=1), axis=1, prepend=0),
    )
