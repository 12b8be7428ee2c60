"""Trained exit classifiers: from normalised states of one or more layers to the probability of "exit".

| kind | sees | network | source |
|---|---|---|---|
| `linear_classifier` | `n(h^l)` | `d + 1` parameters | CALM's own |
| `hidden_classifier` | `n(h^l)` | `Linear(d, d)`, ReLU, `Linear(d, 2)` | CALM's baseline in MEE |
| `low_rank_classifier` | `n(h^l)` | the same with `d / 8` hidden units | cheap enough for every layer |
| `three_hidden_classifier` | the last three `n(h)` | `Linear(3d, d)`, ReLU, `Linear(d, 2)` | MEE, section 5 |
| `lstm_classifier` | all `n(h)` so far, one after the other | two-layer LSTM, two outputs | MEE, section 5 |
| `learning_to_exit` | `n(h^l)` | `d + 1` parameters, squared error | BERxiT |
| `q_exit` | all `n(h)` so far | `d + 1`: how likely is it to have left by now | PALBERT |
| `past_future` | `n(h^l)` | an affine map a layer, foretelling `n(h^L)` | PF-BERxiT, DeeCap; tuned lens |
| `ztw` | the exits so far | `log q = sum_i w_i log p_i + b`, a product of experts | ZTW |
| `token_hash` | the token before | a table: id and layer -> share that may exit | HashEE |

One classifier serves all layers. Two outputs and a softmax are the sigmoid of their difference, `log_odds`.
The LSTM starts anew with each token: it runs over layers, not over positions. The backbone is frozen (papers
often train it too): all learn from a trace, see `mee_utils.traces.classifier_training`.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import MeeError, check_choice, check_whole
from ..common.files import complete_file
from .measures import MaxProbability, Measure

FORMAT = "mee_utils.classifier.1"
TARGETS = ("consistency", "correctness", "distilled")


class Lesson(NamedTuple):
    """Some tokens that a classifier learns from."""

    states: Tensor  # normalised, `[token, layer, d_model]`
    labels: Tensor  # whether it may exit, or how likely that is, `[token, layer - 1]`
    weights: Tensor  # of the labels, `[token, layer - 1]`: in each layer both classes count alike
    ids: Tensor  # `[token]`, what it should have predicted
    first: int  # the first layer at which the model may exit
    readout: Callable[[Tensor], Tensor]  # states to logits
    teacher: Tensor | None = None  # log-probabilities of the last layer, `[token, 1, id]`, to be "distilled"


class ExitClassifier(nn.Module, Measure):
    """A classifier over normalised states; from `new_classifier`, `train_classifier` or `load_classifier`."""

    __eq__ = object.__eq__  # a classifier equals itself alone; `key` compares weights
    __hash__ = object.__hash__

    def __init__(self, kind: str, d_model: int, **shape: int):
        super().__init__()
        self.name, self.d_model, self.about = kind, d_model, {}  # about: what was stored with it
        self.trained_on: str | None = None  # fingerprint of the model on whose states, if that is known
        self.settings = {"kind": kind, "d_model": d_model, **shape}
        self.build(**shape)

    def build(self, layers: int = 1, hidden: int = 0) -> None:
        """Makes the weights; `shape` are the options of the kind."""
        self.lookback, width = layers - 1, self.d_model * layers
        self.network = nn.Linear(width, 1)  # drawn by every kind: what a seed gives depends on it
        if hidden:
            self.network = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def loss(self, lesson: Lesson) -> Tensor:
        """Balanced cross-entropy of the labels."""
        odds, seen = self.log_odds(lesson.states[:, :-1]), slice(self.lookback, None)
        wanted, weights = lesson.labels[:, seen].to(odds.dtype), lesson.weights[:, seen]
        return functional.binary_cross_entropy_with_logits(odds, wanted, weights)

    def log_odds(self, states: Tensor) -> Tensor:
        """Log-odds of "exit": `[row, layer, d_model]` to `[row, layer - lookback]`."""
        count = states.shape[1] - self.lookback
        seen = torch.cat([states[:, back : back + count] for back in range(1 + self.lookback)], dim=-1)
        return self._odds(self.network(seen.to(self._dtype)))

    def confidence(self, state) -> Tensor:
        """Probability of "exit", `[rows]`."""
        seen = torch.cat([state.earlier(back).state for back in range(self.lookback, -1, -1)], dim=-1)
        return torch.sigmoid(self._odds(self.network(seen.to(self._dtype))))

    def _odds(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs[..., 1] - outputs[..., 0]

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def flops(self, d_model: int) -> int:
        """Of one decision (of the LSTM: one layer): two for every weight of a matrix."""
        return 2 * sum(weight.numel() for weight in self.parameters() if weight.ndim > 1)

    def check_model(self, model) -> None:
        """Refuses other sizes, or states of other weights than those it was trained on."""
        sizes = {"d_model": model.network.config.d_model, "decoder_layers": model.layers}
        sizes |= {"vocabulary": model.network.config.vocab_size}
        for name, size in sizes.items():
            if (own := self.settings.get(name, size)) != size:
                other = f"is for {name}={own}, {model.name} has {size}"
                raise MeeError(f"{self!r} {other}: train one for this model.")
        if self.trained_on not in (None, model.fingerprint):
            other = f"was trained on the states of other weights than {model.name}'s"
            raise MeeError(f"{self!r} {other}: train one for this model.")

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
    """`lstm_classifier`."""

    from_first = True

    def build(self, depth: int, hidden: int) -> None:
        self.network = nn.LSTM(self.d_model, hidden, num_layers=depth, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def log_odds(self, states: Tensor) -> Tensor:
        return self._odds(self.head(self.network(states.to(self._dtype))[0]))

    def confidence(self, state) -> Tensor:
        hidden, _ = state.recall(id(self), self._memory)
        return torch.sigmoid(self._odds(self.head(hidden[:, -1])))

    def _memory(self, state) -> tuple[Tensor, ...]:
        """Hidden and cell states of the LSTM after this layer, `[row, depth, hidden]`."""
        memory = state.earlier(1).recall(id(self), self._memory) if state.layer > 1 else ()
        before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        _, after = self.network(state.state.to(self._dtype)[:, None], before or None)
        return tuple(part.transpose(0, 1) for part in after)


def divergence(teacher: Tensor, logits: Tensor) -> Tensor:
    """Mean KL divergence, in nats, of `[token, layer, id]` logits from log-probabilities `[token, 1, id]`."""
    return (teacher.exp() * (teacher - logits.log_softmax(dim=-1))).sum(dim=-1).mean()


class LearningToExit(ExitClassifier):
    """The linear classifier, trained by squared error (BERxiT, 3.3): frequent classes count more."""

    def loss(self, lesson: Lesson) -> Tensor:
        odds = self.log_odds(lesson.states[:, :-1])
        return functional.mse_loss(torch.sigmoid(odds), lesson.labels.to(odds.dtype))


class QExit(ExitClassifier):
    """`1 - prod_(i<=l) (1 - lambda_i)`, `lambda_i` a sigmoid of one unit: has a token left by now? (PALBERT)

    PALBERT leaves where it passes one half, and trains its expected loss; here it learns as classifiers do.
    """

    from_first, default_threshold = True, 0.5

    def log_odds(self, states: Tensor) -> Tensor:
        stays = functional.softplus(super().log_odds(states)).cumsum(dim=1)  # - log prod (1 - lambda)
        stays = stays.clamp(min=torch.finfo(stays.dtype).tiny)
        return stays + torch.log(-torch.expm1(-stays))

    def confidence(self, state) -> Tensor:
        return -torch.expm1(-state.recall(id(self), self._stays)[0])

    def _stays(self, state) -> tuple[Tensor]:
        before = state.earlier(1).recall(id(self), self._stays)[0] if state.layer > 1 else 0.0
        return (before + functional.softplus(self._odds(self.network(state.state.to(self._dtype)))),)


class PastFuture(ExitClassifier):
    """Reads out `A_l n(h^l) + b_l`, which foretells `n(h^L)`: token and confidence, the largest probability.

    PF-BERxiT and DeeCap foretell the last state by a small network; this map is the "tuned lens" (Belrose et
    al. 2023), trained by the squared error of the state, or "distilled": by what it says in place of the last
    layer's distribution (as FastBERT's exits are). Untrained, it is `max_probability`.
    """

    readout, confidence = True, MaxProbability.confidence

    def build(self, decoder_layers: int) -> None:
        self.maps = nn.Parameter(torch.eye(self.d_model).repeat(decoder_layers - 1, 1, 1))
        self.shifts = nn.Parameter(torch.zeros(decoder_layers - 1, self.d_model))

    def loss(self, lesson: Lesson) -> Tensor:
        states = lesson.states.to(self._dtype)
        foretold = torch.einsum("tld,led->tle", states[:, :-1], self.maps) + self.shifts
        if lesson.teacher is None:
            return functional.mse_loss(foretold, states[:, -1:].expand_as(foretold))
        return divergence(lesson.teacher, lesson.readout(foretold))

    def lens(self, state) -> Tensor:
        """The foretold state, `[rows, d_model]`."""
        weights = self.maps[state.layer - 1], self.shifts[state.layer - 1]
        return functional.linear(state.state.to(self._dtype), *weights).to(state.state.dtype)

    def flops(self, d_model: int) -> int:
        return 2 * d_model**2


class Ensemble(ExitClassifier):
    """The product of the exits so far, `log q = sum_i w_i log p_i + b` with `w_i > 0` and `b` of an id (ZTW).

    Token and confidence, the largest probability, come from `q` over the ids that are read out. Trained by
    the cross-entropy of `q` at every layer from `min_exit_layer` on.
    """

    readout, counts_exits, confidence = True, True, MaxProbability.confidence

    def build(self, decoder_layers: int, vocabulary: int) -> None:
        self.log_weights = nn.Parameter(torch.zeros(decoder_layers - 1))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def loss(self, lesson: Lesson) -> Tensor:
        layers = slice(lesson.first - 1, len(self.log_weights))
        with torch.no_grad():
            experts = lesson.readout(lesson.states[:, layers]).log_softmax(dim=-1)
        scores = (self.log_weights[layers, None].exp() * experts).cumsum(dim=1) + self.bias
        if lesson.teacher is not None:
            return divergence(lesson.teacher, scores)
        return functional.cross_entropy(scores.flatten(0, 1), lesson.ids.repeat_interleave(scores.shape[1]))

    def ensemble(self, layers: list[int], logits: list[Tensor], ids: Tensor | None) -> Tensor:
        """Scores `[rows, ids]` of the exits at some layers; `ids` is None where all are read out."""
        experts = zip(layers, logits, strict=True)
        scores = sum(self.log_weights[layer - 1].exp() * each.log_softmax(dim=-1) for layer, each in experts)
        return scores + (self.bias if ids is None else self.bias[ids])


class TokenHash(ExitClassifier):
    """A table: after this token, at which share of training tokens has layer l settled? (HashEE)

    HashEE's layer is the first whose share exceeds the threshold; in generation, of the token *before*. It
    costs nothing. Untrained, a layer is drawn for each token: HashEE's random hash.
    """

    sees = 0

    def build(self, decoder_layers: int, vocabulary: int) -> None:
        drawn = torch.randint(1, decoder_layers, (vocabulary + 1, 1))  # the last row: the start of an output
        self.register_buffer("shares", (torch.arange(1, decoder_layers) >= drawn).float())

    def count(self, before: Tensor, labels: Tensor) -> None:
        """Fills the table from the tokens before, `[token]`, and whether they may exit, `[token, layer - 1]`.

        The mean of all tokens counts as one token more of each row.
        """
        settled, table = labels.flip(1).cumprod(1).flip(1).to(self.shares), torch.zeros_like(self.shares)
        rows = before.to(table.device) % len(table)
        seen = torch.bincount(rows, minlength=len(table))[:, None]
        self.shares = (table.index_add(0, rows, settled) + settled.mean(0)) / (seen + 1)

    def confidence(self, state) -> Tensor:
        return self.shares[torch.as_tensor(state.token_before), state.layer - 1]


_CLASSES = {"lstm_classifier": RecurrentClassifier, "learning_to_exit": LearningToExit, "q_exit": QExit}
_CLASSES |= {"past_future": PastFuture, "ztw": Ensemble, "token_hash": TokenHash}
SIZED = {"past_future": ["decoder_layers"], "ztw": ["decoder_layers", "vocabulary"]}  # by the model
SIZED["token_hash"] = SIZED["ztw"]


def new_classifier(kind: str, d_model: int, seed: int = 0, **options: int) -> ExitClassifier:
    """An untrained classifier of a kind in this module's table, for states of width `d_model`.

    `options` differ from the table: `hidden` units, `layers` (how many layers it sees side by side) or, of
    the LSTM, `depth` (MEE's report: two layers; its code: one of 250 units). `SIZED` kinds need sizes of the
    model. Raises `MeeError` for an unknown kind or option, or a size that is missing.
    """
    shapes = {
        "linear_classifier": {"layers": 1, "hidden": 0},
        "hidden_classifier": {"layers": 1, "hidden": d_model},
        "low_rank_classifier": {"layers": 1, "hidden": max(1, d_model // 8)},
        "three_hidden_classifier": {"layers": 3, "hidden": d_model},
        "lstm_classifier": {"depth": 2, "hidden": d_model},
        **{"learning_to_exit": {}, "q_exit": {}} | {name: dict.fromkeys(SIZED[name]) for name in SIZED},
    }
    shape = shapes[check_choice("classifier", kind, shapes)]
    for name in options:
        check_choice(f"option of {kind}", name, shape)
    for name, size in (shape | options).items():
        if size is None:
            raise MeeError(f'"{kind}" needs {name}=..., of the model (train_classifier knows it).')
        check_whole(name, size, _least_size(name, shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = _CLASSES.get(kind, ExitClassifier)(kind, d_model, **shape | options)
    return made.eval().requires_grad_(False)


def _least_size(name: str, shape: dict) -> int:
    """The least value of an option: a linear classifier has no hidden units, a decoder exits before L."""
    if name == "hidden":
        return 0 if "layers" in shape else 1
    return 2 if name == "decoder_layers" else 1


def save_classifier(classifier: ExitClassifier, path: str | Path, fingerprint: str, **about) -> Path:
    """Writes a classifier trained on the states of the model with this fingerprint, and `about` with it.

    In single precision, as safetensors. Raises `MeeError` if the file cannot be written.
    """
    from safetensors.torch import save_file

    settings, about = json.dumps(classifier.settings), json.dumps(about)
    metadata = {"format": FORMAT, "model": fingerprint, "settings": settings, "about": about}
    weights = {name: weight.float().contiguous() for name, weight in classifier.state_dict().items()}
    with complete_file(path) as partial:
        save_file(weights, partial, metadata)
    return Path(path)


def load_classifier(path: str | Path, model) -> ExitClassifier:
    """Reads a classifier for a model. Raises `MeeError` if there is none, or one of other weights."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    if not Path(path).exists():
        raise MeeError(f"{path} does not exist: make it with train_classifier and save_classifier.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, weights = file.metadata() or {}, load_file(path)
    except (SafetensorError, OSError):
        metadata = {}
    if metadata.get("format") != FORMAT:
        raise MeeError(f'{path} is no classifier of this version ("{FORMAT}"): train it anew.')
    classifier = new_classifier(**json.loads(metadata["settings"]))
    classifier.to(torch.promote_types(model.network.dtype, torch.float32)).load_state_dict(weights)
    classifier.about, classifier.trained_on = json.loads(metadata["about"]), metadata["model"]
    classifier.check_model(model)
    return classifier.to(model.device)
