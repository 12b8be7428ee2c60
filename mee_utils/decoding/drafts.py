"""Drafters propose the tokens that the last layer then verifies: from early exits, or copied from the input.

Before every step `verify.DraftDecoder` asks its drafters in order: the first gets all rows whose draft has
not ended, and each next one the rows that are left. A drafter

- appends to `Row.drafts` what it drafts, one token or several;
- leaves the state of each in the cache, where it waits: in `Cache.states`, behind the layers that
  `Cache.filled` says it has seen;
- sets `Row.ready_to_verify` where a draft ends, with a token `UNSURE` at its end if the last layer is to say
  what follows.

What it drafts may be anything: it changes how fast an output comes, not the output.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ..exits.copies import Copier, Copies
from ..exits.policy import BoundPolicy
from .cache import Cache, on_device, on_host
from .layerwise import LayerwiseDecoder
from .outputs import Drafts, Output
from .spans import span_at
from .token import ExitState, Step, decide, pick, states_by_layer

UNSURE = -1  # in place of a draft's token


class Draft(NamedTuple):
    """A token that waits to be verified."""

    token_id: int
    layer: int  # at which it was drafted: 0 if it was copied, L if it is `UNSURE`
    confidence: float
    readout_rows: int


class Row:
    """One output: its final tokens, the drafts that wait, and all tokens that were executed.

    Rows stand at positions of their own, unlike those of `mee_utils.decoding.layerwise.Rows`.
    """

    def __init__(self, sequence: int, number: int, cache: Cache):
        self.sequence = sequence
        self.number = number  # in the batch at its beginning
        self.slot = number  # where it is in the cache now
        self.ends = cache.ends
        self.most = cache.max_new_tokens
        self.last = int(cache.starts[number])  # the token before the next one
        # of each final token; a draft's layer and confidence, or L and NaN
        self.token_ids: list[int] = []
        self.exit_layers: list[int] = []
        self.confidences: list[float] = []
        self.readout_rows: list[int] = []
        self.drafts: list[Draft] = []
        self.ready_to_verify = False  # whether the draft has ended
        # of each token that was run, thrown away or not: round, position, exit layer and readout rows
        self.executed: list[tuple[int, int, int, int]] = []
        self.rounds = 0
        self.verified_drafts = 0
        self.accepted_drafts = 0

    @property
    def position(self) -> int:
        """Of the next token."""
        return len(self.token_ids) + len(self.drafts)

    @property
    def ended(self) -> bool:
        """Whether the last token, drafted or final, ends the output, or there is room for no other."""
        return self.last in self.ends or self.position == self.most

    def add(self, draft: Draft) -> None:
        """Takes a token that waits. The draft ends with a token that is `UNSURE`, or that may be the last."""
        self.drafts.append(draft)
        self.last = draft.token_id
        self.ready_to_verify = draft.token_id == UNSURE or self.ended

    def accept(self, predicted: list[int], layers: int, vocabulary: int) -> None:
        """Accepts drafts up to the first that the last layer does not predict, and takes its token there."""
        self.rounds += 1
        for position, draft in enumerate(self.drafts, start=len(self.token_ids)):
            self.executed.append((self.rounds, position, draft.layer, draft.readout_rows + vocabulary))
        for draft, token in zip(self.drafts, predicted, strict=True):
            # UNSURE equals no token: `verify` has refused ids of -1
            accepted = draft.token_id == token
            self.verified_drafts += draft.token_id != UNSURE
            self.accepted_drafts += accepted
            self.token_ids.append(token)
            self.exit_layers.append(draft.layer if accepted else layers)
            self.confidences.append(draft.confidence if accepted else np.nan)
            self.readout_rows.append(draft.readout_rows + vocabulary)
            if not accepted:
                break
        self.drafts = []
        self.ready_to_verify = False
        self.last = self.token_ids[-1]

    def output(self) -> Output:
        """The output, all its tokens final."""
        executed = np.array(self.executed).T  # [4, token], in the order of the fields of `Drafts`
        drafts = Drafts(self.rounds, self.verified_drafts, self.accepted_drafts, *executed)
        return Output(
            token_ids=self.token_ids,
            exit_layers=np.array(self.exit_layers, dtype=np.int32),
            confidences=np.array(self.confidences, dtype=np.float32),
            readout_rows=np.array(self.readout_rows, dtype=np.int64),
            drafts=drafts,
        )


class Drafter(Protocol):
    """Who drafts, see the module."""

    def draft(self, rows: list[Row]) -> list[Row]:
        """Drafts for some rows of a batch; returns those for which there is nothing to draft."""


def drafters_of(decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy) -> list[Drafter]:
    """The drafters of a policy for a batch, in the order in which they are asked."""
    if not bound.policy.copies:
        return [ExitDrafter(decoder, cache, bound)]
    if not bound.decision_layers:
        return [CopyDrafter(decoder, cache, bound.policy.copies, alone=True)]
    return [CopyDrafter(decoder, cache, bound.policy.copies), ExitDrafter(decoder, cache, bound)]


class CopyDrafter:
    """Begins a round with a copy, where there is one (`exits.copies`).

    The copied tokens wait below layer 1, and so does the one behind them, which is the last layer's. Where
    there is no copy, a drafter that is `alone` lets only that one wait; another leaves the row.
    """

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, copies: Copies, alone: bool = False):
        self.decoder = decoder
        self.cache = cache
        self.alone = alone
        sources = [ids[ids >= 0].tolist() for ids in on_host(cache.source_ids)]
        self.copiers = [Copier(copies, source) for source in sources]  # by `Row.number`

    def draft(self, rows: list[Row]) -> list[Row]:
        left = []
        waiting: list[tuple[int, int, int]] = []  # slot, position and the token before, of each copied token
        for row in rows:
            copied = [] if row.drafts else self._copied(row)
            if not copied and not self.alone:
                left.append(row)
                continue
            for token in [*copied, UNSURE]:
                waiting.append((row.slot, row.position, row.last))
                row.add(Draft(token, 0 if token != UNSURE else self.decoder.layers, np.nan, readout_rows=0))
                if row.ended:
                    break
            row.ready_to_verify = True
        if waiting:
            slots, positions, fed = on_device(np.transpose(waiting), self.cache.states)
            self.cache.move_to(max(position for _, position, _ in waiting))
            self.cache.states[slots, positions] = self.decoder.embed(fed)
        return left

    def _copied(self, row: Row) -> list[int]:
        """What may come next in a row."""
        copier = self.copiers[row.number]
        for token in row.token_ids[len(copier.written) :]:
            copier.write(token)
        return copier.draft(most=row.most - row.position)


class ExitDrafter:
    """Drafts a token of each row by exits: it waits at the first layer where the policy is confident."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy):
        self.decoder = decoder
        self.cache = cache
        self.bound = bound
        self.deepest = max(bound.decision_layers, default=0)  # no token is drafted beyond

    def draft(self, rows: list[Row]) -> list[Row]:
        bound = self.bound
        cache = self.cache
        slots = np.array([row.slot for row in rows])  # [row]
        position = np.array([row.position for row in rows])  # [row]
        sequence = np.array([row.sequence for row in rows])  # [row]
        fed = on_device([row.last for row in rows], cache.states)  # [row]
        cache.move_to(int(position.max()))
        step = Step(self.decoder, bound, sequence, position, fed, cache.source_ids, slots)
        run = DraftRun(step, cache, slots)
        for state in states_by_layer(run.state_after, self.deepest):
            if state.layer not in bound.decision_layers:
                continue
            exits = decide(bound, state, cache.max_new_tokens)  # [row still drafting]
            if exits.any():
                self._add_drafts(rows, state, exits)
                run.exit(state.layer, exits)
                if exits.all():
                    return []
        run.store(self.deepest)
        for index in run.step_rows:  # the policy was not confident at any layer: the last layer decides
            rows[index].add(Draft(UNSURE, bound.layers, np.nan, int(step.readout_rows[index])))
        return []

    def _add_drafts(self, rows: list[Row], state: ExitState, exits: np.ndarray) -> None:
        """Adds the drafts of rows that exit."""
        drafted, readout_rows = self._drafted_ids(state, exits)
        indices = state.step_rows[exits]
        readout_rows = readout_rows + state.step.readout_rows[indices]
        columns = (indices, drafted, state.confidence[exits], readout_rows)
        for index, token, confidence, count in zip(*(each.tolist() for each in columns), strict=True):
            row = rows[index]
            row.add(Draft(token, state.layer, confidence, count))
            row.ready_to_verify |= len(row.drafts) == self.bound.max_draft

    def _drafted_ids(self, state: ExitState, exits: np.ndarray) -> tuple[np.ndarray, int]:
        """The ids that exiting rows predict, `[exit]`, and how many more rows of the LM head that took."""
        if self.bound.measure.readout:
            return on_host(pick(state.top1_id, exits)), 0
        logits = self.decoder.logits(self.decoder.norm(pick(state.after, exits)))
        return on_host(logits.argmax(dim=-1)), self.bound.vocabulary


class DraftRun:
    """The token that some rows draft, on its way through the layers with the tokens that wait before it."""

    def __init__(self, step: Step, cache: Cache, slots: np.ndarray):
        self.step = step
        self.cache = cache
        self.slots = slots  # [row]
        self.ends = step.position + 1  # [row], one beyond the drafted token's position
        self.step_rows = np.arange(len(slots))  # which rows of the step are still drafting
        self.span = span_at(1, cache, slots, self.ends)
        self.x = step.decoder.embed(step.fed)  # [token, d_model], of all tokens of the span
        self.present = self.x  # [row, d_model], of the drafted tokens alone

    def state_after(self, layer: int, previous: ExitState | None) -> ExitState:
        """Runs one layer."""
        self.span, self.x = self.span.joined(layer, self.x)
        before = self.present
        self.x = self.step.decoder.run_pass(layer, self.x, self.span)
        self.present = self.span.last(self.x)
        return ExitState(self.step, layer, self.present, before, self.step_rows, previous)

    def exit(self, layer: int, exits: np.ndarray) -> None:
        """Takes out rows that exit at a layer, `[rows]`; their tokens wait there."""
        self.store(layer)
        if exits.all():
            return
        self.step_rows = self.step_rows[~exits]
        self.present = pick(self.present, ~exits)
        self.span = span_at(layer + 1, self.cache, self.slots[self.step_rows], self.ends[self.step_rows])
        self.x = self.span.load()

    def store(self, layer: int) -> None:
        """Stores all tokens of the span, which wait there, after a layer."""
        self.span.store(self.x)
        self.cache.filled[:layer, self.span.slots] = self.span.ends
