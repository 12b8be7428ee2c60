"""Texts into decoding and out of it: checks, batches, what decodes a batch, detokenization."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ..common.chats import in_template
from ..common.errors import MeeError, check_whole, shown
from ..exits.policy import BoundPolicy
from ..models.any_model import AnyModel
from ..models.loading import Model
from ..tasks.loading import Task
from .drafts import drafters_of
from .layerwise import LayerwiseDecoder
from .outputs import Output
from .token import decode_tokens
from .verify import DraftDecoder

LONGEST = 16_384  # tokens of an input, where the tokenizer names no limit
UNLIMITED = 1_000_000  # a tokenizer without a limit says 10^30


def check_model(model: object) -> None:
    """Raises `MeeError` unless a model can be decoded with exits; says how else it can be used."""
    if isinstance(model, Model):
        check_evaluation(model)
        if model.tokenizer is None:
            raise MeeError(f"{model.name} has no tokenizer: give one, Model(network, tokenizer, name).")
        return
    given = type(model).__name__
    advice = "give what load_model returns"
    if isinstance(model, AnyModel):
        advice += "; of other families exits are replayed: replay(trace(model, inputs), policy)"
    elif isinstance(model, torch.nn.Module):
        advice += ", or Model(network, tokenizer, name)"
    elif isinstance(model, str):
        given = shown(model)
        advice += f", as in load_model({given})"
    raise MeeError(f"model={given}: {advice}.")


def check_evaluation(model: Model | AnyModel) -> None:
    """Raises `MeeError` for a network in training mode, in which dropout draws another output each time."""
    if model.network.training:
        raise MeeError(f"{model.name} is in training mode, with dropout: call model.network.eval() first.")


def check_inputs(inputs: Sequence[str], what: str = "Input") -> list[str]:
    """A list of texts that are not empty and valid Unicode, or an error that says which one is none.

    A single text stands for a list of one; any other iterable is read once. Sets and dicts are refused: sets
    have no order, and of a dict nobody knows whether keys or values are meant.
    """
    if isinstance(inputs, Task):
        raise MeeError(f'inputs is a task ("{inputs.name}"): give its prompts, task.inputs.')
    if isinstance(inputs, str):
        inputs = [inputs]
    try:
        iterator = iter(inputs)
    except TypeError:
        iterator = None
    if iterator is None or isinstance(inputs, Mapping | set | frozenset | bytes):
        raise MeeError(f"inputs={shown(inputs)}: give a list of texts.")
    texts = list(iterator)
    if not texts:
        raise MeeError("There are no inputs: give at least one text.")
    for number, text in enumerate(texts):
        _check_text(f"{what} {number}", text)
    return texts


def chat_prompts(model: Model, texts: Sequence[str], system: str | None = None) -> list[str]:
    """Prompts for a model that was tuned on chats: each text as a user's message, by the model's template.

    Args:
        model: from `load_model`, whose tokenizer has a chat template.
        texts: what the user says.
        system: what the system says before; by default what the template says.

    Raises `MeeError` for texts as `generate` does, and for a tokenizer without a template.
    """
    return in_template(model.tokenizer, check_inputs(texts), system)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise MeeError(f"{name} is {shown(text)}: every one must be a text that is not empty.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = f"{name} is no valid Unicode at character {error.start} ({text[error.start]!r})"
        raise MeeError(f"{wrong}: read its file as UTF-8.") from error


# Settings of `transformers`' GenerationConfig that change greedy search, each with the values that do not.
# A minimum length counts the start token, so that 1 is none.
SEARCH_SETTINGS: dict[str, tuple] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_decoder_ids": ([],),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0, 1),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}
# settings of other ways of decoding that need neither beams nor sampling
OTHER_SEARCHES = (
    "assistant_early_exit",
    "constraints",
    "dola_layers",
    "force_words_ids",
    "is_assistant",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
)
KEPT = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "use_cache")


def changed_search_settings(network: nn.Module) -> list[str]:
    """The settings stored with a network that change greedy search, each as "name=value".

    Beams, sampling and lengths (`num_beams`, `do_sample`, `max_length`) are another search, not another
    greedy search: they are passed over.
    """
    changed = []
    for name, neutral in SEARCH_SETTINGS.items():
        value = getattr(network.generation_config, name, None)
        if value is not None and value not in neutral:
            changed.append(f"{name}={shown(value, 30)}")
    return changed


@contextmanager
def plain_greedy_search(network: nn.Module) -> Iterator[None]:
    """Sets aside the settings stored with a network, but for its ids, for as long as the block lasts.

    They change greedy search, ask for another search or for a cache of its own, and `transformers` takes them
    from the network wherever a call says None, so that no call can clear them.
    """
    stored = network.generation_config
    network.generation_config = type(stored)(**{name: getattr(stored, name, None) for name in KEPT})
    try:
        yield
    finally:
        network.generation_config = stored


def input_ids(tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, `[text][token]`; the tokenizer does not warn of long ones, which are checked here."""
    return tokenizer(list(texts), verbose=False).input_ids


def read_inputs(
    model: object, inputs: Sequence[str], longest: int | None
) -> tuple[list[str], list[list[int]]]:
    """The texts that are to be decoded and their ids, `[text][token]`; checks them and the model.

    `longest` is the most tokens of an input; None: the tokenizer's limit, or `LONGEST` where it has none.
    Raises `MeeError` for a model that cannot be decoded, inputs that are no texts or too long, and settings
    stored with the model that change greedy search, which nothing here follows.
    """
    check_model(model)
    texts = check_inputs(inputs)
    if changed := changed_search_settings(model.network):
        settings = f"The generation_config of {model.name} changes greedy search ({', '.join(changed)})"
        advice = "clear it for plain greedy search: model.network.generation_config.NAME = None"
        raise MeeError(f"{settings}, which is not supported here; {advice}.")
    limit = model.tokenizer.model_max_length if longest is None else check_whole("max_source_tokens", longest)
    if longest is None and limit >= UNLIMITED:
        limit = LONGEST
    ids = input_ids(model.tokenizer, texts)
    for number, row in enumerate(ids):
        if len(row) > limit:
            many = f"Input {number} has {len(row)} tokens, more than {limit}"
            raise MeeError(f"{many}: shorten it, or raise max_source_tokens.")
    return texts, ids


def batches_by_length(
    model: Model, ids: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[list, dict]]:
    """Yields (indices, padded batch) of tokenized inputs, long ones first; see `indices_by_length`."""
    for chosen in indices_by_length(ids, batch_size):
        side = "left" if model.causal else "right"
        listed = {"input_ids": [ids[index] for index in chosen]}
        padded = model.tokenizer.pad(listed, return_tensors="pt", padding_side=side)
        yield chosen, dict(padded.to(model.network.device))


def indices_by_length(ids: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of texts in batches, long ones first, so that a batch hardly holds padding.

    >>> list(indices_by_length([[1], [1, 2, 3], [1, 2], [4, 5]], batch_size=2))
    [[1, 2], [3, 0]]
    """
    order = sorted(range(len(ids)), key=lambda index: (-len(ids[index]), index))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def cut_at_end(ids: list[int], ends: Collection[int]) -> list[int]:
    """The ids up to and with the first end token (some checkpoints have several)."""
    for length, token in enumerate(ids, start=1):
        if token in ends:
            return ids[:length]
    return ids


def detokenize(model: Model, outputs: Sequence[Sequence[int]]) -> list[str]:
    """Texts of output ids, without special tokens. Raises `MeeError` unless each output is a list of ids."""
    if getattr(model, "tokenizer", None) is None:
        raise MeeError(f"model={shown(model)}: give what load_model returns, which has a tokenizer.")
    if not isinstance(outputs, Iterable):
        raise MeeError(f"outputs={shown(outputs)}: give a list of lists of token ids.")
    listed = []
    for number, ids in enumerate(outputs):
        if isinstance(ids, str) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
            raise MeeError(f"Output {number} is {shown(ids)}: give a list of token ids for each output.")
        listed.append(list(ids))
    return model.tokenizer.batch_decode(listed, skip_special_tokens=True)


class EncoderCache:
    """Keeps the encoder states of one model, so that inputs can be decoded under many policies.

    Of a causal model these are the keys and values of its prompts, which take more room.
    """

    def __init__(self) -> None:
        self._decoder: LayerwiseDecoder | None = None
        self._states: dict[tuple, Tensor] = {}

    @torch.inference_mode()
    def states(self, decoder: LayerwiseDecoder, batch: dict[str, Tensor]) -> Tensor:
        """The encoder's states of a batch, `[batch, source, d_model]`, computed if they are not there.

        Raises `MeeError` for the decoder of another model, or of other weights, than before.
        """
        if self._decoder not in (None, decoder):
            raise MeeError("Encodings belong to another model, or other weights: make new ones.")
        self._decoder = decoder
        key = self._key(batch)
        if key not in self._states:
            self._states[key] = decoder.encode(batch)
        return self._states[key]

    def pop(self, batch: dict[str, Tensor]) -> Tensor | None:
        """The encoder's states of a batch, which are not kept any longer; None if they are not there."""
        return self._states.pop(self._key(batch), None)

    @staticmethod
    def _key(batch: dict[str, Tensor]) -> tuple:
        return tuple(tuple(row) for tensor in batch.values() for row in tensor.tolist())


@torch.inference_mode()
def decode_batch(
    decoder: LayerwiseDecoder,
    batch: dict[str, Tensor],
    bound: BoundPolicy,
    max_new_tokens: int,
    sequence: np.ndarray,
    encoded: Tensor | None = None,
    start_and_ends: tuple[int, frozenset[int]] | None = None,
) -> list[Output]:
    """Decodes one batch, with exits as the policy says: copied, in parallel, or verified.

    Args:
        decoder: of the model.
        batch: `input_ids` and `attention_mask`, `[row, source]` each.
        bound: the policy; one that verifies has a fixed `max_draft`.
        max_new_tokens: the longest output.
        sequence: `[row]`, indices of the inputs among all.
        encoded: the encoder's states `[row, source, d_model]`, if they are known.
        start_and_ends: the id that outputs begin after, and those that end one, if not those of the model.

    Returns:
        One output a row.
    """
    cache = decoder.begin(batch, max_new_tokens, encoded, start_and_ends)
    if bound.policy.propagation == "verify":
        return DraftDecoder(decoder, cache, drafters_of(decoder, cache, bound), sequence).decode()
    return decode_tokens(decoder, cache, bound, sequence)
