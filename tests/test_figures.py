"""Figures: every panel is drawn from its rows, and one legend holds whatever occurs in any panel."""

import io
import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.companion import catalogue, figures

matplotlib.use("Agg")


def curves() -> pd.DataFrame:
    models = {"a": ["vanilla", "calm"], "b": ["free", "own_model"]}
    rows = [
        {"task": task, "model": model, "layer": layer, "share": layer / 12, "low": 0.0, "high": 1.0}
        for task, names in models.items()
        for model in names
        for layer in range(1, 13)
    ]
    return pd.DataFrame(rows)


def of_panels(table, draw, column="task", ylabel="", **options):
    """A figure whose panels `draw` draws from their rows."""
    figure, panels = figures.panels(table, column, **options)
    for axis, rows in panels:
        draw(axis, rows)
        axis.set_ylabel(ylabel)
    figures.finish(figure)
    return figure


def lines(axis, rows):
    figures.lines(axis, rows, "layer", "share", "model", figures.BAND)


def drawn(**options):
    return of_panels(curves(), lines, **options)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_legend_holds_every_line_of_every_panel_once_and_fits_the_figure():
    figure = drawn(width=2.0)
    assert texts(figure) == ["vanilla", "CALM", "FREE", "own model"]
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


NAMES = ["t5_$$", "a$b$c", "$x$", "1$"]


@pytest.mark.parametrize("by", ["lines", "dots", "bars", "grouped_bars", "titles"])
def test_a_dollar_in_a_name_is_a_dollar(by):
    """Before, "t5_$$" ended in matplotlib's ParseException, and a$b$c was drawn as a formula."""
    table = pd.DataFrame({"rule": NAMES, "x": range(4), "y": range(4), "task": "a"})
    draw = {
        "lines": lambda axis, rows: figures.lines(axis, rows, "x", "y"),
        "dots": lambda axis, rows: figures.dots(axis, rows, "x", "y"),
        "bars": lambda axis, rows: figures.bars(axis, rows, "x"),
        "grouped_bars": lambda axis, rows: figures.grouped_bars(axis, rows, "rule", "y", "rule"),
        "titles": lambda axis, rows: axis.plot(rows.x, rows.y),
    }
    figure = of_panels(table, draw[by], "rule" if by == "titles" else "task")
    figure.canvas.draw()
    drawn = [text._preprocess_math(text.get_text()) for text in figure.findobj(matplotlib.text.Text)]
    names = {text for text, is_formula in drawn if not is_formula}
    assert {"t5 $$", "a$b$c", "$x$", "1$"} <= names
    assert not any(is_formula for text, is_formula in drawn if "mathdefault" not in text)
    plt.close(figure)


def test_a_style_is_the_same_whatever_was_set_before():
    """Before, a `matplotlibrc` made figures green, or their lines thick."""
    figures.use_style()
    usual = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"savefig.facecolor": "green", "lines.linewidth": 9, "figure.dpi": 30}):
        figures.use_style()
        assert dict(matplotlib.rcParams) == usual


def test_lines_and_bands_are_those_of_the_rows_in_one_colour():
    figure = drawn()
    for axis, models in zip(figure.axes, (["vanilla", "calm"], ["free", "own_model"]), strict=True):
        assert len(axis.lines) == len(axis.collections) == 2
        for line, band, model in zip(axis.lines, axis.collections, models, strict=True):
            assert np.allclose(line.get_ydata(), np.arange(1, 13) / 12)
            assert np.allclose(band.get_facecolor()[0][:3], matplotlib.colors.to_rgb(line.get_color()))
            if model in figures.STYLES:
                assert line.get_color() == figures.STYLES[model].colour
    assert figure.axes[0].get_xlabel() == "layer"
    assert list(figure.axes[0].get_xticks()) == [2, 4, 6, 8, 10, 12]


def test_shared_axes_are_named_at_the_left_and_lower_edges_alone():
    figure, panels = figures.panels(curves(), down=2)
    for axes, rows in panels:
        for axis in axes:
            lines(axis, rows)
            axis.set_ylabel("share")
    figures.finish(figure)
    names = {axis.get_subplotspec().num1: (axis.get_xlabel(), axis.get_ylabel()) for axis in figure.axes}
    assert names == {0: ("", "share"), 1: ("", ""), 2: ("layer", "share"), 3: ("layer", "")}


def test_a_line_of_panels_is_broken_where_it_is_too_long():
    figure = drawn(per_line=1)
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 1)


def test_rules_have_the_colour_of_their_family_and_a_marker_of_their_own():
    for name, rule in catalogue.RULES.items():
        style = figures.STYLES[name]
        assert style.label == rule.label == figures.label(name)
        assert style.colour == figures.STYLES[rule.family].colour == catalogue.FAMILY_COLOURS[rule.family]
    same = {"unpruned"}  # the softmax margin under the name that it has beside pruned ones
    looks = [figures.STYLES[name][1:3] for name in catalogue.RULES if name not in same]
    assert len(set(looks)) == len(looks)


MODELS = ("base", "vanilla", "calm", "free", "late_weighted", "alternating", "pretrained")
FAMILIES = (*catalogue.FAMILY_COLOURS, "verified")


def test_no_colour_is_both_a_model_s_and_a_family_s():
    models, families = ({figures.STYLES[name].colour for name in names} for names in (MODELS, FAMILIES))
    assert len(models) == len(MODELS) and len(families) == len(FAMILIES) and not models & families


# what is seen without the cones for red, for green or for blue (Machado et al. 2009), in linear RGB
DICHROMACY = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(colour: str, kind: str) -> np.ndarray:
    """A colour as someone sees it, in CIELAB, where distances are those that eyes notice."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(DICHROMACY[kind] @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(to_xyz @ linear / [0.9505, 1, 1.089])  # good enough above 0.01
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", DICHROMACY)
@pytest.mark.parametrize("names", [MODELS, FAMILIES], ids=["models", "families"])
def test_the_colour_blind_tell_the_colours_of_a_palette_apart(names, kind):
    for one, other in itertools.combinations(names, 2):
        distance = np.linalg.norm(
            seen(figures.STYLES[one].colour, kind) - seen(figures.STYLES[other].colour, kind)
        )
        assert distance > 8, f"{one} and {other}: {distance:.1f}"


def test_contrast_is_that_of_wcag():
    assert figures.contrast("white", "black") == pytest.approx(21)
    assert figures.contrast("#777777", "white") == pytest.approx(4.48, abs=0.01)
    assert figures.contrast("white", "white") == 1


def test_text_in_a_table_of_numbers_is_readable_on_every_shade():
    """Before, seaborn chose the colours, and white stood on middle blue, where black is clearer."""
    values = pd.DataFrame(np.linspace(0, 1, 60).reshape(6, 10))
    values.iloc[2, 3] = np.nan
    _, axis = plt.subplots()
    figures.heat(axis, values, values.map("{:.2f}".format))
    shades = axis.collections[0].get_facecolors().reshape(-1, 4)[values.notna().to_numpy().ravel()]
    assert len(axis.texts) == len(shades) == 59, "an empty cell has no text"
    for text, shade in zip(axis.texts, shades, strict=True):
        assert figures.contrast(text.get_color(), shade) >= 4.5, text.get_text()
    assert axis.texts[0].get_color() == figures.INK and axis.texts[-1].get_color() == "white"


def test_an_axis_of_layers_begins_with_the_first_that_is_drawn():
    late = curves()
    figure = of_panels(late[late.layer >= 4], lines)
    assert [axis.get_xlim() for axis in figure.axes] == [(3.6, 12.4)] * 2
    assert list(figure.axes[0].get_xticks()) == [4, 6, 8, 10, 12]


def test_the_note_stands_above_the_title_and_that_above_the_panels():
    figure = drawn(title="CALM settles first", note="profile small")
    figure.canvas.draw()
    (note,) = (text for text in figure.texts if text.get_text() == "profile small")
    title = figure._suptitle.get_window_extent()
    assert figure.get_suptitle() == "CALM settles first" and note.get_window_extent().y0 > title.y1
    assert title.y0 > max(axis.get_window_extent().y1 for axis in figure.axes)


def test_a_long_title_is_broken_into_lines_of_about_the_same_length():
    figure = drawn(title="Of the predictions of layer 4 with a confidence of one half or more, all are right")
    first, second = figure.get_suptitle().split("\n")
    assert abs(len(first) - len(second)) <= 10


def test_lines_in_the_colour_of_their_panel_are_grey_in_the_legend():
    def orange(axis, rows):
        figures.lines(axis, rows, "layer", "share", "model", colour="#de8f05")

    figure = of_panels(curves(), orange)
    assert {line.get_color() for line in figure.legends[0].get_lines()} == {figures.GREY}
    assert {line.get_color() for line in figure.axes[0].lines if len(line.get_xdata())} == {"#de8f05"}


def test_the_last_layer_is_no_pale_yellow():
    *_, last = figures.layer_styles(12).values()
    _, green, blue, _ = last.colour
    assert green < 0.9 and blue < 0.4


def test_the_legend_lies_on_no_name_of_an_axis_where_a_figure_is_cut_and_saved():
    figure = drawn(title="CALM settles first", note="profile small")
    figure.savefig(io.BytesIO(), bbox_inches="tight")
    legend = figure.legends[0].get_window_extent()
    assert legend.y1 <= min(axis.xaxis.label.get_window_extent().y0 for axis in figure.axes)


def test_nothing_to_draw_is_one_clear_line():
    with pytest.raises(MeeError, match="nothing to draw"):
        figures.panels(curves().iloc[:0])
