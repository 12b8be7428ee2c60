"""Drawings show what the code does, and are the same bytes each time."""

import matplotlib
import matplotlib.pyplot
import pytest

from mee_utils.companion import catalogue, drawings, figures
from mee_utils.companion.results import Run, png

matplotlib.use("Agg")


def texts(figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


@pytest.mark.parametrize(
    "draw",
    [drawings.decoder_drawing, drawings.measures_drawing, drawings.round_drawing],
    ids=lambda d: d.__name__,
)
def test_a_drawing_is_the_same_bytes_each_time_and_is_closed(draw):
    open_before = matplotlib.pyplot.get_fignums()  # of other tests of this process
    first = draw()
    assert png(first) == png(draw())
    assert matplotlib.pyplot.get_fignums() == open_before
    width, height = first.get_size_inches()
    assert width <= 10 and height <= 6


def test_every_layer_of_every_token_is_run_or_has_copied_keys_and_values():
    said = texts(drawings.decoder_drawing())
    exits = [int(text.split()[-1]) for text in said if text.startswith("exit")]
    assert said.count("last layer") == 1 and said.count("copied K, V") == sum(6 - layer for layer in exits)


def test_each_published_measure_has_a_panel_in_the_colour_of_its_family():
    titles = {axis.get_title().strip(): axis.title.get_color() for axis in drawings.measures_drawing().axes}
    rules = [*catalogue.CALM_RULES, *catalogue.MEE_RULES]
    assert titles == {figures.STYLES[name].label: figures.STYLES[name].colour for name in rules}


def test_a_round_keeps_the_drafts_up_to_the_first_that_the_last_layer_would_not_have_written():
    *_, accept = drawings.round_drawing().axes
    said = [text.get_text() for text in accept.texts]
    assert said.count("equal") == 2 and said.count("not equal") == 1
    assert said.index("not equal") > max(n for n, text in enumerate(said) if text == "equal")


def test_a_drawing_is_saved_without_a_table(tmp_path, capsys):
    run = Run("07_lossless", "small", {}, tmp_path)
    run.save_drawing(drawings.round_drawing(), "a_round")
    assert (tmp_path / "a_round.png").exists() and list(run.files) == ["a_round.png"]
    assert capsys.readouterr().out == "a_round: a drawing\n"
