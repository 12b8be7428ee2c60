"""Numbers in the sentences of the chapters; `companion.prose` has what joins them."""

import re
from collections.abc import Iterable

import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, span

WITHOUT_ARTICLE = (  # how labels of rules begin that stand without "the" in a sentence
    "max probability",
    "entropy",
    "patience",
    "patient entropy",
    "rising top-1",
    "hidden similarity",
    "falling similarity",
    "learning to exit",
    "Q-exit",
    "weighted contrast",
    "JSD contrast",
)

CLEARLY = "the 95 % interval of the paired difference excludes zero"  # what "clearly" means in conclusions


def percent_span(values: Iterable[float], form: str = "{:.0%}") -> str:
    """The least and the largest of some shares; those that are NaN do not count.

    >>> percent_span([0.5, 0.25, float("nan")]), percent_span([])
    ('25% to 50%', 'unknown')
    """
    numbers = pd.Series(list(values), dtype=float).dropna()
    return span(numbers, form) if len(numbers) else "unknown"


def last_ranked_layer(ranks: pd.DataFrame) -> int:
    """The last layer at which some tokens are ranked (`roc_area`); of all layers, where none are."""
    ranked = ranks.layer[ranks.roc_area.notna()]
    return int(ranked.max() if len(ranked) else ranks.layer.max())


def with_interval(row, name: str, form: str = ".0%", low: str | None = None, high: str | None = None) -> str:
    """ "90% (88% to 92%)": a value of a row with the bounds that stand beside it."""
    bounds = f"{row[low or name + '_low']:{form}} to {row[high or name + '_high']:{form}}"
    return f"{row[name]:{form}} ({bounds})"


def winners(best: pd.DataFrame) -> str:
    """Rows with a task and its rule in words: "the margin on summarization, and the vote on translation".

    A comma parts two and semicolons part more, since the tasks of a rule are joined by "and" too.
    """
    parts = []
    for rule, rows in best.groupby("rule", sort=False):
        name = "a fixed layer" if rule == "static" else with_article(rule)
        parts.append(f"{name} {on_tasks(rows.task, list(best.task))}")
    return "; ".join(parts) if len(parts) > 2 else ", and ".join(parts)


def worst_tasks(counts: pd.Series) -> str:
    """Where the largest count is, by task: "on the worst task (translation)", or "on every task"."""
    worst = list(counts.index[counts == counts.max()])
    if len(worst) == len(counts):
        return on_tasks(worst, worst)
    plural = "s" if len(worst) > 1 else ""
    return f"on the worst task{plural} ({listed(map(figures.label, worst))})"


def with_article(name: str) -> str:
    """The label of a rule with "the", if its name takes an article.

    >>> with_article("vote"), with_article("patience")
    ('the vote (Sun et al.)', 'patience (PABEE)')
    """
    text = in_a_sentence(name)
    return text if text.startswith(WITHOUT_ARTICLE) else f"the {text}"


def in_a_sentence(name: str) -> str:
    """The label of a rule as a noun with its article left out.

    >>> in_a_sentence("low_rank_three"), in_a_sentence("fixed")
    ('low-rank classifier on three states (ours)', 'margin with fixed pruning')
    """
    return re.sub("^low rank on", "low-rank classifier on", figures.label(name))


def without_source(name: str) -> str:
    """The label of a rule without the paper behind it, for use in brackets and titles.

    >>> without_source("hidden_similarity")
    'hidden similarity'
    """
    return re.sub(r" \([^()]*\)$", "", in_a_sentence(name))


def some(share: float, form: str = ".0%") -> str:
    """A share, in words where its digits would all be 0.

    >>> some(0.21), some(0.0004), some(0.0004, ".1%"), some(0.0)
    ('21%', 'fewer than 1%', 'fewer than 0.1%', 'none')
    """
    if share == 0:
        return "none"
    text = f"{share:{form}}"
    zero = f"{0:{form}}"
    return f"fewer than {zero[:-2]}1%" if text == zero else text


def capitalized(text: str) -> str:
    """A text that begins a sentence: the names of models and rules are lower case."""
    return text[:1].upper() + text[1:]
