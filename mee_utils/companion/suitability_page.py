"""`python -m mee_utils suitability MODEL --task ...`: one page on whether exits are worth it for a model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from urllib.parse import quote

import numpy as np
import pandas as pd

from ..analysis.statistics import without_draws
from ..analysis.suitability import Suitability, only, suitability
from ..common.errors import MeeError, check_whole, nearest, shown
from ..common.files import PACKAGE, check_writable, complete_file
from ..common.sources import ENDINGS
from ..tasks.kinds import TASKS
from ..tasks.loading import load_task
from ..tasks.rows import rows
from . import figures
from .result_tables import BENCH

INPUT = "input"  # the column of a file of prompts
SOURCE = "synthetic"  # of a task, and its split, if nobody says which
SPLIT = "validation"
LAYERS_SHOWN = 12  # rows of the table of settled tokens, at most
TEMPLATE = PACKAGE / "companion" / "suitability.md"
SETTLED_COLUMNS = ("layer", "tokens whose prediction is final")
RULE_COLUMNS = (
    "loss wanted",
    "rule",
    "decides",
    "loss",
    "outputs that change",
    "mean exit layer",
    "FLOPs",
    "speed, simulated",
)
DRAFT_COLUMNS = ("rule", "decides", "longest draft", "accepted", "tokens a round", "speed, simulated")


def write(
    model: str,
    task: str,
    *,
    source: str = SOURCE,
    split: str = SPLIT,
    limit: int = 200,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
    output: str | None = None,
) -> str | None:
    """Traces a model and writes the page; without a file for the `output` it is printed.

    Args:
        model: a folder or hub id, see `load_any_model`.
        task: one of `TASKS`, or a file with a column "input".
        source, split: of a task, as in `load_task`.
        limit: examples at most.
        max_new_tokens, batch_size, max_source_tokens: as in `suitability`.
        output: file of the page; pictures are put beside it.
    """
    from ..models.any_model import load_any_model  # loads torch

    check_whole("limit", limit)
    path = _checked_output(output)
    inputs, described = _inputs(task, source, split, limit)
    result = suitability(
        load_any_model(model),
        inputs,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        max_source_tokens=max_source_tokens,
    )
    if path is None:
        print(page(result, described))
        return None
    pictures = {name: path.with_name(f"{path.stem}-{name}.png") for name in ("settled", "rules")}
    _save(settled_figure(result), pictures["settled"])
    _save(rules_figure(result), pictures["rules"])
    links = {name: quote(picture.name) for name, picture in pictures.items()}
    with complete_file(path) as partial:
        partial.write_text(page(result, described, links) + "\n", encoding="utf-8")
    return f"page: {path}"


def _checked_output(output: str | None) -> Path | None:
    """Where the page goes; refused before hours of tracing if no Markdown file can be written there."""
    if output is None:
        return None
    path = Path(output)
    if path.suffix.lower() != ".md" or path.is_dir():
        raise MeeError(f"output={output}: give a Markdown file, such as page.md.")
    check_writable(path)
    return path


def _inputs(task: str, source: str, split: str, limit: int) -> tuple[list[str], str]:
    """The prompts of a task or of a file, and what they are, in words."""
    if task in TASKS:
        loaded = load_task(task, source, split, limit)
        return loaded.inputs, f"{figures.label(task)} ({source}, {split})"
    path = Path(task).expanduser()
    if not path.is_file():
        valid = nearest(task, TASKS)[:-1]
        advice = f'or give a file ({", ".join(ENDINGS)}) with a column "{INPUT}"'
        raise MeeError(f"task={shown(task)} is neither a task nor a file: {valid}; {advice}.")
    if (source, split) != (SOURCE, SPLIT):
        raise MeeError(f"source and split are of a task, and {path} is a file: leave them out.")
    inputs = []
    for where, row in rows([path]):
        if not isinstance(row.get(INPUT), str) or not row[INPUT].strip():
            raise MeeError(f'{where} has no text in a column "{INPUT}": put each prompt there.')
        inputs.append(row[INPUT])
        if len(inputs) == limit:
            break
    return inputs, path.name


# ---- the page


def page(result: Suitability, inputs: str, pictures: Mapping[str, str] | None = None) -> str:
    """The page as Markdown.

    Args:
        result: what is reported.
        inputs: what the model was traced on, in words.
        pictures: "settled" and "rules" -> the address of a picture; by default there are none.
    """
    pictures = pictures or {}
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    text = template.substitute(
        model=result.model,
        verdict=result.verdict,
        examples=result.examples,
        inputs=inputs,
        tokens=f"{result.tokens:,}",
        not_used=_not_used(result),
        cut=_cut(result),
        layers=result.layers,
        settled_picture=_picture(pictures, "settled", "Share of tokens whose prediction is final, by layer"),
        settled=_table(SETTLED_COLUMNS, _settled_rows(result)),
        oracle_layer=f"{only(result.oracle, 'mean_exit_layer'):.1f}",
        oracle_flops=f"{only(result.oracle, 'flops_share'):.0%}",
        rules_picture=_picture(pictures, "rules", "FLOPs of each rule at each loss"),
        rules=_table(RULE_COLUMNS, _rule_rows(result)),
        drafts=_table(DRAFT_COLUMNS, _draft_rows(result)),
        checked=_checked_speeds(),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _not_used(result: Suitability) -> str:
    """Says which settings stored with the model were left out: with them it would write something else."""
    if not result.not_used:
        return ""
    return f" **Settings stored with the model were not used: {', '.join(result.not_used)}.**"


def _cut(result: Suitability) -> str:
    """Says that inputs were cut, and to what."""
    if not result.cut:
        return ""
    many = f"{result.cut} of {result.examples} inputs were too long and cut to their first {result.longest}"
    return f" **{many} tokens**: what a prompt says at its end is missing there."


def _picture(pictures: Mapping[str, str], name: str, text: str) -> str:
    return f"![{text}]({pictures[name]})\n" if name in pictures else ""


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def _settled_rows(result: Suitability) -> list[list[str]]:
    shown_layers = np.linspace(1, result.layers, min(result.layers, LAYERS_SHOWN)).round()
    chosen = result.settled[result.settled.layer.isin(shown_layers)]
    return [
        [f"{row.layer}", f"{row.share:.0%} ({row.low:.0%} to {row.high:.0%})"] for row in chosen.itertuples()
    ]


def _rule_rows(result: Suitability) -> list[list[str]]:
    lines = []
    for loss, of_loss in result.rules.groupby("wanted", sort=True):
        best = result.best(loss).rule.item()
        ordered = of_loss.sort_values("flops_share", kind="stable")
        for index in ordered.index:
            row = ordered.loc[[index]]
            rule = row.rule.item()
            line = [
                f"{loss:.0%}",
                f"**{rule}**" if rule == best else rule,
                _deciding(row),
                f"{1 - only(row, 'same_token'):.1%}",
                f"{only(row, 'changed_outputs'):.0%}",
                f"{only(row, 'mean_exit_layer'):.1f}",
                f"{only(row, 'flops_share'):.0%}",
                f"{only(row, 'speed'):.2f}×",
            ]
            lines.append(line)
    return lines


def _draft_rows(result: Suitability) -> list[list[str]]:
    row = result.drafts
    line = [
        row.rule.item(),
        _deciding(row),
        f"{row.max_draft.item()} token{'s' if row.max_draft.item() > 1 else ''}",
        f"{only(row, 'acceptance'):.0%}",
        f"{only(row, 'tokens_a_round'):.1f}",
        f"{only(row, 'speed'):.2f}×",
    ]
    return [line]


def _deciding(row: pd.DataFrame) -> str:
    """At which layers a rule decides, and above which confidence a token exits."""
    threshold = row.threshold.item()
    above = "" if threshold is None or np.isnan(threshold) else f", above {threshold:.3g}"
    return row.decides.item() + above


def _checked_speeds() -> str:
    """How much of a simulated gain was measured where there are both."""
    gains = simulated_gains()
    if gains.empty:
        return ""
    quarter, median, three_quarters = gains.quantile([0.25, 0.5, 0.75])
    return (
        f"Where `make bench` timed verified exits ({len(gains)} settings of the small models here, one "
        f"output at a time), decoding gained {median:.0%} of what was simulated ({quarter:.0%} to "
        f"{three_quarters:.0%} in the middle half)."
    )


def simulated_gains() -> pd.Series:
    """Which share of the simulated gain in speed was measured, for each setting of verified exits."""
    path = BENCH / "lossless.csv"
    if not path.exists():
        return pd.Series(dtype=float)
    timed = pd.read_csv(path)
    drafted = timed[(timed.batch == 1) & timed.rule.notna()]
    return (drafted.speed - 1) / (drafted.expected - 1)


# ---- its pictures


def settled_figure(result: Suitability):
    """The share of settled tokens at each layer."""
    figures.use_style()
    table = without_draws(result.settled).assign(model=result.model)
    return figures.facets(
        table,
        figures.lines,
        "model",
        x="layer",
        y="share",
        by="model",
        band=figures.BAND,
        clip=(0, 1),
        ylabel="share of tokens whose\nprediction is final",
        width=4.5,
        with_legend=False,
    )


def rules_figure(result: Suitability):
    """FLOPs of each rule, a panel for each wanted loss; full depth is 1."""
    figures.use_style()
    table = without_draws(result.rules).sort_values("flops_share", kind="stable")
    table = table.assign(loss=[f"at a loss of {wanted:.0%}" for wanted in table.wanted])
    return figures.facets(
        table.sort_values("wanted", kind="stable"),
        _draw_rules,
        "loss",
        sharey=False,
        xlabel="FLOPs (1: full depth)",
        width=4.8,
        with_legend=False,
    )


def _draw_rules(axis, rows: pd.DataFrame) -> None:
    figures.bars(axis, rows, "flops_share", band=("flops_share_low", "flops_share_high"))
    axis.axvline(1.0, color=figures.GREY, linewidth=1)


def _save(figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    with complete_file(path) as partial:
        figure.savefig(partial, format="png", bbox_inches="tight")
    plt.close(figure)
