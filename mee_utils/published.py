"""Published numbers, as facts, to stand beside ours ("Not all FLOPs", its table of softmax results)."""

from __future__ import annotations

import pandas as pd

# model, data set, reduction, mean exit block, seconds, samples a second, score (F1, ROUGE-L or BLEU)
REDUCTIONS = [
    ("t5-large", "squad", "decaying", 15, 6.7521, 1.481, 0), ("t5-large", "squad", "fixed", 15.05, 2.6543, 3.768, 0),
    ("t5-large", "squad", "none", 19.5294, 5.2598, 1.901, 90), ("t5-squad", "squad", "decaying", 14.0612, 4.3845, 2.281, 80),
    ("t5-squad", "squad", "fixed", 14.566, 6.9129, 1.447, 80), ("t5-squad", "squad", "none", 14.566, 4.4011, 2.272, 100),
    ("t5-samsum", "samsum", "decaying", 14.9615, 11.5839, 0.863, 2.5), ("t5-samsum", "samsum", "fixed", 15, 161.101, 0.062, 0),
    ("t5-samsum", "samsum", "none", 19.6388, 21.3617, 0.468, 36.0191), ("t5-large", "samsum", "decaying", 15, 18.6154, 0.537, 5.3799),
    ("t5-large", "samsum", "fixed", 15, 166.882, 0.06, 0), ("t5-large", "samsum", "none", 21.3266, 43.0316, 0.232, 18.3291),
    ("long-t5-tglobal-base", "multi_news", "decaying", 9.54358, 66.1225, 0.151, 3.3908),
    ("long-t5-tglobal-base", "multi_news", "fixed", 9.17888, 97.5776, 0.102, 13.0121),
    ("long-t5-tglobal-base", "multi_news", "none", 9.03257, 90.7552, 0.11, 16.0328),
    ("t5-large", "iwslt2017", "decaying", 14.9921, 10.69, 0.935, 0.165), ("t5-large", "iwslt2017", "fixed", 15, 72.6153, 0.138, 0),
    ("t5-large", "iwslt2017", "none", 19.8665, 21.4535, 0.466, 0.6646), ("t5-large", "cnn_dailymail", "decaying", 15, 7.5626, 1.322, 0.8696),
    ("t5-large", "cnn_dailymail", "fixed", 15, 65.6162, 0.152, 0), ("t5-large", "cnn_dailymail", "none", 20.1062, 35.9859, 0.278, 23.1428),
    ("t5-cnndm", "cnn_dailymail", "decaying", 14.92, 7.3143, 1.367, 2.046), ("t5-cnndm", "cnn_dailymail", "fixed", 15, 20.9629, 0.477, 0),
    ("t5-cnndm", "cnn_dailymail", "none", 18.1947, 47.876, 0.209, 24.9601),
    ("long-t5-tglobal-base", "big_patent", "decaying", 9.82461, 55.6787, 0.18, 4.6623),
    ("long-t5-tglobal-base", "big_patent", "fixed", 9.3767, 154.648, 0.065, 10.1653),
    ("long-t5-tglobal-base", "big_patent", "none", 9.12285, 158.71, 0.063, 22.6895),
]  # fmt: skip
TASKS = {"squad": "question_answering", "samsum": "summarization", "cnn_dailymail": "summarization", "iwslt2017": "translation",
         "multi_news": "long_document_summarization", "big_patent": "long_document_summarization"}  # fmt: skip
DEPTH = {"long-t5-tglobal-base": 12}
PRE_TRAINED = ("t5-large", "long-t5-tglobal-base")
# the final run: F1 on SQuAD and ROUGE-L on SAMSum, minimum exit block 19 of 24, threshold 0.9
FINAL_RUN = [("softmax", 92.45, 23.77), ("jsd", 91.47, 23.65), ("jsd, adaptive pruning", 91.34, 23.21)]


def why(reduction: str, score: float, of_none: float) -> str:
    """What likely tells a published row from ours: the known faults of its code, where they can explain such a score."""
    if of_none < 1:
        return "unpruned it scores as little: nothing to lose"
    if reduction == "none":
        return "another model and corpus"
    if score == 0:
        return "likely positions in the kept list, emitted as token ids"
    if reduction == "decaying" and score < 0.7 * of_none:
        return "likely the kept list, sorted by id, so that the next cut kept low ids"
    return "unexplained; few examples (samples)"


def published_reductions(complete: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The published table of reductions, row by row, beside our rows of the same kind.

    Args:
        complete: our table: `model`, `task`, `reduction` ("none": no exits, "unpruned", "fixed", "decaying"), `score`, `mean_exit_layer`.
        layers: blocks of our models.

    Returns:
        The published columns; `samples` (seconds times samples a second); `depth`, its mean exit block as a share of all; `score_of_none`;
        our model, task, score, score without pruning and depth, where there is such a row; `why_they_differ`.
    """
    rows = []
    unpruned = {(model, data): score for model, data, reduction, *_, score in REDUCTIONS if reduction == "none"}
    for model, data, reduction, block, seconds, speed, score in REDUCTIONS:
        name, of_none = "base" if model in PRE_TRAINED else "vanilla", unpruned[model, data]
        ours = complete[(complete.model == name) & (complete.task == TASKS[data])].set_index("reduction")
        row = {"model": model, "dataset": data, "reduction": reduction, "depth": block / DEPTH.get(model, 24), "seconds": seconds,
               "samples_per_second": speed, "samples": round(seconds * speed), "score": score, "score_of_none": of_none, "our_model": name,
               "our_task": TASKS[data]}  # fmt: skip
        if len(ours):
            found = ours.loc["unpruned" if reduction == "none" else reduction]
            row |= {"our_score": found.score, "our_score_of_none": ours.loc["unpruned"].score, "our_depth": found.mean_exit_layer / layers}
        rows.append(row | {"why_they_differ": why(reduction, score, of_none)})
    return pd.DataFrame(rows).reindex(columns=[
        "model", "dataset", "reduction", "depth", "seconds", "samples_per_second", "samples", "score", "score_of_none", "our_model", "our_task",
        "our_score", "our_score_of_none", "our_depth", "why_they_differ",
    ])  # fmt: skip
