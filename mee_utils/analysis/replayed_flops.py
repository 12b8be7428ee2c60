"""What a replay costs: FLOPs of the decoder, where exits are taken and where the last layer verifies them."""

import numpy as np

from ..decoding.rounds import run_of
from ..exits.policy import BoundPolicy, ExitPolicy
from ..traces.drafts import layers_of_run, rounds_of_replay
from ..traces.replay import PolicyReplay, values_at_exits
from ..traces.trace import Trace
from .statistics import Estimate, interval, mean_interval
from .threshold_choice import exit_values


def replayed_estimates(replayed: PolicyReplay, max_new_tokens: int = 64) -> dict[str, Estimate]:
    """A replay at its own threshold: `flops_share`, and means of what `exit_values` returns."""
    sequence = replayed.trace.sequence
    spent = replayed_flops(replayed, max_new_tokens)  # [output]
    full = full_depth_flops(replayed.trace)
    share = interval(lambda weights: (weights @ spent) / (weights @ full), len(spent))
    of_tokens = exit_values(replayed, max_new_tokens)
    means = {name: mean_interval(values, sequence) for name, values in of_tokens.items()}
    return {"flops_share": share} | means


def replayed_flops(replayed: PolicyReplay, max_new_tokens: int = 64) -> np.ndarray:
    """Decoder FLOPs `[output]` of a replay at its own threshold, decisions included."""
    exits = replayed.exits(max_new_tokens)  # [token], an index into `layers`
    readout_rows = values_at_exits(replayed.readout_rows, exits)
    return _flops_of_outputs(replayed.trace, replayed.bound, replayed.layers[exits], readout_rows)


def verified_flops(replayed: PolicyReplay, max_draft: int, max_new_tokens: int = 64) -> np.ndarray:
    """Decoder FLOPs `[output]` of a replay whose exits are drafts, with all that is thrown away.

    A draft has at most `max_draft` tokens. What is run behind a wrong draft is an estimate, as in
    `mee_utils.decoding.rounds`.
    """
    trace = replayed.trace
    exits = replayed.exits(max_new_tokens)  # [token]
    run = run_of(rounds_of_replay(replayed, exits, max_draft, max_new_tokens))
    tokens = run.token
    readout_rows = replayed.readout_rows[tokens, exits[tokens]]
    is_draft = exits[tokens] < len(replayed.decision_layers)
    readout_rows = readout_rows + is_draft * trace.sizes.vocabulary  # the last layer's, which verifies
    readout_rows = np.where(run.copies, trace.sizes.vocabulary, readout_rows)
    exit_layers = layers_of_run(replayed, exits, run)
    ends = np.searchsorted(trace.sequence[tokens], np.arange(1, len(trace.source_tokens)))
    flops = replayed.bound.flops(
        trace.sizes,
        exit_layers=np.split(exit_layers, ends),
        readout_rows=np.split(readout_rows, ends),
        source=trace.source_tokens,
        positions=np.split(trace.position[tokens], ends),
    )
    return sum(flops.values()).astype(np.float64)


def _flops_of_outputs(
    trace: Trace, bound: BoundPolicy, exit_layers: np.ndarray, readout_rows: np.ndarray
) -> np.ndarray:
    """Decoder FLOPs `[output]`, from the exit layers and readout rows of a trace's tokens, `[token]` each."""
    by_part = bound.flops(
        trace.sizes,
        exit_layers=trace.by_output(exit_layers),
        readout_rows=trace.by_output(readout_rows),
        source=trace.source_tokens,
    )
    return sum(by_part.values()).astype(np.float64)


def full_depth_flops(trace: Trace) -> np.ndarray:
    """Decoder FLOPs `[output]` where no token exits and nothing is decided."""
    vocabulary = trace.sizes.vocabulary
    no_exit = ExitPolicy("static", min_layer=trace.layers).bind(trace.layers, vocabulary)
    exit_layers = np.full(len(trace), trace.layers)
    readout_rows = np.full(len(trace), vocabulary)
    return _flops_of_outputs(trace, no_exit, exit_layers, readout_rows)
