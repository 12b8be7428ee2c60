"""`python -m mee_utils suitability MODEL --task ...`: one page on whether exits are worth it for a model."""

import re
from collections.abc import Mapping
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
from .kinds import VERIFIED
from .reporting.templates import filled, markdown
from .result_tables import BENCH

INPUT = "input"  # the column of a file of prompts
SOURCE = "synthetic"  # of a task, and its split, if nobody says which
SPLIT = "validation"
LAYERS_SHOWN = 12  # rows of the table of settled tokens, at most


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
    path = None if output is None else Path(output)
    if path is not None:
        if path.suffix.lower() != ".md" or path.is_dir():
            raise MeeError(f"output={output}: give a Markdown file, such as page.md.")
        check_writable(path)  # before hours of tracing
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
    import matplotlib.pyplot as plt

    links = {}
    for name, figure in {"settled": settled_figure(result), "rules": rules_figure(result)}.items():
        picture = path.with_name(f"{path.stem}-{name}.png")
        with complete_file(picture) as partial:
            figure.savefig(partial, format="png", bbox_inches="tight")
        plt.close(figure)
        links[name] = quote(picture.name)
    with complete_file(path) as partial:
        partial.write_text(page(result, described, links) + "\n", encoding="utf-8")
    return f"page: {path}"


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
        settled=markdown(_settled(result)),
        rules=markdown(_rules(result)),
        drafts=markdown(_drafts(result)),
        timed=len(gains),
        gained=[f"{share:.0%}" for share in gains.quantile([0.25, 0.5, 0.75])],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _settled(result: Suitability) -> pd.DataFrame:
    layers_shown = np.linspace(1, result.layers, min(result.layers, LAYERS_SHOWN)).round()
    rows = result.settled[result.settled.layer.isin(layers_shown)].itertuples()
    shares = {row.layer: f"{row.share:.0%} ({row.low:.0%} to {row.high:.0%})" for row in rows}
    return pd.DataFrame(shares.items(), columns=["layer", "tokens whose prediction is final"])


def _rules(result: Suitability) -> pd.DataFrame:
    lines = []
    for loss, of_loss in result.rules.groupby("wanted", sort=True):
        best = result.best(loss).rule.item()
        ordered = of_loss.sort_values("flops_share", kind="stable")
        for index in ordered.index:
            row = ordered.loc[[index]]
            rule = row.rule.item()
            line = {
                "loss wanted": f"{loss:.0%}",
                "rule": f"**{rule}**" if rule == best else rule,
                "decides": _deciding(row),
                "loss": f"{1 - only(row, 'same_token'):.1%}",
                "outputs that change": f"{only(row, 'changed_outputs'):.0%}",
                "mean exit layer": f"{only(row, 'mean_exit_layer'):.1f}",
                "FLOPs": f"{only(row, 'flops_share'):.0%}",
                "speed, simulated": f"{only(row, 'speed'):.2f}×",
            }
            lines.append(line)
    return pd.DataFrame(lines)


def _drafts(result: Suitability) -> pd.DataFrame:
    row = result.drafts
    longest = row.max_draft.item()
    line = {
        "rule": row.rule.item(),
        "decides": _deciding(row),
        "longest draft": f"{longest} token{'s' if longest > 1 else ''}",
        "accepted": f"{only(row, 'acceptance'):.0%}",
        "tokens a round": f"{only(row, 'tokens_a_round'):.1f}",
        "speed, simulated": f"{only(row, 'speed'):.2f}×",
    }
    return pd.DataFrame([line])


def _deciding(row: pd.DataFrame) -> str:
    """At which layers a rule decides, and above which confidence a token exits."""
    threshold = row.threshold.item()
    above = "" if threshold is None or np.isnan(threshold) else f", above {threshold:.3g}"
    return row.decides.item() + above


def simulated_gains() -> pd.Series:
    """Which share of the simulated gain in speed was measured, for each setting of verified exits."""
    path = BENCH / "exits.csv"
    if not path.exists():
        return pd.Series(dtype=float)
    timed = pd.read_csv(path)
    drafted = timed[(timed.batch == 1) & (timed.kind == VERIFIED) & timed.rule.notna()]
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
