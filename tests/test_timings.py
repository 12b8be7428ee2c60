"""Timings are found by setting, and only those of the same profile."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mee_utils.analysis import threshold_choice
from mee_utils.companion.result_tables import PARTS, read_timings
from mee_utils.companion.results import level_text


@pytest.fixture
def stored(tmp_path):
    """Writes rows of a part's table, what they do not name filled in; gives the folder."""

    def write(part, **columns):
        file, _, values = PARTS[part]
        table = pd.DataFrame({"processor": "A", "profile": "small", "group": part, **columns})
        table.assign(**{name: 1.0 for name in values if name not in table}).to_csv(
            tmp_path / f"{file}.csv", index=False
        )
        return tmp_path

    return write


def test_timings_are_found_by_setting(stored, tmp_path):
    wanted = pd.DataFrame(
        {
            "kind": "one layer",
            "task": "translation",
            "model": "calm",
            "rule": ["margin", "margin", "oracle"],
            "threshold": [0.1234, 0.5, np.nan],
            "score": 3.0,
        }
    )
    assert read_timings("exits", wanted, "small", folder=tmp_path).empty
    assert read_timings("exits", wanted[:0], "small", folder=tmp_path).empty
    one = {
        "kind": "one layer",
        "task": "translation",
        "model": "calm",
        "rule": "margin",
        "threshold": 0.1234 + 1e-12,
    }
    folder = stored("exits", **one, batch=[1, 100], speed=[1.5, 1.2])
    found = read_timings("exits", wanted, "small", folder=folder)
    assert list(found.speed) == [1.5, 1.2] and list(found.score) == [3, 3]
    assert read_timings("exits", wanted, "real", folder=folder).empty


def test_a_setting_without_a_threshold_is_found_too(stored):
    """The bandit's, and not that of another rule without one."""
    wanted = pd.DataFrame({"task": "a", "model": "calm", "rule": ["margin", "bandit", "oracle"]})
    wanted = wanted.assign(threshold=[0.5, None, None], loss=[0.1, 0.2, 0.3])
    rows = {
        "task": "a",
        "model": "calm",
        "rule": ["margin", "bandit"],
        "threshold": [0.5, np.nan],
        "batch": 1,
    }
    folder = stored("drafts", **rows, speed=[1.5, 1.2])
    found = read_timings("drafts", wanted, "small", folder=folder).set_index("rule")
    assert found.speed.to_dict() == {"margin": 1.5, "bandit": 1.2} and found.loss["bandit"] == 0.2
    alone = read_timings("drafts", wanted[1:2], "small", True, folder)
    assert list(alone.speed) == [1.2]
    assert read_timings("drafts", wanted, "small", True, folder).empty


def test_incomplete_timings_are_none_where_all_are_wanted(stored, tmp_path):
    wanted = pd.DataFrame({"task": "a", "model": "calm", "reduction": ["unpruned", "fixed"]})

    def read(profile, **options):
        return read_timings("reductions", wanted, profile, True, tmp_path)

    assert read("small").empty
    stored("reductions", task="a", model="calm", reduction=["unpruned", "fixed"], speed=[1.0, 2.0])
    assert list(read("small").speed) == [1.0, 2.0] and read("real").empty
    stored("reductions", task="a", model="calm", reduction=["unpruned"])
    assert read("small").empty


def test_stored_decisions_are_found_by_shape_and_name():
    wanted = pd.DataFrame({"shape": ["t5-base", "t5-large"], "what": "softmax_margin"})
    assert (read_timings("one decision", wanted, complete=True)["median"] > 1).all()
    assert read_timings("one decision", wanted.assign(what="no such rule"), complete=True).empty


def test_thresholds_near_one_have_the_decimals_that_they_need():
    seen = np.array([[0.12345678, 0.99987654, 0.99999987654, 1.0, 1.0]])
    found = SimpleNamespace(confidences=seen, trace=SimpleNamespace(layers=12))
    found.bound = SimpleNamespace(measure=SimpleNamespace(range=(0.0, 1.0)))
    assert threshold_choice._levels(found, np.linspace(0, 1, 5)).tolist() == [
        0.1235,
        0.99988,
        0.99999988,
        1.0,
    ]
    found.bound.measure.range = (0.0, np.inf)
    assert threshold_choice._levels(found, np.linspace(0, 1, 5)).max() == 12, "a count of exits has an end"
    found.confidences = np.array([[3.5, 14.25, 20.0, 31.5, 40.75]])  # of logits, say
    for highest, expected in ((np.inf, 40.75), (100.0, 100.0)):
        found.bound.measure.range = (0.0, highest)
        levels = threshold_choice._levels(found, np.linspace(0, 1, 5)).tolist()
        assert set(found.confidences[0].tolist()) <= set(levels) and max(levels) == expected
    assert [level_text(level) for level in (0.9, 0.12345, 0.99999988, np.inf)] == [
        "0.9000",
        "0.12345",
        "0.99999988",
        "inf",
    ]
