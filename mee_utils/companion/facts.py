"""The numbers in the sentences of README and RESULTS.md, by name.

They are means over the tasks of real text, unless a name says otherwise. The templates put them into
sentences; one whose truth depends on a number is chosen there by that number.
"""

from collections.abc import Iterable

import pandas as pd

from . import gpu_tables, ledger_page, open_question
from .answers import (
    REAL,
    SYNTHETIC,
    VANILLA,
    headlines,
    lost_points,
    numbers_of_tasks,
    open_asked,
    oracle_rows,
    shallow_decoders,
    shallow_speeds,
)
from .catalogue import MAIN_MODEL, MEE_RULES
from .chapters.wording import without_source
from .figures import label
from .headline import FIXED, ONE, QUALITY, SEVERAL, VERIFIED, faster_tasks, undecided_tasks
from .main_figure import faster_cases, keeping_cases
from .numbers import LATER, stored_numbers
from .prose import listed, span
from .published_setting import BATCHES
from .reference_tables import planned
from .result_tables import EXITS, KEEPS_IT, outputs_to_repay
from .stored_tables import FIGURES, PROFILES, StoredTables

AT_LOSS = 0.05  # mean consistency loss at which rules are compared
MARGIN_AT = 0.9  # the margin's threshold at which decisions and states are compared
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def facts(stored: StoredTables) -> dict:
    """The numbers in the sentences of README and RESULTS.md, by name."""
    numbers = numbers_of_tasks()
    real = {task: groups for (profile, task), groups in numbers.items() if profile == REAL}
    later = {name: _mean_of_tasks(real, name) for name in LATER}
    lost = lost_points(stored).loc[REAL].lost
    decisions = stored.decoder_bench("one decision").query("shape == 't5-large'")
    return {
        "tasks": len(real),
        "settled": _mean_of_tasks(real, "settled"),
        "less_monotonic": _less_monotonic(real.values()),
        "best_rule": _least_flops(stored),
        "later": later["high_loss_later"],
        "later_by_similarity": later["low_similarity_later"],
        "grows": _verdict(stored, "CALM grows layer by layer"),
        "lost": {"mean": lost.mean(), "most": lost.max()},
        "shallow": _shallow_facts(stored),
        "changed": max(groups["fixed_list"]["other_token"] for groups in real.values()),
        "changed_vanilla": _most_changed(stored, VANILLA),
        "of_vanilla": _exits_of_vanilla(stored),
        "reliably_of_vanilla": _reliable_of_vanilla(stored),
        "mee_measures": _mee_measures(stored),
        "cheapest_at_loss": {"loss": AT_LOSS, "rules": _cheapest_at_loss(stored)},
        "lost_to_states": _lost_to_states(stored),
        "verified_elsewhere": _verified_elsewhere(stored),
        "decision_in_layers": decisions.set_index("what")["median"].to_dict(),
        "roc_area": {name: stored_numbers(FIGURES / name)["roc_area"] for name in PROFILES},
        "oracle": _oracle_facts(stored),
        "guarantee": stored_numbers(FIGURES / SYNTHETIC).get("guarantee"),
        "ledger": ledger_page.counts(stored),
        "three_layers": _verdict(stored, "three layers decide better than one"),
        "asked": _open_question(stored, list(real)),
        "as_published": _as_published(stored),
        "repaid": _repaid_after(stored),
        "simulated_on_gpu": gpu_tables.verified_on_gpu(),
        **_headline_facts(),
    }


def _repaid_after(stored: StoredTables) -> str | None:
    """After how many outputs verified exits of the main model, one input at a time, have repaid planning."""
    rows = planned(stored)
    rows = rows[(rows.profile == REAL) & (rows.model == MAIN_MODEL) & (rows.batch == 1)]
    outputs = outputs_to_repay(rows)
    return None if outputs.empty else span(outputs, "{:,.0f}")


def _mean_of_tasks(tasks: dict[str, dict], group: str) -> dict[str, float]:
    """A group of numbers that notebooks state of each task, as means over tasks."""
    return pd.DataFrame({task: groups[group] for task, groups in tasks.items()}).mean(axis=1).to_dict()


def _most_changed(stored: StoredTables, model: str) -> float:
    """The largest share of a model's tokens on a task of real text that a fixed list changes."""
    rows = stored.table("03_pruning", "complete_table")
    fixed = (rows.profile == REAL) & (rows.model == model) & (rows.reduction == "fixed")
    return rows[fixed].other_token.max()


def _exits_of_vanilla(stored: StoredTables) -> dict:
    """Exits that keep 99 % of vanilla's mean score on real text and save FLOPs beside it.

    `main` is the number of tasks on which those of the main model do, `tasks` that of any model's. `flops`
    are the least and the most that the cheapest of a task need, as shares of vanilla's.
    """
    rows = stored.table("08_results", "rivals")
    exits = rows[(rows.profile == REAL) & (rows.kind == EXITS)]
    good = exits[(exits.kept >= QUALITY) & (exits.relative_flops < 1)]
    return {
        "main": good[good.model == MAIN_MODEL].task.nunique(),
        "tasks": good.task.nunique(),
        "flops": _ends(good.groupby("task").relative_flops.min()),
    }


def _reliable_of_vanilla(stored: StoredTables) -> dict[str, int]:
    """Pairs of a rule and a task of real text that reliably keep 99 % of the main model's own score.

    `pairs` counts all of them, `keeping` those that reliably keep as much of vanilla's for fewer FLOPs.
    """
    rows = stored.table("08_results", "kept_of_vanilla")
    rows = rows[(rows.profile == REAL) & (rows.rule != "static")]
    good = rows[(rows.of_vanilla_low >= QUALITY) & (rows.flops_share < 1)]
    return {"pairs": len(rows), "keeping": len(good)}


def _mee_measures(stored: StoredTables) -> dict[str, int]:
    """MEE's measures on tasks of real text: how many cases, and in how many 99 % is kept for fewer FLOPs."""
    rows = stored.table("08_results", "at_99_percent")
    rows = rows[(rows.profile == REAL) & rows.rule.isin(MEE_RULES)]
    saving = (rows.verdict == KEEPS_IT) & (rows.flops_share < 1)
    return {"cases": len(rows), "saving": int(saving.sum())}


def _cheapest_at_loss(stored: StoredTables) -> str:
    """The cheapest rule of each task of real text at `AT_LOSS`, in words: "entropy (translation) and ..."."""
    rows = stored.table("08_results", "at_equal_loss")
    if rows.empty:
        return ""
    rows = rows[(rows.profile == REAL) & (rows.wanted == AT_LOSS) & (rows.flops_share < 1)]
    ordered = open_question.of_rules(rows).sort_values("flops_share", kind="stable")
    return _listed_cases(ordered.drop_duplicates("task").sort_values("task"))


def _lost_to_states(stored: StoredTables) -> dict | None:
    """What copied states cost the output on real text, by the consistency loss.

    `tasks` is on how many tasks the margin at a `threshold` loses more to states than to decisions, `most`
    the largest loss of an oracle, whose decisions are perfect.
    """
    margins = stored.table("08_results", "margin_losses")
    curves = stored.table("08_results", "limits")
    if margins.empty or curves.empty:
        return None
    margins = margins[(margins.profile == REAL) & (margins.threshold == MARGIN_AT)]
    oracle = curves[(curves.profile == REAL) & (curves.series == "oracle_copy")]
    larger = margins.loss_by_states > margins.loss_by_decisions
    return {
        "threshold": MARGIN_AT,
        "tasks": margins.task[larger].nunique(),
        "most": oracle.consistency_loss.max(),
    }


def _verified_elsewhere(stored: StoredTables) -> str:
    """On how many tasks of real text verified exits win in every timing run, but for the main model alone.

    That is in batches, and with vanilla one output at a time: "on one in batches of 8 and on none in batches
    of 32 and with vanilla".
    """
    rows = stored.lossless_bench()
    rows = rows[rows.profile == REAL]
    faster = (rows.lowest > 1).groupby([rows.model, rows.batch]).sum()
    places: dict[int, list[str]] = {}  # number of tasks -> where it wins on as many
    for (model, batch), tasks in faster.items():
        if model == MAIN_MODEL and batch > 1:
            places.setdefault(tasks, []).append(f"in batches of {batch}")
        if model == VANILLA and batch == 1:
            places.setdefault(tasks, []).append("with vanilla")
    parts = [f"on {WORDS[tasks]} {listed(where)}" for tasks, where in places.items()]
    return listed(parts) if parts else ""


def _less_monotonic(tasks: Iterable[dict]) -> int:
    """On how many tasks the confidence of fewer tokens never falls in the main model than in vanilla."""
    shares = [groups["never_falling"] for groups in tasks]
    return sum(share[MAIN_MODEL] < share[VANILLA] for share in shares)


def _least_flops(stored: StoredTables) -> float:
    """The FLOPs of the cheapest rule that keeps 99 % of the score; full depth's where there is none."""
    rules = stored.table("08_results", "at_99_percent")
    real = rules[(rules.profile == REAL) & (rules.rule != "static")]
    spent = real.flops_share.where((real.verdict == KEEPS_IT) & (real.flops_share < 1), 1.0)
    return spent.groupby(real.task).min().mean()


def _open_question(stored: StoredTables, tasks: list[str]) -> dict:
    """MEE's open question on real text: on how many tasks rules over several layers beat full depth, and how.

    `mean`: in FLOPs at a mean of 99 % of the score; `reliable`: in FLOPs where the interval is at 99 %;
    `clock`: by the clock. `ahead`: on how many tasks they need fewer FLOPs than any rule over one layer, at
    a mean; `best`: the FLOPs of the cheapest rule of all, there, a mean over tasks.
    """
    found = open_asked(stored, REAL)
    several = open_question.flops(found.mean, open_question.SEVERAL)
    one = open_question.flops(found.mean, open_question.ONE)
    best = pd.concat([several, one], axis=1).min(axis=1).clip(upper=1)
    mean = len(open_question.saving_tasks(found.mean))
    reliable = len(open_question.saving_tasks(found.reliable))
    clock = len(open_question.faster_tasks(found.clock))
    untimed = len(open_question.untimed_tasks(found.clock))
    return {
        "mean": mean,
        "reliable": reliable,
        "clock": clock,
        "untimed": untimed,
        "ahead": len(open_question.ahead_tasks(found.mean)),
        "in_flops": open_question.in_a_word(mean + reliable, 2 * len(tasks)),
        "by_clock": open_question.in_a_word(clock, len(tasks), untimed),
        "flops": _ends(several),
        "flops_one": _ends(one),
        "flops_reliable": _ends(open_question.flops(found.reliable, open_question.SEVERAL)),
        "flops_one_reliable": _ends(open_question.flops(found.reliable, open_question.ONE)),
        "best": best.reindex(tasks).fillna(1.0).mean(),
    }


def _ends(shares: pd.Series) -> list[float]:
    """The least and the largest of some shares; none of none."""
    return [shares.min(), shares.max()] if len(shares) else []


def _as_published(stored: StoredTables) -> dict | None:
    """In how many of MEE's own settings on real text a measure beats full depth, and keeps the score.

    `alone` and `in_batches` are `main_figure.Cases`, the latter at the published `batch` size, with exits
    from a sixth of the depth on; `later` are those of one output at a time with exits from `layer` on.
    `keeping` names the cases of `alone` that keep the score. None until they are timed.
    """
    times = stored.table("08_results", "main_figure")
    times = times[times.profile == REAL]
    if times.empty:
        return None
    by_layer = faster_cases(times)
    first, last = min(by_layer), max(by_layer)
    in_batches, alone = BATCHES
    return {
        "batch": in_batches,
        "in_batches": by_layer[first][in_batches],
        "alone": by_layer[first][alone],
        "keeping": _listed_cases(keeping_cases(times, first, alone)),
        "layer": last,
        "later": by_layer[last][alone] if last > first else None,
    }


def _listed_cases(rows: pd.DataFrame) -> str:
    """ "rising top-1 (question answering)" for each row; "" for none."""
    parts = [f"{without_source(row.rule)} ({label(row.task)})" for row in rows.itertuples()]
    return listed(parts) if parts else ""


def _headline_facts() -> dict:
    """How many tasks each kind of exit is faster on, and how fast verified ones are."""
    rows = headlines()[REAL]
    faster = faster_tasks(rows)
    verified = rows[rows.kind == VERIFIED].speed
    rules = rows[rows.kind.isin([ONE, SEVERAL])].groupby("task").speed.max(skipna=False)
    fixed = rows[rows.kind == FIXED].set_index("task").speed
    synthetic = headlines()[SYNTHETIC]
    return {
        "faster": {
            "verified": len(faster[VERIFIED]),
            "rules": len(faster[ONE] | faster[SEVERAL]),
            "one": len(faster[ONE]),
            "fixed": len(faster[FIXED]),
            "undecided": len(undecided_tasks(rows)),
            "at_least": _at_least(rows),
        },
        # a task without a rule counts, and one with a rule that was not timed does not
        "fixed_not_slower": int((fixed.round(2) >= rules.reindex(fixed.index, fill_value=0).round(2)).sum()),
        "verified": {"least": verified.min(), "most": verified.max()},
        "some_at_least": _at_least(rows) + _at_least(synthetic) > 0,
    }


def _at_least(rows: pd.DataFrame) -> int:
    """How many speeds of a headline are marked "≥", since a setting that was not timed may be faster."""
    return int(((rows.untimed > 0) & rows.speed.notna()).sum())


def _shallow_facts(stored: StoredTables) -> dict | None:
    rows = shallow_decoders(stored)
    rows = rows[rows.profile == REAL]
    if rows.empty:
        return None
    return {
        "layers": int(rows.decoder_layers.iloc[0]),
        "kept": rows.kept.mean(),
        "least": rows.kept.min(),
        "flops": rows.relative_flops.mean(),
        "speed": _shallow_speed(stored, rows),
    }


def _shallow_speed(stored: StoredTables, rows: pd.DataFrame) -> dict | None:
    """Its lowest and highest speed of a task, and on how many it beats all exits; None until it is timed."""
    speeds = shallow_speeds(stored, rows)
    if speeds.empty:
        return None
    exits = headlines()[REAL].groupby("task").speed.max()
    return {
        "least": speeds.min(),
        "most": speeds.max(),
        "beats_exits": int((speeds > exits.reindex(speeds.index)).sum()),
    }


def _oracle_facts(stored: StoredTables) -> dict | None:
    """What perfect decisions keep and spend on real text, and on the synthetic task where they keep least."""
    rows = oracle_rows(stored)
    real = rows[rows.profile == REAL]
    synthetic = rows[rows.profile == SYNTHETIC].sort_values("oracle", kind="stable")
    if real.empty or synthetic.empty:
        return None
    return {
        "kept": real.oracle.mean(),
        "flops": real.flops_share.mean(),
        "worst": synthetic.oracle.iloc[0],
        "worst_task": label(synthetic.task.iloc[0]),
    }


def _verdict(stored: StoredTables, claim: str) -> str:
    """Where a statement stands on real text: a key of `ledger_page.VERDICTS`."""
    table = ledger_page.ledger(stored).set_index("claim")
    return table.stands.get(claim, "Undecided")


def of_tasks(number: int, tasks: int) -> str:
    """ "all three tasks", "one of three tasks", "none of the three tasks"."""
    if number == tasks:
        return f"all {WORDS[tasks]} tasks"
    return f"{WORDS[number]} of {'the ' if number == 0 else ''}{WORDS[tasks]} tasks"


def percent(share: float, decimals: int = 0) -> str:
    """ "79 %", for prose."""
    return f"{100 * share:.{decimals}f} %"


def percents(ends: list[float]) -> str:
    """ "63 to 82 %" of the least and the largest of some shares; "none" of no shares."""
    texts = [f"{100 * share:.0f}" for share in ends]
    return f"{' to '.join(dict.fromkeys(texts))} %" if texts else "none"
