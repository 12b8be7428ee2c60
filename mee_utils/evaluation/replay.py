"""Replay: exit policies run on a trace, in numpy, thousands of thresholds in seconds.

A trace knows every block of every token of the full-depth output. A policy is asked at each allowed block what it would have done.
What replay cannot see: a token that exits early leaves other keys and values behind ("copy") or is another token, and both change
what follows. `agreement` measures how much, against real decoding; with "parallel" propagation the first exit that changes a token is
the only cause of a difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from ..tasks.scores import PRIMARY
from .readings import Readings, readings

CHUNK = 4096  # tokens whose states are in memory at a time


class TraceTokens:
    """Some tokens of a trace, at every block.

    Args:
        trace: from `mee_utils.trace`.
        tokens: which.
        model: the model of the trace, for measures that look at states.
    """

    def __init__(self, trace, tokens: slice, model=None):
        self.trace, self.tokens, self.model = trace, tokens, model
        self._blocks: dict[int, TraceObservation] = {}

    def at(self, layer: int) -> TraceObservation:
        """The tokens at one block."""
        return self._blocks.setdefault(layer, TraceObservation(self, layer))

    @cached_property
    def states(self):
        """`n(h)`, `[token, layer, d_model]`, in single precision; a tensor, since it is for networks."""
        from ..exits.training import check_trace, normalized_states

        if self.model is None:
            raise CompanionError("This measure looks at states: give the model of the trace too, as in replay(trace, policy, model=model).")
        check_trace(self.trace, self.model)
        return normalized_states(self.trace, self.tokens, self.model)


class TraceObservation:
    """Tokens of a trace at one block; the attributes that measures look at (see `mee_utils.exits.measures`), as arrays `[token]`."""

    def __init__(self, all_blocks: TraceTokens, layer: int):
        self.all_blocks, self.layer, self.layers = all_blocks, layer, all_blocks.trace.layers
        self.sequence = all_blocks.trace.sequence[all_blocks.tokens]
        self.position = all_blocks.trace.position[all_blocks.tokens]
        self._kept: dict = {}

    def __getattr__(self, name: str):
        if name in ("top1_probability", "top1_id", "margin", "entropy", "similarity"):
            return getattr(self.all_blocks.trace, name)[self.all_blocks.tokens, self.layer - 1]
        raise CompanionError(f'A trace does not keep "{name}": this measure cannot be replayed, decode with it instead.')

    @property
    def state(self):
        """`n(h)`, `[token, d_model]`, a tensor."""
        return self.all_blocks.states[:, self.layer - 1]

    @property
    def settled(self) -> np.ndarray:
        """1 where the prediction is the final one from this block on."""
        trace, tokens = self.all_blocks.trace, self.all_blocks.tokens
        same = trace.top1_id[tokens, self.layer - 1 :] == trace.final_id[tokens, None]
        return same.all(axis=1).astype(np.float64)

    def recall(self, key, make):
        """What a measure keeps with this block."""
        if key not in self._kept:
            self._kept[key] = make(self)
        return self._kept[key]

    def earlier(self, blocks: int) -> TraceObservation:
        """The same tokens, `blocks` blocks before."""
        if blocks >= self.layer:
            raise CompanionError(f"There is no block {blocks} before block {self.layer} to look at: raise the measure's lookback.")
        return self.all_blocks.at(self.layer - blocks)


def confidences(trace, policy: ExitPolicy, model=None) -> np.ndarray:
    """What the policy's measure says at each block it is asked at, `[token, decision]`; some thousand tokens at a time."""
    if not policy.read_out.plain:
        return readings(trace, policy, model).confidences
    decisions = policy.decision_layers(trace.layers)
    found = np.empty((len(trace), len(decisions)))
    for start in range(0, len(trace), CHUNK):
        tokens = slice(start, start + CHUNK)
        chunk = TraceTokens(trace, tokens, model)
        for place, layer in enumerate(decisions):
            found[tokens, place] = np.asarray(policy.rule.confidence(chunk.at(layer)))
    return found


def replay(trace, policy: ExitPolicy, max_new_tokens: int = 64, model=None, asked: np.ndarray | Readings | None = None) -> np.ndarray:
    """The block at which each token of a trace would exit.

    Args:
        trace: from `mee_utils.trace`.
        policy: when to exit.
        max_new_tokens: the `N` of decaying thresholds; as in `generate`.
        model: the model of the trace, where the policy looks at states (trained classifiers, pruned or contrasted read-outs).
        asked: what `confidences` or `readings` returned for this trace and measure, where it is known already.

    Returns:
        `[token]`, 1 to L.

    Raises:
        CompanionError: an adaptive threshold, or a measure that looks at what a trace does not keep.
    """
    if policy.schedule.learns:
        raise CompanionError("An adaptive threshold learns while it decodes and cannot be replayed: use generate.")
    decisions = np.array([*policy.decision_layers(trace.layers), trace.layers])
    asked = _values(confidences(trace, policy, model) if asked is None else asked)
    exceeded = policy.schedule.exceeded(asked, np.asarray(trace.position)[:, None], max_new_tokens)
    always = np.ones((len(trace), 1), dtype=bool)
    return decisions[np.concatenate([exceeded, always], axis=1).argmax(axis=1)]


def _values(asked: np.ndarray | Readings) -> np.ndarray:
    return asked.confidences if isinstance(asked, Readings) else asked


def sweep(
    trace, policy: ExitPolicy, thresholds: Sequence[float], max_new_tokens: int = 64, model=None, asked: np.ndarray | Readings | None = None
) -> pd.DataFrame:
    """Replays a policy at many thresholds.

    Args:
        trace: from `mee_utils.trace`.
        policy: its measure, decay and blocks are kept, its threshold replaced.
        thresholds: the values to try.
        max_new_tokens: as in `replay`.
        model: as in `replay`.
        asked: what `confidences` or `readings` returned for this trace and policy, where it is known already.

    Returns:
        One row a threshold: `threshold`, `mean_exit_layer`, and `same_token`, the share of tokens whose prediction at the exit is
        that of the last block, all of whose ids are read out.
    """
    low, high = policy.rule.range
    if policy.schedule.learns or not policy.rule.has_threshold:
        raise CompanionError(f'"{policy.rule.name}" with threshold={policy.threshold!r} has no threshold to sweep over: use replay or generate.')
    if not all(low <= threshold <= high for threshold in thresholds):
        raise CompanionError(f"Thresholds for {policy.rule.name} lie from {low:g} to {high:g}.")
    if asked is None:
        asked = confidences(trace, policy, model) if policy.read_out.plain else readings(trace, policy, model)
    decisions, rows = np.array([*policy.decision_layers(trace.layers), trace.layers]), []
    said = asked.token_ids if isinstance(asked, Readings) else trace.top1_id[:, decisions - 1]
    same, asked = said == trace.final_id[:, None], _values(asked)
    position, always = np.asarray(trace.position)[:, None], np.ones((len(trace), 1), dtype=bool)
    for threshold in thresholds:
        schedule = dataclasses.replace(policy.schedule, level=float(threshold))
        chosen = np.concatenate([schedule.exceeded(asked, position, max_new_tokens), always], axis=1).argmax(axis=1)
        rows.append((float(threshold), decisions[chosen].mean(), same[np.arange(len(trace)), chosen].mean()))
    return pd.DataFrame(rows, columns=["threshold", "mean_exit_layer", "same_token"])


def agreement(trace, generation, policy: ExitPolicy, max_new_tokens: int = 64, model=None) -> dict[str, float]:
    """How well a replay foretells real decoding with the same policy on the same inputs.

    Args:
        trace: of the model's own full-depth output.
        generation: what `generate` returned for the inputs of the trace.
        policy: the policy of both.
        max_new_tokens: of both.
        model: as in `replay`.

    Returns:
        `same_output`: share of outputs that are the full-depth ones; `same_exit`: share of tokens, up to the first that differs from
        the full-depth output, with the same exit block; `mean_exit_layer_replay`, `mean_exit_layer_decoded`.
    """
    if trace.along != "greedy" or len(set(trace.sequence)) != len(generation.token_ids):
        raise CompanionError("Give the trace of the model's own output, trace(model, inputs), on the inputs that were decoded.")
    exits, same_output, same_exit = replay(trace, policy, max_new_tokens, model), [], []
    starts = np.searchsorted(trace.sequence, np.arange(len(generation.token_ids) + 1))
    for index, (ids, layers) in enumerate(zip(generation.token_ids, generation.exit_layers, strict=True)):
        full, foretold = trace.token_id[starts[index] : starts[index + 1]], exits[starts[index] : starts[index + 1]]
        length = min(len(full), len(ids))
        differs = np.flatnonzero(full[:length] != np.array(ids[:length]))
        upto = int(differs[0]) + 1 if len(differs) else length
        same_output.append(len(ids) == len(full) and not len(differs))
        same_exit.append(foretold[:upto] == layers[:upto])
    return {
        "same_output": float(np.mean(same_output)),
        "same_exit": float(np.concatenate(same_exit).mean()),
        "mean_exit_layer_replay": float(exits.mean()),
        "mean_exit_layer_decoded": generation.mean_exit_layer,
    }


def replay_against_decoding(
    model, task, trace, policies: dict[str, ExitPolicy], max_new_tokens: int = 64, batch_size: int = 32
) -> pd.DataFrame:
    """Decodes for real with each policy and sets it beside its replay, and the score beside that of full depth.

    Args:
        model: from `load_model`.
        task: its inputs, and its score.
        trace: of the model's own full-depth output on the inputs of the task.
        policies: name -> policy.
        max_new_tokens: the longest output.
        batch_size: rows at a time.

    Returns:
        One row a policy: what `agreement` returns, the task's primary `score` and `full_score`, and `flops_share`, the decoder's operations
        a token as a share of those at full depth.
    """
    from ..decoding.generation import generate

    settings, metric, rows = dict(max_new_tokens=max_new_tokens, batch_size=batch_size), PRIMARY[task.name], []
    full = generate(model, task.inputs, **settings)
    full_score = task.score(full.texts)[metric]
    for name, policy in policies.items():
        found = generate(model, task.inputs, policy, **settings)
        rows.append(
            {
                "task": task.name, "model": model.name, "policy": name, **agreement(trace, found, policy, max_new_tokens, model), "metric": metric,
                "score": task.score(found.texts)[metric], "full_score": full_score,
                "flops_share": found.flops.sum() / found.tokens / (full.flops.sum() / full.tokens),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
