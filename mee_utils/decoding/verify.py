"""Lossless early exit: exits are drafts, the last layer judges them, and the output is that of full depth.

- Draft. A token leaves at the first layer where the policy is sure, and its state waits there. A later token
  that goes deeper takes along what waits before it. The first token of which the policy is not sure, an end
  token, or the last that there is room for, ends the draft.
- Verify. All that waits goes through the layers it has not seen, one pass a layer; all ids are read out.
- Accept. Drafts are kept up to the first that is not the last layer's token; that one is replaced, and what
  came after it is dropped. The token of which the policy was not sure comes from the last layer anyway.

Whatever the policy, a draft was made from the states that full depth has too, if all before it were right.
This is self-speculative decoding (Draft & Verify, Zhang et al. 2024; LayerSkip, Elhoushi et al. 2024) for an
encoder and decoder, any exit rule, and rows that accept different numbers of tokens.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..exits.policy import BoundPolicy
from .exit_state import ExitState, Step
from .layerwise import Cache, LayerwiseDecoder, Span
from .token import COMPACT_AT, Drafts, Output, check_finite, on_host, pick

VERIFY_AT = 0.7  # rows are verified together, once the drafts of this share have ended; changes speed alone
UNSURE = -1  # in place of a draft


class Draft(NamedTuple):
    """A token that waits for the last layer's word."""

    token_id: int
    layer: int
    confidence: float
    readout_rows: int


class Row:
    """One output: what is settled of it, the drafts that wait, and all that was run."""

    def __init__(self, sequence: int, slot: int, start: int):
        self.sequence, self.slot, self.last = sequence, slot, start
        self.ids: list[int] = []
        self.made: list[Draft] = []  # of each id the draft that was kept, or what stands for none
        self.drafts: list[Draft] = []
        self.run: list[tuple[int, int, int]] = []  # position, layer and rows of `W` of all tokens
        self.rounds = self.judged = self.kept = 0
        self.waits = False  # the draft has ended

    @property
    def position(self) -> int:
        """Of the next token."""
        return len(self.ids) + len(self.drafts)

    def accept(self, found: list[int], layers: int, vocabulary: int) -> None:
        """Settles drafts while they are what was `found` at the last layer, and the first that is not."""
        read = [draft._replace(readout_rows=draft.readout_rows + vocabulary) for draft in self.drafts]
        self.rounds, self.waits, self.drafts, run = self.rounds + 1, False, [], enumerate(read, len(self.ids))
        self.run += [(self.rounds, at, draft.layer, draft.readout_rows) for at, draft in run]
        for draft, token in zip(read, found, strict=True):
            kept = draft.token_id == token
            self.judged, self.kept = self.judged + (draft.token_id != UNSURE), self.kept + kept
            self.ids.append(token)
            self.made.append(draft if kept else draft._replace(layer=layers, confidence=float("nan")))
            if not kept:
                break
        self.last = self.ids[-1]

    def output(self) -> Output:
        """The output, all its tokens settled."""
        _, *made = zip(*self.made, strict=True)
        run = map(np.array, zip(*self.run, strict=True))
        made = map(np.array, made, (np.int32, np.float32, np.int64))
        return Output(self.ids, *made, Drafts(self.rounds, self.judged, self.kept, *run))


class DraftDecoder:
    """Decodes one batch; `bound` says when its tokens exit, `sequence` which inputs its rows are."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, bound: BoundPolicy, sequence: np.ndarray):
        self.decoder, self.cache, self.bound = decoder, cache, bound
        self.deepest = max(bound.decision_layers, default=0)  # no token is drafted beyond
        self.ends = decoder.ends
        self.rows = [Row(index, slot, decoder.start) for slot, index in enumerate(sequence.tolist())]

    def decode(self) -> list[Output]:
        """Decodes all rows. Raises `MeeError` for states that are not finite."""
        going = self.rows
        while going:
            if drafting := [row for row in going if not row.waits]:
                self.draft(drafting)
            waiting = [row for row in going if row.waits]
            if len(waiting) >= VERIFY_AT * len(going):
                self.verify(waiting)
                going = [row for row in going if row.waits or not self._ended(row)]
                if going and len(going) <= COMPACT_AT * self.cache.batch:  # finished rows leave memory
                    self.cache.keep(np.array([row.slot for row in going]))
                    for slot, row in enumerate(going):
                        row.slot = slot
        return [row.output() for row in self.rows]

    def _ended(self, row: Row) -> bool:
        return row.last in self.ends or row.position == self.cache.length

    def draft(self, rows: list[Row]) -> None:
        """Drafts one token of each row, as deep as the policy looks."""
        decoder, cache, bound = self.decoder, self.cache, self.bound
        slots, sequence, position = np.array([(row.slot, row.sequence, row.position) for row in rows]).T
        cache.move_to(int(position.max()))
        fed = torch.tensor([row.last for row in rows], device=cache.encoded.device)
        step = Step(decoder, bound.readout, sequence, position, fed)
        present = x = decoder.embed(fed)
        span, state, here = Span(cache, slots, position + 1, 1), None, np.arange(len(rows))
        for layer in range(1, self.deepest + 1):
            span, x = span.joined(layer, x)
            before, x = present, decoder.run_span(layer, x, span)
            present = span.last(x)
            if layer >= bound.first_layer:
                state = ExitState(step, layer, present, before, here, state)
            if layer not in bound.decision_layers:
                continue
            state.confidence = confidence = on_host(bound.measure.confidence(state))
            exits = bound.exceeded(confidence, state, cache.length)
            if not exits.any():
                continue
            self._note(rows, here[exits], state, exits)
            self._wait(layer, x, span)
            if exits.all():
                return
            here, present = here[~exits], pick(present, ~exits)
            span = Span(cache, slots[here], position[here] + 1, layer + 1)
            x = span.load()
        self._wait(self.deepest, x, span)
        for place in here:
            rows[place].drafts.append(Draft(UNSURE, bound.layers, np.nan, int(step.readout_rows[place])))
            rows[place].waits = True

    def _note(self, rows: list[Row], places: np.ndarray, state: ExitState, exits: np.ndarray) -> None:
        """Notes the drafts of rows that exit, and whether these drafts go on."""
        if self.bound.measure.readout:
            drafted, read = pick(state.top1_id, exits), 0
        else:
            logits = self.decoder.readout(self.decoder.norm(pick(state.after, exits)))
            drafted, read = logits.argmax(dim=-1), self.bound.readout.vocabulary
        found = zip(places.tolist(), on_host(drafted).tolist(), state.confidence[exits].tolist(), strict=True)
        for place, token, confidence in found:
            row, counted = rows[place], int(state.step.readout_rows[place]) + read
            row.drafts.append(Draft(token, state.layer, confidence, counted))
            row.last = token
            row.waits = len(row.drafts) == self.bound.max_draft or self._ended(row)

    def verify(self, rows: list[Row]) -> None:
        """Runs what waits in these rows through all layers, and settles it."""
        decoder, cache, layers = self.decoder, self.cache, self.bound.layers
        slots, ends = np.array([(row.slot, row.position) for row in rows]).T
        first = int((cache.filled[:, slots] == ends).all(axis=1).sum()) + 1  # the first layer that is unseen
        span = Span(cache, slots, ends, first)
        x = span.load()
        for layer in range(first, layers + 1):
            span, x = span.joined(layer, x)
            x = decoder.run_span(layer, x, span)
        best = decoder.readout(decoder.norm(x)).max(dim=-1)
        ids = on_host(torch.where(torch.isfinite(best.values), best.indices, -1))
        check_finite(ids, np.repeat([row.sequence for row in rows], span.counts), np.full(len(ids), layers))
        for row, found in zip(rows, np.split(ids, span.counts.cumsum()[:-1]), strict=True):
            row.accept(found.tolist(), layers, self.bound.readout.vocabulary)
        # what comes after has no keys and values any more
        cache.filled[:, slots] = [row.position for row in rows]

    def _wait(self, layer: int, x: Tensor, span: Span) -> None:
        """Leaves all tokens of a span waiting after a layer."""
        span.store(x)
        self.cache.filled[:layer, span.slots] = span.ends
