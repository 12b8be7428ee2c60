"""The papers' figures for models of one's own, a call each; what is drawn comes from `mee_utils.analysis`.

`traces` is a `Trace`, or several, of models that are to be compared: a line each.
"""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from ..analysis import monotonicity
from ..analysis.comparison import comparison
from ..analysis.decisions import candidates
from ..traces.replay import replay_policy
from ..traces.trace import Trace, trace
from . import figures


def draw_settled(traces: Trace | Sequence[Trace]):
    """MEE's Figure 1: the share of tokens whose top-1 prediction is final after each layer."""
    rows = _rows(traces, lambda t, **of: monotonicity.curve(monotonicity.stable(t), t, "share", **of))
    draw = lambda axis, rows: figures.lines(axis, rows, "layer", "share", "model", figures.BAND)
    return _figure(rows.assign(of="all tokens"), draw, "of", ylabel="share of tokens whose\ntop-1 is final")


def draw_confidence(traces: Trace | Sequence[Trace]):
    """MEE's Figure 2: the probability of the final prediction at each layer, with its spread over tokens."""
    name, column = "confidence", "standard_deviation"
    rows = _rows(traces, lambda t, **of: monotonicity.curve(t.final_probability, t, name, **of))
    rows = rows.assign(low=rows[name] - rows[column], high=rows[name] + rows[column])
    draw = lambda axis, rows: figures.lines(axis, rows, "layer", name, "model", figures.BAND, clip=(0, 1))
    return _figure(rows, draw, "model", ylabel="probability of the\nfinal prediction")


def draw_predictions(traces: Trace | Sequence[Trace], model, percentiles: Sequence[int] = (10, 50, 90)):
    """MEE's Figure 3: what every layer finds most probable, for tokens that settle early and late.

    `model` has the tokenizer; traces of several models are to be along the same references.
    """
    decode, shares = monotonicity.token_text(model.tokenizer), tuple(percent / 100 for percent in percentiles)
    tokens = monotonicity.percentile_tokens(_listed(traces)[0], shares)
    grid = lambda t, of, at: monotonicity.predictions(t, tokens[at], decode, percentile=at, **of)
    grids = lambda t, **of: pd.concat(grid(t, of, percent) for percent in tokens)
    size = dict(width=10.5, height=1.75, sharey=False)
    return _figure(_rows(traces, grids), figures.predictions, "model", row="percentile", **size)


def draw_reliability(traces: Trace | Sequence[Trace], layers: Sequence[int] | None = None, bins: int = 10):
    """Accuracy by confidence at some layers; right is the reference, or else what the last layer predicts."""

    def binned(t: Trace, **of) -> pd.DataFrame:
        right = t.top1_id == (t.token_id if t.along == "reference" else t.final_id)[:, None]
        shown = layers or sorted({-(-t.layers // 3), -(-2 * t.layers // 3), t.layers})
        return monotonicity.reliability_bins(t, right, shown, bins, **of)

    def draw(axis, rows):
        axis.plot([0, 1], [0, 1], color=figures.GREY, dashes=(1, 1), label="perfectly calibrated")
        figures.lines(axis, rows, "confidence", "accuracy", "model")
        figures.dots(axis, rows, "confidence", "accuracy", "model", yband=figures.BAND, label=None)

    rows, labels = _rows(traces, binned), dict(xlabel="confidence (top-1 probability)", ylabel="accuracy")
    return _figure(rows[rows.tokens > 0], draw, "layer", **labels)


def draw_front(model, task, policies: Mapping[str, object], thresholds: int = 8, **settings):
    """Score by cost: every policy (name -> `ExitPolicy`), decoded at `thresholds` from strict to loose.

    `settings` are those of `generate`. The policies have to look at probabilities or similarities.
    """
    longest = settings.setdefault("max_new_tokens", 64)
    found = trace(model, task.inputs, max_new_tokens=longest)
    replays = {name: replay_policy(found, policy, model) for name, policy in policies.items()}
    levels = {name: candidates(replayed, thresholds, longest) for name, replayed in replays.items()}
    tried = {(name, at): policies[name].at_threshold(at) for name in levels for at in levels[name]}
    rows, _ = comparison(model, task, tried, ("rule", "threshold"), **settings)
    draw = lambda axis, rows: figures.lines(axis, rows, "flops_share", "score")
    labels = dict(xlabel="FLOPs (1: full depth)", ylabel=figures.label(task.metric))
    return _figure(rows, draw, "task", width=5, **labels)


def _listed(traces: Trace | Sequence[Trace]) -> list[Trace]:
    return [traces] if isinstance(traces, Trace) else list(traces)


def _rows(traces: Trace | Sequence[Trace], table: Callable) -> pd.DataFrame:
    return pd.concat([table(t, model=t.model) for t in _listed(traces)], ignore_index=True)


def _figure(rows: pd.DataFrame, draw: Callable, column: str, **options):
    """The figure, closed, so that a notebook shows it once."""
    import matplotlib.pyplot as plt

    figures.use_style()
    figure = figures.facets(rows, draw, column, **options)
    plt.close(figure)
    return figure
