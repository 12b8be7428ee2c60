"""What rules do at one threshold, and whether their confidence is a probability."""

from __future__ import annotations

import pandas as pd

from ... import figures
from ...catalogue import VARIANTS
from ...prose import listed
from ..wording import without_source
from .compared import MARGIN

DECIDING = ("softmax_margin", "hidden_similarity", "linear", "hidden", "three_hidden", "lstm")


def decisions_figure(quality_of: pd.DataFrame, threshold: float, note: str = ""):
    """Precision and recall of six rules at a threshold, by layer."""
    return figures.facets(
        _deciding(quality_of),
        _draw_decisions,
        quantities={"precision": "precision", "recall": "recall"},
        sharey="row",
        height=2.5,
        message=decisions_message(quality_of, threshold),
        note=note,
    )


def _deciding(quality_of: pd.DataFrame) -> pd.DataFrame:
    """The rows that `decisions_figure` draws, and its sentences speak of."""
    return quality_of[quality_of.rule.isin(DECIDING)]


def _draw_decisions(axis, rows: pd.DataFrame, y: str) -> None:
    figures.lines(axis, rows.dropna(subset=[y]), "layer", y, band=(f"{y}_low", f"{y}_high"))


def decisions_message(quality_of: pd.DataFrame, threshold: float) -> str:
    """What one threshold means for different rules."""
    recall = _deciding(quality_of).groupby("rule").recall.mean()
    return (
        f"At a threshold of {threshold:g}, {recall.min():.0%} to {recall.max():.0%} of the tokens whose "
        "prediction is final may exit, depending on the measure (means over layers and tasks)"
    )


def decisions_conclusion(quality_of: pd.DataFrame) -> str:
    """The precision of all measures, and between which recalls they lie."""
    means = _deciding(quality_of).groupby("rule")[["precision", "recall"]].mean().dropna()
    if means.empty:
        return "No measure exits at this threshold, or no prediction is final early."
    quality = " and different quality" if means.precision.max() - means.precision.min() > 0.05 else ""
    return (
        f"Means over layers and tasks: precision lies between {_ends(means.precision, '.1%')}, recall "
        f"between {_ends(means.recall, '.0%')}. An equal threshold gives different numbers of "
        f"exits{quality}: from here on, rules are compared at equal quality."
    )


def _ends(by_rule: pd.Series, form: str) -> str:
    """The least and the largest value with their rules: "14% (linear classifier) and 97% (margin)"."""
    ends = [by_rule.idxmin(), by_rule.idxmax()]
    return listed(f"{by_rule[rule]:{form}} ({without_source(rule)})" for rule in ends)


def calibration_figure(reliability: pd.DataFrame, note: str = ""):
    """Confidence against the share of exits that would have been right."""
    return figures.facets(
        reliability,
        _draw_calibration,
        xlabel="confidence",
        ylabel="share whose prediction\nis the last layer's",
        height=3.0,
        message=calibration_message(reliability),
        note=note,
    )


def _draw_calibration(axis, rows: pd.DataFrame) -> None:
    figures.perfect_calibration(axis)
    figures.lines(axis, rows, "confidence", "accuracy")


def calibration_errors(reliability: pd.DataFrame) -> pd.Series:
    """The expected calibration error of each rule, a mean over tasks, the smallest first."""
    errors = reliability.drop_duplicates(["task", "rule"])
    return errors.groupby("rule", sort=False).error.mean().sort_values()


def underconfident(reliability: pd.DataFrame) -> list[str]:
    """The rules whose predictions are, on every task, the last layer's more often than they are confident."""
    gap = (reliability.accuracy - reliability.confidence) * reliability["count"]
    gaps = gap.groupby([reliability.rule, reliability.task], sort=False).sum()
    least = gaps.groupby(level="rule", sort=False).min()
    return list(least.index[least > 0])


def calibration_message(reliability: pd.DataFrame) -> str:
    """Whether all rules are underconfident, or between which calibration errors they lie."""
    errors = calibration_errors(reliability)
    if len(underconfident(reliability)) == len(errors):
        return (
            "Every measure drawn is underconfident: predictions are final more often than it says "
            f"(calibration error {errors.min():.2f} to {errors.max():.2f})"
        )
    return (
        "What a confidence of 0.9 means depends on the measure: calibration errors of "
        f"{errors.min():.2f} to {errors.max():.2f}"
    )


def calibration_conclusion(reliability: pd.DataFrame) -> str:
    """The rules with the smallest and the largest calibration error."""
    errors = calibration_errors(reliability)
    said = f"The expected calibration error, a mean over the tasks, lies between {_ends(errors, '.3f')}."
    modest = underconfident(reliability)
    if any(rule in modest for rule in VARIANTS):
        said += (
            " Classifiers are trained with both classes weighted equally, which makes them underconfident "
            "where most predictions are final."
        )
    if MARGIN in modest:
        said += " The softmax margin is underconfident too, without any training."
    return said
