"""`generate`: greedy decoding with early exits, batched; rows exit and finish independently of each other.

    for each token:  embed -> block 1 -> sure? -> block 2 -> sure? -> ... -> block L -> read out

The loop knows policies, never measures by name. Whatever the policy, a row gets what it would get alone (in bfloat16 up to rounding,
which differs with the batch size there, in `transformers` as here).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..errors import CompanionError
from ..exits.policy import ExitPolicy
from ..models.costs import DecoderSizes, generation_flops
from ..models.loading import Model
from .greedy import batches_by_length, check_inputs, detokenize
from .journal import Journal, run_key
from .layerwise import Cache, LayerwiseDecoder, Rows, decoder_of, waiting_places
from .observation import Observation

UNLIMITED = 1_000_000  # a tokenizer without a limit says 10^30
COMPACT_AT = 0.5  # finished rows leave memory once this share of the batch is left


@dataclass
class Generation:
    """What `generate` returns; lists and arrays are in the order of the inputs.

    Attributes:
        texts: the outputs, without special tokens.
        token_ids: their ids, up to and with the end token.
        exit_layers: for each output `[token]`, the block at which each token left (L: all blocks were run).
        confidences: for each output `[token]`, the confidence with which it left; not a number at the last block, where nothing decides.
        flops: `[input]`, operations of the decoder (see `mee_utils.models.costs`; the encoder is left out).
        flops_by_part: the same by part: "blocks", "skipped", "source", "read_out", "measure".
        products: for each output `[token]`, how many rows of `W` its read-outs multiplied (V each, where nothing is pruned).
        seconds: wall-clock time of decoding, encoder included, tokenization and loading not.
    """

    texts: list[str]
    token_ids: list[list[int]]
    exit_layers: list[np.ndarray]
    confidences: list[np.ndarray]
    flops: np.ndarray
    flops_by_part: dict[str, np.ndarray]
    products: list[np.ndarray]
    seconds: float

    @property
    def tokens(self) -> int:
        """How many tokens were emitted, end tokens included."""
        return sum(map(len, self.token_ids))

    @property
    def mean_exit_layer(self) -> float:
        """Mean exit block over all tokens."""
        return float(np.concatenate(self.exit_layers).mean())


def generate(
    model: Model,
    inputs: Sequence[str],
    policy: ExitPolicy | None = None,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
    journal: str | Path | None = None,
    encodings: dict | None = None,
    progress: bool | None = None,
) -> Generation:
    """Decodes greedily with early exits.

    Args:
        model: from `load_model`.
        inputs: prompts.
        policy: when to exit; None runs all blocks, which gives the tokens of `transformers`' own greedy search (in bfloat16 up to
            rounding).
        max_new_tokens: the most tokens to generate for each, end token included; the `N` of decaying thresholds.
        batch_size: rows at a time. It changes speed, not results (but for an adaptive threshold, which learns in this order).
        max_source_tokens: the longest input; by default what the tokenizer says its model was trained with.
        journal: a file to which every finished batch is written at once; the same call with the same file goes on after an
            interruption.
        encodings: a dictionary that keeps the encoder's states from call to call, where the same inputs are decoded with many policies
            (same model, inputs and batch size); `seconds` is then without the encoder.
        progress: a bar on the terminal; by default if it takes longer than five seconds.

    Raises:
        CompanionError: no inputs, an empty or over-long one, a policy that does not fit the model, states that are not finite, a
            journal of another run.
    """
    texts = check_inputs(inputs)
    for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CompanionError(f"{name}={value!r}: give a whole number from 1 on.")
    if policy is not None and not isinstance(policy, ExitPolicy):
        raise CompanionError(f"policy={policy!r}: give ExitPolicy(...), or None to run all blocks.")
    policy = policy.fresh() if policy is not None else None
    decoder = decoder_of(model.network)
    if policy is not None:
        policy.decision_layers(decoder.layers)  # refuses blocks that the decoder does not have
    lengths = check_lengths(model, texts, max_source_tokens)
    book = None
    if journal is not None:
        if policy is not None and policy.schedule.learns:
            raise CompanionError("An adaptive threshold learns from all that came before and cannot be resumed: leave out journal.")
        book = Journal(journal, run_key(model, texts, policy, max_new_tokens, batch_size))
    outputs: list[tuple | None] = [None] * len(texts)
    seconds = 0.0
    bar = tqdm(total=len(texts), desc="generate", delay=5, disable=None if progress is None else not progress)
    for chosen, batch in batches_by_length(model, texts, batch_size):
        finished = book.find(chosen) if book else None
        if finished is None:
            encoded = _encoded(decoder, batch, encodings, tuple(chosen))
            started = time.perf_counter()
            rows = decode_batch(decoder, batch, policy, max_new_tokens, np.array(chosen), encoded)
            finished = (rows, time.perf_counter() - started)
            if book:
                book.write(chosen, *finished)
        for index, row in zip(chosen, finished[0], strict=True):
            outputs[index] = row
        seconds += finished[1]
        bar.update(len(chosen))
    bar.close()
    ids, exits, confidences, products = map(list, zip(*outputs, strict=True))
    sizes = DecoderSizes.of(model.network.config)
    if policy is None or policy.reader(sizes.layers, sizes.vocabulary) is None:
        products = [plain_products(sizes, policy, layers) for layers in exits]
    parts = count_flops(sizes, policy, exits, lengths, products)
    return Generation(detokenize(model, ids), ids, exits, confidences, sum(parts.values()), parts, products, seconds)


def plain_products(sizes: DecoderSizes, policy: ExitPolicy | None, exits: np.ndarray) -> np.ndarray:
    """`[token]`, rows of `W` multiplied for tokens that left at these blocks, where every read-out is over all ids."""
    read_outs = np.ones(len(exits)) if policy is None else policy.read_outs(exits, sizes.layers)
    return read_outs.astype(np.int64) * sizes.vocabulary


@torch.inference_mode()
def _encoded(decoder: LayerwiseDecoder, batch: dict[str, Tensor], encodings: dict | None, chosen: tuple[int, ...]) -> Tensor | None:
    """What is known already of the encoder's states, made now if they are to be kept."""
    if encodings is None:
        return None
    if chosen not in encodings:
        encodings[chosen] = decoder.encode(**batch)
    return encodings[chosen]


def check_lengths(model: Model, texts: Sequence[str], longest: int | None) -> list[int]:
    """Token counts of the inputs, or an error that names the one that is too long."""
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise CompanionError(f"max_source_tokens={longest!r}: give a whole number from 1 on, or None for what the tokenizer says.")
    lengths = [len(ids) for ids in model.tokenizer(list(texts)).input_ids]
    limit = longest or model.tokenizer.model_max_length
    if limit < UNLIMITED and max(lengths) > limit:
        first = next(i for i, length in enumerate(lengths) if length > limit)
        raise CompanionError(
            f"Input {first} has {lengths[first]} tokens, more than {limit}: shorten it, or raise max_source_tokens "
            "(T5 runs on longer inputs, but was not trained on them)."
        )
    return lengths


def count_flops(
    sizes: DecoderSizes, policy: ExitPolicy | None, exits: Sequence[np.ndarray], source: Sequence[int],
    products: Sequence[np.ndarray] | None = None,
) -> dict:  # fmt: skip
    """Operations by part, each `[input]`, of outputs that left at these blocks; `products` as in `Generation` (by default nothing is pruned)."""
    rows, products = [], [plain_products(sizes, policy, layers) for layers in exits] if products is None else products
    for layers, length, multiplied in zip(exits, source, products, strict=True):
        read_outs = multiplied / sizes.vocabulary
        if policy is None:
            rows.append(generation_flops(sizes, layers, length, read_outs))
            continue
        parallel, cost = policy.propagation == "parallel", policy.rule.flops(sizes.d_model)
        rows.append(generation_flops(sizes, layers, length, read_outs, parallel, cost, policy.decisions(layers, sizes.layers)))
    return {part: np.array([row[part] for row in rows], dtype=np.int64) for part in rows[0]}


@torch.inference_mode()
def decode_batch(
    decoder: LayerwiseDecoder, batch: dict[str, Tensor], policy: ExitPolicy | None, max_new_tokens: int, sequence: np.ndarray,
    encoded: Tensor | None = None,
) -> list[tuple[list[int], np.ndarray, np.ndarray, np.ndarray]]:
    """Decodes one encoded batch.

    Args:
        decoder: the decoder.
        batch: `input_ids` and `attention_mask`, `[row, source]`.
        policy: when to exit.
        max_new_tokens: the longest output.
        sequence: index of the input of each row.
        encoded: the encoder's states `[row, source, d_model]`, where they are known.

    Returns:
        For each row its ids, exit blocks, confidences, and rows of `W` multiplied where a policy prunes or contrasts (else 0).
    """
    config = decoder.config
    propagation = policy.propagation if policy else "copy"
    cache = decoder.begin(batch["input_ids"], batch["attention_mask"], max_new_tokens, propagation, encoded)
    steps: list[tuple[np.ndarray, Token]] = []
    going, alive = sequence, np.arange(len(sequence))
    start = config.decoder_start_token_id if config.decoder_start_token_id is not None else config.pad_token_id
    ids = torch.full((len(sequence),), start, device=cache.encoded.device)
    for position in range(max_new_tokens):
        cache.position = position
        token = decode_token(decoder, cache, cache.rows(alive), ids, policy, going)
        steps.append((going, token))
        goes_on = ~np.isin(token.ids, config.eos_token_id)
        if not goes_on.any():
            break
        ids = pick(token.device_ids, goes_on)
        going, alive = going[goes_on], alive[goes_on]
        if len(alive) <= COMPACT_AT * cache.batch:
            cache.keep(alive)
            alive = np.arange(len(alive))
    rows: dict[int, tuple[list, list, list, list]] = {int(i): ([], [], [], []) for i in sequence}
    for present, token in steps:
        for index, *values in zip(present.tolist(), token.ids.tolist(), token.exit_layers, token.confidences, token.products, strict=True):
            for kept, value in zip(rows[index], values, strict=True):
                kept.append(value)
    return [
        (ids, np.array(layers, np.int32), np.array(sure, np.float32), np.array(products, np.int64))
        for ids, layers, sure, products in (rows[int(i)] for i in sequence)
    ]


@dataclass
class Token:
    """One emitted token of several rows: all are `[row]`, on the host, but for `device_ids`, which are where the model is."""

    ids: np.ndarray
    device_ids: Tensor
    exit_layers: np.ndarray
    confidences: np.ndarray
    products: np.ndarray


def decode_token(
    decoder: LayerwiseDecoder, cache: Cache, rows: Rows, ids: Tensor, policy: ExitPolicy | None, sequence: np.ndarray
) -> Token:
    """Brings one token of each row to its exit and reads it out: the heart of early exiting.

    Args:
        decoder: the decoder.
        cache: the batch, its `position` set.
        rows: the rows that are still going.
        ids: the token before, `[row]`.
        policy: when to exit; None runs all blocks.
        sequence: index of the input of each row.
    """
    if policy is not None and policy.rule.looks_ahead:
        return _decode_looking_ahead(decoder, cache, rows, ids, policy, sequence)
    decisions = policy.decision_layers(decoder.layers) if policy else ()
    watched = policy.watched_from(decoder.layers) if policy else decoder.layers + 1
    left, now, here = _Left(len(rows)), None, np.arange(len(rows))
    labels = _Labels(decoder, cache, policy) if policy and policy.schedule.learns else None
    reader = policy.reader(decoder.layers, decoder.config.vocab_size) if policy else None
    x, active, mask = decoder.embed(ids), np.ones(len(rows), dtype=bool), None
    for layer in range(1, decoder.layers + 1):
        before, x = x, decoder.block(layer, x, cache, rows)
        if mask is not None:  # a row that has exited is carried along with its exit state: the block gets its keys and values
            x = torch.where(mask, x, before)
        if watched <= layer < decoder.layers or (reader and layer == decoder.layers):
            now = Observation(decoder, layer, x, before, here, sequence[here], cache.position, now, reader)
        if layer not in decisions:
            continue
        now.asked = confidence = on_host(policy.rule.confidence(now))
        if reader:
            left.spend(now, active)
        exits = policy.schedule.exceeded(confidence, cache.position, cache.length) & active
        if labels:
            labels.note(rows, confidence, now.top1_id)
        if not exits.any():
            continue
        left.add(here[exits], layer, confidence[exits], pick(x, exits), pick(now.top1_id, exits) if policy.rule.read_out else None)
        active &= ~exits
        if active.sum() <= decoder.carry * len(rows) or cache.parallel:
            decoder.leave(pick(x, ~active), cache, rows.keep(~active))
            if not active.any():
                return left.read_out(decoder, sequence)
            x, rows, here, active = pick(x, active), rows.keep(active), here[active], active[active]
        mask = None if active.all() else torch.from_numpy(active)[:, None].to(x.device, non_blocking=True)
    last = None
    if reader:
        last = pick(torch.where(torch.isfinite(now.reading.logits.amax(-1)), now.top1_id, -1), active)
        left.spend(now, active)
    left.add(here[active], decoder.layers, np.full(active.sum(), np.nan), pick(x, active), last)
    token = left.read_out(decoder, sequence)
    if labels:
        labels.learn(rows, token.ids[here])
    return token


def _decode_looking_ahead(decoder, cache: Cache, rows: Rows, ids: Tensor, policy: ExitPolicy, sequence: np.ndarray) -> Token:
    """For measures that need all blocks to decide: every block is run, then the token is taken back to its exit."""
    x, states, seen = decoder.embed(ids), [], []
    for layer in range(1, decoder.layers + 1):
        before, x = x, decoder.block(layer, x, cache, rows)
        states.append(x)
        seen.append(Observation(decoder, layer, x, before, np.arange(len(rows)), sequence, cache.position, seen[-1] if seen else None))
    predicted = np.stack([on_host(now.top1_id) for now in seen])
    settled = np.logical_and.accumulate((predicted == predicted[-1])[::-1])[::-1]
    exits, confidence = np.full(len(rows), decoder.layers), np.full(len(rows), np.nan)
    for layer in policy.decision_layers(decoder.layers)[::-1]:
        seen[layer - 1].settled = settled[layer - 1].astype(np.float64)
        found = on_host(policy.rule.confidence(seen[layer - 1]))
        leaves = policy.schedule.exceeded(found, cache.position, cache.length)
        exits[leaves], confidence[leaves] = layer, found[leaves]
    chosen = torch.stack(states)[torch.from_numpy(exits - 1).to(x.device), torch.arange(len(rows), device=x.device)]
    decoder.leave(chosen, cache, rows)
    decoder.take_back(exits, cache, rows)
    left = _Left(len(rows))
    left.add(np.arange(len(rows)), exits, confidence, chosen, None)
    return left.read_out(decoder, sequence)


class _Left:
    """The rows that have left the blocks, until all have; then those without a token are read out together."""

    def __init__(self, rows: int):
        self.layers, self.confidences = np.zeros(rows, dtype=np.int64), np.full(rows, np.nan)
        self.products = np.zeros(rows, dtype=np.int64)
        self.known: list[tuple[np.ndarray, Tensor]] = []
        self.unread: list[tuple[np.ndarray, Tensor]] = []

    def add(self, rows: np.ndarray, layers, confidences: np.ndarray, states: Tensor, ids: Tensor | None) -> None:
        """Takes rows in: with their token if a read-out has shown it already, else with their state."""
        self.layers[rows], self.confidences[rows] = layers, confidences
        (self.unread if ids is None else self.known).append((rows, states if ids is None else ids))

    def spend(self, now: Observation, active: np.ndarray) -> None:
        """Notes what was read out so far, for the rows that have not left."""
        self.products[now.rows[active]] = now.spent[active]

    def read_out(self, decoder: LayerwiseDecoder, sequence: np.ndarray) -> Token:
        """The token of every row. Raises `CompanionError` where a state is not finite."""
        if self.unread:
            numbers = np.concatenate([rows for rows, _ in self.unread])
            best = decoder.read_out(decoder.normalize(torch.cat([states for _, states in self.unread]))).max(dim=-1)
            self.known.append((numbers, torch.where(torch.isfinite(best.values), best.indices, -1)))
        order = np.concatenate([rows for rows, _ in self.known])
        ids = torch.cat([found for _, found in self.known])
        if (np.diff(order) < 0).any():
            ids = ids[torch.from_numpy(np.argsort(order)).to(ids.device, non_blocking=True)]
        on = on_host(ids)
        if (on < 0).any():
            row = int(np.flatnonzero(on < 0)[0])
            raise CompanionError(
                f"The states of input {sequence[row]} are not finite at block {self.layers[row]}: load the model with dtype float32, "
                "or look for damaged weights."
            )
        return Token(on, ids, self.layers, self.confidences, self.products)


class _Labels:
    """What an adaptive threshold learns from: shallow predictions, compared with deep ones once a row has gone deep."""

    def __init__(self, decoder: LayerwiseDecoder, cache: Cache, policy: ExitPolicy):
        self.decoder, self.cache, self.schedule = decoder, cache, policy.schedule
        if not cache.notes:
            cache.notes = {"confidence": np.zeros((cache.batch, cache.length)), "id": np.zeros((cache.batch, cache.length), np.int64)}
        self.first = cache.filled[-1].copy()

    def note(self, rows: Rows, confidence: np.ndarray, ids: Tensor) -> None:
        """Remembers the shallow prediction of the present token."""
        self.cache.notes["confidence"][rows.slots, self.cache.position] = confidence
        self.cache.notes["id"][rows.slots, self.cache.position] = on_host(ids)

    def learn(self, rows: Rows, deep: np.ndarray) -> None:
        """Compares with the last block's predictions: those of waiting tokens, and `deep`, that of the present token, `[row]`."""
        slots, positions = waiting_places(self.first[rows.slots], self.cache.position, rows.slots)
        predicted = deep
        if len(slots):
            states = self.cache.states[torch.from_numpy(slots), torch.from_numpy(positions)]
            predicted = np.concatenate([on_host(self.decoder.read_out(self.decoder.normalize(states)).argmax(-1)), deep])
        slots = np.concatenate([slots, rows.slots])
        positions = np.concatenate([positions, np.full(len(rows), self.cache.position)])
        notes = self.cache.notes
        self.schedule.learn(notes["confidence"][slots, positions], notes["id"][slots, positions] == predicted)


def pick(values: Tensor, which: np.ndarray) -> Tensor:
    """The rows for which `which` is true."""
    return values if which.all() else values[torch.from_numpy(np.flatnonzero(which)).to(values.device, non_blocking=True)]


def on_host(values) -> np.ndarray:
    """A tensor or array as a numpy array. Nothing else waits for the device, and a decision asks once (the oracle once a block)."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
