"""Lossless drafts: exits and copies are drafts, the last layer verifies them, the output is full depth's.

- Draft. Drafters (`drafts`) are asked for tokens that may come next. Where the output's last tokens stand in
  the input or earlier in the output, what follows them there is copied; copied tokens wait below layer 1.
  Else a token exits at the first layer where the policy is confident, and its state waits there. A later
  token that goes deeper takes along what waits before it. The first token of which the policy is not
  confident, an end token, a draft of `max_draft` tokens, or the last token that there is room for, ends the
  draft.
- Verify. All that waits goes through the layers it has not seen, one pass per layer, and through the LM head.
- Accept. Drafts are accepted up to the first that is not the last layer's token; that one is replaced, and
  what came after it is dropped. The token of which the policy was not confident comes from the last layer.

If all tokens before it were right, the draft of an exit is computed from exactly the states of full depth,
whatever the policy. With exits this is self-speculative decoding (Draft & Verify, Zhang et al. 2024;
LayerSkip, Elhoushi et al. 2024), with copies prompt lookup decoding (Saxena 2023); here for encoder-decoders,
any exit rule, and rows that accept different numbers of tokens.

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

from itertools import islice

import numpy as np

from .cache import Cache, on_host
from .drafts import Drafter, Row
from .layerwise import LayerwiseDecoder
from .outputs import Output
from .spans import span_at
from .token import DROP_FINISHED_AT, check_finite, predicted_ids

VERIFY_AT = 0.7  # rows are verified together, once the drafts of this share have ended; changes speed alone


class DraftDecoder:
    """Decodes one batch, the inputs `sequence`, `[row]`; the last layer verifies what drafters draft."""

    def __init__(
        self, decoder: LayerwiseDecoder, cache: Cache, drafters: list[Drafter], sequence: np.ndarray
    ):
        self.decoder = decoder
        self.cache = cache
        self.drafters = drafters
        self.rows = [Row(index, number, cache) for number, index in enumerate(sequence.tolist())]

    def decode(self) -> list[Output]:
        """Decodes all rows. Raises `MeeError` for states that are not finite."""
        going = self.rows
        while going:
            left = [row for row in going if not row.ready_to_verify]
            for drafter in self.drafters:
                if left:
                    left = drafter.draft(left)
            ready = [row for row in going if row.ready_to_verify]
            if len(ready) >= VERIFY_AT * len(going):
                self.verify(ready)
                going = [row for row in going if row.ready_to_verify or not row.ended]
                if going and len(going) <= DROP_FINISHED_AT * self.cache.batch:
                    self.cache.keep(np.array([row.slot for row in going]))
                    for slot, row in enumerate(going):
                        row.slot = slot
        return [row.output() for row in self.rows]

    def verify(self, rows: list[Row]) -> None:
        """Runs what waits in these rows through all layers, and accepts what is right."""
        decoder = self.decoder
        cache = self.cache
        layers = decoder.layers
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
        if (ids < 0).any():
            sequence = np.repeat([row.sequence for row in rows], span.counts)
            check_finite(ids, sequence, np.full(len(ids), layers))
        predicted = iter(ids.tolist())
        for row in rows:
            row.accept(list(islice(predicted, len(row.drafts))), layers, decoder.config.vocab_size)
        # tokens that were dropped have no keys and values any more
        cache.filled[:, slots] = [row.position for row in rows]
