"""What limits exits: the oracle beside rules at equal FLOPs, on synthetic measurements."""

import matplotlib.pyplot as plt
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
    assert (row["rule"], row["fixed_layer"], row["fixed_kept"]) == ("softmax_margin", 6.0, 0.6)
    losses = limits.split_losses(oracle)
    text = limits.limits_conclusion(table, losses)
    assert "The oracle keeps 90.0%, and the best rule at no more FLOPs keeps 75%" in text
    assert text.startswith("By the score, decisions limit exits on every task:"), "75% is less than 90%"
    assert "Copied states limit exits on every task" in text, "90% is less than 99%"
    perfect = limits.limits_conclusion(table.assign(oracle=1.0), losses)
    assert "opied states limit" not in perfect, "where they limit exits on no task, nothing is said"
    message = limits.message(table)
    assert message.startswith("Perfect decisions keep 90% of the score; the best rules at no more FLOPs")
    assert message.endswith("keep 75%, which is less on every task")


def test_where_nothing_is_as_cheap_it_is_said(oracle, stored):
    only_deep = stored.settings[~stored.settings.threshold.isin([0.5, 6.0])]
    chosen = [stored.examples[index] for index in only_deep.index]
    few = Measured(only_deep.reset_index(drop=True), chosen, 0.05, (0.1,), (0.1,))
    table = limits.limits_at_equal_flops(few, "calm", oracle)
    text = limits.limits_conclusion(table, limits.split_losses(oracle))
    assert "and no rule spends as little." in text
    assert limits.message(table).endswith("no rule is as cheap")


def test_losses_are_split_into_decisions_and_states(oracle, stored):
    losses = limits.split_losses(oracle)
    (row,) = losses.to_dict("records")
    for quantity in ("loss", "score"):
        assert row[f"{quantity}_by_decisions"] == pytest.approx(0.05)
        assert row[f"{quantity}_by_states"] == pytest.approx(0.15)
    text = limits.limits_conclusion(limits.limits_at_equal_flops(stored, "calm", oracle), losses)
    assert "change 5.0% of the output" in text and "copied states another 15.0%. Copied states change" in text


def test_the_figure_names_what_it_draws(stored, oracle):
    curves = limits.limit_curves(stored, "calm", oracle)
    assert set(curves.series) == set(limits.NAMES)
    figure = limits.limits_figure(curves, [TASK], "message")
    kept, changed = figure.axes
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(limits.NAMES.values())
    best = curves[curves.series == limits.BEST]
    assert best[["rule", "threshold"]].values.tolist() == [["softmax_margin", 0.5]]
    # on the margin's front: 0.9, and the fixed list, which is cheaper and better than the plain one
    assert kept.lines[0].get_xydata().tolist() == [[0.45, 0.9], [0.8, 0.95]]
    np.testing.assert_allclose(changed.lines[0].get_ydata(), [0.1, 0.05])
    assert figure.get_suptitle() == "message"
    plt.close(figure)


def test_no_point_is_cut_off_however_much_its_outputs_change(stored, oracle):
    curves = limits.limit_curves(stored, "calm", oracle)
    changed = curves.assign(consistency_loss=curves.consistency_loss.where(curves.series != limits.BEST, 0.7))
    figure = limits.limits_figure(changed, [TASK], "message")
    _, axis = figure.axes
    assert axis.get_ylim()[1] > 0.7
    plt.close(figure)
