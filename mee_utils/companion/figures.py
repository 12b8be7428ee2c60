"""House style: a colour, marker and dash for each model and rule (`styles.yaml`, `rules.yaml`), and panels.

There are two palettes: one of models, one of families of rules, whose members differ by marker and dashes.
A figure is drawn in the cell that shows it. `panels` makes its axes, one for each value of a column; what is
in a panel is seaborn's, matplotlib's, or one of the functions below:

    figure, panels = figures.panels(settled, "task", title="Predictions that are final", note=bands)
    for axis, rows in panels:
        figures.lines(axis, rows, "layer", "share", by="model", band=figures.BAND)
        axis.set(ylabel="share of tokens")
    experiment.save_figure(figure, "figure_1_settled", settled)

`x` and `y` name columns of numbers, `by` the column whose values are names in `STYLES`, and a `band` two
columns: the lower and the upper end of what is drawn around a value. `save_figure` calls `finish`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd

from ..common.errors import MeeError
from ..common.files import read_yaml
from .catalogue import DASHES, FAMILY_COLOURS, RULES

GREY = "#666666"
DARK = "#333333"
PALE = "#cccccc"
BLUE = "#5b7a99"  # slate, of what is neither a model nor a rule
INK = "#050505"  # nearly black: on any colour, this or white has a contrast of 4.5 or more
BAND = ("low", "high")
LIGHTEST = 0.85  # shade of the last layer, where 1 is the palest yellow


class Style(NamedTuple):
    """How one thing is named and drawn; without a colour matplotlib chooses one."""

    label: str
    colour: str | None = None
    marker: str | None = None
    dashes: tuple[float, ...] = ()


_TABLES = read_yaml("companion/styles.yaml")
LABELS: dict[str, str] = _TABLES["labels"]
SIZES = {"mini": "mini T5", "t5-base": "T5-base", "t5-large": "T5-large"}  # of `models.costs.SHAPES`
FAMILY_MARKERS = dict(zip(FAMILY_COLOURS, "*oshD^v", strict=True))


def _styles() -> dict[object, Style]:
    """Those of rules, of their families, and of what `styles.yaml` has besides."""
    styles: dict[object, Style] = {}
    for name, rule in RULES.items():
        styles[name] = Style(rule.label, FAMILY_COLOURS[rule.family], rule.marker, rule.dashes)
    for family, colour in FAMILY_COLOURS.items():
        styles[family] = Style(family, colour, FAMILY_MARKERS[family])
    for name, row in _TABLES["styles"].items():
        looks = {key: value for key, value in row.items() if key != "family"}
        if "family" in row:
            looks["colour"] = FAMILY_COLOURS[row["family"]]
        styles[name] = Style(**looks | {"dashes": DASHES[row.get("dashes", "solid")]})
    return styles


STYLES = _styles()


def use_style() -> None:
    """Sets fonts, sizes and a fixed salt, once at the top of a notebook, whatever a matplotlibrc says."""
    import seaborn

    matplotlib.rcdefaults()
    seaborn.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    look = {
        "axes.titlesize": 11,
        "axes.labelsize": 10,
        "legend.fontsize": 10,
        "lines.markersize": 4.5,
        "figure.dpi": 100,
        "legend.frameon": False,
        "axes.grid": True,
        "grid.alpha": 0.5,
        "svg.hashsalt": "mee",
        "pdf.fonttype": 42,
    }
    matplotlib.rcParams.update(look)


def label(name) -> str:
    """The reader's name of a model, task, rule, metric or column; "$" in it begins no formula."""
    as_it_is = str(name).replace("_", " ").replace("$", r"\$")
    return LABELS.get(name, STYLES[name].label if name in STYLES else as_it_is)


def panels(
    table: pd.DataFrame,
    column: str = "task",
    *,
    down: int = 1,
    title: str = "",
    note: str = "",
    width: float = 3.4,
    height: float = 2.9,
    per_line: int = 5,
    sharex: bool | str = True,
    sharey: bool | str = True,
) -> tuple[matplotlib.figure.Figure, list[tuple]]:
    """A panel for each value of `column`, from left to right: the figure, and (axis, rows) of each panel.

    Args:
        table: a panel is given its rows with one value of `column`, in the order in which values occur.
        down: how many panels a value has, one below the other; `axis` is then a tuple of them. Without a
            second quantity to show there, values of a long list go on in a further line after `per_line`.
        title: above the figure: what is drawn.
        note: in small print over that: the profile, how many examples there are, what bands are.
        width, height: of a panel, in inches.
        sharex, sharey: as in `matplotlib.pyplot.subplots`.

    Raises:
        MeeError: the table has no rows.
    """
    import matplotlib.pyplot as plt

    values = list(table[column].unique())
    if not values:
        raise MeeError("There is nothing to draw: the table has no rows.")
    deep = down if down > 1 else math.ceil(len(values) / per_line)
    wide = len(values) if down > 1 else math.ceil(len(values) / deep)
    look = {"figsize": (width * wide, height * deep), "layout": "constrained"}
    figure, axes = plt.subplots(deep, wide, squeeze=False, sharex=sharex, sharey=sharey, **look)
    for unused in axes.flat[len(values) * down :]:
        unused.set_visible(False)
    write_above(figure, title, note)
    made = []
    for place, value in enumerate(values):
        below = tuple(axes.flat[place::wide]) if down > 1 else (axes.flat[place],)
        name = label(value) if isinstance(value, str) else f"{label(column)} {value:g}"
        below[0].set_title(textwrap.fill(name, int(11 * width)))
        made.append((below if down > 1 else below[0], table[table[column] == value]))
    return figure, made


def picture(name: str):
    """A drawing of how exits work, as a cell that ends with it shows it; it has no data.

    `name` is that of an SVG file in `pictures`, beside this module: "decoder" (layers that are run, and
    copied keys and values), "six_measures" (what each published confidence looks at), "a_round" (of drafts
    by exits) or "a_copied_round".
    """
    from IPython.display import SVG

    return SVG(filename=Path(__file__).with_name("pictures") / f"{name}.svg")


def finish(figure: matplotlib.figure.Figure, with_legend: bool = True) -> None:
    """One legend below all panels; the names of shared axes stand at the left and lower edges alone."""
    for axis in figure.axes:
        place = axis.get_subplotspec()
        beside = axis.get_shared_y_axes().get_siblings(axis)
        below = axis.get_shared_x_axes().get_siblings(axis)
        if any(other.get_subplotspec().colspan.start < place.colspan.start for other in beside):
            axis.set_ylabel("")
        rows_below = (other.get_subplotspec() for other in below if other.get_visible())
        if any(it.rowspan.start > place.rowspan.start and it.colspan == place.colspan for it in rows_below):
            axis.set_xlabel("")
    if with_legend and not figure.legends:
        legend(figure)


def write_above(figure: matplotlib.figure.Figure, title: str = "", note: str = "") -> None:
    """Writes above a figure what is drawn, and in small print over that of what.

    Nothing stands below it: where a figure is cut to what is drawn, the legend keeps to the lower edge.
    """
    width = figure.get_figwidth()
    if title:
        in_lines = _even_lines(title, int(11 * width))
        figure.suptitle(in_lines, x=0.01, ha="left", fontsize=12.5, color="black")
    if note:
        figure.text(0.01, 1.01, textwrap.fill(note, int(15 * width)), va="bottom", fontsize=9.5, color=GREY)


def _even_lines(text: str, width: int) -> str:
    """Breaks a text into as few lines of at most `width` characters as it takes, of about the same length.

    >>> _even_lines("one two three four five", 20)
    'one two three\\nfour five'
    """
    lines = textwrap.wrap(text, width)
    longest = max(map(len, text.split()))
    for narrower in range(width - 1, longest - 1, -1):
        shorter = textwrap.wrap(text, narrower)
        if len(shorter) > len(lines):
            break
        lines = shorter
    return "\n".join(lines)


def legend(figure: matplotlib.figure.Figure) -> None:
    """One legend below all panels, as wide as the figure, with every label that occurs in any of them."""
    handles: dict[str, object] = {}
    for axis in figure.axes:
        drawn, names = axis.get_legend_handles_labels()
        for handle, name in zip(drawn, names, strict=True):
            handles.setdefault(name, handle)
    if handles:
        longest = max(len(name) for name in handles)
        fitting = max(1, int(figure.get_figwidth() // (longest * 0.07 + 0.6)))  # inches
        columns = math.ceil(len(handles) / math.ceil(len(handles) / fitting))  # rows of equal length
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def layer_axis(axis, layers: int, first: int = 1) -> None:
    """A horizontal axis in layers from the first that is drawn, with a tick at every sixth of the depth."""
    step = max(1, round(layers / 6))
    ticks = [layer for layer in range(step, layers + 1, step) if layer >= first]
    axis.set(xlim=(first - 0.4, layers + 0.4), xticks=ticks, xlabel="layer")


def layer_styles(layers: int) -> dict[int, Style]:
    """A style for each layer, from dark to light with depth, but not so light that it is lost on white."""
    shades = matplotlib.colormaps["viridis"]
    step = LIGHTEST / max(1, layers - 1)
    return {n: Style(f"layer {n}", shades((n - 1) * step)) for n in range(1, layers + 1)}


def lines(
    axis,
    rows,
    x: str,
    y: str,
    by: str = "rule",
    band=None,
    styles=STYLES,
    clip=(-math.inf, math.inf),
    colour: str | None = None,
) -> None:
    """A line with a band for each value of `by`, sorted by `x`; a marker where there is a single row.

    Bands end at `clip`. `colour` takes the place of the lines' own; as it may differ from panel to panel, the
    legend has them in grey. `x="layer"` makes the axis one of layers.
    """
    for name, part in rows.groupby(by, sort=False):
        style = styles.get(name, Style(label(name)))
        part = part.sort_values(x, kind="stable")
        look = {"color": colour or style.colour, "marker": style.marker, "label": style.label}
        if len(part) > 1:
            look.update(dashes=style.dashes, linewidth=1.5)
        else:
            look.update(linestyle="none")
        if name in ("oracle", "full_depth"):
            look["markersize"] = 7
        if colour:
            axis.plot([], [], **look | {"color": GREY})
            look["label"] = None
        (line,) = axis.plot(part[x], part[y], **look)
        if band:
            low = part[band[0]].clip(*clip)
            high = part[band[1]].clip(*clip)
            axis.fill_between(part[x], low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    if x == "layer":  # as many as its panels show; [0, 1] is a horizontal line
        panels = axis.get_shared_x_axes().get_siblings(axis)
        drawn = [list(line.get_xdata()) for panel in panels for line in panel.lines]
        layers = [layer for xs in drawn if xs != [0, 1] for layer in xs]
        layer_axis(axis, int(max(layers)), int(min(layers)))


def column_lines(axis, rows, x: str, columns: Sequence[str], styles=STYLES) -> None:
    """A line for each of several columns, with a band from `<column>_low` to `<column>_high` if given."""
    for name in columns:
        band = (f"{name}_low", f"{name}_high") if f"{name}_low" in rows else None
        lines(axis, rows.assign(quantity=name), x, name, "quantity", band, styles)


def predictions(axis, rows) -> None:
    """The top tokens of every layer (`analysis.monotonicity.predictions`), darker where more probable.

    Lines are those of a model, in the order of the rows, the most probable token on top.
    """
    lines = [f"{label(model)} {rank}" for model, rank in zip(rows.model, rows["rank"], strict=True)]
    texts = rows.token + rows.probability.map("\n{:.2f}".format)
    cells = rows.assign(line=lines, text=texts.str.replace("$", r"\$"))  # else it begins a formula
    grids = [cells.pivot(index="line", columns="layer", values=name) for name in ("probability", "text")]
    heat(axis, *(grid.reindex(dict.fromkeys(lines)) for grid in grids))


def heat(
    axis,
    values: pd.DataFrame,
    texts: pd.DataFrame,
    limits: tuple[float, float] = (0, 1),
    fontsize: float = 9.5,
) -> None:
    """A table of numbers, darker where they are larger, with a text in each cell; NaN: an empty cell.

    The first row is on top; rows and columns are named by the index and the columns of `values`.
    """
    import seaborn

    low, high = limits
    numbers = values.astype(float)
    seaborn.heatmap(
        numbers,
        vmin=low,
        vmax=high,
        cmap="Blues",
        annot=texts,
        fmt="",
        annot_kws={"fontsize": fontsize},
        mask=numbers.isna(),
        cbar=False,
        ax=axis,
    )
    is_filled = numbers.notna().to_numpy().ravel()
    shades = axis.collections[-1].get_facecolors().reshape(-1, 4)  # [cell, colour channel], line by line
    for text, shade in zip(axis.texts, shades[is_filled], strict=True):
        text.set_color("white" if contrast("white", shade) >= contrast(INK, shade) else INK)
    axis.set(xlabel="", ylabel="")
    axis.grid(False)  # else its lines show in empty cells
    axis.tick_params(axis="y", rotation=0)
    frame = {"visible": True, "color": GREY, "linewidth": 0.8}
    axis.spines[:].set(**frame)


def contrast(colour, other) -> float:
    """The contrast of two colours as WCAG defines it, from 1 (none) to 21 (black on white)."""
    darker, lighter = sorted([_luminance(colour), _luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour) -> float:
    """How light a colour is, from 0 (black) to 1 (white): the relative luminance of WCAG."""
    channels = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def dots(
    axis, rows, x: str, y: str, by: str = "rule", xband=None, yband=None, styles=STYLES, **options
) -> None:
    """A marker for each row, with whiskers between the columns of the bands; otherwise as `lines`."""
    for name, part in rows.groupby(by, sort=False):
        style = styles.get(name, Style(label(name)))
        look = {"color": style.colour, "fmt": style.marker or "o", "label": style.label, "elinewidth": 0.8}
        whiskers = {"xerr": _errors(part, x, xband), "yerr": _errors(part, y, yband)}
        axis.errorbar(part[x], part[y], **whiskers, **look | options)


def bars(axis, rows, x: str, by: str = "rule", band=None, styles=STYLES, other=BLUE) -> None:
    """Horizontal bars, the first row on top, with whiskers; `other` colours what has no style."""
    colours = [styles[name].colour if name in styles else other for name in rows[by]]
    names = [textwrap.fill(label(name), 30) for name in rows[by]]
    whiskers = {"xerr": _errors(rows, x, band), "error_kw": {"linewidth": 1, "ecolor": GREY}}
    axis.barh(range(len(rows)), rows[x], color=colours, **whiskers)
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(max(len(rows), 5) - 0.4, -0.6)  # in panels that share this axis too; few bars stay thin
    axis.grid(axis="y", visible=False)


def grouped_bars(axis, rows, x: str, y: str, by: str = "model", rotation: float = 0) -> None:
    """Upright bars, a group for each name in `x`, a colour for each value of `by`.

    Whiskers go from `low` to `high`, if there are such columns; names are turned by `rotation` degrees.
    """
    categories = list(rows[x].unique())
    members = list(rows[by].unique())
    width = 0.8 / len(members)
    for number, name in enumerate(members):
        part = rows[rows[by] == name].set_index(x).reindex(categories)
        shift = (number - (len(members) - 1) / 2) * width
        middles = [group + shift for group in range(len(categories))]
        colour = STYLES[name].colour if name in STYLES else None
        errors = _errors(part, y, BAND if "low" in part else None)
        look = {"color": colour, "label": label(name), "error_kw": {"linewidth": 0.8}}
        axis.bar(middles, part[y], width, yerr=errors, **look)
    names = [label(name) if rotation else textwrap.fill(label(name), 12) for name in categories]
    align = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
    axis.set_xticks(range(len(categories)), names, rotation=rotation, **align)
    axis.grid(axis="x", visible=False)


def _errors(rows: pd.DataFrame, column: str, band: Sequence[str] | None) -> list | None:
    """Lengths of the whiskers below and above a value."""
    if not band:
        return None
    low, high = band
    below = rows[column] - rows[low]
    above = rows[high] - rows[column]
    return [below.clip(lower=0), above.clip(lower=0)]
