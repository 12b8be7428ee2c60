"""Published tables to stand beside ours, such as the softmax results of "Not all FLOPs" (`reductions.csv`).

The file also says which model and task of ours is nearest to a row, and what likely tells the two apart.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .statements import FOLDER


def published_reductions(complete: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The published table, row by row, beside our rows of the same kind (NaN where we have none).

    `complete` is ours: `model`, `task`, `reduction` ("unpruned", "fixed", "decaying"), `score` and
    `mean_exit_layer`; `layers` the depth of our models. A `depth` is the mean exit layer as a share of all.
    """
    rows = pd.read_csv(FOLDER / "reductions.csv")
    ours = complete[["model", "task", "score"]].add_prefix("our_")
    ours = ours.assign(reduction=complete.reduction, our_depth=complete.mean_exit_layer / layers)
    at_full = rows[rows.reduction == "full_depth"][["model", "dataset", "score"]]
    unpruned = ours[ours.reduction == "unpruned"].drop(columns=["reduction", "our_depth"])
    rows["depth"] = rows.mean_exit_layer / rows.layers
    rows["samples"] = (rows.seconds * rows.samples_per_second).round().astype(int)
    rows["kind"] = rows.reduction.replace("full_depth", "unpruned")
    rows = rows.merge(at_full, on=["model", "dataset"], suffixes=("", "_at_full_depth"))
    rows = rows.merge(ours.rename(columns={"reduction": "kind"}), "left")
    rows = rows.merge(unpruned, "left", ["our_model", "our_task"], suffixes=("", "_unpruned"))
    published = "model dataset reduction depth seconds samples_per_second samples score score_at_full_depth"
    beside = "our_model our_task our_score our_score_unpruned our_depth why_they_differ"
    return rows[[*published.split(), *beside.split()]]


def published_scores(scores: pd.DataFrame, sources: dict[str, str], texts: dict, tasks: dict) -> pd.DataFrame:
    """Scores that others published for models of about this size (`statements/scores.csv`) beside ours.

    `scores` is ours: `task`, `system`, `metric`, `corpus_score`; `sources` says which corpus a task reads,
    since a published score stands beside ours only where the corpus is the same. `ours_as_published` scores
    the vanilla model's `texts`, by task, as was likely done there (`weighted_rouge_l`).
    """
    rows = pd.read_csv(FOLDER / "scores.csv")
    known = rows.corpus.str.split().str[0].str.lower()
    same = [name in sources.get(task, "").lower() for name, task in zip(known, rows.task, strict=True)]
    ours = scores[scores.system == "vanilla"].rename(columns={"corpus_score": "ours"})
    rows = rows[same].merge(ours[["task", "metric", "ours"]], "left", ["task", "metric"])
    again = lambda row: weighted_rouge_l(texts[row.task], tasks[row.task].targets)
    scored = [again(row) if row.metric == "rougeL" else row.ours for row in rows.itertuples()]
    return rows.assign(ours_as_published=scored)


def weighted_rouge_l(texts: Sequence[str], references: Sequence[str]) -> float:
    """ROUGE-L, percent, as in the example of `py-rouge` 1.1: precision and recall to the power of 1 / 1.2.

    That power is ROUGE-W's. Chen et al. 2021 seem to have scored so: BART-large has 44.8, and by another tool
    38.7 in its authors' repository, with nearly the same ROUGE-1 and ROUGE-2.
    """
    from rouge_score.rouge_scorer import RougeScorer

    score = RougeScorer(["rougeL"], use_stemmer=True).score
    rows = [score(target, text)["rougeL"][:2] for text, target in zip(texts, references, strict=True)]
    precision, recall = np.array(rows).T ** (1 / 1.2)
    return 200 * float(np.mean(precision * recall / np.maximum(precision + recall, 1e-9)))
