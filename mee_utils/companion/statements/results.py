"""Statements on calibration, speed and published bugs, compared with what 08 measures.

Tables: `rates` (of broken guarantees, on fresh sets), `settings` (measured on test examples), `calibrated`,
`equal` (at equal loss), `answer` (timed), `published_times` (the published settings, timed) and `bugs`
(published bugs). Parameters: where exits begin, `sixth` (a sixth of the depth, as published) and `min_layer`
(layer 4, as in MEE's text).
"""

from collections.abc import Callable

import numpy as np

from ...analysis.statistics import Comparison, Estimate
from ..catalogue import CALM_RULES, MEE_RULES, SEVERAL_LAYERS
from ..statement import Rows, Statement, Timing, statement, statement_from_each_start


def cheapest(equal: Rows, *rules: str) -> Estimate:
    """What the cheapest of some rules spends at a loss of at most 5 %; full depth is always there.

    `Untestable` unless every rule has a setting as strict as that: the one that was not measured might be it.
    """
    shares = [equal.value("flops_share", rule=rule, wanted=0.05) for rule in rules]
    are_facts = shares[0].draws is None
    draws = None if are_facts else np.stack([share.draws for share in shares], axis=1)  # [resample, rule]
    several = Estimate(np.stack([share.value for share in shares]), draws)
    return several.over_items(lambda values, axis: np.minimum(values, 1.0).min(axis=axis))


@statement(
    "the guarantee holds",
    source="CALM, sections 3 and 4",
    quote=(
        "A calibrated threshold breaks its guarantee in at most a share eps of the cases, up to chance, for "
        "every rule."
    ),
    published="proved, 95 %",
    judged_by="loss",
    untested="no fresh examples of this task",
)
def the_guarantee_holds(results):
    tested = {"bound": lambda bound: bound != "no_test"}
    worst = results.rates.values("violated", **tested).max()
    least = results.rates.values("p_value", **tested).min()
    number = results.rates.count(**tested)
    ours = f"at worst {worst:.1%} of the sets (p = {least:.2g}, of {number} tests the smallest)"
    return ours, least * number > 0.05


@statement(
    "the oracle keeps the score",
    source="CALM, results",
    quote="Exiting where the prediction is final keeps the score (here: 99 % of it).",
    published="ROUGE-L 38.24 of 38.32",
    judged_by="score",
)
def the_oracle_keeps_the_score(results):
    retained = results.settings.value("retained", model="calm", rule="oracle")
    return f"keeps {retained:.1%}", retained >= 0.99


@statement(
    "the oracle takes a part of the depth",
    source="CALM, results",
    quote="Exiting where the prediction is final takes a small part of the depth (here: less than half).",
    published="1.53 of 8 layers",
    judged_by="exit layer",
)
def the_oracle_takes_a_part_of_the_depth(results):
    layer = results.settings.value("mean_exit_layer", model="calm", rule="oracle")
    last = results.settings.value("mean_exit_layer", model="calm", rule="full_depth")
    return f"layer {layer:.1f} of {last.value:.0f}", layer < 0.5 * last


@statement(
    "calibrated softmax saves layers",
    source="CALM, results",
    quote="With a consistency loss of at most 0.1 guaranteed, the margin exits well before the last layer.",
    published="5.73, 3.35, 1.65 of 8 layers",
    judged_by="exit layer",
)
def calibrated_softmax_saves_layers(results):
    margin = results.calibrated.value(
        "mean_exit_layer", rule="softmax_margin", kind="consistency", bound="hoeffding_bentkus", delta=0.1
    )
    last = results.settings.value("mean_exit_layer", model="calm", rule="full_depth")
    return f"layer {margin:.1f}", margin < 0.75 * last


@statement(
    "softmax costs least at equal loss",
    source="CALM, results",
    quote="The softmax measure reaches the same quality with fewer FLOPs than classifier and similarity.",
    published="figures",
    judged_by="FLOPs",
    untested="none measured",
)
def softmax_costs_least_at_equal_loss(results):
    margin = cheapest(results.equal, "softmax_margin")
    others = cheapest(results.equal, "linear", "hidden_similarity")
    return f"FLOPs {margin:.1%} against {others:.1%}", margin < others


@statement(
    "pruning is cheaper at equal loss",
    source="Not all FLOPs, title",
    quote="With pruning the margin reaches the same quality with fewer FLOPs.",
    published="announced",
    judged_by="FLOPs",
    untested="none measured",
)
def pruning_is_cheaper_at_equal_loss(results):
    pruned = cheapest(results.equal, "fixed")
    margin = cheapest(results.equal, "softmax_margin")
    return f"FLOPs {pruned:.1%} against {margin:.1%}", pruned < margin


@statement(
    "contrast is a Pareto improvement at equal loss",
    source="Not all FLOPs, introduction",
    quote="Contrast reaches the same quality with fewer FLOPs (both pruned).",
    published="claimed",
    judged_by="FLOPs",
    untested="none measured",
)
def contrast_is_a_pareto_improvement_at_equal_loss(results):
    contrast = cheapest(results.equal, "weighted_fixed", "jsd_fixed")
    plain = cheapest(results.equal, "fixed", "decaying")
    return f"FLOPs {contrast:.1%} against {plain:.1%}", contrast < plain


@statement(
    "MEE's measures are better at equal loss",
    source="MEE blog, section 3",
    quote="MEE's measures reach the same quality with fewer FLOPs than CALM's.",
    published="implied (at 0.9)",
    judged_by="FLOPs",
    untested="none measured",
)
def mees_measures_are_better_at_equal_loss(results):
    mee = cheapest(results.equal, *MEE_RULES)
    calm = cheapest(results.equal, *CALM_RULES, "linear")
    return f"FLOPs {mee:.1%} against {calm:.1%}", mee < calm


@statement(
    "several layers that keep quality are faster",
    source="MEE blog, open question 1",
    quote=(
        "The cheapest rule over several layers that reliably keeps 99 % of the score emits more tokens a "
        "second than full depth."
    ),
    published="open",
    judged_by="time",
    without_rows="none of the timed ones keeps 99 %",
)
def several_layers_that_keep_quality_are_faster(results):
    several = Timing.of(results.answer, rule=list(SEVERAL_LAYERS), batch=1)
    return f"the cheapest (batch 1): {several}", several.gain() > 0


@statement_from_each_start(
    "MEE is slower than full depth",
    source="MEE's published code, its runs (a table, not a sentence)",
    quote=("At 0.9 MEE's measures are mostly slower than full depth (here: tokens a second, {start})."),
    published="8.4 to 11.3 against 11.0 samples a second (SQuAD)",
    judged_by="time",
    untested="not timed",
)
def mee_is_slower(results, layer):
    published = {"rule": list(MEE_RULES), "threshold": 0.9, "min_layer": layer, "batch": 32}
    times = Timing.of(results.published_times, **published)
    return f"batch 32, of full depth: {times}", times.middle.gain() < 0


@statement(
    "FREE keeps the score",
    source="FREE (Bae et al. 2023)",
    quote="On FREE's own model the adaptive threshold keeps (here: 98 % of) the score.",
    published="claimed",
    judged_by="score",
    models=["free"],
    untested="not measured",
)
def free_keeps_the_score(results):
    retained = results.settings.value("retained", model="free", rule="free_adaptive")
    return f"keeps {retained:.1%}", retained >= 0.98


@statement(
    "FREE saves work",
    source="FREE (Bae et al. 2023)",
    quote="On FREE's own model the adaptive threshold saves work (here: FLOPs).",
    published="claimed",
    judged_by="FLOPs",
    models=["free"],
    untested="not measured",
)
def free_saves_work(results):
    flops = results.settings.value("flops_share", model="free", rule="free_adaptive")
    return f"FLOPs {flops:.1%} of full depth", flops < 1


def of_a_bug(
    claim: str,
    quote: str,
    published: str,
    holds: Callable[[Estimate], Comparison],
    paper: str = "Not all FLOPs",
    **measured: str | float,
) -> Statement:
    """What CALM keeps of the score with a bug of published code (`version` "published"), or without it."""

    @statement(
        claim,
        source=f"{paper}, code (not in the papers)",
        of_our_own=True,
        quote=quote,
        published=published,
        judged_by="score",
    )
    def what_is_kept(results):
        kept = results.bugs.value("retained", model="calm", **measured)
        return f"keeps {kept:.1%}", holds(kept)

    return what_is_kept


def of_depth_collapse(name: str, rule: str, published: str) -> tuple[Statement, Statement]:
    """Whether a rule keeps less than half of the score with the depth bug, and half or more without it."""
    common = {"published": published, "paper": "MEE", "bug": "depth collapse", "rule": rule, "batch": 32}
    with_it = of_a_bug(
        f"the depth collapse ruins {name}",
        "In a decoder with MEE's depth bug, exiting from layer 2 on in batches of 32, "
        f"{name} keeps less than half of the score.",
        version="published",
        holds=lambda kept: kept < 0.5,
        **common,
    )
    without = of_a_bug(
        f"without the collapse {name} stands",
        f"In a decoder without the depth bug, {name} keeps at least half of the score at the same settings.",
        version="correct",
        holds=lambda kept: kept >= 0.5,
        **common,
    )
    return with_it, without


OF_BUGS = (
    *of_depth_collapse("the margin", "softmax_margin", "CNN/DM ROUGE-1 12.88 of 43.75"),
    *of_depth_collapse("similarity", "hidden_similarity", "CNN/DM ROUGE-1 3.32 of 43.75"),
    of_a_bug(
        "zeros come from positions",
        "Positions in the kept list, emitted as if they were ids, leave less than a seventh of the score.",
        "0 (fixed pruning, six of nine rows)",
        lambda kept: kept < 1 / 7,
        bug="positions for ids",
        rule="fixed",
        version="published",
    ),
    of_a_bug(
        "ids keep the score",
        "Mapped back to ids, the tokens of a fixed list keep at least nine tenths of the score.",
        "0 (fixed pruning, six of nine rows)",
        lambda kept: kept > 0.9,
        bug="positions for ids",
        rule="fixed",
        version="correct",
    ),
    of_a_bug(
        "the sorted list costs the score",
        "A kept list sorted by id costs a tenth of the task score or more under decaying pruning.",
        "SAMSum 2.5 of 36.0, CNN/DM 2.05 of 25.0",
        lambda kept: kept < 0.9,
        bug="list sorted by id",
        rule="decaying",
        version="published",
    ),
    of_a_bug(
        "the list in order of score keeps it",
        "A kept list sorted by logit loses less than a tenth of the task score under decaying pruning.",
        "SAMSum 2.5 of 36.0, CNN/DM 2.05 of 25.0",
        lambda kept: kept > 0.9,
        bug="list sorted by id",
        rule="decaying",
        version="correct",
    ),
)
