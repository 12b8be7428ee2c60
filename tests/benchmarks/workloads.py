"""The models that are timed: random ones of given sizes, since cost does not depend on the weights."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from mee_utils.common.errors import check_whole
from mee_utils.decoding.full_depth import Batch
from mee_utils.decoding.generation import bind_policy
from mee_utils.decoding.inputs import decode_batch
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.exits.measures import ForcedExits
from mee_utils.exits.policy import ExitPolicy
from mee_utils.models.costs import SHAPES, DecoderSizes

from .clock import seconds_in_turns, wait_for

SEED = 0
NARROW = 256  # d_model below which a model is timed more often
PAUSE = 0.3  # seconds between contenders whose threads go on spinning for a while
Run = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """A random model and what it decodes.

    Attributes:
        threads: None for one a core.
        device: where it computes, "cpu" or a GPU such as "cuda".
        compiling: whether the peer that is compiled takes part, whose first call takes a minute or more.
        agreeing: what all layers but the first add is zero, at no less work: every layer then predicts what
            the last does, so that drafts are right unless they are made wrong.
    """

    shape: str
    sizes: DecoderSizes
    d_kv: int = 64
    source: int = 32
    tokens: int = 32
    dtype: str = "float32"
    threads: int | None = None
    device: str = "cpu"
    compiling: bool = True
    agreeing: bool = False


WORKLOADS = {  # mini: one thread is the fastest for every contender
    "mini": Workload("mini", SHAPES["mini"], d_kv=24, threads=1),
    "t5-base": Workload("t5-base", SHAPES["t5-base"]),
    "t5-large": Workload("t5-large", SHAPES["t5-large"], tokens=16),
}


class Bench:
    """A random model of one workload, and its clock, which runs each contender `rounds` times."""

    def __init__(self, workload: Workload, rounds: int):
        import torch

        self.workload = workload
        self.device = workload.device
        self.on_gpu = self.device != "cpu"
        self.rounds = check_whole("rounds", rounds)
        self.layers = workload.sizes.layers
        self.take_threads()
        self.network = random_network(workload).to(getattr(torch, workload.dtype))
        self.network.config.eos_token_id = None  # every output has full length
        self.network.generation_config.eos_token_id = None
        self.decoder = LayerwiseDecoder(self.network)

    def take_threads(self) -> None:
        """Computes with the workload's threads; after a narrow model is loaded there is but one."""
        import torch

        torch.set_num_threads(self.workload.threads or os.cpu_count() or 1)

    def inputs(self, batch: int) -> dict:
        """Random inputs `[batch, source]` without padding."""
        import torch

        generator = torch.Generator().manual_seed(SEED)
        size = (batch, self.workload.source)
        ids = torch.randint(2, self.workload.sizes.vocabulary, size, generator=generator)
        ids = ids.to(self.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def batch(self, rows: int) -> Batch:
        """So many inputs, encoded."""
        import torch

        tokens = self.inputs(rows)
        with torch.inference_mode():
            return Batch(np.arange(rows), tokens, self.decoder.encode(tokens))

    def ours(self, batch: int, policy: ExitPolicy | None = None, tokens: int | None = None) -> Run:
        """Our decoder; a call gives the outputs. `tokens` of each row, by default those of the workload."""
        bound = bind_policy(policy, self.decoder)
        tokens = tokens or self.workload.tokens
        return partial(decode_batch, self.decoder, self.inputs(batch), bound, tokens, np.arange(batch))

    def forced(self, exits: np.ndarray) -> Run:
        """Our decoder with given exit layers `[batch, token]`."""
        return self.ours(len(exits), ExitPolicy(ForcedExits(exits), min_layer=1), exits.shape[1])

    def encode(self, batch: int) -> Run:
        """What every decoding begins with: the encoder, and the cache."""
        import torch

        begin = torch.inference_mode()(self.decoder.begin)
        return partial(begin, self.inputs(batch), self.workload.tokens)

    def times(self, contenders: dict[str, Run], pause: float = 0.0) -> pd.DataFrame:
        """Seconds `[round, contender]`, contenders taking turns; on a GPU no threads go on spinning."""
        return seconds_in_turns(contenders, self.rounds, 0.0 if self.on_gpu else pause, self.device)

    def wait(self) -> None:
        """Waits until the device is done."""
        wait_for(self.device)

    def parts(self) -> tuple[float, float, float]:
        """Seconds of a readout with its norm, and of a layer's K/V for one and for four tokens."""
        import torch

        decoder = self.decoder

        def key_values(rows):
            return [layer.key_value(layer.norm(rows)) for layer in decoder.weights]

        def readout(rows):
            return decoder.logits(decoder.norm(rows)).max(dim=-1)

        with torch.inference_mode():
            state = decoder.embed(torch.tensor([2], device=self.device))
            one = median_seconds(key_values, state) / self.layers
            four = median_seconds(key_values, state.repeat(4, 1)) / self.layers
            return median_seconds(readout, state), one, four


@lru_cache(maxsize=1)
def bench_of(workload: Workload, rounds: int) -> Bench:
    """The benchmark of a workload, kept for the next part. Narrow models, whose times are short, take thrice
    the rounds.
    """
    return Bench(workload, 3 * rounds if workload.sizes.d_model < NARROW else rounds)


def random_network(workload: Workload):
    """A T5 of the workload's sizes with random weights; `transformers` chooses how it computes attention."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = workload.sizes
    config = T5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.d_model,
        d_kv=workload.d_kv,
        num_heads=sizes.inner // workload.d_kv,
        d_ff=sizes.d_ff,
        num_layers=sizes.layers,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(SEED)
    with torch.device(workload.device):
        network = T5ForConditionalGeneration(config).eval()
    if workload.agreeing:
        for attention, cross, feed_forward in (block.layer for block in network.decoder.block[1:]):
            outputs = attention.SelfAttention.o, cross.EncDecAttention.o, feed_forward.DenseReluDense.wo
            for linear in outputs:
                torch.nn.init.zeros_(linear.weight)
    return network


def median_seconds(function: Callable, argument) -> float:
    """Seconds of a call that takes too little time to be clocked once."""
    import torch
    from torch.utils.benchmark import Timer

    variables = {"function": function, "argument": argument}
    timer = Timer("function(argument)", globals=variables, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.1).median
