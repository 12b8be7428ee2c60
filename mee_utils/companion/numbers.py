"""Numbers in the sentences of README and RESULTS.md that are more than one cell of a table.

Each notebook saves its own as `numbers.json`, read off the tables that it has just saved, so that they can be
computed again from these at any time. What a notebook states has two parts: `tasks`, task -> group -> values
(`tasks["translation"]["fixed_list"]["other_token"]`), and whatever is said of all tasks together. All is
about CALM's model where no other is named. What was not measured (a model that a profile lacks) is left out.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ..common.errors import check_choice
from .catalogue import MAIN_MODEL
from .results import DECIMALS, Run

FILE = "numbers.json"
OF_CALM = f"model == {MAIN_MODEL!r}"
LATER = {"high_loss_later": "loss", "low_similarity_later": "mean_similarity"}  # by what tokens are difficult
Numbers = dict[str, dict]


class SavedTables:
    """The tables that one notebook has saved in its folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return (self.folder / f"{name}.csv").exists()

    def __getitem__(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / f"{name}.csv")


def save_numbers(run: Run) -> None:
    """Saves what a notebook states as `numbers.json`; called after its last table was saved."""
    run.save_json(stated_in(run.notebook, run.folder), FILE)


def stored_numbers(profile_folder: Path) -> Numbers:
    """What all notebooks of a profile state together, from the folder of its results.

    Where a notebook was last run before it saved its numbers, they are computed from its tables.
    """
    together: Numbers = {"tasks": {}}
    for notebook in STATED:
        folder = profile_folder / notebook
        file = folder / FILE
        stated = (
            json.loads(file.read_text(encoding="utf-8")) if file.exists() else stated_in(notebook, folder)
        )
        for task, groups in stated.pop("tasks", {}).items():
            together["tasks"].setdefault(task, {}).update(groups)
        together.update(stated)
    return together


def stated_in(notebook: str, folder: Path) -> Numbers:
    """The numbers that a notebook states, from the tables in its folder."""
    check_choice("notebook with numbers", notebook, list(STATED))
    return STATED[notebook](SavedTables(folder))


def settled(tables: SavedTables) -> Numbers:
    """01, by model: the share of predictions that are final after layer 4, and that of monotonic tokens."""
    shares = tables["figure_1_settled"].query("layer == 4")
    stated = {task: {"settled": _by(rows, "model", "share")} for task, rows in shares.groupby("task")}
    if "strictly_monotonic" in tables:
        monotonic = tables["strictly_monotonic"].query("kind == 'never falling' and after_layer == 0")
        for task, rows in monotonic.groupby("task"):
            stated[task]["never_falling"] = _by(rows, "model", "share")
    return {"tasks": stated}


def difficult(tables: SavedTables) -> Numbers:
    """02: how many layers later than easy tokens difficult ones settle and become similar.

    Difficult are tokens of high loss, or those in prefixes of low similarity.
    """
    means = tables["three_selections"].query(OF_CALM)
    if means.empty:  # a profile without CALM's model
        return {}
    keys = ["task", "selected_by", "property"]
    means = means.pivot(index=keys, columns="group", values="mean")
    later = (means.difficult - means.easy).round(DECIMALS)
    stated = {}
    for task in later.index.unique("task"):
        stated[task] = {
            name: {
                "settled_from": later[task, selected_by, "settled_from"],
                "first_similar": later[task, selected_by, "first_similar"],
            }
            for name, selected_by in LATER.items()
        }
    return {"tasks": stated}


def pruned(tables: SavedTables) -> Numbers:
    """03: the share of output tokens that a fixed list of vocabulary entries changes."""
    rows = tables["complete_table"].query(f"{OF_CALM} and reduction == 'fixed'")
    return {
        "tasks": {row.task: {"fixed_list": {"other_token": row.other_token}} for row in rows.itertuples()}
    }


def contrasted(tables: SavedTables) -> Numbers:
    """04: the area under the ROC curve of each rule, mean over layers, then over tasks."""
    areas = tables["ranking"].query(OF_CALM)
    by_task = areas.groupby(["task", "rule"], as_index=False, sort=False).roc_area.mean()
    return {"roc_area": by_task.groupby("rule", sort=False).roc_area.mean().round(DECIMALS).to_dict()}


def guaranteed(tables: SavedTables) -> Numbers:
    """08: how often the guarantee of calibrated thresholds is broken on fresh data."""
    return {"guarantee": _guarantee(tables["fresh_sets"])} if "fresh_sets" in tables else {}


def _guarantee(rates: pd.DataFrame) -> dict[str, float]:
    """The largest share of fresh calibration sets that break the guarantee, and what chance allows."""
    untested = rates.bound == "no_test"
    return {
        "broken": rates[~untested].violated.max(),
        "broken_without_a_test": rates[untested].violated.max(),
        "by_chance": rates.limit.max(),
    }


def _by(rows: pd.DataFrame, key: str, value: str) -> dict[str, float]:
    """One column of the rows by another."""
    return dict(zip(rows[key], rows[value], strict=True))


STATED: dict[str, Callable[[SavedTables], Numbers]] = {
    "01_monotonicity": settled,
    "02_saturation": difficult,
    "03_pruning": pruned,
    "04_contrastive_decoding": contrasted,
    "08_results": guaranteed,
}
