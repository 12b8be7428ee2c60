"""Training batches: pairs of token ids, grouped by length to about equal cost, with hardly any padding."""

from collections.abc import Sequence
from random import Random

import torch
from torch.nn.utils.rnn import pad_sequence

NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0
POOL = 6000  # pairs that are grouped by length together

Pair = tuple[list[int], list[int]]


def corrupt_spans(tokens: Sequence[int], sentinels: Sequence[int], end: int, random: Random) -> Pair:
    """T5's span corruption (Raffel et al. 2020, section 3.1.4): 15 % of the tokens in spans of mean length 3.

    `tokens` come without the `end` token. Returns input ids with a sentinel in place of each span, and target
    ids with each span behind its sentinel.
    """
    noise = min(max(1, round(len(tokens) * NOISE_DENSITY)), len(tokens) - 1)
    spans = min(max(1, round(noise / MEAN_SPAN)), noise, len(tokens) - noise, len(sentinels))
    corrupted, target, position = [], [], 0
    lengths = _parts(len(tokens) - noise, spans, random), _parts(noise, spans, random)
    for sentinel, kept, lost in zip(sentinels, *lengths):
        corrupted += [*tokens[position : position + kept], sentinel]
        target += [sentinel, *tokens[position + kept : position + kept + lost]]
        position += kept + lost
    return [*corrupted, *tokens[position:], end], [*target, end]


def _parts(total: int, count: int, random: Random) -> list[int]:
    """Splits `total` into `count` parts of at least 1, all such splits equally likely."""
    cuts = sorted(random.sample(range(1, total), count - 1)) if count > 1 else []
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def batches_of(pairs: Sequence[Pair], tokens_per_batch: int, seed: int) -> list[list[Pair]]:
    """Batches of at most `tokens_per_batch` source plus target tokens, padding included.

    `seed` decides in which order pairs are drawn; those that follow each other are grouped by length.
    """
    random, batches = Random(seed), []
    drawn = random.sample(pairs, len(pairs))
    for start in range(0, len(drawn), POOL):
        groups = group_by_length(drawn[start : start + POOL], tokens_per_batch)
        batches += random.sample(groups, len(groups))
    return batches


def repeated(pairs: Sequence[Pair], count: int, random: Random) -> list[Pair]:
    """`count` of the pairs: whole rounds of them, and a part of the last one that is drawn.

    >>> len(repeated([([1], [2]), ([3], [4])], 5, Random(0)))
    5
    """
    rounds, rest = divmod(count, len(pairs))
    return [*pairs] * rounds + random.sample(list(pairs), rest)


def group_by_length(pairs: Sequence[Pair], tokens_per_batch: int) -> list[list[Pair]]:
    """Groups neighbours in length; rows x (longest source + longest target) stays within the budget."""
    groups, widest = [[]], (0, 0)
    for pair in sorted(pairs, key=_lengths):
        widest = tuple(map(max, widest, _lengths(pair)))
        if groups[-1] and sum(widest) * (len(groups[-1]) + 1) > tokens_per_batch:
            groups.append([])
            widest = _lengths(pair)
        groups[-1].append(pair)
    return groups


def _lengths(pair: Pair) -> tuple[int, int]:
    return len(pair[0]), len(pair[1])


def pad_pairs(pairs: Sequence[Pair], pad: int) -> dict[str, torch.Tensor]:
    """Pads pairs to one batch: `input_ids`, `attention_mask` and `labels`, each `[batch, position]`."""
    sources, targets = ([torch.tensor(ids) for ids in side] for side in zip(*pairs))
    mask = pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True)
    inputs = pad_sequence(sources, batch_first=True, padding_value=pad)
    labels = pad_sequence(targets, batch_first=True, padding_value=-100)
    return {"input_ids": inputs, "attention_mask": mask, "labels": labels}


def padded(pairs: Sequence[Pair], pad: int, rows: int = 64) -> list[dict[str, torch.Tensor]]:
    """All pairs in batches as `pad_pairs` makes them, those of about one length together."""
    ordered = sorted(pairs, key=_lengths)
    return [pad_pairs(ordered[i : i + rows], pad) for i in range(0, len(ordered), rows)]
