"""The sentences on the rule over predictions, from small tables whose answer is known."""

from itertools import chain

import numpy as np
import pandas as pd
import pytest

from mee_utils.companion.chapters.classifiers import history
from mee_utils.companion.learned_from import ALL, OUTPUTS, REFERENCES, UNSEEN, choices_of_features
from mee_utils.exits.history_classifier import FEATURES

ON_CALM = {"model": "calm", "target": "consistency"}


def test_gains_are_read_off_between_margin_and_oracle():
    areas = [("summarization", "few", 0.90), ("summarization", "history", 0.93)]
    areas += [("translation", "few", 0.92), ("translation", "history", 0.92)]
    overall = pd.DataFrame(areas, columns=["task", "rule", "roc_area"]).assign(**ON_CALM, seed=0)
    noise = np.random.default_rng(0).normal(0, 0.001, (len(overall), 200))
    overall["roc_area_draws"] = list(noise + overall.roc_area.to_numpy()[:, None])
    layers = overall[["task", "rule", "model", "target"]].assign(
        mean_exit_layer=[8.0, 7.0, 6.0, 6.0], flops_share=[0.8, 0.7, 0.6, 0.6]
    )
    gains = history.beside_margin_and_oracle(overall, layers, {"summarization": 4.0, "translation": 5.0})
    assert gains.of_the_way.tolist() == [0.25, 0.0]
    early = {"summarization": 8.5, "translation": 5.0}  # at 98 % kept the margin exits before this oracle
    past = history.beside_margin_and_oracle(overall, layers, early)
    assert past.of_the_way.isna().tolist() == [True, False]
    assert history.gains_shown(past).isin([""]).to_numpy().sum() == 1, "an empty cell in place of NaN"
    assert gains.area_gain.tolist() == pytest.approx([0.03, 0.0])
    assert gains.area_gain_low[0] > 0 > gains.area_gain_low[1]
    said = history.gains_conclusion(gains, 0.98)
    ranks = "The rule over the history of predictions ranks tokens clearly better than the margin over few "
    assert said.startswith(f"{ranks}entries on summarization")
    assert "that margin, this rule exits 1.00 layers earlier on summarization. The oracle, which" in said
    assert "exits 1.00 to 4.00 layers earlier on every task. The rule closes 25% of the gap" in said
    assert "takes 60% (translation) to 70% (summarization) of the FLOPs, the margin 60% (translation)" in said
    behind = history.gains_conclusion(gains.assign(history=[7.0, 6.5]), 0.98)
    assert "earlier on summarization, and 0.50 layers later on translation. The oracle" in behind
    late = gains.assign(history=gains.few + 0.2, oracle=gains.few + 0.1)
    assert (
        "this rule exits no earlier than that margin, and neither does the oracle"
        in history.gains_conclusion(late, 0.98)
    )


def test_what_classifiers_learn_from():
    kinds = {REFERENCES: 0.7, OUTPUTS: 0.72, UNSEEN: 0.73}
    rows = [("hidden", kind, "states", area) for kind, area in kinds.items()]
    rows += [("history", kind, ALL, area + 0.2) for kind, area in kinds.items()]
    rows += [("fixed", "", "", 0.9), ("history", UNSEEN, "only margin", 0.91)]
    table = pd.DataFrame(rows, columns=["rule", "learned_from", "features", "roc_area"])
    table["task"] = "translation"
    by_source = history.areas_by_source(table)
    assert len(by_source) == 7 and by_source.translation.max() == pytest.approx(0.93)
    assert history.areas_by_features(table).translation.round(3).to_dict() == {ALL: 0.93, "only margin": 0.91}
    said = history.sources_conclusion(table)
    outputs = f"by +0.020 with {history.LEARNED[OUTPUTS]}"
    assert f"{outputs} and by +0.030 with {history.LEARNED[UNSEEN]}." in said and said.startswith("No. ")
    few = table[table.rule != "history"].assign(roc_area=0.7)
    assert history.sources_conclusion(few).startswith("Yes. ")
    without_unseen = table[table.learned_from != UNSEEN]
    assert f"{outputs}." in history.sources_conclusion(without_unseen)
    assert history.features_conclusion(table) == "", "no group of features was left out"
    left_out = table[table.features == "only margin"].assign(features="without margin", roc_area=0.8)
    of_features = history.features_conclusion(pd.concat([table, left_out]))
    assert of_features.startswith('The best single group of features is "margin": a mean area of 0.910,')
    assert "0.910, against 0.930 with all" in of_features
    assert of_features.endswith("still at least 0.800.")
    alone = table[table.features == "only margin"].assign(learned_from=OUTPUTS)
    by_features = history.areas_by_features(pd.concat([without_unseen, alone]))
    assert by_features.translation.round(3).to_dict() == {ALL: 0.92, "only margin": 0.91}


def test_each_group_of_features_stands_alone_and_is_left_out_once():
    choices = dict(choices_of_features())
    assert choices[ALL] == []
    alone = {name: without for name, without in choices.items() if name.startswith("only")}
    left_out = {name: without for name, without in choices.items() if name.startswith("without")}
    assert len(alone) == len(left_out) == (len(choices) - 1) / 2
    assert sorted(chain(*left_out.values())) == sorted(FEATURES)
    for name, without in left_out.items():
        assert not set(without) & set(alone[name.replace("without", "only")])
