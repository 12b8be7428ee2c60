"""Planned drafts: the exit layers, threshold and draft length that make verified exits fastest, if any do.

1. A few of the inputs are decoded at full depth once, and the states after every layer are kept.
2. The policy is replayed on these states at many layers, thresholds and draft lengths. The rounds of drafts
   follow exactly (`rounds`), and with them the work: each pass through a layer, each decision and each
   verification reads its weights once, however many tokens take part.
3. The most promising settings are timed for a few seconds on these inputs and the rest of their batches,
   each beside full depth on the same ones. The fastest of several timings is in part the luckiest, and its
   threshold fits these inputs, so that it looks faster than it is. It is therefore timed once more, on other
   inputs where there are any. If it is faster than full depth by `MIN_SPEEDUP` there too, it is used; else
   all layers are run. The output is that of full depth either way.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from tqdm import tqdm

from ..common.errors import MeeError, check_whole, shown
from ..exits.copies import Copies
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..models.costs import DecoderSizes
from ..models.loading import Model
from .full_depth import (
    Batch,
    FullDepthStates,
    Replay,
    bind_to_model,
    encode_batches,
    full_depth_states,
    replay_states,
)
from .inputs import EncoderCache, decode_batch, read_inputs
from .layerwise import decoder_of, on_host
from .rounds import Copied, Rounds, first_exits, rounds_of

MIN_SPEEDUP = 1.05  # drafts are used if decoding is at least this many times as fast as full depth
PLANNING_INPUTS = 16  # number of inputs that are replayed and timed; at least one batch is timed
SETTINGS_TIMED = 5  # how many of the most promising settings are timed
TRIAL_SECONDS = 2.0  # that this takes, about
CONFIRMING_SECONDS = 1.5  # that timing the fastest of them once more takes
LEAST_TURNS = 3  # of full depth and each setting, however long they take
MOST_TURNS = 48
TRIAL_TOKENS = 32  # of an output that are timed
THRESHOLDS_TRIED = 24  # thresholds that are compared if the policy gives none
LAYER_STEP = 3  # layers from one decision to the next in policies that do not decide at every layer
DEFAULT_MEASURES = ("softmax_margin", "max_probability", "hidden_similarity", "rising_top1")
DEFAULT_TOP_K = 64  # vocabulary entries of the pruned margin


@dataclass(frozen=True)
class DraftPlan:
    """What `plan_drafts` chose."""

    policy: ExitPolicy | None  # what to give to `generate`; None: full depth
    speedup: float  # how many times as fast as full depth the fastest setting was, as confirmed; 1: not timed
    expected: float  # the same by its work alone; of the best setting, if none was timed
    settings: int  # how many were compared
    seconds: float  # how long planning took


class Tokens(Protocol):
    """What planning needs of full-depth outputs: `FullDepthStates` has it, and so has a trace."""

    sequence: np.ndarray  # [token], the index of its input
    position: np.ndarray  # [token], from 0
    final_id: np.ndarray  # [token]


class Setting(NamedTuple):
    """A policy with its layers, its threshold and a draft length."""

    policy: ExitPolicy
    expected: float  # how many times as fast as full depth it would be if time went by work alone


def plan_drafts(
    model: Model,
    inputs: Sequence[str],
    policies: ExitPolicy | Sequence[ExitPolicy] | None = None,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
) -> DraftPlan:
    """Plans verified exits for some inputs: what `generate` does where `max_draft` is "auto".

    Args:
        policies: to choose from; by default some that need no training. What a policy names is kept: its
            threshold, `exit_layers`, an earliest layer (`min_layer`) and a `max_draft` that is a number.
        max_new_tokens, batch_size, max_source_tokens: as in `generate`.

    Raises:
        MeeError: as `generate`, and for no policies or one whose exits cannot be verified.
    """
    max_new_tokens = check_whole("max_new_tokens", max_new_tokens)
    batch_size = check_whole("batch_size", batch_size)
    texts, ids = read_inputs(model, inputs, max_source_tokens)
    if policies is None:
        policies = default_policies()
    policies = [policies] if isinstance(policies, ExitPolicy) else list(policies)
    if not policies:
        raise MeeError("policies=[]: give at least one ExitPolicy.")
    for policy in policies:
        if not isinstance(policy, ExitPolicy):
            raise MeeError(f"policy={shown(policy)}: give ExitPolicy(...).")
    policies = [replace(policy, propagation="verify") for policy in policies]
    for policy in policies:
        bind_to_model(model, policy).measure.check_model(model)
    return make_plan(model, texts, ids, policies, max_new_tokens, batch_size)


def make_plan(
    model: Model,
    texts: list[str],
    ids: list[list[int]],
    policies: list[ExitPolicy],
    max_new_tokens: int,
    batch_size: int,
    encodings: EncoderCache | None = None,
) -> DraftPlan:
    """The plan of `plan_drafts`, for inputs that are tokenized and policies that verify, all checked."""
    started = time.perf_counter()
    batch_size = min(batch_size, len(texts))
    chosen, others = _choose_inputs(texts, batch_size)
    # a replay need not see a large batch whole: at most so many inputs, at equal distances
    replayed = chosen[:: -(-len(chosen) // PLANNING_INPUTS)]
    batches = encode_batches(model, ids, replayed, encodings=encodings)
    states = full_depth_states(model, batches, max_new_tokens)
    ranked, compared = rank_settings(model, states, policies, max_new_tokens)
    tried = worth_timing(ranked)
    if not tried:
        expected = ranked[0].expected if ranked else 1.0
        return DraftPlan(None, 1.0, expected, compared, time.perf_counter() - started)
    clock = partial(_seconds, model, max_new_tokens=min(max_new_tokens, TRIAL_TOKENS))
    fastest, speedup = find_fastest(
        [setting.policy for setting in tried],
        trial=partial(clock, encode_batches(model, ids, chosen, batch_size, encodings)),
        confirming=partial(clock, encode_batches(model, ids, others, batch_size, encodings)),
    )
    policy = tried[fastest].policy if speedup >= MIN_SPEEDUP else None
    return DraftPlan(policy, speedup, tried[fastest].expected, compared, time.perf_counter() - started)


def default_policies() -> list[ExitPolicy]:
    """Policies that need no training."""
    policies = [ExitPolicy(measure, propagation="verify") for measure in DEFAULT_MEASURES]
    return [*policies, ExitPolicy(propagation="verify", pruning="fixed", top_k=DEFAULT_TOP_K)]


def _choose_inputs(texts: list[str], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a few inputs for the replay and the trial, and of others to confirm what the trial finds.

    Both are batches of neighbours in length, at equal distances among all lengths. Where there are too few
    inputs for others, they are the same.

    >>> trial, confirming = _choose_inputs(["a" * length for length in range(64)], batch_size=16)
    >>> trial[[0, -1]].tolist(), confirming[[0, -1]].tolist()
    ([16, 31], [48, 63])
    """
    order = np.argsort([len(text) for text in texts], kind="stable")
    every = max(1, len(texts) // max(PLANNING_INPUTS, batch_size))
    first = (every - 1) // 2

    def batches_from(number: int) -> np.ndarray:
        starts = range(batch_size * number, len(texts), batch_size * every)
        return np.concatenate([order[start : start + batch_size] for start in starts])

    return batches_from(first), batches_from(first + every // 2)


def rank_settings(
    model: Model,
    states: FullDepthStates,
    policies: Sequence[ExitPolicy],
    max_new_tokens: int,
    sizes: DecoderSizes | None = None,
) -> tuple[list[Setting], int]:
    """The best setting of each policy at each choice of layers, and how many settings were compared.

    The most promising comes first. `sizes` are those of another decoder, in which the tokens exit at the same
    relative depth.
    """
    sizes = sizes or DecoderSizes.of(model.network.config)
    best_settings = []
    compared = 0
    for policy in policies:
        copied = copied_along(policy.copies, states, max_new_tokens) if policy.copies else None
        for replay in _replays_at_layers(model, states, policy):
            best, compared_here = best_setting(replay, states, max_new_tokens, sizes, copied)
            best_settings.append(best)
            compared += compared_here
    best_settings.sort(key=lambda setting: -setting.expected)
    return best_settings, compared


def _replays_at_layers(model: Model, states: FullDepthStates, policy: ExitPolicy) -> Iterator[Replay]:
    """The replay of a policy at every choice of layers."""
    candidates = [bind_to_model(model, candidate) for candidate in _at_layers(policy, model.layers)]
    candidates = [bound for bound in candidates if bound.decision_layers]
    if not candidates:
        return
    # what a policy sees at a layer is the same whichever other layers decide, but for these
    depends_on_exits = policy.measure.uses_exit_history or not policy.plain
    first, *_ = candidates  # all others decide at some of its layers
    at_all_layers = replay_states(model, states, first.policy)
    for bound in candidates:
        if depends_on_exits and bound is not first:
            yield replay_states(model, states, bound.policy)
        else:
            columns = np.searchsorted(first.decision_layers, bound.decision_layers)
            yield Replay(bound, *(array[:, columns] for array in at_all_layers[1:]))


def _at_layers(policy: ExitPolicy, layers: int) -> list[ExitPolicy]:
    """The policy from each layer on: deciding at all layers, at every third, or at this one alone."""
    if policy.exit_layers is not None:
        return [policy]
    needed_before = max(policy.measure.lookback, policy.contrast is not None)
    first = max(policy.min_layer or policy.measure.min_layer or 1, needed_before + 1)
    candidates = [replace(policy, min_layer=layer) for layer in range(first, layers)]
    if policy.measure.has_threshold:
        for step in (LAYER_STEP, layers):
            for layer in range(first, layers - 1):
                chosen = tuple(range(layer, layers, step))
                candidates.append(replace(policy, min_layer=None, exit_layers=chosen))
    return candidates


def best_setting(
    replay: Replay, states: Tokens, max_new_tokens: int, sizes: DecoderSizes, copied: Copied | None = None
) -> tuple[Setting, int]:
    """The threshold and draft length of a policy, at its layers, that need the least work.

    Args:
        replay: of the policy.
        states: the tokens that were replayed.
        max_new_tokens: the `N` of thresholds that decay.
        sizes: of the decoder whose work is counted.
        copied: what the policy copies, if it does.

    Returns:
        That setting, and how many were compared.
    """
    policy = replay.bound.policy
    confidences = replay.confidences[np.isfinite(replay.confidences)].clip(*policy.measure.range)
    policies = [policy]
    if policy.measure.has_threshold and policy.threshold is None and confidences.size:
        shares = np.linspace(0, 1, THRESHOLDS_TRIED)
        levels = np.unique(np.quantile(confidences, shares, method="inverted_cdf")).tolist()
        policies = [policy.at_threshold(level) for level in levels]
    lengths = np.arange(1, MAX_DRAFT + 1)
    if policy.max_draft != "auto":
        lengths = np.array([policy.max_draft])
    exits = []  # [setting][token], the index of the decision; the number of decisions: it exits at none
    for candidate in policies:
        bound = candidate.bind(replay.bound.layers, replay.bound.vocabulary)
        exits.append(first_exits(bound, replay.confidences, states.sequence, states.position, max_new_tokens))
    exits = np.array(exits).repeat(len(lengths), axis=0)  # [setting, token]
    rounds = rounds_of(
        exits,
        same_token=replay.token_ids == states.final_id[:, None],
        decision_layers=replay.bound.decision_layers,
        sequence=states.sequence,
        max_draft=np.tile(lengths, len(policies)),
        copied=copied,
    )
    plain_work = len(states.sequence) * (sizes.layers * sizes.projections + sizes.readout)
    expected = plain_work / work_by_token(replay, exits, rounds, sizes).sum(axis=1)
    best = int(expected.argmax())
    chosen = policies[best // len(lengths)]
    max_draft = int(lengths[best % len(lengths)])
    return Setting(replace(chosen, max_draft=max_draft), float(expected[best])), len(expected)


def copied_along(copies: Copies, states: FullDepthStates, max_new_tokens: int) -> Copied:
    """What rounds would copy along full-depth outputs."""
    starts = np.flatnonzero(states.position == 0)
    outputs = [ids.tolist() for ids in np.split(states.final_id, starts[1:])]
    sources = [ids[ids >= 0].tolist() for ids in on_host(states.source_ids)[states.source_rows[starts]]]
    return Copied.along(copies, sources, outputs, max_new_tokens)


def work_by_token(replay: Replay, exits: np.ndarray, rounds: Rounds, sizes: DecoderSizes) -> np.ndarray:
    """`[setting, token]`, FLOPs of the round that begins at each token, 0 where none begins.

    A round drafts its tokens one after the other, and then the last layer verifies them all. A pass of
    several tokens through a layer counts as one token: it reads the weights of its layer once, and reading
    them is what takes time. So whoever waits is taken along for nothing.

    The example of three tokens in `mee_utils.decoding.rounds`: four layers, and a policy that decides at
    layers 1 and 2. With 10 for a pass through a layer, 1 for a decision and 2 for the readout of the last
    layer:

    | round | token | drafting | verifying |
    |---|---|---|---|
    | 0, 1 | 0 | 10 + 1, layer 1 | |
    | | 1 | 20 + 2, layers 1 and 2 | 20 + 2: both wait at layer 2, since token 1 took token 0 along |
    | 2 | 2 | 20 + 2, not confident | 20 + 2 |

    The work is 55 at token 0, 0 at token 1 and 44 at token 2.

    Args:
        replay: what each decision costs.
        exits: `[setting, token]`, as `rounds_of` takes them.
        rounds: what `rounds_of` made of them.
        sizes: of the decoder whose work is counted.
    """
    bound = replay.bound
    layers = bound.layers
    # of one layer of the replayed decoder, where `sizes` are those of another that has more layers or fewer
    layer_work = sizes.projections * sizes.layers / layers
    each = replay.readout_rows / bound.vocabulary * sizes.readout
    each = each + bound.measure.flops(sizes.d_model)  # [token, decision]
    until = np.cumsum(each, axis=1)
    # [token, exit], of all decisions up to it; the last is of a token that exits at none
    deciding = np.hstack([until, until[:, -1:]])
    if not bound.measure.readout:
        deciding[:, :-1] += sizes.readout  # the draft's token then needs logits too
    tokens = np.arange(len(deciding))
    drafting = rounds.depth * layer_work + deciding[tokens, exits]  # [setting, token], each token alone
    # a token takes along what waits before it, so that none of the round waits below its last token
    waits_at = np.take_along_axis(rounds.depth, rounds.run_to - 1, axis=1)  # [setting, token]
    verifying = (layers - waits_at) * layer_work + sizes.readout
    work = _sums_to(rounds.run_to, drafting) + verifying
    if rounds.copies is not None:  # a copy costs nothing to make, and all layers to verify
        work = np.where(rounds.copies, layers * layer_work + sizes.readout, work)
    return work * rounds.begins


def _sums_to(ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`[setting, token]`, the sum of `values` from each token on, to before `ends`; all `[setting, token]`.

    >>> _sums_to(np.array([[2, 3, 3]]), np.array([[11, 22, 22]]))
    array([[33, 44, 22]])
    """
    before = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))  # [setting, token + 1], of earlier tokens
    return np.take_along_axis(before, ends, axis=1) - before[:, :-1]


def worth_timing(ranked: Sequence[Setting]) -> list[Setting]:
    """The settings that are worth a trial: the best few, if they are faster by their work alone."""
    return [setting for setting in ranked if setting.expected >= MIN_SPEEDUP][:SETTINGS_TIMED]


def find_fastest(
    policies: Sequence[ExitPolicy],
    trial: Callable[[ExitPolicy | None, int], float],
    confirming: Callable[[ExitPolicy | None, int], float],
) -> tuple[int, float]:
    """The index of the fastest of some policies, and how many times as fast as full depth it is.

    The trial only chooses. Its own speed-up is too high where luck had a part in it, so that the speed-up
    comes from confirming; without it if even the trial finds nothing faster by `MIN_SPEEDUP`.

    Args:
        trial: decodes some inputs, those of a turn (from 0), with a policy or at full depth (None); returns
            the seconds that it took.
        confirming: likewise, other inputs where there are any.
    """
    speedups = _speedups(policies, trial, TRIAL_SECONDS)
    fastest = int(np.argmax(speedups))
    speedup = speedups[fastest]
    if speedup >= MIN_SPEEDUP:
        (speedup,) = _speedups([policies[fastest]], confirming, CONFIRMING_SECONDS)
    return fastest, float(speedup)


def _speedups(
    policies: Sequence[ExitPolicy], seconds_of: Callable[[ExitPolicy | None, int], float], budget: float
) -> np.ndarray:
    """`[policy]`, how many times as fast as full depth each decodes: medians over turns.

    In a turn all decode the same inputs, in random order. The first turn warms up; others follow until the
    budget of seconds is spent, but at least `LEAST_TURNS`.
    """
    contenders = [None, *policies]
    order = np.random.default_rng(0)
    turns: list[np.ndarray] = []
    bar = tqdm(desc="plan drafts", unit="turn", delay=5, disable=None)
    while len(turns) <= LEAST_TURNS or (np.sum(turns) < budget and len(turns) <= MOST_TURNS):
        seconds = np.zeros(len(contenders))
        for index in order.permutation(len(contenders)):
            seconds[index] = seconds_of(contenders[index], len(turns))
        turns.append(seconds)
        bar.update()
    bar.close()
    timed = np.array(turns[1:])  # [turn, contender]
    return np.median(timed[:, :1] / timed[:, 1:], axis=0)


def _seconds(
    model: Model, batches: Sequence[Batch], policy: ExitPolicy | None, turn: int, max_new_tokens: int
) -> float:
    """Seconds that decoding one of the batches takes, without the encoder; at full depth without a policy."""
    decoder = decoder_of(model.network)
    batch = batches[turn % len(batches)]
    # a threshold that learns begins anew
    bound = bind_to_model(model, policy or ExitPolicy("static", min_layer=model.layers))
    started = time.perf_counter()
    decode_batch(decoder, batch.tokens, bound, max_new_tokens, batch.indices, batch.encoded)
    return time.perf_counter() - started
