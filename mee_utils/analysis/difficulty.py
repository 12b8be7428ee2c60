"""The known difficulty of every token of synthetic data."""

from __future__ import annotations

import numpy as np

from ..common.errors import CompanionError


def token_difficulty(task, tokenizer, max_length: int | None = None) -> np.ndarray:
    """The difficulty of each target token of a synthetic task, in the order of a trace along the references.

    A token belongs to the word in which it begins; the end token is "grammatical".

    Args:
        task: a synthetic `Task`.
        tokenizer: the model's fast tokenizer.
        max_length: where the trace cut its references (`max_new_tokens`).

    Returns:
        `[token]`, names of `mee_utils.tasks.synthetic.words.DIFFICULTIES`.
    """
    if task.spans is None:
        raise CompanionError(
            f'The difficulty of tokens is known for synthetic data only, not for "{task.source}".'
        )
    encoded = tokenizer(
        task.targets, return_offsets_mapping=True, truncation=max_length is not None, max_length=max_length
    )
    names = []
    for target, offsets, spans in zip(task.targets, encoded["offset_mapping"], task.spans, strict=True):
        for start, end in offsets:
            while start < end and target[start] == " ":
                start += 1
            covering = [span.difficulty for span in spans if span.start <= start < span.end]
            names.append(covering[0] if covering and end > start else "grammatical")
    return np.array(names)
