"""Exits beside what needs no exit rule: decoders trained shallow, and exit heads on a frozen model.

Everything is set beside the full depth of one baseline, `vanilla`, on the same test examples. So what exits
cost before any token exits (a model trained for exits scores lower at full depth) is counted too.
"""

import math

import pandas as pd

from .catalogue import BASELINE, HEADS, SHALLOW
from .result_tables import EXITS, Measured, read_full_depth, read_lengths, read_retrained
from .verdicts import on_front

FIXED = "fixed exit layer"
SEPARATE = "exit heads on a frozen model"
NO_RULE = ("static", "oracle", "full_depth", *HEADS)
COLUMNS = ["task", "kind", "model", "setting", "kept", "low", "high", "relative_flops", "relative_whole"]


def end_to_end(profile: str) -> pd.DataFrame:
    """The decoders trained shallow of a profile, with `relative_whole`: all FLOPs of an output, the encoder's
    included, as a share of the baseline's. No rows where none was trained.
    """
    shallow = read_retrained(profile, "rivals")
    if shallow.empty:
        return shallow
    outputs = read_full_depth(profile).query("kind == 'rivals'")
    reading = read_lengths(profile).query("part == 'test'")
    outputs = outputs.merge(reading, on=["task", "example"])
    keys = ["task", "model", "seed"]
    whole = (outputs.flops + outputs.encoder).groupby([outputs[key] for key in keys], observed=True).sum()
    whole = shallow[keys].merge(whole.rename("whole").reset_index(), on=keys, how="left").whole
    of_baseline = (
        whole.where(shallow.model == BASELINE).groupby([shallow.task, shallow.seed]).transform("max")
    )
    return shallow.assign(relative_whole=whole / of_baseline)


def beside_exits(stored: Measured, shallow: pd.DataFrame) -> pd.DataFrame:
    """What each way to a cheaper decoder keeps of the baseline's score, and costs.

    Args:
        stored: the measured exits of a profile, on all of its models.
        shallow: the `rivals` of a profile (`end_to_end`); it may have no rows.

    Returns:
        One row a task, model and setting: its `kind`, the share of the baseline's score that is `kept` with
        paired bounds `low` and `high`, and FLOPs as a share of the baseline's: the decoder's of a token
        (`relative_flops`), and all of an output's (`relative_whole`). Of decoders trained with several seeds
        they are means. Of exits only the settings on the front of their kind and model remain: none of these
        is cheaper, all FLOPs counted, and as good. They are chosen on the examples that they are reported on,
        which favours them over the shallow decoders.
    """
    tables = []
    if "kept" in shallow and len(shallow):
        layers = shallow.decoder_layers.astype(str) + " layers"
        bounds = {"low": shallow.kept_low, "high": shallow.kept_high}
        of_seeds = shallow.assign(kind=SHALLOW, setting=layers, **bounds)[COLUMNS]
        names = ["task", "kind", "model", "setting"]
        tables.append(of_seeds.groupby(names, sort=False).mean().reset_index())
    settings = stored.select()
    for kind, chosen in (
        (EXITS, ~settings.rule.isin(NO_RULE)),
        (FIXED, settings.rule == "static"),
        (SEPARATE, settings.rule.isin(HEADS)),
    ):
        for _, rows in settings[chosen].groupby(["model", "task"], sort=False):
            tables.append(_front_of(stored, rows, kind))
    return pd.concat(tables, ignore_index=True)


def _front_of(stored: Measured, settings: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The settings of one task and model on their front, the cheapest first, beside the baseline."""
    beside = stored.beside_full(settings, BASELINE)
    kept = beside["retained"]
    table = pd.DataFrame(
        {
            "task": settings.task,
            "kind": kind,
            "model": settings.model,
            "setting": [setting_name(*row) for row in zip(settings.rule, settings.threshold, strict=True)],
            "kept": kept.value,
            "low": kept.low,
            "high": kept.high,
            "relative_flops": beside["flops_share"].value,
            "relative_whole": beside["whole_share"].value,
        }
    )
    return front(table).drop_duplicates(["kept", "relative_whole"])


def front(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `beside_exits` that none of the others undercuts and equals, the cheapest first."""
    front = table[on_front(table.relative_whole, table.kept)]
    return front.sort_values("relative_whole", kind="stable")


def setting_name(rule: str, threshold: float) -> str:
    """A setting in words: a static exit has its layer in place of a threshold, and some rules have none."""
    if rule == "static":
        return f"layer {threshold:.0f}"
    return rule if math.isnan(threshold) else f"{rule}, {threshold:.4g}"


def kept_of_baseline(stored: Measured, rows: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Settings of one model on test examples, with the share of the baseline's full score that they keep.

    Args:
        stored: the measured exits of a profile.
        rows: with the columns `task`, `model`, `rule` and `threshold`, of settings in `stored`.
        baseline: the model whose full depth counts as 1.

    Returns:
        The same rows with the columns `of_<baseline>`, `of_<baseline>_low` and `of_<baseline>_high`.
    """
    name = f"of_{baseline}"
    columns: dict[str, list[float]] = {name: [], f"{name}_low": [], f"{name}_high": []}
    for row in rows.itertuples():
        same = stored.select(task=row.task, model=row.model, rule=row.rule)
        setting = same[same.threshold == row.threshold] if same.threshold.notna().any() else same
        kept = stored.beside_full(setting.iloc[:1], baseline)["retained"].item(0)
        for column, value in zip(columns, (kept.value, kept.low, kept.high), strict=True):
            columns[column].append(float(value))
    return rows.assign(**columns)
