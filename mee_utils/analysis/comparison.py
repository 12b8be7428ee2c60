"""Exit rules side by side: decoded, at equal quality and at equal cost; FLOPs a token are of full depth's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # quantiles of Student's t

from ..common.errors import MeeError
from ..decoding.generation import Generation, generate
from ..decoding.inputs import EncoderCache
from ..exits.policy import ExitPolicy
from ..models.costs import DecoderSizes
from ..traces.replay import PolicyReplay, replay_policy
from ..traces.trace import Trace
from .beside_full import beside_full
from .replayed_flops import replayed_estimates
from .statistics import DRAWS, Estimate, columns_of, estimates
from .threshold_choice import thresholds_for


@dataclass(frozen=True)
class DecodingResult:
    """One task decoded with one policy; what is not explained is as in `Generation`."""

    score: float  # of the corpus, by one metric, percent
    examples: np.ndarray  # `[example]`, the score of each, by the same metric, percent
    mean_exit_layer: float
    flops: float  # of the decoder for one token, the mean over tokens (in `Generation`: for an output)
    same_output: float  # the share of outputs that are those of full depth
    tokens: int
    token_ids: Sequence[list[int]] = field(default=(), repr=False)
    texts: Sequence[str] = field(default=(), repr=False)
    readout: float = float("nan")  # the share of readouts in `flops`
    output_flops: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)  # of each example
    encoder_flops: np.ndarray | float = field(default=float("nan"), repr=False)  # likewise
    exit_layers: Sequence[np.ndarray] = field(default=(), repr=False)


def decode(
    model, task, policy: ExitPolicy | None, full: DecodingResult | None = None, **settings
) -> DecodingResult:
    """Decodes a task and scores it; outputs are compared with those of `full`. `settings` of `generate`."""
    return scored(generate(model, task.inputs, policy, **settings), task, full)


def scored(
    generation: Generation, task, full: DecodingResult | None = None, metric: str | None = None
) -> DecodingResult:
    """The outputs of a task with their scores, by its own metric if none is named."""
    metric = metric or task.metric
    scores = task.score_examples(generation.texts)
    flops = generation.flops.sum()
    same_output = 1.0
    if full is not None:
        same_output = np.mean([a == b for a, b in zip(generation.texts, full.texts, strict=True)])
    return DecodingResult(
        score=task.score(generation.texts, scores)[metric],
        examples=scores[metric],
        mean_exit_layer=generation.mean_exit_layer,
        flops=flops / generation.tokens,
        same_output=float(same_output),
        tokens=generation.tokens,
        token_ids=generation.token_ids,
        texts=generation.texts,
        readout=generation.flops_by_part["readout"].sum() / flops,
        output_flops=generation.flops.astype(np.float64),
        encoder_flops=generation.encoder_flops,
        exit_layers=generation.exit_layers,
    )


def check_score(full: DecodingResult) -> DecodingResult:
    """Full depth on a task, or an error if it scores 0 there: then there is no quality to keep."""
    if full.examples.sum() == 0:
        raise MeeError("Full depth scores 0 here: there is no quality to keep; give more examples.")
    return full


def examples_of(decoding: DecodingResult) -> pd.DataFrame:
    """One row an example, as `beside_full` takes them; the consistency loss is not computed here."""
    columns = {
        "loss": np.nan,
        "score": decoding.examples,
        "flops": decoding.output_flops,
        "tokens": [len(ids) for ids in decoding.token_ids],
        "layers": [layers.sum() for layers in decoding.exit_layers],
        "encoder": decoding.encoder_flops,
    }
    return pd.DataFrame(columns)


def retained(decoding: DecodingResult, full: DecodingResult) -> Estimate:
    """The share of the full score that is kept; NaN where that is 0, in a resample or on all examples."""
    return beside_full([examples_of(decoding)], examples_of(full))["retained"].item(0)


def result_row(decoding: DecodingResult, full: DecodingResult) -> dict[str, float]:
    """A decoding beside full depth, for a table; `length_share` is of the tokens emitted."""
    beside = beside_full([examples_of(decoding)], examples_of(full))
    return {
        "score": decoding.score,
        **beside["retained"].item(0).columns("retained"),
        **beside["flops_share"].item(0).columns("flops_share", "flops_"),
        "whole_share": beside["whole_share"].item(0).value,
        "mean_exit_layer": decoding.mean_exit_layer,
        "readout_share": decoding.readout,
        "same_output": decoding.same_output,
        "length_share": decoding.tokens / full.tokens,
    }


def comparison(model, task, policies: dict, names: Sequence[str], **settings) -> tuple[pd.DataFrame, dict]:
    """Decodes a task with every policy (labels -> policy) and sets it beside full depth.

    Returns one row a policy, the first at full depth (`task`, the labels in the columns `names`,
    `result_row`), and labels -> `DecodingResult`, with the key None for full depth.
    """
    settings = {"encodings": EncoderCache(), **settings}
    full = decode(model, task, None, **settings)
    decoded = {None: full}
    by_policy: dict[ExitPolicy, DecodingResult] = {}  # equal policies are decoded once
    for labels, policy in policies.items():
        if policy not in by_policy:
            by_policy[policy] = decode(model, task, policy, full, **settings)
        decoded[labels] = by_policy[policy]
    rows = []
    for labels, decoding in decoded.items():
        values = labels or ["full_depth"] * len(names)
        columns = dict(zip(names, values, strict=True))
        rows.append({"task": task.name, **columns, **result_row(decoding, full)})
    return pd.DataFrame(rows), decoded


def replayed_row(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, float]:
    """`replayed_estimates` as columns of a table."""
    return columns_of(replayed_estimates(replayed, max_new_tokens))


def at_equal_quality(replayed: PolicyReplay, shares: Sequence[float], **labels) -> pd.DataFrame:
    """What a rule costs where `shares` of predictions stay those of full depth; one row per share.

    Thresholds are selected on the second half of the outputs, and costs reported on the first.
    """
    outputs = len(replayed.trace.source_tokens)
    selecting = replayed.part(outputs // 2, outputs)
    reporting = replayed.part(0, outputs // 2)
    thresholds = thresholds_for(selecting, shares).threshold.tolist()
    rows = pd.DataFrame([replayed_row(reporting.at_threshold(level)) for level in thresholds])
    return pd.DataFrame({**labels, "wanted": shares, "threshold": thresholds, **rows})


def agreement(replayed: PolicyReplay, decoded, max_new_tokens: int = 64) -> dict[str, float]:
    """How well a replay predicts real decoding (a `Generation` or `DecodingResult`) on the same inputs.

    Returns:
        `same_output`, the share of outputs that are those of full depth; `same_exit`, the share of tokens
        that exit where the replay says, up to the first token of an output that is not full depth's; and the
        mean exit layers, `mean_exit_layer_replay` and `mean_exit_layer_decoded`.

    Raises `MeeError` for a trace along references, or of other inputs.
    """
    trace = replayed.trace
    trace.check_own(len(decoded.token_ids))
    exit_layers = replayed.exit_layers(max_new_tokens)  # [token]
    same_output = []
    same_exit = []
    outputs = zip(
        trace.by_output(trace.token_id),
        trace.by_output(exit_layers),
        decoded.token_ids,
        decoded.exit_layers,
        strict=True,
    )
    for full_ids, replayed_layers, ids, layers in outputs:
        same, until = until_different(full_ids, ids)
        same_output.append(same)
        same_exit.append(replayed_layers[:until] == layers[:until])
    return {
        "same_output": float(np.mean(same_output)),
        "same_exit": float(np.concatenate(same_exit).mean()),
        "mean_exit_layer_replay": float(exit_layers.mean()),
        "mean_exit_layer_decoded": decoded.mean_exit_layer,
    }


def until_different(first: Sequence[int], second: Sequence[int]) -> tuple[bool, int]:
    """Whether two outputs are the same, and their number of tokens up to the first that differs (with it)."""
    differs = [a != b for a, b in zip(first, second, strict=False)]
    if any(differs):
        return False, differs.index(True) + 1
    return len(first) == len(second), len(differs)


def replay_against_decoding(
    model, task, trace: Trace, policies: dict, max_new_tokens: int = 64
) -> pd.DataFrame:
    """Decodes with each policy (name -> policy) and sets it beside its replay (of the model's own output)."""
    settings = {"max_new_tokens": max_new_tokens, "batch_size": 32, "encodings": EncoderCache()}
    full = decode(model, task, None, **settings)
    rows = []
    for name, policy in policies.items():
        decoding = decode(model, task, policy, full, **settings)
        rows.append(
            {
                "task": task.name,
                "model": model.name,
                "policy": name,
                **agreement(replay_policy(trace, policy, model), decoding, max_new_tokens),
                "metric": task.metric,
                "score": decoding.score,
                "full_score": full.score,
                "flops_share": decoding.flops / full.flops,
            }
        )
    return pd.DataFrame(rows)


def decision_cost(sizes: DecoderSizes, measure, min_layer: int, ids: int | None = None) -> dict[str, float]:
    """What one decision of a measure costs, counted, where pruned readouts score so many `ids` (None: all).

    `share_of_layer` leaves out what depends on the length; below the mean exit layer `break_even`, a share of
    the depth, a rule that decides at every layer from `min_layer` on costs less than full depth.
    """
    cost = measure.flops(sizes.d_model) / sizes.projections
    before = 0 if measure.recurrent else min_layer - 1
    if measure.readout:  # earlier layers compute logits too; the last logits are the token's own
        cost += sizes.readout / sizes.projections * ((ids or sizes.vocabulary) / sizes.vocabulary)
        before += 1 - measure.lookback
    break_even = (sizes.layers + before * cost) / (1 + cost) / sizes.layers
    return {"share_of_layer": cost, "break_even": min(1.0, break_even)}


def seed_interval(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """The mean of `columns` over seeds, and their number `seeds`: one row per group of the columns `by`.

    `<name>_low` and `<name>_high` are the 95 % interval by Student's t (one seed: the mean itself). Where a
    column has draws, those of the mean resample the seeds too, those of each group by themselves.
    """
    rows = []
    for number, (key, group) in enumerate(table.groupby(list(by), sort=False)):
        row = dict(zip(by, key, strict=True))
        seeds = len(group)
        # Student's t, with three digits as in printed tables
        quantile = round(float(stdtrit(seeds - 1, 0.975)), 3) if seeds > 1 else 0.0
        for column in columns:
            of_seeds = estimates(group, column)
            values = np.asarray(of_seeds.value, dtype=np.float64)
            mean = values.mean()
            margin = quantile * values.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else 0.0
            row |= {column: mean, f"{column}_low": mean - margin, f"{column}_high": mean + margin}
            if of_seeds.draws is not None:
                draws = of_seeds.draws.T  # [seed, resample]
                drawn = np.random.default_rng(number).integers(seeds, size=draws.shape)
                row[column + DRAWS] = np.take_along_axis(draws, drawn, axis=0).mean(axis=0)
        rows.append(row | {"seeds": seeds})
    return pd.DataFrame(rows)
