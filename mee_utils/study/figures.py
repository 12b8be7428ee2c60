"""How figures look: a colour, marker and dash for each model and rule (`styles.yaml`, `rules.yaml`).

`facets` makes a figure; other functions draw the rows of a panel. There `axis` is matplotlib's, `rows` a
table, `x`, `y` and `column` name columns of numbers, `by` the column whose values are names in `styles`, and
a `band` two columns: the lower and the upper end of what is drawn around a value.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import pandas as pd

from ..common.errors import MeeError
from ..common.files import read_yaml
from .catalogue import DASHES, FAMILY_COLOURS, RULES

GREY, DARK, PALE = "#666666", "#333333", "#cccccc"
BLUE = "#0173b2"
BAND = ("low", "high")


class Style(NamedTuple):
    """How one thing is named and drawn; without a colour matplotlib chooses one."""

    label: str
    colour: str | None = None
    marker: str | None = None
    dashes: tuple[float, ...] = ()


_TABLES = read_yaml("study/styles.yaml")
LABELS, FATES = _TABLES["labels"], _TABLES["fates"]  # FATES: colours of drafts
STYLES: dict[object, Style] = {n: Style(r.label, r.colour, r.marker, r.dashes) for n, r in RULES.items()}
for _name, _row in _TABLES["styles"].items():
    STYLES[_name] = Style(**_row | {"dashes": DASHES[_row.get("dashes", "solid")]})
# where rules of all kinds meet (08), colours are families
FAMILIES = {name: STYLES[name]._replace(colour=FAMILY_COLOURS[rule.family]) for name, rule in RULES.items()}


def use_style() -> None:
    """Sets fonts, sizes and a fixed salt, once at the top of a notebook."""
    import seaborn

    seaborn.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    sizes = {"axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9, "lines.markersize": 4.5}
    look = {"figure.dpi": 100, "legend.frameon": False, "axes.grid": True, "grid.alpha": 0.5}
    matplotlib.rcParams.update(sizes | look | {"svg.hashsalt": "mee", "pdf.fonttype": 42})


def label(name) -> str:
    """The reader's name of a model, task, rule, metric or column."""
    return LABELS.get(name, STYLES[name].label if name in STYLES else str(name).replace("_", " "))


def facets(
    table: pd.DataFrame,
    draw: Callable,
    column: str = "task",
    row: str | None = None,
    quantities: Mapping[str, str] | None = None,
    named: str = "y",
    values: Sequence | None = None,
    empty: str = "",
    columns: int = 5,
    sharex: bool | str = True,
    sharey: bool | str = True,
    xlabel: str | None = None,
    ylabel: str | None = None,
    width: float = 3.4,
    height: float = 2.9,
    note: str = "",
) -> matplotlib.figure.Figure:
    """A panel for each value of `column`, from left to right, and of `row`, downwards, with one legend below.

    Args:
        draw: called with an axis and the rows of its panel, and with the quantity where there are several.
        values, columns: which values of `column` have panels, and how many at most in a row.
        quantities: in place of `row`: columns of the table, one a row of panels -> the name of their axis.
        named: the axis, "x" or "y", that shows a quantity.
        empty: what a panel without rows says.
        xlabel, ylabel: of every axis; shown at the edges where axes are shared, as `sharex` and `sharey` say.
        width, height: of a panel, in inches.
        note: above the figure, at the right: the profile, and how many examples there are.
    """
    import matplotlib.pyplot as plt

    across = list(table[column].unique() if values is None else values)
    down = list(table[row].unique() if row else quantities or ()) or [None]
    places = [(below, value) for below in down for value in across]
    if not places:
        raise MeeError("There is nothing to draw: no panel was asked for.")
    deep = len(down) if len(down) > 1 else -(-len(across) // columns)
    side = -(-len(places) // deep)  # rows of the same length, or one shorter
    options = dict(sharex=sharex, sharey=sharey, figsize=(width * side, height * deep), squeeze=False)
    figure, axes = plt.subplots(deep, side, layout="constrained", **options)
    for unused in axes.flat[len(places) :]:
        unused.set_visible(False)
    if note:
        figure.text(1.0, 1.01, note, ha="right", va="bottom", fontsize=8, color=GREY)
    for number, (axis, (below, value)) in enumerate(zip(axes.flat, places)):
        rows = table[(table[column] == value) & ((table[row] == below) if row else True)]
        if number < len(across):
            axis.set_title(textwrap.fill(_title(column, value), int(11 * width)))
        if rows.empty:
            axis.set_axis_off()
            place = {"transform": axis.transAxes, "ha": "center", "va": "center", "wrap": True}
            axis.text(0.5, 0.5, empty, color=DARK, **place)
            continue
        draw(axis, rows, below) if quantities else draw(axis, rows)
        for name, text in (("x", xlabel), ("y", ylabel), (named, quantities and quantities[below])):
            if text:
                axis.set(**{f"{name}label": text})
        if row and (number + 1) % side == 0:
            place = {"transform": axis.transAxes, "rotation": 270, "va": "center", "fontsize": 10}
            axis.text(1.02, 0.5, _title(row, below), **place)
        if number % side and sharey in (True, "row", "all"):
            axis.set_ylabel("")
        if number + side < len(places) and sharex in (True, "col", "all"):
            axis.set_xlabel("")
    legend(figure)
    return figure


def _title(column: str, value) -> str:
    return label(value) if isinstance(value, str) else f"{label(column)} {value:g}"


def legend(figure: matplotlib.figure.Figure) -> None:
    """One legend below all panels, as wide as the figure, with every label that occurs in any of them."""
    found: dict[str, object] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        fitting = max(1, int(figure.get_figwidth() // (max(map(len, found)) * 0.07 + 0.6)))  # inches
        columns = math.ceil(len(found) / math.ceil(len(found) / fitting))  # rows of equal length
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def layer_axis(axis, layers):
    """A horizontal axis in layers, with a tick at every sixth of the depth."""
    step = max(1, round(layers / 6))
    axis.set(xlim=(0.6, layers + 0.4), xticks=range(step, layers + 1, step), xlabel="layer")


def layer_styles(layers: int) -> dict[int, Style]:
    """A style for each layer, from dark to light with depth."""
    shades = matplotlib.colormaps["viridis"]
    return {n: Style(f"layer {n}", shades((n - 1) / max(1, layers - 1))) for n in range(1, layers + 1)}


def lines(axis, rows, x, y, by="rule", band=None, styles=STYLES, clip=(-math.inf, math.inf), colour=None):
    """A line with a band for each value of `by`, sorted by `x`; a marker where there is a single row.

    Bands end at `clip`; `colour` takes the place of the lines' own. `x="layer"` makes the axis one of layers.
    """
    for name, part in rows.groupby(by, sort=False):
        style, part = styles.get(name, Style(label(name))), part.sort_values(x, kind="stable")
        look = {"color": colour or style.colour, "marker": style.marker, "label": style.label}
        look |= {"dashes": style.dashes, "linewidth": 1.5} if len(part) > 1 else {"linestyle": "none"}
        look |= {"markersize": 7} if name in ("oracle", "full_depth") else {}
        (drawn,) = axis.plot(part[x], part[y], **look)
        if band:
            low, high = (part[edge].clip(*clip) for edge in band)
            axis.fill_between(part[x], low, high, color=drawn.get_color(), alpha=0.18, linewidth=0)
    if x == "layer":
        together = axis.get_shared_x_axes().get_siblings(axis)  # panels that share the axis
        layer_axis(axis, max(int(max(line.get_xdata())) for panel in together for line in panel.lines))


def column_lines(axis, rows, x, columns, styles=STYLES):
    """A line for each of several columns, with a band from `<column>_low` to `<column>_high` if given."""
    for name in columns:
        band = (f"{name}_low", f"{name}_high") if f"{name}_low" in rows else None
        lines(axis, rows.assign(quantity=name), x, name, "quantity", band, styles)


def predictions(axis, rows):
    """The top tokens of every layer (`analysis.monotonicity.predictions`), darker where more probable."""
    top, depth = int(rows["rank"].max()), int(rows["layer"].max())
    grid = rows.pivot(index="rank", columns="layer", values="probability").to_numpy(dtype=float)
    axis.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(0.5, depth + 0.5, top + 0.5, 0.5))
    for row in rows.itertuples():
        look = {"color": "white" if row.probability > 0.55 else "black", "fontsize": 8}
        text = f"{row.token}\n{row.probability:.2f}"
        axis.text(row.layer, row.rank, text, ha="center", va="center", **look)
    axis.set(yticks=range(1, top + 1), ylabel="rank", xticks=range(1, depth + 1))
    axis.grid(visible=False)


def dots(axis, rows, x, y, by="rule", xband=None, yband=None, styles=STYLES, **options):
    """A marker for each row, with whiskers between the columns of the bands; otherwise as `lines`."""
    for name, part in rows.groupby(by, sort=False):
        style = styles.get(name, Style(label(name)))
        look = {"color": style.colour, "fmt": style.marker or "o", "label": style.label, "elinewidth": 0.8}
        whiskers = {"xerr": _errors(part, x, xband), "yerr": _errors(part, y, yband)}
        axis.errorbar(part[x], part[y], **whiskers, **look | options)


def bars(axis, rows, column, by="rule", band=None, styles=STYLES, other=BLUE):
    """Horizontal bars, the first row on top, with whiskers; `other` colours what has no style."""
    colours = [styles[name].colour if name in styles else other for name in rows[by]]
    names = [textwrap.fill(label(name), 30) for name in rows[by]]
    whiskers = {"xerr": _errors(rows, column, band), "error_kw": {"linewidth": 1, "ecolor": GREY}}
    axis.barh(range(len(rows)), rows[column], color=colours, **whiskers)
    axis.set_yticks(range(len(rows)), names, fontsize=9)
    axis.set_ylim(max(len(rows), 5) - 0.4, -0.6)  # in panels that share this axis too; few bars stay thin
    axis.grid(axis="y", visible=False)


def grouped_bars(axis, rows, category, column, by="model", rotation=0):
    """Upright bars, a group a category, a colour a value of `by`; whiskers from `low` to `high`, if given."""
    categories, members = list(rows[category].unique()), list(rows[by].unique())
    width = 0.8 / len(members)
    for number, name in enumerate(members):
        part = rows[rows[by] == name].set_index(category).reindex(categories)
        places = [i + (number - (len(members) - 1) / 2) * width for i in range(len(categories))]
        look = {"color": STYLES[name].colour if name in STYLES else None, "label": label(name)}
        errors = _errors(part, column, BAND if "low" in part else None)
        axis.bar(places, part[column], width, yerr=errors, error_kw={"linewidth": 0.8}, **look)
    names = [label(name) if rotation else textwrap.fill(label(name), 12) for name in categories]
    align = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
    axis.set_xticks(range(len(categories)), names, rotation=rotation, fontsize=9, **align)
    axis.grid(axis="x", visible=False)


def _errors(rows, column, band):
    """Lengths of the whiskers below and above a value."""
    if band:
        ends = rows[column] - rows[band[0]], rows[band[1]] - rows[column]
        return [length.clip(lower=0) for length in ends]
