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
    large = (
        grown[(grown["shape"] == "t5-large") & (grown.rule == MARGIN)].set_index("source_tokens").flops_share
    )
    figure = figures.facets(
        grown.replace({"shape": figures.SIZES}),
        figures.lines,
        "shape",
        x="source_tokens",
        y="flops_share",
        xlabel="tokens of the source",
        ylabel="FLOPs if all layers decide\n(1 = full depth)",
        message=(
            f"Deciding over all entries at every layer adds {large.iloc[0] - 1:.0%} to T5-large's FLOPs with "
            f"{large.index[0]:,} source tokens, and {large.iloc[-1] - 1:.0%} with {large.index[-1]:,}"
        ),
    )
    figure.axes[0].set_xscale("log", base=2)
    return figure
