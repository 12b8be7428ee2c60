"""Saturation by hand: what counts as similar, who is easy, and what follows from the selection itself."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.analysis import saturation

SIMILARITY = np.array(
    [
        [0.1, 0.95, 0.92, 0.97, 0.99, 1.0],
        [0.1, 0.2, 0.3, 0.4, 0.5, 1.0],
        [0.95, 0.1, 0.2, 0.3, 0.91, 1.0],
        [0.9, 0.91, 0.92, 0.93, 0.94, 1.0],
    ]
)


def made_trace(similarity=SIMILARITY, sequence=(0, 0, 1, 1)):
    tokens, layers = similarity.shape
    top = np.tile(np.arange(layers), (tokens, 1))
    top[:, 2:] = layers - 1
    return SimpleNamespace(
        final_similarity=similarity,
        layers=layers,
        along="reference",
        sequence=np.array(sequence),
        position=np.arange(tokens) % 2,
        token_probability=np.full((tokens, layers), 0.5),
        token_id=np.arange(tokens),
        top1_id=top,
        final_id=top[:, -1],
    )


def test_properties_of_a_prefix_by_hand():
    found = saturation.describe(made_trace())
    assert list(found.first_similar) == [2, 6, 1, 1]
    assert list(found.similar_states) == [4, 0, 2, 5]
    assert np.allclose(found.mean_similarity, SIMILARITY[:, :-1].mean(axis=1))
    assert list(found.rises_after_0) == [False, True, False, True]
    assert list(found.rises_after_1) == [False, True, True, True] and list(found.rises_after_2) == [True] * 4
    assert (
        list(found.prefix_tokens) == [1, 2, 1, 2]
        and np.allclose(found.loss, np.log(2))
        and (found.settled_from == 3).all()
    )
    assert saturation.starts(24) == (0, 4, 8) and saturation.starts(12) == (0, 2, 4)


def test_easy_and_difficult_are_the_two_ends():
    prefixes = pd.DataFrame({"mean_similarity": [0.1, 0.9, 0.5, 0.3, 0.7], "loss": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert list(saturation.select(prefixes)) == ["difficult", "easy", "", "difficult", "easy"]
    assert list(saturation.select(prefixes, "loss", 0.2)) == ["easy", "", "", "", "difficult"]
    prefixes["difficulty"] = ["copied", "counted", "grammatical", "agreement", "copied"]
    assert list(saturation.select(prefixes, "difficulty")) == [
        "easy",
        "difficult",
        "easy",
        "difficult",
        "easy",
    ]


def test_the_published_selection_separates_noise_and_an_independent_one_does_not():
    """The circularity: states without any structure look easy and difficult when they are selected by
    what they are then described by.
    """
    random, tokens = np.random.default_rng(0), 600
    similarity = np.concatenate([np.sort(random.random((tokens, 11)), axis=1), np.ones((tokens, 1))], axis=1)
    trace = made_trace(similarity, np.arange(tokens) // 6)
    trace.token_probability = random.random((tokens, 12))
    prefixes = saturation.describe(trace)

    def gap(by):
        table = saturation.compare(prefixes, saturation.select(prefixes, by)).set_index(
            ["group", "property"]
        )["mean"]
        return table["difficult", "first_similar"] - table["easy", "first_similar"]

    assert gap("mean_similarity") > 0.8 and abs(gap("loss")) < 0.25


def test_associations_find_what_is_there_and_nothing_else():
    random, tokens = np.random.default_rng(1), 800
    depth = random.integers(1, 13, tokens)
    prefixes = pd.DataFrame(
        {
            "sequence": np.arange(tokens) // 8,
            "settled_from": depth,
            "loss": depth**3 + 0.1,
            "noise": random.random(tokens),
            "less": -depth,
        }
    )
    table = saturation.associations(prefixes, ["loss", "noise", "less"], ["settled_from"]).set_index(
        "measure"
    )
    assert table.spearman["loss"] == pytest.approx(1) and table.spearman["less"] == pytest.approx(-1)
    assert table.low["noise"] < 0 < table.high["noise"] and (table.low <= table.spearman).all()


def test_depth_by_difficulty_leaves_out_what_is_too_rare():
    prefixes = pd.DataFrame(
        {
            "sequence": np.arange(50),
            "difficulty": ["copied"] * 30 + ["counted"] * 20,
            "settled_from": [2] * 30 + [9] * 20,
            "first_similar": [1] * 50,
            "loss": [0.0] * 50,
        }
    )
    table = saturation.depth_by_difficulty(prefixes, ("copied", "agreement", "counted"), least=20)
    assert list(table[table.depth == "settled_from"].mean_layer) == [2, 9]
    assert saturation.depth_by_difficulty(
        prefixes, ("copied", "counted"), least=25
    ).difficulty.unique().tolist() == ["copied"]


def test_shares_that_have_reached_a_layer_and_single_examples():
    trace, prefixes = made_trace(), saturation.describe(made_trace())
    assert np.allclose(
        saturation.reached(prefixes, "first_similar", 6).share, [0.5, 0.75, 0.75, 0.75, 0.75, 1]
    )
    shown = saturation.examples(trace, prefixes, str, count=1)
    assert shown[shown.group == "easy"].similarity.tolist() == SIMILARITY[3].tolist()
    assert set(shown[shown.group == "easy"].token) == {"3"}
    assert shown[shown.group == "difficult"].similarity.tolist() == SIMILARITY[1].tolist()
    curves = saturation.similarity_curves(trace, saturation.select(prefixes, share=0.5))
    easy = SIMILARITY[np.argsort(-prefixes.mean_similarity.to_numpy())[:2]].mean(axis=0)
    assert np.allclose(curves[curves.group == "easy"].similarity, easy)


def test_mistakes_are_one_clear_line():
    trace = made_trace()
    for change, message in (({"threshold": 1.2}, r"threshold=1\.2"), ({"threshold": 0}, "threshold=0")):
        with pytest.raises(MeeError, match=message):
            saturation.describe(trace, **change)
    with pytest.raises(MeeError, match=r"share=0\.7"):
        saturation.select(saturation.describe(trace), share=0.7)
    trace.along = "greedy"
    with pytest.raises(MeeError, match="on references"):
        saturation.describe(trace)
