"""Training exit classifiers on the stored states of a trace; the backbone is frozen.

Target of layer l: "consistency", is this layer's top-1 the last layer's (CALM; MEE's report); "correctness",
is it the reference's (MEE's blog); or "distilled", how probable does the last layer find it (FastBERT's exits
learn all of the last layer's distribution; kinds that read out do so here). Loss: cross-entropy, in each
layer weighted so that both classes count alike, mean over layers; some kinds have another
(`ExitClassifier.loss`), a table only counts. The last layer, where nothing is decided, is left out.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole
from ..exits.classifiers import SIZED, TARGETS, ExitClassifier, Lesson, TokenHash, new_classifier
from ..exits.readout import single
from ..models.loading import Model
from ..models.states import output_scale
from .replay import StoredStates, chunks
from .trace import Trace


def targets(trace: Trace, target: str = "consistency") -> np.ndarray:
    """Whether each token may exit at each layer before the last, `[token, layer - 1]`."""
    return trace.top1_id[:, :-1] == wanted_ids(trace, target)[:, None]


def wanted_ids(trace: Trace, target: str) -> np.ndarray:
    """What each token should be, `[token]`; a `MeeError` where "correctness" has no references."""
    check_choice("target", target, TARGETS)
    if target == "correctness" and trace.along != "reference":
        raise MeeError('target="correctness" needs one made with trace(model, inputs, references).')
    return trace.token_id if target == "correctness" else trace.final_id


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
    """Trains one classifier; returns it, and of every epoch its number, mean `loss` and `held_out_loss`.

    Args:
        kind: a name of the table in `mee_utils.exits.classifiers`; `options` are those of `new_classifier`.
        trace: of training examples by `model`, with states; for "correctness" along the references.
        epochs, batch_size: passes over the tokens (MEE: 5), and how many at a time, each with all its layers.
        learning_rate: of AdamW, falling to zero along a cosine.
        held_out: another such trace, on which the loss is measured after every epoch.

    Raises `MeeError` for a trace without states or tokens, or of another model; settings out of range.
    """
    for name, value, least in (("epochs", epochs, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        check_whole(name, value, least)
    stored = StoredStates(trace, model)
    other = None if held_out is None else StoredStates(held_out, model)
    labels = torch.from_numpy(targets(trace, target))
    sizes = {"decoder_layers": model.layers, "vocabulary": model.network.config.vocab_size}
    options = {name: sizes[name] for name in SIZED.get(kind, ())} | options
    classifier = new_classifier(kind, trace.states.shape[-1], seed, **options)
    classifier.to(model.device, stored.working_dtype)
    classifier.trained_on = model.fingerprint
    if isinstance(classifier, TokenHash):
        if target == "distilled":
            raise MeeError(f'"{kind}" counts, and nothing can be distilled: give another target.')
        classifier.count(torch.from_numpy(trace.token_before), labels)
        return classifier.float().to(stored.working_dtype), []  # as it is stored
    classifier.train().requires_grad_(True)
    loss_of = _Loss(classifier, labels, target)
    steps = epochs * -(-len(labels) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random, curve = np.random.default_rng(seed), []
    for epoch in range(1, epochs + 1):
        losses, order = [], random.permutation(len(labels))
        for start in range(0, len(order), batch_size):
            loss = loss_of(stored, np.sort(order[start : start + batch_size]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
        if other is not None:
            curve[-1]["held_out_loss"] = _mean_loss(loss_of, other)
    classifier.float().to(stored.working_dtype)  # as it is stored
    return classifier.eval().requires_grad_(False), curve


class _Loss:
    """The loss of a classifier; both classes of the labels, `[token, layer - 1]`, count alike in a layer."""

    def __init__(self, classifier: ExitClassifier, labels: Tensor, target: str):
        share = labels.double().mean(0).clamp(1e-3, 1 - 1e-3)
        self.classifier, self.target, parameter = classifier, target, next(classifier.parameters())
        self.weights = torch.stack([0.5 / (1 - share), 0.5 / share]).to(parameter.device, parameter.dtype)

    def __call__(self, stored: StoredStates, tokens) -> Tensor:
        """Mean loss of some tokens, a slice or their numbers."""
        trace, network = stored.trace, stored.model.network
        states, wanted = stored.normalized(tokens), wanted_ids(trace, self.target)[tokens]
        on_device = lambda ids: torch.from_numpy(ids.astype(np.int64)).to(states.device)
        top, ids, teacher = on_device(trace.top1_id[tokens, :-1]), on_device(wanted), None
        labels = (top == ids[:, None]).to(self.weights)
        head, scale = network.lm_head.weight.detach(), output_scale(network)  # a packed one has no gradient
        readout = lambda states: single(functional.linear(states.to(stored.dtype) * scale, head))
        if self.target == "distilled":
            teacher = readout(states[:, -1:]).log_softmax(dim=-1)
            labels = teacher[:, 0].gather(1, top).exp().to(self.weights)
        weights = labels * self.weights[1] + (1 - labels) * self.weights[0]
        first = trace.min_exit_layer
        return self.classifier.loss(Lesson(states, labels, weights, ids, first, readout, teacher))


@torch.no_grad()
def _mean_loss(loss_of: _Loss, stored: StoredStates) -> float:
    parts = chunks(stored.trace, 2048)
    return sum(float(loss_of(stored, part)) * (part.stop - part.start) for part in parts) / len(stored.trace)
