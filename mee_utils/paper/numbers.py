"""The numbers that README states. Each notebook saves its own as `numbers.json`, beside its tables.

A number is read off the tables that the notebook has just saved, so it can be computed again from these files
at any time. What a notebook states has two parts: `tasks`, task -> group -> values (`tasks["translation"]
["fastest"]["speed"]`), and whatever is said of all tasks together. All is about CALM's model where no other
is named. What was not measured (a model that a profile lacks, speeds that nobody timed) is left out.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ..common.errors import check_choice
from ..study.catalogue import MAIN_MODEL, SEVERAL_LAYERS
from ..study.figures import label
from ..study.result_tables import KEEPS_IT
from ..study.results import DECIMALS, Run
from ..tasks.kinds import TASKS
from .claims import VERDICTS
from .statements import claims_of_our_own

FILE = "numbers.json"
OF_CALM = f"model == {MAIN_MODEL!r}"
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


def full_depth(tables: SavedTables) -> Numbers:
    """00: the score of full depth by the metric of the task, and the best baseline that needs no model."""
    scores = tables["scores"]
    scores = scores[scores.metric == scores.task.map({name: kind.metric for name, kind in TASKS.items()})]
    calm = scores[scores.system == MAIN_MODEL].set_index("task")
    baselines = scores[scores.kind == "baseline"].groupby("task").corpus_score.max()
    stated = {}
    for task, row in calm.iterrows():
        score = {"metric": row.metric, "score": row.corpus_score, "best_baseline": baselines[task]}
        stated[task] = {"full_depth": score}
    return {"tasks": stated}


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
    """02: how many layers later than tokens of low loss those of high loss settle and become similar."""
    means = tables["three_selections"].query(f"{OF_CALM} and selected_by == 'loss'")
    means = means.pivot(index=["task", "property"], columns="group", values="mean")
    later = (means.difficult - means.easy).round(DECIMALS) if len(means) else pd.Series(dtype=float)
    stated = {}
    for task in later.index.unique("task"):
        layers = {"settled_from": later[task, "settled_from"], "first_similar": later[task, "first_similar"]}
        stated[task] = {"high_loss_later": layers}
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


def verified(tables: SavedTables) -> Numbers:
    """07: the speed of verified exits, one output at a time; here, and simulated at the shape of T5-large."""
    stated: Numbers = {}
    if "speed" in tables:
        for row in tables["speed"].query(f"{OF_CALM} and batch == 1").itertuples():
            stated.setdefault(row.task, {})["verified"] = {"speed": row.speed}
    if "speed_by_shape" in tables:
        shapes = tables["speed_by_shape"].rename(columns={"simulated_speed": "speed"})
        for row in shapes.query("shape == 't5-large' and batch == 1 and kind == 'verified'").itertuples():
            stated.setdefault(row.task, {})["verified_t5_large"] = {"speed": row.speed}
    return {"tasks": stated}


def results(tables: SavedTables) -> Numbers:
    """08: the rules that keep 99 % of the score, the guarantee, a published bug, and the ledger."""
    stated: Numbers = {}
    safe = tables["at_99_percent"]
    safe = safe[(safe.verdict == KEEPS_IT) & (safe.flops_share < 1)]
    for row in safe.sort_values("flops_share", kind="stable").drop_duplicates("task").itertuples():
        cheapest = {"rule": label(row.rule), "flops_share": row.flops_share}
        stated.setdefault(row.task, {})["cheapest"] = cheapest | {
            "low": row.flops_low,
            "high": row.flops_high,
        }
    if "answer" in tables:
        for task, groups in _fastest(tables["answer"].query("batch == 1")).items():
            stated.setdefault(task, {}).update(groups)
    bugs = tables["published_bugs_switched_on"]
    bugs = bugs.query(f"{OF_CALM} and bug == 'positions for ids'")
    for task, rows in bugs.groupby("task"):
        stated.setdefault(task, {})["positions_for_ids"] = _by(rows, "version", "retained")
    ledger = tables["ledger"]
    of_our_own = ledger.claim.isin(claims_of_our_own()).sum()
    together: Numbers = {"ledger": {"statements": len(ledger), "of_our_own": int(of_our_own)}}
    together["verdicts"] = {verdict: int((ledger.verdict == verdict).sum()) for verdict in VERDICTS}
    if "fresh_sets" in tables:
        together["guarantee"] = _guarantee(tables["fresh_sets"])
    return {"tasks": stated, **together}


def _fastest(answer: pd.DataFrame) -> Numbers:
    """The fastest rule of every task, and the fastest of those that look at several layers.

    Half of the rounds order the rules (`ranked`), the other half are the speed that is stated.
    """
    ordered = answer.sort_values("ranked", ascending=False, kind="stable")
    several = ordered[ordered.rule.isin(SEVERAL_LAYERS)]
    stated: Numbers = {}
    for group, rows in (("fastest", ordered), ("fastest_of_several_layers", several)):
        for row in rows.drop_duplicates("task").itertuples():
            stated.setdefault(row.task, {})[group] = {
                "rule": label(row.rule),
                "speed": row.speed,
                "lowest": row.lowest,
                "highest": row.highest,
                "samples_speed": row.samples_speed,
                "mean_exit_layer": row.mean_exit_layer,
                "flops_share": row.flops_share,
            }
    return stated


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
    "00_models": full_depth,
    "01_monotonicity": settled,
    "02_saturation": difficult,
    "03_pruning": pruned,
    "04_contrastive_decoding": contrasted,
    "07_lossless": verified,
    "08_results": results,
}
