"""MEE's main figure: what is drawn of which timings, and what is said of them."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from mee_utils.companion import figures, main_figure
from mee_utils.companion.published_numbers import beside_main_figure, published_main_figure
from mee_utils.companion.published_setting import (
    METRICS,
    RULES_COMPARED,
    THRESHOLD,
    policy_of,
    wanted_timings,
)

TASKS = ["question_answering", "summarization", "translation"]


@pytest.fixture(scope="module")
def times():
    """Synthetic timings of 12 layers: the cut halves what CALM's margin keeps, and doubles its speed."""
    settings = wanted_timings(12, TASKS)
    rows = pd.concat([settings.assign(batch=batch) for batch in (32, 1)], ignore_index=True)
    is_cut = (rows.decoder == "cut") & (rows.rule == "softmax_margin")
    kept = np.where(is_cut, 0.5, 1.0)
    speed = np.where(is_cut, 2.0, np.where(rows.batch == 1, 1.1, 0.9))
    speed = np.where(rows.rule == "full_depth", 1.0, speed)
    return rows.assign(
        metric=rows.task.map(METRICS),
        score=80 * kept,
        score_low=80 * kept - 2,
        score_high=80 * kept + 2,
        corpus_score=80 * kept,
        retained=kept,
        mean_exit_layer=np.where(is_cut, 2.0, 6.0),
        samples_per_second=10 * speed,
        tokens_per_second=100 * speed,
        speed=speed,
        lowest=speed - 0.05,
        highest=speed + 0.05,
        samples_speed=speed,
        samples_lowest=speed - 0.05,
        samples_highest=speed + 0.05,
    )


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def drawn_points(axis):
    """x and y of every marker of a panel, to one decimal."""
    return {
        (round(float(x), 1), round(float(y), 1))
        for container in axis.containers
        for x, y in container.lines[0].get_xydata()
    }


def test_published_panels_stand_above_ours_and_translation_says_why_it_is_missing(times):
    figure = main_figure.published_and_ours(times, published_main_figure(), TASKS)
    upper, lower = figure.axes[:3], figure.axes[3:]
    assert [axis.get_ylabel() for axis in lower] == ["F1", "ROUGE-1", "BLEU"]
    assert (11.0, 88.8) in drawn_points(upper[0]) and (9.7, 3.3) in drawn_points(upper[1])
    assert [len(drawn_points(axis)) for axis in upper] == [7, 7, 0]
    assert "BLEU 0.001" in upper[2].texts[0].get_text()
    # batch 32, layer 2: full depth, six measures alike but for the margin's cut
    assert drawn_points(lower[0]) == {(10.0, 80.0), (9.0, 80.0), (20.0, 40.0)}
    names = [text.get_text() for text in lower[0].texts]
    assert sorted(names) == sorted(main_figure.SHORT_NAMES.values())


def test_a_single_measure_far_below_all_others_is_written_and_not_drawn(times):
    """Drawn, it pressed all others into one line."""
    far = (times.rule == "hidden_similarity") & (times.decoder == "exact")
    figure = main_figure.published_and_ours(
        times.assign(score=times.score.mask(far, 20.0)), published_main_figure(), TASKS
    )
    panel = figure.axes[3]
    assert not any(y == 20.0 for _, y in drawn_points(panel))
    texts = [text.get_text() for text in panel.texts]
    assert "saturation ↓ 20.0 at 9" in texts and "saturation" not in texts


def test_messages_are_computed(times):
    message = main_figure.cut_message(times, 32)
    assert "CALM's measures keep 83% instead of 100% and MEE's measures keep 100% instead" in message
    said = main_figure.speed_message(times)
    assert said.startswith("Of 18 cases, how many beat full depth in every run, and keep 99% of the score: ")
    assert ": 18 and 18 at batch 1 (from layer 4 on: " in said and ", 0 and none at batch 32 (" in said
    text = main_figure.main_conclusion(times)
    assert text.startswith("At batch 32, CALM's measures keep 100% of the score")
    assert "; MEE's measures keep 100% of the score, at " in text


def test_timings_of_other_batch_sizes_are_not_drawn(times):
    assert len(main_figure.at_all_batches(times)) == len(times)
    assert len(main_figure.at_all_batches(pd.concat([times, times.assign(batch=8)]))) == len(times)
    assert main_figure.at_all_batches(times[times.batch == 1]).empty, (
        "with one of them nothing can be compared"
    )
    assert main_figure.at_all_batches(times.assign(batch=8)).empty


def test_by_batch_draws_no_cut_and_both_first_layers(times):
    figure = main_figure.by_batch(times, TASKS)
    assert len(figure.axes) == 6 and all(len(drawn_points(axis)) == 2 for axis in figure.axes)
    assert all(x < 120 for axis in figure.axes for x, _ in drawn_points(axis))
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == "exits from layer 4 on, not from 2"


def test_published_shares_stand_beside_ours(times):
    table = beside_main_figure(times, 12).set_index(["task", "rule", "batch"])
    assert len(table) == 3 * 7 * 2
    margin = table.loc["summarization", "softmax_margin", 32]
    assert margin.published_kept == pytest.approx(12.88 / 43.75)
    assert margin.published_speed == pytest.approx(2.59 / 2.11)
    assert margin.published_depth == pytest.approx(2.66 / 24)
    assert (margin.kept_exact, margin.kept_cut, margin.depth_cut) == (1.0, 0.5, 2 / 12)
    alone = table.loc["summarization", "softmax_margin", 1]
    assert np.isnan(alone.published_kept) and np.isnan(table.loc["translation", "lstm", 32].published_kept)


def test_policies_are_those_of_the_published_setting():
    options = {"min_layer": 4, "top_k": 64, "first_k": 256, "least_k": 16}
    measures = dict.fromkeys(RULES_COMPARED, "max_probability")
    for row in wanted_timings(12, TASKS[:1]).itertuples():
        policy = policy_of(row, options, measures)
        if row.rule == "full_depth":
            assert policy is None
            continue
        assert policy.min_layer == row.min_layer and policy.schedule.level == THRESHOLD
        assert policy.schedule.decay == 4.0 and policy.propagation == "copy" and policy.plain


@pytest.mark.parametrize("seed", range(5))
def test_names_at_the_side_keep_their_order_and_do_not_touch(seed):
    heights = np.random.default_rng(seed).random(7).tolist()
    moved = figures.spread(heights, 0.12)
    assert np.array_equal(np.argsort(heights), np.argsort(moved))
    assert np.diff(sorted(moved)).min() >= 0.12 - 1e-5 and max(moved) <= 1
    assert figures.spread([0.1, 0.9], 0.12) == [0.1, 0.9]
    assert figures.spread([0.99, 1.0], 0.12) == [0.88, 1.0]
