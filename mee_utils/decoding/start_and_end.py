"""The ids that an output begins after, and those that end it."""

from __future__ import annotations

from numbers import Integral

from torch import nn

from ..common.errors import MeeError


def start_and_end_ids(network: nn.Module) -> tuple[int, frozenset[int]]:
    """The id that outputs begin after, and the ids that end an output.

    Each is what `generation_config` says, as in `transformers`, else what `config` says. An output begins
    after `decoder_start_token_id`, else `bos_token_id`, else `pad_token_id`; without an `eos_token_id` all
    outputs have `max_new_tokens` tokens. Raises `MeeError` for no start id, or what is no id of the model.
    """
    vocabulary = network.config.vocab_size
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        start = _setting(network, name)
        if start is not None:
            break
    else:
        where = "model.network.generation_config.decoder_start_token_id"
        raise MeeError(f"The model has no decoder_start_token_id and no pad_token_id: set {where}.")
    _check_id(name, start, start, vocabulary)
    return int(start), end_ids(_setting(network, "eos_token_id"), vocabulary)


def checked_start(token: int, vocabulary: int) -> int:
    """The id that outputs begin after; raises `MeeError` for one that the model does not have."""
    _check_id("decoder_start_token_id", token, token, vocabulary)
    return token


def end_ids(setting: object, vocabulary: int) -> frozenset[int]:
    """The ids that end an output, from an `eos_token_id`: one id, a list of them, or None for none.

    Raises `MeeError` for what is no id of a model with so many ids.
    """
    if setting is None:
        return frozenset()
    ids = list(setting) if isinstance(setting, list | tuple) else [setting]
    for token in ids or [setting]:
        _check_id("eos_token_id", setting, token, vocabulary)
    return frozenset(map(int, ids))


def _setting(network: nn.Module, name: str):
    """What a model says of itself: its `generation_config`, else its `config`; None if neither does."""
    value = getattr(network.generation_config, name, None)
    return getattr(network.config, name, None) if value is None else value


def _check_id(name: str, setting: object, token: object, vocabulary: int) -> None:
    """Raises `MeeError` unless a token of a setting is an id of the model."""
    whole = isinstance(token, Integral) and not isinstance(token, bool)
    if not whole or not 0 <= token < vocabulary:
        advice = f"set model.network.generation_config.{name} to an id from 0 to {vocabulary - 1}"
        raise MeeError(f"The model says {name}={setting!r}: {advice}.")
