"""The bench of notebook 06: what stored measurements say of each rule, all at the same loss."""

from collections.abc import Sequence

import pandas as pd

from ..analysis.statistics import DRAWS, renamed
from . import verdicts
from .catalogue import MAIN_MODEL
from .result_tables import Measured, read_timings

TASK_AND_RULE = ["task", "rule"]
# columns of tables -> their names here
LOSS = {"consistency_loss": "loss", "consistency_low": "loss_low", "consistency_high": "loss_high"}
EQUAL_FLOPS = {"flops_share": "equal_flops", "flops_low": "equal_low", "flops_high": "equal_high"}
SETTING = ["model", "threshold", *LOSS.values(), "flops_share", "mean_exit_layer"]
SCORE = ["retained", "low", "high", f"retained{DRAWS}"]  # statements take the other columns as facts


def survey_bench(
    stored: Measured,
    profile: str,
    rules: Sequence[str],
    tasks: Sequence[str],
    ranking: pd.DataFrame,
    demand: float,
    delta: float,
) -> pd.DataFrame:
    """One row for each task and rule, in the order of the measurements.

    `threshold` to `retained` are those of one setting: the last, from strict to loose, that loses at most
    `demand` on validation examples, measured on test examples. `equal_flops` is where the line through the
    rule's settings crosses this loss, `guaranteed` the FLOPs at which a mean loss of at most `delta` is
    guaranteed, `verified_speed` that of the setting's exits as drafts (NaN: not timed).

    Args:
        ranking: how well each rule ranks tokens, by task and rule.
        demand: the mean consistency loss at which rules are compared.
        delta: the mean consistency loss that is guaranteed.
    """

    def wanted(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[rows.rule.isin(rules) & rows.task.isin(tasks)]

    chosen = wanted(verdicts.within_loss(stored, MAIN_MODEL, demand))
    equal = wanted(verdicts.at_equal_loss(stored, MAIN_MODEL, [demand]))
    equal = equal[TASK_AND_RULE].join(renamed(equal, EQUAL_FLOPS))
    demands = {"consistency": [delta]}
    guaranteed = wanted(verdicts.calibrated(stored, MAIN_MODEL, demands, ("hoeffding_bentkus",)))
    guaranteed = guaranteed.rename(columns={"flops_share": "guaranteed"})[[*TASK_AND_RULE, "guaranteed"]]
    timed = read_timings("drafts", chosen, profile)
    timed = timed.rename(columns={"speed": "verified_speed"})[[*TASK_AND_RULE, "verified_speed"]]
    bench = chosen.rename(columns=LOSS)[[*TASK_AND_RULE, *SETTING, *SCORE]]
    for part in (equal, ranking, guaranteed, timed):
        bench = bench.merge(part, on=TASK_AND_RULE, how="left")
    return bench
