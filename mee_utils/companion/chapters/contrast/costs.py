"""What contrast and pruning cost by the clock, and on long inputs."""

from __future__ import annotations

import pandas as pd

from ... import figures
from .as_confidence import MARGIN, PRUNED_FORMS


def clock_conclusion(measured: pd.DataFrame) -> str:
    """What pruning and contrast change in the time of a decision at T5-large's size, in layers."""
    layers = measured[measured["shape"] == "t5-large"].set_index("what")["median"]
    return (
        "At T5-large's size, a margin over all entries takes as long as "
        f"{layers['softmax_margin']:.2f} layers and one over 256 entries "
        f"{layers['margin, 256 ids kept']:.2f}; over 256 entries, weighted contrast takes "
        f"{layers['weighted contrast, 256 ids kept']:.2f} and JSD contrast "
        f"{layers['JSD contrast, 256 ids kept']:.2f}."
    )


def long_conclusion(long_costs: pd.DataFrame) -> str:
    """What deciding at every layer adds to full depth on long documents, over all entries and over a few."""
    flops = long_costs.groupby("rule").flops_share.mean() - 1
    added = {whole: f"{flops[whole]:.1%} ({flops[pruned]:.1%})" for whole, pruned in PRUNED_FORMS.items()}
    return (
        f"Sources have {long_costs.source_tokens.mean():,.0f} tokens on average. Where every layer decides, "
        f"the plain margin adds {added[MARGIN]} to the FLOPs of full depth, weighted contrast "
        f"{added['weighted']} and JSD contrast {added['jsd']}; in brackets, over a few entries."
    )


def lengths_figure(grown: pd.DataFrame):
    """FLOPs if all layers decide, by the length of the source: a panel a shape of model."""
    figure = figures.facets(
        grown.replace({"shape": figures.SIZES}),
        figures.lines,
        "shape",
        x="source_tokens",
        y="flops_share",
        xlabel="tokens of the source",
        ylabel="FLOPs if all layers decide\n(1 = full depth)",
        message=lengths_message(grown),
    )
    figure.axes[0].set_xscale("log", base=2)
    return figure


def lengths_message(grown: pd.DataFrame) -> str:
    """What deciding adds to T5-large's FLOPs with the shortest source and with the longest."""
    of_margin = grown[(grown["shape"] == "t5-large") & (grown.rule == MARGIN)]
    added = of_margin.set_index("source_tokens").flops_share - 1
    return (
        f"Deciding over all entries at every layer adds {added.iloc[0]:.0%} to T5-large's FLOPs with "
        f"{added.index[0]:,} source tokens, and {added.iloc[-1]:.0%} with {added.index[-1]:,}"
    )
