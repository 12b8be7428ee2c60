"""What a threshold that learns is taught while decoding (FREE): were the shallow predictions the deep ones?

Such a policy decides at one layer, the shallow one. A token that runs all layers shows what the last layer
says of it, and of the tokens before it that exited: they have waited in the cache, and run through the other
layers together with it. It is charged for their logits.

One row whose tokens 0 and 1 exited with the ids 7 and 3; token 2, for which the shallow layer says 5, runs
all layers and takes them along. If the last layer then says 7, 8 and 5, the threshold learns that the shallow
predictions of tokens 0 and 2 were right, and that of token 1 wrong.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ..exits.thresholds import Threshold
from .cache import Cache, on_device, on_host, waiting_positions
from .layerwise import LayerwiseDecoder


class Shallow(NamedTuple):
    """What the shallow layer said of a token."""

    confidence: float
    token_id: int


class Lessons:
    """Keeps shallow predictions of one batch until they can be judged, and teaches them to a threshold."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, schedule: Threshold):
        self.decoder = decoder
        self.cache = cache
        self.schedule = schedule
        # index of an input -> its tokens since it last ran all layers
        self.unjudged: dict[int, list[Shallow]] = defaultdict(list)

    def note(self, state) -> None:
        """Keeps the predictions of some rows at the shallow layer, an `ExitState`."""
        sequences = state.sequence.tolist()
        confidences = state.confidence.tolist()
        ids = on_host(state.top1_id).tolist()
        for sequence, confidence, token_id in zip(sequences, confidences, ids, strict=True):
            self.unjudged[sequence].append(Shallow(confidence, token_id))

    def teach(self, sequence: np.ndarray, slots: np.ndarray, deep_ids: np.ndarray) -> np.ndarray:
        """Teaches the threshold from rows whose present token has run all layers.

        The logits of the tokens that waited are computed again.

        Args:
            sequence: `[row]`, indices of the rows' inputs.
            slots: `[row]`, where they are in the cache.
            deep_ids: `[row]`, what the last layer predicts of the present tokens.

        Returns:
            `[row]`, how many tokens had waited.
        """
        unjudged = [self.unjudged.pop(row) for row in sequence.tolist()]  # [row][token], the present one last
        waited = np.array([len(of_row) - 1 for of_row in unjudged])
        position = self.cache.position
        waited_slots, positions = waiting_positions(position - waited, position, slots)
        if len(waited_slots):
            places = on_device([waited_slots, positions], self.cache.states)  # [2, waited token]
            logits = self.decoder.logits(self.decoder.norm(self.cache.states[tuple(places)]))
            deep_ids = np.concatenate([on_host(logits.argmax(-1)), deep_ids])
        # in the same order: those that waited row by row, then the present ones
        judged = [shallow for of_row in unjudged for shallow in of_row[:-1]]
        judged += [of_row[-1] for of_row in unjudged]
        confidences = np.array([shallow.confidence for shallow in judged])
        ids = np.array([shallow.token_id for shallow in judged])
        self.schedule.learn(confidences, ids == deep_ids)
        return waited
