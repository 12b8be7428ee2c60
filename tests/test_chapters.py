"""Figures and sentences of the chapters, from small tables whose answer is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from mee_utils.companion.chapters.answer import cheapest, guarantees, mees_question, published, speed

from mee_utils.companion import figures, open_question
from mee_utils.companion.chapters import confidence, thresholds
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
    unmeasured = pd.DataFrame(columns=["task", "rule", "wanted", "reading", "flops_share"])
    assert cheapest.equal_loss_conclusion(unmeasured, 0.05) == ""
    worthless = points().assign(retained=0.5)
    assert cheapest.cheapest_on_front(worthless, 0.99).empty
    assert "On no task does a rule" in cheapest.flops_message(worthless, 0.99)


# thresholds (09), confidence (10)


def travelled(**losses):
    rows = [
        {"task": task, "rule": rule, "place": place, "loss": loss, "mean_exit_layer": 8.0}
        for rule, by_place in losses.items()
        for place, loss in by_place.items()
        for task in TASKS
    ]
    return pd.DataFrame(rows)


def test_corpora_of_another_domain_count_by_the_worst():
    table = travelled(
        fixed={"at home": 0.01, "away": 0.05, "news": 0.3, "squad": 0.1},
        vote={"at home": 0.03, "away": 0.01, "news": 0.0, "squad": 0.0},
    )
    worst = thresholds.worst_by_place(table).pivot(index="rule", columns="place", values="loss")
    assert worst.loc["fixed"].to_dict() == {"home": 0.01, "task": 0.05, "corpus": 0.3}
    figure = thresholds.away_figure(table, 0.01, 12)
    lost = "On another task 1 of 2 rules loses more than twice the target of 1%"
    assert message(figure) == f"{lost}, on another corpus 1, in-domain 1"
    drawn(figure)


def test_without_another_corpus_two_places_are_drawn():
    figure = thresholds.away_figure(travelled(fixed={"at home": 0.01, "away": 0.05}), 0.01, 12)
    assert sorted(drawn(figure)[1]) == ["another task", "in-domain", "target: 1%"]


def test_one_task_and_no_other_corpus_leave_nowhere_else():
    conclusion = thresholds.away_conclusion(travelled(fixed={"at home": 0.01}), 0.01, 12)
    assert "loses 1.0% in-domain (worst task). This profile names no other corpus" in conclusion


@pytest.mark.parametrize(
    ("home", "away", "said"),
    [
        (
            0.05,
            0.05,
            "Even in-domain, thresholds do not carry over from the examples on which they were chosen: 1",
        ),
        (
            0.01,
            0.05,
            "Thresholds hold better for inputs like those on which they were chosen: none of 1 rules lose",
        ),
        (0.01, 0.01, "Thresholds hold elsewhere as well as in-domain."),
    ],
)
def test_whether_thresholds_hold_elsewhere_is_counted(home, away, said):
    table = travelled(fixed={"at home": home, "away": away})
    assert thresholds.away_conclusion(table, 0.01, 12).startswith(said)


def test_a_loss_without_exits_is_not_the_thresholds():
    """On SQuAD rules with a pruned last layer lost a third of the outputs at a mean exit layer of 11.997."""
    table = travelled(fixed={"at home": 0.01, "squad": 0.3}, vote={"at home": 0.01, "squad": 0.4})
    assert "hardly any" not in thresholds.away_conclusion(table, 0.01, 12)
    idle = (table.rule == "fixed") & (table.place == "squad")
    table.loc[idle, "mean_exit_layer"] = 11.997
    said = thresholds.away_conclusion(table, 0.01, 12)
    assert "1 rule loses more than twice the target where hardly any token exits: there the loss" in said
    whole = thresholds.away_conclusion(table.replace({"rule": {"fixed": "few"}}), 0.01, 12)
    assert "where hardly any token exits: these few exits are enough for that loss." in whole
    panels, names = drawn(thresholds.away_figure(table, 0.01, 12))
    assert "hollow: hardly any token exits" in names
    hollow = [
        line for line in panels[0].lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    ]
    assert [list(line.get_xdata()) for line in hollow] == [pytest.approx([30.0])]


def test_the_bandit_is_drawn_beside_the_arm_that_earns_most():
    rows = [
        ("always 0.5", 0.02, 0.1, True),
        ("always 0.9", 0.01, 0.02, False),
        ("bandit, each output", 0.03, 0.2, True),
        *[("bandit, one stream", 0.01, loss, loss > 0.05) for loss in (0.04, 0.06)],
        *[("calibrated", 0.05, 0.01, False)] * 2,
    ]
    draws = pd.DataFrame(rows, columns=["who", "regret", "loss", "broken"]).assign(
        task=TASKS[0], mean_exit_layer=4
    )
    fixed = thresholds.strategies(draws).set_index("who").loc["best fixed arm"]
    assert fixed.loss == 0.02
    figure = thresholds.bandit_figure(draws, 0.05)
    said = "exceeds the target loss of 5% in 50% of the draws, a calibrated threshold never"
    assert said in message(figure)
    twice = pd.concat([draws, draws.assign(task=TASKS[1], broken=False)], ignore_index=True)
    assert "in 50% of the draws on 1 of 2 tasks" in thresholds.bandit_message(twice, 0.05)
    worse = pd.concat([draws, draws.assign(task=TASKS[1], loss=2 * draws.loss)], ignore_index=True)
    panels, _ = drawn(thresholds.bandit_figure(worse, 0.05))
    (limits,) = {panel.get_ylim() for panel in panels}
    assert limits == pytest.approx((0, 42)), "one axis, with all boxes on it"


def test_fake_confidence_is_said_of_the_first_exit():
    rows = product(["calm", "vanilla"], TASKS, range(1, 13))
    fake = pd.DataFrame(rows, columns=["model", "task", "layer"])
    wrong = np.where(fake.model == "calm", 0.02, 0.3) * (fake.layer < 12)
    fake = fake.assign(sure=0.5, wrong=wrong, low=wrong, high=wrong)
    figure = confidence.fake_figure(fake, 0.9, 4)
    said = "layer 4, 30% of the tokens that vanilla is confident of are wrong, and 2% of CALM's"
    assert said in message(figure)
    text = confidence.fake_conclusion(fake, 4)
    assert text.startswith(
        "At layer 4, the first exit, training for exits makes confidence more honest on every"
    )
    assert "2.0% are wrong there, and none at the last layer." in text
    tiny = fake.assign(wrong=fake.wrong / 50)
    assert "fewer than 0.05% are wrong there, and none" in confidence.fake_conclusion(tiny, 4)
    drawn(figure)


def trained_in_ways(wide=(), **areas):
    """The area of each way of training, on every task; draws of the ways in `wide` range by 0.2."""
    keys = {
        "linear": ("linear", "balanced cross-entropy"),
        "berxit": ("learning_to_exit", "squared error"),
        "untrained": ("surest", "untrained"),
        "distilled": ("past_future", "distilled"),
    }
    rows = []
    for (name, area), task in product(areas.items(), TASKS):
        rule, trained_by = keys[name]
        draws = area + (0.2 if name in wide else 0.001) * np.linspace(-1, 1, 41)
        agreement = {"right": 0.9, "right_draws": np.full(41, 0.9)}
        area_columns = {"roc_area": area, "roc_area_draws": draws}
        rows.append({"task": task, "rule": rule, "trained by": trained_by, **area_columns, **agreement})
    return pd.DataFrame(rows)


def test_training_a_rule_is_set_beside_no_training():
    areas = {"linear": 0.7, "berxit": 0.6, "untrained": 0.9, "distilled": 0.91}
    said = confidence.training_message(trained_in_ways(**areas))
    assert "clearly better with balanced cross-entropy than with squared error on every task. With" in said
    neither = "With neither loss does it rank them clearly better than the untrained max probability"
    assert f"{neither} (area 0.90); only" in said
    assert said.endswith("only the predicted state, distilled (by 0.010), does so on every task.")
    ahead = confidence.training_message(trained_in_ways(**areas | {"linear": 0.92, "distilled": 0.8}))
    one = "With one of the losses it ranks them clearly better than the untrained max probability"
    assert f"{one} (area 0.90) on every task" in ahead


def test_a_way_of_training_is_ahead_only_with_an_interval_that_excludes_zero():
    areas = {"linear": 0.7, "berxit": 0.6, "untrained": 0.9, "distilled": 0.91}
    for wide in ("linear", "distilled"):
        said = confidence.training_message(trained_in_ways(wide=[wide], **areas))
        on = "no task" if wide == "linear" else "every task"
        assert f"than with squared error on {on}." in said
        assert ("no trained rule does so on every task." in said) == (wide == "distilled")


def test_errors_later_in_the_sentence_have_a_direction_and_exceptions():
    rows = [("full depth", 0.1, 0.3, 0.2, 0.1), ("the first exit", 0.4, 0.2, 0.4, 0.2)]
    thirds = pd.DataFrame(
        [
            {"what": what, "task": task, "part": part, "wrong": wrong}
            for what, *shares in rows
            for (task, part), wrong in zip(product(TASKS, (1, 3)), shares, strict=True)
        ]
    )
    thirds["wrong_draws"] = [np.full(50, share) for share in thirds.wrong]
    text = thresholds.later_conclusion(thirds)
    assert text.endswith("first: full depth 20.00% against 15.00%, the first exit 20.00% against 40.00%.")
    said = "first: for full depth on summarization, for the first exit on every task (that is,"
    assert said in thresholds.later_message(thirds) and said in text
    noise = np.linspace(-0.2, 0.2, 50)
    thirds["wrong_draws"] = [row.wrong + noise * (row.part == 3) for row in thirds.itertuples()]
    assert "than in the first: for full depth on no task, for" in thresholds.later_message(thirds)


def spaced_exits(shares, mean_exit_layer=6.0):
    rows = pd.DataFrame(product(TASKS, (1, 3)), columns=["task", "every"])
    return rows.assign(flops_share=shares, mean_exit_layer=mean_exit_layer)


def test_fewer_exits_save_flops_or_cost_more():
    spaced = spaced_exits([0.5, 0.6, 0.5, 0.4])
    both = "Fewer exits save FLOPs on summarization and cost more FLOPs on question answering: for a mean"
    assert thresholds.intervals_conclusion(spaced, 0.01, 12).startswith(both)
    dear = spaced_exits([0.5, 0.6, 0.5, 0.6])
    said = "Exits at every third layer cost more FLOPs on every task at equal loss."
    assert thresholds.intervals_message(dear, 12) == said
    noise = np.linspace(-0.2, 0.2, 50)
    unclear = dear.assign(flops_share_draws=[0.5 + noise, 0.6 - noise, 0.5 + noise, 0.6 - noise])
    assert "neither clearly save" in thresholds.intervals_message(unclear, 12)
    level = spaced_exits([0.5, 0.5, 0.5, 0.5])
    assert "neither clearly save nor cost FLOPs at equal loss." in thresholds.intervals_message(level, 12)


def test_where_no_token_exits_the_spacing_of_exits_is_not_judged():
    """FLOPs then differ by the decisions alone, and fewer decisions always cost less."""
    idle = spaced_exits([1.02, 1.01, 1.03, 1.01], mean_exit_layer=12.0)
    said = thresholds.intervals_conclusion(idle, 0.01, 12)
    assert said.startswith(
        "On every task, hardly any token exits at a target of 1%, so the spacing of exits cannot be"
    )
    assert (
        "every layer adds 2.0% (question answering) to 3.0% (summarization) to full depth, at every" in said
    )
    assert thresholds.intervals_message(idle, 12).startswith("The spacing of exits cannot be judged")
    partly = spaced_exits([0.5, 0.4, 1.03, 1.01], mean_exit_layer=[6.0, 7.0, 12.0, 12.0])
    said = thresholds.intervals_conclusion(partly, 0.01, 12)
    assert said.startswith("Fewer exits save FLOPs on question answering: for a mean loss of 1%")
    assert "On summarization, hardly any token exits" in said and "exits at every third 40%." in said
    assert thresholds.intervals_message(partly, 12).endswith("; hardly any token exits on summarization.")


# the answer (08)


def timed(task, batch, rule, speed, **columns):
    row = {"task": task, "batch": batch, "rule": rule, "threshold": 5.0, "speed": speed, "ranked": speed}
    return row | columns


def ways(quality=0.99):
    spread = {"lowest": 1.1, "highest": 1.3}
    rules = [timed("summarization", 1, rule, 1.2, retained=1.0, **spread) for rule in ("hidden", "vote")]
    rules.append(timed("summarization", 1, "linear", 1.5, retained=1.0, **spread))
    fixed = [
        timed("summarization", 1, "static", 1.8, retained=0.9, **spread),
        timed("summarization", 1, "static", 1.4, retained=0.995, **spread),
    ]
    verified = [timed("summarization", 32, "fixed", 0.9, lowest=0.8, highest=1.0)]
    return speed.four_ways(pd.DataFrame(rules), pd.DataFrame(fixed), pd.DataFrame(verified), quality)


def test_each_way_has_its_fastest_setting_that_keeps_the_quality():
    table = ways().set_index("way")
    assert table.speed.to_dict() == {
        speed.FIXED_LAYER: 1.4,
        speed.ONE: 1.5,
        speed.SEVERAL: 1.2,
        speed.VERIFIED: 0.9,
    }
    assert table.loc[speed.ONE].rule == "linear" and table.loc[speed.VERIFIED].retained == 1
    assert speed.FIXED_LAYER not in set(ways(0.999).way)


def test_the_fastest_is_chosen_by_one_half_of_the_timing_runs():
    spread = {"retained": 1.0, "lowest": 1.0, "highest": 2.0}
    rules = [timed("summarization", 1, "hidden", 1.2, **spread | {"ranked": 1.4})]
    rules.append(timed("summarization", 1, "linear", 1.5, **spread | {"ranked": 1.3}))
    rules = pd.DataFrame(rules)
    (row,) = speed.four_ways(rules, rules[:0], rules[:0], 0.99).itertuples()
    assert row.rule == "hidden" and row.speed == 1.2


def test_a_way_without_a_time_says_whether_a_rule_keeps_the_quality():
    certain = pd.DataFrame({"task": TASKS[0], "rule": ["vote", "hidden"], "flops_share": [0.9, 1.1]})
    absent = speed.absent_ways(ways()[:0], certain, TASKS[:1])
    texts = {way: text for (_, way), text in absent.items()}
    assert texts[speed.SEVERAL] == "not timed" and texts[speed.VERIFIED] == "not timed"
    assert texts[speed.ONE] == "not timed", "it saves no FLOPs, but may save time"
    assert speed.absent_ways(ways()[:0], certain[:1], TASKS[:1])[TASKS[0], speed.ONE] == "none"
    assert not speed.absent_ways(ways(), certain, ["summarization"]).keys() & {
        ("summarization", speed.ONE),
        ("summarization", speed.SEVERAL),
    }
    partly = ways()[ways().way != speed.SEVERAL]
    missing = {("summarization", speed.SEVERAL): "not timed", ("translation", speed.ONE): "none"}
    figure = speed.answer_figure(partly, ["summarization"], 0.99, "", missing)
    assert [text.get_text() for text in figure.axes[0].texts] == ["not timed", "1.40", "1.50"]
    drawn(figure)


def asked(lowest=0.9, untimed=0, reliable=0.8):
    """Answers to MEE's open question on one of two tasks."""
    both = pd.DataFrame({"task": TASKS[0], "kind": ["several layers", "one layer"], "rule": ["vote", "few"]})
    mean = both.assign(flops_share=[0.6, 0.7], retained=0.99)
    safe = both.assign(flops_share=[reliable, 0.9], retained=1.0)
    clock = both.assign(speed=lowest, lowest=lowest, untimed=[untimed, 0], faster=int(lowest > 1))
    return open_question.Answers(mean, safe, clock)


def test_mees_open_question_is_answered_three_times_each_on_its_own():
    said = mees_question.open_question_conclusion(asked(), TASKS[:1], 0.99)
    assert said.startswith(mees_question.open_question_message(asked(), TASKS[:1]))
    assert "In FLOPs yes, by the clock no. At a mean of 99% of the score they save FLOPs on every" in said
    assert "taking 60% of full depth's; the cheapest rule over one layer takes 70%." in said
    assert said.endswith("none that is timed beats full depth in every timing run.")
    untimed = mees_question.open_question_conclusion(asked(untimed=2, reliable=1.1), TASKS[:1], 0.99)
    assert "In FLOPs in part, by the clock open." in untimed and "Reliably, they save FLOPs on no" in untimed
    assert untimed.endswith("On every task, some of these rules are not timed.")
    faster = mees_question.open_question_conclusion(asked(lowest=1.1, untimed=2), TASKS[:1], 0.99)
    assert "by the clock yes." in faster and "not timed" not in faster, "one is faster, whatever the others"
    table = mees_question.open_question_table(asked())
    assert list(table.by.unique()) == ["FLOPs at a mean score", "FLOPs, reliably", "tokens a second"]
    shown = mees_question.open_question_shown(table)
    assert shown["rule"].iloc[0] == "vote (Sun et al.)" and shown["speed"].iloc[0] == ""


def test_the_cheapest_and_the_fastest_rules_of_each_kind_answer_the_open_question():
    rows = [("static", 0.1, 0.99), ("vote", 0.6, 0.99), ("few", 0.5, 0.98), ("few", 0.7, 1.0)]
    points = pd.DataFrame(rows, columns=["rule", "flops_share", "retained"]).assign(task=TASKS[0])
    kept = points[1:].assign(verdict=["keeps it", "undecided", "keeps it"])
    times = pd.DataFrame(
        [timed(TASKS[0], 1, "few", 1.2, lowest=1.1), timed(TASKS[0], 8, "vote", 2, lowest=2)]
    )
    found = open_question.answers(points, kept, times, 0.99)
    spent = {kind: open_question.flops(found.mean, kind).item() for kind in ("several layers", "one layer")}
    assert spent == {"several layers": 0.6, "one layer": 0.7}, "a fixed layer is no rule"
    clock = found.clock.set_index("kind")
    assert clock.untimed.to_dict() == {"several layers": 1, "one layer": 0}, "in batches is another matter"
    assert open_question.faster_tasks(found.clock, "one layer") == [TASKS[0]]
    assert open_question.untimed_tasks(found.clock) == [TASKS[0]]
    nothing = open_question.answers(points, kept, times[:0], 0.99)
    assert nothing.clock.speed.isna().all() and nothing.clock.untimed.tolist() == [1, 1]


def test_what_was_not_timed_is_left_out_and_no_error():
    table = ways()
    none = speed.four_ways(table[:0], table[:0], table[:0], 0.99)
    assert none.empty
    figure = speed.answer_figure(table, TASKS, 0.99)
    said = message(figure)
    assert "a fixed layer on 1 of 1 tasks, the fastest rule over one layer on 1" in said
    assert said.endswith("the fastest rule over several layers on 1")
    panels, _ = drawn(figure)
    assert panels[0].texts[0].get_text() == "nothing timed"
    elsewhere = table[table.way != speed.SEVERAL].assign(task="a second task")
    partly = pd.concat([table, elsewhere], ignore_index=True)
    said = speed.answer_message(partly, 0.99)
    assert said.endswith("the fastest rule over several layers on 1 (1 task timed)")
    said = speed.answer_conclusion(table, 0.99)
    assert "One output at a time, the fastest are a rule over one layer on every task: 1.50 times" in said


def test_what_is_reliably_kept_is_said_in_sentences():
    rows = [(TASKS[0], "vote", 0.9), (TASKS[0], "fixed", 0.6), (TASKS[1], "fixed", 0.7)]
    sure = pd.DataFrame(rows, columns=["task", "rule", "flops_share"])
    said = cheapest.kept_conclusion(sure, TASKS, 0.99)
    assert said.startswith("1 to 2 rules keep 99% reliably, depending on the task. The cheapest takes 60%")
    assert said.endswith(" on every task). Over several layers, the cheapest takes 90%.")
    dear = cheapest.kept_conclusion(sure.assign(flops_share=[1.1, 0.6, 0.7]), TASKS, 0.99)
    assert dear.startswith("1 to 2 rules keep 99% reliably, depending on the task; 1 of them saves FLOPs.")
    assert cheapest.kept_conclusion(sure[:0], TASKS, 0.99).startswith("0 rules keep 99%")
    assert cheapest.kept_conclusion(sure[1:], TASKS, 0.99).startswith(
        "1 rule keeps 99% reliably on every task."
    )


def points():
    rows = [
        ("full_depth", 1.0, 1.0),
        ("static", 0.8, 0.995),
        ("oracle", 0.4, 1.0),
        ("fixed", 0.7, 0.992),
        ("vote", 0.5, 0.9),
    ]
    table = pd.DataFrame(rows, columns=["rule", "flops_share", "retained"])
    return table.assign(task=TASKS[0], score=table.retained)


def test_the_cheapest_rule_is_no_reference():
    assert cheapest.cheapest_on_front(points(), 0.99).rule.tolist() == ["fixed"]
    figure = cheapest.flops_figure(points(), [TASKS[0]], 0.99)
    assert message(figure) == (
        "On every task some rule keeps a mean of 99% of the score for fewer FLOPs than a fixed layer"
    )
    said = "the cheapest rule takes 70% of the FLOPs, the earliest fixed layer 80%"
    assert said in cheapest.flops_conclusion(points(), 0.99)
    drawn(figure)


def test_a_bug_counts_by_what_it_costs():
    rows = [("a", "correct", 0.9), ("a", "published", 0.5), ("b", "correct", 0.9), ("b", "published", 0.88)]
    bugs = pd.DataFrame(rows, columns=["bug", "version", "retained"])
    bugs = bugs.assign(task=TASKS[0], model="calm", rule="fixed", batch=1, mean_exit_layer=5.0)
    assert published.bugs_message(bugs).startswith("1 of 2 published bugs cost at least 10%")
    assert "up to 40% (a) and 2% (b) of the full score" in published.bugs_conclusion(bugs)
    named = published.named_bugs(bugs)
    panels, names = drawn(published.bugs_figure(named, [TASKS[0]], ""))
    rows = [text.get_text()[0] for text in panels[0].get_yticklabels()]
    assert rows == ["b", "a"] and len(names) == 2, "what takes most is on top"
    assert set(named.name) == {f"{bug}: {figures.label('fixed')}, CALM" for bug in "ab"}


def test_guarantees_are_those_of_thresholds_that_passed():
    rows = [
        ("fixed", 0.05, True, 0.8, "hoeffding_bentkus"),
        ("fixed", 0.1, True, 0.6, "hoeffding_bentkus"),
        ("vote", 0.1, False, 1.0, "hoeffding_bentkus"),
        ("vote", 0.1, True, 0.2, "betting"),
    ]
    table = pd.DataFrame(rows, columns=["rule", "delta", "found", "flops_share", "bound"])
    table = table.assign(task=TASKS[0], kind="consistency")
    figure = guarantees.guarantee_figure(table, [TASKS[0]])
    assert "guarantee a mean loss of at most 0.1, the cheapest rule takes 60% of full" in message(figure)
    cheapest = f"the cheapest rule is the {figures.label('fixed')} on every task"
    said = guarantees.guarantee_conclusion(table, 0.1)
    assert f"With the loss guaranteed to be at most 0.1, {cheapest}" in said
    assert said.endswith("passes in 67% with Hoeffding-Bentkus and in 100% with betting (WSR).")
    drawn(figure)
    dear = guarantees.guarantee_figure(table.assign(flops_share=1.2), [TASKS[0]])
    assert [text.get_text() for text in dear.axes[0].texts] == ["no saving", "no saving"]
    drawn(dear)
