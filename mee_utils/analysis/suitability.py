"""Is early exiting worth it for a model? Answered from one full-depth trace of its own outputs.

The trace says from which layer on each prediction is final, and so what exits could save at best (the
oracle). Rules that need no training are replayed on it. A *loss* is the share of tokens at whose exit another
token is predicted than at full depth. Rules, the layers at which they decide, and thresholds are chosen on
the second half of the examples and reported on the first: the winner of many settings owes a part of its lead
to luck.

Speeds are simulated: at batch size 1 time goes by the weights that are read, which FLOPs count. They are
those of the decoder alone, at its own shape. A replay does not see that a wrong token changes those after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from ..common.errors import MeeError, check_number, check_whole
from ..decoding.inputs import changed_search_settings, check_inputs
from ..decoding.planning import DEFAULT_TOP_K
from ..decoding.ranking import LAYER_STEP, best_setting
from ..decoding.step_costs import StepCosts
from ..exits.policy import ExitPolicy
from ..models.any_model import AnyModel
from ..models.loading import Model
from ..tasks.loading import shortened_texts
from ..traces.drafts import as_planned, cost_of_drafts, drafts_of
from ..traces.replay import PolicyReplay, bind_to_trace, replay_policies, replay_policy
from ..traces.trace import Trace
from ..traces.tracing import trace
from .comparison import replayed_row
from .monotonicity import stable
from .replayed_flops import full_depth_flops, replayed_estimates, replayed_flops
from .statistics import Estimate, by_layer, columns_of, estimates, interval, mean_interval
from .threshold_choice import at_exits, exit_values, thresholds_for

LOSSES = (0.01, 0.05)  # shares of the tokens that may be others
LEAST_EXAMPLES = 8  # one half chooses, the other reports
QUANTILES = 100  # of the confidences, tried as thresholds
# Simulated speed from which on exits are worth a try, full depth being 1: of what is simulated about half is
# measured (`make bench`), and 1.05 is the least that counts as faster.
WORTH_TRYING = 1.1
NO_HEADROOM = 0.9  # FLOPs of the oracle above which no rule can save anything to speak of
FIXED_LAYER = "fixed layer"
UNTRAINED = {  # rule -> its measure
    "softmax margin (CALM)": "softmax_margin",
    "max probability": "max_probability",
    "hidden similarity (CALM)": "hidden_similarity",
    "rising top-1 (MEE)": "rising_top1",
    "patience (PABEE)": "patience",
}


@dataclass(frozen=True, repr=False)
class Suitability:
    """What a trace says about exits in a model; intervals are over examples.

    Attributes:
        model: its name.
        layers: depth L of its decoder.
        examples, tokens: how many were traced.
        settled: a row a layer: `share` of the tokens whose prediction is final there, with interval.
        oracle: one row: `mean_exit_layer` and `flops_share` of exits as soon as the prediction is final.
        rules: a row a rule and `wanted` loss: `decides` at which layers, `threshold`, `chosen_flops_share` on
            the examples used to choose the threshold; on the rest `same_token`, `changed_outputs`,
            `mean_exit_layer`, `flops_share`, `speed`.
        drafts: one row, of exits that the last layer verifies: `rule`, `decides`, `threshold`, `max_draft`,
            `acceptance`, `tokens_a_round`, `speed`, and `chosen_speed` on the examples used to choose them.
        cut, longest: how many inputs were cut, and to how many tokens.
        not_used: settings stored with the model that change greedy search, "name=value".
    """

    model: str
    layers: int
    examples: int
    tokens: int
    settled: pd.DataFrame
    oracle: pd.DataFrame
    rules: pd.DataFrame
    drafts: pd.DataFrame
    cut: int = 0
    longest: int | None = None
    not_used: tuple[str, ...] = ()

    def best(self, loss: float) -> pd.DataFrame:
        """The row of the rule that was cheapest on the examples that chose, at one of the wanted losses."""
        rows = self.rules[self.rules.wanted == loss]
        return rows.loc[[rows.chosen_flops_share.idxmin()]]

    @property
    def verdict(self) -> str:
        """Two or three sentences on whether exits are worth it, computed from the tables."""
        best_rules = []
        for loss in sorted(self.rules.wanted.unique()):
            best = self.best(loss)
            changed = f"{best.changed_outputs.item():.0%} of the outputs change"
            share = only(best, "flops_share")
            best_rules.append(f"{share:.0%} at a loss of {loss:.0%} ({best.rule.item()}; {changed})")
        oracle = only(self.oracle, "flops_share")
        drafts = only(self.drafts, "speed")
        return (
            f"**{self._answer}** Exits at the right layers (an oracle's) would need {oracle:.0%} of the "
            "decoder's FLOPs; of the rules without training the cheapest needs "
            f"{' and '.join(best_rules)}. Drafts that the last layer verifies keep the output as it is and "
            f"are, simulated, {drafts:.2f} times as fast as full depth."
        )

    @property
    def _answer(self) -> str:
        """The verdict in one clause: the best offer that is certain (by the bound of a 95 % interval)."""
        if only(self.drafts, "speed").low >= WORTH_TRYING:
            return "Worth trying, without any loss: verified exits."
        for loss in sorted(self.rules.wanted.unique()):
            if only(self.best(loss), "speed").low >= WORTH_TRYING:
                return f"Worth trying if {loss:.0%} of the tokens may change; without loss it is not."
        if only(self.oracle, "flops_share").low > NO_HEADROOM:
            return "Not worth it: predictions are final too late for any exit rule."
        return "Not worth it as the model is: predictions are final early, but no rule tried here sees when."

    def __repr__(self) -> str:
        return f'Suitability("{self.model}", {self.examples} examples): {self.verdict}'


def only(table: pd.DataFrame, column: str) -> Estimate:
    """The estimate in the one row of a table."""
    return estimates(table, column).item(0)


def suitability(
    model: Model | AnyModel,
    inputs: Sequence[str],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
) -> Suitability:
    """Traces a model on some inputs and says whether early exits are worth it there.

    Args:
        model: from `load_model` or `load_any_model`, or an `AnyModel`.
        inputs: prompts, at least `LEAST_EXAMPLES`; a few hundred for narrow intervals.
        max_new_tokens, batch_size: as in `trace`.
        max_source_tokens: longer inputs are cut to this many tokens, by default the model's context (its
            output included, if it is causal). A T5 has no limit.

    Raises:
        MeeError: too few inputs, and as `trace` does.
    """
    texts = check_inputs(inputs)
    _check_examples(len(texts))
    longest = _longest_input(model, max_new_tokens, max_source_tokens)
    given = texts
    if longest is not None:
        texts = shortened_texts(given, model.tokenizer, longest)
        if not all(text.strip() for text in texts):
            advice = "raise max_source_tokens, or lower max_new_tokens"
            raise MeeError(f"Inputs of at most {longest} tokens leave no text of some: {advice}.")
    cut = sum(text != whole for text, whole in zip(texts, given, strict=True))
    # corpora are often sorted: halves should be alike
    texts = [texts[number] for number in np.random.default_rng(0).permutation(len(texts))]
    settings = {"max_new_tokens": max_new_tokens, "batch_size": batch_size}
    if not isinstance(model, Model):
        not_used = tuple(changed_search_settings(model.network))
        result = suitability_of(trace(model, texts, **settings))
        return replace(result, cut=cut, longest=longest, not_used=not_used)
    with tempfile.TemporaryDirectory(prefix="mee-") as folder:
        # pruned rules look at states
        traced = trace(model, texts, states=Path(folder) / "states.npy", **settings)
        return replace(suitability_of(traced, model), cut=cut, longest=longest)


def _longest_input(model: Model | AnyModel, max_new_tokens: int, max_source_tokens: int | None) -> int | None:
    """To how many tokens inputs are cut; None: they are not."""
    check_whole("max_new_tokens", max_new_tokens)
    if max_source_tokens is not None:
        return check_whole("max_source_tokens", max_source_tokens)
    positions = getattr(model, "source_positions", None)
    if positions is None:
        return None
    # the last token of an output is never fed back
    longest = positions - max_new_tokens + 1 if model.causal else positions
    return longest if longest > 0 else None  # `trace` says that there is no room at all


def suitability_of(
    traced: Trace, model: Model | None = None, losses: Sequence[float] = LOSSES
) -> Suitability:
    """The same from a trace of the model's own outputs; a `model` and its states add a pruned rule.

    The halves are the first and the last inputs of the trace: shuffle inputs that are sorted.

    Args:
        traced: of any model, along its own greedy output.
        model: what was traced; only for a trace with states.
        losses: the losses that rules are reported at.

    Raises:
        MeeError: too few examples, a trace along references, a decoder of one layer, a loss outside 0..1.
    """
    examples = len(traced.source_tokens)
    _check_examples(examples)
    traced.check_own(examples)
    if traced.layers < 2:
        raise MeeError(f"{traced.model} has one decoder layer: there is none to exit at.")
    for loss in losses:
        check_number("loss", loss, 0, 1)
    rules = []
    drafts = []
    tried = _policies(traced, with_states=model is not None)
    for rule, policies in tqdm(tried.items(), desc="rules", delay=5, disable=None):
        replays = list(replay_policies(traced, dict(enumerate(policies)), model).values())
        rules += _at_losses(rule, losses, replays)
        drafts.append(_best_drafts(rule, replays))
    expected = [row["chosen_speed"] for row in drafts]
    oracle = replay_policy(traced, ExitPolicy("oracle"))
    return Suitability(
        model=traced.model,
        layers=traced.layers,
        examples=examples,
        tokens=len(traced),
        settled=by_layer(stable(traced), traced.sequence, "share"),
        oracle=pd.DataFrame([replayed_row(oracle)]),
        rules=pd.DataFrame(rules),
        drafts=pd.DataFrame([drafts[int(np.argmax(expected))]]),
    )


def _check_examples(count: int) -> None:
    if count < LEAST_EXAMPLES:
        halves = "one half of them chooses thresholds, the other reports"
        raise MeeError(f"{count} examples are too few: give at least {LEAST_EXAMPLES}; {halves}.")


# ---- what is tried


def _policies(traced: Trace, with_states: bool) -> dict[str, list[ExitPolicy]]:
    """The policies of each rule: they decide at all layers from one on, at every third, or at one alone."""
    layers = traced.layers
    rules = {rule: ExitPolicy(measure) for rule, measure in UNTRAINED.items()}
    if with_states:
        top_k = min(DEFAULT_TOP_K, traced.sizes.vocabulary)
        rules["softmax margin, pruned"] = ExitPolicy(pruning="fixed", top_k=top_k)
    policies = {FIXED_LAYER: [ExitPolicy("static", min_layer=layer) for layer in range(1, layers)]}
    for rule, policy in rules.items():
        first = policy.measure.lookback + 1
        starts = {max(first, round(layers * quarter / 4)) for quarter in range(4)}
        steps = (1, LAYER_STEP) if policy.measure.uses_exit_history else (1, LAYER_STEP, layers)
        choices = {tuple(range(start, layers, step)) for start in starts if start < layers for step in steps}
        if choices:
            policies[rule] = [replace(policy, exit_layers=chosen) for chosen in sorted(choices)]
    return policies


def _halves(replayed: PolicyReplay) -> tuple[PolicyReplay, PolicyReplay]:
    """The replay of the examples that choose, and of those that report."""
    examples = len(replayed.trace.source_tokens)
    return replayed.part(examples // 2, examples), replayed.part(0, examples // 2)


def _decides(replayed: PolicyReplay) -> str:
    """At which layers a policy decides, in words."""
    first, *others = replayed.decision_layers
    if not others or not replayed.bound.measure.has_threshold:
        return f"at layer {first}"
    if others[0] - first == 1:
        return f"from layer {first} on"
    return "at layers " + ", ".join(map(str, replayed.decision_layers))


# ---- exits at a wanted loss


def _at_losses(rule: str, losses: Sequence[float], replays: Iterable[PolicyReplay]) -> list[dict]:
    """The cheapest setting of a rule within each loss, as the other half of the examples has it."""
    cheapest: dict[float, tuple[float, PolicyReplay]] = {}  # loss -> FLOPs where it was chosen, the setting
    for replayed in replays:
        full = full_depth_flops(_halves(replayed)[0].trace).sum()
        for loss, choosing, reporting in _within(replayed, losses):
            share = replayed_flops(choosing).sum() / full
            if loss not in cheapest or share < cheapest[loss][0]:
                cheapest[loss] = share, reporting
    return [_row(rule, loss, share, reporting) for loss, (share, reporting) in cheapest.items()]


def _within(
    replayed: PolicyReplay, losses: Sequence[float]
) -> Iterator[tuple[float, PolicyReplay, PolicyReplay]]:
    """Each loss and both halves, at the lowest threshold from which on no more is lost, if there is one."""
    choosing, reporting = _halves(replayed)
    if replayed.bound.measure.has_threshold:
        # a pruned rule may lose more at every threshold: its last layer is pruned too
        best = thresholds_for(choosing, [1 - loss for loss in losses], QUANTILES)
        for loss, row in zip(losses, best.itertuples(), strict=True):
            if row.same_token >= 1 - loss:
                yield loss, choosing.at_threshold(row.threshold), reporting.at_threshold(row.threshold)
    else:  # a fixed layer
        same = at_exits(choosing)["same_token"]
        for loss in losses:
            if same >= 1 - loss:
                yield loss, choosing, reporting


def _row(rule: str, loss: float, chosen_share: float, reporting: PolicyReplay) -> dict:
    """What `Suitability.rules` says of a setting."""
    measure = reporting.bound.measure
    by_name = replayed_estimates(reporting)
    same = reporting.trace.by_output(exit_values(reporting)["same_token"])
    changed = np.array([not tokens.all() for tokens in same])  # [output]
    return {
        "rule": rule,
        "wanted": loss,
        "decides": _decides(reporting),
        "threshold": reporting.bound.policy.threshold if measure.has_threshold else np.nan,
        "chosen_flops_share": chosen_share,
        **columns_of(by_name),
        **mean_interval(changed, np.arange(len(changed))).columns("changed_outputs", "changed_"),
        **(1 / by_name["flops_share"]).columns("speed", "speed_"),
    }


# ---- drafts that the last layer verifies


def _best_drafts(rule: str, replays: Iterable[PolicyReplay]) -> dict:
    """The fastest drafts of a rule, as the other half of the examples has them."""
    settings = []
    for replayed in replays:
        choosing, reporting = _halves(replayed)
        trace = choosing.trace
        costs = StepCosts.flops(trace.sizes, choosing.bound)
        setting, _ = best_setting(as_planned(choosing), trace, max_new_tokens=64, costs=costs)
        settings.append((setting.expected, setting.policy, reporting))
    expected, policy, reporting = max(settings, key=lambda each: each[0])
    drafting = replace(reporting, bound=bind_to_trace(reporting.trace, policy))
    return {
        "rule": rule,
        "decides": _decides(drafting),
        "threshold": policy.threshold,
        "max_draft": policy.max_draft,
        "chosen_speed": expected,
        **columns_of(draft_estimates(drafting)),
    }


def draft_estimates(replayed: PolicyReplay) -> Mapping[str, Estimate]:
    """Drafts of a replayed policy with a fixed draft length: `acceptance`, `tokens_a_round`, `speed`.

    The speed is simulated, full depth being 1: see `mee_utils.decoding.ranking`.
    """
    trace = replayed.trace
    outputs = len(trace.source_tokens)
    max_draft = replayed.bound.max_draft
    drafts = drafts_of(replayed, max_draft)
    costs = StepCosts.flops(trace.sizes, replayed.bound)
    tokens = np.bincount(trace.sequence, minlength=outputs).astype(np.float64)
    spent = cost_of_drafts(replayed, costs, max_draft)
    return {
        "acceptance": _ratio(drafts.accepted, drafts.verified),
        "tokens_a_round": _ratio(tokens, drafts.rounds),
        "speed": _ratio(tokens * costs.full_depth, spent),
    }


def _ratio(above: np.ndarray, below: np.ndarray) -> Estimate:
    """The quotient of two sums over outputs `[output]`."""
    above = above.astype(np.float64)
    below = below.astype(np.float64)
    return interval(lambda weights: (weights @ above) / (weights @ below), len(above))
