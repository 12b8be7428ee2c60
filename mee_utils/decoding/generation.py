"""`generate`: greedy decoding with early exits, batched; rows exit and finish independently of each other.

With every policy, a row gets what it would get alone (in bfloat16 up to rounding, as in `transformers`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from ..common.errors import MeeError, check_whole, shown
from ..common.html import Markup, shaded, table
from ..exits.copies import Copies
from ..exits.policy import BoundPolicy, ExitPolicy
from ..models.costs import DecoderSizes, reading_flops
from ..models.loading import Model
from .inputs import EncoderCache, batches_by_length, decode_batch, detokenize, read_inputs
from .layerwise import LayerwiseDecoder, decoder_of
from .outputs import Drafts, Output
from .planning import DraftPlan, make_plan


@dataclass(repr=False)
class Generation:
    """What `generate` returns; lists and arrays are in the order of the inputs.

    - Exit layers: the layer whose prediction became the token. With `propagation="verify"` this is the
      layer of the accepted draft, 0 if it was copied, or L if the last layer replaced it.
    - FLOPs are those of the decoder (see `mee_utils.models.costs`); those of the encoder, which are the same
      under every policy, stand beside them. With `propagation="verify"` they include drafts that were thrown
      away.
    - Seconds are those of decoding: with the encoder unless `encodings` are given, without tokenization.
    - With FREE's learning threshold, the logits of tokens that had exited are computed again when a later
      token runs all layers; that token is charged for it.
    """

    texts: list[str]  # without special tokens
    token_ids: list[list[int]]  # up to and with the end token
    exit_layers: list[np.ndarray]  # for each output `[token]`; L: all layers were run
    confidences: list[np.ndarray]  # for each output `[token]`, at its exit; NaN at layer L
    readout_rows: list[np.ndarray]  # for each output `[token]`, rows of the LM head multiplied
    flops: np.ndarray  # `[input]`
    flops_by_part: dict[str, np.ndarray]  # "layers", "skipped", "source", "readout", "measure"
    encoder_flops: np.ndarray  # `[input]`, of a causal model those of reading the prompt
    seconds: float
    model: Model  # that made it
    drafts: list[Drafts] | None = None  # of each output, where exits are verified
    plan: DraftPlan | None = None  # what was planned, and why, where `max_draft` is "auto"

    @property
    def acceptance(self) -> float:
        """The share of the verified drafts that the last layer accepted.

        Drafts behind a wrong one are dropped unverified. NaN: nothing was drafted, as where drafts were
        planned and full depth was faster.
        """
        verified = sum(output.verified for output in self.drafts or ())
        accepted = sum(output.accepted for output in self.drafts or ())
        return accepted / verified if verified else float("nan")

    @property
    def tokens(self) -> int:
        """Number of tokens, end tokens included."""
        return sum(map(len, self.token_ids))

    @property
    def mean_exit_layer(self) -> float:
        """Mean exit layer over all tokens."""
        return float(np.concatenate(self.exit_layers).mean())

    def __repr__(self) -> str:
        depth = f"mean exit layer {self.mean_exit_layer:.2f}"
        planned = f", drafts by {self.plan}" if self.plan else ""
        size = f"{len(self.texts)} outputs, {self.tokens} tokens"
        return f"Generation({size}, {depth}, {self.seconds:.2f} s{planned})"

    def _repr_html_(self) -> str:
        """The first outputs, each token on the colour of its exit layer."""
        depth = self.model.layers
        rows = []
        for ids, layers, flops in zip(self.token_ids, self.exit_layers, self.flops, strict=True):
            words = self.model.tokenizer.convert_ids_to_tokens(ids)
            coloured = [
                shaded((word or "?").replace("▁", " "), layer / depth, f"layer {layer}")
                for word, layer in zip(words, layers.tolist(), strict=True)
            ]
            text = Markup("".join(coloured))
            rows.append((len(rows), text, f"{layers.mean():.1f}", f"{flops / 1e6:.1f}"))
        scale = "".join(shaded(f" {layer} ", layer / depth) for layer in range(1, depth + 1))
        header = ("", Markup(f"output, coloured by exit layer {scale}"), "mean exit layer", "MFLOPs")
        return table(rows, header, repr(self))


def generate(
    model: Model,
    inputs: Sequence[str],
    policy: ExitPolicy | Copies | None = None,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    max_source_tokens: int | None = None,
    encodings: EncoderCache | None = None,
) -> Generation:
    """Decodes prompts greedily with early exits, by a model from `load_model`.

    Greedy search begins and ends with the ids that the model's `generation_config` names, else its `config`.
    Stored `num_beams`, `do_sample` and lengths are ignored; settings that change greedy search itself
    (a repetition penalty, forced or suppressed ids, a minimum length, ...) are refused by name.

    Args:
        inputs: the prompts; one text stands for a list of one.
        policy: when to exit; None runs all layers and gives the tokens of `transformers`' own greedy search.
            `Copies(...)` gives the same tokens sooner where the output repeats the input.
            With `propagation="verify"` and no `max_draft`, drafts are planned first (`plan_drafts`), which
            takes a few seconds, is not part of `seconds`, and is reported as `plan`; if they are not faster,
            all layers are run.
        max_new_tokens: the longest output, end token included; the `N` of decaying thresholds.
        batch_size: rows at a time; changes speed, not results (but for an adaptive threshold, which learns).
        max_source_tokens: the longest input; by default the tokenizer's limit, else 16,384.
        encodings: keeps encoder states from call to call, where inputs are decoded with many policies.

    Raises `MeeError` if there are no inputs, for an empty or over-long one, a policy or encodings that do not
    fit the model, generation settings as above, start or end ids that the model does not have, and states
    that are not finite.
    """
    if policy is not None and not isinstance(policy, ExitPolicy | Copies):
        raise MeeError(f"policy={shown(policy)}: give ExitPolicy(...), Copies(...), or None: all layers.")
    if encodings is not None and not isinstance(encodings, EncoderCache):
        raise MeeError(f"encodings={shown(encodings)}: give an EncoderCache().")
    max_new_tokens = check_whole("max_new_tokens", max_new_tokens)
    batch_size = check_whole("batch_size", batch_size)
    texts, ids = read_inputs(model, inputs, max_source_tokens)
    decoder = decoder_of(model.network)
    if isinstance(policy, Copies):
        policy = ExitPolicy.copying(policy, decoder.layers)
    bound = bind_policy(policy, decoder, model.min_exit_layer)
    bound.measure.check_model(model)
    plan = None
    if policy is not None and policy.propagation == "verify" and policy.max_draft == "auto":
        plan = make_plan(model, texts, ids, [policy], max_new_tokens, batch_size, encodings)
        bound = bind_policy(plan.policy, decoder, model.min_exit_layer)
    outputs: dict[int, Output] = {}
    seconds = 0.0
    bar = tqdm(total=len(texts), desc="generate", delay=5, disable=None)
    for chosen, batch in batches_by_length(model, ids, batch_size):
        encoded = encodings.states(decoder, batch) if encodings else None
        started = time.perf_counter()
        decoded = decode_batch(decoder, batch, bound, max_new_tokens, np.array(chosen), encoded)
        seconds += time.perf_counter() - started
        outputs.update(zip(chosen, decoded, strict=True))
        bar.update(len(chosen))
    bar.close()
    in_order = [outputs[index] for index in range(len(texts))]
    return _generation(model, bound, in_order, list(map(len, ids)), seconds, plan)


def _generation(
    model: Model,
    bound: BoundPolicy,
    outputs: list[Output],
    source_tokens: list[int],
    seconds: float,
    plan: DraftPlan | None,
) -> Generation:
    """The result of `generate`: the outputs in order, with their FLOPs and texts.

    `source_tokens` is the length of each input.
    """
    verified = bound.policy.propagation == "verify"
    token_ids = [output.token_ids for output in outputs]
    executed = [output.executed for output in outputs]
    sizes = DecoderSizes.of(model.network.config)
    flops_by_part = bound.flops(
        sizes,
        exit_layers=[tokens.exit_layers for tokens in executed],
        readout_rows=[tokens.readout_rows for tokens in executed],
        source=source_tokens,
        positions=[tokens.positions for tokens in executed] if verified else None,
    )
    return Generation(
        texts=detokenize(model, token_ids),
        token_ids=token_ids,
        exit_layers=[output.exit_layers for output in outputs],
        confidences=[output.confidences for output in outputs],
        readout_rows=[output.readout_rows for output in outputs],
        flops=sum(flops_by_part.values()),
        flops_by_part=flops_by_part,
        encoder_flops=reading_flops(model.network.config, source_tokens),
        seconds=seconds,
        model=model,
        drafts=[output.drafts for output in outputs] if verified else None,
        plan=plan,
    )


def bind_policy(policy: ExitPolicy | None, decoder: LayerwiseDecoder, min_exit_layer=None) -> BoundPolicy:
    """The policy bound to a decoder; without one, no token exits before the last layer."""
    policy = policy or ExitPolicy("static", min_layer=decoder.layers)
    return policy.bind(decoder.layers, decoder.config.vocab_size, min_exit_layer)
