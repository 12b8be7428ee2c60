"""Tables of notebook 00: what the data holds, and what the models score on it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..tasks.synthetic.words import DIFFICULTIES
from ..traces.trace import final_predictions
from .statistics import mean_interval


def token_difficulty(task, tokenizer, max_length: int | None = None) -> np.ndarray:
    """The difficulty of each target token of a synthetic task, in the order of a trace along the references.

    A token belongs to the word in which it begins; the end is "grammatical". A trace cuts at `max_length`.
    """
    if task.spans is None:
        raise MeeError(f'Difficulty is known for synthetic data only, not for "{task.source}".')
    encoded = tokenizer(
        task.targets, return_offsets_mapping=True, truncation=max_length is not None, max_length=max_length
    )
    names = []
    for target, offsets, spans in zip(task.targets, encoded["offset_mapping"], task.spans, strict=True):
        names += [_difficulty_at(target, start, end, spans) for start, end in offsets]
    return np.array(names)


def _difficulty_at(target: str, start: int, end: int, spans) -> str:
    """The difficulty of the token from `start` to `end` of a target."""
    while start < end and target[start] == " ":
        start += 1
    if end <= start:
        return "grammatical"
    covering = (span.difficulty for span in spans if span.start <= start < span.end)
    return next(covering, "grammatical")


def score_table(tasks: Mapping, texts: Mapping, seed: int = 0) -> pd.DataFrame:
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
                        **mean_interval(values, np.arange(len(values)), seed=seed).columns(),
                    }
                )
    return pd.DataFrame(rows)


def difficulty_accuracy(tasks: Mapping, models: Mapping, max_target: int) -> pd.DataFrame:
    """Accuracy at full depth by difficulty, references fed in, with 95 % intervals over sequences."""
    rows = []
    inputs = [text for task in tasks.values() for text in task.inputs]
    targets = [text for task in tasks.values() for text in task.targets]
    for name, model in models.items() if tasks else ():
        difficulty = np.concatenate(
            [token_difficulty(task, model.tokenizer, max_target) for task in tasks.values()]
        )
        along = final_predictions(model, inputs, targets, max_new_tokens=max_target)
        right = along.final_id == along.token_id
        for kind in DIFFICULTIES:
            chosen = difficulty == kind
            if chosen.any():
                accuracy = mean_interval(right[chosen], along.sequence[chosen]).columns("accuracy")
                rows.append({"model": name, "difficulty": kind, **accuracy, "tokens": chosen.sum()})
    return pd.DataFrame(rows, columns=["model", "difficulty", "accuracy", "low", "high", "tokens"])


def form_table(manifests: Mapping[str, dict]) -> pd.DataFrame:
    """Exact match on each form of synthetic question, percent, as `make train` measured it."""
    rows = []
    for model, manifest in manifests.items():
        for scores in manifest["scores"].values():
            for form, exact_match in scores.get("exact_match_by_form", {}).items():
                rows.append((model, form, exact_match))
    return pd.DataFrame(rows, columns=["model", "form", "exact_match"])


def seed_spread(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean, lowest and highest over the seeds of a model's training, for each task and model."""
    of_model = rows.groupby(["task", "model"], sort=False)
    return of_model[column].agg(mean="mean", low="min", high="max", seeds="size").reset_index()
