"""The paper's table, complete: what pruning changes, in what time, and each published row beside ours."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...prose import listed, span
from ..wording import in_a_sentence, with_interval
from .ways import (
    LITTLE,
    PUBLISHED,
    WHOLE_LAST,
    by_way,
    changed,
    of_calm,
    of_shown_models,
    shown_among,
    way_label,
)


def table_shown(complete: pd.DataFrame) -> pd.DataFrame:
    """The paper's table, complete, of the fine-tuned models: a row a model and way of pruning.

    The score and the FLOPs are shares of full depth's, tokens changed a share of the tokens.
    """
    shown = of_shown_models(complete[complete.reduction != "full_depth"])
    scores = [with_interval(row, "retained", low="low", high="high") for _, row in shown.iterrows()]
    cells = {
        "score retained": scores,
        "FLOPs": shown.flops_share.map("{:.0%}".format),
        "tokens changed": shown.other_token.map("{:.1%}".format),
    }
    return by_way(shown.assign(**cells), ["model", "reduction"], "task", list(cells))


def table_conclusion(complete: pd.DataFrame) -> str:
    """How many tokens pruning changes in each model, what that does to the score, and what mends it."""
    shown = of_shown_models(complete)
    pruned = shown[shown.reduction.isin(PUBLISHED)]
    most = pruned.groupby("model", sort=False)[["other_token", "other_output"]].max()
    most = most.loc[shown_among(most.index)]
    outputs = (
        f"One token is enough to change an output: {changed(most.other_output, 'outputs', '.0%')} differ."
    )
    sentences = [
        "Against the unpruned run at the same threshold, the published ways of pruning change "
        f"{changed(most.other_token)}.",
        outputs if most.other_output.max() > 0 else "",
        _lower_scores(shown),
        _nothing_left(shown),
        _whole_last_layer(shown),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _lower_scores(complete: pd.DataFrame) -> str:
    """Where a published way of pruning surely costs score, in each model the largest fall; or nothing.

    A fall is sure where the interval of the pruned run lies below what the unpruned run retains.
    """
    falls = []
    for name, rows in complete.groupby("model", sort=False):
        plain = rows[rows.reduction == "unpruned"].set_index("task").retained.clip(upper=1)
        pruned = rows[rows.reduction.isin(PUBLISHED)]
        before = pruned.task.map(plain)
        fall = before - pruned.retained
        sure = (pruned.high < before) & (fall > LITTLE)
        if sure.any():
            worst = pruned.loc[fall[sure].idxmax()]
            falls.append(
                f"{figures.label(name)}'s from {plain[worst.task]:.0%} to {worst.retained:.0%} of full "
                f"depth's on {figures.label(worst.task)} ({way_label(worst.reduction)})"
            )
    return f"Where lists miss final tokens, the score falls: {listed(falls)}." if falls else ""


def _nothing_left(complete: pd.DataFrame) -> str:
    """Where the margin over all entries retains nothing, so that pruning has nothing to lose."""
    rows = complete[(complete.reduction == "unpruned") & (complete.retained < LITTLE)]
    places = [
        f"{figures.label(row.model)} retains next to nothing on {figures.label(row.task)}, where tokens exit "
        f"at layer {row.mean_exit_layer:.1f} on average"
        for row in rows.itertuples()
    ]
    return f"Even unpruned, {'; and '.join(places)}." if places else ""


def _whole_last_layer(complete: pd.DataFrame) -> str:
    """What a whole last layer keeps of the score, and costs, beside the published fixed pruning.

    Named is the largest change in each model that is sure: outside the interval of fixed pruning.
    """
    if not {"fixed", WHOLE_LAST} <= set(complete.reduction):
        return ""
    kept = complete.pivot(index=["model", "task"], columns="reduction", values=["retained", "low", "high"])
    share = kept["retained"]
    change = (share[WHOLE_LAST] - share.fixed).abs()
    sure = (kept["high"].fixed < share[WHOLE_LAST]) | (kept["low"].fixed > share[WHOLE_LAST])
    parts = []
    for name, changes in change[sure & (change > LITTLE)].groupby("model", sort=False):
        _, task = changes.idxmax()
        row = share.loc[(name, task)]
        parts.append(
            f"{row[WHOLE_LAST]:.0%} of {figures.label(name)}'s score on {figures.label(task)}, where fixed "
            f"pruning keeps {row.fixed:.0%} and the full vocabulary {row.unpruned:.0%}"
        )
    cost = _dearer(of_calm(complete))
    if not parts:
        return (
            f"With a whole last layer no score surely changes by more than {100 * LITTLE:.0f} points.{cost}"
        )
    return f"With few entries before a whole last layer, the margin keeps {'; and '.join(parts)}.{cost}"


def _dearer(complete: pd.DataFrame) -> str:
    """What a whole last layer costs CALM beside the published fixed pruning."""
    if complete.empty:
        return ""
    spent = complete.pivot(index="task", columns="reduction", values="flops_share")
    points = 100 * (spent[WHOLE_LAST] - spent.fixed).max()
    if points < 0.05:
        return " On CALM it costs no more FLOPs than fixed pruning."
    return f" On CALM it adds at most {points:.1f}% of full depth's FLOPs to what fixed pruning costs."


def comparable_times(times: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """The timings of the settings in `compared`; no rows unless all of the published ones were timed."""
    keys = ["task", "model", "reduction"]
    needed = compared[compared.reduction.isin(["unpruned", *PUBLISHED])]
    timed = needed.merge(times[keys].drop_duplicates(), on=keys)
    return times if len(timed) == len(needed) else times.iloc[:0]


def times_shown(times: pd.DataFrame) -> pd.DataFrame | None:
    """Tokens a second, full depth being 1: a row a model and way of pruning, columns by batch and task.

    None where nothing was timed.
    """
    if times.empty:
        return None
    speeds = times.sort_values("batch", kind="stable")
    speeds["speed"] = speeds.speed.astype(float).map("{:.2f}".format)
    speeds["batch"] = speeds.batch.map("batch size {}".format)
    return by_way(speeds, ["model", "reduction"], ["batch", "task"], ["speed"])["speed"]


def times_conclusion(times: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Whether pruning is faster than the margin over all entries by the clock, and what is not timed."""
    one = of_calm(times[times.batch == times.batch.min()]) if len(times) else times
    if one.empty:
        return ""
    speed = one.astype({"speed": float}).pivot(index="task", columns="reduction", values="speed")
    gain = speed.div(speed["unpruned"], axis=0).drop(columns="unpruned").unstack()
    gain = gain.dropna()  # of a way and a task
    text = (
        f"CALM with a pruned margin emits {span(gain, '{:.2f}')} times as many tokens a second as with the "
        f"margin over all entries (batch size {one.batch.iloc[0]})"
    )
    way, task = gain.idxmax()
    if gain.max() < 1.02:
        text += (
            ": no time is saved. At the width of these models, choosing entries and gathering their rows "
            "probably takes as long as scoring all."
        )
    else:
        text += f", the most with {way_label(way)} on {figures.label(task)}."
    untimed = [name for name in compared.reduction.unique() if name not in set(times.reduction)]
    missing = f" Not timed yet: {listed(map(in_a_sentence, untimed))}." if untimed else ""
    return f"{text}{missing}"


def published_conclusion(beside: pd.DataFrame) -> str:
    """How often pruning takes more than half of the score, in the published rows and in ours."""
    rows = beside[beside.reduction.isin(PUBLISHED)]
    theirs = rows[rows.score_at_full_depth > 0]
    low = theirs.score < theirs.score_at_full_depth / 2
    ours = rows[rows.our_score_unpruned > 0].drop_duplicates(["our_model", "our_task", "reduction"])
    below = ours[ours.our_score < ours.our_score_unpruned / 2]
    of_ours = f" and in {len(below)} of our {len(ours)}" if len(ours) else ""
    if len(below):
        of_ours += f" (all on {listed(map(figures.label, below.our_model.unique()))})"
    return (
        f"Pruning takes more than half of the score in {low.sum()} of {len(low)} published settings "
        f"({(theirs.score == 0).sum()} with a score of 0){of_ours}. The published zeros are probably list "
        "positions mistaken for token ids (08)."
    )


def published_shown(beside: pd.DataFrame) -> pd.DataFrame:
    """The paper's rows for which we have a task, beside ours: scores in percent, seconds for `samples`."""
    shown = beside[beside.our_score.notna()].copy()
    shown["reduction"] = shown.reduction.replace("full_depth", "none")
    shown["our_model"] = shown.our_model.map(figures.label)
    shown["our_task"] = shown.our_task.map(figures.label)
    timed = shown.our_seconds.notna()
    shown["our_seconds"] = shown.our_seconds.map("{:.1f}".format).where(timed, "not timed")
    columns = {
        "model": "model",
        "dataset": "dataset",
        "reduction": "pruning",
        "score": "score",
        "seconds": "seconds",
        "our_model": "our model",
        "our_task": "our task",
        "our_score": "our score",
        "our_seconds": "our seconds",
        "why_they_differ": "why they differ",
    }
    return shown[list(columns)].rename(columns=columns).round(1).reset_index(drop=True)


def left_out(beside: pd.DataFrame) -> str:
    """Which datasets of the paper have no row of ours."""
    shown = beside.dataset[beside.our_score.notna()].unique()
    datasets = [name for name in beside.dataset.unique() if name not in shown]
    if not datasets:
        return ""
    names = listed(f"`{name}`" for name in datasets)
    return f"The rows on {names}, for which no task of ours was run, are in `published_rows.csv` alone."
