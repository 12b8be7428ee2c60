"""What the papers' figures of user-defined models refuse; what they draw is tested in test_explorer."""

import matplotlib
import pytest

from mee_utils import ExitPolicy, MeeError, trace
from mee_utils.companion.drawing import (
    draw_confidence,
    draw_front,
    draw_predictions,
    draw_reliability,
    draw_settled,
)
from mee_utils.exits.measures import find_measure

matplotlib.use("Agg")

POLICY = ExitPolicy("softmax_margin", threshold=0.9)


@pytest.mark.parametrize(
    "policies",
    [
        POLICY,
        [POLICY],
        {},
        None,
        "softmax_margin",
        {"margin": None},
        {"margin": "softmax_margin"},
        {"margin": find_measure("softmax_margin")},
    ],
    ids=repr,
)
def test_a_front_needs_named_policies(policies):
    with pytest.raises(MeeError, match=r'give a dict, name -> ExitPolicy, as in {"margin"') as error:
        draw_front(None, None, policies)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize("thresholds", [0, 1, -3, 2.5, "8", None, True])
def test_a_front_needs_at_least_two_thresholds(thresholds):
    with pytest.raises(MeeError, match="thresholds="):
        draw_front(None, None, {"margin": POLICY}, thresholds)


@pytest.mark.parametrize(
    "policy",
    [
        ExitPolicy("static", min_layer=4),
        ExitPolicy("oracle"),
        ExitPolicy("max_probability", threshold="adaptive", propagation="parallel", exit_layers=[4]),
    ],
    ids=lambda policy: policy.measure.name,
)
def test_a_front_needs_thresholds_that_can_vary(policy):
    with pytest.raises(
        MeeError, match=rf'policies\["mine"\].*{policy.measure.name}.*has no threshold to vary'
    ):
        draw_front(None, None, {"mine": policy})


@pytest.mark.parametrize("draw", [draw_settled, draw_confidence, draw_reliability])
@pytest.mark.parametrize("traces", [None, [], "calm", [None], {}], ids=repr)
def test_figures_need_traces(draw, traces):
    with pytest.raises(MeeError, match=r"traces (holds|is empty)"):
        draw(traces)


@pytest.mark.parametrize(
    "percentiles", [(150,), (-1,), (10, 101), (float("nan"),), "50", ("50",), 50, None, (), (True,)]
)
def test_percentiles_are_from_0_to_100(percentiles):
    with pytest.raises(MeeError, match=r"percentiles=.*0 to 100"):
        draw_predictions(None, None, percentiles)


@pytest.mark.parametrize("task", [None, "translation", ["a text"]], ids=repr)
def test_a_front_needs_a_task(task):
    """Before, the model was looked at first, and a list of texts ended in an AttributeError."""
    with pytest.raises(MeeError, match=r"task=.*: give a Task, from load_task; its references score outputs"):
        draw_front(None, task, {"margin": POLICY})


@pytest.mark.parametrize("layers", [[], [0], [5], [2.5], ["2"], [True], "2", 2], ids=repr)
def test_reliability_is_drawn_at_layers_that_there_are(t5, layers):
    traced = trace(t5, ["four"], max_new_tokens=2)
    with pytest.raises(MeeError, match=r"layers=.*: give a list of layers; the model has layers 1 to 4"):
        draw_reliability(traced, layers=layers)


@pytest.mark.parametrize("bins", [0, -1, 2.5, "10"])
def test_bins_are_counted(bins):
    with pytest.raises(MeeError, match="bins="):
        draw_reliability(None, bins=bins)


def test_predictions_need_a_tokenizer():
    with pytest.raises(MeeError, match="model=None: give the model of the traces"):
        draw_predictions(None, None)
