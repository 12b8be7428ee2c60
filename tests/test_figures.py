"""Figures: every panel is drawn from its rows, and one legend holds whatever occurs in any panel."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.study import catalogue, figures

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


def drawn(**options):
    drawing = {"x": "layer", "y": "share", "by": "model", "band": figures.BAND}
    return figures.facets(curves(), figures.lines, **drawing, **options)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_legend_holds_every_line_of_every_panel_once_and_fits_the_figure():
    figure = drawn(width=2.0)
    assert texts(figure) == ["vanilla", "CALM", "FREE", "own model"]
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


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


def test_quantities_name_their_axis_and_empty_panels_say_why():
    table = curves()
    figure = figures.facets(
        table[table.task == "a"],
        figures.bars,
        by="model",
        quantities={"share": "share of tokens", "high": "upper bound"},
        named="x",
        values=["a", "b"],
        empty="none",
        sharex="row",
    )
    assert [axis.get_xlabel() for axis in figure.axes] == ["share of tokens", "", "upper bound", ""]
    assert "none" in [text.get_text() for text in figure.axes[1].texts]


def test_shared_axes_are_named_at_the_left_and_lower_edges_alone():
    figure = figures.facets(
        pd.concat([curves().assign(kind="first"), curves().assign(kind="second")]),
        figures.lines,
        row="kind",
        x="layer",
        y="share",
        by="model",
        ylabel="share",
    )
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "", "layer", "layer"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["share", "", "share", ""]


def test_a_line_of_panels_is_broken_where_it_is_too_long():
    figure = drawn(per_line=1)
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 1)


def test_every_rule_has_a_style_and_the_colour_of_its_family():
    for name, rule in catalogue.RULES.items():
        assert figures.STYLES[name].label == rule.label == figures.label(name)
        assert figures.FAMILIES[name].colour == catalogue.FAMILY_COLOURS[rule.family]
    looks = [
        (style.colour, style.marker)
        for name, style in figures.FAMILIES.items()
        if name in catalogue.MAIN_SWEEP
    ]
    assert len(set(looks)) == len(looks)


def test_nothing_to_draw_is_one_clear_line():
    with pytest.raises(MeeError, match="nothing to draw"):
        drawn(values=[])


def test_a_figure_of_no_rows_is_a_row_of_empty_panels():
    nothing = curves().assign(kind="a").iloc[:0]
    figure = figures.facets(nothing, None, row="kind", values=["translation", "summarization"], empty="none")
    assert [axis.texts[0].get_text() for axis in figure.axes] == ["none", "none"]
