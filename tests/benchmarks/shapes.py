"""`make bench`, third part: what the exits of the trained models would cost in decoders of other sizes.

A decoder of T5's sizes with random weights plays what a trained mini model did: its tokens leave at the same
relative depth, and the same drafts are right and wrong. Every decision is computed as there, and then not
listened to. Exits are decided at those layers alone that stand for one of the mini model's. Cost does not
depend on what the weights are, so this is what a model of that size with such exits would cost.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from mee_utils.common.errors import MeeError
from mee_utils.decoding.full_depth import FullDepthStates, encode_batches, full_depth_states, replay_states
from mee_utils.decoding.generation import bind_policy, generate
from mee_utils.decoding.planning import MIN_SPEEDUP, SETTINGS_TIMED, default_policies, rank_settings
from mee_utils.decoding.rounds import first_exits
from mee_utils.decoding.token import on_host
from mee_utils.decoding.verify import UNSURE, DraftDecoder, Row
from mee_utils.exits.measures import ForcedExits
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.loading import Model
from mee_utils.study.catalogue import MAIN_MODEL, RULES
from mee_utils.study.experiment import Experiment
from mee_utils.study.inputs import weights_digest
from mee_utils.study.result_tables import best_of_families

from .clock import summary
from .decoder import PAUSE, SEED, WORKLOADS, Bench, Run, around, ctranslate2_peer, untrained_classifiers
from .rules import BATCHES, certain, drafts_by, trained

KEYS = ("profile", "part", "shape")
EXAMPLES = 64  # outputs of each task that are played


class Script(NamedTuple):
    """What each row of a batch does, `[row, token]`: outputs of the mini model, one after the other."""

    layers: np.ndarray  # of the larger decoder, at which the token leaves or is drafted
    right: np.ndarray  # whether the last layer says the same
    ends: np.ndarray  # whether an output ends here, and with it a round

    @classmethod
    def of(cls, bench: Bench, batch: int, layers: list, right: list, depth: int) -> "Script":
        """From `[token]` of each output, with layers of a decoder of this depth."""
        order = np.random.default_rng(SEED).permutation(len(layers))
        ends = [np.arange(len(output)) == len(output) - 1 for output in layers]

        def one_after_the_other(outputs: list) -> np.ndarray:
            tokens = np.concatenate([outputs[number] for number in order])
            return np.resize(tokens, (batch, bench.workload.tokens))

        return cls(
            layers=deeper(one_after_the_other(layers), bench, depth),
            right=one_after_the_other(right),
            ends=one_after_the_other(ends),
        )


def deeper(layers, bench: Bench, depth: int) -> np.ndarray:
    """Layers of a decoder of some depth as layers of the benchmark's."""
    return np.ceil(np.asarray(layers) * bench.layers / depth).astype(int)


def played(policy: ExitPolicy, script: Script, bench: Bench, depth: int) -> ExitPolicy:
    """The policy with all that it computes; where its tokens leave, the script says."""
    if policy.measure.name == "static":
        return replace(policy, min_layer=int(deeper(policy.min_layer, bench, depth)))
    forced = ForcedExits(script.layers)

    def confidence(decide, state):
        on_host(decide(state))
        return forced.confidence(state)

    layers = deeper(policy.bind(depth, bench.workload.sizes.vocabulary).decision_layers, bench, depth)
    return around(
        policy,
        confidence,
        threshold=0.5,
        decay=None,
        decay_form="scaled",
        min_layer=None,
        exit_layers=layers.tolist(),
    )


class Actor(Row):
    """A row whose drafts are right where the script says so."""

    right: np.ndarray  # `[token]`
    vocabulary: int

    def settle(self, predicted: list[int], layers: int, vocabulary: int) -> None:
        begin = len(self.token_ids)
        played = [
            token if draft.token_id == UNSURE else (draft.token_id + (not right)) % vocabulary
            for draft, token, right in zip(self.drafts, predicted, self.right[begin:], strict=False)
        ]
        super().settle(played, layers, vocabulary)


class Actors(DraftDecoder):
    """Verified exits by a script: rounds end where its outputs do."""

    def __init__(self, decoder, cache, bound, script: Script):
        super().__init__(decoder, cache, bound, np.arange(len(script.right)))
        self.rows = [Actor(row.sequence, row.slot, row.last) for row in self.rows]
        for row, right in zip(self.rows, script.right, strict=True):
            row.right = right
        self.ends_at = script.ends

    def _record_drafts(self, rows, state, exits) -> None:
        super()._record_drafts(rows, state, exits)
        for index in state.rows[exits]:
            row = rows[index]
            row.ready_to_verify |= bool(self.ends_at[row.sequence, row.position - 1])


def verified(bench: Bench, policy: ExitPolicy, script: Script) -> Run:
    """Decoding with verified exits by a script; a call gives the outputs."""
    import torch

    inputs = bench.inputs(len(script.right))
    bound = bind_policy(policy, bench.decoder)

    @torch.inference_mode()
    def run():
        cache = bench.decoder.begin(inputs, bench.workload.tokens)
        return Actors(bench.decoder, cache, bound, script).decode()

    return run


def assisted_peer(bench: Bench, layers: int) -> Run:
    """`generate` with its first layers as `assistant_model`, all weights shared. Every draft is right.

    What later layers add to the states is set to zero, at no less work: the most that drafting gains there.
    """
    import torch

    peer = copy.copy(bench)
    peer.network = copy.deepcopy(bench.network)
    decoder = peer.network.decoder
    with torch.no_grad():
        for attention, cross, feed_forward in (block.layer for block in decoder.block[layers:]):
            outputs = attention.SelfAttention.o, cross.EncDecAttention.o, feed_forward.DenseReluDense.wo
            for linear in outputs:
                linear.weight.zero_()
    first = copy.copy(decoder)
    assistant = copy.copy(peer.network)
    first._modules = {**decoder._modules, "block": decoder.block[:layers]}
    assistant._modules = {**assistant._modules, "decoder": first}
    first.config = assistant.config = copy.deepcopy(decoder.config)
    first.config.num_decoder_layers = layers
    assistant.generation_config = copy.deepcopy(assistant.generation_config)
    assistant.generation_config.eos_token_id = None
    peer.network.generate = partial(peer.network.generate, assistant_model=assistant)
    return peer.generate(1)


def lossy(experiment: Experiment, bench: Bench) -> Iterator[dict]:
    """The cheapest setting of each family of rules that keeps the score for certain, decoded, and played."""
    settings = experiment.profile.results
    best = best_of_families(certain(experiment.profile.name), ["task"], "flops_share")
    (model,) = experiment.models([MAIN_MODEL]).values()
    model.network.float()
    classifiers = trained(experiment, model)
    untrained = untrained_classifiers(bench)
    tasks = experiment.tasks(EXAMPLES)
    options = settings.model_dump()
    rows = []
    runs = {"full depth": bench.ours(1)}
    for number, row in enumerate(best.itertuples()):
        rule = RULES[row.rule]
        inputs = tasks[row.task].inputs
        policy = rule.policy(row.threshold, options, classifiers)
        exits = generate(model, inputs, policy, max_new_tokens=settings.max_new_tokens).exit_layers
        all_right = [np.ones(len(output)) for output in exits]
        script = Script.of(bench, 1, exits, all_right, model.layers)
        same_cost = rule.policy(row.threshold, options, untrained)
        runs[number] = bench.ours(1, played(same_cost, script, bench, model.layers))
        rows.append(
            {
                "task": row.task,
                "rule": row.rule,
                "threshold": row.threshold,
                "depth": float(np.concatenate(exits).mean() / model.layers),
            }
        )
    bench.take_threads()
    seconds = bench.times(runs)
    for number, row in enumerate(rows):
        speed = seconds["full depth"] / seconds[number]
        yield row | {"batch": 1, "against": "full depth", "values": speed}


def lossless(experiment: Experiment, bench: Bench) -> Iterator[dict]:
    """Drafts planned for this size by what the trained models predict and a trial here, and peers."""
    (model,) = experiment.models([MAIN_MODEL]).values()
    longest = experiment.profile.results.max_new_tokens
    promising = {}
    for name, task in experiment.tasks(EXAMPLES).items():
        states = full_depth_states(model, encode_batches(model, task.inputs), longest)
        ranked, _ = rank_settings(model, states, default_policies(), longest, bench.workload.sizes)
        promising[name] = [
            (setting, drafts_of(model, states, setting.policy, longest))
            for setting in ranked[:SETTINGS_TIMED]
            if setting.expected >= MIN_SPEEDUP
        ]
    bench.take_threads()
    for batch in BATCHES:
        peers = {
            "transformers generate": bench.generate(batch),
            "CTranslate2": ctranslate2_peer(bench, batch),
        }
        if batch == 1:
            peers["transformers, assistant"] = assisted_peer(bench, max(1, bench.layers // 3))
        runs = {"full depth": bench.ours(batch)} | peers
        rows = []
        for task, settings in promising.items():
            row = {"task": task, "model": MAIN_MODEL}
            rows.append(row)
            fastest = _fastest(bench, batch, settings, model.layers)
            if fastest is not None:
                row.update(fastest.row)
                runs[task] = fastest.run
        seconds = bench.times(runs, pause=PAUSE)
        for row in rows:
            speed = seconds["full depth"] / seconds[row["task"]] if row["task"] in seconds else [1.0]
            yield row | {"batch": batch, "against": "full depth", "values": speed}
        for peer in peers:
            speed = seconds["full depth"] / seconds[peer]
            yield {"rule": peer, "batch": batch, "against": "full depth", "values": speed}


class Planned(NamedTuple):
    """The fastest of some settings: its columns in the table, and a run of it."""

    row: dict
    run: Run


def _fastest(bench: Bench, batch: int, settings: list, depth: int) -> Planned | None:
    """The fastest of `(setting, drafts)` in a trial on this size; None if full depth is faster."""
    runs = {}
    for number, (setting, drafts) in enumerate(settings):
        script = Script.of(bench, batch, drafts.layers, drafts.right, depth)
        runs[number] = verified(bench, played(setting.policy, script, bench, depth), script)
    if not runs:
        return None
    seconds = bench.times({"full depth": bench.ours(batch)} | runs)
    speeds = {number: np.median(seconds["full depth"] / seconds[number]) for number in runs}
    best = max(speeds, key=speeds.get)
    if speeds[best] < MIN_SPEEDUP:
        return None
    setting, drafts = settings[best]
    policy = setting.policy
    first, *_ = policy.exit_layers or [policy.min_layer]
    row = {
        "expected": setting.expected,
        "rule": drafts_by(policy),
        "threshold": policy.threshold,
        "max_draft": policy.max_draft,
        "depth": first / depth,
        "right": float(np.concatenate(drafts.right).mean()),
    }
    return Planned(row, runs[best])


class Drafts(NamedTuple):
    """What the trained model's drafts are, `[token]` of each output."""

    layers: list[np.ndarray]  # at which the token is drafted; the last: not at all
    right: list[np.ndarray]  # whether the draft is the last layer's token


def drafts_of(model: Model, states: FullDepthStates, policy: ExitPolicy, max_new_tokens: int) -> Drafts:
    """The drafts of a policy on the outputs of the trained model."""
    replay = replay_states(model, states, policy)
    exits = first_exits(replay.bound, replay.confidences, states.sequence, states.position, max_new_tokens)
    layers = np.array([*replay.bound.decision_layers, model.layers])[exits]
    drafted = np.hstack([replay.token_ids, np.full((len(exits), 1), -1)])[np.arange(len(exits)), exits]
    ends = np.flatnonzero(np.diff(states.sequence)) + 1
    return Drafts(np.split(layers, ends), np.split(drafted == states.final_id, ends))


PARTS: dict[str, Callable] = {"lossy shapes": lossy, "lossless shapes": lossless}


def run(
    part: str, profile: str, data: str | None, shapes: list[str], rounds: int, progress: Callable
) -> pd.DataFrame:
    """A row a setting, task, shape and batch: `speed`, `lowest` and `highest`, full depth being 1.

    Raises:
        MeeError: nothing was measured for this profile.
    """
    tables = []
    for shape in shapes or WORKLOADS:
        experiment = Experiment(None, profile, data)
        if experiment.layers > WORKLOADS[shape].sizes.layers:
            few = f"{shape} has fewer layers than the models of {profile}"
            raise MeeError(f"{few}: time another shape.")
        progress(f"{shape}: {part}")
        bench = Bench(WORKLOADS[shape], 3 * rounds if shape == "mini" else rounds)
        table = summary(PARTS[part](experiment, bench), "speed").assign(
            profile=experiment.profile.name,
            part=part,
            shape=shape,
            weights=weights_digest(experiment.profile, MAIN_MODEL)[:12],
        )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
