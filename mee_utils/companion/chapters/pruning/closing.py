"""Chapter 03 in eight sentences at most."""

from __future__ import annotations

import pandas as pd

from ...prose import on_tasks, task_span
from ..wording import in_a_sentence
from .decision_costs import cost_message
from .lists import NEARLY_ALL, long_enough, unreachable_conclusion
from .ways import WHOLE_LAST, of_calm


def summary(
    complete: pd.DataFrame, swept: pd.DataFrame, costs: pd.DataFrame, lost: pd.DataFrame, entries: int
) -> str:
    """The chapter in eight sentences at most: how many entries, what is lost, whether a rule gets cheaper."""
    enough = long_enough(swept)
    most = max(enough.values())
    whole = enough.get(WHOLE_LAST, most)
    opening = "No: of" if most < entries else "Of"
    sentences = [
        f"{opening} the {entries:,} entries here, a decision of CALM has to score {most} at each layer after "
        f"the first that decides. Longer lists keep at most {100 * NEARLY_ALL:g} percentage points more of "
        "the predictions.",
        f"Before a whole last layer, {whole} are enough." if whole < most else "",
        unreachable_conclusion(lost),
        _cheaper(of_calm(complete)),
        f"{cost_message(costs)}.",
        "Pruning makes decisions cheaper, not safer; 08 shows which exits keep the quality.",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _cheaper(complete: pd.DataFrame) -> str:
    """The FLOPs of the margin with and without short lists, and where these cost less than full depth."""
    flops = complete.pivot_table(index="task", columns="reduction", values="flops_share", sort=False)
    way = WHOLE_LAST if WHOLE_LAST in flops else "fixed"
    if not {way, "unpruned"} <= set(flops):
        return ""
    below = on_tasks(flops.index[flops[way] < 1], flops.index)
    return (
        f"With the {in_a_sentence(way)}, CALM's outputs cost less than full depth {below}: "
        f"{task_span(flops[way])} of the FLOPs, against {task_span(flops.unpruned)} for the margin over all "
        "entries."
    )
