"""What limits exits: wrong decisions, or the states that exits leave behind?

The oracle makes no wrong decision. With copied states ("copy": CALM, MEE) what it loses is lost to states
that were never computed; with exact ones ("parallel": FREE; "verify": drafts) it loses nothing. Its decisions
are free, or "charged": each costs what the cheapest readout takes there. A rule that loses more for as many
FLOPs as the charged oracle loses it by the quality of its decisions.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..analysis.beside_full import result_rows
from .kinds import ONE, SEVERAL, kind_of
from .result_tables import ORACLE_CHARGED, Measured

# series of `limit_curves`
COPIED = "oracle_copy"  # free decisions
CHARGED = "oracle_copy, charged"
EXACT = "oracle_parallel"
MARGINS = "margins"  # the margin over all vocabulary tokens, or over few
BEST = "best_rule"
MARGIN_RULES = ("softmax_margin", "fixed", "few", "decaying", "adaptive")
SHOWN = [
    *("task", "series", "rule", "threshold", "retained", "low", "high"),
    *("consistency_loss", "consistency_low", "consistency_high", "flops_share", "flops_low", "flops_high"),
    "whole_share",
]

AT_EQUAL_FLOPS = [  # columns of `limits_at_equal_flops`
    *("task", "flops_share", "charged_flops", "exact_flops", "oracle", "oracle_low", "oracle_high"),
    *("exact", "exact_low", "exact_high", "rule", "rule_flops", "rule_kept", "rule_kept_low"),
    *("rule_kept_high", "fixed_layer", "fixed_kept", "fixed_kept_low", "fixed_kept_high"),
]


def decoded_oracle(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per task, rule, threshold and `propagation` of what `measure.OracleDecoder` decoded.

    Args:
        tables: task -> its examples, from `result_tables.read_oracle`.
    """
    rows = []
    for task, table in tables.items():
        full = table[table.rule == "full_depth"]
        others = table[table.rule != "full_depth"]
        groups = others.groupby(["rule", "threshold", "propagation"], sort=False, dropna=False)
        labels = pd.DataFrame([key for key, _ in groups], columns=["rule", "threshold", "propagation"])
        beside_full = pd.DataFrame(result_rows([examples for _, examples in groups], full))
        rows.append(pd.concat([labels.assign(task=task), beside_full], axis=1))
    return pd.concat(rows, ignore_index=True)


def limit_curves(stored: Measured, model: str, oracle: pd.DataFrame) -> pd.DataFrame:
    """What is kept for which FLOPs: a `series` for each kind of the oracle, rules, fixed layers, full depth.

    Args:
        stored: every setting of the profile; the margins are all settings of `MARGIN_RULES`.
        model: of which.
        oracle: from `decoded_oracle`.
    """
    rows = stored.rows(model=model)
    rows = rows[rows.task.isin(oracle.task.unique())]
    exits = oracle[oracle.rule == "oracle"]
    parts = [exits.assign(series="oracle_" + exits.propagation)]
    parts.append(rows[rows.rule.isin(MARGIN_RULES)].assign(series=MARGINS))
    parts += [rows[rows.rule == rule].assign(series=rule) for rule in ("static", "full_depth")]
    for row in exits[exits.propagation == ORACLE_CHARGED].itertuples():
        parts.append(best_rule_at(stored, model, row.task, row.flops_share).assign(series=BEST))
    return pd.concat(parts, ignore_index=True)[SHOWN]


def best_rule_at(stored: Measured, model: str, task: str, flops_share: float) -> pd.DataFrame:
    """The setting of a rule that keeps most for at most these FLOPs: one row, or none.

    It is chosen on the validation examples, by its score and its FLOPs there, and reported on test examples.
    """
    settings = stored.select("validation", task=task, model=model)
    rules = settings[settings.rule.map(kind_of).isin([ONE, SEVERAL])]
    full = stored.full("validation", task, model)
    spent = np.array([_flops_per_token(stored.examples[index]) for index in rules.index])
    kept = np.array([stored.examples[index].score.to_numpy(np.float64).mean() for index in rules.index])
    affordable = rules.assign(kept=kept)[spent <= flops_share * _flops_per_token(full)]
    tested = stored.select(task=task, model=model)
    pairs = tested.reset_index().merge(affordable[["rule", "threshold", "kept"]], on=["rule", "threshold"])
    best = pairs.sort_values("kept", ascending=False, kind="stable").head(1)
    return stored.rows(task=task, model=model).loc[best["index"]]


def _flops_per_token(examples: pd.DataFrame) -> float:
    return examples.flops.sum() / examples.tokens.sum()


def limits_at_equal_flops(stored: Measured, model: str, oracle: pd.DataFrame) -> pd.DataFrame:
    """The oracle with copied states beside the best rule and the best fixed layer for at most its FLOPs.

    One row a task: `flops_share` with free decisions, and `charged_flops`, which limits the others; what is
    kept by the `oracle`, by exact states (`exact`) for `exact_flops`, by the best `rule` and by the deepest
    `fixed_layer`, each with `_low` and `_high`. NaN where none is as cheap.
    """
    rows = []
    for task, of_task in oracle[oracle.rule == "oracle"].groupby("task", sort=False):
        by_states = of_task.set_index("propagation")
        copied, exact = by_states.loc["copy"], by_states.loc["parallel"]
        charged = by_states.flops_share[ORACLE_CHARGED]
        row = dict.fromkeys(AT_EQUAL_FLOPS, np.nan) | {"task": task}
        row |= {"flops_share": copied.flops_share, "charged_flops": charged, "exact_flops": exact.flops_share}
        row |= _kept(copied, "oracle") | _kept(exact, "exact")
        for best in best_rule_at(stored, model, task, charged).itertuples():  # one, or none
            row |= {"rule": best.rule, "rule_flops": best.flops_share} | _kept(best, "rule_kept")
        static = stored.rows(task=task, model=model, rule="static")
        as_cheap = static[static.flops_share <= charged]
        for deepest in as_cheap.nlargest(1, "threshold").itertuples():
            row |= {"fixed_layer": deepest.threshold} | _kept(deepest, "fixed_kept")
        rows.append(row)
    return pd.DataFrame(rows)


def _kept(row, name: str) -> dict[str, float]:
    return {name: row.retained, f"{name}_low": row.low, f"{name}_high": row.high}
