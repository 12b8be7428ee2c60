"""Tables of notebook 00: what the data holds, and what the models score on it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from .statistics import interval, mean_interval

# the estimates of `beside_baseline`: name -> what its bounds are called, before low and high
BASELINE_QUANTITIES = {
    "mean_score": "",
    "lost": "lost_",
    "kept": "kept_",
    "relative_flops": "relative_flops_",
}


def token_difficulty(task, tokenizer, max_length: int | None = None) -> np.ndarray:
    """The difficulty of each target token of a synthetic task, in the order of a trace along the references.

    A token belongs to the word in which it begins; the end is "grammatical". A trace cuts at `max_length`
    tokens. `tokenizer` is a fast one. Returns names (`words.DIFFICULTIES`), `[token]`.

    Raises `MeeError` for a task that is not synthetic.
    """
    if task.spans is None:
        raise MeeError(f'Difficulty is known for synthetic data only, not for "{task.source}".')
    encoded = tokenizer(
        task.targets, return_offsets_mapping=True, truncation=max_length is not None, max_length=max_length
    )
    names = []
    for target, offsets, spans in zip(task.targets, encoded["offset_mapping"], task.spans, strict=True):
        for start, end in offsets:
            while start < end and target[start] == " ":
                start += 1
            covering = [span.difficulty for span in spans if span.start <= start < min(span.end, end)]
            names.append(covering[0] if covering else "grammatical")
    return np.array(names)


def score_table(tasks: Mapping, texts: Mapping) -> pd.DataFrame:
    """Scores of systems on `texts[task][kind, system]`, percent: of the corpus, and mean of examples."""
    rows = []
    for name, task in tasks.items():
        for (kind, system), outputs in texts[name].items():
            of_examples = task.score_examples(outputs)
            corpus_scores = task.score(outputs, of_examples)
            for metric, values in of_examples.items():
                rows.append(
                    {
                        "task": name,
                        "system": system,
                        "kind": kind,
                        "metric": metric,
                        "corpus_score": corpus_scores[metric],
                        **mean_interval(values, np.arange(len(values))).columns(),
                    }
                )
    return pd.DataFrame(rows)


def seed_spread(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean, lowest and highest over the seeds of a model's training, for each task and model."""
    of_model = rows.groupby(["task", "model"], sort=False)
    return of_model[column].agg(mean="mean", low="min", high="max", seeds="size").reset_index()


def beside_baseline(examples: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """What models score and cost, beside a baseline with the same seed and on the same examples.

    Intervals resample examples; all but that of `mean_score` are paired.

    Args:
        examples: one row an example, with the columns `task`, `model`, `seed`, `example`, `score` (percent),
            `flops` and `tokens` (of its output).
        baseline: the model that the others are set beside; it stands in the table too.

    Returns:
        One row for each task, model and seed that the baseline has: `mean_score`, the points of it that are
        `lost` beside the baseline, the share of the baseline's that is `kept`, and `relative_flops`, FLOPs a
        token as a share of the baseline's, all with bounds.
    """
    rows = []
    for (task, seed), group in examples.groupby(["task", "seed"], sort=False):
        for model, of_model in group.groupby("model", sort=False):
            of_baseline = group[group.model == baseline]
            if len(of_baseline):
                beside = _beside(of_model, of_baseline)
                rows.append({"task": task, "model": model, "seed": seed, **beside})
    return pd.DataFrame(rows)


def _beside(examples: pd.DataFrame, baseline: pd.DataFrame) -> dict[str, float]:
    """The columns of one row of `beside_baseline`."""
    values = examples[["score", "flops", "tokens"]].to_numpy(np.float64)  # [example, value]
    of_baseline = baseline[["score", "flops", "tokens"]].to_numpy(np.float64)
    if not np.array_equal(examples.example, baseline.example):
        raise MeeError("The baseline was scored on other examples: score both on the same ones.")

    def quantities(weights: np.ndarray) -> np.ndarray:
        """`[resample, quantity]`, in the order of `BASELINE_QUANTITIES`."""
        score, flops, tokens = (weights @ values).T  # [resample] each
        full_score, full_flops, full_tokens = (weights @ of_baseline).T
        drawn = weights.sum(axis=1)
        share = (flops / tokens) / (full_flops / full_tokens)
        return np.stack([score / drawn, (full_score - score) / drawn, score / full_score, share], axis=1)

    together = interval(quantities, len(values))
    columns: dict[str, float] = {}
    for number, (name, prefix) in enumerate(BASELINE_QUANTITIES.items()):
        columns.update(together.item(number).columns(name, prefix))
    return columns


def cost_at_full_depth(seeds: pd.DataFrame, baseline: str = "vanilla") -> pd.DataFrame:
    """What each training objective costs before any token exits, beside a baseline with the same seed.

    Two trainings of one objective differ too: what several seeds lose alike is the price of an objective.

    Args:
        seeds: one row a task, model and seed, with its `score` at full depth (of the corpus, percent). Where
            the examples are stored it also has `lost` and its bounds, of `beside_baseline`.
        baseline: the model that the others are set beside.

    Returns:
        One row a task, model and seed, the baseline left out: `lost`, in points, with paired bounds `low` and
        `high` over examples. They are NaN where the examples are not stored; `lost` is then the difference of
        the corpus scores.
    """
    if seeds.empty:
        return pd.DataFrame(columns=["task", "model", "seed", "metric", "score", "lost", "low", "high"])
    of_baseline = seeds[seeds.model == baseline][["task", "seed", "score"]]
    pairs = seeds[seeds.model != baseline].merge(of_baseline, on=["task", "seed"], suffixes=("", "_baseline"))
    difference = pairs.score_baseline - pairs.score
    stored = pairs.reindex(columns=["lost", "lost_low", "lost_high"])  # NaN where there are no examples
    costs = pairs[["task", "model", "seed", "metric", "score"]]
    return costs.assign(lost=stored.lost.fillna(difference), low=stored.lost_low, high=stored.lost_high)
