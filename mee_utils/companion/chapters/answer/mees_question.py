"""MEE's open question, answered in a table, in a word and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ... import figures, open_question
from ...prose import on_tasks, task_span
from ..wording import capitalized


def open_question_table(asked: open_question.Answers) -> pd.DataFrame:
    """The cheapest and the fastest rules of each kind, one below the other; `by` says how they are judged."""
    tables = {
        "FLOPs at a mean score": asked.mean,
        "FLOPs, reliably": asked.reliable,
        "tokens a second": asked.clock,
    }
    return pd.concat([table.assign(by=name) for name, table in tables.items()], ignore_index=True)


def open_question_shown(table: pd.DataFrame) -> pd.DataFrame:
    """That table with readable names, an empty cell where there is no number."""
    named = table.assign(
        task=table.task.map(figures.label),
        rule=table.rule.map(figures.label, na_action="ignore"),
        untimed=table.untimed.astype("Int64"),
        faster=table.faster.astype("Int64"),
    )
    cells = named.set_index(["by", "task", "kind"]).round(2).astype(object)
    return cells.where(cells.notna(), "")


def open_question_message(asked: open_question.Answers, tasks: Sequence[str]) -> str:
    """MEE's open question and its answer in a word, in FLOPs and by the clock."""
    saving = open_question.saving_tasks(asked.mean) + open_question.saving_tasks(asked.reliable)
    faster = open_question.faster_tasks(asked.clock)
    untimed = open_question.untimed_tasks(asked.clock)
    in_flops = open_question.in_a_word(len(saving), 2 * len(tasks))
    by_clock = open_question.in_a_word(len(faster), len(tasks), len(untimed))
    return (
        f"Can rules over several layers keep the quality and be faster than no exit? In FLOPs {in_flops}, by "
        f"the clock {by_clock}."
    )


def open_question_conclusion(asked: open_question.Answers, tasks: Sequence[str], quality: float) -> str:
    """MEE's open question, answered by FLOPs on average, by FLOPs reliably, and by the clock."""
    ahead = open_question.ahead_tasks(asked.mean)
    unexpected = " (expected: on none)" if ahead else ""
    return (
        f"{open_question_message(asked, tasks)} At a mean of {quality:.0%} of the score they save FLOPs "
        f"{_where_and_how_much(asked.mean, tasks)}; the cheapest rule over one layer takes "
        f"{task_span(open_question.flops(asked.mean, open_question.ONE))}. On the examples on which they are "
        f"chosen, several layers are cheaper {on_tasks(ahead, tasks)}{unexpected}. Reliably, they save FLOPs "
        f"{_where_and_how_much(asked.reliable, tasks)}. {_by_the_clock(asked.clock, tasks)}"
    )


def _by_the_clock(clock: pd.DataFrame, tasks: Sequence[str]) -> str:
    """Where some rule over several layers beats full depth, and where some of them are not timed."""
    faster = open_question.faster_tasks(clock)
    beats = "none that is timed beats full depth in every timing run"
    if faster:
        beats = f"some of them beat full depth in every timing run {on_tasks(faster, tasks)}"
    text = f"By the clock, one output at a time, {beats}."
    untimed = open_question.untimed_tasks(clock)
    if untimed:
        text += f" {capitalized(on_tasks(untimed, tasks))}, some of these rules are not timed."
    return text


def _where_and_how_much(table: pd.DataFrame, tasks: Sequence[str]) -> str:
    """ "on every task, taking 63% to 80% of full depth's", of rules over several layers."""
    saving = open_question.saving_tasks(table)
    if not saving:
        return on_tasks(saving, tasks)
    spent = task_span(open_question.flops(table, open_question.SEVERAL)[saving])
    return f"{on_tasks(saving, tasks)}, taking {spent} of full depth's"
