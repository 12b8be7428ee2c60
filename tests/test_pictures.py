"""The drawings of how exits work show what the code does."""

import re
from pathlib import Path

import pytest

from mee_utils.companion import catalogue, figures

PICTURES = Path(figures.__file__).with_name("pictures")


def texts(name: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)<", figures.picture(name)._repr_svg_())


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.svg")))
def test_a_drawing_is_text_and_lines_alone_and_has_a_title(name):
    svg = figures.picture(name)._repr_svg_()
    assert set(re.findall(r"<(\w+)", svg)) <= {"svg", "title", "path", "rect", "text"}
    assert re.search("<title>[A-Z][ a-z]+</title>", svg)


def test_every_layer_of_every_token_is_run_or_has_copied_keys_and_values():
    said = texts("decoder")
    exits = [int(text.split()[-1]) for text in said if text.startswith("after layer")]
    assert said.count("last layer") == 1 and said.count("copied K, V") == sum(6 - layer for layer in exits)


def test_each_published_measure_has_a_panel_in_the_colour_of_its_family():
    svg = figures.picture("six_measures")._repr_svg_()
    bold = re.findall(r"<text style=\"[^\"]*font-weight: 700[^\"]*fill: (#\w+)\"[^>]*>([^<]*)<", svg)
    rules = [*catalogue.CALM_RULES, *catalogue.MEE_RULES]
    assert {title: colour for colour, title in bold} == {
        figures.STYLES[name].label: figures.STYLES[name].colour.lower() for name in rules
    }
