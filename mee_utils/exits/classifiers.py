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

Here they are made by their kind, and written and read; their classes are in `classifier_kinds` and
`history_classifier`. All learn from a trace, see `mee_utils.traces.classifier_training`.
"""

import json
from pathlib import Path

import torch

from ..common.errors import MeeError, check_choice, check_seed, check_whole, one_line, shown
from ..common.files import check_file, complete_file
from ..models.loading import Model
from .classifier_kinds import (
    Ensemble,
    ExitClassifier,
    ExitHeads,
    LearningToExit,
    PastFuture,
    QExit,
    RecurrentClassifier,
    TokenHash,
)
from .history_classifier import HistoryClassifier

FORMAT = "mee_utils.classifier.1"
FILE = "classifier.safetensors"  # an example of a name
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
    seed = check_seed(seed)
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
        MeeError: something that is no classifier, no fingerprint or no JSON; the file cannot be written.
    """
    from safetensors.torch import save_file

    path = check_file("path", path, FILE)
    if not isinstance(classifier, ExitClassifier):
        advice = "give the first of the two that train_classifier returns"
        raise MeeError(f"classifier={shown(classifier)}: {advice}.")
    if not isinstance(fingerprint, str):
        raise MeeError(f"fingerprint={shown(fingerprint)}: give model.fingerprint.")
    try:
        about = json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise MeeError(f"metadata: {one_line(error)}; give what JSON holds.") from error
    header = {
        "format": FORMAT,
        "model": fingerprint,
        "settings": json.dumps(classifier.settings),
        "about": about,
    }
    weights = {name: weight.float().contiguous() for name, weight in classifier.state_dict().items()}
    with complete_file(path) as partial:
        save_file(weights, partial, header)
    return path


def load_classifier(path: str | Path, model) -> ExitClassifier:
    """Reads a classifier for a model. Raises `MeeError` if there is none, or one of other weights."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    path = check_file("path", path, FILE)
    if not isinstance(model, Model):
        raise MeeError(f"model={shown(model)}: give what load_model returns.")
    if not path.exists():
        raise MeeError(f"{path} does not exist: make it with train_classifier and save_classifier.")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
        weights = load_file(path)
    except (SafetensorError, OSError):
        header = {}
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
