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
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.common.errors import MeeError
from mee_utils.companion.catalogue import MAIN_MODEL, RULES
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.inputs import weights_digest
from mee_utils.companion.kinds import COPIES, FIXED, LOSSLESS, PLANNED, VERIFIED
from mee_utils.companion.result_tables import AGAIN
from mee_utils.decoding.drafts import CopyDrafter, ExitDrafter
from mee_utils.decoding.full_depth import (
    Batch,
    FullDepthStates,
    encode_batches,
    full_depth_states,
    replay_states,
)
from mee_utils.decoding.generation import bind_policy, generate
from mee_utils.decoding.inputs import input_ids
from mee_utils.decoding.layerwise import decoder_of
from mee_utils.decoding.planning import (
    MIN_SPEEDUP,
    default_policies,
    find_fastest,
    kind_of,
    kinds_of,
    worth_timing,
)
from mee_utils.decoding.ranking import Setting, copied_along, decision_seconds, rank_settings
from mee_utils.decoding.rounds import first_exits
from mee_utils.decoding.step_costs import StepCosts, measured_steps
from mee_utils.decoding.token import on_host
from mee_utils.decoding.verify import DraftDecoder
from mee_utils.exits.copies import Copies
from mee_utils.exits.measures import ForcedExits
from mee_utils.exits.policy import BoundPolicy, ExitPolicy
from mee_utils.models.costs import DecoderSizes

from .clock import beside_first, in_random_order, seconds_of
from .decoder import around, untrained_classifiers
from .rules import BATCHES, drafts_by, experiment_on, policies_of, timed_settings
from .workloads import SEED, Bench, Run, Workload, bench_of

KEYS = ("profile", "shape", "task", "batch", "kind", "rule", "threshold")
EXAMPLES = 64  # outputs of each task that are played
TOKENS = {1: 16, 8: 16, 32: 12}  # batch -> tokens that each row plays
SCRIPTS = {1: 24, 8: 12, 32: 8}  # batch -> how often, each time other outputs; thrice in a narrow model
IN_BATCHES = (FIXED, "pruned", *LOSSLESS)  # kinds that are played in batches too
LAYERS = (6, 11)  # of twelve, at which tokens exit from fixed layers
TRIAL_SEED = 1001
CONFIRMING_SEED = 2001


# ---- what the trained model does


class Outputs(NamedTuple):
    """What the trained model does, `[token]` of each output, in a decoder of `depth` layers."""

    layers: list[np.ndarray]  # at which the token exits or is drafted; the last: neither
    right: list[np.ndarray]  # whether a draft is the last layer's token
    depth: int
    copied: list[np.ndarray] | None = None  # how many tokens a round copies that begins there
    copied_right: list[np.ndarray] | None = None  # how many of them are right


class Trained:
    """The main model of a profile and what it does on a few examples."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.settings = experiment.profile.results
        (self.model,) = experiment.models([MAIN_MODEL]).values()
        self.model.network.float()
        self.tasks = experiment.tasks(EXAMPLES)

    @cached_property
    def decided_alone(self) -> list[tuple[dict, Outputs]]:
        """What keeps the score (`rules.timed_settings`), and two fixed layers, with their exits."""
        settings = timed_settings(self.experiment.profile.name)
        layers = [round(layer / 12 * self.model.layers) for layer in LAYERS]
        fixed = pd.DataFrame(product(self.tasks, layers), columns=["task", "threshold"])
        fixed = fixed.assign(kind=FIXED, rule="static")
        rows = pd.concat([fixed, settings[settings.rule != "static"]])
        policies = policies_of(self.experiment, self.model, rows)
        length = self.settings.max_new_tokens
        played = []
        for row, policy in zip(rows.itertuples(), policies, strict=True):
            inputs = self.tasks[row.task].inputs
            exits = generate(self.model, inputs, policy, max_new_tokens=length).exit_layers
            labels = {"task": row.task, "kind": row.kind, "rule": row.rule, "threshold": row.threshold}
            labels["depth"] = float(np.concatenate(exits).mean() / self.model.layers)
            played.append((labels, Outputs(exits, [exit > 0 for exit in exits], self.model.layers)))
        return played

    @cached_property
    def states(self) -> dict[str, FullDepthStates]:
        """By task: the states of all tokens at full depth."""
        length = self.settings.max_new_tokens
        ids_of = partial(input_ids, self.model.tokenizer)
        return {
            name: full_depth_states(self.model, encode_batches(self.model, ids_of(task.inputs)), length)
            for name, task in self.tasks.items()
        }

    def batch(self, task: str, rows: int) -> Batch:
        """Some inputs of a task, encoded."""
        ids = input_ids(self.model.tokenizer, self.tasks[task].inputs[:rows])
        (batch,) = encode_batches(self.model, ids, batch_size=rows)
        return batch

    def drafts(self, task: str, policy: ExitPolicy) -> Outputs:
        """The drafts of a policy."""
        states = self.states[task]
        length = self.settings.max_new_tokens
        ends = np.flatnonzero(np.diff(states.sequence)) + 1
        copied = {}
        if policy.copies:
            found = copied_along(policy.copies, states, length)
            # behind a copy stands a token of the last layer's, in the same output
            left = np.searchsorted(states.sequence, states.sequence, side="right")
            left = left - np.arange(len(left)) - 1
            offered = np.minimum(found.offered, left)
            copied["copied"] = np.split(offered, ends)
            copied["copied_right"] = np.split(np.minimum(found.right, offered), ends)
        if kind_of(policy) == "copies":
            never = np.split(np.full(len(states.sequence), self.model.layers), ends)
            return Outputs(never, [layers < 0 for layers in never], self.model.layers, **copied)
        replay = replay_states(self.model, states, policy)
        exits = first_exits(replay.bound, replay.confidences, states.sequence, states.position, length)
        layers = np.array([*replay.bound.decision_layers, self.model.layers])[exits]
        no_draft = np.full((len(exits), 1), -1)
        drafted = np.hstack([replay.token_ids, no_draft])[np.arange(len(exits)), exits]
        right = np.split(drafted == states.final_id, ends)
        return Outputs(np.split(layers, ends), right, self.model.layers, **copied)


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
    # how many tokens a round copies that begins here; None: there are no copies
    copied: np.ndarray | None = None
    copied_right: np.ndarray | None = None  # how many of them are right

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
            copied=None if outputs.copied is None else one_after_the_other(outputs.copied),
            copied_right=None if outputs.copied is None else one_after_the_other(outputs.copied_right),
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


class ScriptedCopies(CopyDrafter):
    """Copies of outputs that are known, `[row, token]`: as many, and as many right, as the script says."""

    def __init__(self, decoder, cache, copies, alone, script: Script, outputs: np.ndarray):
        super().__init__(decoder, cache, copies, alone)
        self.script = script
        self.outputs = outputs

    def _copied(self, row):
        looked_for = super()._copied(row)  # and not listened to
        at = row.number, row.position
        ids = self.outputs[row.number, row.position : row.position + self.script.copied[at]].copy()
        wrong = slice(self.script.copied_right[at], None)
        ids[wrong] = (ids[wrong] + 1) % self.decoder.config.vocab_size
        return ids.tolist() if looked_for is not None else []


def verified(bench: Bench, policy: ExitPolicy, script: Script) -> Run:
    """Decoding with verified drafts by a script; a call gives the outputs."""
    import torch

    rows, tokens = script.right.shape
    inputs = bench.inputs(rows)
    bound = bind_policy(policy, bench.decoder)
    known = None if script.copied is None else known_outputs(bench, rows, tokens)

    @torch.inference_mode()
    def run():
        cache = bench.decoder.begin(inputs, tokens)
        drafters = []
        if known is not None:
            alone = not bound.decision_layers
            drafters.append(ScriptedCopies(bench.decoder, cache, policy.copies, alone, script, known))
        if bound.decision_layers:
            drafters.append(ScriptedExits(bench.decoder, cache, bound, script))
        return DraftDecoder(bench.decoder, cache, drafters, np.arange(rows)).decode()

    return run


@cache
def known_outputs(bench: Bench, rows: int, tokens: int) -> np.ndarray:
    """What the benchmark's model writes at full depth, `[row, token]`."""
    return np.array([output.token_ids for output in bench.ours(rows, tokens=tokens)()])


class Drafting(NamedTuple):
    """A setting of verified exits, and the drafts that it gives in the trained model."""

    setting: Setting
    drafts: Outputs

    def run(self, bench: Bench, batch: int, seed: int = SEED) -> Run:
        """Plays the drafts in the benchmark's decoder."""
        script = Script.of(self.drafts, bench, (batch, TOKENS[batch]), seed)
        return verified(bench, played(self.setting.policy, script, bench, self.drafts.depth), script)

    def labels(self) -> dict:
        """What the table says of it; `depth` is where the first draft may be made."""
        policy = self.setting.policy
        labels = {"drafts": kind_of(policy), "expected": self.setting.expected, "rule": drafts_by(policy)}
        if labels["drafts"] == "copies":
            return labels
        first, *_ = policy.exit_layers or [policy.min_layer]
        return labels | {
            "threshold": policy.threshold,
            "max_draft": policy.max_draft,
            "depth": first / self.drafts.depth,
            "right": float(np.concatenate(self.drafts.right).mean()),
        }


def fastest(bench: Bench, batch: int, settings: list[Drafting]) -> Drafting | None:
    """The fastest setting in a trial on this size, confirmed on other outputs; None: full depth is faster."""

    def seconds(drafting: Drafting | None, turn: int, seed: int) -> float:
        plain = bench.ours(batch, tokens=TOKENS[batch])
        return seconds_of(drafting.run(bench, batch, seed + turn) if drafting else plain, bench.device)

    if not settings:
        return None
    trial = partial(seconds, seed=TRIAL_SEED)
    best, speedup = find_fastest(settings, trial, confirming=partial(seconds, seed=CONFIRMING_SEED))
    return settings[best] if speedup >= MIN_SPEEDUP else None


# ---- the part


class Contender(NamedTuple):
    """One line of the table, and what it runs for the outputs that a seed puts in order."""

    labels: dict
    run: Callable[[int], Run]


def contenders(model: Trained, bench: Bench, batch: int, task: str) -> list[Contender]:
    """What is played of a task at a batch size: exits that decide alone, and drafts, planned if they pay."""
    untrained = untrained_classifiers(bench)
    options = model.settings.model_dump()
    size = batch, TOKENS[batch]

    def of_rule(labels: dict, outputs: Outputs) -> Contender:
        policy = RULES[labels["rule"]].policy(labels["threshold"], options, untrained)

        def run(seed: int) -> Run:
            script = Script.of(outputs, bench, size, seed)
            return bench.ours(batch, played(policy, script, bench, outputs.depth), TOKENS[batch])

        return Contender(labels, run)

    wanted = [each for each in model.decided_alone if each[0]["task"] == task]
    if batch > 1:
        wanted = [each for each in wanted if each[0]["kind"] in IN_BATCHES]
    found = [of_rule(*each) for each in wanted]
    for kind, drafting in planned(model, bench, batch, task).items():
        labels = {"task": task, "kind": kind} | drafting.labels()
        found.append(Contender(labels, lambda seed, drafting=drafting: drafting.run(bench, batch, seed)))
    return found


def planned(model: Trained, bench: Bench, batch: int, task: str) -> dict[str, Drafting]:
    """Copies, and the fastest drafts of exits and of all kinds; not those slower than full depth."""
    states = model.states[task]
    steps = measured_steps(bench.decoder, bench.batch(batch))
    own = measured_steps(decoder_of(model.model.network), model.batch(task, batch))
    layers = model.model.layers
    # what a layer of the trained model stands for
    share = {
        "layers": layers,
        "layer": steps.layer * bench.layers / layers,
        "wider": steps.wider * bench.layers / layers,
    }

    def costs_of(bound: BoundPolicy) -> StepCosts:
        decision = 0.0
        if bound.decision_layers:
            decision = decision_seconds(model.model, states, bound, batch, own.readout)
        return steps._replace(decision=decision, **share)

    length = model.settings.max_new_tokens
    everything = kinds_of(default_policies(), layers)
    ranked, _ = rank_settings(model.model, states, everything, length, costs_of, batch)

    def drafting(settings: list[Setting]) -> list[Drafting]:
        return [Drafting(setting, model.drafts(task, setting.policy)) for setting in settings]

    chosen = {COPIES: drafting([Setting(ExitPolicy.copying(Copies(), layers), np.nan)])[0]}
    exits = [setting for setting in ranked if not setting.policy.copies]
    for kind, settings in ((VERIFIED, exits), (PLANNED, ranked)):
        if best := fastest(bench, batch, drafting(worth_timing(settings))):
            chosen[kind] = best
    return chosen


def timings(model: Trained, bench: Bench) -> Iterator[pd.DataFrame]:
    """A table for each batch size and task."""
    bench.take_threads()
    for batch, task in product(BATCHES, model.tasks):
        compared = contenders(model, bench, batch, task)
        print(f"{bench.workload.shape}, {task}: {len(compared)} exits and drafts, batch {batch}", flush=True)
        full = Contender({}, lambda seed, batch=batch: bench.ours(batch, tokens=TOKENS[batch]))
        runs = {
            number: lambda script, one=one: seconds_of(one.run(script + 1), bench.device)
            for number, one in enumerate([full, full, *compared])
        }
        scripts = SCRIPTS[batch] * bench.rounds
        seconds = pd.DataFrame(in_random_order(runs, scripts))[list(runs)].to_numpy()
        speed = beside_first(np.ones_like(seconds), seconds)
        rows = pd.DataFrame({"speed": speed.value, "low": speed.low, "high": speed.high})
        again = dict(zip(AGAIN, rows.loc[1], strict=True))
        labels = pd.DataFrame([one.labels for one in compared]).assign(batch=batch)
        yield labels.join(rows[2:].reset_index(drop=True)).assign(**again, batches=scripts)


def run(profile: str, data: str | None, workload: Workload) -> pd.DataFrame:
    """A row a setting, task and batch: `speed` with its interval, full depth being 1, and `again`.

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
    bench = bench_of(replace(workload, agreeing=True), 1)
    return pd.concat(timings(model, bench), ignore_index=True).assign(
        profile=model.experiment.profile.name,
        shape=workload.shape,
        weights=weights_digest(model.experiment.profile, MAIN_MODEL)[:12],
    )
