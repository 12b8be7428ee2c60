"""Figures and sentences of the chapters, from small tables whose answer is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from mee_utils.companion import figures
from mee_utils.companion.chapters.contrast import as_confidence, as_decoder, mechanism
from mee_utils.companion.chapters.wording import percent_span, winners

TASKS = ["question_answering", "summarization"]
LAYERS = range(4, 12)


def drawn(figure):
    """The panels that a figure shows and the names in its legend; neither may be more than six."""
    panels = [axis for axis in figure.axes if axis.get_visible()]
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(panels) <= 6 and len(names) <= 9, (len(panels), names)
    return panels, names


def message(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_a_span_leaves_out_what_is_no_number():
    assert percent_span([0.5, np.nan, 0.25]) == "25% to 50%" and percent_span([np.nan]) == "unknown"


def test_a_rule_is_named_with_its_tasks_and_names_with_commas_stay_apart():
    best = pd.DataFrame({"task": [*TASKS, "translation"], "rule": ["fixed", "static", "fixed"]})
    margin = figures.label("fixed")
    said = f"the {margin} on question answering and translation, and a fixed layer on summarization"
    assert winners(best) == said
    of_three = best.assign(rule=["fixed", "static", "vote"])
    assert winners(of_three).startswith(
        f"the {margin} on question answering; a fixed layer on summarization; the vote"
    )


# contrast (04)

TOKEN = pd.DataFrame(
    {
        "task": "summarization",
        "kind": "weighted",
        "layer": 6,
        "amateur_layer": 3,
        "token": ["a", "b", "c"],
        "expert": [0.8, 0.15, 0.05],
        "amateur": [0.9, 0.02, 0.08],
        "contrast": [0.2, 0.75, 0.05],
        "plausible": [True, True, False],
    }
)


def test_the_example_is_the_task_on_which_the_contrast_changes_most():
    unchanged = TOKEN.assign(task="question_answering", contrast=[0.9, 0.05, 0.05])
    example = mechanism.telling_example(pd.concat([unchanged, TOKEN], ignore_index=True))
    assert set(example.task) == {"summarization"}
    figure = mechanism.one_token_figure(example, "calm")
    assert message(figure).startswith('In CALM, contrast replaces "a", the expert\'s choice, with "b", which')
    (panel,) = drawn(figure)[0]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["a", "b", "(c)"], "not plausible"
    dear = mechanism.one_token_figure(TOKEN.assign(token=["$5", "$6", "$7"]), "calm")
    dear.draw_without_rendering()
    assert r'contrast replaces "\$5"' in message(dear), "no formula"
    assert mechanism.one_token_message(unchanged, "calm") == (
        'In CALM, contrast keeps the expert\'s choice, "a"'
    )


def ranks(margin, weighted):
    rows = product(["calm", "vanilla"], TASKS, ["unpruned", "weighted", "jsd"], LAYERS)
    table = pd.DataFrame(rows, columns=["model", "task", "rule", "layer"])
    area = table.rule.map({"unpruned": margin, "weighted": weighted, "jsd": 0.7})
    return table.assign(roc_area=area, roc_area_low=area - 0.01, roc_area_high=area + 0.01)


@pytest.mark.parametrize(
    ("weighted", "cases"), [(0.8, "every model on every task"), (0.95, "0 of 4 pairs of a model and a task")]
)
def test_the_message_on_ranking_follows_the_table(weighted, cases):
    figure = as_confidence.ranking_figure(ranks(0.9, weighted))
    assert message(figure).endswith(f"for {cases} (mean over layers)")
    panels, _ = drawn(figure)
    assert panels[0].get_xlim()[0] > 3, "the axis begins where the data begin"


def test_where_no_layer_ranks_tokens_the_figure_says_so():
    figure = as_confidence.ranking_figure(ranks(np.nan, np.nan).assign(roc_area=np.nan))
    assert message(figure) == "No layer has enough tokens of either kind to rank them"
    drawn(figure)
    assert "at least 20 that are final" in as_confidence.ranking_conclusion(
        ranks(0.9, 0.8).assign(roc_area=np.nan)
    )


def test_layers_without_an_area_count_for_no_rule():
    table = ranks(0.9, 0.8)
    table.loc[(table.layer == 5) & (table.rule == "unpruned") & (table.model == "calm"), "roc_area"] = np.nan
    assert as_confidence.mean_areas(table).unpruned.tolist() == pytest.approx([0.9] * 4)
    said = as_confidence.ranking_conclusion(table)
    assert said.startswith("No: the mean area over layers and tasks is 0.900 for the plain margin and 0.800")
    assert said.endswith(
        "The mean is over 7 of 8 layers with CALM: the others have fewer than 20 tokens that are final, or "
        "fewer than 20 that are not."
    )
    ahead = ranks(0.9, 0.8)
    ahead.loc[(ahead.model == "calm") & (ahead.rule == "weighted"), "roc_area"] = 0.95
    assert as_confidence.ranking_conclusion(ahead).startswith("Only with CALM: the mean area")
    assert as_confidence.ranking_conclusion(ranks(0.7, 0.8)).startswith("Yes: the mean area")


VERDICTS = pd.DataFrame(
    {
        "task": ["summarization"] * 3,
        "rule": ["weighted", "jsd", "weighted_token"],
        "threshold": 0.5,
        "flops_share": [0.5, 0.6, 0.7],
        "gain": [1.0, -2.0, np.nan],
        "low": [0.5, -3.0, np.nan],
        "high": [1.5, -1.0, np.nan],
        "improves": [True, False, False],
        "worse": [False, True, False],
    }
)


def test_the_verdict_counts_what_is_better_and_what_is_worse():
    figure = as_decoder.pareto_figure(VERDICTS)
    assert (
        "Of 3 settings with contrast, 1 is clearly better than the plain margin at equal cost and 1 is "
        "clearly worse" in message(figure)
    )
    (panel,), names = drawn(figure)
    rows = [text.get_text() for text in panel.get_yticklabels()]
    assert rows == ["weighted, all entries", "JSD, all entries"], "nothing plain is as cheap as the third"
    assert names == [f"threshold that keeps {level} % of the predictions" for level in (95, 99)]
    both = pd.concat([VERDICTS, VERDICTS.assign(threshold=0.9)], ignore_index=True)
    assert as_decoder._levels(both).tolist() == [95] * 3 + [99] * 3
    assert as_decoder._levels(VERDICTS).tolist() == [99] * 3, "one threshold for both shares"
    assert "Pareto improvement on every task" in as_decoder.pareto_conclusion(VERDICTS)


def test_contrast_as_a_decoder_is_counted_by_alpha():
    """Before, 8 of 24 were said to be lower, all of them at one of two values that nothing introduced."""
    rows = product(["calm", "vanilla"], ["weighted", "jsd"], [0.1, 0.5])
    decoded = pd.DataFrame(rows, columns=["model", "rule", "alpha"]).assign(task=TASKS[0], retained=0.9)
    decoded = decoded.assign(low=0.8, high=decoded.alpha.map({0.1: 0.95, 0.5: 1.1}))
    assert as_decoder.decoder_message(decoded) == (
        "As a decoder, contrast clearly raises the score in none of 8 combinations of model, task, contrast "
        "and alpha, and clearly lowers it in 4 of 4 at alpha = 0.1 and in none of 4 at alpha = 0.5"
    )


def test_the_legend_of_plausible_sets_names_margins_alone():
    rows = product(TASKS, LAYERS)
    plausible = pd.DataFrame(rows, columns=["task", "layer"]).assign(single=0.5, plain=0.6, contrast=0.6)
    figure = mechanism.plausible_figure(plausible.assign(without_mass=0.8, wrong_single=0.0))
    panels, names = drawn(figure)
    assert names == [style.label for style in mechanism.MARGINS.values()]
    assert all(axis.get_ylim()[0] == 0 for axis in panels), "shares and margins begin at 0"


def test_equal_quality_is_drawn_over_all_entries_and_over_a_few():
    """Before, lines for four shares and six rules lay on each other where every rule exits at once."""
    shares = dict(zip(as_confidence.PRUNED_FORMS, (0.4, 0.5, 0.7), strict=True))
    rows = [
        {"task": task, "rule": rule, "wanted": wanted, "flops_share": share + extra}
        for task in TASKS
        for whole, share in shares.items()
        for rule, extra in ((whole, 0.1), (as_confidence.PRUNED_FORMS[whole], 0.0))
        for wanted in (0.95, 0.98)
    ]
    equal = pd.DataFrame(rows)
    equal = equal.assign(flops_share_low=equal.flops_share, flops_share_high=equal.flops_share)
    figure = as_confidence.equal_quality_figure(equal)
    panels, names = drawn(figure)
    assert len(panels) == 2 and sorted(names) == ["a few entries (pruned)", "all entries"]
    assert "the plain margin takes 50% of the FLOPs, weighted contrast 60% and JSD contrast 80%" in message(
        figure
    )
    assert "Pruned to a few entries, the plain margin takes 40%" in as_confidence.equal_quality_conclusion(
        equal.assign(mean_exit_layer=4.0)
    )
    same = equal.assign(mean_exit_layer=4.0, flops_share=0.5)
    assert as_confidence.equal_quality_conclusion(same).endswith("changes none of these costs here.")
    points = sorted(float(line.get_xdata()[0]) for line in panels[0].lines if len(line.get_xdata()) == 1)
    assert points == pytest.approx([0.4, 0.5, 0.5, 0.6, 0.7, 0.8])


def test_where_nothing_can_be_ranked_or_kept_nothing_is_claimed():
    """As with models that have learned nothing, on a few examples."""
    assert as_confidence.ranking_message(ranks(np.nan, np.nan)).startswith("No layer has enough tokens")
    decoded = pd.DataFrame({"rule": ["weighted"], "retained": [np.nan]})
    assert "no score to keep" in as_decoder.decoder_conclusion(decoded)
