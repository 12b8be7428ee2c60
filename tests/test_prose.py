"""The words below figures."""

import pytest

from mee_utils.companion import prose


def test_a_conclusion_is_a_paragraph_of_the_page_without_empty_sentences(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    prose.conclude("One.", "", "Two.")
    prose.conclude("", "")
    assert [markdown.data for markdown in shown] == ["One. Two."]


@pytest.mark.parametrize(
    "parts, text", [([], "none"), ("a", "a"), ("ab", "a and b"), (iter("abc"), "a, b and c")]
)
def test_parts_are_joined_as_in_a_sentence(parts, text):
    assert prose.listed(parts) == text


@pytest.mark.parametrize("values, text", [([0.7, 0.93, 0.8], "70% to 93%"), ([0.701, 0.703], "70%")])
def test_a_span_is_one_value_where_both_ends_are_written_alike(values, text):
    assert prose.span(iter(values), "{:.0%}") == text


def test_tasks_are_named_as_a_reader_calls_them():
    among = ["question_answering", "summarization", "translation"]
    assert prose.on_tasks([], among) == "on no task"
    assert prose.on_tasks(reversed(among), among) == "on every task"
    assert prose.on_tasks(among[1:], among) == "on summarization and translation"
