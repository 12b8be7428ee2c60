"""Lossless early exit: exits are drafts, the last layer verifies them, and the output is that of full depth.

- Draft. Where the input, or the output so far, goes on as the output does, a round copies what stands there
  (`exits.copies`); the copied tokens wait below the first layer. Else a token exits at the first layer where
  the policy is confident, and its state waits there. A later token that goes deeper takes along what waits
  before it. The first token of which the policy is not confident, an end token, a draft of `max_draft`
  tokens, or the last token that there is room for, ends the draft.
- Verify. All that waits goes through the layers it has not seen, one pass per layer, and through the LM head.
- Accept. Drafts are accepted up to the first that is not the last layer's token; that one is replaced, and
  what came after it is dropped. The token of which the policy was not confident comes from the last layer.

If all tokens before it were right, the draft of an exit is computed from exactly the states of full depth,
whatever the policy.
This is self-speculative decoding (Draft & Verify, Zhang et al. 2024; LayerSkip, Elhoushi et al. 2024) for an
encoder and decoder, any exit rule, and rows that accept different numbers of tokens.

A round with three tokens: one row, L = 4, `max_draft=3`, a policy that decides at layers 1 and 2. `filled`
says for how many positions each layer has keys and values (`Cache.filled`).

| step | what runs | drafts | `filled`, layers 1 to 4 |
|---|---|---|---|
| draft token 0 | layer 1, confident: "the" | the | 1 0 0 0 |
| draft token 1 | layer 1, not confident; layer 2 takes token 0 along, confident: "red" | the red | 2 2 0 0 |
| draft token 2 | layer 1, confident: "car" | the red car | 3 2 0 0 |
| verify | layer 2 on token 2; layers 3 and 4 on all three: "the", "red", "house" | | 3 3 3 3 |
| accept | two drafts; "house" replaces "car" at position 2, and the next token is at position 3 | | 3 3 3 3 |

Had the last layer said "the", "blue", "house", then "blue" would replace "red", "car" and "house" would be
dropped with their keys and values (`filled` 2 2 2 2), and the next token would be at position 2.
"""

from typing import NamedTuple

import numpy as np

from ..exits.copies import Copier
from ..exits.policy import BoundPolicy
from .layerwise import Cache, LayerwiseDecoder, on_device, on_host
from .outputs import Drafts, Output
from .spans import span_at
from .token import (
    DROP_FINISHED_AT,
    ExitState,
    Step,
    check_finite,
    decide,
    pick,
    predicted_ids,
    states_by_layer,
)

VERIFY_AT = 0.7  # rows are verified together, once the drafts of this share have ended; changes speed alone
UNSURE = -1  # in place of a draft's token


class Draft(NamedTuple):
    """A token that waits to be verified."""

    token_id: int
    layer: int
    confidence: float
    readout_rows: int


class Row:
    """One output: its final tokens, the drafts that wait, and all tokens that were executed.

    Rows stand at positions of their own, unlike those of `mee_utils.decoding.layerwise.Rows`.
    """

    def __init__(self, sequence: int, slot: int, start: int):
        self.sequence = sequence
        self.copier: Copier | None = None  # where the policy copies
        self.slot = slot  # where it is in the cache
        self.last = start  # the token before the next one
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
            if self.copier:
                self.copier.write(token)
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


class DraftDecoder:
    """Decodes one batch; `bound` says when its tokens exit, `sequence` which inputs its rows are.

    A policy has a fixed `max_draft` here: where it is "auto", `generate` has planned drafts before.
    """

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy, sequence: np.ndarray):
        self.decoder = decoder
        self.cache = cache
        self.bound = bound
        self.deepest = max(bound.decision_layers, default=0)  # no token is drafted beyond
        self.rows = [Row(index, slot, cache.start) for slot, index in enumerate(sequence.tolist())]
        if copies := bound.policy.copies:
            for row, ids in zip(self.rows, on_host(cache.source_ids), strict=True):
                row.copier = Copier(copies, ids[ids >= 0].tolist())

    def decode(self) -> list[Output]:
        """Decodes all rows. Raises `MeeError` for states that are not finite."""
        going = self.rows
        while going:
            drafting = [row for row in going if not row.ready_to_verify]
            if self.bound.policy.copies:
                drafting = self.copy(drafting)
            if drafting:
                self.draft(drafting)
            ready = [row for row in going if row.ready_to_verify]
            if len(ready) >= VERIFY_AT * len(going):
                self.verify(ready)
                going = [row for row in going if row.ready_to_verify or not self._ended(row)]
                if going and len(going) <= DROP_FINISHED_AT * self.cache.batch:
                    self.cache.keep(np.array([row.slot for row in going]))
                    for slot, row in enumerate(going):
                        row.slot = slot
        return [row.output() for row in self.rows]

    def copy(self, rows: list[Row]) -> list[Row]:
        """Begins the rounds of rows that have a copy; returns the others.

        The copied tokens wait below layer 1, and so does the one behind them, which is the last layer's.
        """
        cache = self.cache
        others = []
        waiting: list[tuple[int, int, int]] = []  # slot, position and the token before, of each copied token
        for row in rows:
            copied = [] if row.drafts else row.copier.draft(most=cache.max_new_tokens - row.position)
            if not copied:
                others.append(row)
                continue
            row.ready_to_verify = True
            for token in [*copied, UNSURE]:
                waiting.append((row.slot, row.position, row.last))
                layer = 0 if token != UNSURE else self.bound.layers
                row.drafts.append(Draft(token, layer, np.nan, readout_rows=0))
                row.last = token
                if self._ended(row):
                    break
        if waiting:
            slots, positions, fed = on_device(np.transpose(waiting), cache.encoded)
            cache.move_to(max(position for _, position, _ in waiting))
            cache.states[slots, positions] = self.decoder.embed(fed)
        return others

    def draft(self, rows: list[Row]) -> None:
        """Drafts one token of each row, as deep as the policy looks."""
        bound = self.bound
        cache = self.cache
        slots = np.array([row.slot for row in rows])  # [row]
        position = np.array([row.position for row in rows])  # [row]
        sequence = np.array([row.sequence for row in rows])  # [row]
        fed = on_device([row.last for row in rows], cache.encoded)  # [row]
        cache.move_to(int(position.max()))
        step = Step(self.decoder, bound, sequence, position, fed, cache.source_ids, slots)
        run = DraftRun(step, cache, slots)
        for state in states_by_layer(run.state_after, self.deepest):
            if state.layer not in bound.decision_layers:
                continue
            exits = decide(bound, state, cache.max_new_tokens)  # [row still drafting]
            if exits.any():
                self._record_drafts(rows, state, exits)
                run.exit(state.layer, exits)
                if exits.all():
                    return
        run.store(self.deepest)
        for index in run.step_rows:  # the policy was not confident at any layer: the last layer decides
            unsure = Draft(UNSURE, bound.layers, np.nan, int(run.step.readout_rows[index]))
            rows[index].drafts.append(unsure)
            rows[index].ready_to_verify = True

    def verify(self, rows: list[Row]) -> None:
        """Runs what waits in these rows through all layers, and accepts what is right."""
        decoder = self.decoder
        cache = self.cache
        layers = self.bound.layers
        slots = np.array([row.slot for row in rows])  # [row]
        ends = np.array([row.position for row in rows])  # [row], one beyond the last draft
        complete = (cache.filled[:, slots] == ends).all(axis=1)  # [layer], whether all drafts have seen it
        first = int(complete.sum()) + 1
        span = span_at(first, cache, slots, ends)
        x = span.load()  # [token, d_model], the drafts of all rows, row by row
        for layer in range(first, layers + 1):
            span, x = span.joined(layer, x)
            x = decoder.run_pass(layer, x, span)
        ids = on_host(predicted_ids(decoder.logits(decoder.norm(x))))  # [token]
        check_finite(ids, np.repeat([row.sequence for row in rows], span.counts), np.full(len(ids), layers))
        by_row = np.split(ids, span.counts.cumsum()[:-1])
        for row, predicted in zip(rows, by_row, strict=True):
            row.accept(predicted.tolist(), layers, self.bound.vocabulary)
        # tokens that were dropped have no keys and values any more
        cache.filled[:, slots] = [row.position for row in rows]

    def _record_drafts(self, rows: list[Row], state: ExitState, exits: np.ndarray) -> None:
        """Appends the drafts of rows that exit, and sees whether these drafts end there."""
        drafted, readout_rows = self._drafted_ids(state, exits)
        indices = state.step_rows[exits]
        readout_rows = readout_rows + state.step.readout_rows[indices]
        confidences = state.confidence[exits]
        for number, index in enumerate(indices):
            row = rows[index]
            row.last = int(drafted[number])
            confidence = float(confidences[number])
            row.drafts.append(Draft(row.last, state.layer, confidence, int(readout_rows[number])))
            row.ready_to_verify = len(row.drafts) == self.bound.max_draft or self._ended(row)

    def _drafted_ids(self, state: ExitState, exits: np.ndarray) -> tuple[np.ndarray, int]:
        """The ids that exiting rows predict, `[exit]`, and how many more rows of the LM head that took."""
        if self.bound.measure.readout:
            return on_host(pick(state.top1_id, exits)), 0
        logits = self.decoder.logits(self.decoder.norm(pick(state.after, exits)))
        return on_host(logits.argmax(dim=-1)), self.bound.vocabulary

    def _ended(self, row: Row) -> bool:
        """Whether a row's last token, drafted or final, ends its output, or there is room for no other."""
        return row.last in self.cache.ends or row.position == self.cache.max_new_tokens
