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
    learning_rate: float = 2e-3, **options,
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
        options: of `new_classifier`.

    Returns:
        The classifier, and the mean loss of every epoch: `epoch`, `loss`.

    Raises:
        CompanionError: a trace without states, of another model, or with no tokens; "correctness" without references.
    """
    check_trace(trace, model)
    labels = torch.from_numpy(targets(trace, target))
    classifier = new_classifier(kind, trace.states.shape[-1], seed, **options).to(model.device).train().requires_grad_(True)
    labels = labels[:, classifier.lookback :].to(model.device)
    share = labels.double().mean(0).clamp(1e-3, 1 - 1e-3)
    weights = torch.stack([0.5 / (1 - share), 0.5 / share]).float()
    steps = epochs * -(-len(labels) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random, curve = np.random.default_rng(seed), []
    for epoch in range(1, epochs + 1):
        losses, order = [], random.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            chosen = np.sort(order[start : start + batch_size])
            odds = classifier.log_odds(normalized_states(trace, chosen, model)[:, :-1])
            wanted = labels[torch.from_numpy(chosen).to(labels.device)]
            weight = torch.where(wanted, weights[1], weights[0])
            loss = functional.binary_cross_entropy_with_logits(odds, wanted.float(), weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
    return classifier.eval().requires_grad_(False), curve


def check_trace(trace, model) -> None:
    """Refuses a trace that classifiers cannot be trained on or asked about."""
    if trace.states is None:
        raise CompanionError("This trace was made without states: make it with trace(..., states=file).")
    if trace.model != model.name:
        raise CompanionError(f'The trace is of "{trace.model}", the model is "{model.name}": give the model that was traced.')
    if len(trace) == 0:
        raise CompanionError("The trace holds no tokens: give at least one input.")


@torch.no_grad()
def normalized_states(trace, tokens, model) -> torch.Tensor:
    """`n(h)` of some tokens at all blocks, `[token, layer, d_model]`, in single precision."""
    norm = model.network.get_decoder().final_layer_norm
    raw = torch.from_numpy(np.array(trace.states[tokens])).to(model.device, norm.weight.dtype)
    return norm(raw).float()
