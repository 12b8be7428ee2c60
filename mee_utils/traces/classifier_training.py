"""Training exit classifiers on the stored states of a trace; the backbone is frozen.

What layer l learns to predict is the target: "consistency", is this layer's top-1 the last layer's (CALM;
MEE's report); "correctness", is it the reference's (MEE's blog); or "distilled", how probable does the last
layer find it (FastBERT's exits learn the whole distribution of the last layer; so do the kinds with logits of
their own here). The loss is the cross-entropy, weighted in each layer so that both classes count alike, mean
over layers; some kinds have another (`ExitClassifier.loss`), a table only counts. The last layer, where
nothing is decided, is left out.

`history_classifier` learns from predictions, as the policy that it will decide with computes them, and both
classes count as often as they are seen: its confidence is a probability. Give it a trace of the model's own
outputs for examples that the model was not trained on, since a model is more confident of examples that it
has seen.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole, is_number, shown
from ..decoding.cache import on_host
from ..exits.classifier_kinds import TARGETS, ExitClassifier, TokenHash, TrainingBatch
from ..exits.classifiers import CLASSES, SIZED, new_classifier
from ..exits.history_classifier import HistoryClassifier
from ..exits.policy import ExitPolicy
from ..exits.readout import at_least_single
from ..models.loading import Model
from ..models.states import output_scale
from .replay import StoredStates, bind_to_trace, check_policy, chunks
from .trace import Trace

HELD_OUT_CHUNK = 2048  # tokens of a held-out trace whose loss is computed at a time
TOP_K = 64  # vocabulary tokens over which `history_classifier` learns where no policy is given


def exit_labels(trace: Trace, target: str = "consistency") -> np.ndarray:
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


@dataclass(frozen=True)
class Histories:
    """What a history classifier learns from: its features at every decision about the tokens of a trace."""

    features: Tensor  # [token, decision, feature]
    labels: Tensor  # [token, decision], whether the prediction there is right

    def __len__(self) -> int:
        return len(self.features)


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
    policy: ExitPolicy | None = None,
    **options,
) -> tuple[ExitClassifier, list[dict]]:
    """Trains one classifier; returns it and, by epoch, its mean `loss` and `held_out_loss`.

    Args:
        kind: a name of the table in `mee_utils.exits.classifiers`; `options` are those of `new_classifier`.
        trace: of training examples by `model`, with states; for "correctness" along the references.
        model: what was traced, with the weights that it had then.
        target: what a layer learns to predict of its token: "consistency", is it the last layer's;
            "correctness", is it the reference's; "distilled", how probable the last layer finds it.
        seed: of the first weights and the order of the tokens.
        epochs: passes over the tokens (MEE: 5).
        batch_size: tokens at a time, each with all its layers.
        learning_rate: of AdamW, falling to zero along a cosine.
        held_out: another such trace, on which the loss is measured after every epoch.
        policy: only for `history_classifier`, which it will decide for: its layers, pruning and contrast
            matter, its measure and threshold do not. By default all layers from the model's `min_exit_layer`
            on, over the 64 vocabulary tokens that are best there.

    Raises:
        MeeError: a trace without states or tokens, of another model or other weights; settings out of range;
            a policy for a classifier that does not look at predictions.
    """
    check_whole("epochs", epochs)
    check_whole("batch_size", batch_size)
    if not is_number(learning_rate) or not 0 < learning_rate < inf:
        raise MeeError(f"learning_rate={shown(learning_rate)}: give a number above 0, such as 2e-3.")
    check_choice("classifier", kind, CLASSES)
    _check_policy(kind, target, policy)
    stored = _stored_states("trace", trace, model, target)
    labels = torch.from_numpy(exit_labels(trace, target))
    classifier = _untrained(kind, model, seed, options)
    classifier.to(stored.working_dtype)
    classifier.trained_on = model.fingerprint
    if isinstance(classifier, TokenHash):
        if target == "distilled":
            raise MeeError(f'"{kind}" counts, and nothing can be distilled: give another target.')
        classifier.count(torch.from_numpy(trace.token_before), labels)
        return classifier.float().to(stored.working_dtype), []  # rounded as a stored one
    data = [stored] if held_out is None else [stored, _stored_states("held_out", held_out, model, target)]
    learning = {
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": float(learning_rate),
    }
    if isinstance(classifier, HistoryClassifier):
        data = [histories(classifier, each, target, policy) for each in data]
        curve = fit_history(classifier, data, **learning)
    else:
        curve = _optimise(classifier, _Loss(classifier, labels, target), data, **learning)
    classifier.float().to(stored.working_dtype)  # rounded as a stored one
    return classifier, curve


def fit_history(
    classifier: HistoryClassifier, data: Sequence[Histories], without: Collection[str] = (), **learning
) -> list[dict]:
    """Trains a history classifier on the first of some `data`; the loss of the second is measured.

    Args:
        classifier: whose weights are trained in place.
        data: see `histories`.
        without: names of features (`FEATURES`) that it learns without.
        learning: `seed`, `epochs`, `batch_size` and `learning_rate`, as in `train_classifier`.

    Returns:
        The curve, see `train_classifier`.
    """
    classifier.standardise(data[0].features.flatten(0, 1), without)

    def loss_of(data: Histories, tokens) -> Tensor:
        """The cross-entropy: a class counts as often as it is seen."""
        log_odds = classifier.log_odds(data.features[tokens])
        return functional.binary_cross_entropy_with_logits(log_odds, data.labels[tokens])

    return _optimise(classifier, loss_of, data, **learning)


def _optimise(
    classifier: ExitClassifier,
    loss_of: Callable,
    data: Sequence,
    seed: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> list[dict]:
    """Trains a classifier on the first of some `data`, and measures the loss of the second, if there is one.

    `loss_of(data, tokens)` is the mean loss of some tokens, given by their indices or as a slice. Returns the
    curve, see `train_classifier`.
    """
    classifier.train().requires_grad_(True)
    training_data = data[0]
    steps_per_epoch = -(-len(training_data) // batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_per_epoch)
    random = np.random.default_rng(seed)
    curve = []
    for epoch in range(1, epochs + 1):
        order = random.permutation(len(training_data))
        losses = []
        for start in range(0, len(order), batch_size):
            loss = loss_of(training_data, np.sort(order[start : start + batch_size]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        curve.append({"epoch": epoch, "loss": float(np.mean(losses))})
        for held_out in data[1:]:
            curve[-1]["held_out_loss"] = _mean_loss(loss_of, held_out)
    classifier.eval().requires_grad_(False)
    return curve


def _check_policy(kind: str, target: str, policy: ExitPolicy | None) -> None:
    """Refuses what a classifier of predictions cannot learn from, and a policy for other classifiers."""
    if not issubclass(CLASSES[kind], HistoryClassifier):
        if policy is not None:
            raise MeeError(f'policy={shown(policy)}: "{kind}" looks at states; leave the policy out.')
        return
    if target == "distilled":
        raise MeeError(f'"{kind}" learns whether predictions are right, and nothing can be distilled.')
    if policy is not None and check_policy(policy).pruning == "adaptive":
        circle = "keeps vocabulary tokens by the confidence that has yet to be learned"
        raise MeeError(f'pruning="adaptive" {circle}: give a policy with fixed or decaying pruning.')


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
    classifier = new_classifier(kind, model.network.config.hidden_size, seed, **needed | options)
    classifier.check_model(model)
    if classifier.lookback >= model.layers - 1:
        raise MeeError(
            f"layers={classifier.lookback + 1} of {kind}: {model.name} decides at {model.layers - 1} layers, "
            f"and some must be left to learn from; give at most {model.layers - 1}."
        )
    return classifier.to(model.device)


class _Loss:
    """The loss of a classifier of states.

    The shares of the two classes in `labels`, `[token, layer - 1]`, give each its weight in each layer: both
    count alike. What is learned of a token is worked out batch by batch: whether it may exit, or if the
    target is "distilled" the distribution of the last layer.
    """

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
            return at_least_single(functional.linear(states.to(stored.dtype) * scale, head))

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


def histories(
    classifier: HistoryClassifier, stored: StoredStates, target: str, policy: ExitPolicy | None = None
) -> Histories:
    """The features of a trace's tokens, the numbers that decoding with the policy computes.

    Args:
        classifier: says what the features are; its weights do not matter.
        stored: the trace, with its states and its model.
        target: what is right, see `target_ids`.
        policy: as in `train_classifier`.
    """
    trace = stored.trace
    policy = policy or ExitPolicy(pruning="fixed", top_k=TOP_K)
    undecided = replace(policy, measure=classifier, threshold=None, decay=None, decay_form="scaled")
    bound = bind_to_trace(trace, undecided)
    if not bound.decision_layers:
        raise MeeError(f"{policy!r} decides at no layer of {trace.model}: lower min_layer.")
    right_ids = target_ids(trace, target)
    features = []
    labels = []
    for tokens in chunks(trace):
        states = stored.exit_states(tokens, bound)
        with torch.inference_mode():
            decided = [states[layer - 1] for layer in bound.decision_layers]
            features.append(torch.stack([classifier.features(state) for state in decided], dim=1))
            predicted = np.stack([on_host(state.top1_id) for state in decided], axis=1)  # [token, decision]
        labels.append(torch.from_numpy(predicted == right_ids[tokens, None]))
    return Histories(torch.cat(features).clone(), torch.cat(labels).to(features[0]))


def _ids_on(device: torch.device, ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(device)


@torch.no_grad()
def _mean_loss(loss_of: Callable, data: StoredStates | Histories) -> float:
    """The loss of all tokens, a mean over tokens."""
    total = 0.0
    for part in chunks(data, HELD_OUT_CHUNK):
        total += float(loss_of(data, part)) * (part.stop - part.start)
    return total / len(data)
