"""Chapter 07: exits that the last layer verifies: how fast they are, which drafts it accepts."""

from __future__ import annotations

import pandas as pd

from .. import figures
from ..prose import listed, on_tasks, span, task_span
from ..result_tables import outputs_to_repay
from .wording import capitalized, percent_span, winners, without_source

MAIN = "calm"
SHOWN_ROUNDS = 6  # of one output
BETWEEN_MODELS = 0.07  # at a batch size, of the way to the next
SIMULATION = """## How fast would it be at the size of T5-base and T5-large? A simulation

At this size much of a decision's time is Python overhead. `make bench` lets decoders of T5's sizes with
random weights replay what the CALM model did here: tokens exit at the same relative depth, the same drafts
are right and wrong, every decision is computed. *Verified* exits are planned again for each size.
*Unverified*: among the cheapest rules of each family that keep 99 % of the score (08), the fastest over one
layer and the fastest over several. *mini T5* has the sizes of the profile's own models. The encoder, which
exits cannot speed up, takes a smaller share of the time here than it does
for short answers to long inputs."""


def speed_figure(timed: pd.DataFrame, note: str = ""):
    """Tokens a second of planned verified exits relative to full depth, by batch size, a line a model."""
    batches = {batch: number for number, batch in enumerate(sorted(timed.batch.unique()))}
    models = pd.Index(timed.model.unique())
    beside = models.get_indexer(timed.model) - (len(models) - 1) / 2  # else ranges of models would overlap
    return figures.facets(
        timed.assign(at=timed.batch.map(batches) + BETWEEN_MODELS * beside),
        _draw_speed,
        batches=batches,
        xlabel="batch size",
        ylabel="tokens a second\n(1 = full depth)",
        message=speed_message(timed),
        note=note,
    )


def _draw_speed(axis, rows: pd.DataFrame, batches: dict[int, int]) -> None:
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8)
    figures.lines(axis, rows, "at", "speed", "model")
    figures.dots(axis, rows, "at", "speed", "model", yband=("lowest", "highest"), label=None)
    axis.set_xticks(list(batches.values()), [str(batch) for batch in batches])
    axis.set_xlim(-0.3, len(batches) - 0.7)


def _of_main(timed: pd.DataFrame, batch: int) -> pd.Series:
    """By task: the speed of the main model at a batch size."""
    return timed[(timed.model == MAIN) & (timed.batch == batch)].set_index("task").speed


def speed_message(timed: pd.DataFrame) -> str:
    """How fast verified exits are one output at a time."""
    first = timed.batch.min() if len(timed) else 1
    speed = _of_main(timed, first)
    if speed.empty:
        return ""
    times = percent_span(speed, "{:.2f}")
    return f"CALM's verified exits produce the output of full depth {times} times as fast at batch {first}"


def speed_conclusion(timed: pd.DataFrame) -> str:
    """On which tasks verified exits are faster in the median run, at the smallest and the largest batch."""
    if timed.empty:
        return ""
    tasks = list(timed.task.unique())
    batches = sorted({timed.batch.min(), timed.batch.max()})
    speeds = {batch: _of_main(timed, batch) for batch in batches}
    parts = [
        f"at batch {batch} {_where_faster(speed, tasks)}" for batch, speed in speeds.items() if len(speed)
    ]
    where = "; ".join(parts)
    text = f"In the median run CALM's verified exits are faster than full depth {where}." if parts else ""
    others = timed[(timed.model != MAIN) & (timed.batch == batches[0])]
    return f"{text} {_idle(others, batches[0])}".strip()


def _where_faster(speed: pd.Series, tasks: list[str]) -> str:
    """The tasks on which a speed is clearly above 1 and by how much, then the speeds of the others."""
    faster = speed[speed > 1.02]
    slower = speed.drop(faster.index)
    where = on_tasks(faster.index, tasks)
    others = ", ".join(f"{figures.label(task)} {value:.2f}" for task, value in slower.items())
    if faster.empty:
        return f"{where} ({others})"
    by = f"{where}, {task_span(faster, '.2f')} times as fast"
    return f"{by} ({others})" if others else by


def planning_conclusion(timed: pd.DataFrame) -> str:
    """How long planning takes, and after how many outputs the main model's drafts have made up for it."""
    planned = timed.dropna(subset="planning_seconds")
    if planned.empty:
        return ""
    seconds = span(planned.planning_seconds, "{:.0f}")
    text = f"Planning takes {seconds} seconds per model, task and batch size, and is not part of these speeds"
    first = planned.batch.min()
    outputs = outputs_to_repay(planned[(planned.model == MAIN) & (planned.batch == first)])
    if outputs.empty:
        return f"{text}."
    repaid = span(outputs, "{:,.0f}")
    return f"{text}: at batch {first}, CALM's drafts have made up for it after {repaid} outputs."


def _idle(others: pd.DataFrame, batch: int) -> str:
    """For how many pairs of another model and a task the plan drafts nothing."""
    if others.empty:
        return ""
    number = int(others.rule.isna().sum())
    pairs = f"the {len(others)} combinations of the other models and tasks"
    if not number:
        return f"At batch {batch} drafts are planned for all of {pairs}."
    run = "runs" if number == 1 else "run"
    return f"At batch {batch} nothing is drafted for {number} of {pairs}, which {run} at full depth."


def shape_figure(simulated: pd.DataFrame, tasks: list[str], note: str = ""):
    """Simulated tokens a second at T5's sizes, verified and unverified."""
    return figures.facets(
        simulated.replace({"shape": figures.SIZES}),
        _draw_shapes,
        values=tasks,
        empty="not simulated",
        ylabel="simulated tokens a second,\nbatch 1 (1 = full depth)",
        message=shape_message(simulated),
        note=note,
    )


def _draw_shapes(axis, rows: pd.DataFrame) -> None:
    figures.grouped_bars(axis, rows, "shape", "simulated_speed", by="kind")
    axis.axhline(1.0, color=figures.GREY, linewidth=0.8)


def _at_large(simulated: pd.DataFrame, kind: str) -> pd.Series:
    rows = simulated[(simulated["shape"] == "t5-large") & (simulated.kind == kind)]
    return rows.set_index("task").simulated_speed


def shape_message(simulated: pd.DataFrame) -> str:
    """How fast verified exits would be at the size of T5-large."""
    speed = _at_large(simulated, "verified")
    if speed.empty:
        return ""
    times = percent_span(speed, "{:.2f}")
    return f"Simulated at T5-large's size, verified exits are {times} times as fast as full depth"


def shape_conclusion(simulated: pd.DataFrame) -> str:
    """Verified against unverified exits at the size of T5-large."""
    verified = _at_large(simulated, "verified")
    if verified.empty:
        return ""
    alone = pd.concat(
        [_at_large(simulated, f"unverified, {layers}") for layers in ("one layer", "several layers")]
    )
    best = alone.groupby(level=0, sort=False).max()
    ahead = [task for task in verified.index if verified[task] > best.get(task, 0)]
    where = on_tasks(ahead, list(verified.index))
    beside = (
        f", the best unverified ones {task_span(best, '.2f')}; verified exits are ahead {where}"
        if len(best)
        else ""
    )
    return (
        f"Simulated at T5-large's size, verified exits are {task_span(verified, '.2f')} times as fast as "
        f"full depth{beside}. The simulation shows what such exits would cost there, and assumes as many "
        "right drafts as here; it is no measurement of T5-large."
    )


def decoded_shown(decoded: pd.DataFrame) -> pd.DataFrame:
    """Verified and unverified exits of the same rules, with readable names."""
    names = {
        "acceptance": "drafts accepted",
        "flops_share": "FLOPs, verified",
        "flops_unverified": "FLOPs, unverified",
        "kept_unverified": "score kept, unverified",
    }
    table = decoded.set_index(["model", "task", "rule"])[list(names)].rename(columns=names)
    return table.rename(index=figures.label).round(2)


def decoded_conclusion(decoded: pd.DataFrame, limit: int) -> str:
    """How many outputs differ from full depth, verified; what the same rules keep of the score unverified."""
    outputs = len(decoded) * limit
    return (
        f"Verified, {int(decoded.other_outputs.sum())} of {outputs:,} outputs differ from full depth; "
        f"unverified, the same rules at the same threshold keep {percent_span(decoded.kept_unverified)} of "
        "the score. Verification saves no operations: every token goes through every layer, and drafts come "
        f"on top ({percent_span(decoded.flops_share)} of the FLOPs of full depth). It saves time because "
        "layers run on several tokens at once."
    )


def drafts_of_rules(by_layer: pd.DataFrame, by_round: pd.DataFrame) -> pd.DataFrame:
    """Where each rule drafts, on average, beside the share of its drafts that the last layer accepts."""
    drafts = by_layer[by_layer.drafted > 0]
    weighted = drafts.assign(weight=drafts.drafted * drafts.layer)
    sums = weighted.groupby(["model", "task", "rule"], sort=False)[["weight", "drafted"]].sum()
    layers = (sums.weight / sums.drafted).rename("draft_layer").reset_index()
    return by_round.merge(layers, on=["model", "task", "rule"])


def drafts_figure(drafts: pd.DataFrame, note: str = ""):
    """Mean draft layer against acceptance, a marker a rule (`drafts_of_rules`)."""
    return figures.facets(
        drafts,
        figures.dots,
        row="model",
        x="draft_layer",
        y="acceptance",
        xlabel="mean layer of a draft",
        ylabel="share of drafts\nthat is accepted",
        height=2.4,
        message=drafts_message(drafts),
        note=note,
    )


def drafts_message(drafts: pd.DataFrame) -> str:
    """The acceptance of CALM's drafts, and of vanilla's."""
    parts = [
        f"{percent_span(rows.acceptance)} of {figures.label(name)}'s"
        for name, rows in drafts.groupby("model", sort=False)
    ]
    return f"The last layer accepts {listed(parts)} drafts, depending on rule and task"


def drafts_conclusion(drafts: pd.DataFrame) -> str:
    """Whose drafts are accepted least and most, by model; with the first, who has the longest rounds."""
    parts = [
        f"{_accepted(rows)} of the drafts with {figures.label(name)}"
        for name, rows in drafts.groupby("model", sort=False)
    ]
    rows = drafts[drafts.model == drafts.model.iloc[0]]
    best = rows.loc[rows.groupby("task", sort=False).tokens_a_round.idxmax()]
    longest = task_span(best.set_index("task").tokens_a_round, ".1f")
    return (
        f"Averaged over tasks, the last layer accepts {', and '.join(parts)}. The longest rounds with "
        f"{figures.label(rows.model.iloc[0])}, on average {longest} tokens of the output, come from "
        f"{winners(best)}."
    )


def _accepted(rows: pd.DataFrame) -> str:
    """The least and the largest share of accepted drafts, each with its rule."""
    shares = rows.groupby("rule", sort=False).acceptance.mean().dropna()
    if shares.empty:
        return "none"
    least, most = shares.idxmin(), shares.idxmax()
    texts = [f"{shares[rule]:.0%} ({without_source(rule)})" for rule in (least, most)]
    return texts[0] if least == most else " to ".join(texts)


def sentence_figure(runs: pd.DataFrame, note: str = ""):
    """One output as it is decoded: a line a round, a word a token that was run, in the colour of its fate."""
    rounds = runs[runs["round"] <= SHOWN_ROUNDS]
    return figures.facets(
        rounds,
        _draw_sentence,
        "model",
        sharex=False,
        sharey=True,
        all_rounds=runs.groupby("model")["round"].max(),
        width=4.8,
        height=1.1 + 0.26 * rounds["round"].max(),
        message=sentence_message(runs),
        note=note,
    )


def _draw_sentence(axis, rows: pd.DataFrame, all_rounds: pd.Series) -> None:
    longest = 0
    for number, words in rows.groupby("round"):
        x = 0.0
        for word in words.itertuples():
            colour = "#777777" if word.fate == "dropped" else "black"
            box = {"boxstyle": "round,pad=0.15", **_look_of(word.fate)}
            axis.text(
                x,
                number,
                word.token or "-",
                fontsize=8,
                family="monospace",
                va="center",
                color=colour,
                bbox=box,
            )
            x += max(1, len(word.token)) + 1.3
        longest = max(longest, x)
    for fate in rows.fate.unique():
        axis.bar(0, 0, label=fate, **_look_of(fate))
    shown = int(rows["round"].max())
    more = int(all_rounds[rows.model.iloc[0]]) - shown
    if more:
        axis.text(0, shown + 0.8, f"... and {more} more rounds", fontsize=8, va="center", color=figures.DARK)
    axis.set(xlim=(-1, max(longest, 62)), xticks=[])
    lowest, _ = axis.get_ylim()
    if lowest < shown + 0.6:  # panels share this axis: the longest output decides
        axis.set_ylim(shown + (1.3 if more else 0.6), 0.4)
        axis.set_yticks(range(1, shown + 1))
    axis.set_ylabel("round")
    axis.set_xlabel(
        "each box: the output's word at that position, not the draft (-: past the end)", fontsize=8
    )
    axis.grid(visible=False)


def _look_of(fate: str) -> dict[str, object]:
    """How the box of a fate is drawn: "replaced" has a dark edge, as red and green look alike to some."""
    replaced = fate == "replaced"
    return {
        "facecolor": figures.FATES[fate],
        "edgecolor": "black" if replaced else "#bbbbbb",
        "linewidth": 1.0 if replaced else 0.5,
    }


def sentence_message(runs: pd.DataFrame) -> str:
    """How many rounds the tokens of the output take, by model."""
    parts = []
    written = 0
    for name, rows in runs.groupby("model", sort=False):
        tokens = rows[rows.token != ""].position.max() + 1  # drafts past the end have none
        subject = f"{tokens} tokens take " if tokens != written else ""
        parts.append(f"{subject}{rows['round'].max()} rounds with {figures.label(name)}")
        written = tokens
    return f"One output: {listed(parts)}"


def sentence_conclusion(runs: pd.DataFrame) -> str:
    """How many of the tokens that were run are kept, by model."""
    first, *others = [
        f"with {figures.label(name)} {(rows.fate != 'dropped').mean():.0%}"
        for name, rows in runs.groupby("model", sort=False)
    ]
    texts = [f"{capitalized(first)} of the tokens that were run end up in the output", *others]
    return f"{', '.join(texts)}. A token is dropped where a draft before it was wrong."


def summary(timed: pd.DataFrame, drafts: pd.DataFrame) -> str:
    """The chapter in five sentences at most."""
    sentences = [
        "A verified exit costs no quality, whatever the rule and the threshold: only speed depends on them.",
        f"{speed_message(timed)}." if len(timed) else "",
        f"{drafts_message(drafts)}.",
        (
            "No operations are saved; there are more of them. Time is saved because weights are read once "
            f"for several tokens{_smaller_batches(timed)}."
        ),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _smaller_batches(timed: pd.DataFrame) -> str:
    """Whether the gain is larger in the smallest batch than in the largest, on average over tasks."""
    if timed.empty or timed.batch.nunique() < 2:
        return ""
    one, many = timed.batch.min(), timed.batch.max()
    first = _of_main(timed, one).mean()
    last = _of_main(timed, many).mean()
    if not first > last:
        return ""
    return f", so the gain is larger at batch {one} than at batch {many} ({first:.2f} against {last:.2f})"
