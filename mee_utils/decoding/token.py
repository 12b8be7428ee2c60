"""One token of every row, from its embedding to its exit: the heart of early exiting.

embed -> layer 1 -> sure? -> layer 2 -> sure? -> ... -> layer L -> read out
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..common.errors import MeeError
from ..exits.policy import BoundPolicy
from .exit_state import ExitState, Step
from .layerwise import Cache, LayerwiseDecoder, Rows, waiting_places

COMPACT_AT = 0.5  # finished rows leave memory once this share of the batch is left


class Output(NamedTuple):
    """One decoded output; the arrays are `[token]`, see `Generation`."""

    token_ids: list[int]
    exit_layers: np.ndarray
    confidences: np.ndarray
    readout_rows: np.ndarray
    drafts: "Drafts | None" = None  # where exits were verified

    @property
    def work(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """What `BoundPolicy.flops` counts: layers and rows of `W` of all tokens, and positions (verified)."""
        if self.drafts is None:
            return self.exit_layers, self.readout_rows, None
        return self.drafts.exit_layers, self.drafts.readout_rows, self.drafts.positions


class Drafts(NamedTuple):
    """What verified exits took for one output. `tokens`: all that were run, thrown away ones among them."""

    rounds: int  # how often the last layer judged
    judged: int  # drafts; those after a wrong one are dropped unjudged
    kept: int
    in_round: np.ndarray  # `[tokens]`, from 1: the round that each was run in
    positions: np.ndarray  # `[tokens]`
    exit_layers: np.ndarray  # `[tokens]`, L where the policy was not sure
    readout_rows: np.ndarray  # `[tokens]`


class Token:
    """One token of several rows. They exit one after the other; then what is unknown is read out together.

    `ids`, `exit_layers`, `confidences`, `readout_rows`: `[row]`, on the host; `device_ids`: not there.
    """

    def __init__(self, step: Step):
        rows = len(step.sequence)
        self.step, self.exit_layers = step, np.zeros(rows, dtype=np.int32)
        self.confidences, self.readout_rows = np.zeros(rows, np.float32), np.zeros(rows, np.int64)
        self.known: list[tuple[np.ndarray, Tensor]] = []  # some rows, and their tokens
        self.states: list[tuple[np.ndarray, Tensor]] = []

    def add(self, rows: np.ndarray, layers, confidences, found: Tensor, seen: bool) -> None:
        """Takes rows in: with their token if a readout has shown it already, else with their state."""
        self.exit_layers[rows], self.confidences[rows] = layers, confidences
        self.readout_rows[rows] = self.step.readout_rows[rows]
        (self.known if seen else self.states).append((rows, found))

    def read_out(self) -> "Token":
        """Itself, with all ids. Raises `MeeError` where a state is not finite."""
        if self.states:
            decoder, rows = self.step.decoder, np.concatenate([rows for rows, _ in self.states])
            states = torch.cat([states for _, states in self.states])
            best = decoder.readout(decoder.norm(states)).max(dim=-1)
            self.readout_rows[rows] += self.step.readout.vocabulary
            self.known.append((rows, torch.where(torch.isfinite(best.values), best.indices, -1)))
        order = np.concatenate([rows for rows, _ in self.known])
        ids = torch.cat([ids for _, ids in self.known])
        if (np.diff(order) < 0).any():
            ids = ids[torch.from_numpy(np.argsort(order)).to(ids.device, non_blocking=True)]
        self.ids, self.device_ids = on_host(ids), ids
        check_finite(self.ids, self.step.sequence, self.exit_layers)
        return self


class TokenDecoder:
    """Decodes the tokens of one batch, one at a time; `bound` says when they exit."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy):
        self.decoder, self.cache, self.bound = decoder, cache, bound
        # for thresholds that learn: confidence and id of each input's tokens since it last went deep
        self.shallow: dict[int, list[tuple[float, int]]] = defaultdict(list)

    def decode(self, rows: Rows, ids: Tensor, sequence: np.ndarray) -> Token:
        """Brings one token of each row to its exit and reads it out.

        `ids` are the tokens before, `sequence` the indices of the rows' inputs, both `[row]`;
        `cache.position` is that of the token. Raises `MeeError` for states that are not finite.
        """
        if self.bound.measure.needs_all_layers:
            return self._decode_looking_ahead(rows, ids, sequence)
        decoder, cache, bound = self.decoder, self.cache, self.bound
        step = Step(decoder, bound.readout, sequence, cache.position, ids)
        token, state, here = Token(step), None, np.arange(len(rows))
        look_from, look_to = bound.first_layer, bound.layers - bound.readout.plain
        x, active, mask = decoder.embed(ids), np.ones(len(rows), dtype=bool), None
        for layer in range(1, bound.layers + 1):
            before, x = x, decoder.run_layer(layer, x, rows)
            if mask is not None:  # exited rows go along: the layer gets keys and values of their exit states
                x = torch.where(mask, x, before)
            if look_from <= layer <= look_to:
                state = ExitState(step, layer, x, before, here, state)
            if layer not in bound.decision_layers:
                continue
            state.confidence = confidence = on_host(bound.measure.confidence(state))
            exits = bound.exceeded(confidence, state, cache.length) & active
            if bound.schedule.learns:
                shallow = zip(sequence.tolist(), confidence.tolist(), on_host(state.top1_id).tolist())
                for row, *label in shallow:
                    self.shallow[row].append(label)
            if not exits.any():
                continue
            seen = bound.measure.readout
            token.add(here[exits], layer, confidence[exits], pick(state.top1_id if seen else x, exits), seen)
            active &= ~exits
            if active.sum() <= decoder.compact_below * len(rows) or cache.parallel:
                rows.keep(~active).store_exit_state(pick(x, ~active))
                if not active.any():
                    return token.read_out()
                x, rows, here, active = pick(x, active), rows.keep(active), here[active], active[active]
            mask = None if active.all() else torch.from_numpy(active)[:, None].to(x.device, non_blocking=True)
        seen = not bound.readout.plain
        last = torch.where(torch.isfinite(state.logits.amax(-1)), state.top1_id, -1) if seen else x
        token.add(here[active], bound.layers, np.nan, pick(last, active), seen)
        token.read_out()
        if bound.schedule.learns:
            self._learn(rows, here, sequence, token)
        return token

    def _decode_looking_ahead(self, rows: Rows, ids: Tensor, sequence: np.ndarray) -> Token:
        """For measures that need all layers to decide: all are run, then the token goes back to its exit."""
        decoder, cache, bound = self.decoder, self.cache, self.bound
        step = Step(decoder, bound.readout, sequence, cache.position, ids)
        x, here, states = decoder.embed(ids), np.arange(len(rows)), []
        for layer in range(1, bound.layers + 1):
            before, x = x, decoder.run_layer(layer, x, rows)
            states.append(ExitState(step, layer, x, before, here, states[-1] if states else None))
        predicted = np.stack([on_host(state.top1_id) for state in states])
        settled = np.logical_and.accumulate((predicted == predicted[-1])[::-1])[::-1]
        exits, confidence = np.full(len(rows), bound.layers), np.full(len(rows), np.nan)
        for layer in bound.decision_layers[::-1]:
            states[layer - 1].settled = settled[layer - 1].astype(np.float64)
            found = on_host(bound.measure.confidence(states[layer - 1]))
            leaves = bound.exceeded(found, states[layer - 1], cache.length)
            exits[leaves], confidence[leaves] = layer, found[leaves]
        step.readout_rows[:] = 0  # as if it had known
        chosen = torch.stack([state.after for state in states])
        chosen = chosen[torch.from_numpy(exits - 1).to(x.device), torch.arange(len(rows), device=x.device)]
        rows.store_exit_state(chosen)
        rows.truncate_cache(exits)
        token = Token(step)
        token.add(here, exits, confidence, chosen, seen=False)
        return token.read_out()

    def _learn(self, rows: Rows, here: np.ndarray, sequence: np.ndarray, token: Token) -> None:
        """Labels of rows that went deep: were shallow predictions, waiting tokens' too, the deep ones?"""
        shallow, deep = [self.shallow.pop(row) for row in sequence[here].tolist()], token.ids[here]
        waits, position = np.array([len(labels) - 1 for labels in shallow]), self.cache.position
        slots, positions = waiting_places(position - waits, position, rows.slots)
        if len(slots):
            states = self.cache.states[torch.from_numpy(slots), torch.from_numpy(positions)]
            deep = np.concatenate([on_host(self.decoder.readout(self.decoder.norm(states)).argmax(-1)), deep])
            token.readout_rows[here] += waits * self.bound.readout.vocabulary
        labels = [label for row in shallow for label in row[:-1]] + [row[-1] for row in shallow]
        confidence, ids = map(np.array, zip(*labels, strict=True))
        self.bound.schedule.learn(confidence, ids == deep)


def decode_tokens(
    decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy, sequence: np.ndarray
) -> list[Output]:
    """Decodes a batch token by token, rows until they end; `sequence` are the indices of its inputs."""
    token_decoder = TokenDecoder(decoder, cache, bound)
    ids = torch.full((len(sequence),), decoder.start, device=cache.encoded.device)
    going = alive = np.arange(len(sequence))  # rows of the batch, and where they are in the cache
    steps: list[tuple[np.ndarray, Token]] = []
    for position in range(cache.length):
        cache.move_to(position)
        token = token_decoder.decode(Rows(cache, alive), ids, sequence[going])
        steps.append((going, token))
        goes_on = ~np.isin(token.ids, list(decoder.ends))
        if not goes_on.any():
            break
        ids, going, alive = pick(token.device_ids, goes_on), going[goes_on], alive[goes_on]
        if len(alive) <= COMPACT_AT * cache.batch:
            cache.keep(alive)
            alive = np.arange(len(alive))
    rows = np.concatenate([going for going, _ in steps])
    order, ends = np.argsort(rows, kind="stable"), np.bincount(rows, minlength=len(sequence)).cumsum()[:-1]
    columns = zip(*((t.ids, t.exit_layers, t.confidences, t.readout_rows) for _, t in steps), strict=True)
    by_row = [np.split(np.concatenate(column)[order], ends) for column in columns]
    return [Output(ids.tolist(), *arrays) for ids, *arrays in zip(*by_row, strict=True)]


def check_finite(ids: np.ndarray, sequence: np.ndarray, layers: np.ndarray) -> None:
    """Raises `MeeError` where an id is -1: the token of input `sequence` has no finite logits."""
    if (ids < 0).any():
        row = int(np.flatnonzero(ids < 0)[0])
        states = f"The states of input {sequence[row]} are not finite at layer {layers[row]}"
        raise MeeError(f"{states}: load the model with dtype float32, or look for damaged weights.")


def pick(values: Tensor, which: np.ndarray) -> Tensor:
    """The rows for which `which` is true."""
    if which.all():
        return values
    return values[torch.from_numpy(np.flatnonzero(which)).to(values.device, non_blocking=True)]


def on_host(values) -> np.ndarray:
    """A tensor or array as a numpy array. Nothing else waits for the device, and this once a decision."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
