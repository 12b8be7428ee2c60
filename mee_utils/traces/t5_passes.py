"""What `trace` needs of a model of the T5 family: its greedy output, states along outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ..decoding.generation import generate
from ..decoding.inputs import UNLIMITED, EncoderCache, batches_by_length, input_ids
from ..decoding.layerwise import start_and_end_ids
from ..models.costs import DecoderSizes
from ..models.loading import Model
from ..models.states import IGNORED, readout, teacher_forced
from .any_passes import TokenStates


class T5Passes:
    """Passes of a model of the T5 family over inputs and outputs; `AnyPasses` is the same of other models."""

    def __init__(self, model: Model):
        self.model = model
        self.network = model.network
        self.norm = model.network.get_decoder().final_layer_norm
        self.sizes = DecoderSizes.of(model.network.config)
        self.encodings = EncoderCache()  # an input is encoded once: for its output, and the pass along that

    def logits(self, normed: Tensor) -> Tensor:
        """Logits `[..., vocabulary]` of normed states."""
        return readout(self.network, normed)

    def reference_ids(self, references: list[str], longest: int) -> list[list[int]]:
        """Ids of references, end token included."""
        return self.model.tokenizer(references, truncation=True, max_length=longest).input_ids

    def greedy(self, texts: list[str], longest: int, batch_size: int) -> list[list[int]]:
        """Ids of the model's own greedy output, `[output][token]`."""
        generation = generate(
            self.model,
            texts,
            batch_size=batch_size,
            max_new_tokens=longest,
            max_source_tokens=UNLIMITED,
            encodings=self.encodings,
        )
        return generation.token_ids

    def input_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, `[text][token]`."""
        return input_ids(self.model.tokenizer, texts)

    def batches(self, ids: list[list[int]], batch_size: int) -> Iterator[tuple[list[int], dict]]:
        """Yields (indices, padded inputs), long inputs first."""
        return batches_by_length(self.model, ids, batch_size)

    def states(self, batch: dict, outputs: list[np.ndarray]) -> TokenStates:
        """One pass at full depth along outputs, as `AnyPasses.states`."""
        ids = [torch.as_tensor(output, dtype=torch.long) for output in outputs]
        labels = pad_sequence(ids, batch_first=True, padding_value=IGNORED).to(self.model.device)
        real = labels != IGNORED  # [output, position]
        start, _ = start_and_end_ids(self.network)
        fed = functional.pad(labels, (1, -1), value=start).masked_fill(~real, start)  # the ids before
        states, _ = teacher_forced(self.network, batch, fed, self.encodings.pop(batch))
        raw = torch.stack([state[real] for state in states], dim=1)  # [token, layer, d_model]
        embedding = self.network.get_decoder().embed_tokens(fed)[real]  # [token, d_model]
        return TokenStates(raw, embedding, labels[real])
