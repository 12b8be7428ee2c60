"""Training a backbone: the `transformers` Trainer with one of our objectives as its loss."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from . import fused
from .batches import Pair, batches_of, pad_pairs, padded
from .muon import FROM_SCRATCH, MuonAdam, fast_bfloat16, parameter_groups
from .objectives import Objective, cross_entropy, layer_weights, objective_loss
from .states import compute_logits, layer_states

WARMUP_STEPS, WEIGHT_DECAY = 200, 0.01
EVALUATIONS, SAVED_EVERY = 20, 200  # at least so many evaluations, and at most so many steps between two


@dataclass(frozen=True)
class Schedule:
    """How fast to train: peak learning rate, tokens in a batch, seed.

    `decay` is the share of the steps, the last ones, over which the rate falls to zero in a line; 0 keeps
    it. `rates` are those of `muon.parameter_groups`; without `muon` the matrices are updated by AdamW too.
    `half`: layers compute in bfloat16 where that is faster (`fast_bfloat16`), but weights stay single.
    """

    learning_rate: float
    decay: float
    tokens_per_batch: int
    seed: int = 0
    rates: Mapping[str, float] = field(default_factory=FROM_SCRATCH.copy)
    muon: bool = True
    half: bool = False


class ObjectiveTrainer(Trainer):
    """The Trainer with an `Objective` as its loss and the loss of every layer as its evaluation."""

    def __init__(self, *args, objective: Objective, name: str, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective, self.name, self.started = objective, name, None
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Runs the decoder once and computes the loss from its layer states."""
        states, logits = forward(model, inputs)
        return objective_loss(self.objective, model, states, logits, inputs["labels"], self.state.global_step)

    def evaluate(self, *args, **kwargs) -> dict:
        """Logs every layer's cross-entropy on held-out batches, and the minutes of all sessions so far."""
        if self.started is None:
            earlier = [row["minutes"] for row in self.state.log_history if "minutes" in row]
            self.started = time.monotonic() - 60 * max(earlier, default=0)
        losses = layer_losses(self.model, self.eval_dataset)
        minutes = (time.monotonic() - self.started) / 60
        self.log({"cross_entropy": losses, "minutes": minutes})
        done, steps, held_out = self.state.global_step, self.state.max_steps, f"held out {losses[-1]:.3f}"
        left = f"{minutes * (steps / done - 1):.0f} minutes left" if done else "begun"
        print(f"step {done} of {steps}: {held_out} nats a token, {left} ({self.name})", flush=True)
        self.control.should_evaluate = False  # else the Trainer evaluates the last step twice
        return {"eval_loss": float(np.dot(layer_weights(self.objective, len(losses)), losses))}


def forward(network: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """One teacher-forced pass. Returns the raw states of all layers and the logits of the last.

    A plain T5 on a CPU is run by `fused.forward`, which is faster and gives the same.
    """
    plain = network.device.type == "cpu" and fused.is_plain(network)
    return fused.forward(network, batch) if plain else _hooked_forward(network, batch)


def _hooked_forward(network: nn.Module, batch: dict[str, torch.Tensor]):
    """The pass of `transformers`, as `forward`."""
    with layer_states(network) as states:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        shifted = network.prepare_decoder_input_ids_from_labels(batch["labels"])
        return states, network(**inputs, decoder_input_ids=shifted, use_cache=False).logits


@torch.no_grad()
def layer_losses(network: nn.Module, batches: Sequence[dict[str, torch.Tensor]]) -> list[float]:
    """Cross-entropy in nats a token at every layer."""
    device, was_training = next(network.parameters()).device, network.training
    network.eval()
    sums, tokens = torch.zeros(len(network.get_decoder().block)), 0
    for batch in batches:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        states, _ = forward(network, batch)
        losses = [cross_entropy(compute_logits(network, state), batch["labels"]) for state in states]
        count = int((batch["labels"] >= 0).sum())
        sums, tokens = sums + count * torch.stack(losses).cpu(), tokens + count
    network.train(was_training)
    return [round(float(value), 5) for value in sums / tokens]


def train_backbone(
    network: nn.Module,
    objective: Objective,
    pairs: Sequence[Pair],
    held_out: Sequence[Pair],
    schedule: Schedule,
    folder: Path,
    name: str = "network",
) -> dict:
    """Trains a network in place on pairs of token ids; picks up where a run in the same folder stopped.

    With a `decay` the network ends as it was where the cross-entropies that its objective asks for were least
    on the `held_out` pairs (the last layer's alone may be least at once). Evaluations print its `name`.

    Returns `steps`, `minutes`, `loss` (rows of `step` and the mean since the last) and `layer_cross_entropy`
    (rows of `step` and `cross_entropy`, one number a layer) on the `held_out` pairs.
    """
    pad, device = network.config.pad_token_id, next(network.parameters()).device.type
    data = batches_of(pairs, schedule.tokens_per_batch, schedule.seed)
    every = max(1, len(data) // max(EVALUATIONS, -(-len(data) // SAVED_EVERY)))
    steps = len(data) - len(data) % every  # so that the last step is evaluated
    warmup = min(WARMUP_STEPS, steps // 4)
    falling = dict(num_decay_steps=round(schedule.decay * (steps - warmup)), decay_type="linear")
    rates = dict(learning_rate=schedule.learning_rate, max_grad_norm=1.0, warmup_steps=warmup)
    rates |= dict(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=falling)
    batches = dict(per_device_train_batch_size=1, train_sampling_strategy="sequential", max_steps=steps)
    batches |= dict(remove_unused_columns=False, dataloader_pin_memory=False, seed=schedule.seed)
    watch = dict(eval_strategy="steps", eval_steps=every, eval_on_start=True, save_steps=every)
    watch |= dict(logging_steps=max(1, every // 4), save_total_limit=1, report_to=[], disable_tqdm=True)
    if schedule.decay > 0:
        watch |= dict(load_best_model_at_end=True, metric_for_best_model="loss")
    machine = dict(use_cpu=device == "cpu", bf16=schedule.half and fast_bfloat16(device))
    arguments = TrainingArguments(str(folder), **rates, **batches, **watch, **machine)
    collate = lambda one: pad_pairs(one[0], pad)
    inputs = dict(train_dataset=data, data_collator=collate, eval_dataset=padded(held_out, pad))
    groups = parameter_groups(network, schedule.rates, schedule.learning_rate, WEIGHT_DECAY, schedule.muon)
    aim = dict(objective=objective, name=name, optimizers=(MuonAdam(groups, schedule.learning_rate), None))
    trainer = ObjectiveTrainer(network, arguments, **inputs, **aim)
    logging.disable_progress_bar()  # of every checkpoint that is written
    logging.set_verbosity_error()  # about tied weights, which checkpoints hold once
    torch.set_flush_denormal(True)  # gradients fade into denormal numbers, which multiply ten times slower
    try:
        trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    finally:
        torch.set_flush_denormal(False)
    history = trainer.state.log_history
    layers = {row["step"]: row["cross_entropy"] for row in history if "cross_entropy" in row}
    return {
        "steps": trainer.state.global_step,
        "minutes": round(max(row.get("minutes", 0) for row in history), 2),
        "loss": [{"step": row["step"], "loss": round(row["loss"], 5)} for row in history if "loss" in row],
        "layer_cross_entropy": [{"step": step, "cross_entropy": row} for step, row in layers.items()],
    }
