"""Low-rank adapters (LoRA, Hu et al. 2022), merged into the weights of the checkpoint that they belong to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ..common.errors import MeeError, one_line, shown
from ..common.extras import needs_extra
from ..common.files import read_json

RECIPE = "recipe.json"  # beside an adapter that was trained here: how, and on which weights


@contextmanager
def without_warnings_of_peft() -> Iterator[None]:
    """peft asks a model of `transformers` for an attribute that has a new name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield


def merged_adapter(network: nn.Module, adapter: str | Path, fingerprint: str) -> nn.Module:
    """The network with an adapter merged into its weights.

    `fingerprint` is that of the network. Raises `MeeError` without the extra "adapters", for what is no
    adapter of this network, and for one that was trained here on other weights.
    """
    with needs_extra("adapters"):
        from peft import PeftModel

    folder = Path(adapter)
    if not (folder / "adapter_config.json").is_file():
        raise MeeError(f"adapter={shown(adapter)}: give the folder of an adapter (adapter_config.json).")
    if (folder / RECIPE).is_file() and read_json(folder / RECIPE).get("base") != fingerprint:
        raise MeeError(f"The adapter {folder} was trained on other weights: load the model that it is of.")
    try:
        with without_warnings_of_peft():
            return PeftModel.from_pretrained(network, str(folder)).merge_and_unload().eval()
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise MeeError(f"The adapter {folder} does not fit the model ({one_line(error)}).") from error
