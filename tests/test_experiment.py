"""What notebooks begin with: parameters from their own cell, and one table of many traces."""

import shutil

import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.companion import Experiment, inputs
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running import notebook_files


def rows(value, task, model, times=1):
    return pd.DataFrame({"task": task, "model": model, "product": [value * times, value]})


def test_a_table_holds_what_a_function_returns_for_every_key_in_order():
    table = Experiment.table(rows, {("b", "calm"): 2, ("a", "free"): 3}, times=10)
    assert list(table.columns) == ["task", "model", "product"]
    assert table.to_numpy().tolist() == [
        ["b", "calm", 20],
        ["b", "calm", 2],
        ["a", "free", 30],
        ["a", "free", 3],
    ]
    assert list(table.index) == [0, 1, 2, 3]


def test_keys_of_one_part_need_no_tuple_and_a_dict_is_a_row():
    table = Experiment.table(lambda value, task: {"task": task, "n": value}, {"a": 1, "b": 2}, ["task"])
    assert table.to_dict("list") == {"task": ["a", "b"], "n": [1, 2]}


def test_of_nothing_there_is_an_empty_table():
    assert Experiment.table(rows, {}).empty


def test_every_part_of_a_key_has_a_label():
    with pytest.raises(ValueError, match="zip"):
        Experiment.table(rows, {("a", "calm", 1): 2})


def test_a_notebook_hands_over_the_parameters_that_it_declares(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    declared = notebook_files.declared_parameters(notebook_files.read_source("01_monotonicity"))
    variables = declared | {"limit": 7, "unrelated": "not a parameter"}
    experiment = Experiment.of_notebook("01_monotonicity", variables)
    assert experiment.profile.name == "small"
    assert experiment.parameters == {n: variables[n] for n in declared if n not in ("profile", "data")}
    assert experiment.parameters["limit"] == 7
    assert experiment.run.parameters == experiment.parameters | {"device": experiment.profile.device}


@pytest.mark.parametrize("gone", ["missing", "a folder"])
def test_weights_that_are_gone_are_one_line(tmp_path, monkeypatch, gone):
    """As in a checkout without its large files; before, a traceback from `make status` and notebooks."""
    profile = load_profile("small")
    shutil.copytree(inputs.checkpoint_folder(profile, "calm"), tmp_path / "small" / "calm")
    weights = tmp_path / "small" / "calm" / "model.safetensors"
    weights.unlink()
    if gone == "a folder":
        weights.mkdir()
    monkeypatch.setattr(inputs, "checkpoint_folder", lambda profile, name: tmp_path / profile.name / name)
    with pytest.raises(MeeError, match='The weights of "calm" are missing') as error:
        inputs.weights_digest(profile, "calm")
    assert "git checkout" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(MeeError, match=r"model\.safetensors"):
        inputs.load_profile_model(profile, "calm")
