"""Tables of notebook 00: what the data holds, and what the models score on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..tasks.synthetic.words import DIFFICULTIES
from .difficulty import token_difficulty
from .statistics import mean_interval


def difficulty_shares(tasks: Mapping, tokenizer) -> pd.DataFrame:
    """Share of each difficulty among the target tokens: one row a task, one column a difficulty."""
    rows = []
    for name, task in tasks.items():
        found = token_difficulty(task, tokenizer)
        shares = {difficulty: float(np.mean(found == difficulty)) for difficulty in DIFFICULTIES}
        rows.append({"task": name, "tokens": len(found), **shares})
    return pd.DataFrame(rows)


def score_table(tasks: Mapping, texts: Mapping, baselines: Mapping, seed: int = 0) -> pd.DataFrame:
    """Scores of models and trivial baselines: corpus score, mean over examples and its 95 % interval, in
    percent.

    Args:
        tasks: task name -> `Task`.
        texts: task name -> model -> outputs.
        baselines: task name -> baseline -> outputs.
        seed: of the bootstrap.
    """
    rows = []
    for name, task in tasks.items():
        outputs = [("model", *item) for item in texts[name].items()]
        outputs += [("baseline", *item) for item in baselines[name].items()]
        for kind, system, produced in outputs:
            corpus = task.score(produced)
            for metric, values in task.score_examples(produced).items():
                mean = mean_interval(values, np.arange(len(values)), seed=seed).columns()
                which = {"task": name, "system": system, "kind": kind, "metric": metric}
                rows.append({**which, "corpus_score": corpus[metric], **mean})
    return pd.DataFrame(rows)


def difficulty_accuracy(tasks: Mapping, models: Mapping, max_target: int) -> pd.DataFrame:
    """Accuracy at full depth by difficulty, references fed in, with 95 % intervals over sequences."""
    from ..traces.trace import right_at_full_depth

    rows = []
    for name, model in models.items() if tasks else ():
        tables = []
        for task in tasks.values():
            right, sequence = right_at_full_depth(model, task.inputs, task.targets, max_target)
            difficulty = token_difficulty(task, model.tokenizer, max_target)
            tables.append(pd.DataFrame({"right": right, "difficulty": difficulty, "sequence": sequence}))
        tokens = pd.concat(tables, keys=range(len(tables)))
        tokens["sequence"] += 1_000_000 * tokens.index.get_level_values(0)  # no two tasks share a sequence
        for kind in DIFFICULTIES:
            found = tokens[tokens["difficulty"] == kind]
            if len(found):
                share = mean_interval(found["right"].to_numpy(), found["sequence"].to_numpy())
                row = {"model": name, "difficulty": kind, **share.columns("accuracy")}
                rows.append({**row, "tokens": len(found)})
    return pd.DataFrame(rows, columns=["model", "difficulty", "accuracy", "low", "high", "tokens"])
