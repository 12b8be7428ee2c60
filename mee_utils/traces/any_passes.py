"""What `trace` needs of any model of `transformers` (`AnyModel`): its greedy output, states along outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from ..common.errors import MeeError
from ..decoding.inputs import (
    changed_search_settings,
    cut_at_end,
    indices_by_length,
    input_ids,
    plain_greedy_search,
)
from ..models.any_model import AnyModel


class TokenStates(NamedTuple):
    """One pass at full depth along outputs: all their tokens, output by output."""

    after: Tensor  # [token, layer, d_model], the states after each layer, none of them normed
    embedding: Tensor  # [token, d_model], those before the first layer
    token_ids: Tensor  # [token]


class AnyPasses:
    """Passes of a model over inputs and outputs; ids are lists, padded here and not by the tokenizer."""

    def __init__(self, model: AnyModel):
        self.model = model
        self.network = model.network
        self.norm = model.norm
        self.logits = model.logits
        self.sizes = model.sizes
        padding = model.tokenizer.pad_token_id
        self.ids = model.network.get_input_embeddings().weight.shape[0]  # how many there are
        # is never attended to; one that was added to the tokenizer alone is no id of the model
        self.padding = padding if padding is not None and padding < self.ids else 0

    def reference_ids(self, references: list[str], longest: int) -> list[list[int]]:
        """Ids of references: of a causal model those of a continuation, without special tokens."""
        special = not self.model.causal
        encoded = self.model.tokenizer(
            text_target=references, add_special_tokens=special, truncation=True, max_length=longest
        )
        return encoded.input_ids

    @torch.inference_mode()
    def greedy(self, texts: list[str], longest: int, batch_size: int) -> list[list[int]]:
        """Ids of the model's own greedy output, `[output][token]`, end token included.

        It is plain greedy search: a repetition penalty or forced ids, as are stored with most BARTs, would
        write tokens that the last layer does not predict. A warning names such settings.
        """
        if changed := changed_search_settings(self.network):
            plain = f"{self.model.name} is traced along plain greedy search, without what is stored with it"
            warnings.warn(f"{plain}: {', '.join(changed)}.", stacklevel=5)
        outputs: list[list[int]] = [[]] * len(texts)
        batches = self.batches(self.input_ids(texts), batch_size)
        steps = -(-len(texts) // batch_size)
        for indices, inputs in tqdm(batches, desc="generate", total=steps, delay=5, disable=None):
            padded = self._padded(inputs, self.model.source_positions, left=self.model.causal)
            given = padded["input_ids"].shape[1]
            self._check_positions(given + longest - 1 if self.model.causal else longest, self.model.positions)
            if not self.model.causal:
                padded["decoder_start_token_id"] = self._start()
            with plain_greedy_search(self.network):
                generated = self.network.generate(
                    **padded, max_new_tokens=longest, do_sample=False, num_beams=1, pad_token_id=self.padding
                )
            # the prompt of a causal model, or the start token, comes first
            new = generated[:, given if self.model.causal else 1 :].tolist()
            for index, ids in zip(indices, new, strict=True):
                outputs[index] = cut_at_end(ids, self.model.end_ids)
        return outputs

    def batches(self, ids: list[list[int]], batch_size: int) -> Iterator[tuple[list[int], list[list[int]]]]:
        """Yields (indices, ids of inputs), long inputs first."""
        for chosen in indices_by_length(ids, batch_size):
            yield chosen, [ids[index] for index in chosen]

    def states(self, inputs: list[list[int]], outputs: list[np.ndarray]) -> TokenStates:
        """One pass at full depth along outputs, given as the ids of each, `[token]`."""
        if self.model.causal:
            # what predicts an output's first token is the prompt's last one
            fed = [[*prompt, *ids[:-1].tolist()] for prompt, ids in zip(inputs, outputs, strict=True)]
            first = [len(prompt) - 1 for prompt in inputs]  # [output], where its first token is predicted
            states = self.model.run(**self._padded(fed, self.model.positions))
        else:
            start = self._start()
            fed = [[start, *ids[:-1].tolist()] for ids in outputs]
            first = [0] * len(fed)
            decoder = self._padded(fed, self.model.positions)
            states = self.model.run(
                **self._padded(inputs, self.model.source_positions),
                decoder_input_ids=decoder["input_ids"],
                decoder_attention_mask=decoder["attention_mask"],
            )
        row = np.repeat(np.arange(len(outputs)), [len(ids) for ids in outputs])
        position = np.concatenate(
            [begin + np.arange(len(ids)) for begin, ids in zip(first, outputs, strict=True)]
        )
        token_ids = torch.as_tensor(np.concatenate(outputs), dtype=torch.long, device=self.model.device)
        raw = torch.stack([after[row, position] for after in states.after], dim=1)
        return TokenStates(raw, states.embedding[row, position], token_ids)

    def input_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, `[text][token]`, none of them beyond those that the model has."""
        ids = input_ids(self.model.tokenizer, texts)
        largest = max(max(row, default=0) for row in ids)
        if largest >= self.ids:
            sizes = f"The tokenizer gives an id of {largest}, and {self.model.name} has {self.ids}"
            added = "tokens were added to it without network.resize_token_embeddings(len(tokenizer))"
            raise MeeError(f"{sizes}: it belongs to another model, or {added}.")
        return ids

    def _start(self) -> int:
        """The id that outputs of an encoder-decoder begin after, as `start_and_end_ids` has it for a T5."""
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            for settings in (self.network.generation_config, self.network.config):
                start = getattr(settings, name, None)
                if start is not None:
                    return start
        return self.padding

    def _check_positions(self, tokens: int, most: int | None) -> None:
        """Refuses more tokens than there are positions: beyond them a model fails, or writes nonsense."""
        if most is not None and tokens > most:
            limit = (
                f"{self.model.name} takes {most} tokens, and an input (with its output) has up to {tokens}"
            )
            raise MeeError(f"{limit}: shorten the inputs, or lower max_new_tokens.")

    def _padded(self, ids: list[list[int]], most: int | None, left: bool = False) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask`, `[row, position]`, padded on the right or left.

        `most` is the number of positions that there are; None: any number.
        """
        side = "left" if left else "right"
        self._check_positions(max(map(len, ids)), most)
        rows = [torch.tensor(row) for row in ids]
        tokens = pad_sequence(rows, batch_first=True, padding_value=self.padding, padding_side=side)
        real = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
        device = self.model.device
        return {"input_ids": tokens.to(device), "attention_mask": real.to(device)}
