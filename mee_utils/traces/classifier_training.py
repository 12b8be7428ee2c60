"""Training exit classifiers on the stored states of a trace; the backbone is frozen.

What layer l learns to predict is the target: "consistency", is this layer's top-1 the last layer's (CALM;
MEE's report); "correctness", is it the reference's (MEE's blog); or "distilled", how probable does the last
layer find it (FastBERT's exits learn the whole distribution of the last layer; so do the kinds with logits of
their own here). The loss is the cross-entropy, weighted in each layer so that both classes count alike, mean
over layers; some kinds have another (`ExitClassifier.loss`), a table only counts. The last layer, where
nothing is decided, is left out.
"""

from math import inf
from numbers import Real

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole
from ..exits.classifiers import SIZED, TARGETS, ExitClassifier, TokenHash, TrainingBatch, new_classifier
from ..exits.readout import single
from ..models.loading import Model
from ..models.states import output_scale
from .replay import StoredStates, chunks
from .trace import Trace

HELD_OUT_CHUNK = 2048  # tokens of a held-out trace whose loss is computed at a time


def targets(trace: Trace, target: str = "consistency") -> np.ndarray:
    """Whether each token may exit at each layer before the last, `[token, layer - 1]`."""
    return trace.top1_id[:, :-1] == target_ids(trace, target)[:, None]


def target_ids(trace: Trace, target: str) -> np.ndarray:
    """What each token should be, `[token]`; a `MeeError` where "correctness" has no references."""
    check_choice("target", target, TARGETS)
    if target != "correctness":
        return trace.final_id
    if trace.along != "reference":
        raise MeeError('target="correctness" needs a trace made with trace(model, inputs, references).')
    return trace.token_id


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
        model: what was traced, with the weights that it had then.
        target: "consistency", "correctness" or "distilled", see above.
        seed: of the first weights and the order of the tokens.
        epochs: passes over the tokens (MEE: 5).
        batch_size: tokens at a time, each with all its layers.
        learning_rate: of AdamW, falling to zero along a cosine.
        held_out: another such trace, on which the loss is measured after every epoch.

    Raises:
        MeeError: a trace without states or tokens, of another model or other weights; settings out of range.
    """
    check_whole("epochs", epochs)
    check_whole("batch_size", batch_size)
    check_whole("seed", seed, 0)
    _check_learning_rate(learning_rate)
    stored = _stored_states("trace", trace, model, target)
    held_out_states = None if held_out is None else _stored_states("held_out", held_out, model, target)
    labels = torch.from_numpy(targets(trace, target))
    classifier = _untrained(kind, model, seed, options)
    classifier.to(stored.working_dtype)
    classifier.trained_on = model.fingerprint
    if isinstance(classifier, TokenHash):
        if target == "distilled":
            raise MeeError(f'"{kind}" counts, and nothing can be distilled: give another target.')
        classifier.count(torch.from_numpy(trace.token_before), labels)
        return classifier.float().to(stored.working_dtype), []  # rounded as a stored one
    classifier.train().requires_grad_(True)
    loss_of = _Loss(classifier, labels, target)
    steps_per_epoch = -(-len(labels) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_per_epoch)
    random = np.random.default_rng(seed)
    curve = []
    for epoch in range(1, epochs + 1):
        order = random.permutation(len(labels))
        losses = []
        for start in range(0, len(order), batch_size):
            loss = loss_of(stored, np.sort(order[start : start + batch_size]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
        if held_out_states is not None:
            curve[-1]["held_out_loss"] = _mean_loss(loss_of, held_out_states)
    classifier.float().to(stored.working_dtype)  # rounded as a stored one
    return classifier.eval().requires_grad_(False), curve


def _check_learning_rate(learning_rate: object) -> None:
    number = isinstance(learning_rate, Real) and not isinstance(learning_rate, bool)
    if not number or not 0 < learning_rate < inf:
        raise MeeError(f"learning_rate={learning_rate!r:.60}: give a number above 0, such as 2e-3.")


def _stored_states(name: str, trace: Trace, model: Model, target: str) -> StoredStates:
    """The states to learn from, after checks of the trace."""
    if not isinstance(trace, Trace):
        raise MeeError(f"{name}={trace!r:.60}: give a Trace, from trace(...) or load_trace(...).")
    stored = StoredStates(trace, model)
    if not len(trace):
        raise MeeError(f"{name} holds no tokens: trace at least one input.")
    target_ids(trace, target)
    return stored


def _untrained(kind: str, model: Model, seed: int, options: dict) -> ExitClassifier:
    """A new classifier that fits the model, which knows the sizes that some kinds need."""
    if model.layers == 1:
        raise MeeError(f"{model.name} has one layer, and nothing to decide before it: give a deeper model.")
    sizes = {"decoder_layers": model.layers, "vocabulary": model.network.config.vocab_size}
    needed = {name: sizes[name] for name in SIZED.get(kind, ())}
    classifier = new_classifier(kind, model.network.config.d_model, seed, **needed | options)
    classifier.check_model(model)
    if classifier.lookback >= model.layers - 1:
        raise MeeError(
            f"layers={classifier.lookback + 1} of {kind}: {model.name} decides at {model.layers - 1} layers, "
            f"and some must be left to learn from; give at most {model.layers - 1}."
        )
    return classifier.to(model.device)


class _Loss:
    """The loss of a classifier; both classes of the labels, `[token, layer - 1]`, count alike per layer."""

    def __init__(self, classifier: ExitClassifier, labels: Tensor, target: str):
        share = labels.double().mean(0).clamp(1e-3, 1 - 1e-3)
        parameter = next(classifier.parameters())
        class_weights = torch.stack([0.5 / (1 - share), 0.5 / share])  # [class, layer - 1]
        self.class_weights = class_weights.to(parameter.device, parameter.dtype)
        self.classifier = classifier
        self.target = target

    def __call__(self, stored: StoredStates, tokens) -> Tensor:
        """Mean loss of some tokens, a slice or their indices."""
        trace = stored.trace
        states = stored.normalized(tokens)  # [token, layer, d_model]
        top1_ids = _ids_on(states.device, trace.top1_id[tokens, :-1])  # [token, layer - 1]
        wanted_ids = _ids_on(states.device, target_ids(trace, self.target)[tokens])  # [token]
        head = stored.model.network.lm_head.weight.detach()  # a packed head has no gradient
        scale = output_scale(stored.model.network)

        def logits_of(states: Tensor) -> Tensor:
            return single(functional.linear(states.to(stored.dtype) * scale, head))

        teacher = None
        labels = (top1_ids == wanted_ids[:, None]).to(self.class_weights)
        if self.target == "distilled":
            teacher = logits_of(states[:, -1:]).log_softmax(dim=-1)  # [token, 1, id]
            labels = teacher[:, 0].gather(1, top1_ids).exp().to(self.class_weights)
        return self.classifier.loss(
            TrainingBatch(
                states=states,
                labels=labels,
                weights=labels * self.class_weights[1] + (1 - labels) * self.class_weights[0],
                target_ids=wanted_ids,
                min_exit_layer=trace.min_exit_layer,
                logits_of=logits_of,
                teacher=teacher,
            )
        )


def _ids_on(device: torch.device, ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(device)


@torch.no_grad()
def _mean_loss(loss_of: _Loss, stored: StoredStates) -> float:
    """The loss of all tokens, a mean over tokens."""
    total = 0.0
    for part in chunks(stored.trace, HELD_OUT_CHUNK):
        total += float(loss_of(stored, part)) * (part.stop - part.start)
    return total / len(stored.trace)
