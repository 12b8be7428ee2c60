"""Exits beside decoders trained shallow and heads on a frozen model: all are set beside one baseline."""

import numpy as np
import pandas as pd
import pytest

from mee_utils.analysis.beside_full import VALUES
from mee_utils.companion import rivals
from mee_utils.companion.result_tables import Measured

EXAMPLES = 50
ENCODER = 1000  # FLOPs to read an input
NONE = float("nan")
SETTINGS = [  # model, rule, threshold, score of every example, FLOPs of its 10 tokens
    ("vanilla", "full_depth", NONE, 80.0, 1000),
    ("vanilla", "exit_heads", 0.5, 60.0, 500),
    ("vanilla", "exit_heads", 0.9, 76.0, 900),
    ("vanilla", "softmax_margin", 0.9, 79.0, 990),
    ("calm", "full_depth", NONE, 72.0, 1000),
    ("calm", "oracle", NONE, 72.0, 300),
    ("calm", "static", 4.0, 40.0, 400),
    ("calm", "static", 11.0, 72.0, 950),
    ("calm", "fixed", 0.9, 72.0, 800),
    ("calm", "fixed", 0.5, 56.0, 500),
    ("calm", "hidden", 0.9, 64.0, 850),  # dearer and worse than "fixed"
    ("calm", "bandit", NONE, 64.0, 600),
    ("free", "full_depth", NONE, 76.0, 1000),
    ("free", "fixed", 0.9, 74.0, 720),  # cheaper and better than the same rule on CALM
]


@pytest.fixture(scope="module")
def stored():
    labels = []
    examples = []
    noise = np.random.default_rng(0).normal(0, 5, EXAMPLES)
    noise -= noise.mean()
    for model, rule, threshold, score, flops in SETTINGS:
        labels.append(("test", "translation", model, rule, threshold))
        columns = {"loss": 0.0, "score": score + noise, "flops": flops, "tokens": 10, "layers": 60}
        examples.append(pd.DataFrame(columns)[VALUES].assign(encoder=ENCODER))
    settings = pd.DataFrame(labels, columns=["part", "task", "model", "rule", "threshold"])
    return Measured(settings, examples, 0.05, (0.1,), (0.1,))


SHALLOW = pd.DataFrame(
    {
        "task": "translation",
        "model": ["vanilla", "shallow_3"],
        "decoder_layers": [12, 3],
        "kept": [1.0, 0.97],
        "kept_low": [1.0, 0.95],
        "kept_high": [1.0, 0.99],
        "relative_flops": [1.0, 0.3],
        "relative_whole": [1.0, 0.65],
    }
)


def test_all_is_set_beside_the_full_depth_of_the_baseline(stored):
    table = rivals.beside_exits(stored, SHALLOW)
    assert list(table.columns) == rivals.COLUMNS
    by_setting = table[table.model != "free"].set_index("setting")
    assert by_setting.loc["fixed, 0.9"].kept == pytest.approx(72 / 80)
    assert by_setting.loc["fixed, 0.9"].relative_flops == pytest.approx(0.8)
    assert by_setting.loc["fixed, 0.9"].relative_whole == pytest.approx(0.9), "the encoder costs as much"
    assert by_setting.loc["layer 11"].kept == pytest.approx(0.9), "CALM's full depth is worth 90 % here"
    assert by_setting.loc["exit_heads, 0.9"].kept == pytest.approx(76 / 80)
    assert by_setting.loc["3 layers"].kept == 0.97 and by_setting.loc["3 layers"].high == 0.99
    assert (table.low <= table.kept).all() and (table.kept <= table.high).all()


def test_of_each_kind_of_exits_the_front_remains_the_cheapest_first(stored):
    table = rivals.beside_exits(stored, SHALLOW)
    settings = {key: list(rows.setting) for key, rows in table.groupby(["kind", "model"])}
    assert settings == {
        (rivals.SHALLOW, "vanilla"): ["12 layers"],
        (rivals.SHALLOW, "shallow_3"): ["3 layers"],
        (rivals.EXITS, "calm"): ["fixed, 0.5", "bandit", "fixed, 0.9"],  # neither "hidden" nor the oracle
        (rivals.EXITS, "free"): ["fixed, 0.9"],
        (rivals.EXITS, "vanilla"): ["softmax_margin, 0.9"],
        (rivals.FIXED, "calm"): ["layer 4", "layer 11"],
        (rivals.SEPARATE, "vanilla"): ["exit_heads, 0.5", "exit_heads, 0.9"],
    }


@pytest.mark.parametrize("shallow", [pd.DataFrame(), SHALLOW.drop(columns="kept")])
def test_before_rivals_are_trained_exits_stand_alone(stored, shallow):
    table = rivals.beside_exits(stored, shallow)
    assert rivals.SHALLOW not in set(table.kind) and rivals.EXITS in set(table.kind)


def test_a_share_of_the_own_score_is_less_of_the_baselines(stored):
    rows = stored.rows(model="calm", rule="fixed")
    beside = rivals.kept_of_baseline(stored, rows)
    assert beside.of_vanilla.tolist() == pytest.approx([72 / 80, 56 / 80])
    assert beside.retained.tolist() == pytest.approx([1.0, 56 / 72])
    assert (beside.of_vanilla_low <= beside.of_vanilla).all()
    without_threshold = rivals.kept_of_baseline(stored, stored.rows(model="calm", rule="bandit"))
    assert without_threshold.of_vanilla.tolist() == pytest.approx([64 / 80])


def test_of_all_models_the_front_has_the_best_for_each_amount_of_flops(stored):
    table = rivals.beside_exits(stored, SHALLOW)
    front = rivals.front(table[table.kind == rivals.EXITS])
    assert front.relative_flops.tolist() == pytest.approx([0.5, 0.6, 0.72, 0.99])
    assert front.kept.tolist() == pytest.approx([56 / 80, 64 / 80, 74 / 80, 79 / 80])


def test_the_flops_of_shallow_decoders_end_to_end_are_those_of_their_outputs(monkeypatch):
    """Of the same seed; a longer output costs more, and every model reads the same input."""
    trained = pd.DataFrame(
        {"task": "translation", "model": ["vanilla", "shallow_3"] * 2, "seed": [0, 0, 1, 1]}
    )
    flops = {("vanilla", 0): 900, ("shallow_3", 0): 400, ("vanilla", 1): 1900, ("shallow_3", 1): 100}
    outputs = pd.DataFrame(
        [
            {
                "kind": "rivals",
                "task": "translation",
                "model": model,
                "seed": seed,
                "example": n,
                "flops": cost,
            }
            for (model, seed), cost in flops.items()
            for n in range(2)
        ]
    )
    lengths = pd.DataFrame({"task": "translation", "example": [0, 1], "encoder": [50, 150]})
    monkeypatch.setattr(rivals, "read_retrained", lambda *_: trained)
    monkeypatch.setattr(rivals, "read_full_depth", lambda _: outputs)
    both = [lengths.assign(part="validation", encoder=9), lengths.assign(part="test")]
    monkeypatch.setattr(rivals, "read_lengths", lambda _: pd.concat(both))
    assert rivals.end_to_end("real").relative_whole.tolist() == [1.0, 0.5, 1.0, 0.1]
    monkeypatch.setattr(rivals, "read_retrained", lambda *_: pd.DataFrame())
    assert rivals.end_to_end("real").empty
