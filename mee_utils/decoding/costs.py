"""What drafts cost on this machine: the steps of verified exits, timed with the decoder's own code."""

import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..common.errors import MeeError, check_whole
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..models.loading import Model
from .exit_state import ExitState, Step
from .generation import bind_policy
from .layerwise import LayerwiseDecoder, Rows, Span, decoder_of
from .token import TokenDecoder, on_host
from .verify import DraftDecoder

SOURCE = 48  # tokens of the input that is timed
# other processes do not lengthen a thread's own time; where that is coarse, or on GPUs, all time counts
_clock = time.perf_counter
if sys.platform == "linux" and not torch.cuda.is_available():
    _clock = time.thread_time
LEAST, MOST, SECONDS = 5, 40, 0.5  # runs, of which the fastest counts: so many, or as long as this takes


@dataclass(frozen=True)
class DraftCosts:
    """Costs of the steps of verified exits, in one unit of your choice (measured: seconds).

    Raises `MeeError` for costs that are not finite, negative or missing.
    """

    block: Sequence[float]  # of a layer on 1, 2, .. tokens at once, those of all rows together
    readout: Sequence[float] = ()  # of the last layer's, with all that verifying costs besides the layers
    decision: float | Sequence[float] = 0.0  # of one decision of all rows, or a list with one for each policy
    token: float = 0.0  # of drafting a token besides these, wherever rows leave, or waiting ones join
    plain: Sequence[float] = ()  # of a token of 1, 2, .. rows without drafts; by default layers and a readout

    def __post_init__(self):
        for name, dimensions in {"block": 1, "readout": 1, "decision": None, "token": 0, "plain": 1}.items():
            given = getattr(self, name)
            try:
                costs = np.asarray(given, dtype=np.float64)
            except (TypeError, ValueError):
                costs = np.array(np.nan)
            shaped = costs.ndim < 2 if dimensions is None else costs.ndim == dimensions
            if not (shaped and (costs >= 0).all() and np.isfinite(costs).all()) or not np.any(self.block):
                raise MeeError(f"{name}={given!r:.60}: costs are numbers from 0 on; see DraftCosts.")

    def table(self, name: str, tokens: int) -> np.ndarray:
        """`[tokens + 1]`, what 0, 1, .. tokens cost; `MeeError` if there are too few costs."""
        costs = getattr(self, name)
        if not len(costs) and name != "block":
            costs = np.zeros(tokens)
        if len(costs) < tokens:
            many = f"{len(costs)} costs ({name}), but up to {tokens} tokens go through a layer at once"
            raise MeeError(f"{many}: give costs of 1 to {tokens}.")
        return np.array([0.0, *costs[:tokens]])


_MEASURED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@torch.inference_mode()
def measure_costs(model: Model, policies: ExitPolicy | Sequence[ExitPolicy] = (), batch_size=1) -> DraftCosts:
    """Times the steps of verified exits on up to `batch_size` rows, and a decision of each policy.

    Takes a moment; all but the decisions is kept for the model and this process.
    """
    decoder, batch_size = decoder_of(model.network), check_whole("batch_size", batch_size)
    known = _MEASURED.setdefault(decoder, {})
    for rows in {1, batch_size} - known.keys():
        known[rows] = _measure(decoder, rows)
    one, many = known[1], known[batch_size]
    few = np.arange(1, min(MAX_DRAFT + 1, batch_size))  # tokens of one row; more are those of all rows
    measured = [*few, *(batch_size * np.arange(1, MAX_DRAFT + 1))]
    at = lambda name: [*one[name][: len(few)], *many[name]]
    tokens, rows = np.arange(1, measured[-1] + 1), np.arange(1, batch_size + 1)
    policies = [policies] if isinstance(policies, ExitPolicy) else policies
    return DraftCosts(
        block=np.interp(tokens, measured, at("block")),
        readout=np.interp(tokens, measured, at("readout")),
        decision=[_decision(model, decoder, policy, batch_size) for policy in policies] or 0.0,
        token=many["token"],
        plain=np.interp(rows, [1, batch_size], [one["plain"], many["plain"]]),
    )


def _measure(decoder: LayerwiseDecoder, rows: int) -> dict:
    """Seconds of the steps of some rows, of layers and readouts for 1, 2, .. drafts a row."""
    layers, draft, block, verified, plain = decoder.layers, *_fastest(lambda: _run(decoder, rows))
    # a disturbed run is too slow, never too fast, and fewer tokens do not cost more
    block, verified = (np.minimum.accumulate(costs[::-1])[::-1] for costs in (block, verified))
    block /= max(1, layers - 1)
    readout, token = (verified - (layers - 1) * block).clip(0), max(0.0, draft.min() - block[0])
    return {"block": block, "readout": readout, "token": token, "plain": plain.min()}


def _run(decoder: LayerwiseDecoder, rows: int) -> np.ndarray:
    """Seconds `[step, drafts]`: a draft at layer 1, the other layers, verifying, a token at full depth."""
    numbers, layers, found = np.arange(rows), decoder.layers, []
    ids = torch.full((rows, SOURCE), decoder.start, device=decoder.embedding.device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    caches = [decoder.begin(batch, 8 * MAX_DRAFT) for _ in range(2)]
    first, last = (bind_policy(ExitPolicy("static", min_layer=layer), decoder) for layer in (1, layers))
    drafting, plain = DraftDecoder(decoder, caches[0], first, numbers), TokenDecoder(decoder, caches[1], last)
    if rows > 1:  # rows are hardly ever in step, which costs something
        drafting.draft(drafting.rows[: rows // 2])
        drafting.verify(drafting.rows[: rows // 2])
    for many in range(1, MAX_DRAFT + 1):
        draft = min(_seconds(drafting.draft, drafting.rows) for _ in range(many))
        slots, ends = np.array([(row.slot, row.position) for row in drafting.rows]).T
        block = _seconds(_run_layers, decoder, Span(caches[0], slots, ends, min(2, layers)))
        verified = _seconds(drafting.verify, drafting.rows)
        caches[1].move_to(many - 1)
        full = _seconds(plain.decode, Rows(caches[1], numbers), ids[:, 0], numbers)
        found.append((draft, block, verified, full))
    return np.array(found).T


def _run_layers(decoder: LayerwiseDecoder, span: Span) -> None:
    x = span.load()
    for layer in range(2, decoder.layers + 1):
        x = decoder.run_span(layer, x, span)
    on_host(x[0, :1])


def _decision(model: Model, decoder: LayerwiseDecoder, policy: ExitPolicy, rows: int) -> float:
    """Seconds of one decision, on average over the layers that decide."""
    bound = bind_policy(policy, decoder, model.min_exit_layer)
    bound.measure.check_model(model)
    fed = torch.arange(rows, device=model.device) % decoder.config.vocab_size
    x, here, zeros = decoder.embed(fed), np.arange(rows), np.zeros(rows, dtype=int)

    def decide():
        state, step = None, Step(decoder, bound.readout, sequence=zeros, position=zeros, fed=fed)
        for layer in range(bound.first_layer, max(bound.decision_layers, default=0) + 1):
            state = ExitState(step, layer, x, x, here, state)
            if layer in bound.decision_layers:
                state.confidence = on_host(bound.measure.confidence(state))
                bound.exceeded(state.confidence, state, MAX_DRAFT).any()

    return float(_fastest(lambda: _seconds(decide))) / max(1, len(bound.decision_layers))


def _fastest(run) -> np.ndarray:
    """The least of every time that `run` returns, over some runs."""
    runs, started = [], _clock()
    while len(runs) < LEAST or (len(runs) < MOST and _clock() < started + SECONDS):
        runs.append(run())
    return np.min(runs, axis=0)


def _seconds(step, *arguments) -> float:
    started = _clock()
    step(*arguments)
    return _clock() - started
