"""What limits exits: the oracle beside rules at equal FLOPs, on synthetic measurements."""

import numpy as np
import pandas as pd
import pytest

from mee_utils.companion import limits
from mee_utils.companion.result_tables import Measured

TASK = "translation"


def examples(score, flops, count=200):
    """Outputs of ten tokens each; `flops` of each output, full depth being 1,000."""
    scores = np.where(np.arange(count) < count * score, 100.0, 0.0)
    return pd.DataFrame(
        {"loss": 1 - scores / 100, "score": scores, "flops": flops, "tokens": 10, "layers": 60}
    )


SETTINGS = {  # rule, threshold -> share of right outputs, FLOPs; on validation and on test examples
    ("full_depth", np.nan): [(1.0, 1000), (1.0, 1000)],
    ("static", 11.0): [(0.9, 900), (0.9, 900)],
    ("static", 6.0): [(0.6, 500), (0.6, 500)],
    ("softmax_margin", 0.9): [(0.95, 800), (0.95, 800)],
    ("softmax_margin", 0.5): [(0.7, 480), (0.75, 520)],  # affordable on validation examples
    ("fixed", 0.5): [(0.65, 450), (0.9, 450)],  # luckier on test examples, where it may not be chosen
    ("oracle", np.nan): [(0.9, 500), (0.9, 500)],
}


@pytest.fixture(scope="module")
def stored():
    rows, tables = [], []
    for (rule, threshold), parts in SETTINGS.items():
        for part, values in zip(("validation", "test"), parts, strict=True):
            rows.append((part, TASK, "calm", rule, threshold))
            tables.append(examples(*values))
    columns = ["part", "task", "model", "rule", "threshold"]
    return Measured(pd.DataFrame(rows, columns=columns), tables, 0.05, (0.1,), (0.1,))


@pytest.fixture(scope="module")
def oracle():
    tries = [
        ("full_depth", np.nan, "copy", 1.0, 1000),
        ("oracle", np.nan, "copy", 0.9, 500),
        ("oracle", np.nan, "copy, charged", 0.9, 520),
        ("oracle", np.nan, "parallel", 1.0, 700),
        ("oracle", np.nan, "verify", 1.0, 1100),
        ("softmax_margin", 0.9, "copy", 0.8, 600),
        ("softmax_margin", 0.9, "parallel", 0.95, 700),
    ]
    tables = [
        examples(score, flops).assign(rule=rule, threshold=threshold, propagation=states)
        for rule, threshold, states, score, flops in tries
    ]
    return limits.decoded_oracle({TASK: pd.concat(tables, ignore_index=True)})


def test_the_best_rule_is_chosen_on_validation_examples(stored):
    best = limits.best_rule_at(stored, "calm", TASK, 0.5)
    assert best[["rule", "threshold"]].values.tolist() == [["softmax_margin", 0.5]]
    assert best.retained.item() == pytest.approx(0.75)  # reported on test examples
    assert limits.best_rule_at(stored, "calm", TASK, 0.3).empty


def test_limits_stand_beside_the_best_rule_and_a_fixed_layer(stored, oracle):
    table = limits.limits_at_equal_flops(stored, "calm", oracle)
    (row,) = table.to_dict("records")
    assert (row["oracle"], row["exact"], row["flops_share"], row["exact_flops"]) == (0.9, 1.0, 0.5, 0.7)
    assert row["charged_flops"] == 0.52, "what a rule may cost"
    assert (row["rule"], row["fixed_layer"], row["fixed_kept"]) == ("softmax_margin", 6.0, 0.6)


def test_where_nothing_is_as_cheap_there_is_no_number(oracle, stored):
    only_deep = stored.settings[~stored.settings.threshold.isin([0.5, 6.0])]
    chosen = [stored.examples[index] for index in only_deep.index]
    few = Measured(only_deep.reset_index(drop=True), chosen, 0.05, (0.1,), (0.1,))
    table = limits.limits_at_equal_flops(few, "calm", oracle)
    assert table[["rule", "rule_kept", "fixed_layer", "fixed_kept"]].isna().all(axis=None)


def test_curves_have_a_series_for_each_kind_of_exits(stored, oracle):
    curves = limits.limit_curves(stored, "calm", oracle)
    named = {
        limits.COPIED,
        limits.CHARGED,
        limits.EXACT,
        "oracle_verify",
        limits.MARGINS,
        limits.BEST,
        "static",
        "full_depth",
    }
    assert set(curves.series) == named
    best = curves[curves.series == limits.BEST]
    assert best[["rule", "threshold"]].values.tolist() == [["softmax_margin", 0.5]]
    assert set(curves.rule[curves.series == limits.MARGINS]) == {"softmax_margin", "fixed"}
