"""Planned drafts: which rule, layers, threshold and draft length make verified exits fastest, if any do.

A full-depth trace says what becomes of every draft (see `drafts`), measured costs what each step takes
(`measure_costs`), and the rounds of a batch are run through on paper, rows waiting for each other as in
`mee_utils.decoding.verify`. Thousands of settings take a second. If the best is not expected to win, tokens
are decoded plainly: the output is that of full depth either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..common.errors import MeeError, check_whole
from ..decoding import generation
from ..decoding.costs import DraftCosts, measure_costs
from ..decoding.inputs import EncoderCache, check_inputs, check_lengths
from ..decoding.verify import VERIFY_AT
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..models.loading import Model
from .drafts import Rounds, rounds_of
from .replay import PolicyReplay, check_policy, replay_policy
from .trace import Trace, trace

WORTH = 1.05  # drafts are so many times as fast as full depth, expected and in a trial, or not used
QUICK, TRIALS = 16, 3  # inputs that are traced where no trace is given, and rounds of the trial on them
MEASURES = ("softmax_margin", "max_probability", "hidden_similarity", "rising_top1")
LEVELS, TOP_K = 24, 64  # thresholds that are tried where none is given; ids of the margin over few


@dataclass(frozen=True)
class DraftPlan:
    """What `plan_drafts` chose."""

    best: ExitPolicy | None  # the fastest setting; None if the decoder has no layer to draft at
    speedup: float  # how many times as fast as full depth it is expected to be
    settings: int  # how many were compared
    gain: float = np.inf  # how many times as fast it was in a trial, if there was one

    @property
    def policy(self) -> ExitPolicy | None:
        """What to give to `generate`: the best setting, or None (full depth) if it loses."""
        return self.best if min(self.speedup, self.gain) >= WORTH else None


def plan_drafts(
    trace: Trace,
    costs: DraftCosts,
    policies: ExitPolicy | Sequence[ExitPolicy] | None = None,
    *,
    batch_size: int = 1,
    max_new_tokens: int = 64,
    model: Model | None = None,
) -> DraftPlan:
    """Chooses among policies, layers to ask at, thresholds and draft lengths by expected speed.

    Args:
        trace: of the model's own output.
        costs: from `measure_costs`, for this batch size, or by hand.
        policies: to choose from; by default some that need no training. What they name is kept: the
            threshold, `exit_layers`, an earliest layer (`min_layer`) and a `max_draft` that is a number.
        batch_size, max_new_tokens: as in `generate`; `model`: what was traced, if a policy looks at states.

    Raises `MeeError` for a trace along references or of nothing, no policies, costs of too few tokens.
    """
    if not isinstance(costs, DraftCosts):
        raise MeeError(f"costs={costs!r:.60}: give DraftCosts(...), or what measure_costs returns.")
    policies = default_policies(model) if policies is None else policies
    policies = [policies] if isinstance(policies, ExitPolicy) else list(policies)
    if not policies or np.size(costs.decision) not in (1, len(policies)):
        given = f"{len(policies)} policies, {np.size(costs.decision)} costs of a decision"
        raise MeeError(f"{given}: give at least one policy, and a cost for each or one for all.")
    batch_size = check_whole("batch_size", batch_size)
    trace.check_own(len(trace.source_tokens))
    # the outputs that are decoded together, long inputs first as in `generate`: `[batch, row]`, -1: none
    order = np.argsort(-np.array(trace.source_tokens), kind="stable")
    order = np.resize(order, max(len(order), batch_size))  # a few stand for more like them
    batches = np.pad(order, (0, -len(order) % batch_size), constant_values=-1).reshape(-1, batch_size)
    best, speed, tried = None, 1.0 if len(trace) else np.nan, 0
    for policy, decision in zip(policies, np.broadcast_to(costs.decision, len(policies)), strict=True):
        lengths = np.array([check_policy(policy).max_draft])
        if policy.max_draft == "auto":  # as many as there are costs of
            most = min(len(known) for known in (costs.block, costs.readout) if len(known)) // batch_size
            lengths = np.arange(1, max(1, min(MAX_DRAFT, most)) + 1)
        for candidate in _at_layers(replace(policy, propagation="verify"), trace):
            replays = _at_levels(replay_policy(trace, candidate, model))
            speeds = expected_speeds(replays, lengths, costs, decision, batches, max_new_tokens)
            tried += speeds.size
            if best is None or speeds.max() > speed:
                which, length = np.unravel_index(speeds.argmax(), speeds.shape)
                best = replace(replays[which].bound.policy, max_draft=int(lengths[length]))
                speed = float(speeds.max())
    return DraftPlan(best, speed, tried)


def default_policies(model: Model | None) -> list[ExitPolicy]:
    """Rules that need no training, and with a model the margin over few ids."""
    few = [] if model is None else [ExitPolicy(propagation="verify", pruning="fixed", top_k=TOP_K)]
    return [ExitPolicy(name, propagation="verify") for name in MEASURES] + few


def _at_layers(policy: ExitPolicy, trace: Trace) -> list[ExitPolicy]:
    """The policy from each layer on at which it may begin; asked at all, at every third, or there alone."""
    if policy.exit_layers is not None:
        return [policy]
    before = max(policy.measure.lookback, policy.contrast is not None)
    first = range(max(policy.min_layer or policy.measure.min_layer or 1, before + 1), trace.layers)
    steps = (3, trace.layers) if policy.measure.has_threshold else ()
    fewer = sorted({tuple(range(layer, trace.layers, step)) for layer in first[:-1] for step in steps})
    found = [replace(policy, min_layer=layer) for layer in first]
    return found + [replace(policy, min_layer=None, exit_layers=asked) for asked in fewer]


def _at_levels(replayed: PolicyReplay) -> list[PolicyReplay]:
    """The replay at the thresholds to try: the policy's own, or where it names none some of what is seen."""
    policy = replayed.bound.policy
    seen = replayed.confidences[np.isfinite(replayed.confidences)].clip(*policy.measure.range)
    if not policy.measure.has_threshold or policy.threshold is not None or not seen.size:
        return [replayed]
    levels = np.unique(np.quantile(seen, np.linspace(0, 1, LEVELS)))
    return [replayed.at_threshold(level) for level in levels.tolist()]


def expected_speeds(
    replays: list[PolicyReplay], lengths: np.ndarray, costs: DraftCosts, decision, batches, longest: int
) -> np.ndarray:
    """How many times as fast as full depth drafts are, `[replay, length]`: of a policy at several thresholds,
    in drafts of several lengths; `batches`, `[batch, row]`, are the outputs that are decoded together."""
    trace, places = replays[0].trace, np.stack([each.exits(longest) for each in replays])
    rounds = rounds_of(replays[0], places.repeat(len(lengths), axis=0), np.tile(lengths, len(replays)))
    counts = np.bincount(trace.sequence, minlength=len(trace.source_tokens))
    ends = np.append(counts.cumsum(), 0)[batches]
    begins = ends - np.append(counts, 0)[batches]
    spent = _spent(replays[0], rounds, costs, decision, begins, ends, int(lengths.max()))
    going = ((ends - begins)[..., None] > np.arange(counts.max())).sum(axis=1)
    block, readout = (costs.table(name, batches.shape[1]) for name in ("block", "readout"))
    plain = costs.table("plain", batches.shape[1]) if len(costs.plain) else trace.layers * block + readout
    return (plain[going].sum() / spent).reshape(len(replays), len(lengths))


def _spent(replayed: PolicyReplay, rounds: Rounds, costs: DraftCosts, decision, begins, ends, most: int):
    """What decoding costs, `[setting]`; a step drafts a token of each row, and verifies once enough wait.

    Rows begin and end at `begins` and `ends`, both `[batch, row]`; `most` is the longest draft.
    """
    layers, setting = np.arange(1, replayed.trace.layers + 1), np.arange(len(rounds.depth))[:, None, None]
    block, readout = (costs.table(name, most * begins.shape[1]) for name in ("block", "readout"))
    token = np.broadcast_to(begins, (len(setting), *begins.shape)).copy()  # the first of each row's round
    drafts, total, last = np.zeros_like(token), np.zeros(len(setting)), len(replayed.trace) - 1
    waits = np.zeros((*token.shape, len(layers)), dtype=np.int32)  # tokens that have not seen each layer
    while (going := token < ends).any():
        start = np.minimum(token, last)
        many = rounds.run_to[setting, start] - token
        drafting = going & (drafts < many)
        depth = np.where(drafting, rounds.depth[setting, np.minimum(token + drafts, last)], 0)
        runs = depth[..., None] >= layers
        waits += drafting[..., None]
        passes = (waits * runs).sum(axis=2)
        total += block[passes].sum(axis=(1, 2)) + costs.token * _joins(passes)
        waits[runs] = 0
        left = (depth[..., None] == layers).any(axis=2).sum(axis=-1)  # at how many layers rows leave
        total += (decision * replayed.bound.decisions[depth.max(axis=2)] + costs.token * left).sum(axis=1)
        drafts += drafting
        ready = going & (drafts == many)
        ready &= (ready.sum(axis=2) >= VERIFY_AT * going.sum(axis=2))[..., None]
        passes = (waits * ready[..., None]).sum(axis=2)
        total += block[passes].sum(axis=(1, 2)) + costs.token * _joins(passes)
        total += readout[(drafts * ready).sum(axis=2)].sum(axis=1)
        token = np.where(ready, rounds.settled_to[setting, start], token)
        drafts[ready], waits[ready] = 0, 0
    return total


def _joins(passes: np.ndarray) -> np.ndarray:
    """`[setting]`, how often tokens join others on their way; `passes` is `[setting, batch, layer]`."""
    return ((passes[..., 1:] > passes[..., :-1]) & (passes[..., :-1] > 0)).sum(axis=(1, 2))


def plan_for(
    model: Model, inputs: Sequence[str], policies: ExitPolicy | Sequence[ExitPolicy] | None = None, **options
) -> DraftPlan:
    """The fastest drafts for these inputs: planned on a few of them, then tried there against full depth.

    A plan takes the machine to be idle and knows the steps alone; the trial does not. `policies` are those of
    `plan_drafts`, `options` those of `generate`.
    """
    policies = default_policies(model) if policies is None else policies
    texts = check_inputs(inputs)
    check_lengths(model, texts, options.get("max_source_tokens"))
    longest = check_whole("max_new_tokens", options.get("max_new_tokens", 64))
    rows = min(check_whole("batch_size", options.get("batch_size", 8)), len(texts))
    every, ordered = max(1, len(texts) // max(QUICK, rows)), sorted(texts, key=len)
    begins = range(rows * ((every - 1) // 2), len(texts), rows * every)
    few = [text for begin in begins for text in ordered[begin : begin + rows]]  # of neighbours in length
    costs, how = measure_costs(model, policies, rows), dict(max_new_tokens=longest, batch_size=rows)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        states = Path(folder) / "states.npy"
        found = trace(model, few, states=states, max_new_tokens=longest, batch_size=len(few))
        plan = plan_drafts(found, costs, policies, model=model, **how)
    return replace(plan, gain=gain(model, few, plan.policy, **how)) if plan.policy else plan


def gain(model: Model, inputs: Sequence[str], policy: ExitPolicy, **options) -> float:
    """How many times as fast as full depth a policy decodes, the two in turns: the median of `TRIALS`."""
    options |= {"encodings": EncoderCache()}
    seconds = lambda tried: generation.generate(model, inputs, tried, **options).seconds
    return float(np.median([seconds(None) / seconds(policy) for _ in range(TRIALS)]))


@wraps(generation.generate)
def generate(model: Model, inputs: Sequence[str], policy: ExitPolicy | None = None, **options):
    """The decoder's `generate`; drafts that are "auto" are planned and tried first (not in `seconds`)."""
    drafts = isinstance(policy, ExitPolicy) and policy.propagation == "verify"
    if drafts and policy.max_draft == "auto" and isinstance(model, Model):
        policy = plan_for(model, inputs, policy, **options).policy
    return generation.generate(model, inputs, policy, **options)
