"""The benchmark of MEE's published setting: what is timed is scored."""

import numpy as np
import pytest
from benchmarks import rules, scores

from mee_utils import generate
from mee_utils.companion import Experiment
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.published_setting import (
    CUT,
    METRICS,
    RULES_COMPARED,
    first_exit_layers,
    published_settings,
    wanted_timings,
)
from mee_utils.companion.result_tables import OF_OUTPUTS, PARTS


def test_the_outputs_of_all_batches_are_joined(t5, synthetic_tasks):
    inputs = synthetic_tasks["translation"].inputs[:7]
    whole = generate(t5, inputs, max_new_tokens=6)
    joined = scores.joined([generate(t5, inputs[at : at + 3], max_new_tokens=6) for at in (0, 3, 6)])
    assert joined.texts == whole.texts and joined.token_ids == whole.token_ids
    assert np.array_equal(joined.flops, whole.flops) and joined.tokens == whole.tokens
    assert all(
        np.array_equal(joined.flops_by_part[part], whole.flops_by_part[part]) for part in whole.flops_by_part
    )


@pytest.fixture(scope="module")
def published_small():
    """The part "published" on seven examples of two tasks."""
    few = [task[:7] for task in rules.load_tasks(load_profile("small"), "test", 7)][:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "load_tasks", lambda *_: few)
        patch.setattr(rules, "PUBLISHED_BATCHES", (4, 1))
        yield few, rules.run("published", "small", None, "cpu", lambda line: None)


def test_what_is_timed_for_mees_figure_is_scored(published_small):
    few, table = published_small
    wanted = wanted_timings(12, [task.name for task in few])
    keys, values = PARTS["published"][1:]
    assert set(keys) | set(values) <= set(table)
    in_batches = table[table.batch == 4]
    assert len(wanted.merge(in_batches, on=keys)) == len(wanted) == len(in_batches) == 2 * 19
    full = in_batches[in_batches.rule == "full_depth"].set_index("task")
    assert (full.retained == 1).all() and (full.mean_exit_layer == 12).all()
    model = Experiment(None, "small").models(["calm"])["calm"]
    for task in few:
        model.network.float()
        texts = generate(model, task.inputs, max_new_tokens=48).texts
        metric = METRICS[task.name]
        expected = task.score_examples(texts)[metric].mean()
        row = full.loc[task.name]
        assert row.metric == metric and row.score == pytest.approx(expected)
        assert row.score_low <= row.score <= row.score_high
        assert row.corpus_score == pytest.approx(task.score(texts)[metric])


def test_one_at_a_time_what_is_exact_is_timed_and_has_the_scores_of_batches(published_small):
    _, table = published_small
    alone = table[table.batch == 1]
    assert len(alone) == 2 * 13 and set(alone.decoder) == {"exact"}
    setting = ["task", "rule", "min_layer"]
    both = alone.merge(
        table[(table.batch == 4) & (table.decoder == "exact")], on=setting, suffixes=("", "_4")
    )
    assert len(both) == len(alone)
    for column in OF_OUTPUTS:
        assert both[column].equals(both[f"{column}_4"].rename(column))
    assert (both.samples_per_second != both.samples_per_second_4).any()


def test_the_published_cut_makes_tokens_exit_no_later(published_small):
    _, table = published_small
    at_layer_2 = table[(table.min_layer == 2) & (table.batch == 4)]
    layers = at_layer_2.pivot(index=["task", "rule"], columns="decoder", values="mean_exit_layer")
    assert len(layers) == 2 * len(RULES_COMPARED) and (layers.cut <= layers.exact + 1e-9).all()
    assert (layers.cut < layers.exact).any()


@pytest.mark.parametrize(("layers", "expected"), [(24, [4]), (12, [2, 4]), (6, [1, 4]), (3, [1, 3])])
def test_the_first_exit_layers_are_the_published_share_and_layer_4(layers, expected):
    assert first_exit_layers(layers) == expected
    settings = published_settings(layers)
    assert not settings.duplicated().any()
    assert set(settings[settings.decoder == CUT].min_layer) == {expected[0]}
