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

from __future__ import annotations

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
OTHER_WEIGHTS = "{} was trained on the states of other weights than {}'s: train one for this model."


class ExitClassifier(nn.Module, Measure):
    """A classifier over the last `layers` normalised states.

    Args:
        kind: a name of the table above; the LSTM is `LstmClassifier`.
        d_model: width of the states.
        blocks: how many layers it sees side by side.
        hidden: hidden units; 0 for none.

    Attributes:
        trained_on: fingerprint of the model whose states it was trained on; None if that is not known.
        about: what was stored with it.
    """

    readout = False
    trained_on: str | None = None
    about: dict = {}  # noqa: RUF012 (replaced, never changed)

    def __init__(self, kind: str, d_model: int, blocks: int, hidden: int):
        super().__init__()
        self.name, self.d_model, self.blocks, self.hidden = kind, d_model, blocks, hidden
        width = d_model * blocks
        self.network = nn.Linear(width, 1)
        if hidden:
            self.network = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    @property
    def lookback(self) -> int:
        """Earlier layers it looks at."""
        return self.blocks - 1

    def _odds(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs[..., 1] - outputs[..., 0]

    def log_odds(self, states: Tensor) -> Tensor:
        """Log-odds of "exit": `[row, layer, d_model]` to `[row, layer - lookback]`."""
        count = states.shape[1] - self.lookback
        seen = torch.cat([states[:, back : back + count] for back in range(self.blocks)], dim=-1)
        return self._odds(self.network(seen.to(self._dtype)))

    def confidence(self, state) -> Tensor:
        """Probability of "exit", `[rows]`."""
        seen = [state.earlier(back).state for back in range(self.lookback, 0, -1)]
        states = torch.cat([*seen, state.state], dim=-1)
        return torch.sigmoid(self._odds(self.network(states.to(self._dtype))))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def flops(self, d_model: int) -> int:
        """Of one decision: products of matrices."""
        width = d_model * self.blocks
        return 2 * width * self.hidden + 4 * self.hidden if self.hidden else 2 * width

    def settings(self) -> dict:
        """What it takes to build it anew."""
        return {"kind": self.name, "d_model": self.d_model, "blocks": self.blocks, "hidden": self.hidden}

    def check_model(self, model) -> None:
        """Refuses states of another width, or of other weights than those it was trained on."""
        if self.d_model != model.network.config.d_model:
            width = f"{model.name}'s have {model.network.config.d_model}: train one for this model."
            raise CompanionError(f"{self!r} reads states of width {self.d_model}, {width}")
        if self.trained_on not in (None, model.fingerprint):
            raise CompanionError(OTHER_WEIGHTS.format(self, model.name))

    def key(self) -> str:
        """Settings and a hash of the weights."""
        digest = hashlib.sha256()
        for weight in self.parameters():
            digest.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
        return f"{self.settings()} {digest.hexdigest()}"

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.parameters())
        return f'{type(self).__name__}("{self.name}", d_model={self.d_model}, {weights:,} parameters)'


class LstmClassifier(ExitClassifier):
    """An LSTM over the layers.

    Args:
        kind: "lstm_classifier".
        d_model: width of the states.
        depth: layers of the LSTM (MEE: two; its code: one).
        hidden: units (MEE's code: 250).
    """

    from_first = True

    def __init__(self, kind: str, d_model: int, depth: int, hidden: int):
        nn.Module.__init__(self)
        self.name, self.d_model, self.depth, self.hidden, self.blocks = kind, d_model, depth, hidden, 1
        self.network = nn.LSTM(d_model, hidden, num_layers=depth, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def log_odds(self, states: Tensor) -> Tensor:
        """Log-odds of "exit" at every layer, `[row, layer, d_model]` to `[row, layer]`."""
        return self._odds(self.head(self.network(states.to(self._dtype))[0]))

    def confidence(self, state) -> Tensor:
        """Probability of "exit", `[rows]`."""
        return torch.sigmoid(self._odds(self.head(self._memory(state)[0][:, -1])))

    def _memory(self, state) -> tuple[Tensor, Tensor]:
        """Hidden and cell states after this layer, `[row, depth, hidden]`, kept with it."""
        return state.recall(id(self), self._step)

    def _step(self, state) -> tuple[Tensor, Tensor]:
        before = None
        if state.layer > 1:
            before = tuple(part.transpose(0, 1).contiguous() for part in self._memory(state.earlier(1)))
        _, after = self.network(state.state.to(self._dtype)[:, None], before)
        return tuple(part.transpose(0, 1) for part in after)

    def flops(self, d_model: int) -> int:
        """Of one layer: products of matrices."""
        inputs = d_model + (self.depth - 1) * self.hidden + self.depth * self.hidden
        return 8 * self.hidden * inputs + 4 * self.hidden

    def settings(self) -> dict:
        """What it takes to build it anew."""
        return {"kind": self.name, "d_model": self.d_model, "depth": self.depth, "hidden": self.hidden}


def new_classifier(kind: str, d_model: int, seed: int = 0, **options) -> ExitClassifier:
    """An untrained classifier.

    Args:
        kind: a name of the table in this module.
        d_model: width of the model's states.
        seed: of its weights.
        options: `blocks`, `hidden` or, for the LSTM, `depth` and `hidden`, where they differ from the table.

    Raises:
        CompanionError: an unknown kind or option.
    """
    shapes = {
        "linear_classifier": {"blocks": 1, "hidden": 0},
        "hidden_classifier": {"blocks": 1, "hidden": d_model},
        "low_rank_classifier": {"blocks": 1, "hidden": max(1, d_model // 8)},
        "three_hidden_classifier": {"blocks": 3, "hidden": d_model},
        "lstm_classifier": {"depth": 2, "hidden": d_model},
    }
    check_choice("classifier", kind, shapes)
    for name in options:
        check_choice(f"option of {kind}", name, shapes[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = LstmClassifier if kind == "lstm_classifier" else ExitClassifier
        return built(kind, d_model, **shapes[kind] | options).eval().requires_grad_(False)


def save_classifier(classifier: ExitClassifier, path: str | Path, fingerprint: str, **about) -> Path:
    """Writes a classifier as safetensors with what it belongs to; the file appears only when complete.

    Args:
        classifier: a trained one.
        path: the file.
        fingerprint: of the model whose states it was trained on (`Model.fingerprint`).
        about: anything else worth keeping (target, seed, epochs).

    Raises:
        CompanionError: the file cannot be written.
    """
    from safetensors.torch import save_file

    settings, about = json.dumps(classifier.settings()), json.dumps(about)
    metadata = {"format": FORMAT, "model": fingerprint, "settings": settings, "about": about}
    weights = {name: weight.contiguous() for name, weight in classifier.state_dict().items()}
    with complete_file(path) as partial:
        save_file(weights, partial, metadata)
    return Path(path)


def load_classifier(path: str | Path, model) -> ExitClassifier:
    """Reads a classifier and checks that it belongs to a model.

    Args:
        path: a file written by `save_classifier`.
        model: the model it is to be used with; from `load_model`.

    Raises:
        CompanionError: no such file, no classifier, or one that was trained on the states of other weights.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise CompanionError(
            f"{path} does not exist: train a classifier with train_classifier and save_classifier first."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise CompanionError(f"{path} is no classifier of this companion: train it anew.") from error
    if metadata.get("format") != FORMAT:
        raise CompanionError(
            f'{path} has the format "{metadata.get("format")}", this version reads "{FORMAT}": train it anew.'
        )
    if metadata["model"] != model.fingerprint:
        raise CompanionError(OTHER_WEIGHTS.format(path, model.name))
    settings = json.loads(metadata["settings"])
    classifier = new_classifier(settings.pop("kind"), settings.pop("d_model"), **settings)
    classifier.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    classifier.about, classifier.trained_on = json.loads(metadata["about"]), metadata["model"]
    return classifier.to(model.device)
