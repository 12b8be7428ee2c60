"""Training batches keep to their budget, and span corruption loses nothing."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mee_utils.companion.training import batches
from mee_utils.companion.training.batches import (
    batches_of,
    corrupt_spans,
    group_by_length,
    pad_pairs,
    padded,
    repeated,
)

SENTINELS = list(range(1000, 1032))


def restore(corrupted, target):
    """Puts the spans of a target back to where their sentinels stand."""
    spans = {}
    current = None
    for token in target[:-1]:
        if token in SENTINELS:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [t for token in corrupted[:-1] for t in spans.get(token, [token])]


@settings(deadline=None, max_examples=60)
@given(length=st.integers(2, 200), seed=st.integers(0, 1000))
def test_span_corruption_can_be_undone_and_hides_about_fifteen_percent(length, seed):
    tokens = list(range(length))
    corrupted, target = corrupt_spans(tokens, SENTINELS, 1, Random(seed))
    assert restore(corrupted, target) == tokens
    hidden = [t for t in target[:-1] if t not in SENTINELS]
    assert len(hidden) == max(1, round(0.15 * length))
    assert (
        [t for t in corrupted if t in SENTINELS]
        == [t for t in target if t in SENTINELS]
        == SENTINELS[: len(target) - len(hidden) - 1]
    )


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60),
    budget=st.integers(60, 300),
)
def test_groups_hold_every_pair_once_and_keep_to_the_budget(lengths, budget):
    pairs = [([n] * source, [n] * target) for n, (source, target) in enumerate(lengths)]
    groups = group_by_length(pairs, budget)
    assert sorted(pair for group in groups for pair in group) == sorted(pairs)
    for group in groups:
        widest = max(len(source) for source, _ in group) + max(len(target) for _, target in group)
        assert widest * len(group) <= budget


def test_every_pair_is_in_one_batch_in_an_order_that_the_seed_decides():
    pairs = [([5] * n, [6] * 3) for n in range(2, 42)]
    groups = batches_of(pairs, 200, seed=0)
    assert sorted(pair for group in groups for pair in group) == pairs
    assert groups == batches_of(pairs, 200, seed=0) != batches_of(pairs, 200, seed=1)
    assert groups != sorted(groups, key=lambda group: len(group[0][0]))
    for group in groups:
        batch = pad_pairs(group, 0)
        rows, longest = batch["input_ids"].shape
        assert rows == len(group) and rows * (longest + batch["labels"].shape[1]) <= 200
        assert longest == max(len(source) for source, _ in group)


def test_lengths_are_grouped_among_pairs_that_follow_each_other(monkeypatch):
    monkeypatch.setattr(batches, "POOL", 10)
    pairs = [([i] * (2 + i % 7), [6]) for i in range(40)]
    order = Random(4).sample(range(40), 40)
    groups = iter(batches_of(pairs, 30, seed=4))
    for start in range(0, 40, 10):
        pool = []
        while len(pool) < 10:
            pool += next(groups)
        assert sorted(source[0] for source, _ in pool) == sorted(order[start : start + 10])
    assert next(groups, None) is None


def test_repeated_pairs_are_whole_rounds_and_a_drawn_part():
    pairs = [([n], [n]) for n in range(40)]
    hundred = repeated(pairs, 100, Random(0))
    counts = [hundred.count(pair) for pair in pairs]
    assert len(hundred) == 100 and sorted(set(counts)) == [2, 3] and counts.count(3) == 20
    assert sorted(repeated(pairs, 40, Random(0))) == pairs
    part = repeated(pairs, 15, Random(0))
    assert len(part) == 15 == sum(pair in part for pair in pairs)
    assert part == repeated(pairs, 15, Random(0)) != repeated(pairs, 15, Random(1))


def test_padding_is_masked_on_both_sides():
    batch = pad_pairs([([5, 6, 1], [7, 1]), ([8, 1], [9, 9, 9, 1])], pad=0)
    assert batch["input_ids"].tolist() == [[5, 6, 1], [8, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 1, -100, -100], [9, 9, 9, 1]]


def test_held_out_pairs_are_batched_by_length_and_none_is_lost():
    pairs = [([5] * (2 + n % 7), [6] * (1 + n % 3)) for n in range(60)]
    batched = padded(pairs, 0, rows=16)
    assert [len(batch["labels"]) for batch in batched] == [16, 16, 16, 12]
    tokens = sum(int((batch["labels"] >= 0).sum()) for batch in batched)
    assert tokens == sum(len(target) for _, target in pairs)
    lengths = [int(mask.sum()) for batch in batched for mask in batch["attention_mask"]]
    assert lengths == sorted(lengths)
