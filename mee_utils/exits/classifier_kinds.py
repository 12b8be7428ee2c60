"""The kinds of exit classifiers in the table of `classifiers`: their base class, and all but ours.

One classifier serves all layers. Two outputs and a softmax are the sigmoid of their difference, `log_odds`.
The LSTM starts anew with each token: it runs over layers, not over positions. The backbone is frozen (papers
often train it too): all learn from a trace, see `mee_utils.traces.classifier_training`.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError
from .measures import MaxProbability, Measure, SoftmaxMargin

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
        name: its kind, of the table in `mee_utils.exits.classifiers`.
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
        sizes = {
            "d_model": config.hidden_size,
            "decoder_layers": model.layers,
            "vocabulary": config.vocab_size,
        }
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
        """Of the probability `p` of having exited: with `total = -log(1 - p)`, `log p / (1 - p)`."""
        total = functional.softplus(super().log_odds(states)).cumsum(dim=1)
        total = total.clamp(min=torch.finfo(total.dtype).tiny)
        return total + torch.log(-torch.expm1(-total))

    def confidence(self, state) -> Tensor:
        (total,) = state.memo(id(self), self._total)
        return -torch.expm1(-total)

    def _total(self, state) -> tuple[Tensor]:
        """`-log prod (1 - lambda_i)` up to this layer, `[rows]`, as the one member of a tuple (`memo`)."""
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
            layers: the decision layers so far, from 1.
            logits: at each of them, `[rows, ids]`.
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
