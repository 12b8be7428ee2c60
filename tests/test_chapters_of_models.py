"""Figures and sentences of chapters 00 to 03, 07 and 90, from small tables whose answer is known."""

from itertools import product

import matplotlib
import numpy as np
import pandas as pd

from mee_utils.companion import figures
from mee_utils.companion.chapters.pruning import complete_table, decision_costs, lists, ranks

matplotlib.use("Agg")

TASKS = ["summarization", "translation"]
MODELS = ["vanilla", "calm", "free"]
LAYERS = range(1, 13)


def drawn(figure):
    """The panels that a figure shows and the names in its legend; neither may be more than six."""
    panels = [axis for axis in figure.axes if axis.get_visible()]
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(panels) <= 6 and len(names) <= 6, (len(panels), names)
    return panels, names


def message(figure):
    return figure.get_suptitle().replace("\n", " ")


def by_layer(column, value, **columns):
    """A row a task, model and layer; `value` is called with the model and the layer."""
    rows = [
        {"task": task, "model": model, "layer": layer, column: value(model, layer), **columns}
        for task, model, layer in product(TASKS, MODELS, LAYERS)
    ]
    return pd.DataFrame(rows).assign(low=lambda t: t[column] - 0.01, high=lambda t: t[column] + 0.01)


def without(table, *names):
    return table[~table.model.isin(names)]


# pruning (03)


def test_lists_are_as_long_as_the_worst_task_needs():
    rows = [
        {
            "task": task,
            "model": "calm",
            "layer": layer,
            "k": k,
            "recall": 0.9 + 0.05 * (k > 8 * (task == TASKS[0])),
        }
        for task, layer, k in product(TASKS, (1, 4), (8, 16))
    ]
    table = pd.DataFrame(rows).assign(low=0.9, high=1.0)
    assert "16 entries at layer 1 and 16 entries at layer 4" in lists.recall_conclusion(table, least=0.95)
    figure = lists.recall_figure(table, top_k=16)
    drawn(figure)
    assert message(figure) == (
        "The best 16 entries hold 95.0% of CALM's final tokens at layer 1 and 95.0% at layer 4"
    )


def test_ranks_are_drawn_of_the_two_models_that_differ_most():
    boxes = by_layer("median", lambda model, layer: 13.0 - layer).assign(
        on_top=lambda t: t.layer / 12, whisker_low=1.0, whisker_high=30.0
    )
    panels, _ = drawn(ranks.rank_figure(boxes, layer=6))
    assert len(panels) == 4 and message(ranks.rank_figure(boxes, 6)).startswith(
        "Layer 6 ranks 50% of vanilla's"
    )


def test_the_cheapest_rule_is_named_task_by_task():
    rows = [
        {"task": task, "rule": rule, "wanted": 0.99, "flops_share": cost}
        for (task, rule), cost in {
            ("summarization", "unpruned"): 0.9,
            ("summarization", "fixed"): 0.5,
            ("translation", "unpruned"): 0.6,
            ("translation", "adaptive"): 0.4,
        }.items()
    ]
    rows = [row | {"same_token": 0.99, "mean_exit_layer": 6.0} for row in rows]
    said = decision_costs.equal_conclusion(pd.DataFrame(rows), 12)
    fixed, adaptive = (figures.label(name) for name in ("fixed", "adaptive"))
    assert f"the {fixed} on summarization, and the {adaptive} on translation: 40% (translation)" in said
    assert "against 60% (translation) to 90% (summarization) for the margin over all entries" in said
    barely = pd.DataFrame(rows).assign(flops_share=[0.5, 0.49, 0.5, 0.495])
    assert "on translation (cheaper by at most 1.0 points): 49%" in decision_costs.equal_conclusion(
        barely, 12
    )
    alone = pd.DataFrame(rows).query("rule == 'unpruned'")
    assert decision_costs.equal_conclusion(alone, 12).endswith(
        "on every task: 60% (translation) to 90% (summarization) of the FLOPs of full depth."
    ), "nothing is saved, so nothing is compared"


def test_a_pruned_last_layer_may_keep_a_rule_from_a_share_of_predictions():
    """Fixed pruning without exits has 99.1 % of the predictions; a whole last layer has all."""
    columns = ["task", "rule", "same_token", "mean_exit_layer", "flops_share"]
    rows = [
        ("translation", "unpruned", 0.996, 9.0, 1.3),
        ("translation", "fixed", 0.991, 12.0, 1.01),
        ("translation", "few", 0.996, 9.0, 0.9),
    ]
    equal = pd.DataFrame(rows, columns=columns).assign(wanted=0.995)
    equal = equal.assign(flops_share_low=equal.flops_share, flops_share_high=equal.flops_share)
    table = decision_costs.equal_shown(equal, 12)
    assert table.loc[figures.label("fixed")].tolist() == ["not reached"]
    assert table.loc[figures.label("few")].tolist() == ["90% (90% to 90%)"]
    said = decision_costs.reached_conclusion(equal, 12)
    assert said == (
        "With a pruned last layer (fixed pruning), no threshold keeps 99.5% of the predictions on every "
        "task; with a whole one, some threshold does."
    )
    assert decision_costs.reached_conclusion(equal.assign(mean_exit_layer=9.0), 12) == ""
    neither = equal.assign(same_token=0.991, mean_exit_layer=12.0)
    assert decision_costs.reached_conclusion(neither, 12).endswith("on every task.")


def complete(lowest, with_whole_last_layer=False):
    """Full depth and the margin, unpruned and pruned; fixed pruning keeps `lowest` of vanilla's score."""
    ways = ["full_depth", "unpruned", "fixed"] + ["few"] * with_whole_last_layer
    rows = [
        {"model": model, "task": task, "reduction": way, "retained": 1.0, "other_token": 0.0}
        for model, task, way in product(["calm", "vanilla"], TASKS, ways)
    ]
    table = pd.DataFrame(rows).assign(flops_share=0.5, mean_exit_layer=4.0)
    of_vanilla = (table.model == "vanilla") & (table.task == TASKS[0]) & (table.reduction == "fixed")
    table.loc[of_vanilla, "retained"] = lowest
    table.loc[of_vanilla, "other_token"] = 1 - lowest
    table.loc[table.reduction == "few", "flops_share"] = 0.525
    return table.assign(low=table.retained, high=table.retained, other_output=(table.other_token > 0) * 1.0)


def test_pruning_is_not_said_to_cost_nothing_where_the_score_falls():
    said = complete_table.table_conclusion(complete(0.1))
    assert "change none of CALM's and up to 90.0% of vanilla's tokens. One token is enough" in said
    assert "none of CALM's and up to 100% of vanilla's outputs differ. Where lists miss final tokens" in said
    assert "falls: vanilla's from 100% to 10% of full depth's on summarization (fixed pruning)." in said
    unchanged = complete_table.table_conclusion(complete(1.0))
    assert "falls" not in unchanged and "One token" not in unchanged
    assert "Even unpruned" not in said
    nothing = complete(1.0)
    nothing.loc[(nothing.model == "vanilla") & (nothing.task == TASKS[1]), "retained"] = 0.0
    expected = "Even unpruned, vanilla retains next to nothing on translation, where tokens exit at layer 4.0"
    assert expected in complete_table.table_conclusion(nothing)
    unsure = complete(0.1).assign(high=1.0)
    assert "falls" not in complete_table.table_conclusion(unsure), "the intervals overlap"


def test_a_whole_last_layer_stands_beside_the_published_one():
    said = complete_table.table_conclusion(complete(0.1, with_whole_last_layer=True))
    assert (
        "the margin keeps 100% of vanilla's score on summarization, where fixed pruning keeps 10% and the "
        "full vocabulary 100%. On CALM it adds at most 2.5% of full depth's FLOPs to what fixed pruning costs"
    ) in said
    same = complete_table.table_conclusion(complete(1.0, with_whole_last_layer=True))
    assert "no score surely changes by more than 2 points. On CALM it" in same
    unsure = complete(0.1, with_whole_last_layer=True).assign(high=1.0)
    assert "no score surely changes" in complete_table.table_conclusion(unsure)
    as_cheap = complete(1.0, with_whole_last_layer=True).assign(flops_share=0.5)
    assert "costs no more FLOPs than fixed pruning." in complete_table.table_conclusion(as_cheap)
    assert "whole" not in complete_table.table_conclusion(complete(0.1))
    table = complete_table.table_shown(complete(0.1, with_whole_last_layer=True))
    row = table.loc[(figures.label("vanilla"), figures.label("fixed"))]
    assert row["score retained", "summarization"] == "10% (10% to 10%)"
    assert row["tokens changed", "summarization"] == "90.0%" and len(table) == 6


def entries_scored(whole):
    """Vanilla's and CALM's lists at the last two layers, which lack 30 % and 1 % of the tokens."""
    lost = {"vanilla": 0.3, "calm": 0.01}
    rows = [
        {
            "model": model,
            "task": TASKS[0],
            "rule": rule,
            "layer": layer,
            "recall": 1.0 if rule == "few" and layer == 12 else 1 - lost[model],
            "ids": 4000.0 if rule == "few" and layer == 12 else 64.0,
        }
        for model, rule, layer in product(lost, ["fixed", "few"] if whole else ["fixed"], (11, 12))
    ]
    return pd.DataFrame(rows).assign(low=lambda t: t.recall, high=lambda t: t.recall)


def test_a_pruned_last_layer_changes_tokens_that_do_not_exit():
    lost = lists.unreachable(entries_scored(whole=True))
    assert lists.unreachable_conclusion(lost) == (
        "Even if no token exits, fixed pruning of the last layer, as published, changes up to 1.0% of CALM's "
        "and up to 30.0% of vanilla's tokens. A whole last layer changes none."
    )
    assert "whole" not in lists.unreachable_conclusion(lists.unreachable(entries_scored(whole=False)))
    exact = lists.unreachable_conclusion(lost.assign(share=0.0))
    assert exact.startswith("If no token exits") and "changes none of CALM's" in exact
    table = lists.unreachable_shown(lost)
    assert list(table.columns) == [figures.label(TASKS[0])]
    assert table.loc[(figures.label("calm"), figures.label("fixed"))].tolist() == ["1.0% (1.0% to 1.0%)"]
    panels, names = drawn(lists.kept_figure(entries_scored(whole=True)))
    assert len(panels) == 1 and len(names) == 2
    assert message(lists.kept_figure(entries_scored(whole=True))).endswith(
        "the margin over few entries (ours) does so again, at layer 12"
    )
    assert message(lists.kept_figure(entries_scored(whole=False))).endswith("and a list from 12 on")


def timings(ways):
    rows = [
        {"task": TASKS[0], "model": "calm", "reduction": way, "batch": batch, "speed": speed}
        for batch, (way, speed) in product((1, 100), ways.items())
    ]
    return pd.DataFrame(rows)


def test_a_way_that_is_not_timed_yet_is_named_and_hides_no_other():
    compared = pd.DataFrame({"task": TASKS[0], "model": "calm", "reduction": ["unpruned", "fixed", "few"]})
    times = complete_table.comparable_times(timings({"unpruned": 0.5, "fixed": 0.6}), compared)
    said = complete_table.times_conclusion(times, compared)
    assert said == (
        "CALM with a pruned margin emits 1.20 times as many tokens a second as with the margin over all "
        "entries (batch size 1), the most with fixed pruning on summarization. Not timed yet: margin over "
        "few entries (ours)."
    )
    assert complete_table.times_shown(times.iloc[:0]) is None
    table = complete_table.times_shown(times)
    assert table.columns.tolist() == [("batch size 1", "summarization"), ("batch size 100", "summarization")]
    assert complete_table.comparable_times(timings({"unpruned": 0.5}), compared).empty
    slow = timings({"unpruned": 0.5, "fixed": 0.5, "few": 0.4})
    assert ": no time is saved." in complete_table.times_conclusion(slow, compared)
    assert "Not timed" not in complete_table.times_conclusion(slow, compared)


def test_a_sweep_says_how_long_a_list_must_be():
    rows = [("fixed", 2, 0.9), ("fixed", 8, 0.95), ("fixed", 64, 0.99), ("decaying", 2, 0.99)]
    swept = pd.DataFrame(rows, columns=["rule", "k", "same_token"]).assign(task=TASKS[0])
    assert lists.sweep_message(swept, 64) == (
        "Fixed pruning keeps at least 95.0% of the predictions with 8 entries and 99.0% with 64 entries"
    )
    assert "Fewer are enough with decaying pruning, whose list begins longer (2)." in lists.sweep_conclusion(
        swept
    )
    flat = swept.assign(same_token=0.99)
    assert "as many predictions with 8 entries as with 64 (at least 99.0%)" in lists.sweep_message(flat, 64)
    assert "Fewer" not in lists.sweep_conclusion(flat)
    whole = swept.assign(rule=swept.rule.replace("decaying", "few"))
    assert "Fewer are enough with a whole last layer (2)." in lists.sweep_conclusion(whole)


def test_zeros_are_counted_beside_the_published_rows():
    rows = [
        ("fixed", 0.0, 40.0, "pretrained", 48.0, 50.0),
        ("decaying", 30.0, 40.0, "vanilla", 10.0, 50.0),
        ("fixed", 10.0, 40.0, "long", np.nan, np.nan),
    ]
    columns = ["reduction", "score", "score_at_full_depth", "our_model", "our_score", "our_score_unpruned"]
    beside = pd.DataFrame(rows, columns=columns).assign(our_task="translation")
    assert complete_table.published_conclusion(beside) == (
        "Pruning takes more than half of the score in 2 of 3 published settings (1 with a score of 0) and in "
        "1 of our 2 (all on vanilla). The published zeros are probably list positions mistaken for token "
        "ids (08)."
    )
    none = complete_table.published_conclusion(beside.assign(our_score=50.0))
    assert "and in 0 of our 2. The published" in none
    unmatched = complete_table.published_conclusion(beside.assign(our_score_unpruned=np.nan))
    assert "2 of 3 published settings (1 with a score of 0). The published" in unmatched


def test_a_published_row_without_a_task_of_ours_is_not_shown_but_named():
    rows = [("squad", 40.0, np.nan), ("multi_news", np.nan, np.nan)]
    beside = pd.DataFrame(rows, columns=["dataset", "our_score", "our_seconds"])
    beside = beside.assign(model="t5-large", reduction="full_depth", score=1.0, seconds=2.0)
    beside = beside.assign(our_model="vanilla", our_task=TASKS[0], why_they_differ="another model")
    table = complete_table.published_shown(beside)
    assert table.dataset.tolist() == ["squad"] and table["our seconds"].tolist() == ["not timed"]
    assert table.pruning.tolist() == ["none"]
    assert complete_table.left_out(beside).startswith(
        "The rows on `multi_news`, for which no task of ours was run"
    )
    assert complete_table.left_out(beside[:1]) == ""


def test_a_model_that_scores_0_keeps_nothing_that_could_be_told():
    """A rehearsal on random weights ended in a traceback of pandas."""
    layer = {"model": "calm", "task": TASKS[0], "layer": 3, "confidence": 0.9, "accuracy": 0.5}
    kept = {"model": "calm", "task": TASKS[0], "retained": np.nan, "low": np.nan, "high": np.nan}
    said = ranks.minimum_conclusion(pd.DataFrame([layer]), pd.DataFrame([kept]))
    assert said.endswith("(confidence 0.90, agreement 0.50).")
    measured = pd.DataFrame([kept | {"retained": 0.95, "low": 0.9, "high": 1.0}])
    assert "CALM keeps 95%" in ranks.minimum_conclusion(pd.DataFrame([layer]), measured)
