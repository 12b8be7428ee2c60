"""What contrast does to a token: an example, the amateur that JSD chooses, and plausible sets."""

from __future__ import annotations

import textwrap

import pandas as pd

from ... import figures
from ...prose import task_span
from ..wording import percent_span

DISTRIBUTIONS = ("expert", "amateur", "contrast")
MARGINS = {
    "plain": figures.Style("plain margin", figures.STYLES["unpruned"].colour),
    "contrast": figures.Style("weighted contrast", figures.STYLES["weighted"].colour, dashes=(3, 1.5)),
    "without_mass": figures.Style(
        "weighted contrast without the mass (public code)", figures.DARK, dashes=(1, 1)
    ),
}


def telling_example(single: pd.DataFrame, kind: str = "weighted") -> pd.DataFrame:
    """The rows of the task on which the contrast of this kind takes most from the expert's first choice."""
    rows = single[single.kind == kind]
    taken = {task: _taken(part) for task, part in rows.groupby("task", sort=False)}
    return rows[rows.task == max(taken, key=taken.get)]


def _taken(rows: pd.DataFrame) -> float:
    """By how much the contrast lowers the probability of the expert's best entry, if another one wins."""
    best = rows.expert.idxmax()
    if rows[rows.plausible].contrast.idxmax() == best:
        return -1.0
    return rows.expert[best] - rows.contrast[best]


def one_token_figure(example: pd.DataFrame, model: str, note: str = ""):
    """Expert, amateur and contrast of one token as a table: a row each, a column a vocabulary entry."""
    layer = example.layer.iloc[0]
    amateur = example.amateur_layer.iloc[0]
    names = {
        "expert": f"expert\n(layer {layer})",
        "amateur": f"amateur\n(layer {amateur})",
        "contrast": "contrast",
    }
    example = example.assign(token=example.token.str.replace("$", r"\$"))  # else it begins a formula
    ordered = example.sort_values("expert", ascending=False, kind="stable").reset_index(drop=True)
    return figures.facets(
        ordered,
        _draw_token,
        "task",
        names=names,
        width=9.5,
        height=2.3,
        message=one_token_message(example, model),
        note=note,
    )


def one_token_message(example: pd.DataFrame, model: str) -> str:
    """What the contrast does to this token, in a sentence."""
    before = example.token[example.expert.idxmax()].removeprefix("_")
    after = example.token[example[example.plausible].contrast.idxmax()].removeprefix("_")
    if before == after:
        return f'In {figures.label(model)}, contrast keeps the expert\'s choice, "{before}"'
    return (
        f'In {figures.label(model)}, contrast replaces "{before}", the expert\'s choice, with "{after}", '
        "which the amateur finds less likely"
    )


def one_token_conclusion(example: pd.DataFrame) -> str:
    """What becomes of the expert's choice, and why."""
    best = example.expert.idxmax()
    return (
        f"The expert gives its choice a probability of {example.expert[best]:.2f}, and the amateur gives it "
        f"{example.amateur[best]:.2f}. Contrast divides one by the other for every plausible entry, which "
        f"leaves this one with {example.contrast[best]:.2f}."
    )


def _draw_token(axis, rows: pd.DataFrame, names: dict[str, str]) -> None:
    values = rows[list(DISTRIBUTIONS)].T  # [distribution, entry]
    figures.heat(axis, values, values.map(_probability_text), fontsize=9)
    entries = [
        token if plausible else f"({token})"
        for token, plausible in zip(rows.token, rows.plausible, strict=True)
    ]
    axis.set_xticklabels([textwrap.shorten(entry, 14) for entry in entries], fontsize=9)
    axis.set_yticklabels([names[each] for each in DISTRIBUTIONS])


def _probability_text(value: float) -> str:
    """ "0.52", "< 0.01"."""
    return f"{value:.2f}" if value >= 0.005 else "< 0.01"


def amateur_figure(amateurs: pd.DataFrame, note: str = ""):
    """The share of tokens whose most different earlier layer is layer 1, by expert layer, a line a task."""
    first = amateurs[(amateurs.amateur_layer == 1) & (amateurs.layer > 2)].assign(panel="")
    return figures.facets(
        first,
        _draw_first_layer,
        "panel",
        width=5.6,
        height=3.0,
        ylabel="share of tokens whose\namateur is layer 1",
        xlabel="expert layer",
        message=amateur_message(amateurs),
        note=note,
    )


def _draw_first_layer(axis, rows: pd.DataFrame) -> None:
    figures.lines(axis, rows, "layer", "share", "task")
    axis.set_ylim(0, 1.03)


def amateur_message(amateurs: pd.DataFrame) -> str:
    """For how many tokens JSD chooses layer 1."""
    shares = percent_span(first_layer_shares(amateurs))
    return f"JSD contrasts with layer 1 for {shares} of the tokens (mean over expert layers)"


def first_layer_shares(amateurs: pd.DataFrame) -> pd.Series:
    """By task: the share of tokens whose amateur is layer 1, a mean over the expert layers from 3 on."""
    first = amateurs[(amateurs.amateur_layer == 1) & (amateurs.layer > 2)]
    return first.groupby("task", sort=False).share.mean()


def amateur_conclusion(amateurs: pd.DataFrame) -> str:
    """How often JSD chooses layer 1."""
    shares = first_layer_shares(amateurs)
    nearly = (
        "JSD is in effect contrast with the first layer"
        if shares.min() > 0.75
        else "JSD often contrasts with the first layer"
    )
    return (
        f"{nearly}: the amateur is layer 1 for {task_span(shares)} of the tokens (mean over the expert "
        "layers from 3 on). To find that out, it computes logits at every earlier layer."
    )


def plausible_figure(plausible: pd.DataFrame, note: str = ""):
    """How many tokens have one plausible entry, and what that does to the margin."""
    return figures.facets(
        plausible,
        _draw_plausible,
        quantities={"single": "share of tokens with\none plausible entry", "plain": "mean margin"},
        height=2.5,
        message=plausible_message(plausible),
        note=note,
    )


def _draw_plausible(axis, rows: pd.DataFrame, y: str) -> None:
    if y == "single":
        axis.plot(rows.layer, rows.single, color=figures.GREY)  # its axis names it, the legend need not
    else:
        figures.column_lines(axis, rows, "layer", list(MARGINS), MARGINS)
    axis.set_ylim(0, 1.03)


def plausible_message(plausible: pd.DataFrame) -> str:
    """How many tokens have one plausible entry at the last layer."""
    last = plausible[plausible.layer == plausible.layer.max()]
    shares = percent_span(last.single)
    return f"At the last layer {shares} of the tokens have one plausible entry: nothing to contrast"


def plausible_conclusion(
    plausible: pd.DataFrame, at_level: pd.DataFrame, first_layer: int, threshold: float
) -> str:
    """What the missing mass does to exits at a threshold."""
    at = plausible[plausible.layer == first_layer].set_index("task")
    layers = at_level.pivot(index="rule", columns="task", values="mean_exit_layer").mean(axis=1)
    bare = layers["weighted, without the mass"]
    looser = ": what looks fast is a looser threshold." if bare < layers["weighted"] else "."
    return (
        f"At layer {first_layer}, {task_span(at.single)} of the tokens have one plausible entry, and "
        f"{percent_span(at.wrong_single, '{:.1%}')} of these tokens are predicted wrongly. Without the mass "
        "of the plausible set their confidence is 1 by construction. At a threshold of "
        f"{threshold:g}, tokens exit at layer {bare:.2f} on average with the public code, and at layer "
        f"{layers['weighted']:.2f} with the mass{looser}"
    )
