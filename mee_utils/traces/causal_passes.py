"""What `trace` needs of a causal model that is decoded here: its greedy output, states along outputs."""

from __future__ import annotations

from ..decoding.generation import generate
from ..decoding.inputs import UNLIMITED
from ..models.any_model import AnyModel
from ..models.costs import DecoderSizes
from ..models.loading import Model
from .any_passes import AnyPasses


class CausalPasses(AnyPasses):
    """Passes as of any model of `transformers`, along outputs that are decoded here."""

    def __init__(self, model: Model):
        super().__init__(AnyModel(model.network, model.tokenizer, model.name))
        self.decoded = model
        self.sizes = DecoderSizes.of(model.network.config)

    def greedy(self, texts: list[str], longest: int, batch_size: int) -> list[list[int]]:
        """Ids of the model's own greedy output, `[output][token]`."""
        generation = generate(
            self.decoded, texts, batch_size=batch_size, max_new_tokens=longest, max_source_tokens=UNLIMITED
        )
        return generation.token_ids
