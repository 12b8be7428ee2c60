"""Training exit classifiers on a trace: the backbone is frozen, its states are read from a file a batch at a time.

Target of block l: "consistency", is this block's top-1 the last block's (CALM; MEE's report), or "correctness", is it the reference's (MEE's
blog). Loss: cross-entropy, in each block weighted so that both classes count alike, mean over blocks. The last block, where
nothing is decided, is left out.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from ..errors import CompanionError, check_choice
from .classifiers import TARGETS, ExitClassifier, new_classifier


def targets(trace, target: str = "consistency") -> np.ndarray:
    """Whether each token may exit at each block before the last, `[token, layer - 1]`.

    Args:
        trace: along the model's own output, or for "correctness" along the references.
        target: "consistency" or "correctness".
    """
    check_choice("target", target, TARGETS)
    if target == "correctness" and trace.along != "reference":
        raise CompanionError('target="correctness" compares with references: give a trace made with trace(model, inputs, references).')
    right = trace.token_id if target == "correctness" else trace.final_id
    return trace.top1_id[:, :-1] == right[:, None]


def train_classifier(
    kind: str, trace, model, *, target: str = "consistency", seed: int = 0, epochs: int = 5, batch_size: int = 128,
    learning_rate: float = 2e-3, held_out=None, **options,
) -> tuple[ExitClassifier, list[dict]]:  # fmt: skip
    """Trains one classifier.

    Args:
        kind: a name of the table in `mee_utils.exits.classifiers`.
        trace: with states, made by `trace(model, ..., states=file)` on training examples.
        model: the model of the trace; its final norm is applied to the states.
        target: "consistency" or "correctness".
        seed: of weights and order.
        epochs: passes over the tokens (MEE: 5).
        batch_size: tokens at a time, each with all its blocks.
        learning_rate: of AdamW, falling to zero along a cosine.
        held_out: another such trace, on which the loss is measured after every epoch.
        options: of `new_classifier`.

    Returns:
        The classifier, in single precision at least, and the mean loss of every epoch: `epoch`, `loss` (while it learned) and
        `held_out_loss`.

    Raises:
        CompanionError: a trace without states, of another model, or with no tokens; "correctness" without references.
    """
    for found in (trace, held_out):
        if found is not None:
            check_trace(found, model)
    labels = torch.from_numpy(targets(trace, target))
    classifier = new_classifier(kind, trace.states.shape[-1], seed, **options).to(model.device, working_dtype(model))
    classifier.train().requires_grad_(True)
    loss_of = _BalancedLoss(classifier, labels[:, classifier.lookback :])
    steps = epochs * -(-len(labels) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random, curve = np.random.default_rng(seed), []
    for epoch in range(1, epochs + 1):
        losses, order = [], random.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            chosen = np.sort(order[start : start + batch_size])
            loss = loss_of(normalized_states(trace, chosen, model), labels[torch.from_numpy(chosen)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
        if held_out is not None:
            curve[-1]["held_out_loss"] = _mean_loss(loss_of, held_out, model, target)
    return classifier.eval().requires_grad_(False), curve


class _BalancedLoss:
    """Cross-entropy over blocks in which both classes count alike in every block, by their shares in `labels`, `[token, decision]`."""

    def __init__(self, classifier: ExitClassifier, labels: torch.Tensor):
        share = labels.double().mean(0).clamp(1e-3, 1 - 1e-3)
        self.classifier, parameter = classifier, next(classifier.parameters())
        self.weights = torch.stack([0.5 / (1 - share), 0.5 / share]).to(parameter.device, parameter.dtype)

    def __call__(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of some tokens: states `[token, layer, d_model]`, labels `[token, layer - 1]`."""
        odds = self.classifier.log_odds(states[:, :-1])
        wanted = labels[:, self.classifier.lookback :].to(odds.device)
        weight = torch.where(wanted, self.weights[1], self.weights[0])
        return functional.binary_cross_entropy_with_logits(odds, wanted.to(odds.dtype), weight)


@torch.no_grad()
def _mean_loss(loss_of: _BalancedLoss, trace, model, target: str, chunk: int = 2048) -> float:
    labels, total = torch.from_numpy(targets(trace, target)), 0.0
    for start in range(0, len(labels), chunk):
        tokens = slice(start, start + chunk)
        total += float(loss_of(normalized_states(trace, tokens, model), labels[tokens])) * len(labels[tokens])
    return total / len(labels)


def check_trace(trace, model) -> None:
    """Refuses a trace that classifiers cannot be trained on or asked about."""
    if trace.states is None:
        raise CompanionError("This trace was made without states: make it with trace(..., states=file).")
    if trace.model != model.name:
        raise CompanionError(f'The trace is of "{trace.model}", the model is "{model.name}": give the model that was traced.')
    if len(trace) == 0:
        raise CompanionError("The trace holds no tokens: give at least one input.")


def working_dtype(model) -> torch.dtype:
    """What classifiers of a model compute in: its own precision, single at least."""
    return torch.promote_types(model.network.get_decoder().final_layer_norm.weight.dtype, torch.float32)


@torch.no_grad()
def normalized_states(trace, tokens, model) -> torch.Tensor:
    """`n(h)` of some tokens at all blocks, `[token, layer, d_model]`, in single precision at least."""
    norm = model.network.get_decoder().final_layer_norm
    raw = torch.from_numpy(np.array(trace.states[tokens])).to(model.device, norm.weight.dtype)
    return norm(raw).to(working_dtype(model))
