"""Training a backbone: the `transformers` Trainer with one of our objectives as its loss.

The Trainer gives checkpoints, resumption and the progress bar. What is added is the loss, and a callback that writes the
cross-entropy of every block on held-out pairs, because learning curves of early exits are one curve a block.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from .batches import Batches, Pair, pad_pairs
from .objectives import Objective, cross_entropy, objective_loss
from .states import BlockStates, decoder_inputs, read_out

# T5 draws its embedding with deviation 1 and the other matrices with about 0.1, and was trained with Adafactor, whose steps are in
# proportion to a matrix's own scale. One rate of AdamW for both starves the embedding.
EMBEDDING_RATE = 20.0


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        passes: passes over the pairs.
        learning_rate: the peak; linear warm-up, then a cosine down to zero.
        tokens_per_batch: source plus target tokens in a batch.
        warmup_steps: length of the warm-up.
        seed: decides the order of the batches and every draw.
        embedding_rate: the embedding's learning rate as a multiple of the others'; 1 where it was pre-trained well already.
        half: forward and backward pass in bfloat16 (weights, gradients and the optimizer stay in single precision), on a GPU only.
    """

    passes: float
    learning_rate: float = 2e-3
    tokens_per_batch: int = 2500
    warmup_steps: int = 200
    seed: int = 0
    weight_decay: float = 0.01
    embedding_rate: float = EMBEDDING_RATE
    half: bool = False


@dataclass
class Curve:
    """What was logged while training: loss a step (smoothed) and cross-entropy of each block on held-out pairs."""

    loss: list[dict] = field(default_factory=list)
    blocks: list[dict] = field(default_factory=list)
    minutes: float = 0.0
    steps: int = 0


class ObjectiveTrainer(Trainer):
    """The Trainer with an `Objective` as its loss."""

    def __init__(self, *args, objective: Objective, embedding_rate: float = EMBEDDING_RATE, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective, self.embedding_rate = objective, embedding_rate
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, *args, **kwargs):
        """AdamW with a rate of its own for the embedding (`Schedule.embedding_rate`)."""
        named = list(self.model.named_parameters())
        wide = [p for name, p in named if name.startswith(("shared", "lm_head"))]
        rest = [p for name, p in named if not name.startswith(("shared", "lm_head"))]
        rate, decay = self.args.learning_rate, self.args.weight_decay
        groups = [{"params": wide, "lr": self.embedding_rate * rate, "weight_decay": 0.0}, {"params": rest, "lr": rate, "weight_decay": decay}]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, self.args.adam_beta2))
        return self.optimizer

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Runs the decoder once and reads the loss off its block states."""
        states, logits = forward(model, inputs)
        loss = objective_loss(self.objective, model, states, logits, inputs["labels"])
        return (loss, logits) if return_outputs else loss


def forward(network: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """One teacher-forced pass. Returns the raw states of all blocks and the logits of the last."""
    with BlockStates(network) as states:
        logits = network(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
            decoder_input_ids=decoder_inputs(network, batch["labels"]), use_cache=False,
        ).logits  # fmt: skip
    return states, logits


@torch.no_grad()
def block_losses(network: nn.Module, batches: Sequence[dict[str, torch.Tensor]]) -> list[float]:
    """Cross-entropy in nats a token at every block (the unweighted mean over the batches)."""
    device, was_training = next(network.parameters()).device, network.training
    network.eval()
    sums = torch.zeros(len(network.get_decoder().block))
    for batch in batches:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        states, _ = forward(network, batch)
        sums += torch.stack([cross_entropy(read_out(network, state), batch["labels"]).cpu() for state in states])
    network.train(was_training)
    return [round(float(value), 5) for value in sums / len(batches)]


class BlockCurves(TrainerCallback):
    """Logs the loss and, at each evaluation point, the loss of every block; keeps both across a resumption."""

    def __init__(self, batches: Sequence[dict[str, torch.Tensor]], every: int, path: Path):
        self.batches, self.every, self.path = batches, every, path
        self.curve = Curve(**json.loads(path.read_text())) if path.exists() else Curve()
        self.before = self.curve.minutes

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.monotonic()
        self.curve.loss = [row for row in self.curve.loss if row["step"] <= state.global_step]
        self.curve.blocks = [row for row in self.curve.blocks if row["step"] <= state.global_step]
        if state.global_step == 0:
            self._evaluate(0, kwargs["model"])

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            self._evaluate(state.global_step, kwargs["model"])

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.curve.loss.append({"step": state.global_step, "loss": round(float(logs["loss"]), 5)})

    def _evaluate(self, step: int, network: nn.Module) -> None:
        self.curve.blocks.append({"step": step, "cross_entropy": block_losses(network, self.batches)})

    def on_save(self, args, state, control, **kwargs):
        self._write(state)

    def on_train_end(self, args, state, control, **kwargs):
        self._write(state)

    def _write(self, state) -> None:
        self.curve.steps = state.global_step
        self.curve.minutes = round(self.before + (time.monotonic() - self.started) / 60, 2)
        self.path.write_text(json.dumps(vars(self.curve)))


def train_backbone(
    network: nn.Module,
    objective: Objective,
    pairs: Sequence[Pair],
    held_out: Sequence[Pair],
    schedule: Schedule,
    folder: Path,
    progress: bool = True,
) -> Curve:
    """Trains a network in place; picks up where an interrupted run in the same folder stopped.

    Args:
        network: the model to train; changed in place.
        objective: the loss.
        pairs: training pairs of token ids.
        held_out: pairs on which the loss of each block is logged.
        schedule: length, speed and seed.
        folder: where checkpoints and curves of the run are kept.
        progress: show a progress bar on the terminal.

    Returns:
        The learning curves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_flush_denormal(True)  # gradients fade into denormal numbers, which processors multiply ten times slower
    pad, device = network.config.pad_token_id, next(network.parameters()).device.type
    data = Batches(pairs, schedule.tokens_per_batch, pad, schedule.passes, schedule.seed)
    every = max(1, len(data) // 20)
    arguments = TrainingArguments(
        use_cpu=device == "cpu", bf16=schedule.half and device == "cuda",
        output_dir=str(folder), max_steps=len(data), per_device_train_batch_size=1, learning_rate=schedule.learning_rate,
        lr_scheduler_type="cosine", warmup_steps=min(schedule.warmup_steps, len(data) // 4), adam_beta2=0.98,
        weight_decay=schedule.weight_decay, max_grad_norm=1.0, logging_steps=max(1, every // 4), save_steps=every,
        save_total_limit=1, seed=schedule.seed, report_to=[], disable_tqdm=not progress, remove_unused_columns=False,
        dataloader_pin_memory=False, train_sampling_strategy="sequential",
    )  # fmt: skip
    curves = BlockCurves([pad_pairs(held_out[i : i + 64], pad) for i in range(0, len(held_out), 64)], every, folder / "curve.json")
    trainer = ObjectiveTrainer(
        network, arguments, objective=objective, embedding_rate=schedule.embedding_rate, train_dataset=data, data_collator=lambda items: items[0], callbacks=[curves]
    )
    resume = any(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=resume or None)
    return curves.curve
