"""Figures and sentences of chapters 00 to 03, 07 and 90, from small tables whose answer is known."""

from itertools import product

import matplotlib
import numpy as np
import pandas as pd
import pytest

from mee_utils.companion import figures
from mee_utils.companion.chapters import models, saturation, training
from mee_utils.companion.chapters.monotonicity import overconfidence, settling, tokens
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


# settling and monotonicity (01)

STABLE = by_layer("share", lambda model, layer: min(1, layer / (8 if model == "vanilla" else 4)))


def test_settling_is_drawn_beside_the_published_points_and_told_by_its_numbers():
    figure = settling.settled_figure(STABLE)
    assert message(figure) == "After layer 4, 100% of CALM's and 50% of vanilla's predictions are final"
    panels, names = drawn(figure)
    crosses = [line for line in panels[0].lines if line.get_label() == "CALM as published"]
    assert [list(line.get_xydata()[0]) for line in crosses] == [[2, 0.75]] and names[
        -1
    ] == "CALM as published"
    assert "vanilla" not in settling.settled_message(without(STABLE, "vanilla"))


def test_a_dip_is_a_fall_from_any_layer_to_a_later_one():
    confidence = by_layer(
        "confidence", lambda model, layer: layer / 12 - 0.3 * (model == "free" and layer == 6)
    )
    confidence = confidence.assign(standard_deviation=0.1)
    fallen = settling.dips(confidence)
    assert dict(fallen) == pytest.approx(dict.fromkeys(TASKS, 5 / 12 - (6 / 12 - 0.3)))
    assert "Here it does so on every task" in settling.confidence_conclusion(confidence)
    assert not settling.confidence_conclusion(without(confidence, "free"))
    drawn(settling.confidence_figure(confidence))


def monotonic(calm):
    shares = {"vanilla": 0.5, "calm": calm, "free": 0.1}
    rows = [
        {
            "task": task,
            "model": model,
            "kind": kind,
            "after_layer": after,
            "start": 0.2,
            "share": shares[model],
        }
        for task, model, kind, after in product(TASKS, MODELS, ("strictly rising", "never falling"), (0, 4))
    ]
    return pd.DataFrame(rows).assign(low=0.0, high=1.0)


def test_calm_is_called_the_most_monotonic_only_where_it_is():
    most = "has the most tokens whose confidence never falls"
    assert message(tokens.monotonic_figure(monotonic(0.4))) == f"On every task, vanilla {most}"
    mixed = monotonic(0.6)
    mixed.loc[(mixed.task == "translation") & (mixed.model == "vanilla"), "share"] = 0.9
    assert tokens.monotonic_message(mixed) == f"On summarization, CALM {most}; on translation vanilla"
    said = tokens.monotonic_conclusion(mixed)
    assert (
        "CALM has the largest share of all models on summarization, and a larger one than vanilla on" in said
    )
    assert not tokens.monotonic_conclusion(without(mixed, "calm"))


def test_a_token_is_final_from_the_layer_after_the_last_other_choice():
    choices = {"vanilla": "abab" + "b" * 8, "calm": "b" * 12}
    rows = [
        {"model": model, "layer": layer, "rank": 1, "token": tokens[layer - 1], "probability": 0.5}
        for model, tokens in choices.items()
        for layer in LAYERS
    ]
    predicted = pd.DataFrame(rows)
    assert dict(tokens.final_layers(predicted)) == {"vanilla": 4, "calm": 1}
    choice = "layer 1's first choice"
    assert tokens.tokens_conclusion(predicted) == (
        f"In the last figure, CALM keeps {choice} throughout; vanilla permanently abandons it (probability "
        "0.50 there)."
    )
    back = predicted.assign(token=predicted.token.where(predicted.layer != 1, "b"))
    assert "vanilla abandons it and returns to it." in tokens.tokens_conclusion(back)
    lost = predicted.assign(token=predicted.token.where(predicted.layer != 1, "c"))
    lost = lost.assign(probability=lost.model.map({"vanilla": 1.0, "calm": 0.07}))
    assert tokens.tokens_conclusion(lost) == (
        f"In the last figure, all models permanently abandon {choice}, whatever its probability there (0.07 "
        "to 1.00)."
    )
    said = tokens.token_message(predicted, "translation")
    assert said == 'Translation: "b" is final from layer 4 on in vanilla, and from layer 1 on in CALM'
    other = predicted.assign(token=predicted.token.where(predicted.model != "calm", "$c"))
    assert tokens.token_message(other, "translation").endswith(
        r'in vanilla, and "\$c" from layer 1 on in CALM'
    )
    figure = tokens.token_figure(predicted, "translation", "a [b]")
    assert message(figure).startswith('Translation, "a [b]": "b" is final')
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "layer"]


def test_a_layer_is_overconfident_by_its_confidence_minus_its_accuracy():
    table = by_layer("confidence", lambda model, layer: 0.9).assign(
        accuracy=lambda t: t.layer / 12, expected_calibration_error=0.1
    )
    worst = overconfidence.worst_excess(table)
    assert worst.excess["calm"] == pytest.approx(0.9 - 1 / 12) and worst.layer["calm"] == 1
    drawn(overconfidence.overconfidence_figure(table))
    said = overconfidence.overconfidence_conclusion(table, 4)
    assert said.startswith(
        "In every model layer 1 is overconfident on every task. Vanilla stays overconfident by 0.05 or more "
        "on every task up to layer 10. Layers that are underconfident by 0.05 or more: on every task, layer "
        "12 of vanilla, layer 12 of CALM and layer 12 of FREE."
    ), "accuracy passes 0.9 after layer 10"
    modest = table.assign(confidence=table.confidence.where(table.model != "calm", 0.05))
    assert "in vanilla and FREE, but not in CALM" in overconfidence.overconfidence_conclusion(modest, 4)
    on_one = table.assign(
        accuracy=table.confidence + 0.1 * (table.task == TASKS[0]) * table.layer.isin([2, 4])
    )
    on_one = on_one[on_one.model == "calm"]
    assert "0.05 or more: on summarization, some of layers 2 to 4 of CALM." in (
        overconfidence.overconfidence_conclusion(on_one, 4)
    )
    exact = table.assign(confidence=table.accuracy)
    assert overconfidence.overconfidence_conclusion(exact, 4).startswith(
        "In no model is layer 1 overconfident on every task. No layer is underconfident by 0.05 or more."
    )
    never = table.assign(accuracy=table.accuracy.where(table.model != "calm", 0.9))
    assert overconfidence.overconfidence_message(never) == (
        "Vanilla is overconfident by up to 0.82, CALM at no layer"
    ), "a title does not boast of 0.00"


# saturation (02)


def test_reached_says_how_far_states_and_predictions_are_apart():
    final = by_layer("share", lambda model, layer: min(1, layer / 5), depth="settled_from")
    similar = by_layer("share", lambda model, layer: float(layer > 9), depth="first_similar")
    table = pd.concat([final, similar])
    expected = (
        "After layer 4, at least 80% of CALM's predictions are final, but none of its states are similar"
    )
    assert message(saturation.reached_figure(table)).startswith(expected)
    panels, _ = drawn(saturation.reached_figure(table))
    assert len(panels) == 4, "two models on two tasks"
    assert saturation.reached_conclusion(without(table, "calm")) == ""


def test_gaps_are_difficult_minus_easy_and_none_where_calm_is_missing():
    rows = [
        {
            "task": "translation",
            "model": "calm",
            "selected_by": by,
            "property": name,
            "group": group,
            "mean": mean,
        }
        for by, name in product(("loss", "mean_similarity"), ("first_similar", "settled_from"))
        for group, mean in (("easy", 2.0), ("difficult", 5.0 if name == "settled_from" else 2.5))
    ]
    table = pd.DataFrame(rows)
    gaps = saturation.gaps(table)
    assert (gaps.settled_from == 3).all() and (gaps.first_similar == 0.5).all()
    assert "final prediction 3.0 layers later" in saturation.circularity_conclusion(table)
    assert "With a selection by similarity they differ no less: 3.0 layers later" in (
        saturation.circularity_conclusion(table)
    )
    similarity = (table.selected_by == "mean_similarity") & (table.group == "difficult")
    less = table.assign(mean=table["mean"].mask(similarity, 3.0))
    assert saturation.circularity_conclusion(less).endswith(
        "Similarity reflects ease only in part: difficult prefixes selected by it reach their final "
        "prediction 1.0 layers later. This is less than with a selection by loss on every task."
    ), "before, it was said that similarity does not rank by ease at all"
    assert saturation.gaps(table.assign(model="vanilla")).empty
    assert saturation.circularity_conclusion(table.assign(model="vanilla")) == ""


def test_the_best_predictor_is_named_task_by_task():
    """Before, one was named for all tasks, though another is stronger on one of them."""
    values = {
        ("summarization", "loss"): 0.6,
        ("summarization", "log_frequency"): -0.4,
        ("translation", "loss"): 0.45,
        ("translation", "log_frequency"): -0.5,
    }
    rows = [(task, measure, spearman) for (task, measure), spearman in values.items()]
    settled = pd.DataFrame(rows, columns=["task", "measure", "spearman"])
    settled = settled.assign(model="calm", depth="settled_from")
    said = saturation.best_predictor(settled)
    loss = "The model's own loss best predicts when a prediction becomes final on summarization"
    assert said == (
        f"{loss} (rank correlation +0.60); on translation, the frequency of the token does (-0.50 against "
        "+0.45)."
    )
    similar = settled.assign(depth="first_similar", spearman=settled.spearman / 2)
    both = saturation.depth_conclusion(pd.concat([settled, similar]))
    assert both.endswith("well: rank correlations are at most 0.30 in magnitude.")
    strong = saturation.depth_conclusion(pd.concat([settled, similar.assign(spearman=settled.spearman)]))
    assert strong.endswith(
        "The first similar state is best predicted by the model's own loss on summarization (+0.60)."
    )
    assert saturation.best_predictor(settled.assign(model="free")) == ""


def test_difficulty_and_loss_are_compared_token_by_token():
    values = {
        ("summarization", "loss"): 0.6,
        ("summarization", "true_difficulty"): 0.4,
        ("translation", "loss"): 0.3,
        ("translation", "true_difficulty"): 0.5,
    }
    rows = [(task, measure, spearman) for (task, measure), spearman in values.items()]
    table = pd.DataFrame(rows, columns=["task", "measure", "spearman"])
    said = saturation.difficulty_beside_loss(table.assign(model="calm", depth="settled_from"))
    assert "less closely than loss on summarization (rank correlation +0.40 (summarization) to +0.50" in said
    assert saturation.difficulty_beside_loss(table.assign(model="free", depth="settled_from")) == ""


def test_what_table_1_does_not_show_is_said():
    """Before, "the contrast has the published direction" was said of depth, length and rise together."""
    means = {
        ("first_similar", "easy"): 7.0,
        ("first_similar", "difficult"): 8.0,
        ("prefix_tokens", "easy"): 10.0,
        ("prefix_tokens", "difficult"): 10.0,
        ("rises_after_0", "easy"): 0.96,
        ("rises_after_0", "difficult"): 0.99,
    }
    rows = [(task, *key, mean) for task in TASKS for key, mean in means.items()]
    table = pd.DataFrame(rows, columns=["task", "property", "group", "mean"]).assign(model="calm")
    said = saturation.table_conclusion(table, 12)
    assert said.startswith("In depth, the contrast has the published direction but is smaller: difficult")
    assert "Length and strict rise are not reproduced. Easy prefixes are clearly longer" in said
    longer = table.copy()
    longer.loc[(longer.property == "prefix_tokens") & (longer.group == "easy"), "mean"] = 20.0
    assert "not reproduced" not in saturation.table_conclusion(longer, 12)
    assert "against 11 tokens) on every task." in saturation.table_conclusion(longer, 12)
    assert saturation.table_conclusion(table.assign(model="free"), 12) == ""


def test_confident_tokens_are_counted_where_no_state_is_similar_yet():
    final = by_layer("share", lambda model, layer: min(1, layer / 5), depth="settled_from")
    similar = by_layer("share", lambda model, layer: float(layer > 9), depth="first_similar")
    confident = pd.DataFrame({"task": TASKS, "model": "calm", "sure": [0.3, 0.6], "unsaturated": 1.0})
    rows = [
        (task, part, entropy)
        for task, values in zip(TASKS, ((1.6, 2.4), (0.2, 0.1)), strict=True)
        for part, entropy in zip((1, 3), values, strict=True)
    ]
    thirds = pd.DataFrame(rows, columns=["task", "part", "entropy"]).assign(model="calm")
    said = saturation.confident_conclusion(confident, thirds, pd.concat([final, similar]))
    assert "At layer 4 no state is similar yet, but 30% (summarization) to 60% (translation) of" in said
    assert "from 1.600 to 2.400 nats on summarization and from 0.200 to 0.100 nats on translation" in said
    assert said.endswith("it becomes more certain on translation only.")
    early = pd.concat([final, similar.assign(share=0.2)])
    assert "of these, 100% have no similar state yet, of all tokens 80%." in (
        saturation.confident_conclusion(confident, thirds, early)
    )


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


# models and training (00, 90)


def test_seeds_stand_beside_what_objectives_change():
    rows = [
        {
            "task": task,
            "model": model,
            "measure": "settled_from",
            "mean": mean,
            "low": mean - 0.1,
            "high": mean + 0.2,
        }
        for task in TASKS
        for model, mean in (("vanilla", 6.0), ("calm", 2.0 if task == TASKS[0] else 3.0))
    ]
    spread = pd.DataFrame(rows)
    said = models.seeds_conclusion(spread)
    assert said.startswith(
        "Seeds move the layer at which predictions become final by at most 0.30, objectives by 3.0 to 4.0."
    )
    assert said.endswith("depends on the objective, not on the seed.")
    noisy = spread.assign(high=spread.high + 9)
    assert "not on the seed" not in models.seeds_conclusion(noisy), "seeds differ as much as objectives"
    shown = models.seeds_shown(spread)
    assert list(shown.columns) == TASKS and shown.iloc[0].tolist() == ["6.00 (5.90 to 6.20)"] * 2


def test_it_is_said_which_models_were_trained_with_which_seeds():
    """Before, the page said that each objective was retrained, below a figure of two of them."""
    runs = pd.DataFrame({"model": ["vanilla", "vanilla", "calm", "calm"], "seed": [0, 1, 0, 1]})
    said = models.retrained_models(runs, ["base", "vanilla", "calm", "free"])
    assert said == "Vanilla and CALM were trained with 2 seeds each. FREE was trained once."
    compared = pd.DataFrame({"model": ["vanilla", "calm", "alternating"], "seed": 0})
    assert "Alternating (BERxiT) appears only in this chapter" in models.retrained_models(
        compared, ["vanilla", "calm"]
    )


def test_published_scores_have_a_verdict_each():
    rows = [
        ("summarization", "DialogSum test", "rougeL", 33.5, 32.7),
        ("translation", "Multi30k", "bleu", 61.8, 52.4),
        ("question_answering", "SNIPS slots", "f1", 88.8, 94.6),
    ]
    published = pd.DataFrame(rows, columns=["task", "corpus", "metric", "score", "ours_as_published"])
    said = models.published_conclusion(published)
    assert "5.8 points above the published F1 (question answering) and 9.4 points below" in said
    assert "below the published BLEU (translation); there it is weak for its size." in said
    assert "py-rouge" in said and "slots" in said
    alone = models.published_conclusion(published[:1])
    assert "within 3 points of the published ROUGE-L (summarization). Tokenization" in alone
    assert "weak" not in alone and "slots" not in alone


def test_models_without_an_objective_are_introduced():
    said = models.starts_conclusion(["base", "calm"], fine_tuned=True)
    assert said.startswith(
        "*Base* is the model from which every objective continues: fine-tuned on all tasks"
    )
    assert models.starts_conclusion(["base"], fine_tuned=False).endswith("continues.")
    assert models.starts_conclusion(["calm"], fine_tuned=True) == ""


def test_costs_name_the_dearest_objective_and_where_every_seed_loses():
    rows = [
        {
            "task": task,
            "model": "calm",
            "metric": "bleu",
            "seed": seed,
            "lost": lost,
            "low": np.nan,
            "high": np.nan,
        }
        for task, losses in (("summarization", (0.1, 0.3)), ("translation", (-0.1, 2.1)))
        for seed, lost in enumerate(losses)
    ]
    costs = pd.DataFrame(rows)
    (panel,) = drawn(models.costs_figure(costs))[0]
    rows = [text.get_text() for text in panel.get_yticklabels()]
    assert rows == TASKS and panel.get_title() == "CALM", "a single model has one panel, not three empty ones"
    more = pd.concat([costs, costs.assign(model="free")], ignore_index=True)
    assert len(drawn(models.costs_figure(more))[0]) == len(TASKS)
    assert "On average over 2 seeds, training" in models.costs_message(costs)
    assert "With one seed, training" in models.costs_message(costs[costs.seed == 0])
    assert "costs up to 1.0 points of BLEU (CALM, translation)" in message(models.costs_figure(costs))
    said = models.costs_conclusion(costs)
    assert "changes by -1.0 (translation) to -0.2 (summarization) points" in said
    assert "it is lower with every seed on summarization" in said


def test_the_best_model_stands_beside_the_best_baseline():
    rows = [
        {"task": "translation", "system": name, "kind": kind, "metric": "bleu", "corpus_score": score}
        for name, kind, score in (
            ("calm", "model", 50.0),
            ("vanilla", "model", 52.0),
            ("copy", "baseline", 9.0),
        )
    ]
    best = models.beside_baselines(pd.DataFrame(rows)).loc["translation"]
    assert (best.model, best.score, best.baseline, best.baseline_score) == ("vanilla", 52.0, "copy", 9.0)


def test_learning_curves_are_told_by_their_last_points():
    rows = [
        {"model": model, "step": step, "layer": layer, "cross_entropy": 10 / (step * layer)}
        for model, step, layer in product(("vanilla", "calm"), (1, 2), LAYERS)
    ]
    curves = pd.DataFrame(rows)
    assert message(training.curves_figure(curves)) == (
        "The first layer ends at 5.00 nats under CALM and 5.00 nats under vanilla"
    )
    assert training.curves_conclusion(curves).startswith(
        "The cross-entropy falls by 5% or more in every layer under CALM and in every layer under vanilla. "
        "Against the expectation, CALM's layers do not converge (the gap between the first and the last goes "
    )
    only_last = (curves.model == "vanilla") & (curves.layer < 10)
    trained = curves.assign(cross_entropy=curves.cross_entropy.mask(only_last, 5.0))
    assert training.curves_conclusion(trained).startswith(
        "The cross-entropy falls by 5% or more in every layer under CALM and in layers 10 to 12 only under "
        "vanilla. Half as expected: CALM's layers do not converge (the gap between the first and the last "
        "goes "
    )
    closed = (trained.model == "calm") & (trained.step == 2) & (trained.layer == 1)
    converging = trained.assign(cross_entropy=trained.cross_entropy.mask(closed, 3.0))
    assert message(training.curves_figure(converging)) == (
        "CALM's objective pulls all layers towards the last: layer 1 ends at 3.00 nats, against 5.00 under "
        "vanilla"
    )
    said = training.curves_conclusion(converging)
    assert "As expected, CALM's layers converge, in order of depth (the gap between the first" in said
    assert "goes from 9.17 to 2.58 nats), and under vanilla only the last ones improve." in said
    idle = converging.assign(cross_entropy=converging.cross_entropy.mask(converging.model == "vanilla", 5.0))
    assert "Half as expected" in training.curves_conclusion(idle)
    assert "under vanilla no layer improves by that much." in training.curves_conclusion(idle)
    last_rises = (curves.model == "calm") & (curves.layer == 12)
    but_last = training.curves_conclusion(
        trained.assign(cross_entropy=trained.cross_entropy.mask(last_rises, 5))
    )
    assert but_last.startswith("The cross-entropy falls by 5% or more in every layer but the last under CALM")
    drawn(training.curves_figure(curves))


def test_a_part_of_the_recipe_counts_where_intervals_do_not_touch():
    runs = pd.DataFrame(
        {"run": ["recipe", "adam", "flat_start"], "low": [0.2, 0.15, 0.05], "high": [0.3, 0.25, 0.15]}
    )
    runs = runs.assign(answer=training.ALOUD, share=(runs.low + runs.high) / 2)
    assert training.ablations_message(runs).endswith("more answers right than flat start (in a sentence)")
    never = runs.assign(answer=training.SILENT, run=["recipe", "adam", training.UNSPOKEN])
    assert training.ablations_message(pd.concat([runs, never])).endswith(
        "flat start (in a sentence) and bare value (in one word)"
    ), "none right is named, though it never saw a sentence"
    said = training.unspoken_conclusion(never)
    assert "gets 10% of the one-word questions right, the recipe 25%: so short a run" in said
    assert training.unspoken_conclusion(runs) == ""
    said = training.ablations_conclusion(
        runs.set_index("run").share, pd.Series({"adam": 0.3, "flat_start": 0.001})
    )
    assert (
        "right. Flat start (10%, p = 0.001) differs clearly from that (Fisher's test); the smallest" in said
    )
    none = training.ablations_conclusion(runs.set_index("run").share, pd.Series({"adam": 0.3}))
    assert none.endswith(
        "No other run differs clearly from that (Fisher's test); the smallest p of the others is 0.3."
    )


def test_a_model_that_scores_0_keeps_nothing_that_could_be_told():
    """A rehearsal on random weights ended in a traceback of pandas."""
    layer = {"model": "calm", "task": TASKS[0], "layer": 3, "confidence": 0.9, "accuracy": 0.5}
    kept = {"model": "calm", "task": TASKS[0], "retained": np.nan, "low": np.nan, "high": np.nan}
    said = ranks.minimum_conclusion(pd.DataFrame([layer]), pd.DataFrame([kept]))
    assert said.endswith("(confidence 0.90, agreement 0.50).")
    measured = pd.DataFrame([kept | {"retained": 0.95, "low": 0.9, "high": 1.0}])
    assert "CALM keeps 95%" in ranks.minimum_conclusion(pd.DataFrame([layer]), measured)
