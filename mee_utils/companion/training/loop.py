"""Training a backbone: a plain loop over batches, with one of our objectives as the loss.

What a run gives follows from its data and its seed. A run that was interrupted goes on from its last
checkpoint and ends where a whole one does.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...common.files import complete_file
from ...models.checkpoints import fast_bfloat16
from ...models.objectives import Objective, cross_entropy, layer_weights, objective_loss
from ...models.states import compute_logits, readout, teacher_forced
from .batches import Batch, Pair, batches_of, pad_pairs, padded
from .muon import RATES_FROM_SCRATCH, MuonAdam, parameter_groups

WARMUP_STEPS = 200  # a quarter of a short run
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
MIN_EVALUATIONS = 20  # in a run
MAX_INTERVAL = 200  # steps between two evaluations


@dataclass(frozen=True)
class Schedule:
    """How a backbone is trained: batches, learning rates, precision and seed.

    Attributes:
        learning_rate: The peak rate, of the matrices.
        decay: The share of the steps after the warm-up, the last ones, over which the rate falls linearly to
            zero; 0 keeps it at its peak.
        tokens_per_batch: Source plus target tokens of a batch, padding included.
        seed: Decides the order of the pairs, and dropout.
        rates: The rates of other parameters, as multiples of `learning_rate`; see `muon.parameter_groups`.
        muon: Whether Muon updates the matrices; else AdamW does.
        half: Whether the layers compute in bfloat16 where that is faster; the weights stay single.
    """

    learning_rate: float
    decay: float
    tokens_per_batch: int
    seed: int = 0
    rates: Mapping[str, float] = field(default_factory=RATES_FROM_SCRATCH.copy)
    muon: bool = True
    half: bool = False


@dataclass
class LearningCurve:
    """What was seen of a run while it trained.

    Attributes:
        steps: Steps taken so far.
        minutes: Time taken so far, of all sessions.
        loss: Rows of `step` and `loss`, the mean training loss since the row before.
        layer_cross_entropy: Rows of `step` and `cross_entropy`, on held-out pairs, in nats a token, one
            number a layer. The first row, of step 0, is from before training.
    """

    steps: int = 0
    minutes: float = 0.0
    loss: list[dict] = field(default_factory=list)
    layer_cross_entropy: list[dict] = field(default_factory=list)

    def followed_by(self, later: "LearningCurve") -> "LearningCurve":
        """The curve of two runs, one after the other; steps are counted on."""

        def join(rows: list[dict], later_rows: list[dict]) -> list[dict]:
            return rows + [row | {"step": self.steps + row["step"]} for row in later_rows if row["step"] > 0]

        return LearningCurve(
            steps=self.steps + later.steps,
            minutes=round(self.minutes + later.minutes, 2),
            loss=join(self.loss, later.loss),
            layer_cross_entropy=join(self.layer_cross_entropy, later.layer_cross_entropy),
        )


def train_backbone(
    network: nn.Module,
    objective: Objective,
    pairs: Sequence[Pair],
    held_out: Sequence[Pair],
    schedule: Schedule,
    folder: Path,
    name: str = "network",
) -> LearningCurve:
    """Trains a network in place on pairs of token ids; goes on where a run in the same `folder` stopped.

    With a `decay` the network ends as it was at the evaluation where the cross-entropies on the `held_out`
    pairs, weighted as the objective weights the layers, were least. Evaluations print a line with its `name`.
    """
    batches = batches_of(pairs, schedule.tokens_per_batch, schedule.seed)
    interval = evaluation_interval(len(batches))
    steps = len(batches) - len(batches) % interval  # so that the last step is evaluated
    log_interval = max(1, interval // 4)
    held_out_batches = padded(held_out, network.config.pad_token_id)
    run = _Run(network, objective, schedule, folder, name, steps)

    torch.manual_seed(schedule.seed)
    run.resume()
    network.train()
    torch.set_flush_denormal(True)  # gradients fade into numbers below 1e-38, which multiply ten times slower
    try:
        if not run.curve.layer_cross_entropy:
            run.evaluate(held_out_batches)
        for step in range(run.curve.steps, steps):
            run.train_on(batches[step])
            if (step + 1) % log_interval == 0:
                run.log(log_interval)
            if (step + 1) % interval == 0:
                run.evaluate(held_out_batches)
                run.save()
    finally:
        torch.set_flush_denormal(False)
    if schedule.decay > 0 and steps:
        network.load_state_dict(torch.load(run.best_checkpoint, map_location="cpu", weights_only=True))
    network.eval()
    return run.curve


class _Run:
    """One training: a network, its optimizer, the learning curve so far, and their checkpoints on disk."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        schedule: Schedule,
        folder: Path,
        name: str,
        steps: int,
    ):
        self.network = network
        self.objective = objective
        self.schedule = schedule
        self.name = name
        self.steps = steps
        self.last_checkpoint = folder / "last.pt"
        self.best_checkpoint = folder / "best.pt"

        groups = parameter_groups(
            network, schedule.rates, schedule.learning_rate, WEIGHT_DECAY, schedule.muon
        )
        self.optimizer = MuonAdam(groups, schedule.learning_rate)
        self.curve = LearningCurve()
        self.best_loss = math.inf
        self.loss_sum = torch.zeros((), device=network.device)  # since the last row of the curve
        self.started = time.monotonic()

    def train_on(self, pairs: Sequence[Pair]) -> None:
        """Takes one step."""
        step = self.curve.steps
        factor = rate_factor(step, self.steps, self.schedule.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        batch = pad_pairs(pairs, self.network.config.pad_token_id)
        loss = batch_loss(self.network, self.objective, batch, step, self.schedule.half)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss_sum += loss.detach()
        self.curve.steps = step + 1

    def log(self, steps: int) -> None:
        """Adds the mean loss of the last `steps` steps to the learning curve."""
        mean = self.loss_sum.item() / steps
        self.curve.loss.append({"step": self.curve.steps, "loss": round(mean, 5)})
        self.loss_sum.zero_()

    def evaluate(self, held_out: Sequence[Batch]) -> None:
        """Adds the cross-entropy of every layer to the learning curve; keeps the weights if they are best."""
        losses = layer_losses(self.network, held_out)
        step = self.curve.steps
        self.curve.layer_cross_entropy.append({"step": step, "cross_entropy": losses})
        minutes = (time.monotonic() - self.started) / 60
        self.curve.minutes = round(minutes, 2)
        remaining = f"{minutes * (self.steps / step - 1):.0f} minutes left" if step else "begun"
        print(
            f"step {step} of {self.steps}: held out {losses[-1]:.3f} nats a token, {remaining} ({self.name})",
            flush=True,
        )
        weighted = float(np.dot(layer_weights(self.objective, len(losses)), losses))
        if step and self.schedule.decay > 0 and weighted < self.best_loss:
            self.best_loss = weighted
            with complete_file(self.best_checkpoint) as path:
                torch.save(self.network.state_dict(), path)

    def save(self) -> None:
        """Stores all that the rest of the run depends on."""
        checkpoint = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all(),
            "curve": asdict(self.curve),
            "best_loss": self.best_loss,
            "loss_sum": self.loss_sum,
        }
        with complete_file(self.last_checkpoint) as path:
            torch.save(checkpoint, path)

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one."""
        if not self.last_checkpoint.exists():
            return
        checkpoint = torch.load(self.last_checkpoint, map_location="cpu", weights_only=True)
        self.network.load_state_dict(checkpoint["network"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        torch.set_rng_state(checkpoint["random"])
        torch.cuda.set_rng_state_all(checkpoint["random_cuda"])
        self.curve = LearningCurve(**checkpoint["curve"])
        self.best_loss = checkpoint["best_loss"]
        self.loss_sum.copy_(checkpoint["loss_sum"])
        self.started = time.monotonic() - 60 * self.curve.minutes


def evaluation_interval(steps: int) -> int:
    """Steps between two evaluations: at most 200, and fewer in a short run, for 20 evaluations.

    >>> [evaluation_interval(steps) for steps in (5, 100, 4000, 10_000)]
    [1, 5, 200, 200]
    """
    evaluations = max(MIN_EVALUATIONS, math.ceil(steps / MAX_INTERVAL))
    return max(1, steps // evaluations)


def rate_factor(step: int, steps: int, decay: float) -> float:
    """The learning rate of a step (from 0), as a share of its peak: warm-up, constant, linear decay.

    >>> [rate_factor(step, 12, 0.45) for step in range(12)]
    [0.0, 0.3333333333333333, 0.6666666666666666, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = min(WARMUP_STEPS, steps // 4)
    decay_steps = round(decay * (steps - warmup))
    decay_start = steps - decay_steps
    if step < warmup:
        return step / warmup
    if step < decay_start:
        return 1.0
    return 1.0 - (step - decay_start) / decay_steps


def batch_loss(
    network: nn.Module, objective: Objective, batch: Batch, step: int, half: bool = False
) -> Tensor:
    """The objective's loss of one batch, in bfloat16 if `half` and where that is faster."""
    device = network.device
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    with torch.autocast(device.type, torch.bfloat16, enabled=half and fast_bfloat16(device.type)):
        states, logits = states_and_logits(network, batch)
        return objective_loss(objective, network, states, logits, batch["labels"], step)


def states_and_logits(network: nn.Module, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """One pass over given targets.

    Returns the raw states `h^1 .. h^L` of the decoder, each `[batch, position, d_model]`, and the logits
    `[batch, position, vocabulary]` of the last layer.
    """
    fed = network.prepare_decoder_input_ids_from_labels(batch["labels"])
    states, last = teacher_forced(network, batch, fed)
    return states, readout(network, last)


@torch.no_grad()
def layer_losses(network: nn.Module, batches: Sequence[Batch]) -> list[float]:
    """Cross-entropy in nats a token at every layer, dropout off."""
    was_training = network.training
    network.eval()
    sums = torch.zeros(len(network.get_decoder().block))  # [layer]
    tokens = 0
    for batch in batches:
        batch = {name: tensor.to(network.device) for name, tensor in batch.items()}
        states, _ = states_and_logits(network, batch)
        means = [cross_entropy(compute_logits(network, state), batch["labels"]) for state in states]
        count = int((batch["labels"] >= 0).sum())
        sums += count * torch.stack(means).cpu()
        tokens += count
    network.train(was_training)
    return [round(float(value), 5) for value in sums / tokens]
