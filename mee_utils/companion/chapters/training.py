"""Appendix 90: how the mini models learned, and what each part of the recipe is worth."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from .. import figures
from ..prose import listed, span
from .wording import capitalized, some

ALOUD = "in a sentence"
SILENT = "in one word"
CLEARLY_LOWER = 0.05  # of a cross-entropy: a smaller fall is no improvement worth a sentence
SAME = 0.02  # nats: layers that differ by less are not out of order
CONVERGED = 0.5  # of the first gap between the first layer and the last: with less at the end they converge
UNSPOKEN = "bare_value"  # the ablation that saw no answers in a sentence

LESSONS = """On synthetic data, base went through lessons before the tasks. A lesson has several questions
about one context, all with one kind of *hop*, a step from fact to fact (who lives where, facts of one kind
and of several, relations, who lives in a city, who owns more). Answers spell out their intermediate steps.
This, too, is meant to make models this small learn quickly."""
DIFFICULTY = """## What was learned, by difficulty

At full depth, which *kinds* of token (those of 00) does vanilla get right? References are fed in, so that
every token is predicted from the right words before it."""
FORMS = """## With and without intermediate steps

Exact match on whole answers, by the form of the question, on all held-out questions (as `make train` measured
it). In a sentence, each hop can build on tokens already written. For the bare value all hops must happen
within one token, layer by layer. **Expectation:** two facts, a count or a comparison are harder without
intermediate steps."""
ABLATIONS = """## Ablations

What is each part of the recipe worth? Short training runs with fewer layers, each changing one part of it,
all on about the same number of tokens. *Flat start*: all heads begin as T5 draws them. *Slow table*: position
biases learn at a tenth of their rate. *One rate*: queries, embedding, position biases and norms learn at the
rate of all other matrices. *Adam*: in place of Muon, at the best rate we found for it. *One question*: one
question per context in the lessons. *No curriculum*: questions alone, from the start. *Bare value*: no
intermediate step is ever written out. Each bar is a single run, and the runs are far shorter than those of
the models: a part of the recipe that makes no difference here may still matter there."""


def curves_figure(curves: pd.DataFrame, note: str = ""):
    """Held-out cross-entropy of six layers while each model is trained, a panel a model."""
    return figures.facets(
        curves,
        _draw_curves,
        "model",
        layers=int(curves.layer.max()),
        per_line=3,
        xlabel="training step",
        ylabel="cross-entropy\n(nats per token)",
        width=3.2,
        height=2.4,
        sharex=False,
        message=curves_message(curves),
        note=note,
    )


def _draw_curves(axis, rows: pd.DataFrame, layers: int) -> None:
    shown = rows[rows.layer.isin(np.linspace(1, layers, 6).round())]
    figures.lines(axis, shown, "step", "cross_entropy", "layer", styles=figures.layer_styles(layers))
    axis.set_yscale("log")
    decades = np.log10(shown.cross_entropy.max() / shown.cross_entropy.min())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6) if decades < 1.5 else (1,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def first_points(curves: pd.DataFrame) -> pd.DataFrame:
    """The cross-entropy `[model, layer]` at the first step that is drawn."""
    first = curves[curves.step == curves.groupby("model").step.transform("min")]
    return first.pivot(index="model", columns="layer", values="cross_entropy")


def last_points(curves: pd.DataFrame) -> pd.DataFrame:
    """The cross-entropy `[model, layer]` at the last step."""
    last = curves[curves.step == curves.groupby("model").step.transform("max")]
    return last.pivot(index="model", columns="layer", values="cross_entropy")


def curves_message(curves: pd.DataFrame) -> str:
    """How far the first layer is from the last at the end, under CALM and vanilla."""
    last = last_points(curves)
    names = [name for name in ("calm", "vanilla") if name in last.index]
    ends = [f"{last.loc[name, 1]:.2f} nats under {figures.label(name)}" for name in names]
    if not ends:
        return ""
    if names[0] == "calm" and _converges(curves, "calm"):
        against = f", against {last.loc['vanilla', 1]:.2f} under vanilla" if len(names) > 1 else ""
        return (
            "CALM's objective pulls all layers towards the last: layer 1 ends at "
            f"{last.loc['calm', 1]:.2f} nats{against}"
        )
    return f"The first layer ends at {listed(ends)}"


def _converges(curves: pd.DataFrame, model: str) -> bool:
    """Whether training closes most of the gap between the first layer of a model and its last."""
    gaps = [points.loc[model].iloc[0] - points.loc[model].iloc[-1] for points in _ends(curves)]
    return bool(gaps[1] < CONVERGED * gaps[0])


def _ends(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    return first_points(curves), last_points(curves)


def curves_conclusion(curves: pd.DataFrame) -> str:
    """The last layer of the models at the end."""
    last = last_points(curves).iloc[:, -1]
    trained = last.drop(index="pretrained", errors="ignore")
    text = f"At the last layer all models trained on the tasks end at {span(trained)} nats per token"
    if "pretrained" in last.index:
        text += f"; the model that is only pre-trained ends at {last['pretrained']:.2f}"
    return f"{_improving_layers(curves)}{text}."


def _improving_layers(curves: pd.DataFrame) -> str:
    """Which layers end with a clearly lower cross-entropy than they began with, and what was expected."""
    before, after = _ends(curves)
    better = after <= (1 - CLEARLY_LOWER) * before  # [model, layer]
    models = [name for name in ("calm", "vanilla") if name in better.index]
    parts = [f"in {_layers_named(better.loc[name])} under {figures.label(name)}" for name in models]
    if not parts:
        return ""
    fall = f"The cross-entropy falls by {CLEARLY_LOWER:.0%} or more {listed(parts)}. "
    return fall + _as_expected(curves, better) if len(models) == 2 else fall


def _as_expected(curves: pd.DataFrame, better: pd.DataFrame) -> str:
    """Which half of the expectation holds: that CALM's layers converge, and vanilla's last ones improve."""
    before, after = _ends(curves)
    first_gap, last_gap = (
        points.loc["calm"].iloc[0] - points.loc["calm"].iloc[-1] for points in (before, after)
    )
    in_order = after.loc["calm"].diff().max() < SAME
    gap = f"(the gap between the first and the last goes from {first_gap:.2f} to {last_gap:.2f} nats)"
    calm = _converges(curves, "calm")
    order = ", in order of depth" if in_order else ", though not strictly in order of depth"
    texts = [f"CALM's layers {'converge' + order if calm else 'do not converge'} {gap}"]
    vanilla = _only_last(better.loc["vanilla"])
    improve = "only the last ones improve" if vanilla else "not only the last ones improve"
    if not better.loc["vanilla"].any():
        improve = "no layer improves by that much"
    texts.append(f"under vanilla {improve}")
    holds = {(True, True): "As expected, ", (False, False): "Against the expectation, "}
    start = holds.get((calm, vanilla), "Half as expected: ")
    return f"{start}{', and '.join(texts)}. "


def _only_last(better: pd.Series) -> bool:
    """Whether the layers that are better, of a row [layer], are the last ones and not all of them."""
    return bool(better.iloc[-1] and better.is_monotonic_increasing and not better.all())


def _layers_named(better: pd.Series) -> str:
    """The layers of a row [layer] that are better, in words: "every layer", "layers 10 to 12 only"."""
    number = int(better.sum())
    if number in (0, len(better)):
        return "every layer" if number else "no layer"
    if better.iloc[:-1].all():
        return "every layer but the last"
    if not _only_last(better):
        return f"{number} of {len(better)} layers"
    first, last = better.index[better][[0, -1]]
    return f"layer {last} only" if first == last else f"layers {first} to {last} only"


def difficulty_conclusion(accuracy: pd.DataFrame, model: str = "vanilla") -> str:
    """The kinds of tokens that a model gets wrong most often at full depth."""
    rows = accuracy[accuracy.model == model].sort_values("accuracy", kind="stable")
    if rows.empty:
        return ""
    parts = [
        f'"{figures.label(row.difficulty)}" ({row.accuracy:.1%} right)' for row in rows.head(3).itertuples()
    ]
    others = rows.accuracy.iloc[3:].min()
    hardest = f"The hardest kinds of tokens for {figures.label(model)} are {listed(parts)}"
    return f"{hardest}; of every other kind at least {others:.1%} are right."


def forms_figure(forms: pd.DataFrame, note: str = ""):
    """Exact match by the form of the question, with and without intermediate steps, a line a model."""
    shown = forms[forms.model.isin(["vanilla", "calm", "free", "late_weighted"])]
    return figures.facets(
        shown,
        figures.grouped_bars,
        "answer",
        x="kind",
        y="exact_match",
        xlabel="form of the question",
        ylabel="exact match (%)",
        width=5.2,
        height=2.8,
        message=forms_message(forms),
        note=note,
    )


def forms_message(forms: pd.DataFrame) -> str:
    """What answers lose without intermediate steps."""
    vanilla = forms[forms.model == "vanilla"]
    if not {ALOUD, SILENT} <= set(vanilla.answer):
        return ""
    worst = vanilla.loc[vanilla.groupby("answer").exact_match.idxmin()].set_index("answer")
    texts = {
        answer: f"{worst.exact_match[answer]:.0f}% ({figures.label(worst.kind[answer])})"
        for answer in worst.index
    }
    return (
        f"On its worst kind of question, vanilla gets {texts[ALOUD]} right in full sentences and "
        f"{texts[SILENT]} in one-word answers"
    )


def forms_conclusion(forms: pd.DataFrame) -> str:
    """What vanilla answers in one word, by the form of the question."""
    silent = forms[(forms.model == "vanilla") & (forms.answer == SILENT)].sort_values("exact_match")
    if silent.empty:
        return ""
    texts = [f'"{figures.label(row.kind)}" ({row.exact_match:.0f}%)' for row in silent[::-1].itertuples()]
    between = f"; between them lie {listed(texts[1:-1])}" if len(texts) > 2 else ""
    return (
        f"Within one token, without intermediate steps, vanilla is right most often on {texts[0]}, and least "
        f"often on {texts[-1]}{between}."
    )


def ablations_figure(runs: pd.DataFrame, note: str = ""):
    """The share of questions that each short run answers right."""
    return figures.facets(
        runs,
        figures.bars,
        "answer",
        x="share",
        by="run",
        band=figures.BAND,
        other=figures.BLUE,
        xlabel="share of questions answered right",
        sharey=False,
        width=4.4,
        message=ablations_message(runs),
        note=note,
    )


def ablations_message(runs: pd.DataFrame) -> str:
    """The changes of the recipe with which clearly fewer questions are answered right, and how answered."""
    parts = []
    for how, rows in runs.groupby("answer", sort=False):
        shares = rows.set_index("run")
        if how == ALOUD:  # which `UNSPOKEN` was never shown
            shares = shares.drop(index=UNSPOKEN, errors="ignore")
        if "recipe" in shares.index:
            worse = shares.index[shares.high < shares.low["recipe"]]
            parts += [f"{figures.label(run)} ({how})" for run in worse]
    if not parts:
        return "No change of the recipe clearly costs right answers"
    return f"The recipe gets clearly more answers right than {listed(parts)}"


def ablations_conclusion(share: pd.Series, p: pd.Series) -> str:
    """Which parts of the recipe make a clear difference.

    Args:
        share: of the questions answered right, by run.
        p: of a test against the recipe, by run.
    """
    clear = [f"{figures.label(run)} ({share[run]:.0%}, p = {p[run]:.2g})" for run in p.index[p < 0.05]]
    others = p[p >= 0.05]
    rest = f"; the smallest p of the others is {others.min():.2g}" if len(others) else ""
    differ = f"{capitalized(listed(clear))} {'differs' if len(clear) == 1 else 'differ'}"
    return (
        f"With full-sentence answers, the recipe gets {share['recipe']:.0%} right. "
        f"{differ if clear else 'No other run differs'} clearly from that (Fisher's test){rest}."
    )


def unspoken_conclusion(runs: pd.DataFrame) -> str:
    """What the run answers that was never shown an answer in a sentence."""
    shares = runs[runs.answer == SILENT].set_index("run").share
    if UNSPOKEN not in shares.index:
        return ""
    text = (
        f'The run "{figures.label(UNSPOKEN)}", which never saw an answer in a sentence, gets '
        f"{some(shares[UNSPOKEN])} of the one-word questions right"
    )
    if "recipe" not in shares.index or shares["recipe"] <= shares[UNSPOKEN]:
        return f"{text}."
    return (
        f"{text}, the recipe {some(shares['recipe'])}: so short a run learns best from answers that spell "
        "out each step."
    )
