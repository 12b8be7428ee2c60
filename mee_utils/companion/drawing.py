"""The papers' figures for traces of your own models, a call each.

    draw_settled(trace(model, task.inputs))

Several traces, of models that are to be compared, can be given as a list. What is drawn are tables of
`mee_utils.analysis`; each function returns the matplotlib figure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral

import pandas as pd

from ..analysis import monotonicity
from ..analysis.comparison import comparison
from ..analysis.threshold_choice import candidates
from ..common.errors import MeeError, check_whole, is_number
from ..exits.policy import ExitPolicy
from ..tasks.loading import Task
from ..traces.replay import replay_policy
from ..traces.trace import Trace
from ..traces.tracing import trace
from . import figures


def draw_settled(traces: Trace | Sequence[Trace]):
    """MEE's Figure 1: the share of tokens whose top-1 prediction is final after each layer."""
    table = _table(monotonicity.settled_by_layer, traces)
    figure, panels = _panels(table.assign(tokens="all tokens"), "tokens")
    for axis, rows in panels:
        figures.lines(axis, rows, "layer", "share", "model", figures.BAND)
        axis.set(ylabel="share of tokens whose\nprediction is final")
    return _closed(figure)


def draw_confidence(traces: Trace | Sequence[Trace]):
    """MEE's Figure 2: the probability of the final prediction at each layer, with its spread over tokens.

    A panel a model; the band is one standard deviation.
    """
    figure, panels = _panels(_table(monotonicity.confidence_by_layer, traces), "model")
    for axis, rows in panels:
        figures.lines(axis, rows, "layer", "confidence", "model", ("one_below", "one_above"), clip=(0, 1))
        axis.set(ylabel="probability of the\nfinal prediction")
    return _closed(figure)


def draw_predictions(traces: Trace | Sequence[Trace], model, percentiles: Sequence[int] = (10, 50, 90)):
    """MEE's Figure 3: the three most probable tokens of every layer, for tokens that settle early and late.

    A panel a percentile, in it three lines a model; darker cells are more probable.

    Args:
        traces: of several models along the same references, or of one model.
        model: has the tokenizer.
        percentiles: which tokens, in the order of the layer from which the first trace's prediction is final.
    """
    listed = list(percentiles) if isinstance(percentiles, Iterable) else []
    if not listed or not all(is_number(percent) and 0 <= percent <= 100 for percent in listed):
        raise MeeError(f"percentiles={_short(percentiles)}: give a list of numbers from 0 to 100.")
    if getattr(model, "tokenizer", None) is None:
        raise MeeError(f"model={_short(model)}: give the model of the traces, which has their tokenizer.")
    token_text = monotonicity.token_text(model.tokenizer)
    tokens = monotonicity.percentile_tokens(_listed(traces)[0], [percent / 100 for percent in percentiles])
    tables = [
        monotonicity.predictions(of_model, token, token_text, percentile=percent, model=of_model.model)
        for percent, token in tokens.items()
        for of_model in _listed(traces)
    ]
    table = pd.concat(tables, ignore_index=True)
    height = 0.7 + 1.2 * len(_listed(traces))
    figure, panels = _panels(table, "percentile", width=10.5, height=height, per_line=1, sharey=False)
    for axis, rows in panels:
        figures.predictions(axis, rows)
    panels[-1][0].set(xlabel="layer")
    return _closed(figure)


def draw_reliability(traces: Trace | Sequence[Trace], layers: Sequence[int] | None = None, bins: int = 10):
    """Accuracy by confidence at some layers, by default at a third, two thirds and the whole of the depth.

    A prediction is right if it is the reference's token; where no references were fed in, if it is the last
    layer's.
    """
    check_whole("bins", bins)

    def binned(trace: Trace, **labels) -> pd.DataFrame:
        truth = trace.token_id if trace.along == "reference" else trace.final_id
        depth = trace.layers
        thirds = sorted({-(-depth // 3), -(-2 * depth // 3), depth})  # rounded up: [4, 8, 12] of 12
        shown = thirds if layers is None else _checked_layers(layers, depth)
        return monotonicity.reliability_bins(trace, trace.top1_id == truth[:, None], shown, bins, **labels)

    table = _table(binned, traces)
    figure, panels = _panels(table[table.tokens > 0], "layer")
    for axis, rows in panels:
        axis.plot([0, 1], [0, 1], color=figures.GREY, lw=1, dashes=(1, 1), label="perfectly calibrated")
        figures.lines(axis, rows, "confidence", "accuracy", "model")
        figures.dots(axis, rows, "confidence", "accuracy", "model", yband=figures.BAND, label=None)
        axis.set(xlabel="confidence (top-1 probability)", ylabel="accuracy")
    return _closed(figure)


def draw_front(model, task, policies: Mapping[str, ExitPolicy], thresholds: int = 8, **settings):
    """Score against cost: every policy decoded at several thresholds, from strict to loose.

    Args:
        policies: name -> `ExitPolicy`; their measures must have thresholds to vary.
        thresholds: how many are tried for each policy.
        settings: those of `generate`.
    """
    check_whole("thresholds", thresholds, 2)
    _check_policies(policies)
    if not isinstance(task, Task):
        raise MeeError(f"task={_short(task)}: give a Task, from load_task; its references score outputs.")
    longest = settings.setdefault("max_new_tokens", 64)
    full_depth = trace(model, task.inputs, max_new_tokens=longest)
    tried = {}
    for name, policy in policies.items():
        replayed = replay_policy(full_depth, policy, model)
        for threshold in candidates(replayed, thresholds, longest):
            tried[name, threshold] = policy.at_threshold(threshold)
    table, _ = comparison(model, task, tried, ("rule", "threshold"), **settings)
    figure, panels = _panels(table.assign(task=task.name), "task", width=5)
    for axis, rows in panels:
        figures.lines(axis, rows, "flops_share", "score")
        axis.set(xlabel="decoder FLOPs (1: full depth)", ylabel=figures.label(task.metric))
    return _closed(figure)


def _check_policies(policies: object) -> None:
    """Names what should have been a mapping of names to policies."""
    example = 'a dict, name -> ExitPolicy, as in {"margin": ExitPolicy("softmax_margin", threshold=0.9)}'
    if not isinstance(policies, Mapping) or not policies:
        raise MeeError(f"policies is {_short(policies)}: give {example}.")
    for name, policy in policies.items():
        if not isinstance(policy, ExitPolicy):
            raise MeeError(f'policies["{name}"] is {_short(policy)}: give {example}.')
        if policy.schedule.online or not policy.measure.has_threshold:
            none = f'policies["{name}"]: "{policy.measure.name}" has no threshold to vary'
            raise MeeError(f"{none}: give a measure with one, and a number as its threshold.")


def _short(value: object) -> str:
    """A value for an error message: its text, or its type where that is long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"


def _listed(traces: Trace | Iterable[Trace]) -> list[Trace]:
    """One trace or several as a list."""
    listed = [traces] if isinstance(traces, Trace) or not isinstance(traces, Iterable) else list(traces)
    for value in listed:
        if not isinstance(value, Trace):
            raise MeeError(
                f"traces holds {_short(value)}: give what `trace(model, inputs)` returns, or several."
            )
    if not listed:
        raise MeeError("traces is empty: give at least one, as `trace(model, inputs)` returns it.")
    return listed


def _checked_layers(layers: Sequence[int], depth: int) -> list[int]:
    listed = list(layers) if isinstance(layers, Iterable) else []
    whole = all(isinstance(layer, Integral) and not isinstance(layer, bool) for layer in listed)
    if not listed or not whole or not all(1 <= layer <= depth for layer in listed):
        raise MeeError(f"layers={_short(layers)}: give a list of layers; the model has layers 1 to {depth}.")
    return listed


def _table(function: Callable[..., pd.DataFrame], traces: Trace | Sequence[Trace]) -> pd.DataFrame:
    """What a function of a trace returns for each of the traces, with the name of the model."""
    return pd.concat([function(one, model=one.model) for one in _listed(traces)], ignore_index=True)


def _panels(table: pd.DataFrame, column: str, **options):
    """`figures.panels` in the style of the notebooks."""
    figures.use_style()
    return figures.panels(table, column, **options)


def _closed(figure):
    """A figure with its legend, closed, so that a notebook shows it once."""
    import matplotlib.pyplot as plt

    figures.finish(figure)
    plt.close(figure)
    return figure
