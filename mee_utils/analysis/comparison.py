"""Exit rules side by side: decoded, at equal quality and at equal cost; FLOPs a token are of full depth's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import t

from ..common.errors import MeeError
from ..decoding.generation import generate
from ..decoding.inputs import EncoderCache
from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.costs import DecoderSizes
from ..traces.replay import PolicyReplay, replay_policy
from ..traces.trace import Trace
from .decisions import exit_values, thresholds_for
from .statistics import DRAWS, NOTHING, Interval, interval, mean_interval


@dataclass(frozen=True)
class DecodingResult:
    """One task decoded with one policy; what is not explained is as in `Generation`."""

    score: float  # the primary one of the corpus, percent
    examples: np.ndarray  # that of each example
    mean_exit_layer: float
    flops: float  # of the decoder, a token
    same_output: float  # the share of outputs that are those of full depth
    tokens: int
    token_ids: Sequence[list[int]] = field(default=(), repr=False)
    texts: Sequence[str] = field(default=(), repr=False)
    readout: float = float("nan")  # the share of readouts in `flops`
    output_flops: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)  # of each example
    exit_layers: Sequence[np.ndarray] = field(default=(), repr=False)


def decode(model, task, policy: ExitPolicy | None, full=None, **settings) -> DecodingResult:
    """Decodes a task and scores it; outputs are compared with those of `full`. `settings` of `generate`."""
    found, metric = generate(model, task.inputs, policy, **settings), task.metric
    same = [True] if full is None else [a == b for a, b in zip(found.texts, full.texts, strict=True)]
    examples, flops = task.score_examples(found.texts), found.flops.sum()
    kept = ("mean_exit_layer", "tokens", "token_ids", "texts", "exit_layers")
    own = {name: getattr(found, name) for name in kept}
    own |= dict(score=task.score(found.texts, examples)[metric], examples=examples[metric])
    own |= dict(flops=flops / found.tokens, output_flops=found.flops.astype(np.float64))
    own |= dict(readout=found.flops_by_part["readout"].sum() / flops, same_output=float(np.mean(same)))
    return DecodingResult(**own)


def check_score(full: DecodingResult) -> DecodingResult:
    """Full depth on a task, or an error if it scores 0 there: then there is no quality to keep."""
    if full.examples.sum() == 0:
        raise MeeError("Full depth scores 0 here: there is no quality to keep; give more examples.")
    return full


def retained(found: DecodingResult, full: DecodingResult) -> Interval:
    """The share of the full score that is kept, with a paired interval; NaN if that is 0 on all examples."""
    kept, total = found.examples, full.examples
    if total.sum() == 0:
        return NOTHING
    drawn = lambda weights: np.where(weights @ total > 0, weights @ total, np.nan)
    return interval(lambda weights: (weights @ kept) / drawn(weights), len(kept))


def flops_share(found: DecodingResult, full: DecodingResult) -> Interval:
    """FLOPs, a token, of a decoding as a share of those of full depth."""
    parts = [(each.output_flops, np.array([*map(len, each.token_ids)], float)) for each in (found, full)]
    a_token = lambda weights, part: (weights @ part[0]) / (weights @ part[1])
    return interval(lambda weights: a_token(weights, parts[0]) / a_token(weights, parts[1]), len(parts[0][0]))


def result_row(found: DecodingResult, full: DecodingResult) -> dict[str, float]:
    """A decoding beside full depth, for a table; `length_share` is of the tokens emitted."""
    row = {"score": found.score, **retained(found, full).columns("retained")}
    row |= flops_share(found, full).columns("flops_share", "flops_")
    row |= {"mean_exit_layer": found.mean_exit_layer, "readout_share": found.readout}
    return row | {"same_output": found.same_output, "length_share": found.tokens / full.tokens}


def comparison(model, task, policies: dict, names: Sequence[str], **settings) -> tuple[pd.DataFrame, dict]:
    """Decodes a task with every policy (labels -> policy) and sets it beside full depth.

    Returns one row a policy, the first at full depth (`task`, the labels in the columns `names`,
    `result_row`), and labels -> `DecodingResult`, with the key None for full depth.
    """
    settings = {"encodings": EncoderCache(), **settings}
    full = decode(model, task, None, **settings)
    decoded = {labels: decode(model, task, policy, full, **settings) for labels, policy in policies.items()}
    decoded, rows = {None: full, **decoded}, []
    for labels, found in decoded.items():
        columns = zip(names, labels or ("full_depth",) * len(names), strict=True)
        rows.append({"task": task.name, **dict(columns), **result_row(found, full)})
    return pd.DataFrame(rows), decoded


def at_threshold(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, float]:
    """A replay at its own threshold, with intervals: what `at_exits` returns, and `flops_share`."""
    trace, exits = replayed.trace, replayed.exits(max_new_tokens)
    rows = replayed.readout_rows[np.arange(len(exits)), exits]
    spent = _flops(trace, replayed.bound, replayed.layers[exits], rows)
    depth, vocabulary = trace.layers, trace.sizes.vocabulary
    no_exit = ExitPolicy("static", min_layer=depth).bind(depth, vocabulary)
    full = _flops(trace, no_exit, np.full(len(trace), depth), np.full(len(trace), vocabulary))
    share = interval(lambda weights: (weights @ spent) / (weights @ full), len(spent))
    found = share.columns("flops_share", "flops_share_")
    for name, values in exit_values(replayed, max_new_tokens).items():
        found |= mean_interval(values, trace.sequence).columns(name, f"{name}_")
    return found


def at_equal_quality(replayed: PolicyReplay, shares: Sequence[float], **labels) -> pd.DataFrame:
    """What a rule costs where `shares` of predictions stay, chosen on the second half, told on the first."""
    outputs = len(replayed.trace.source_tokens)
    levels = thresholds_for(replayed.part(outputs // 2, outputs), shares).threshold.tolist()
    told = replayed.part(0, outputs // 2)
    rows = pd.DataFrame([at_threshold(told.at_threshold(level)) for level in levels])
    return pd.DataFrame({**labels, "wanted": shares, "threshold": levels, **rows})


def _flops(trace: Trace, bound: BoundPolicy, exit_layers: np.ndarray, readout_rows: np.ndarray) -> np.ndarray:
    """Decoder FLOPs `[output]` of a trace whose tokens leave and are read out so, `[token]` each."""
    outputs = map(trace.by_output, (exit_layers, readout_rows))
    return sum(bound.flops(trace.sizes, *outputs, trace.source_tokens).values()).astype(np.float64)


def agreement(replayed: PolicyReplay, decoded, max_new_tokens: int = 64) -> dict[str, float]:
    """How well a replay foretells real decoding (a `Generation` or `DecodingResult`) on the same inputs.

    `same_exit` is the share of tokens, up to the first that differs from the full-depth output.
    """
    trace, exits = replayed.trace, replayed.exit_layers(max_new_tokens)
    trace.check_own(len(decoded.token_ids))
    same_output, same_exit = [], []
    foretold = (trace.by_output(trace.token_id), trace.by_output(exits))
    for full, early, ids, layers in zip(*foretold, decoded.token_ids, decoded.exit_layers, strict=True):
        same, upto = until_different(full, ids)
        same_output.append(same)
        same_exit.append(early[:upto] == layers[:upto])
    row = {"same_output": float(np.mean(same_output)), "same_exit": float(np.concatenate(same_exit).mean())}
    row |= {"mean_exit_layer_replay": float(exits.mean())}
    return row | {"mean_exit_layer_decoded": decoded.mean_exit_layer}


def until_different(first: Sequence[int], second: Sequence[int]) -> tuple[bool, int]:
    """Whether two outputs are the same, and their number of tokens up to the first that differs (with it)."""
    differs = [a != b for a, b in zip(first, second, strict=False)]
    if any(differs):
        return False, differs.index(True) + 1
    return len(first) == len(second), len(differs)


def replay_against_decoding(model, task, trace: Trace, policies: dict, max_new_tokens=64) -> pd.DataFrame:
    """Decodes with each policy (name -> policy) and sets it beside its replay (of the model's own output)."""
    settings = dict(max_new_tokens=max_new_tokens, batch_size=32)
    full, rows = decode(model, task, None, **settings), []
    for name, policy in policies.items():
        found = decode(model, task, policy, full, **settings)
        agrees = agreement(replay_policy(trace, policy, model), found, max_new_tokens)
        labels = {"task": task.name, "model": model.name, "policy": name}
        scores = {"metric": task.metric, "score": found.score, "full_score": full.score}
        rows.append({**labels, **agrees, **scores, "flops_share": found.flops / full.flops})
    return pd.DataFrame(rows)


def decision_cost(sizes: DecoderSizes, measure, min_layer: int, ids: int | None = None) -> dict[str, float]:
    """What one decision of a measure costs, counted, where pruned readouts score so many `ids` (None: all).

    `share_of_layer` leaves out what depends on the length; below the mean exit layer `break_even`, a share of
    the depth, a rule that decides at every layer from `min_layer` on costs less than full depth.
    """
    cost = measure.flops(sizes.d_model) / sizes.projections
    before = 0 if measure.recurrent else min_layer - 1
    if measure.readout:  # earlier layers are read out too; the last readout is the token's own
        cost = sizes.readout / sizes.projections * ((ids or sizes.vocabulary) / sizes.vocabulary)
        before += 1 - measure.lookback
    even = (sizes.layers + before * cost) / (1 + cost) / sizes.layers
    return {"share_of_layer": cost, "break_even": min(1.0, even)}


def seed_interval(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Mean of `columns` over seeds, with `<name>_low` and `<name>_high` (95 %, by t; one seed: the mean).

    Where a column has draws, those of the mean resample the seeds too, those of each group by themselves.
    """
    rows = []
    for number, (key, part) in enumerate(table.groupby(list(by), sort=False)):
        row, seeds = dict(zip(by, key, strict=True)), len(part)
        quantile = round(float(t.ppf(0.975, seeds - 1)), 3) if seeds > 1 else 0.0  # as tables print it
        for column in columns:
            values = part[column].to_numpy(dtype=np.float64)
            margin = quantile * values.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else 0.0
            low, high = values.mean() - margin, values.mean() + margin
            row |= {column: values.mean(), f"{column}_low": low, f"{column}_high": high}
            if column + DRAWS in part:
                draws = np.stack(part[column + DRAWS].to_list())  # [seed, resample]
                chosen = np.random.default_rng(number).integers(seeds, size=draws.shape)
                row[column + DRAWS] = np.take_along_axis(draws, chosen, axis=0).mean(axis=0)
        rows.append(row | {"seeds": seeds})
    return pd.DataFrame(rows)
