"""The setting of MEE's main figure: six measures at one threshold, score against speed.

`make bench PART=published` decodes it, scores the outputs and times the same runs; notebook 08 draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from .catalogue import CALM_RULES, MAIN_MODEL, MEE_RULES, RULES

if TYPE_CHECKING:
    from ..exits.policy import ExitPolicy

RULES_COMPARED = (*CALM_RULES, *MEE_RULES)
THRESHOLD = 0.9
DECAY = 4.0  # temperature of the threshold, which falls with the position
BATCHES = (32, 1)  # as published, and alone
MIN_LAYER = 4  # the number in MEE's text, of 24 layers
DEPTH = 24  # of T5-large
METRICS = {  # that MEE's figure shows of each task; of other tasks it is the task's own
    "question_answering": "f1",
    "translation": "bleu",
    "summarization": "rouge1",
    "long_document_summarization": "rouge1",
}
EXACT = "exact"
CUT = "cut"  # the published decoder: once a whole batch has exited at a layer, later tokens run no deeper


def first_exit_layers(layers: int) -> list[int]:
    """The first layers at which tokens may exit: the published share of the depth, then layer 4.

    >>> first_exit_layers(12)
    [2, 4]
    """
    same_share = max(1, MIN_LAYER * layers // DEPTH)
    return list(dict.fromkeys([same_share, min(MIN_LAYER, layers)]))


def published_settings(layers: int) -> pd.DataFrame:
    """What is decoded of a model with so many layers: `rule`, `threshold`, `min_layer` and `decoder`.

    Full depth, then each rule from each first layer; with the published decoder's cut at the published share
    of the depth alone.
    """
    rows = [("full_depth", float("nan"), layers, EXACT)]
    for number, min_layer in enumerate(first_exit_layers(layers)):
        for decoder in (EXACT, CUT) if number == 0 else (EXACT,):
            rows += [(rule, THRESHOLD, min_layer, decoder) for rule in RULES_COMPARED]
    return pd.DataFrame(rows, columns=["rule", "threshold", "min_layer", "decoder"])


def wanted_timings(layers: int, tasks: list[str]) -> pd.DataFrame:
    """`published_settings` of the main model on each task, as `result_tables.read_timings` wants them."""
    settings = published_settings(layers).assign(model=MAIN_MODEL)
    return pd.concat([settings.assign(task=task) for task in tasks], ignore_index=True)


def policy_of(row, options: Mapping, classifiers: Mapping) -> ExitPolicy | None:
    """The policy of a row of `published_settings`, without the cut; None at full depth.

    `options` are the settings of results, `classifiers` trained ones by rule.
    """
    if row.rule == "full_depth":
        return None
    options = {**options, "min_layer": row.min_layer}
    return RULES[row.rule].policy(row.threshold, options, classifiers, DECAY)
