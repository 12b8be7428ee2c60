"""Exit rules side by side: decoded for real, at equal quality and at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from ..tasks.scores import PRIMARY
from .decisions import thresholds_for
from .readings import Readings, readings
from .replay import confidences, replay, sweep

RESAMPLES = 1000
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # two-sided 95 %, by sample size


@dataclass(frozen=True)
class Decoded:
    """One task decoded with one policy (None: all blocks).

    Attributes:
        score: the task's primary corpus score, percent.
        examples: the same of every example, `[example]`.
        mean_exit_layer: over all tokens.
        flops: decoder operations a token.
        same_output: share of outputs that are those of all blocks.
        tokens: how many were emitted.
        token_ids: what was emitted.
        read_out: share of the operations that are read-outs.
    """

    score: float
    examples: np.ndarray
    mean_exit_layer: float
    flops: float
    same_output: float
    tokens: int
    token_ids: Sequence = ()
    read_out: float = float("nan")


def decode(model, task, policy: ExitPolicy | None, full_texts: Sequence[str] | None = None, **settings) -> tuple[Decoded, list[str]]:
    """Decodes a task and scores it.

    Args:
        model: from `load_model`.
        task: inputs, and how outputs are scored.
        policy: when to exit.
        full_texts: the outputs of all blocks, to compare with.
        settings: of `generate`.
    """
    from ..decoding.generation import generate

    found, metric = generate(model, task.inputs, policy, **settings), PRIMARY[task.name]
    same = np.mean([a == b for a, b in zip(found.texts, full_texts, strict=True)]) if full_texts is not None else 1.0
    examples = task.score_examples(found.texts)
    score = task.score(found.texts, examples)[metric]
    spent, read = found.flops.sum(), found.flops_by_part["read_out"].sum()
    return Decoded(
        score, examples[metric], found.mean_exit_layer, spent / found.tokens, float(same), found.tokens, found.token_ids, read / spent
    ), found.texts


def retained(found: Decoded, full: Decoded, chosen: np.ndarray | None = None, seed: int = 0) -> tuple[float, float, float]:
    """The share of the full score that is kept, with a paired 95 % bootstrap interval over examples.

    Args:
        found: decoded with exits.
        full: decoded with all blocks, on the same examples.
        chosen: which examples; all by default.
        seed: of the resampling.
    """
    chosen = np.arange(len(full.examples)) if chosen is None else chosen
    kept, all_of = found.examples[chosen], full.examples[chosen]
    if all_of.sum() == 0:
        raise CompanionError("The full model scores 0 on these examples: there is no quality to keep; give more examples.")
    weights = np.random.default_rng(seed).multinomial(len(chosen), np.full(len(chosen), 1 / len(chosen)), RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile((weights @ kept) / (weights @ all_of), [2.5, 97.5])
    return float(kept.sum() / all_of.sum()), float(low), float(high)


def rule_policy(rule: str, threshold: float | None, settings: dict, classifiers: dict, decaying: bool = False) -> ExitPolicy:
    """The policy of a rule of notebook 05.

    Args:
        rule: a measure's name, "static", "oracle", or a variant of `mee_utils.train_exits`.
        threshold: for "static" the block; None for the oracle.
        settings: `min_layer`, and `decay` if it is to be used.
        classifiers: variant -> classifier.
        decaying: whether the threshold falls with the position, as published.
    """
    if rule == "static":
        return ExitPolicy("static", min_layer=int(threshold))
    if rule == "oracle":
        return ExitPolicy("oracle", min_layer=settings["min_layer"])
    decay = settings["decay"] if decaying else None
    return ExitPolicy(classifiers.get(rule, rule), threshold=float(threshold), decay=decay, min_layer=settings["min_layer"])


def comparison(model, task, policies: dict[tuple, ExitPolicy], names: Sequence[str], **settings) -> tuple[pd.DataFrame, dict]:
    """Decodes a task with every policy and sets it beside all blocks.

    Args:
        model: from `load_model`.
        task: as in `decode`.
        policies: labels -> policy.
        names: the columns that the labels fill.
        settings: of `generate`.

    Returns:
        One row a policy, the first without any: the labels, `task`, `score`, `retained` with `low` and `high`, `mean_exit_layer`,
        `flops_share` (a token, of all blocks'), `read_out_share` (read-outs among the policy's own operations), `same_output`,
        `length_share` (tokens emitted, of all blocks'); and labels -> `Decoded`, with the key None for all blocks.
    """
    settings = {"encodings": {}, **settings}
    full, texts = decode(model, task, None, **settings)
    decoded, rows = {None: full}, []
    for labels, policy in {None: None, **policies}.items():
        if policy is not None:
            decoded[labels] = decode(model, task, policy, texts, **settings)[0]
        found = decoded[labels]
        share, low, high = retained(found, full)
        rows.append(
            {
                "task": task.name, **dict(zip(names, labels if labels else ("none",) * len(names), strict=True)), "score": found.score,
                "retained": share, "low": low, "high": high, "mean_exit_layer": found.mean_exit_layer,
                "flops_share": found.flops / full.flops, "read_out_share": found.read_out, "same_output": found.same_output, "length_share": found.tokens / full.tokens,
            }
        )  # fmt: skip
    return pd.DataFrame(rows), decoded


def cheapest_keeping(decoded: dict, quality: float) -> dict:
    """For each rule, the cheapest setting that keeps a share of the full score, chosen on one half of the examples, checked on the other.

    Args:
        decoded: (rule, ...) -> `Decoded`, and None -> all blocks; examples 0, 2, 4 ... choose, the others check.
        quality: the share of the full score to keep, such as 0.99.

    Returns:
        rule -> (labels, retained on the checking half, low, high); labels are None where no setting keeps it.
    """
    full = decoded[None]
    choosing, checking = np.arange(0, len(full.examples), 2), np.arange(1, len(full.examples), 2)
    found: dict = {}
    for labels in sorted((key for key in decoded if key is not None), key=lambda key: decoded[key].flops):
        rule = labels[0]
        if found.get(rule, (None,))[0] is None and retained(decoded[labels], full, choosing)[0] >= quality:
            found[rule] = (labels, *retained(decoded[labels], full, checking))
        found.setdefault(rule, (None, float("nan"), float("nan"), float("nan")))
    return found


def replayed_flops(
    trace, exits: np.ndarray, policy: ExitPolicy, model, sources: Sequence[int], full: float | None = None, read: Readings | None = None
) -> float:
    """Decoder operations at these exits, as a share of all blocks', for the tokens of a trace.

    Args:
        trace: from `mee_utils.trace`, of the model's own output.
        exits: `[token]`, from `replay`.
        policy: the policy of the replay.
        model: whose sizes count.
        sources: tokens of every input.
        full: what `full_depth_flops` returned for this trace, where it is known already.
        read: what `readings` returned for this trace and policy, where it prunes or contrasts.
    """
    from ..decoding.generation import count_flops
    from ..models.costs import DecoderSizes

    sizes, starts = DecoderSizes.of(model.network.config), np.flatnonzero(np.diff(trace.sequence, prepend=-1))
    if read is None and not policy.read_out.plain:
        read = readings(trace, policy, model)
    products = None if read is None else np.split(read.products_at(policy, exits, trace.layers), starts[1:])
    spent = count_flops(sizes, policy, np.split(exits, starts[1:]), sources, products)
    if full is None:
        full = full_depth_flops(trace, model, sources)
    return float(sum(map(np.sum, spent.values())) / full)


def full_depth_flops(trace, model, sources: Sequence[int]) -> float:
    """Decoder operations of all blocks for the tokens of a trace."""
    from ..decoding.generation import count_flops
    from ..models.costs import DecoderSizes

    sizes, lengths = DecoderSizes.of(model.network.config), np.unique(trace.sequence, return_counts=True)[1]
    return float(sum(map(np.sum, count_flops(sizes, None, [np.full(n, trace.layers) for n in lengths], sources).values())))


def at_equal_quality(trace, policy: ExitPolicy, shares: Sequence[float], model, sources: Sequence[int], labels: dict, asked=None) -> pd.DataFrame:
    """What a rule costs at the thresholds that leave these shares of predictions as they are: a replay, no decoding.

    Args:
        trace: from `mee_utils.trace`, with states where the measure looks at them.
        policy: measure and blocks.
        shares: of predictions at the exits that are to be the last block's.
        model: of the trace.
        sources: tokens of every input.
        labels: constant columns to put in front.
        asked: what `confidences` or `readings` returned for this trace and policy, where it is known already.

    Returns:
        One row a share: `wanted`, `threshold`, `mean_exit_layer`, `same_token`, `flops_share` (of all blocks').
    """
    if asked is None:
        asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    read = asked if isinstance(asked, Readings) else None
    rows, full = [], full_depth_flops(trace, model, sources)
    for wanted, (_, found) in zip(shares, thresholds_for(trace, policy, shares, asked=asked).iterrows(), strict=True):
        chosen = replace(policy, threshold=float(found["threshold"]))
        exits = replay(trace, chosen, model=model, asked=asked)
        rows.append({**labels, "wanted": wanted, **found.to_dict(), "flops_share": replayed_flops(trace, exits, chosen, model, sources, full, read)})
    return pd.DataFrame(rows)


def at_threshold(trace, policy: ExitPolicy, model, sources: Sequence[int]) -> dict[str, float]:
    """Replays a policy at its own threshold: `mean_exit_layer`, `same_token`, `flops_share`; arguments and values as in `at_equal_quality`."""
    asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    row = sweep(trace, policy, [policy.schedule.level], model=model, asked=asked).iloc[0]
    exits, read = replay(trace, policy, model=model, asked=asked), asked if isinstance(asked, Readings) else None
    share = replayed_flops(trace, exits, policy, model, sources, read=read)
    return {"mean_exit_layer": row.mean_exit_layer, "same_token": row.same_token, "flops_share": share}


def kept_rows(table: pd.DataFrame, decoded: dict, quality: float) -> list[dict]:
    """What `cheapest_keeping` finds for one task, beside its cost: a row a rule that keeps `quality` on the choosing half.

    Args:
        table: from `comparison`, with the columns `rule` and `threshold`.
        decoded: from `comparison`.
        quality: the share of the full score to keep.
    """
    rows = []
    for rule, (labels, share, low, high) in cheapest_keeping(decoded, quality).items():
        if labels:
            row = table[(table.rule == rule) & ((table.threshold == labels[1]) | (rule == "oracle"))].iloc[0]
            rows.append(
                {"task": row.task, "rule": rule, "threshold": labels[1], "checked": share, "checked_low": low, "checked_high": high,
                 "not_refuted": high >= quality, "mean_exit_layer": row.mean_exit_layer, "flops_share": row.flops_share}
            )  # fmt: skip
    return rows


def deciding_costs(rules: dict, shapes: dict, min_layer: int) -> pd.DataFrame:
    """What one decision costs as a share of a block, by count of operations.

    Args:
        rules: name -> (d_model -> measure).
        shapes: name -> `DecoderSizes`.
        min_layer: first block at which a token may exit.

    Returns:
        `shape`, `rule`, `of_a_block` (attention, which depends on the length, left out), and `break_even`, the mean exit block, as a share of
        the depth, below which a rule that decides at every block from `min_layer` on costs less than no exit.
    """
    rows = []
    for shape, sizes in shapes.items():
        for rule, build in rules.items():
            measure = build(sizes.d_model)
            cost = (sizes.read_out if measure.read_out else measure.flops(sizes.d_model)) / sizes.projections
            before = 0 if measure.from_first else min_layer - 1
            if measure.read_out:  # earlier blocks are read out too; the last read-out is the token's own
                before += 1 - measure.lookback
            even = (sizes.layers + before * cost) / (1 + cost) / sizes.layers
            rows.append({"shape": shape, "rule": rule, "of_a_block": cost, "break_even": min(1.0, even)})
    return pd.DataFrame(rows)


def seed_interval(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Mean over seeds with the 95 % interval of a t distribution; a single seed has no interval.

    Args:
        table: one row a seed and group.
        by: columns of the group.
        columns: what to average; each gets `<name>_low` and `<name>_high`.
    """
    rows = []
    for key, part in table.groupby(list(by), sort=False):
        row, seeds = dict(zip(by, key, strict=True)), len(part)
        for column in columns:
            values = part[column].to_numpy(dtype=np.float64)
            margin = STUDENT[seeds] * values.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else 0.0
            row |= {column: values.mean(), f"{column}_low": values.mean() - margin, f"{column}_high": values.mean() + margin}
        rows.append(row | {"seeds": seeds})
    return pd.DataFrame(rows)
