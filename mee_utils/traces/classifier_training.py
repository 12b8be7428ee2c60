"""Training exit classifiers on the stored states of a trace; the backbone is frozen.

Target of layer l: "consistency", is this layer's top-1 the last layer's (CALM; MEE's report), or
"correctness", is it the reference's (MEE's blog). Loss: cross-entropy, in each layer weighted so that both
classes count alike, mean over layers. The last layer, where nothing is decided, is left out.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..common.errors import CompanionError, check_choice, check_whole
from ..exits.classifiers import TARGETS, ExitClassifier, new_classifier
from ..models.loading import Model
from .replay import StoredStates, chunks
from .trace import Trace


def targets(trace: Trace, target: str = "consistency") -> np.ndarray:
    """Whether each token may exit at each layer before the last, `[token, layer - 1]`."""
    check_choice("target", target, TARGETS)
    if target == "correctness" and trace.along != "reference":
        call = "trace(model, inputs, references)"
        raise CompanionError(f'target="correctness" needs a trace along references, made with {call}.')
    right = trace.token_id if target == "correctness" else trace.final_id
    return trace.top1_id[:, :-1] == right[:, None]


def train_classifier(
    kind: str,
    trace: Trace,
    model: Model,
    *,
    target: str = "consistency",
    seed: int = 0,
    epochs: int = 5,
    batch_size: int = 128,
    learning_rate: float = 2e-3,
    held_out: Trace | None = None,
    **options,
) -> tuple[ExitClassifier, list[dict]]:
    """Trains one classifier; returns it, and of every epoch its number, the mean `loss` while it learned, and
    the `held_out_loss`.

    Args:
        kind: a name of the table in `mee_utils.exits.classifiers`; `options` are those of `new_classifier`.
        trace: of training examples, with states; for the target "correctness" along the references.
        model: the model of the trace; its final norm is applied to the states.
        epochs, batch_size: passes over the tokens (MEE: 5), and how many at a time, each with all its layers.
        learning_rate: of AdamW, falling to zero along a cosine.
        held_out: another such trace, on which the loss is measured after every epoch.

    Raises:
        CompanionError: a trace without states or tokens, or of another model; settings out of range.
    """
    for name, value, least in (("epochs", epochs, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        check_whole(name, value, least)
    stored = StoredStates(trace, model)
    other = None if held_out is None else StoredStates(held_out, model)
    labels = torch.from_numpy(targets(trace, target))
    classifier = new_classifier(kind, trace.states.shape[-1], seed, **options)
    classifier.to(model.device, stored.working_dtype).train().requires_grad_(True)
    loss_of = _BalancedLoss(classifier, labels[:, classifier.lookback :])
    steps = epochs * -(-len(labels) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random, curve = np.random.default_rng(seed), []
    for epoch in range(1, epochs + 1):
        losses, order = [], random.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            chosen = np.sort(order[start : start + batch_size])
            loss = loss_of(stored.normalized(chosen), labels[torch.from_numpy(chosen)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
        if other is not None:
            curve[-1]["held_out_loss"] = _mean_loss(loss_of, other, target)
    classifier.trained_on = model.fingerprint
    classifier.float().to(stored.working_dtype)  # as it is stored
    return classifier.eval().requires_grad_(False), curve


class _BalancedLoss:
    """Cross-entropy in which both classes of `labels`, `[token, decision]`, count alike in every layer."""

    def __init__(self, classifier: ExitClassifier, labels: Tensor):
        share = labels.double().mean(0).clamp(1e-3, 1 - 1e-3)
        self.classifier, parameter = classifier, next(classifier.parameters())
        self.weights = torch.stack([0.5 / (1 - share), 0.5 / share]).to(parameter.device, parameter.dtype)

    def __call__(self, states: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of some tokens: states `[token, layer, d_model]`, labels `[token, layer - 1]`."""
        odds = self.classifier.log_odds(states[:, :-1])
        wanted = labels[:, self.classifier.lookback :].to(odds.device)
        weight = torch.where(wanted, self.weights[1], self.weights[0])
        return functional.binary_cross_entropy_with_logits(odds, wanted.to(odds.dtype), weight)


@torch.no_grad()
def _mean_loss(loss_of: _BalancedLoss, stored: StoredStates, target: str) -> float:
    labels, total = torch.from_numpy(targets(stored.trace, target)), 0.0
    for tokens in chunks(stored.trace, 2048):
        total += float(loss_of(stored.normalized(tokens), labels[tokens])) * len(labels[tokens])
    return total / len(labels)
