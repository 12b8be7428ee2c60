"""Trained exit classifiers: from normalised states of one or more layers to the probability of "exit".

| kind | sees | network | source |
|---|---|---|---|
| `linear_classifier` | `n(h^l)` | `d + 1` parameters | CALM's own |
| `hidden_classifier` | `n(h^l)` | `Linear(d, d)`, ReLU, `Linear(d, 2)` | CALM's baseline in MEE |
| `low_rank_classifier` | `n(h^l)` | the same with `d / 8` hidden units | cheap enough for every layer |
| `three_hidden_classifier` | the last three `n(h)` | `Linear(3d, d)`, ReLU, `Linear(d, 2)` | MEE, section 5 |
| `lstm_classifier` | all `n(h)` so far, one after the other | two-layer LSTM, two outputs | MEE, section 5 |

One classifier serves all layers. Two outputs and a softmax are the sigmoid of their difference, `log_odds`.
The LSTM starts anew with each token: it runs over layers, not over positions.
"""

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ..common.errors import CompanionError, check_choice
from ..common.files import complete_file
from .measures import Measure

FORMAT = "mee_utils.classifier.1"
TARGETS = ("consistency", "correctness")


class ExitClassifier(nn.Module, Measure):
    """A classifier over normalised states; from `new_classifier`, `train_classifier` or `load_classifier`."""

    def __init__(self, kind: str, d_model: int, hidden: int, layers: int = 1, depth: int | None = None):
        super().__init__()
        self.name, self.d_model, self.about = kind, d_model, {}  # about: what was stored with it
        self.trained_on: str | None = None  # fingerprint of the model on whose states, if that is known
        self.lookback, self.from_first = layers - 1, depth is not None
        shape = {"depth": depth} if self.from_first else {"layers": layers}
        self.settings = {"kind": kind, "d_model": d_model, **shape, "hidden": hidden}
        if self.from_first:
            self.network = nn.LSTM(d_model, hidden, num_layers=depth, batch_first=True)
            self.head = nn.Linear(hidden, 2)
            return
        self.network = nn.Linear(d_model * layers, 1)  # drawn by every kind: what a seed gives depends on it
        if hidden:
            self.network = nn.Sequential(nn.Linear(d_model * layers, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def log_odds(self, states: Tensor) -> Tensor:
        """Log-odds of "exit": `[row, layer, d_model]` to `[row, layer - lookback]`."""
        if self.from_first:
            return self._odds(self.head(self.network(states.to(self._dtype))[0]))
        count = states.shape[1] - self.lookback
        seen = torch.cat([states[:, back : back + count] for back in range(1 + self.lookback)], dim=-1)
        return self._odds(self.network(seen.to(self._dtype)))

    def confidence(self, state) -> Tensor:
        """Probability of "exit", `[rows]`."""
        if self.from_first:
            hidden, _ = state.recall(id(self), self._memory)
            return torch.sigmoid(self._odds(self.head(hidden[:, -1])))
        seen = [state.earlier(back).state for back in range(self.lookback, 0, -1)]
        states = torch.cat([*seen, state.state], dim=-1)
        return torch.sigmoid(self._odds(self.network(states.to(self._dtype))))

    def _odds(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs[..., 1] - outputs[..., 0]

    def _memory(self, state) -> tuple[Tensor, ...]:
        """Hidden and cell states of the LSTM after this layer, `[row, depth, hidden]`."""
        before = None
        if state.layer > 1:
            memory = state.earlier(1).recall(id(self), self._memory)
            before = tuple(part.transpose(0, 1).contiguous() for part in memory)
        _, after = self.network(state.state.to(self._dtype)[:, None], before)
        return tuple(part.transpose(0, 1) for part in after)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def flops(self, d_model: int) -> int:
        """Of one decision (of the LSTM: one layer): two for every weight of a matrix."""
        return 2 * sum(weight.numel() for weight in self.parameters() if weight.ndim > 1)

    def check_model(self, model) -> None:
        """Refuses states of another width, or of other weights than those it was trained on."""
        if self.d_model != model.network.config.d_model:
            width = f"{model.name}'s have {model.network.config.d_model}"
            other = f"reads states of width {self.d_model}, {width}"
        elif self.trained_on not in (None, model.fingerprint):
            other = f"was trained on the states of other weights than {model.name}'s"
        else:
            return
        raise CompanionError(f"{self!r} {other}: train one for this model.")

    def key(self) -> str:
        """Settings and a hash of the weights."""
        digest = hashlib.sha256()
        for weight in self.parameters():
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
        return f"{self.settings} {digest.hexdigest()}"

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.parameters())
        return f'{type(self).__name__}("{self.name}", d_model={self.d_model}, {weights:,} parameters)'


def new_classifier(kind: str, d_model: int, seed: int = 0, **options: int) -> ExitClassifier:
    """An untrained classifier of a kind in this module's table, for states of width `d_model`.

    `options` differ from the table: `hidden` units, `layers` (how many layers it sees side by side) or, of
    the LSTM, `depth` (MEE's report: two layers; its code: one of 250 units). Raises `CompanionError` for an
    unknown kind or option.
    """
    shapes = {
        "linear_classifier": {"layers": 1, "hidden": 0},
        "hidden_classifier": {"layers": 1, "hidden": d_model},
        "low_rank_classifier": {"layers": 1, "hidden": max(1, d_model // 8)},
        "three_hidden_classifier": {"layers": 3, "hidden": d_model},
        "lstm_classifier": {"depth": 2, "hidden": d_model},
    }
    check_choice("classifier", kind, shapes)
    for name in options:
        check_choice(f"option of {kind}", name, shapes[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ExitClassifier(kind, d_model, **shapes[kind] | options).eval().requires_grad_(False)


def save_classifier(classifier: ExitClassifier, path: str | Path, fingerprint: str, **about) -> Path:
    """Writes a classifier trained on the states of the model with this fingerprint, and `about` with it.

    In single precision, as a safetensors file that appears only when complete. Raises `CompanionError` if it
    cannot be written.
    """
    from safetensors.torch import save_file

    settings, about = json.dumps(classifier.settings), json.dumps(about)
    metadata = {"format": FORMAT, "model": fingerprint, "settings": settings, "about": about}
    weights = {name: weight.float().contiguous() for name, weight in classifier.state_dict().items()}
    with complete_file(path) as partial:
        save_file(weights, partial, metadata)
    return Path(path)


def load_classifier(path: str | Path, model) -> ExitClassifier:
    """Reads a classifier for a model. Raises `CompanionError` if there is none, or one of other weights."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    if not Path(path).exists():
        raise CompanionError(
            f"{path} does not exist: make it with train_classifier and save_classifier first."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata, weights = file.metadata() or {}, load_file(path)
    except (SafetensorError, OSError):
        metadata = {}
    if metadata.get("format") != FORMAT:
        raise CompanionError(f'{path} is no classifier of this version ("{FORMAT}"): train it anew.')
    settings = json.loads(metadata["settings"])
    classifier = new_classifier(settings.pop("kind"), settings.pop("d_model"), **settings)
    classifier.to(torch.promote_types(model.network.dtype, torch.float32)).load_state_dict(weights)
    classifier.about, classifier.trained_on = json.loads(metadata["about"]), metadata["model"]
    classifier.check_model(model)
    return classifier.to(model.device)
