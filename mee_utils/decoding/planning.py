"""Planned drafts: copies, exits, both or neither, whichever makes decoding fastest; the output is the same.

1. A few of the inputs are decoded at full depth once, and the states after every layer are kept.
2. What the steps of decoding cost is measured on this machine (`step_costs`). The policies are replayed on
   the states at many layers, thresholds and draft lengths, with copies and without, and ranked by what all
   their steps would cost (`ranking`).
3. The best of each kind is timed on a few batches, each beside full depth on the same one. The fastest of
   several timings is in part the luckiest, and its threshold fits these inputs. So it is timed once more, on
   other inputs where there are any. If it is faster than full depth by `MIN_SPEEDUP` there too, it is used;
   else all layers are run.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from ..common.errors import MeeError, check_whole, shown
from ..exits.copies import Copies
from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.loading import Model
from .full_depth import bind_to_model, encode_batches, full_depth_states
from .inputs import EncoderCache, decode_batch, read_inputs
from .layerwise import decoder_of
from .ranking import Setting, decision_seconds, rank_settings
from .step_costs import StepCosts, measured_steps

MIN_SPEEDUP = 1.05  # drafts are used if decoding is at least this many times as fast as full depth
PLANNING_INPUTS = 16  # that are replayed
TIMED_OF_A_KIND = 2  # settings, of different policies, that are timed
TRIAL_SECONDS = 1.2  # that this takes, about
CONFIRMING_SECONDS = 0.8  # that timing the fastest of them once more takes
LEAST_TURNS = 3  # of full depth and each setting, however long they take
MOST_TURNS = 48
FAR_BEHIND = 0.9  # a setting that is less than this times as fast as the fastest leaves the trial half-way
MOST_TOKENS = 24  # of an output that are replayed and timed
LEAST_TOKENS = 8
TURN_SECONDS = 0.15  # that full depth takes in a turn, if fewer tokens make it so
DEFAULT_MEASURES = ("softmax_margin", "max_probability", "hidden_similarity", "rising_top1")
DEFAULT_TOP_K = 64  # vocabulary tokens of the pruned margin
DEFAULT_COPIES = (Copies(), Copies(shortest=2))


@dataclass(frozen=True)
class DraftPlan:
    """What `plan_drafts` chose."""

    policy: ExitPolicy | None  # what to give to `generate`; None: full depth
    kind: str  # of the fastest setting: "copies", "exits" or "copies and exits"; "": nothing could be drafted
    speedup: float  # how many times as fast as full depth that was, as confirmed; 1: not timed
    expected: float  # the same by what its steps cost
    settings: int  # how many were compared
    seconds: float  # how long planning took

    def __str__(self) -> str:
        """What was chosen, and why."""
        if not self.settings:
            return "nothing: there is nothing to choose from"
        chosen = self.kind if self.policy else "nothing"
        timed = f"timed at {self.speedup:.2f}" if self.speedup != 1.0 else "not timed"
        return f"{chosen}: {self.kind} would be {self.expected:.2f} times as fast as full depth, {timed}"


def plan_drafts(
    model: Model,
    inputs: Sequence[str],
    policies: ExitPolicy | Sequence[ExitPolicy] | None = None,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
) -> DraftPlan:
    """Plans drafts for some inputs: what `generate` does where `max_draft` is "auto".

    Args:
        policies: to choose from; by default some that need no training, with copies. What a policy names is
            kept: its threshold, `exit_layers`, an earliest layer (`min_layer`) and a `max_draft` that is a
            number. Its `copies` are tried with its exits, alone, and not at all.
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
    replayed, trial, confirming = _choose_inputs(texts, batch_size)
    encodings = encodings or EncoderCache()
    batches = encode_batches(model, ids, replayed, encodings=encodings)
    states = full_depth_states(model, batches, min(max_new_tokens, MOST_TOKENS))
    (first,) = encode_batches(model, ids, trial[0], batch_size, encodings)
    steps = measured_steps(decoder_of(model.network), first)
    tokens = int(np.clip(TURN_SECONDS / steps.full_depth, LEAST_TOKENS, min(MOST_TOKENS, max_new_tokens)))

    def costs_of(bound: BoundPolicy) -> StepCosts:
        if not bound.decision_layers:
            return steps
        return steps._replace(decision=decision_seconds(model, states, bound, batch_size, steps.readout))

    ranked, compared = rank_settings(
        model, states, kinds_of(policies, model.layers), max_new_tokens, costs_of, batch_size
    )
    tried = worth_timing(ranked)
    if not tried:
        best = ranked[0] if ranked else Setting(None, 1.0)
        return DraftPlan(
            None, kind_of(best.policy), 1.0, best.expected, compared, time.perf_counter() - started
        )

    timed = Timed(model, ids, batch_size, tokens, encodings)
    fastest, speedup = find_fastest(
        [setting.policy for setting in tried],
        trial=partial(timed.seconds, trial),
        confirming=partial(timed.seconds, confirming),
    )
    chosen = tried[fastest]
    return DraftPlan(
        policy=chosen.policy if speedup >= MIN_SPEEDUP else None,
        kind=kind_of(chosen.policy),
        speedup=speedup,
        expected=chosen.expected,
        settings=compared,
        seconds=time.perf_counter() - started,
    )


class Timed(NamedTuple):
    """How inputs are decoded where they are timed."""

    model: Model
    ids: list[list[int]]
    batch_size: int
    tokens: int  # of an output, at most
    encodings: EncoderCache

    def seconds(self, batches: list[np.ndarray], policy: ExitPolicy | None, turn: int) -> float:
        """Seconds that one of the batches, of indices of inputs, takes, the next one each turn.

        Without the encoder; at full depth without a policy.
        """
        indices = batches[turn % len(batches)]
        (batch,) = encode_batches(self.model, self.ids, indices, self.batch_size, self.encodings)
        # a threshold that learns begins anew
        bound = bind_to_model(self.model, policy or ExitPolicy("static", min_layer=self.model.layers))
        decoder = decoder_of(self.model.network)
        started = time.perf_counter()
        decode_batch(decoder, batch.tokens, bound, self.tokens, batch.indices, batch.encoded)
        return time.perf_counter() - started


def default_policies() -> list[ExitPolicy]:
    """Policies that need no training, with copies."""
    policies = [ExitPolicy(measure, propagation="verify") for measure in DEFAULT_MEASURES]
    policies.append(ExitPolicy(propagation="verify", pruning="fixed", top_k=DEFAULT_TOP_K))
    return [replace(policy, copies=copies) for policy in policies for copies in DEFAULT_COPIES]


def kinds_of(policies: Iterable[ExitPolicy], layers: int) -> list[ExitPolicy]:
    """The policies, each of which may also go without its copies, and their copies without exits."""
    kinds: dict[ExitPolicy, None] = {}
    for policy in policies:
        kinds[policy] = kinds[replace(policy, copies=None)] = None
        if policy.copies:
            kinds[ExitPolicy.copying(policy.copies, layers)] = None
    return list(kinds)


def kind_of(policy: ExitPolicy | None) -> str:
    """What drafts."""
    if policy is None:
        return ""
    if not policy.copies:
        return "exits"
    return "copies" if policy.measure.name == "static" else "copies and exits"


def _choose_inputs(
    texts: list[str], batch_size: int
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Indices of the inputs for the replay, of batches for the trial and of others to confirm what it finds.

    Batches are of neighbours in length, as in decoding, in random order. Every other one is for the trial;
    where there is but one, it serves for both. Of the trial's inputs a few, at equal distances among their
    lengths, are replayed.

    >>> replayed, trial, confirming = _choose_inputs(["a" * length for length in range(64)], batch_size=8)
    >>> replayed.tolist()
    [0, 2, 4, 6, 16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54]
    >>> sorted(batch[0].item() for batch in trial), sorted(batch[0].item() for batch in confirming)
    ([0, 16, 32, 48], [8, 24, 40, 56])
    """
    order = np.argsort([len(text) for text in texts], kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    trial, confirming = batches[::2], batches[1::2] or batches
    inputs = np.concatenate(trial)
    replayed = inputs[:: -(-len(inputs) // PLANNING_INPUTS)]
    random = np.random.default_rng(0)
    trial = [trial[index] for index in random.permutation(len(trial))]
    return replayed, trial, [confirming[index] for index in random.permutation(len(confirming))]


def worth_timing(ranked: Sequence[Setting]) -> list[Setting]:
    """Of each kind the best settings, of different measures, if they are faster by their costs."""
    tried: dict[str, dict[str, Setting]] = {}  # kind -> measure -> its best setting
    for setting in ranked:
        of_kind = tried.setdefault(kind_of(setting.policy), {})
        if setting.expected >= MIN_SPEEDUP and len(of_kind) < TIMED_OF_A_KIND:
            of_kind.setdefault(setting.policy.measure.name, setting)
    return [setting for of_kind in tried.values() for setting in of_kind.values()]


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
    """`[policy]`, how many times as fast as full depth each decodes.

    In a turn all decode the same inputs, in random order. Turns follow until the budget of seconds is spent,
    but at least `LEAST_TURNS`. Once half of it is spent, policies that are far behind the fastest leave.
    """
    order = np.random.default_rng(0)
    contenders = [None, *policies]
    going = np.arange(len(contenders))
    timed = np.empty((0, len(contenders)))  # [turn, contender], NaN where it has left
    bar = tqdm(desc="plan drafts", unit="turn", delay=5, disable=None)
    while len(timed) < LEAST_TURNS or (np.nansum(timed) < budget and len(timed) < MOST_TURNS):
        seconds = np.full(len(contenders), np.nan)
        for index in order.permutation(going):
            seconds[index] = seconds_of(contenders[index], len(timed))
        timed = np.vstack([timed, seconds])
        speedups = np.array([_speedup(timed[:, 0], own) for own in timed.T])  # of full depth itself: 1
        if np.nansum(timed) > budget / 2:
            keeps_up = speedups[going] > FAR_BEHIND * speedups[1:].max()
            going = going[keeps_up | (going == 0)]
        bar.update()
    bar.close()
    return speedups[1:]


def _speedup(full_depth: np.ndarray, own: np.ndarray) -> float:
    """Seconds at full depth by those of a policy, `[turn]` each, of all turns that it took part in.

    Of ten or more turns the tenth in which it was relatively slowest, and that in which it was fastest, is
    left out: then the machine did something else, too.
    """
    turns = np.flatnonzero(np.isfinite(own))
    ranked = turns[np.argsort(full_depth[turns] / own[turns])]
    kept = ranked[len(ranked) // 10 : len(ranked) - len(ranked) // 10]
    return float(full_depth[kept].sum() / own[kept].sum())
