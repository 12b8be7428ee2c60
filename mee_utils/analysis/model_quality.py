"""Tables of notebook 00: what the data holds, and what the models score on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..tasks.synthetic.words import DIFFICULTIES
from ..traces.trace import trace
from .statistics import mean_interval


def token_difficulty(task, tokenizer, max_length: int | None = None) -> np.ndarray:
    """The difficulty of each target token of a synthetic task, in the order of a trace along the references.

    A token belongs to the word in which it begins; the end token is "grammatical". `max_length` is where the
    trace cut its references (`max_new_tokens`).
    """
    if task.spans is None:
        raise CompanionError(
            f'Difficulty of tokens is known for synthetic data only, not for "{task.source}".'
        )
    cut = dict(truncation=max_length is not None, max_length=max_length)
    encoded, names = tokenizer(task.targets, return_offsets_mapping=True, **cut), []
    for target, offsets, spans in zip(task.targets, encoded["offset_mapping"], task.spans, strict=True):
        for start, end in offsets:
            while start < end and target[start] == " ":
                start += 1
            covering = [span.difficulty for span in spans if span.start <= start < span.end]
            names.append(covering[0] if covering and end > start else "grammatical")
    return np.array(names)


def difficulty_shares(tasks: Mapping, tokenizer) -> pd.DataFrame:
    """Share of each difficulty among the target tokens: one row a task, one column a difficulty."""
    rows = []
    for name, task in tasks.items():
        found = token_difficulty(task, tokenizer)
        shares = {difficulty: float(np.mean(found == difficulty)) for difficulty in DIFFICULTIES}
        rows.append({"task": name, "tokens": len(found), **shares})
    return pd.DataFrame(rows)


def score_table(tasks: Mapping, texts: Mapping, baselines: Mapping, seed: int = 0) -> pd.DataFrame:
    """Scores of models and trivial baselines, percent: of the corpus, and mean of examples with an interval.

    `texts` and `baselines` are task -> system -> outputs; `seed` is that of the bootstrap.
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
    rows = []
    for name, model in models.items() if tasks else ():
        tables = []
        for task in tasks.values():
            found = trace(model, task.inputs, task.targets, max_new_tokens=max_target)
            difficulty = token_difficulty(task, model.tokenizer, max_target)
            columns = {"right": found.final_id == found.token_id, "sequence": found.sequence.astype(np.int64)}
            tables.append(pd.DataFrame({**columns, "difficulty": difficulty}))
        tokens = pd.concat(tables, keys=range(len(tables)))
        tokens["sequence"] += 1_000_000 * tokens.index.get_level_values(0)  # no two tasks share a sequence
        for kind, part in tokens.groupby(pd.Categorical(tokens.difficulty, DIFFICULTIES), observed=True):
            share = mean_interval(part.right.to_numpy(), part.sequence.to_numpy()).columns("accuracy")
            rows.append({"model": name, "difficulty": kind, **share, "tokens": len(part)})
    return pd.DataFrame(rows, columns=["model", "difficulty", "accuracy", "low", "high", "tokens"])
