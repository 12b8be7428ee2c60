"""Published tables, shown beside ours, such as the softmax results of "Not all FLOPs" (`reductions.csv`).

The file also says which model and task of ours is nearest to a row, and what likely tells the two apart.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..analysis.saturation import starts
from .statements import FOLDER

REDUCTION_COLUMNS = [
    *("model", "dataset", "reduction", "depth", "seconds", "samples_per_second", "samples", "score"),
    *("score_at_full_depth", "our_model", "our_task", "our_score", "our_score_unpruned", "our_depth"),
    "why_they_differ",
]


def published_reductions(ours: pd.DataFrame, layers: int) -> pd.DataFrame:
    """The published table, row by row, beside our rows of the same kind (NaN where we have none).

    A `depth` is the mean exit layer as a share of all; `samples`, how many examples a published row is about.

    Args:
        ours: `model`, `task`, `reduction` ("unpruned", "fixed", "decaying"), `score` and `mean_exit_layer`.
        layers: the depth of our models.
    """
    published = pd.read_csv(FOLDER / "reductions.csv")
    published["depth"] = published.mean_exit_layer / published.layers
    published["samples"] = (published.seconds * published.samples_per_second).round().astype(int)
    full = published[published.reduction == "full_depth"].rename(columns={"score": "score_at_full_depth"})
    rows = published.merge(full[["model", "dataset", "score_at_full_depth"]], on=["model", "dataset"])
    ours = ours.assign(our_depth=ours.mean_exit_layer / layers)
    ours = ours.rename(columns={"model": "our_model", "task": "our_task", "score": "our_score"})
    # "full_depth" is the paper's name for an unpruned margin: its tokens exit
    ours = ours[ours.reduction != "full_depth"].replace({"reduction": {"unpruned": "full_depth"}})
    keys = ["our_model", "our_task"]
    unpruned = ours[ours.reduction == "full_depth"].rename(columns={"our_score": "our_score_unpruned"})
    rows = rows.merge(unpruned[[*keys, "our_score_unpruned"]], "left", keys)
    rows = rows.merge(ours[[*keys, "reduction", "our_score", "our_depth"]], "left", [*keys, "reduction"])
    rows[keys] = rows[keys].where(rows.our_score.notna())
    return rows[REDUCTION_COLUMNS]


def published_main_figure() -> pd.DataFrame:
    """MEE's main figure as numbers (`statements/main_figure.csv`): a row per task and measure, T5-large.

    `depth` is the mean exit layer as a share of all, NaN where it is not given.
    """
    published = pd.read_csv(FOLDER / "main_figure.csv")
    return published.assign(depth=published.mean_exit_layer / published.layers)


def beside_main_figure(times: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Each published number of MEE's main figure beside ours, as shares of full depth.

    Scores and speeds of different models do not compare, their shares do: `kept`, of the score at full depth;
    `speed`, samples a second as a multiple of full depth's; `depth`, the mean exit layer.

    Args:
        times: ours, as `result_tables.read_timings` returns part "published".
        layers: the depth of our models.
    """
    published = published_main_figure()
    full = published[published.rule == "full_depth"].set_index("task")
    published = published.assign(
        published_kept=published.score / published.task.map(full.score),
        published_speed=published.samples_per_second / published.task.map(full.samples_per_second),
        published_depth=published.depth,
    )
    keys = ["task", "rule", "batch"]
    columns = [*keys, "published_kept", "published_speed", "published_depth"]
    at_published_share = (times.min_layer == times.min_layer.min()) | (times.rule == "full_depth")
    ours = times[at_published_share].assign(depth=times.mean_exit_layer / layers)
    ours = ours.rename(columns={"retained": "kept"})
    values = {"kept": "kept", "samples_speed": "speed", "depth": "depth"}
    wide = ours.pivot(index=keys, columns="decoder", values=list(values))
    wide.columns = [f"{values[value]}_{decoder}" for value, decoder in wide.columns]
    order = ours[keys].drop_duplicates()
    return order.merge(wide.reset_index(), on=keys).merge(published[columns], on=keys, how="left")


MEE_LAYERS = 24  # of T5-large, which MEE's Table 1 is about


def published_saturation(table_1: pd.DataFrame, layers: int) -> pd.DataFrame:
    """MEE's Table 1 (`statements/saturation.csv`) above ours, in units that do not depend on the depth.

    Layers are in percent of the depth, with the published ones, which are counted from 0, counted from 1; so
    are numbers of layers. Lengths are in tokens, and what is a share of prefixes is in percent.

    Args:
        table_1: ours, of one model: `saturation.compare` of every task.
        layers: the depth of our models.

    Returns:
        One row a `property`, `group` and `task` ("published" first): `mean`, `standard_deviation` over
        prefixes (NaN: not published), and the `unit` of both.
    """
    theirs = pd.read_csv(FOLDER / "saturation.csv").assign(task="published", layers=MEE_LAYERS)
    theirs.loc[theirs.property == "first_similar", "mean"] += 1
    names = dict(zip(_rises(MEE_LAYERS), _rises(layers), strict=True))
    theirs["property"] = theirs.property.replace(names)
    ours = table_1[table_1.property.isin(theirs.property)].assign(layers=layers)
    columns = ["property", "group", "task", "mean", "standard_deviation", "layers"]
    rows = pd.concat([theirs[columns], ours[columns]], ignore_index=True)
    in_layers = rows.property.isin(["first_similar", "similar_states"])
    in_tokens = rows.property == "prefix_tokens"
    scale = np.where(in_layers, 100 / rows.layers, np.where(in_tokens, 1, 100))
    rows[["mean", "standard_deviation"]] = rows[["mean", "standard_deviation"]].mul(scale, axis=0)
    rows["unit"] = np.where(in_layers, "% of the depth", np.where(in_tokens, "tokens", "% of the prefixes"))
    rows.loc[rows.unit == "% of the prefixes", "standard_deviation"] = np.nan  # that of a share says nothing
    order = {name: number for number, name in enumerate(theirs.property.unique())}
    return rows.drop(columns="layers").sort_values("property", key=lambda p: p.map(order), kind="stable")


def _rises(layers: int) -> list[str]:
    """The three properties "rises strictly after a layer", as `saturation.describe` names them."""
    return [f"rises_after_{after}" for after in starts(layers)]


def published_scores(scores: pd.DataFrame, sources: dict[str, str], texts: dict, tasks: dict) -> pd.DataFrame:
    """Scores that others published for models of about this size (`statements/scores.csv`) beside ours.

    A published score is shown beside ours only where the corpus is the same. `ours_as_published` scores our
    texts as was likely done there (`weighted_rouge_l`).

    Args:
        scores: ours: `task`, `system`, `metric`, `corpus_score`.
        sources: task -> the corpus that it reads.
        texts: task -> the vanilla model's outputs.
        tasks: task -> `Task`.
    """
    rows = pd.read_csv(FOLDER / "scores.csv")
    corpora = rows.corpus.str.split().str[0].str.lower()
    is_ours = [
        corpus in sources.get(task, "").lower() for corpus, task in zip(corpora, rows.task, strict=True)
    ]
    ours = scores[scores.system == "vanilla"].rename(columns={"corpus_score": "ours"})
    rows = rows[is_ours].merge(ours[["task", "metric", "ours"]], "left", ["task", "metric"])
    as_published = []
    for row in rows.itertuples():
        weighted = row.metric == "rougeL"
        score = weighted_rouge_l(texts[row.task], tasks[row.task].targets) if weighted else row.ours
        as_published.append(score)
    return rows.assign(ours_as_published=as_published)


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
