"""Training a backbone: the `transformers` Trainer with one of our objectives as its loss.

The Trainer gives checkpoints, resumption, logs and the progress bar. What is added is the loss, and an
evaluation that logs the cross-entropy of every layer on held-out pairs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from .batches import Batches, Pair, pad_pairs
from .objectives import Objective, cross_entropy, objective_loss
from .states import compute_logits, decoder_inputs, layer_states

# T5 draws its embedding with deviation 1, the other matrices with about 0.1, and was trained with Adafactor,
# whose steps are in proportion to a matrix's own scale: one rate of AdamW for both starves the embedding.
EMBEDDING_RATE = 20.0
WARMUP_STEPS = 200


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train: passes over the pairs, peak learning rate, tokens in a batch, seed.

    `embedding_rate` is the embedding's learning rate as a multiple of the others'; 1 where it is pre-trained.
    `half`: bfloat16 on a GPU; weights and optimizer stay in single precision.
    """

    passes: float
    learning_rate: float
    tokens_per_batch: int
    seed: int = 0
    embedding_rate: float = EMBEDDING_RATE
    half: bool = False


class ObjectiveTrainer(Trainer):
    """The Trainer with an `Objective` as its loss and the loss of every layer as its evaluation."""

    def __init__(self, *args, objective: Objective, embedding_rate: float = EMBEDDING_RATE, **kwargs):
        super().__init__(*args, **kwargs)
        self.objective, self.embedding_rate, self.started = objective, embedding_rate, None
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)

    def create_optimizer(self, *args, **kwargs):
        """AdamW with a rate of its own for the embedding (`Schedule.embedding_rate`)."""
        wide, rest = [], []
        for name, weight in self.model.named_parameters():
            (wide if name.startswith(("shared", "lm_head")) else rest).append(weight)
        rate, decay = self.args.learning_rate, self.args.weight_decay
        embedding = dict(params=wide, lr=self.embedding_rate * rate, weight_decay=0.0)
        groups = [embedding, dict(params=rest, lr=rate, weight_decay=decay)]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, self.args.adam_beta2))
        return self.optimizer

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Runs the decoder once and computes the loss from its layer states."""
        states, logits = forward(model, inputs)
        loss = objective_loss(self.objective, model, states, logits, inputs["labels"])
        return (loss, logits) if return_outputs else loss

    def evaluate(self, *args, **kwargs) -> dict:
        """Logs every layer's cross-entropy on held-out batches, and the minutes of all sessions so far."""
        if self.started is None:
            earlier = [row["minutes"] for row in self.state.log_history if "minutes" in row]
            self.started = time.monotonic() - 60 * max(earlier, default=0)
        losses = layer_losses(self.model, self.eval_dataset)
        self.log({"cross_entropy": losses, "minutes": (time.monotonic() - self.started) / 60})
        return {}


def forward(network: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """One teacher-forced pass. Returns the raw states of all layers and the logits of the last."""
    with layer_states(network) as states:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        shifted = decoder_inputs(network, batch["labels"])
        return states, network(**inputs, decoder_input_ids=shifted, use_cache=False).logits


@torch.no_grad()
def layer_losses(network: nn.Module, batches: Sequence[dict[str, torch.Tensor]]) -> list[float]:
    """Cross-entropy in nats a token at every layer (the unweighted mean over the batches)."""
    device, was_training = next(network.parameters()).device, network.training
    network.eval()
    sums = torch.zeros(len(network.get_decoder().block))
    for batch in batches:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        states, _ = forward(network, batch)
        losses = [cross_entropy(compute_logits(network, state), batch["labels"]) for state in states]
        sums += torch.stack(losses).cpu()
    network.train(was_training)
    return [round(float(value), 5) for value in sums / len(batches)]


def train_backbone(
    network: nn.Module,
    objective: Objective,
    pairs: Sequence[Pair],
    held_out: Sequence[Pair],
    schedule: Schedule,
    folder: Path,
    progress: bool = True,
) -> dict:
    """Trains a network in place on pairs of token ids; picks up where a run in the same folder stopped.

    Returns:
        `steps`, `minutes`, `loss` (rows of `step` and the mean since the last) and `layer_cross_entropy`
        (rows of `step` and `cross_entropy`, one number a layer) on the `held_out` pairs.
    """
    torch.set_flush_denormal(True)  # gradients fade into denormal numbers, which multiply ten times slower
    pad, device = network.config.pad_token_id, next(network.parameters()).device.type
    data = Batches(pairs, schedule.tokens_per_batch, pad, schedule.passes, schedule.seed)
    every = max(1, len(data) // 20)
    rates = dict(learning_rate=schedule.learning_rate, lr_scheduler_type="cosine", adam_beta2=0.98)
    rates |= dict(warmup_steps=min(WARMUP_STEPS, len(data) // 4), weight_decay=0.01, max_grad_norm=1.0)
    batches = dict(per_device_train_batch_size=1, train_sampling_strategy="sequential", max_steps=len(data))
    batches |= dict(remove_unused_columns=False, dataloader_pin_memory=False, seed=schedule.seed)
    watch = dict(
        eval_strategy="steps", eval_steps=every, eval_on_start=True, logging_steps=max(1, every // 4)
    )
    watch |= dict(save_steps=every, save_total_limit=1, report_to=[], disable_tqdm=not progress)
    machine = dict(use_cpu=device == "cpu", bf16=schedule.half and device == "cuda")
    arguments = TrainingArguments(str(folder), **rates, **batches, **watch, **machine)
    held_out_batches = [pad_pairs(held_out[i : i + 64], pad) for i in range(0, len(held_out), 64)]
    inputs = dict(train_dataset=data, eval_dataset=held_out_batches, data_collator=lambda items: items[0])
    aim = dict(objective=objective, embedding_rate=schedule.embedding_rate)
    trainer = ObjectiveTrainer(network, arguments, **inputs, **aim)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    if trainer.state.global_step % every:
        trainer.evaluate()
    history = trainer.state.log_history
    layers = {row["step"]: row["cross_entropy"] for row in history if "cross_entropy" in row}
    return {
        "steps": trainer.state.global_step,
        "minutes": round(max(row.get("minutes", 0) for row in history), 2),
        "loss": [{"step": row["step"], "loss": round(row["loss"], 5)} for row in history if "loss" in row],
        "layer_cross_entropy": [{"step": step, "cross_entropy": row} for step, row in layers.items()],
    }
