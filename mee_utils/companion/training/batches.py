"""Training batches: pairs of token ids, grouped by length to about equal cost, with hardly any padding."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...models.states import IGNORED

NOISE_DENSITY = 0.15
MEAN_SPAN = 3.0
POOL = 6000  # pairs that are grouped by length together

Pair = tuple[list[int], list[int]]  # token ids of a source and its target
Batch = dict[str, Tensor]  # see `pad_pairs`


def corrupt_spans(tokens: Sequence[int], sentinels: Sequence[int], end: int, random: Random) -> Pair:
    """T5's span corruption (Raffel et al. 2020, section 3.1.4): 15 % of the tokens in spans of mean length 3.

    With sentinels X, Y and the end token E, `a b c d e f g` may become `a X d e Y g E` and `X b c Y f E`.

    Args:
        tokens: The ids of a text, without the `end` token.
        sentinels: Ids that stand for spans, in their order.
        end: The id that ends source and target.
        random: Draws the spans.

    Returns:
        The source, with a sentinel in place of each span, and the target, with each span behind its sentinel.
    """
    noise = min(max(1, round(len(tokens) * NOISE_DENSITY)), len(tokens) - 1)
    spans = min(max(1, round(noise / MEAN_SPAN)), noise, len(tokens) - noise, len(sentinels))
    kept_lengths = _split(len(tokens) - noise, spans, random)
    span_lengths = _split(noise, spans, random)

    source = []
    target = []
    position = 0
    for sentinel, kept, hidden in zip(sentinels, kept_lengths, span_lengths, strict=False):
        span = position + kept
        source += [*tokens[position:span], sentinel]
        target += [sentinel, *tokens[span : span + hidden]]
        position = span + hidden
    return [*source, *tokens[position:], end], [*target, end]


def _split(total: int, count: int, random: Random) -> list[int]:
    """Splits `total` into `count` parts of at least 1, all such splits equally likely."""
    cuts = sorted(random.sample(range(1, total), count - 1)) if count > 1 else []
    return [end - start for start, end in pairwise([0, *cuts, total])]


def repeated(pairs: Sequence[Pair], count: int, random: Random) -> list[Pair]:
    """`count` of the pairs: whole rounds of them, and a part of the last one that is drawn.

    >>> len(repeated([([1], [2]), ([3], [4])], 5, Random(0)))
    5
    """
    rounds, rest = divmod(count, len(pairs))
    return [*pairs] * rounds + random.sample(list(pairs), rest)


def batches_of(pairs: Sequence[Pair], tokens_per_batch: int, seed: int) -> list[list[Pair]]:
    """Batches of at most `tokens_per_batch` source plus target tokens, padding included.

    `seed` decides in which order pairs are drawn; those that follow each other are grouped by length.
    """
    random = Random(seed)
    drawn = random.sample(pairs, len(pairs))
    batches = []
    for start in range(0, len(drawn), POOL):
        groups = group_by_length(drawn[start : start + POOL], tokens_per_batch)
        batches += random.sample(groups, len(groups))
    return batches


def group_by_length(pairs: Sequence[Pair], tokens_per_batch: int) -> list[list[Pair]]:
    """Groups neighbours in length; rows x (longest source + longest target) stays within the budget."""
    groups = [[]]
    longest_source = 0
    longest_target = 0
    for source, target in sorted(pairs, key=_lengths):
        longest_source = max(longest_source, len(source))
        longest_target = max(longest_target, len(target))
        rows = len(groups[-1]) + 1
        if rows > 1 and rows * (longest_source + longest_target) > tokens_per_batch:
            groups.append([])
            longest_source = len(source)
            longest_target = len(target)
        groups[-1].append((source, target))
    return groups


def _lengths(pair: Pair) -> tuple[int, int]:
    source, target = pair
    return len(source), len(target)


def pad_pairs(pairs: Sequence[Pair], pad: int) -> Batch:
    """Pads pairs to one batch.

    Returns:
        `input_ids` and `attention_mask`, both `[batch, source position]`, and `labels`
        `[batch, target position]`, `IGNORED` at padding.
    """
    sources = [torch.tensor(source) for source, _ in pairs]
    targets = [torch.tensor(target) for _, target in pairs]
    return {
        "input_ids": pad_sequence(sources, batch_first=True, padding_value=pad),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True),
        "labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }


def padded(pairs: Sequence[Pair], pad: int, rows: int = 64) -> list[Batch]:
    """All pairs in batches as `pad_pairs` makes them, those of about one length together."""
    ordered = sorted(pairs, key=_lengths)
    return [pad_pairs(ordered[start : start + rows], pad) for start in range(0, len(ordered), rows)]
