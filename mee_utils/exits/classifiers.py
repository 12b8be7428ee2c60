"""Trained exit classifiers: from normalised states of one or more layers to the probability of "exit".

| kind | input | network | source |
|---|---|---|---|
| `linear_classifier` | `n(h^l)` | `d + 1` parameters | CALM's own |
| `hidden_classifier` | `n(h^l)` | `Linear(d, d)`, ReLU, `Linear(d, 2)` | CALM's baseline in MEE |
| `low_rank_classifier` | `n(h^l)` | the same with `d / 8` hidden units | cheap enough for every layer |
| `three_hidden_classifier` | the last three `n(h)` | `Linear(3d, d)`, ReLU, `Linear(d, 2)` | MEE, section 5 |
| `lstm_classifier` | all `n(h)` so far, one after the other | two-layer LSTM, two outputs | MEE, section 5 |
| `learning_to_exit` | `n(h^l)` | `d + 1` parameters, squared error | BERxiT |
| `q_exit` | all `n(h)` so far | `d + 1` parameters: the probability of having exited by layer l | PALBERT |
| `past_future` | `n(h^l)` | an affine map a layer that predicts `n(h^L)` | PF-BERxiT, DeeCap; tuned lens |
| `exit_heads` | `n(h^l)` | the same map, trained as an exit of its own on a frozen model | DeeBERT |
| `ztw` | the decision layers so far | `log q = sum_i w_i log p_i + b`, a product of experts | ZTW |
| `token_hash` | the token before | a table: id and layer -> share that may exit | HashEE |
| `history_classifier` | `FEATURES` of three decisions | 32 hidden units that know the depth | ours |

One classifier serves all layers. Two outputs and a softmax are the sigmoid of their difference, `log_odds`.
The LSTM starts anew with each token: it runs over layers, not over positions. The backbone is frozen (papers
often train it too): all learn from a trace, see `mee_utils.traces.classifier_training`.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole
from ..common.files import complete_file
from .measures import MaxProbability, Measure, SoftmaxMargin

FORMAT = "mee_utils.classifier.1"
TARGETS = ("consistency", "correctness", "distilled")


class TrainingBatch(NamedTuple):
    """Some tokens that a classifier learns from."""

    states: Tensor  # [token, layer, d_model], normalised
    labels: Tensor  # [token, layer - 1], whether it may exit, or how likely that is
    weights: Tensor  # [token, layer - 1], of the labels: in each layer both classes count alike
    target_ids: Tensor  # [token], what it should have predicted
    min_exit_layer: int  # the model's
    logits_of: Callable[[Tensor], Tensor]  # of normalised states
    teacher: Tensor | None = None  # [token, 1, id], log-probabilities of the last layer, to be "distilled"


class ExitClassifier(nn.Module, Measure):
    """A classifier over normalised states; from `new_classifier`, `train_classifier` or `load_classifier`.

    Attributes:
        name: its kind, of the table above.
        settings: the options of `new_classifier` that make one of the same shape.
        trained_on: fingerprint of the model on whose states it was trained; None if that is not recorded.
        metadata: what was stored with it, such as its training curve.
    """

    __eq__ = object.__eq__  # a classifier equals itself alone; `key` compares weights
    __hash__ = object.__hash__

    def __init__(self, kind: str, d_model: int, **shape: int):
        super().__init__()
        self.name = kind
        self.d_model = d_model
        self.settings = {"kind": kind, "d_model": d_model, **shape}
        self.trained_on: str | None = None
        self.metadata: dict = {}
        self.build(**shape)

    def build(self, layers: int = 1, hidden: int = 0) -> None:
        """Makes the weights; a subclass names the options of its kind."""
        self.lookback = layers - 1
        width = self.d_model * layers
        # keep: the random stream of shipped classifiers starts with this draw, used or not
        self.network = nn.Linear(width, 1)
        if hidden:
            self.network = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def loss(self, batch: TrainingBatch) -> Tensor:
        """Balanced cross-entropy of the labels; no decision is made at the first `lookback` layers."""
        log_odds = self.log_odds(batch.states[:, :-1])  # [token, layer - 1 - lookback]
        labels = batch.labels[:, self.lookback :].to(log_odds.dtype)
        weights = batch.weights[:, self.lookback :]
        return functional.binary_cross_entropy_with_logits(log_odds, labels, weights)

    def log_odds(self, states: Tensor) -> Tensor:
        """Log-odds of "exit": `[token, layer, d_model]` to `[token, layer - lookback]`."""
        count = states.shape[1] - self.lookback
        windows = [states[:, start : start + count] for start in range(1 + self.lookback)]
        return self._log_odds_of(self.network(torch.cat(windows, dim=-1).to(self._dtype)))

    def confidence(self, state) -> Tensor:
        """Probability of "exit", `[rows]`."""
        window = [state.earlier(back).state for back in range(self.lookback, -1, -1)]
        return torch.sigmoid(self._log_odds_of(self.network(torch.cat(window, dim=-1).to(self._dtype))))

    @staticmethod
    def _log_odds_of(outputs: Tensor) -> Tensor:
        """One output is the log-odds; of two, the logits of "stay" and "exit", it is the difference."""
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs[..., 1] - outputs[..., 0]

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def flops(self, d_model: int) -> int:
        """Of one decision (of the LSTM: one layer): two for every weight of a matrix."""
        return 2 * sum(weight.numel() for weight in self.parameters() if weight.ndim > 1)

    def check_model(self, model) -> None:
        """Refuses other sizes, or states of other weights than those it was trained on."""
        config = model.network.config
        sizes = {"d_model": config.d_model, "decoder_layers": model.layers, "vocabulary": config.vocab_size}
        for name, size in sizes.items():
            mine = self.settings.get(name, size)
            if mine != size:
                mismatch = f"is for {name}={mine}, {model.name} has {size}"
                raise MeeError(f"{self!r} {mismatch}: train one for this model.")
        if self.trained_on not in (None, model.fingerprint):
            mismatch = f"was trained on the states of other weights than {model.name}'s"
            raise MeeError(f"{self!r} {mismatch}: train one for this model.")

    def key(self) -> str:
        """Settings and a hash of the weights."""
        digest = hashlib.sha256()
        for weight in self.state_dict().values():
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
        return f"{self.settings} {digest.hexdigest()}"

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.state_dict().values())
        return f'{type(self).__name__}("{self.name}", d_model={self.d_model}, {weights:,} parameters)'


class RecurrentClassifier(ExitClassifier):
    """`lstm_classifier`: an LSTM that runs over the layers of each token."""

    recurrent = True

    def build(self, depth: int, hidden: int) -> None:
        self.network = nn.LSTM(self.d_model, hidden, num_layers=depth, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def log_odds(self, states: Tensor) -> Tensor:
        outputs, _ = self.network(states.to(self._dtype))  # [token, layer, hidden]
        return self._log_odds_of(self.head(outputs))

    def confidence(self, state) -> Tensor:
        hidden, _ = state.memo(id(self), self._memory)
        return torch.sigmoid(self._log_odds_of(self.head(hidden[:, -1])))

    def _memory(self, state) -> tuple[Tensor, ...]:
        """Hidden and cell states of the LSTM after this layer, `[row, depth, hidden]` each."""
        before = None
        if state.layer > 1:
            memory = state.earlier(1).memo(id(self), self._memory)
            before = tuple(part.transpose(0, 1).contiguous() for part in memory)  # [depth, row, hidden]
        _, after = self.network(state.state.to(self._dtype)[:, None], before)
        return tuple(part.transpose(0, 1) for part in after)


def divergence(teacher: Tensor, logits: Tensor) -> Tensor:
    """Mean KL divergence, in nats, of `[token, layer, id]` logits from log-probabilities `[token, 1, id]`."""
    return (teacher.exp() * (teacher - logits.log_softmax(dim=-1))).sum(dim=-1).mean()


class LearningToExit(ExitClassifier):
    """The linear classifier, trained by squared error (BERxiT, 3.3): frequent classes count more."""

    def loss(self, batch: TrainingBatch) -> Tensor:
        log_odds = self.log_odds(batch.states[:, :-1])
        return functional.mse_loss(torch.sigmoid(log_odds), batch.labels.to(log_odds.dtype))


class QExit(ExitClassifier):
    """`1 - prod_(i<=l) (1 - lambda_i)`: the probability that a token has exited by layer l (PALBERT).

    `lambda_i`, a sigmoid of one unit, is the probability to exit at layer i. PALBERT exits where the product
    passes one half, and trains its expected loss; here it learns as classifiers do. The sums below are
    `-log prod (1 - lambda_i)`, one softplus per layer.
    """

    recurrent = True
    default_threshold = 0.5

    def log_odds(self, states: Tensor) -> Tensor:
        total = functional.softplus(super().log_odds(states)).cumsum(dim=1)
        total = total.clamp(min=torch.finfo(total.dtype).tiny)
        return total + torch.log(-torch.expm1(-total))

    def confidence(self, state) -> Tensor:
        (total,) = state.memo(id(self), self._total)
        return -torch.expm1(-total)

    def _total(self, state) -> tuple[Tensor]:
        """The sum up to this layer, `[rows]`."""
        before = state.earlier(1).memo(id(self), self._total)[0] if state.layer > 1 else 0.0
        log_odds = self._log_odds_of(self.network(state.state.to(self._dtype)))
        return (before + functional.softplus(log_odds),)


class PastFuture(ExitClassifier):
    """Logits of `A_l n(h^l) + b_l`, which predicts `n(h^L)`: token and confidence, the largest probability.

    PF-BERxiT and DeeCap predict the last state by a small network; this map is the "tuned lens" (Belrose et
    al. 2023), trained by the squared error of the state, or "distilled": by the divergence of its
    distribution from the last layer's (as FastBERT's exits are). Untrained, it is `max_probability`.
    """

    readout = True
    confidence = MaxProbability.confidence

    def build(self, decoder_layers: int) -> None:
        self.maps = nn.Parameter(torch.eye(self.d_model).repeat(decoder_layers - 1, 1, 1))
        self.shifts = nn.Parameter(torch.zeros(decoder_layers - 1, self.d_model))

    def loss(self, batch: TrainingBatch) -> Tensor:
        predicted = self.predicted(batch)
        if batch.teacher is not None:
            return divergence(batch.teacher, batch.logits_of(predicted))
        last = batch.states[:, -1:].to(self._dtype)
        return functional.mse_loss(predicted, last.expand_as(predicted))

    def predicted(self, batch: TrainingBatch) -> Tensor:
        """What every layer before the last predicts the last state to be, `[token, layer - 1, d_model]`."""
        states = batch.states[:, :-1].to(self._dtype)
        return torch.einsum("tld,led->tle", states, self.maps) + self.shifts

    def lens(self, state) -> Tensor:
        """The predicted last state, `[rows, d_model]`."""
        layer_map = self.maps[state.layer - 1]
        shift = self.shifts[state.layer - 1]
        return functional.linear(state.state.to(self._dtype), layer_map, shift).to(state.state.dtype)

    def flops(self, d_model: int) -> int:
        return 2 * d_model**2


class ExitHeads(PastFuture):
    """An exit head for every layer, trained on a frozen model: the survey's *separate training* (DeeBERT).

    In T5 a head is an affine map before the LM head that all layers share. It learns to predict the token, by
    the cross-entropy of the reference (`target="correctness"`) at every layer; joint training, as by CALM's
    objective, changes the model instead. The token of an exit is the head's, and the confidence its softmax
    margin. Untrained, it is `softmax_margin`.
    """

    confidence = SoftmaxMargin.confidence

    def loss(self, batch: TrainingBatch) -> Tensor:
        if batch.teacher is not None:
            return super().loss(batch)
        logits = batch.logits_of(self.predicted(batch))  # [token, layer - 1, id]
        target_ids = batch.target_ids.repeat_interleave(logits.shape[1])
        return functional.cross_entropy(logits.flatten(0, 1), target_ids)


class Ensemble(ExitClassifier):
    """The product over the decision layers so far, `log q = sum_i w_i log p_i + b` (ZTW).

    All `w_i > 0`, and `b` has one value per id. Token and confidence, the largest probability, come from `q`
    over the valid ids. Trained by the cross-entropy of `q` at every layer from `min_exit_layer` on.
    """

    readout = True
    uses_exit_history = True
    confidence = MaxProbability.confidence

    def build(self, decoder_layers: int, vocabulary: int) -> None:
        self.log_weights = nn.Parameter(torch.zeros(decoder_layers - 1))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def loss(self, batch: TrainingBatch) -> Tensor:
        layers = slice(batch.min_exit_layer - 1, len(self.log_weights))
        with torch.no_grad():
            experts = batch.logits_of(batch.states[:, layers]).log_softmax(dim=-1)  # [token, layer, id]
        scores = (self.log_weights[layers, None].exp() * experts).cumsum(dim=1) + self.bias
        if batch.teacher is not None:
            return divergence(batch.teacher, scores)
        target_ids = batch.target_ids.repeat_interleave(scores.shape[1])
        return functional.cross_entropy(scores.flatten(0, 1), target_ids)

    def ensemble(self, layers: list[int], logits: list[Tensor], ids: Tensor | None) -> Tensor:
        """Scores of the exits at some layers.

        Args:
            layers: where the exits are, from 1.
            logits: at each decision layer, `[rows, ids]`.
            ids: which they are, `[rows, ids]`; None for the whole vocabulary.

        Returns:
            `log q` up to a constant, `[rows, ids]`.
        """
        scores = 0.0
        for layer, each in zip(layers, logits, strict=True):
            scores = scores + self.log_weights[layer - 1].exp() * each.log_softmax(dim=-1)
        return scores + (self.bias if ids is None else self.bias[ids])


class TokenHash(ExitClassifier):
    """A table: of the training tokens that follow a token, which share has settled by layer l? (HashEE)

    HashEE looks up the token itself; in generation that is not known yet, and the token *before* takes its
    place. A look-up takes no FLOPs. Untrained, a layer is drawn for each token: HashEE's random hash.
    """

    layers_used = 0

    def build(self, decoder_layers: int, vocabulary: int) -> None:
        drawn = torch.randint(1, decoder_layers, (vocabulary + 1, 1))  # the last row: the start of an output
        self.register_buffer("shares", (torch.arange(1, decoder_layers) >= drawn).float())

    def count(self, before: Tensor, labels: Tensor) -> None:
        """Fills the table from the tokens before, `[token]`, and whether they may exit, `[token, layer - 1]`.

        The mean of all tokens counts as one token more of each row.
        """
        settled = labels.flip(1).cumprod(1).flip(1).to(self.shares)  # from this layer on all may exit
        rows = before.to(self.shares.device) % len(self.shares)  # -1, the start, is the last row
        sums = torch.zeros_like(self.shares).index_add(0, rows, settled)
        tokens = torch.bincount(rows, minlength=len(self.shares))[:, None]
        self.shares = (sums + settled.mean(0)) / (tokens + 1)

    def confidence(self, state) -> Tensor:
        return self.shares[torch.as_tensor(state.token_before), state.layer - 1]


FEATURES = (
    "margin",  # log-odds of the difference of the two largest probabilities
    "margin before",
    "margin two before",
    "top-1",  # log-odds of the largest probability
    "top-1 before",
    "entropy",
    "entropy before",
    "similarity",  # to the state one layer before
    "similarity before",
    "same as before",  # 1 if the prediction is that of the decision layer before
    "same as two before",
    "unchanged",  # at how many decision layers in a row it has been the same, this one included
    "in source",  # 1 if the predicted token stands in the input
    "source",  # log of the length of the input
    "position",  # log(1 + position)
    "depth",  # layer / L
    "decided before",  # at how many decision layers before this one, at most two
)
DEPTHS = 12  # steps of depth that a history classifier tells apart
LEAST_ODDS = 1e-6  # added to a probability and to what it lacks to 1, so that log-odds are finite


class Evidence(NamedTuple):
    """What one decision layer says of some tokens, `[rows]` each."""

    margin: Tensor  # log-odds
    top1: Tensor  # log-odds
    entropy: Tensor
    similarity: Tensor
    top1_id: Tensor
    unchanged: Tensor  # at how many decision layers in a row this has been the prediction


class HistoryClassifier(ExitClassifier):
    """Looks at what the last three decision layers predict and with what confidence, not at states (ours).

    An example: the decision layers 4, 5 and 6 of a decoder of 12 predict the ids 7, 9 and 9 with margins 0.2,
    0.5 and 0.9. At layer 6 the features "margin", "margin before" and "margin two before" are 2.2, 0.0 and
    -1.4, "same as before" is 1, "same as two before" 0, "unchanged" 2, "depth" 0.5 and "decided before" 2.
    At layer 4, where nothing was decided before, the layer itself stands for those before it. At layer 6 "in
    source" is 1 if id 9 stands in the input. The length of the input tells tasks apart.

    A hidden unit is a weighted sum of the standardised features. Its constant, and its weight of the margin,
    differ with the depth, in twelfths of the decoder. The features are standardised with the mean and
    deviation of the tokens that it learned from, which are stored with the weights. It learns from the
    logits of a policy (`train_classifier`), and decides from the same: over few ids, so that a decision costs
    less than a hundredth of a layer of T5-large.

    The shipped ones learned from the model's own outputs, since those are what it decides about, for examples
    that the model was not trained on where there are such, filled up with training examples
    (`mee_utils.study.artifacts.unseen_first`).
    """

    readout = True
    uses_exit_history = True

    def build(self, hidden: int) -> None:
        self.network = nn.Linear(len(FEATURES), hidden)
        self.at_depth = nn.Embedding(DEPTHS, hidden)  # what a depth adds to the hidden units
        self.margin_at_depth = nn.Embedding(DEPTHS, hidden)  # and how much the margin counts there
        for embedding in (self.at_depth, self.margin_at_depth):
            nn.init.zeros_(embedding.weight)  # a depth that it has not seen makes no difference
        self.head = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("deviation", torch.ones(len(FEATURES)))

    def standardise(self, features: Tensor, without: Collection[str] = ()) -> None:
        """Takes mean and deviation from the features that it learns from, `[example, feature]`.

        Features that it is to go `without` are all standardised to 0.
        """
        deviation, mean = torch.std_mean(features.double(), dim=0)
        self.mean = mean.to(self.mean)
        self.deviation = torch.where(deviation > 0, deviation, 1.0).to(self.deviation)
        self.deviation[[FEATURES.index(name) for name in without]] = torch.inf

    def log_odds(self, features: Tensor) -> Tensor:
        """Log-odds of "exit": `[..., feature]`, see `FEATURES`, to `[...]`."""
        standardised = (features - self.mean) / self.deviation
        margin = standardised[..., :1]
        depth = (features[..., FEATURES.index("depth")] * DEPTHS).round().long().clamp(1, DEPTHS) - 1
        hidden = self.network(standardised) + self.at_depth(depth) + self.margin_at_depth(depth) * margin
        return self.head(hidden.relu())[..., 0]

    def confidence(self, state) -> Tensor:
        return torch.sigmoid(self.log_odds(self.features(state)))

    def flops(self, d_model: int) -> int:
        return 2 * (self.network.weight.numel() + self.head.weight.numel())

    def features(self, state) -> Tensor:
        """`FEATURES` of some tokens at a decision layer, `[rows, feature]`."""
        now = state.memo(id(self), self._evidence)
        before = self._evidence_before(state, 1) or now
        two_before = self._evidence_before(state, 2) or before
        decided_before = sum(layer < state.layer for layer in state.decision_layers)
        columns = {
            "margin": now.margin,
            "margin before": before.margin,
            "margin two before": two_before.margin,
            "top-1": now.top1,
            "top-1 before": before.top1,
            "entropy": now.entropy,
            "entropy before": before.entropy,
            "similarity": now.similarity,
            "similarity before": before.similarity,
            "same as before": now.top1_id == before.top1_id,
            "same as two before": now.top1_id == two_before.top1_id,
            "unchanged": now.unchanged,
            "in source": self._numbers(state.in_source),
            "source": torch.log(self._numbers(state.source_tokens)),
            "position": torch.log1p(self._numbers(state.position)),
            "depth": self._numbers(state.layer / state.layers),
            "decided before": self._numbers(min(decided_before, 2)),
        }
        return torch.stack([columns[name].to(self._dtype).expand_as(now.margin) for name in FEATURES], dim=-1)

    def _evidence(self, state) -> Evidence:
        top1_id = torch.as_tensor(state.top1_id, device=self.mean.device)
        unchanged = torch.ones_like(top1_id)
        before = self._evidence_before(state, 1)
        if before is not None:
            unchanged = torch.where(top1_id == before.top1_id, before.unchanged + 1, unchanged)
        return Evidence(
            margin=log_odds_of(self._numbers(state.margin)),
            top1=log_odds_of(self._numbers(state.top1_probability)),
            entropy=self._numbers(state.entropy),
            similarity=self._numbers(state.similarity),
            top1_id=top1_id,
            unchanged=unchanged,
        )

    def _evidence_before(self, state, decisions: int) -> Evidence | None:
        """The evidence so many decision layers before; None if there were fewer."""
        layers = [layer for layer in state.decision_layers if layer < state.layer]
        if len(layers) < decisions:
            return None
        return state.earlier(state.layer - layers[-decisions]).memo(id(self), self._evidence)

    def _numbers(self, values) -> Tensor:
        return torch.as_tensor(values, dtype=self._dtype).to(self.mean.device, non_blocking=True)


def log_odds_of(probability: Tensor) -> Tensor:
    """`log p / (1 - p)`, finite at 0 and 1."""
    return torch.log((probability + LEAST_ODDS) / (1 - probability + LEAST_ODDS))


CLASSES: dict[str, type[ExitClassifier]] = {
    "linear_classifier": ExitClassifier,
    "hidden_classifier": ExitClassifier,
    "low_rank_classifier": ExitClassifier,
    "three_hidden_classifier": ExitClassifier,
    "lstm_classifier": RecurrentClassifier,
    "learning_to_exit": LearningToExit,
    "q_exit": QExit,
    "past_future": PastFuture,
    "exit_heads": ExitHeads,
    "ztw": Ensemble,
    "token_hash": TokenHash,
    "history_classifier": HistoryClassifier,
}
SIZED = {  # kinds whose weights depend on sizes of the model besides its width
    "past_future": ["decoder_layers"],
    "exit_heads": ["decoder_layers"],
    "ztw": ["decoder_layers", "vocabulary"],
    "token_hash": ["decoder_layers", "vocabulary"],
}


def default_options(kind: str, d_model: int) -> dict[str, int | None]:
    """The options of a kind; None stands for a size of the model, which has to be given."""
    shapes = {
        "linear_classifier": {"layers": 1, "hidden": 0},
        "hidden_classifier": {"layers": 1, "hidden": d_model},
        "low_rank_classifier": {"layers": 1, "hidden": max(1, d_model // 8)},
        "three_hidden_classifier": {"layers": 3, "hidden": d_model},
        "lstm_classifier": {"depth": 2, "hidden": d_model},
        "history_classifier": {"hidden": 32},
    }
    return shapes.get(kind) or dict.fromkeys(SIZED.get(kind, ()))


def new_classifier(kind: str, d_model: int, seed: int = 0, **options: int) -> ExitClassifier:
    """An untrained classifier of a kind in this module's table.

    Args:
        kind: its name.
        d_model: the width of the states.
        seed: of its first weights.
        options: what differs from the table: `hidden` units, `layers` (how many layers it looks at side by
            side) or, of the LSTM, `depth` (MEE's report: two layers; its code: one of 250 units). `SIZED`
            kinds need sizes of the model.

    Raises:
        MeeError: an unknown kind or option, an option out of range, or a size that is missing.
    """
    check_choice("classifier", kind, CLASSES)
    check_whole("d_model", d_model)
    check_whole("seed", seed, 0)
    shape = default_options(kind, d_model)
    for name in options:
        check_choice(f"option of {kind}", name, shape)
    shape |= options
    for name, size in shape.items():
        if size is None:
            raise MeeError(f'"{kind}" needs {name}=..., of the model (train_classifier knows it).')
        shape[name] = check_whole(name, size, least=0 if name == "hidden" and "layers" in shape else 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = CLASSES[kind](kind, d_model, **shape)
    return classifier.eval().requires_grad_(False)


def save_classifier(classifier: ExitClassifier, path: str | Path, fingerprint: str, **metadata) -> Path:
    """Writes a classifier as safetensors, in single precision.

    Args:
        classifier: what is written.
        path: the file; it appears only when it is complete.
        fingerprint: of the model on whose states it was trained.
        metadata: JSON values that are stored with it.

    Raises:
        MeeError: the file cannot be written.
    """
    from safetensors.torch import save_file

    header = {
        "format": FORMAT,
        "model": fingerprint,
        "settings": json.dumps(classifier.settings),
        "about": json.dumps(metadata),
    }
    weights = {name: weight.float().contiguous() for name, weight in classifier.state_dict().items()}
    with complete_file(path) as partial:
        save_file(weights, partial, header)
    return Path(path)


def load_classifier(path: str | Path, model) -> ExitClassifier:
    """Reads a classifier for a model. Raises `MeeError` if there is none, or one of other weights."""
    if not Path(path).exists():
        raise MeeError(f"{path} does not exist: make it with train_classifier and save_classifier.")
    header, weights = _read(path)
    if header.get("format") != FORMAT:
        advice = "give a file that save_classifier wrote, or train it anew"
        raise MeeError(f'{path} is no exit classifier of this version ("{FORMAT}"): {advice}.')
    classifier = new_classifier(**json.loads(header["settings"]))
    classifier.to(torch.promote_types(model.network.dtype, torch.float32))
    classifier.load_state_dict(weights)
    classifier.trained_on = header["model"]
    classifier.metadata = json.loads(header["about"])
    classifier.check_model(model)
    return classifier.to(model.device)


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Header and weights of a safetensors file; both empty if it is none."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
        return header, load_file(path)
    except (SafetensorError, OSError):
        return {}, {}
