"""`make bench`, third part: what the exits of the trained models would cost in decoders of other sizes.

A simulation. A decoder of T5's sizes with random weights plays what the trained model of a profile did: its
tokens exit at the same relative depth, and the same drafts are right and wrong. Every decision is computed as
there, and then not listened to. Exits are decided at those layers alone that stand for one of the trained
model's. Cost does not depend on what the weights are, so this is what a model of that size with such exits
would cost; that it would have such exits is not said. The encoder counts for less than with long inputs and
short answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.common.errors import MeeError
from mee_utils.companion.catalogue import MAIN_MODEL, RULES
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import weights_digest
from mee_utils.companion.kinds import best_of_kind, family_of
from mee_utils.decoding.drafts import ExitDrafter
from mee_utils.decoding.full_depth import FullDepthStates, encode_batches, full_depth_states, replay_states
from mee_utils.decoding.generation import bind_policy, generate
from mee_utils.decoding.inputs import input_ids
from mee_utils.decoding.planning import (
    MIN_SPEEDUP,
    Setting,
    default_policies,
    find_fastest,
    rank_settings,
    worth_timing,
)
from mee_utils.decoding.rounds import first_exits
from mee_utils.decoding.token import on_host
from mee_utils.decoding.verify import DraftDecoder
from mee_utils.exits.measures import ForcedExits
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.costs import DecoderSizes

from .clock import seconds_of, summary
from .decoder import around, untrained_classifiers
from .rules import BATCHES, certain, drafts_by, experiment_on, trained
from .workloads import PAUSE, SEED, Bench, Run, Workload, bench_of

KEYS = ("profile", "part", "shape")
EXAMPLES = 64  # outputs of each task that are played
TOKENS = {1: 48, 8: 16, 32: 12}  # batch -> tokens that each row plays
TRIAL_SEED = 1
CONFIRMING_SEED = 2


# ---- what the trained model does


class Outputs(NamedTuple):
    """What the trained model does, `[token]` of each output, in a decoder of `depth` layers."""

    layers: list[np.ndarray]  # at which the token exits or is drafted; the last: neither
    right: list[np.ndarray]  # whether a draft is the last layer's token
    depth: int


class Trained:
    """The main model of a profile and what it does on a few examples."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.settings = experiment.profile.results
        (self.model,) = experiment.models([MAIN_MODEL]).values()
        self.model.network.float()
        self.tasks = experiment.tasks(EXAMPLES)

    @cached_property
    def kept(self) -> list[tuple[dict, Outputs]]:
        """The cheapest setting of each family that keeps the score for certain and saves FLOPs; its exits."""
        best = best_of_kind(certain(self.experiment.profile.name), "flops_share", kind=family_of)
        classifiers = trained(self.experiment, self.model, best.rule)
        options = self.settings.model_dump()
        length = self.settings.max_new_tokens
        kept = []
        for row in best.itertuples():
            policy = RULES[row.rule].policy(row.threshold, options, classifiers)
            inputs = self.tasks[row.task].inputs
            exits = generate(self.model, inputs, policy, max_new_tokens=length).exit_layers
            labels = {"task": row.task, "rule": row.rule, "threshold": row.threshold}
            labels["depth"] = float(np.concatenate(exits).mean() / self.model.layers)
            kept.append((labels, Outputs(exits, [exit > 0 for exit in exits], self.model.layers)))
        return kept

    @cached_property
    def states(self) -> dict[str, FullDepthStates]:
        """By task: the states of all tokens at full depth."""
        length = self.settings.max_new_tokens
        ids_of = partial(input_ids, self.model.tokenizer)
        return {
            name: full_depth_states(self.model, encode_batches(self.model, ids_of(task.inputs)), length)
            for name, task in self.tasks.items()
        }

    def drafts(self, task: str, policy: ExitPolicy) -> Outputs:
        """The drafts of a policy."""
        states = self.states[task]
        replay = replay_states(self.model, states, policy)
        length = self.settings.max_new_tokens
        exits = first_exits(replay.bound, replay.confidences, states.sequence, states.position, length)
        layers = np.array([*replay.bound.decision_layers, self.model.layers])[exits]
        no_draft = np.full((len(exits), 1), -1)
        drafted = np.hstack([replay.token_ids, no_draft])[np.arange(len(exits)), exits]
        ends = np.flatnonzero(np.diff(states.sequence)) + 1
        right = np.split(drafted == states.final_id, ends)
        return Outputs(np.split(layers, ends), right, self.model.layers)


@lru_cache(maxsize=1)
def trained_of(profile: str, data: str | None, device: str) -> Trained:
    """What the main model of a profile does; kept for the next size."""
    return Trained(experiment_on(device, profile, data))


# ---- played in another decoder


class Script(NamedTuple):
    """What each row of a batch does, `[row, token]`: outputs of the trained model, one after the other."""

    layers: np.ndarray  # of the other decoder, at which the token exits or is drafted
    right: np.ndarray  # whether the last layer says the same
    ends: np.ndarray  # whether an output ends here, and with it a round

    @classmethod
    def of(cls, outputs: Outputs, bench: Bench, size: tuple[int, int], seed: int = SEED) -> "Script":
        """Outputs in random order, in a batch of `size` rows and tokens."""
        order = np.random.default_rng(seed).permutation(len(outputs.layers))
        ends = [np.arange(len(layers)) == len(layers) - 1 for layers in outputs.layers]

        def one_after_the_other(by_output: list) -> np.ndarray:
            return np.resize(np.concatenate([by_output[number] for number in order]), size)

        return cls(
            layers=deeper(one_after_the_other(outputs.layers), bench, outputs.depth),
            right=one_after_the_other(outputs.right),
            ends=one_after_the_other(ends),
        )


def deeper(layers, bench: Bench, depth: int) -> np.ndarray:
    """Layers of a decoder of some depth as layers of the benchmark's."""
    return np.ceil(np.asarray(layers) * bench.layers / depth).astype(int)


def played(policy: ExitPolicy, script: Script, bench: Bench, depth: int) -> ExitPolicy:
    """The policy with all that it computes; where its tokens exit, the script says."""
    if policy.measure.name == "static":
        return replace(policy, min_layer=int(deeper(policy.min_layer, bench, depth)))
    forced = ForcedExits(script.layers)

    def confidence(decide, state):
        on_host(decide(state))
        return 2 * forced.confidence(state)  # 0, or above the threshold

    layers = deeper(policy.bind(depth, bench.workload.sizes.vocabulary).decision_layers, bench, depth)
    return around(
        policy,
        confidence,
        threshold=1 if policy.measure.integer_threshold else 0.5,
        decay=None,
        decay_form="scaled",
        min_layer=None,
        exit_layers=layers.tolist(),
    )


class ScriptedExits(ExitDrafter):
    """Exits of a model whose layers agree: drafts are wrong, and rounds end, as the script says."""

    def __init__(self, decoder, cache, bound, script: Script):
        super().__init__(decoder, cache, bound)
        self.script = script

    def draft(self, rows):
        super().draft(rows)
        for row in rows:
            row.ready_to_verify |= bool(self.script.ends[row.number, row.position - 1])
        return []

    def _drafted_ids(self, state, exits):
        ids, readout_rows = super()._drafted_ids(state, exits)
        right = self.script.right[state.sequence[exits], state.position[exits]]
        return np.where(right, ids, (ids + 1) % self.bound.vocabulary), readout_rows


def verified(bench: Bench, policy: ExitPolicy, script: Script) -> Run:
    """Decoding with verified exits by a script; a call gives the outputs."""
    import torch

    rows, tokens = script.right.shape
    inputs = bench.inputs(rows)
    bound = bind_policy(policy, bench.decoder)

    @torch.inference_mode()
    def run():
        cache = bench.decoder.begin(inputs, tokens)
        drafter = ScriptedExits(bench.decoder, cache, bound, script)
        return DraftDecoder(bench.decoder, cache, [drafter], np.arange(rows)).decode()

    return run


class Drafting(NamedTuple):
    """A setting of verified exits, and the drafts that it gives in the trained model."""

    setting: Setting
    drafts: Outputs

    def run(self, bench: Bench, batch: int, seed: int = SEED) -> Run:
        """Plays the drafts in the benchmark's decoder."""
        script = Script.of(self.drafts, bench, (batch, TOKENS[batch]), seed)
        return verified(bench, played(self.setting.policy, script, bench, self.drafts.depth), script)

    def labels(self) -> dict:
        """What the table says of it."""
        policy = self.setting.policy
        first, *_ = policy.exit_layers or [policy.min_layer]
        return {
            "expected": self.setting.expected,
            "rule": drafts_by(policy),
            "threshold": policy.threshold,
            "max_draft": policy.max_draft,
            "depth": first / self.drafts.depth,
            "right": float(np.concatenate(self.drafts.right).mean()),
        }


def fastest(bench: Bench, batch: int, settings: list[Drafting]) -> Drafting | None:
    """The fastest setting in a trial on this size, confirmed on other outputs; None: full depth is faster."""

    def seconds(drafting: Drafting | None, seed: int) -> float:
        run = drafting.run(bench, batch, seed) if drafting else bench.ours(batch, tokens=TOKENS[batch])
        return seconds_of(run, bench.device)

    if not settings:
        return None
    trial = partial(seconds, seed=TRIAL_SEED)
    best, speedup = find_fastest(settings, trial, confirming=partial(seconds, seed=CONFIRMING_SEED))
    return settings[best] if speedup >= MIN_SPEEDUP else None


# ---- the parts


def lossy(model: Trained, bench: Bench) -> Iterator[dict]:
    """The cheapest setting of each family of rules that keeps the score for certain, one output at a time."""
    untrained = untrained_classifiers(bench)
    options = model.settings.model_dump()
    runs = {"full depth": bench.ours(1, tokens=TOKENS[1])}
    for number, (labels, outputs) in enumerate(model.kept):
        policy = RULES[labels["rule"]].policy(labels["threshold"], options, untrained)
        script = Script.of(outputs, bench, (1, TOKENS[1]))
        runs[number] = bench.ours(1, played(policy, script, bench, outputs.depth), TOKENS[1])
    bench.take_threads()
    seconds = bench.times(runs)
    for number, (labels, _) in enumerate(model.kept):
        yield labels | {"batch": 1, "values": seconds["full depth"] / seconds[number]}


def lossless(model: Trained, bench: Bench) -> Iterator[dict]:
    """Drafts planned for this size by what the trained model predicts and a trial here; 1 without drafts."""
    length = model.settings.max_new_tokens
    settings = {}
    for task, states in model.states.items():
        ranked, _ = rank_settings(model.model, states, default_policies(), length, bench.workload.sizes)
        settings[task] = [Drafting(one, model.drafts(task, one.policy)) for one in worth_timing(ranked)]
    bench.take_threads()
    for batch in BATCHES:
        runs = {"full depth": bench.ours(batch, tokens=TOKENS[batch])}
        rows = {}
        for task in settings:
            chosen = fastest(bench, batch, settings[task])
            rows[task] = {"task": task, "model": MAIN_MODEL, **(chosen.labels() if chosen else {})}
            if chosen:
                runs[task] = chosen.run(bench, batch)
        seconds = bench.times(runs, pause=PAUSE)
        for task, row in rows.items():
            speed = seconds["full depth"] / seconds[task] if task in runs else [1.0]
            yield row | {"batch": batch, "values": speed}


PARTS: dict[str, Callable[[Trained, Bench], Iterator[dict]]] = {
    "lossy shapes": lossy,
    "lossless shapes": lossless,
}


def run(part: str, profile: str, data: str | None, workload: Workload, rounds: int) -> pd.DataFrame:
    """A row a setting, task and batch of one of `PARTS`: `speed`, `lowest` and `highest`, full depth being 1.

    The shape "mini" stands for the sizes of the profile's own models: how good the simulation is.

    Raises:
        MeeError: nothing was measured for this profile.
    """
    model = trained_of(profile, data, workload.device)
    config = model.model.network.config
    if workload.shape == "mini":
        workload = replace(workload, sizes=DecoderSizes.of(config), d_kv=config.d_kv)
    if workload.sizes.layers < model.model.layers:
        few = f"{workload.shape} has fewer layers than the models of {profile}"
        raise MeeError(f"{few}: time another shape.")
    bench = bench_of(replace(workload, agreeing=part == "lossless shapes"), rounds)
    return summary(PARTS[part](model, bench), "speed").assign(
        against="full depth",
        profile=model.experiment.profile.name,
        part=part,
        shape=workload.shape,
        weights=weights_digest(model.experiment.profile, MAIN_MODEL)[:12],
    )
