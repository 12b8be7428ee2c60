"""Individual tokens: what every layer predicts of one (figure 3), and of how many confidence never falls."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from ... import figures
from ...drawing import predictions_figure
from ...prose import listed, on_tasks, span
from ..wording import capitalized, percent_span

PAPER_MODELS = ("vanilla", "calm", "free")
KINDS = {"strictly rising": "rises at\nevery layer", "never falling": "never falls"}


def token_figure(predicted: pd.DataFrame, task: str, sentence: str = "", note: str = ""):
    """MEE's Figure 3: the three most probable tokens of every layer of each model, for one token.

    Args:
        predicted: as `monotonicity.predictions` returns it, of several models.
        task: that the token is from.
        sentence: the token in its sentence, where it may be shown.
        note: as in `figures.facets`.
    """
    return predictions_figure(
        predicted, per_line=1, message=token_message(predicted, task, sentence), note=note
    )


def token_message(predicted: pd.DataFrame, task: str, sentence: str = "") -> str:
    """From which layer on each model predicts the token that it ends with."""
    top = predicted[(predicted["rank"] == 1) & (predicted.layer == predicted.layer.max())]
    ends = pd.DataFrame({"layer": final_layers(predicted), "token": top.set_index("model").token})
    parts = []
    token_before = ""
    for (layer, token), rows in ends.groupby(["layer", "token"], sort=False):
        verb = "" if parts else " is final"
        subject = "" if token == token_before else f'"{token.removeprefix("_")}"{verb} '
        parts.append(f"{subject}from layer {layer} on in {listed(map(figures.label, rows.index))}")
        token_before = token
    *others, last = parts
    text = f"{', '.join(others)}, and {last}" if others else last
    where = capitalized(figures.label(task))
    if sentence:
        where += f', "{sentence}"'
    return f"{where}: {text}".replace("$", r"\$")  # else it begins a formula


def final_layers(predicted: pd.DataFrame) -> pd.Series:
    """By model: the layer from which on its first choice is the last layer's."""
    layers = {}
    for name, rows in predicted[predicted["rank"] == 1].groupby("model", sort=False):
        ordered = rows.sort_values("layer")
        other = ordered[ordered.token != ordered.token.iloc[-1]]
        layers[name] = 1 if other.empty else other.layer.max() + 1
    return pd.Series(layers, dtype=int)


def tokens_conclusion(predicted: pd.DataFrame) -> str:
    """Which models keep what their first layer predicts of a token, and which abandon it."""
    top = predicted[predicted["rank"] == 1]
    first = top[top.layer == 1].set_index("model")
    final = top[top.layer == top.layer.max()].set_index("model").token
    same = first.token == final[first.index]
    throughout = final_layers(predicted)[first.index] == 1
    abandoned = first[~same]
    doings = {  # what models do to that choice -> which models
        "keep {choice} throughout": first.index[throughout],
        "abandon {choice} and return to it": first.index[same & ~throughout],
        "permanently abandon {choice}": abandoned.index,
    }
    parts = []
    for doing, models in doings.items():
        if len(models):
            choice = "it" if parts else "layer 1's first choice"
            parts.append(_what_models_do(models, doing.format(choice=choice), len(first)))
    return f"In the last figure, {'; '.join(parts)}{_whatever(abandoned.probability)}."


def _what_models_do(models: Sequence[str], doing: str, number: int) -> str:
    """What some of a number of models do: "CALM and FREE keep it", "CALM abandons it and returns to it"."""
    if len(models) == 1:
        doing = re.sub(r"\b(keep|abandon|return)\b", r"\1s", doing)
    names = "all models" if len(models) == number > 1 else listed(map(figures.label, models))
    return f"{names} {doing}"


def _whatever(probability: pd.Series) -> str:
    """How probable the choices are that are abandoned."""
    if probability.empty:
        return ""
    if probability.max() > 0.5 > probability.min():
        return f", whatever its probability there ({span(probability)})"
    return f" (probability {span(probability)} there)"


def monotonic_figure(strict: pd.DataFrame, note: str = ""):
    """The share of tokens whose confidence rises at every layer, and of those of which it never falls."""
    shown = strict[strict.after_layer == 0]
    return figures.facets(
        shown.assign(span=shown.kind.map(KINDS)),
        figures.grouped_bars,
        x="span",
        y="share",
        ylabel="share of tokens",
        message=monotonic_message(strict),
        note=note,
    )


def most_monotonic(strict: pd.DataFrame, kind: str) -> pd.Series:
    """By task: the model with the largest share of tokens of a kind, from layer 1 on."""
    rows = strict[(strict.after_layer == 0) & (strict.kind == kind)]
    largest = rows.loc[rows.groupby("task", sort=False).share.idxmax()]
    return largest.set_index("task").model


def monotonic_message(strict: pd.DataFrame) -> str:
    """Which model has the most tokens whose confidence never falls, by task."""
    first = most_monotonic(strict, "never falling")
    tasks = list(strict.task.unique())
    parts = []
    for name, rows in first.groupby(first, sort=False):
        has = "" if parts else " has the most tokens whose confidence never falls"
        comma = "" if parts else ","
        parts.append(f"{on_tasks(rows.index, tasks)}{comma} {figures.label(name)}{has}")
    return capitalized("; ".join(parts))


def monotonic_conclusion(strict: pd.DataFrame) -> str:
    """Whether monotonicity "holds best for CALM", token by token."""
    if not {"calm", "vanilla"} <= set(strict.model):
        return ""
    rows = strict[(strict.after_layer == 0) & (strict.kind == "never falling")]
    share = rows.pivot(index="task", columns="model", values="share")
    start = {name: percent_span(part.start) for name, part in rows.groupby("model")}
    tasks = list(strict.task.unique())
    first = most_monotonic(strict, "never falling")
    best = on_tasks(first[first == "calm"].index, tasks)
    won = share.index[share.calm > share.vanilla]
    return (
        "MEE concludes from mean confidence that monotonicity holds best for CALM. Token by token, "
        f"confidence never falls for {percent_span(share.calm)} of CALM's tokens and "
        f"{percent_span(share.vanilla)} of vanilla's: CALM has the largest share of all models {best}, and a "
        f"larger one than vanilla {on_tasks(won, tasks)}. Vanilla's confidence has more room to rise: its "
        f"mean at layer 1 is {start['vanilla']}, CALM's {start['calm']}."
    )
