"""What models score and cost beside a baseline on the same examples."""

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.analysis.model_quality import beside_baseline, cost_at_full_depth


def examples_of(model, scores, flops=100.0, seed=0, task="translation"):
    table = pd.DataFrame({"score": scores, "flops": flops, "tokens": 10})
    return table.assign(model=model, task=task, seed=seed, example=np.arange(len(scores)))


def test_points_shares_and_flops_are_those_of_the_means():
    random = np.random.default_rng(0)
    full = random.uniform(50, 100, 400)
    table = pd.concat([examples_of("vanilla", full), examples_of("shallow_3", full - 5, flops=25.0)])
    rows = beside_baseline(table, "vanilla").set_index("model")
    vanilla = rows.loc["vanilla"]
    for column, value in {"lost": 0, "kept": 1, "relative_flops": 1}.items():
        assert vanilla[column] == vanilla[f"{column}_low"] == vanilla[f"{column}_high"] == value
    shallow = rows.loc["shallow_3"]
    assert shallow.lost == pytest.approx(5) and shallow.relative_flops == 0.25
    assert shallow.kept == pytest.approx(1 - 5 / full.mean())
    assert (
        shallow.mean_score == pytest.approx(full.mean() - 5)
        and shallow.low < shallow.mean_score < shallow.high
    )
    assert shallow.lost_high - shallow.lost_low < 1e-9, (
        "a loss that is the same everywhere is certain: paired"
    )
    assert shallow.high - shallow.low > 1, "while the score itself is not"


def test_each_task_and_seed_has_its_own_baseline():
    tables = [
        examples_of("vanilla", [80.0, 60.0]),
        examples_of("calm", [70.0, 60.0]),
        examples_of("vanilla", [90.0, 90.0], seed=1),
        examples_of("calm", [90.0, 90.0], seed=1),
        examples_of("calm", [50.0, 50.0], seed=2),  # which the baseline was not trained with
        examples_of("vanilla", [40.0], task="summarization"),
        examples_of("calm", [50.0], task="summarization"),
    ]
    rows = beside_baseline(pd.concat(tables), "vanilla")
    lost = rows[rows.model == "calm"].set_index(["task", "seed"]).lost
    assert lost.to_dict() == {("translation", 0): 5, ("translation", 1): 0, ("summarization", 0): -10}


def test_no_share_is_kept_of_a_score_of_zero():
    rows = beside_baseline(
        pd.concat([examples_of("vanilla", [0.0, 0]), examples_of("calm", [0.0, 10])]), "vanilla"
    )
    calm = rows.set_index("model").loc["calm"]
    assert calm.lost == -5 and not np.isfinite(calm.kept)


def test_models_scored_on_other_examples_are_not_compared():
    tables = [examples_of("vanilla", [1.0, 2.0]), examples_of("calm", [1.0])]
    with pytest.raises(MeeError, match="scored on other examples"):
        beside_baseline(pd.concat(tables), "vanilla")


def seeds_of(*rows, **columns):
    table = pd.DataFrame(rows, columns=["model", "seed", "score"])
    return table.assign(task="translation", metric="bleu", **columns)


def test_the_cost_of_an_objective_is_what_it_loses_beside_the_baseline_of_the_same_seed():
    seeds = seeds_of(
        ("vanilla", 0, 50.0), ("vanilla", 1, 52.0), ("calm", 0, 49.0), ("calm", 1, 49.0), ("free", 2, 9.0)
    )
    costs = cost_at_full_depth(seeds).set_index(["model", "seed"])
    assert costs.lost.to_dict() == {("calm", 0): 1, ("calm", 1): 3}, "seed 2 has no baseline"
    assert costs[["low", "high"]].isna().all(axis=None), "no examples, no interval"


def test_where_examples_are_stored_the_cost_is_theirs_with_its_interval():
    known = {"lost": [0.0, 1.5, np.nan], "lost_low": [0.0, 0.5, np.nan], "lost_high": [0.0, 2.5, np.nan]}
    seeds = seeds_of(("vanilla", 0, 50.0), ("calm", 0, 49.0), ("free", 0, 48.0), **known)
    costs = cost_at_full_depth(seeds).set_index("model")
    assert costs.loc["calm", ["lost", "low", "high"]].tolist() == [1.5, 0.5, 2.5]
    assert costs.loc["free"].lost == 2 and np.isnan(costs.loc["free"].low)


def test_without_seeds_there_is_no_cost():
    assert cost_at_full_depth(pd.DataFrame()).empty
    assert cost_at_full_depth(seeds_of(("calm", 0, 49.0))).empty
