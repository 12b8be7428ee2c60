"""The setting of MEE's main figure, and its published numbers beside ours."""

import numpy as np
import pandas as pd
import pytest

from mee_utils.companion.published_numbers import beside_main_figure
from mee_utils.companion.published_setting import RULES_COMPARED, THRESHOLD, policy_of, wanted_timings

TASKS = ["question_answering", "summarization", "translation"]


def test_published_shares_stand_beside_ours():
    """Of 12 layers; the cut halves what CALM's margin keeps, and doubles its speed."""
    settings = wanted_timings(12, TASKS)
    rows = pd.concat([settings.assign(batch=batch) for batch in (32, 1)], ignore_index=True)
    is_cut = (rows.decoder == "cut") & (rows.rule == "softmax_margin")
    times = rows.assign(
        retained=np.where(is_cut, 0.5, 1.0),
        mean_exit_layer=np.where(is_cut, 2.0, 6.0),
        samples_speed=np.where(is_cut, 2.0, 0.9),
    )
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
