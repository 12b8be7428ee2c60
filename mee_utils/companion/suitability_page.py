"""`python -m mee_utils suitability MODEL --task ...`: one page on whether exits are worth it for a model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from ..analysis.statistics import without_draws
from ..analysis.suitability import Suitability, only, suitability
from ..common.errors import MeeError, check_whole, nearest, shown
from ..common.files import check_writable, complete_file
from ..common.sources import ENDINGS
from ..tasks.kinds import TASKS
from ..tasks.loading import load_task
from ..tasks.rows import rows
from . import figures
from .result_tables import BENCH
from .templates import filled, markdown

INPUT = "input"  # the column of a file of prompts
SOURCE = "synthetic"  # of a task, and its split, if nobody says which
SPLIT = "validation"
LAYERS_SHOWN = 12  # rows of the table of settled tokens, at most
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
    """The page as Markdown (`pages/suitability.md`).

    Args:
        result: what is reported.
        inputs: what the model was traced on, in words.
        pictures: "settled" and "rules" -> the address of a picture; by default there are none.
    """
    gains = simulated_gains()
    text = filled(
        "suitability",
        result=result,
        inputs=inputs,
        pictures=pictures or {},
        oracle_layer=f"{only(result.oracle, 'mean_exit_layer'):.1f}",
        oracle_flops=f"{only(result.oracle, 'flops_share'):.0%}",
        settled=_table(SETTLED_COLUMNS, _settled_rows(result)),
        rules=_table(RULE_COLUMNS, _rule_rows(result)),
        drafts=_table(DRAFT_COLUMNS, _draft_rows(result)),
        timed=len(gains),
        gained=[f"{share:.0%}" for share in gains.quantile([0.25, 0.5, 0.75])],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return markdown(pd.DataFrame(lines, columns=list(header)))


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
    figure, panels = figures.panels(table, "model", width=4.5)
    for axis, part in panels:
        figures.lines(axis, part, "layer", "share", "model", figures.BAND, clip=(0, 1))
        axis.set_ylabel("share of tokens whose\nprediction is final")
    return figure


def rules_figure(result: Suitability):
    """FLOPs of each rule, a panel for each wanted loss; full depth is 1."""
    figures.use_style()
    table = without_draws(result.rules).sort_values("flops_share", kind="stable")
    table = table.assign(loss=[f"at a loss of {wanted:.0%}" for wanted in table.wanted])
    figure, panels = figures.panels(
        table.sort_values("wanted", kind="stable"), "loss", sharey=False, width=4.8
    )
    for axis, part in panels:
        figures.bars(axis, part, "flops_share", band=("flops_share_low", "flops_share_high"))
        axis.axvline(1.0, color=figures.GREY, linewidth=1)
        axis.set_xlabel("decoder FLOPs (1 = full depth)")
    return figure


def _save(figure, path: Path) -> None:
    import matplotlib.pyplot as plt

    with complete_file(path) as partial:
        figure.savefig(partial, format="png", bbox_inches="tight")
    plt.close(figure)
