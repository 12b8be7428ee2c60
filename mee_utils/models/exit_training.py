"""Training a checkpoint for exits with low-rank adapters: what `python -m mee_utils train-exits` does.

The loss is CALM's (Schuster et al. 2022, eq. 4) at the last layer and a few others, one of which is drawn in
each step; with no others it is the last layer's alone. Only LoRA's matrices (Hu et al. 2022) are trained, on
every linear layer, so that what comes out is small, and is merged into the weights where it is loaded:
`load_model(checkpoint, adapter=folder)`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from ..common.errors import MeeError, check_whole
from ..common.extras import needs_extra
from ..common.files import complete_file, read_json
from .adapters import RECIPE, without_warnings_of_peft
from .checkpoints import fast_bfloat16
from .families import final_norm_of, is_causal, layers_of
from .loading import Model
from .states import layer_states, output_scale, teacher_forced

WEIGHTS = "adapter_model.safetensors"  # stored in half precision, merged in that of the model
STATE = "training.pt"  # in the folder of an interrupted training
SAVED_EVERY = 50  # steps
HELD_OUT = 32  # pairs
WARMUP = 20  # steps
LAST_RATE = 0.1  # of the learning rate, at the end of its linear decay
ALPHA = 2.0  # LoRA's matrices count this many times


@dataclass(frozen=True)
class ExitRecipe:
    """How a checkpoint is trained for exits.

    Attributes:
        exit_layers: the layers below the last that are trained; None: at a quarter, half and three quarters
            of the depth. None at all, `()`, trains the last layer alone.
        rank: of LoRA's matrices.
        learning_rate: at its peak, of AdamW.
        tokens: how many are read, of inputs and outputs; the pairs are taken several times if need be.
        tokens_per_step: of one step, about.
        max_source, max_target: tokens of an input, beyond which a pair is left out, and of an output, which
            is cut.
        half: whether the layers compute in bfloat16 where that is faster; the weights stay single.
        seed: of the order of the pairs and of what is drawn.
    """

    exit_layers: tuple[int, ...] | None = None
    rank: int = 16
    learning_rate: float = 1e-3
    tokens: int = 400_000
    tokens_per_step: int = 600
    max_source: int = 320
    max_target: int = 64
    half: bool = True
    seed: int = 0

    def __post_init__(self):
        for name in ("rank", "tokens", "tokens_per_step", "max_source", "max_target"):
            check_whole(name, getattr(self, name))
        if not 0 < self.learning_rate < 1:
            raise MeeError(f"learning_rate={self.learning_rate}: give a number between 0 and 1.")

    def layers(self, depth: int) -> tuple[int, ...]:
        """The layers below the last that are trained, of a model of this depth."""
        if self.exit_layers is None:
            return tuple(sorted({round(depth * share) for share in (0.25, 0.5, 0.75)} - {0, depth}))
        for layer in self.exit_layers:
            if not 1 <= layer < depth:
                raise MeeError(f"exit_layers={self.exit_layers}: give layers from 1 to {depth - 1}.")
        return tuple(sorted(set(self.exit_layers)))


@dataclass
class Pairs:
    """Inputs and their outputs as ids, `[pair][token]` each; an output ends with the end token."""

    sources: list[list[int]]
    targets: list[list[int]]

    def __len__(self) -> int:
        return len(self.sources)

    def size(self, index: int) -> int:
        return len(self.sources[index]) + len(self.targets[index])


def tokenized(model: Model, pairs: Sequence[tuple[str, str]], recipe: ExitRecipe) -> Pairs:
    """The pairs that are trained on. Raises `MeeError` if none of them is short enough."""
    ends = model.network.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    kept = Pairs([], [])
    for source, target in pairs:
        ids = model.tokenizer(source, verbose=False).input_ids
        if len(ids) > recipe.max_source:
            continue
        written = model.tokenizer(text_target=target, add_special_tokens=False).input_ids
        kept.sources.append(ids)
        kept.targets.append([*written[: recipe.max_target - 1], *([] if end is None else [end])])
    if len(kept) <= HELD_OUT:
        fits = f"{len(kept)} of {len(pairs)} pairs have inputs of at most {recipe.max_source} tokens"
        raise MeeError(f"{fits}: give more than {HELD_OUT}, shorter ones, or raise max_source.")
    return kept


def train_exits(
    model: Model, pairs: Sequence[tuple[str, str]], folder: str | Path, recipe: ExitRecipe | None = None
) -> Path:
    """Trains a model for exits and writes the adapter; an interrupted training goes on where it stopped.

    Args:
        model: from `load_model`, in float32; it is left as the training makes it, so load it anew.
        pairs: inputs as they are given to `generate`, and the outputs that are wanted.
        folder: for the adapter, with its recipe and its losses on the way.
        recipe: how; by default CALM's loss at three layers and the last.

    Raises `MeeError` without the extra "adapters", for pairs that cannot be trained on, and for a folder that
    has an adapter of another recipe or model.
    """
    recipe = recipe or ExitRecipe()
    folder = Path(folder)
    exits = recipe.layers(model.layers)
    content = {"recipe": asdict(recipe) | {"exit_layers": list(exits)}, "base": model.fingerprint}
    if (folder / RECIPE).exists():
        stored = read_json(folder / RECIPE, "recipe")
        if any(stored.get(name) != value for name, value in content.items()):
            raise MeeError(f"{folder} has an adapter of another recipe or model: give another folder.")
        return folder
    data = tokenized(model, pairs, recipe)
    training = _Training(model, data, recipe, exits, folder / STATE)
    training.run()
    training.adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)  # a card of peft's, without content
    weights = {name: weight.half() for name, weight in load_file(folder / WEIGHTS).items()}
    with complete_file(folder / WEIGHTS) as path:
        save_file(weights, path, metadata={"format": "pt"})
    with complete_file(folder / RECIPE) as path:
        path.write_text(json.dumps(content | training.facts(), indent=1) + "\n", encoding="utf-8")
    (folder / STATE).unlink(missing_ok=True)
    return folder


class _Training:
    """One training: the adapted network, its optimizer, and how far it is."""

    def __init__(self, model: Model, data: Pairs, recipe: ExitRecipe, exits: tuple[int, ...], state: Path):
        with needs_extra("adapters"):
            from peft import LoraConfig, get_peft_model

        self.network = model.network
        self.recipe = recipe
        self.exits = exits
        self.state = state
        self.data = data
        self.losses: list[dict] = []  # held out, nats a token by layer
        torch.manual_seed(recipe.seed)
        settings = LoraConfig(
            r=recipe.rank, lora_alpha=ALPHA * recipe.rank, target_modules="all-linear", lora_dropout=0.0
        )
        with without_warnings_of_peft():
            self.adapted = get_peft_model(model.network, settings)
        self.trained = [weight for weight in self.network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=recipe.learning_rate, weight_decay=0.0)
        random = np.random.default_rng(recipe.seed)
        order = random.permutation(len(data))
        self.held_out = order[:HELD_OUT]
        self.batches = _batches(data, order[HELD_OUT:], recipe, random)
        self.step = 0

    def run(self) -> None:
        """Takes all steps that are left."""
        self._resume()
        steps = len(self.batches)
        if not self.losses:
            self._evaluate()
        bar = tqdm(total=steps, initial=self.step, desc="train exits", disable=None)
        while self.step < steps:
            self._take_step()
            bar.update()
            if self.step % SAVED_EVERY == 0 or self.step == steps:
                self._evaluate()
                self._save()
                last = self.losses[-1]["cross_entropy"]
                shown_losses = ", ".join(f"layer {layer}: {loss:.3f}" for layer, loss in last.items())
                print(f"step {self.step} of {steps}, held out, nats a token: {shown_losses}", flush=True)
        bar.close()
        self.network.eval()

    def _take_step(self) -> None:
        batch = self.batches[self.step]
        last = len(layers_of(self.network))
        layers = [last]
        if self.exits:
            layers.append(self.exits[self.step % len(self.exits)])
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * _rate(self.step, len(self.batches))
        self.network.train()
        device = self.network.device.type
        half = self.recipe.half and fast_bfloat16(device)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            losses = layer_losses(self.network, self.data, batch, layers)
        # each exit layer has its turn in one of so many steps
        weights = {layer: layer * (1 if layer == last else len(self.exits)) for layer in layers}
        loss = sum(weights[layer] * losses[layer] for layer in layers) / (last + sum(self.exits))
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Adds the cross-entropy of the trained layers on the pairs that are held out."""
        self.network.eval()
        layers = [*self.exits, len(layers_of(self.network))]
        sums = dict.fromkeys(layers, 0.0)
        for index in self.held_out:
            losses = layer_losses(self.network, self.data, [int(index)], layers)
            for layer in layers:
                sums[layer] += float(losses[layer]) / len(self.held_out)
        rounded = {str(layer): round(value, 4) for layer, value in sums.items()}
        self.losses.append({"step": self.step, "cross_entropy": rounded})

    def facts(self) -> dict:
        """What is told of the training."""
        tokens = sum(self.data.size(index) for batch in self.batches for index in batch)
        return {
            "steps": len(self.batches),
            "tokens": tokens,
            "pairs": len(self.data) - HELD_OUT,
            "parameters": sum(weight.numel() for weight in self.trained),
            "held_out": self.losses,
        }

    def _save(self) -> None:
        content = {
            "weights": [weight.detach() for weight in self.trained],
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
        }
        with complete_file(self.state) as path:
            torch.save(content, path)

    def _resume(self) -> None:
        if not self.state.exists():
            return
        stored = torch.load(self.state, map_location=self.network.device, weights_only=True)
        with torch.no_grad():
            for weight, kept in zip(self.trained, stored["weights"], strict=True):
                weight.copy_(kept)
        self.optimizer.load_state_dict(stored["optimizer"])
        self.step = stored["step"]
        self.losses = stored["losses"]


def layer_losses(
    network: nn.Module, data: Pairs, batch: Sequence[int], layers: Sequence[int]
) -> dict[int, Tensor]:
    """The cross-entropy of some layers on some pairs, in nats a token: the mean over all tokens."""
    states, labels = _states_along(network, data, batch, layers)
    norm = final_norm_of(network)
    losses = {}
    for layer, state in states.items():  # [token, d_model]
        logits = network.lm_head(norm(state) * output_scale(network))
        losses[layer] = nn.functional.cross_entropy(logits.float(), labels)
    return losses


def _states_along(
    network: nn.Module, data: Pairs, batch: Sequence[int], layers: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """Raw states of some layers where the tokens of outputs are predicted, and these tokens, `[token]`."""
    sources = [data.sources[index] for index in batch]
    targets = [data.targets[index] for index in batch]
    if is_causal(network.config):
        fed = [[*source, *target[:-1]] for source, target in zip(sources, targets, strict=True)]
        first = [len(source) - 1 for source in sources]
        with layer_states(network) as states:
            network.get_decoder()(**_padded(fed, network.device), use_cache=False)
    else:
        start = network.config.decoder_start_token_id
        fed = _padded([[start, *target[:-1]] for target in targets], network.device)["input_ids"]
        first = [0] * len(sources)
        states, _ = teacher_forced(network, _padded(sources, network.device), fed)
    lengths = [len(target) for target in targets]
    rows = np.repeat(np.arange(len(batch)), lengths)
    positions = np.concatenate([begin + np.arange(n) for begin, n in zip(first, lengths, strict=True)])
    labels = torch.tensor(np.concatenate(targets), device=network.device)
    return {layer: states[layer - 1][rows, positions] for layer in layers}, labels


def _padded(ids: list[list[int]], device: torch.device) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, `[row, position]`, padded on the right."""
    rows = [torch.tensor(row) for row in ids]
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": pad_sequence(rows, batch_first=True).to(device), "attention_mask": mask.to(device)}


def _batches(data: Pairs, order: np.ndarray, recipe: ExitRecipe, random) -> list[list[int]]:
    """The pairs of each step, in random order, until so many tokens are read."""
    batches: list[list[int]] = [[]]
    of_step = 0
    left = recipe.tokens
    while left > 0:
        for index in random.permutation(order).tolist():
            size = data.size(index)
            if batches[-1] and of_step + size > recipe.tokens_per_step:
                batches.append([])
                of_step = 0
            batches[-1].append(index)
            of_step += size
            left -= size
            if left <= 0:
                break
    return batches


def _rate(step: int, steps: int) -> float:
    """The learning rate of a step, from 0, as a share of its peak.

    >>> [round(_rate(step, 40), 2) for step in (0, 19, 20, 30, 39)]
    [0.05, 1.0, 1.0, 0.53, 0.1]
    """
    warmup = min(WARMUP, math.ceil(steps / 2))
    if step < warmup:
        return (step + 1) / warmup
    through = (step - warmup) / max(1, steps - warmup - 1)
    return 1.0 - (1.0 - LAST_RATE) * through
