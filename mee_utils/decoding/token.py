"""One token of several rows, from its embedding to its exit: the heart of early exiting.

    embed -> layer 1 -> confident? -> layer 2 -> confident? -> ... -> layer L -> LM head

`TokenDecoder.decode` is that loop, for one token of each row of a batch. `exit_state` has what a measure sees
after a layer, and how it decides. Rows that exit keep their state, and their token is the prediction of their
layer. `decode_tokens` goes from token to token, until all outputs have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError
from ..exits.policy import BoundPolicy
from .exit_state import ExitState, Step, decide, states_by_layer
from .layerwise import Cache, LayerwiseDecoder, Rows, on_device, waiting_positions
from .outputs import Output
from .transfers import on_host, pick

DROP_FINISHED_AT = 0.5  # rows whose output has ended leave the cache once no more than this share goes on


class StepTokens:
    """The tokens of one step, one a row.

    Rows are added as they exit: with their ids where the layer's prediction is known by then, else with their
    states. `complete` predicts the missing ids from all these states at once.

    Attributes:
        exit_layers, confidences, readout_rows: `[row]`, on the host.
        ids, device_ids: `[row]`, on the host and on the device; there once `complete` was called.
    """

    def __init__(self, step: Step):
        rows = len(step.sequence)
        self.step = step
        self.exit_layers = np.zeros(rows, dtype=np.int32)
        self.confidences = np.zeros(rows, dtype=np.float32)
        self.readout_rows = np.zeros(rows, dtype=np.int64)
        self._with_ids: list[tuple[np.ndarray, Tensor]] = []  # some rows, and their ids
        self._with_states: list[tuple[np.ndarray, Tensor]] = []  # some rows, and their exit states

    def add(self, rows: np.ndarray, layers, confidences, *, ids=None, states=None) -> None:
        """Adds some rows of the step, ascending, with their `ids` `[rows]` or `states` `[rows, d_model]`.

        `layers` and `confidences` are numbers, or `[rows]`.
        """
        self.exit_layers[rows] = layers
        self.confidences[rows] = confidences
        self.readout_rows[rows] = self.step.readout_rows[rows]
        if ids is not None:
            self._with_ids.append((rows, ids))
        else:
            self._with_states.append((rows, states))

    def complete(self) -> StepTokens:
        """Predicts the missing ids, all in one readout. Raises `MeeError` where a state is not finite."""
        if self._with_states:
            self._with_ids.append(self._predict())
        rows = np.concatenate([rows for rows, _ in self._with_ids])
        ids = torch.cat([ids for _, ids in self._with_ids])
        if (np.diff(rows) < 0).any():  # rows stand in the order of their exits
            ids = ids[on_device(np.argsort(rows), ids)]
        self.device_ids = ids
        self.ids = on_host(ids)
        check_finite(self.ids, self.step.sequence, self.exit_layers)
        return self

    def _predict(self) -> tuple[np.ndarray, Tensor]:
        """The rows that were added with their states, and their ids."""
        decoder = self.step.decoder
        rows = np.concatenate([rows for rows, _ in self._with_states])
        states = torch.cat([states for _, states in self._with_states])
        self.readout_rows[rows] += self.step.bound.vocabulary
        return rows, predicted_ids(decoder.logits(decoder.norm(states)))


class TokenRun:
    """The present token of some rows on its way through the layers; rows leave it as they exit.

    In a narrow model exited rows stay in the batch, masked, until all have exited: taking them out costs more
    than running them. The mask keeps their exit state as it is, so that higher layers get keys and values of
    that state ("copy"). FLOPs count each row as if it were decoded alone.
    """

    def __init__(self, step: Step, rows: Rows):
        self.step = step
        self.rows = rows
        self.x = step.decoder.embed(step.fed)  # [rows, d_model]
        self.step_rows = np.arange(len(rows))  # [rows], which rows of the step these are
        self.active = np.ones(len(rows), dtype=bool)  # [rows], which have not exited
        self._mask: Tensor | None = None  # the same, [rows, 1], on the device; None: all

    def state_after(self, layer: int, previous: ExitState | None) -> ExitState:
        """Runs one layer."""
        before = self.x
        self.x = self.step.decoder.run_layer(layer, before, self.rows)
        if self._mask is not None:
            self.x = torch.where(self._mask, self.x, before)
        return ExitState(self.step, layer, self.x, before, self.step_rows, previous)

    def exit(self, exits: np.ndarray) -> None:
        """Marks rows as exited, `[rows]`; takes exited rows out once enough have."""
        self.active = self.active & ~exits
        few_active = self.active.sum() <= self.step.decoder.compact_below * len(self.rows)
        if few_active or self.rows.cache.parallel:
            self._take_out_exited()
        else:
            self._mask_exited()

    def _take_out_exited(self) -> None:
        """Stores the exit states of exited rows and goes on with the others alone."""
        self._mask = None
        self.rows.keep(~self.active).store_exit_state(pick(self.x, ~self.active))
        if not self.active.any():
            return
        self.x = pick(self.x, self.active)
        self.rows = self.rows.keep(self.active)
        self.step_rows = self.step_rows[self.active]
        self.active = np.ones(len(self.rows), dtype=bool)

    def _mask_exited(self) -> None:
        """Leaves exited rows in the batch; their states do not change any more."""
        self._mask = on_device(self.active[:, None], self.x)


class TokenDecoder:
    """Decodes the tokens of one batch, one at a time; `bound` says when they exit."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy):
        self.decoder = decoder
        self.cache = cache
        self.bound = bound
        # for thresholds that learn: confidence and id of each input's tokens since it last ran all layers
        self.shallow: dict[int, list[tuple[float, int]]] = defaultdict(list)

    def decode(self, rows: Rows, ids: Tensor, sequence: np.ndarray) -> StepTokens:
        """Brings one token of each row to its exit and predicts it.

        Args:
            rows: where they are in the cache; `cache.position` is the position of the token.
            ids: the tokens before, `[row]`.
            sequence: indices of the rows' inputs, `[row]`.

        Raises:
            MeeError: for states that are not finite.
        """
        bound = self.bound
        source = self.cache.source_ids
        step = Step(self.decoder, bound, sequence, self.cache.position, ids, source, rows.slots)
        if bound.measure.needs_all_layers:
            return self._decode_in_hindsight(step, rows)
        run = TokenRun(step, rows)
        tokens = StepTokens(step)
        for state in states_by_layer(run.state_after, bound.layers):
            if state.layer not in bound.decision_layers:
                continue
            exits = decide(bound, state, self.cache.max_new_tokens) & run.active
            if bound.schedule.learns:
                self._note_shallow(state)
            if exits.any():
                _add_exits(tokens, state, exits)
                run.exit(exits)
                if not run.active.any():
                    return tokens.complete()
        _add_last(tokens, state, run.active)  # after the loop `state` is the last layer's
        tokens.complete()
        if bound.schedule.learns:
            self._learn(run, tokens)
        return tokens

    def _decode_in_hindsight(self, step: Step, rows: Rows) -> StepTokens:
        """For measures that need all layers (the oracle): all are run, then the token goes back."""
        run = TokenRun(step, rows)
        states = list(states_by_layer(run.state_after, self.bound.layers))
        exit_layers, confidences = self._exits_in_hindsight(states)
        step.readout_rows[:] = 0  # what the oracle computes in order to decide is not charged
        after = torch.stack([state.after for state in states])  # [layer, row, d_model]
        index = on_device(exit_layers - 1, after)
        exit_states = after[index, torch.arange(len(rows), device=after.device)]  # [row, d_model]
        rows.store_exit_state(exit_states)
        rows.truncate_cache(exit_layers)
        tokens = StepTokens(step)
        tokens.add(run.step_rows, exit_layers, confidences, states=exit_states)
        return tokens.complete()

    def _exits_in_hindsight(self, states: Sequence[ExitState]) -> tuple[np.ndarray, np.ndarray]:
        """Exit layers and confidences, `[row]` each, from the states after all layers."""
        bound = self.bound
        predicted = np.stack([on_host(state.top1_id) for state in states])  # [layer, row]
        is_final = predicted == predicted[-1]
        settled = np.logical_and.accumulate(is_final[::-1])[::-1]  # [layer, row], final from here on
        exit_layers = np.full(predicted.shape[1], bound.layers)
        confidences = np.full(predicted.shape[1], np.nan)
        for layer in bound.decision_layers[::-1]:  # the first decision that exits comes last, and counts
            state = states[layer - 1]
            state.settled = settled[layer - 1].astype(np.float64)
            exits_here = decide(bound, state, self.cache.max_new_tokens)
            exit_layers[exits_here] = layer
            confidences[exits_here] = state.confidence[exits_here]
        return exit_layers, confidences

    def _note_shallow(self, state: ExitState) -> None:
        """Keeps the prediction of the decision layer until a later token runs all layers."""
        sequences = state.sequence.tolist()
        confidences = state.confidence.tolist()
        ids = on_host(state.top1_id).tolist()
        for sequence, confidence, token_id in zip(sequences, confidences, ids, strict=True):
            self.shallow[sequence].append((confidence, token_id))

    def _learn(self, run: TokenRun, tokens: StepTokens) -> None:
        """Teaches the threshold, for rows that ran all layers: were the shallow predictions the deep ones?

        Tokens that exited since such a row last did so wait in the cache. They have now been through all
        layers too, and their logits are computed again; the token that took them along is charged for it.

        One row whose tokens 0 and 1 exited with the ids 7 and 3; token 2, for which the shallow layer says 5,
        runs all layers and takes them along ("parallel"). If the last layer then says 7, 8 and 5, the
        threshold learns that the shallow predictions of tokens 0 and 2 were right, and that of token 1 wrong.
        """
        sequence = run.step.sequence[run.step_rows]
        shallow = [self.shallow.pop(row) for row in sequence.tolist()]
        waiting = np.array([len(of_row) - 1 for of_row in shallow])  # [row], tokens before this one
        position = self.cache.position
        slots, positions = waiting_positions(position - waiting, position, run.rows.slots)
        deep = tokens.ids[run.step_rows]
        if len(slots):
            states = self.cache.states[tuple(run.rows.on_device([slots, positions]))]
            logits = self.decoder.logits(self.decoder.norm(states))
            deep = np.concatenate([on_host(logits.argmax(-1)), deep])
            tokens.readout_rows[run.step_rows] += waiting * self.bound.vocabulary
        # in the order of `deep`: waiting tokens row by row, then the present ones
        predicted = [prediction for of_row in shallow for prediction in of_row[:-1]]
        predicted += [of_row[-1] for of_row in shallow]
        confidences = np.array([confidence for confidence, _ in predicted])
        ids = np.array([token_id for _, token_id in predicted])
        self.bound.schedule.learn(confidences, ids == deep)


def _add_exits(tokens: StepTokens, state: ExitState, exits: np.ndarray) -> None:
    """Adds the rows that exit at a decision; `exits` is `[rows]`, bool."""
    rows = state.step_rows[exits]
    confidences = state.confidence[exits]
    if tokens.step.bound.measure.readout:  # the layer's logits are known, and with them its prediction
        tokens.add(rows, state.layer, confidences, ids=pick(state.top1_id, exits))
    else:
        tokens.add(rows, state.layer, confidences, states=pick(state.after, exits))


def _add_last(tokens: StepTokens, state: ExitState, active: np.ndarray) -> None:
    """Adds the rows that ran all layers; `active` is `[rows]`, bool."""
    rows = state.step_rows[active]
    if tokens.step.bound.readout is None:
        tokens.add(rows, state.layer, np.nan, states=pick(state.after, active))
    else:
        ids = torch.where(torch.isfinite(state.logits.amax(-1)), state.top1_id, -1)
        tokens.add(rows, state.layer, np.nan, ids=pick(ids, active))


def decode_tokens(
    decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy, sequence: np.ndarray
) -> list[Output]:
    """Decodes a batch token by token, rows until they end; `sequence` are the indices of its inputs."""
    token_decoder = TokenDecoder(decoder, cache, bound)
    ends = list(decoder.ends)
    ids = torch.full((len(sequence),), decoder.start, device=cache.encoded.device)
    rows = np.arange(len(sequence))  # rows of the batch that have not ended
    slots = rows  # where they are in the cache
    steps: list[tuple[np.ndarray, StepTokens]] = []
    for position in range(cache.max_new_tokens):
        cache.move_to(position)
        tokens = token_decoder.decode(Rows(cache, slots), ids, sequence[rows])
        steps.append((rows, tokens))
        goes_on = ~np.isin(tokens.ids, ends)
        if not goes_on.any():
            break
        ids = pick(tokens.device_ids, goes_on)
        rows = rows[goes_on]
        slots = slots[goes_on]
        if len(slots) <= DROP_FINISHED_AT * cache.batch:
            cache.keep(slots)
            slots = np.arange(len(slots))
    return outputs_from_steps(steps, len(sequence))


def outputs_from_steps(steps: Sequence[tuple[np.ndarray, StepTokens]], batch: int) -> list[Output]:
    """The outputs of a batch from its steps: which rows decoded a token, and the tokens of these rows."""
    rows = np.concatenate([rows for rows, _ in steps])
    by_row = np.argsort(rows, kind="stable")  # within a row by position, as the steps are
    ends = np.bincount(rows, minlength=batch).cumsum()[:-1]

    def split(name: str) -> list[np.ndarray]:
        values = np.concatenate([getattr(tokens, name) for _, tokens in steps])
        return np.split(values[by_row], ends)

    token_ids = split("ids")
    exit_layers = split("exit_layers")
    confidences = split("confidences")
    readout_rows = split("readout_rows")
    return [
        Output(token_ids[row].tolist(), exit_layers[row], confidences[row], readout_rows[row])
        for row in range(batch)
    ]


def predicted_ids(logits: Tensor) -> Tensor:
    """The id of the largest logit, `[..., vocabulary]` to `[...]`; -1 where that is not finite."""
    best = logits.max(dim=-1)
    return torch.where(torch.isfinite(best.values), best.indices, -1)


def check_finite(ids: np.ndarray, sequence: np.ndarray, layers: np.ndarray) -> None:
    """Raises `MeeError` where an id is -1: the token of input `sequence` has no finite logits."""
    if (ids < 0).any():
        row = int(np.flatnonzero(ids < 0)[0])
        states = f"The states of input {sequence[row]} are not finite at layer {layers[row]}"
        raise MeeError(f"{states}: load the model with dtype float32, or look for damaged weights.")
