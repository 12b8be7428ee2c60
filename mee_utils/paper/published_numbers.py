"""The table of softmax results of "Not all FLOPs" (`statements/reductions.csv`), to stand beside ours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .statements import FOLDER

OUR_TASKS = {
    "squad": "question_answering",
    "samsum": "summarization",
    "cnn_dailymail": "summarization",
    "iwslt2017": "translation",
    "multi_news": "long_document_summarization",
    "big_patent": "long_document_summarization",
}
PRE_TRAINED = ("t5-large", "long-t5-tglobal-base")


def why(reduction: str, score: float, full: float) -> str:
    """What likely tells a published row from ours; the bugs of its code, where they explain such a score."""
    if full < 1:
        return "unpruned it scores as little: nothing to lose"
    if reduction == "full_depth":
        return "another model and corpus"
    if score == 0:
        return "likely positions in the kept list, emitted as token ids"
    if reduction == "decaying" and score < 0.7 * full:
        return "likely the kept list, sorted by id, so that the next cut kept low ids"
    return "unexplained; few examples (samples)"


def published_reductions(complete: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The published table, row by row, beside our rows of the same kind (NaN where we have none).

    `complete` is ours: `model`, `task`, `reduction` ("unpruned", "fixed", "decaying"), `score` and
    `mean_exit_layer`; `layers` the depth of our models. A `depth` is the mean exit layer as a share of all.
    """
    rows = pd.read_csv(FOLDER / "reductions.csv")
    at_full = rows[rows.reduction == "full_depth"].set_index(["model", "dataset"]).score
    our_model = np.where(rows.model.isin(PRE_TRAINED), "base", "vanilla")
    our_task = rows.dataset.map(OUR_TASKS)
    ours = complete.set_index(["model", "task", "reduction"])[["score", "mean_exit_layer"]]
    same = rows.reduction.replace("full_depth", "unpruned")
    found = ours.reindex(list(zip(our_model, our_task, same)))
    full = ours.reindex([(model, task, "unpruned") for model, task in zip(our_model, our_task)])
    rows = rows.assign(
        depth=rows.mean_exit_layer / rows.layers,
        samples=(rows.seconds * rows.samples_per_second).round().astype(int),
        score_at_full_depth=at_full[list(zip(rows.model, rows.dataset))].to_numpy(),
        our_model=our_model,
        our_task=our_task,
        our_score=found.score.to_numpy(),
        our_score_at_full_depth=full.score.to_numpy(),
        our_depth=found.mean_exit_layer.to_numpy() / layers,
    )
    reasons = map(why, rows.reduction, rows.score, rows.score_at_full_depth)
    published = "model dataset reduction depth seconds samples_per_second samples score score_at_full_depth"
    ours_beside = "our_model our_task our_score our_score_at_full_depth our_depth"
    return rows[[*published.split(), *ours_beside.split()]].assign(why_they_differ=list(reasons))
