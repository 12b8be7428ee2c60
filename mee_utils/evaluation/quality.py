"""Tables of notebook 00: what the data holds, how the models learned, what they score."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..tasks.made import DIFFICULTIES
from .difficulty import token_difficulty
from .floors import floor_texts
from .statistics import mean_interval

NAMES = {"f1": "F1", "bleu": "BLEU", "rougeL": "ROUGE-L"}


def difficulty_shares(tasks: dict, tokenizer) -> pd.DataFrame:
    """Share of each difficulty among the target tokens: one row a task, one column a difficulty."""
    rows = []
    for name, task in tasks.items():
        found = token_difficulty(task, tokenizer)
        rows.append({"task": name, "tokens": len(found), **{d: float(np.mean(found == d)) for d in DIFFICULTIES}})
    return pd.DataFrame(rows)


def weight_table(weights: dict[str, list[float]]) -> pd.DataFrame:
    """Block weights of each objective in long form: model, layer, weight."""
    rows = [
        {"model": model, "layer": layer, "weight": weight}
        for model, listed in weights.items()
        for layer, weight in enumerate(listed, start=1)
    ]
    return pd.DataFrame(rows)


def learning_curves(manifests: dict[str, dict]) -> pd.DataFrame:
    """Held-out cross-entropy of each block along training, in long form: model, step, layer, cross_entropy."""
    rows = [
        {"model": model, "step": point["step"], "layer": layer, "cross_entropy": value}
        for model, manifest in manifests.items()
        for point in manifest["block_cross_entropy"]
        for layer, value in enumerate(point["cross_entropy"], start=1)
    ]
    return pd.DataFrame(rows)


def floor_outputs(tasks: dict, train: dict) -> dict[str, dict[str, list[str]]]:
    """Outputs of the floors of every task: task name -> floor -> texts. `train` holds the training splits."""
    return {name: floor_texts(task, train[name]) for name, task in tasks.items()}


def score_table(tasks: dict, texts: dict, floors: dict, seed: int = 0) -> pd.DataFrame:
    """Scores of models and floors: corpus score, mean over examples and its 95 % interval, in percent.

    Args:
        tasks: task name -> `Task`.
        texts: task name -> model -> outputs.
        floors: task name -> floor -> outputs.
        seed: of the bootstrap.
    """
    rows = []
    for name, task in tasks.items():
        for kind, outputs in (("model", texts[name]), ("floor", floors[name])):
            for system, produced in outputs.items():
                corpus, examples = task.score(produced), task.score_examples(produced)
                for metric, values in examples.items():
                    interval = mean_interval(values, np.arange(len(values)), seed=seed)
                    rows.append(
                        {
                            "task": name, "system": system, "kind": kind, "metric": metric, "corpus_score": corpus[metric],
                            "mean": float(interval.mean), "low": float(interval.low), "high": float(interval.high),
                        }
                    )  # fmt: skip
    return pd.DataFrame(rows)


def score_sentences(scores: pd.DataFrame, metrics: dict[str, str]) -> list[str]:
    """One sentence a task: the best model's and the best floor's corpus score."""
    lines = []
    for task, metric in metrics.items():
        rows = scores[(scores.task == task) & (scores.metric == metric)].sort_values("corpus_score")
        best, floor = rows[rows.kind == "model"].iloc[-1], rows[rows.kind == "floor"].iloc[-1]
        vanilla = rows[rows.system == "vanilla"].iloc[0]
        exact = scores[(scores.task == task) & (scores.metric == "exact_match") & (scores.system == "vanilla")]
        if len(exact):
            lines.append(f"{task.replace('_', ' ')}: vanilla answers {exact.corpus_score.iloc[0]:.1f} % exactly (90 was the aim)")
        lines.append(
            f"{task.replace('_', ' ')}: vanilla reaches {NAMES.get(metric, metric)} {vanilla.corpus_score:.1f}, the best model ({best.system}) "
            f"{best.corpus_score:.1f}, the highest floor ({floor.system}) {floor.corpus_score:.1f}"
        )
    return lines


def difficulty_accuracy(tasks: dict, models: dict, max_target: int) -> pd.DataFrame:
    """Accuracy of the last block by difficulty, references fed in: model, difficulty, accuracy, low, high, tokens."""
    from ..decoding.tracing import right_at_full_depth

    rows = []
    for name, model in models.items():
        right, difficulty, sequence = [], [], []
        for number, task in enumerate(tasks.values()):
            same, sequences = right_at_full_depth(model, task.inputs, task.targets, max_target)
            right.append(same)
            difficulty.append(token_difficulty(task, model.tokenizer, max_target))
            sequence.append(sequences + 1_000_000 * number)
        if not right:
            continue
        right, difficulty, sequence = map(np.concatenate, (right, difficulty, sequence))
        for kind in DIFFICULTIES:
            chosen = difficulty == kind
            if chosen.any():
                share = mean_interval(right[chosen], sequence[chosen])
                rows.append(
                    {"model": name, "difficulty": kind, "accuracy": float(share.mean), "low": float(share.low),
                     "high": float(share.high), "tokens": int(chosen.sum())}
                )  # fmt: skip
    return pd.DataFrame(rows, columns=["model", "difficulty", "accuracy", "low", "high", "tokens"])
