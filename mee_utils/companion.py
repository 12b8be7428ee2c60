"""What every notebook begins with: a profile's corpora and models, and the run that collects its results."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import CompanionError, check_choice
from .profiles import PACKAGE, Profile, load_profile
from .results import Run

NARROW = 256  # models below this width are fastest on one thread


def checkpoint_folder(profile: Profile, name: str) -> Path:
    """Where a mini model of a profile is, or will be."""
    return PACKAGE / "checkpoints" / profile.name / name


def fingerprint(folder: Path) -> str:
    """sha256 of a checkpoint's weights: what a manifest records."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def manifest(profile: Profile, name: str) -> dict:
    """How a mini model was made and how well it does, as `make train` recorded it."""
    path = checkpoint_folder(profile, name) / "manifest.json"
    if not path.exists():
        raise CompanionError(
            f'Profile "{profile.name}" has no trained model "{name}": run "make train PROFILE={profile.name}" '
            "(with DATA=... where the profile reads local corpora)."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def load_tasks(profile: Profile, data: str | None, held_out: bool = True, limit: int | None = None, only: str | None = None) -> list:
    """Every corpus of a profile: the split that scores are measured on, or the training split.

    Args:
        profile: the profile.
        data: the folder that stands for `{data}`.
        held_out: the split of the profile's `held_out_split`, else "train".
        limit: at most this many examples of each.
        only: the task of one corpus; all by default.
    """
    from .tasks import load_task

    tasks = []
    for name, corpus in profile.corpora.items():
        if only and name != only:
            continue
        split, size = (corpus.held_out_split, corpus.held_out) if held_out else ("train", corpus.train)
        size = min(limit, size) if limit and size else limit or size
        tasks.append(
            load_task(
                name, profile.source(name, data), split, size, profile.training.seed,
                revision=corpus.revision, config=corpus.config, languages=tuple(corpus.languages),
            )
        )  # fmt: skip
    return tasks


class _NoRun:
    """In place of a run where nothing is written."""

    def uses(self, name: str, digest: str) -> None:
        """Inputs are recorded by runs only."""
        return


class Companion:
    """One notebook's view of a profile.

    Args:
        notebook: its name, such as "01_monotonicity".
        profile: the profile's name.
        data: the folder that stands for `{data}`, or "".
        parameters: everything else the notebook was run with, for the manifest.
    """

    _scratch: tempfile.TemporaryDirectory | None = None

    def __init__(self, notebook: str, profile: str, data: str = "", **parameters):
        from .figures import use_style

        self.profile, self.data = load_profile(profile), data or None
        self.run = Run(notebook, self.profile.name, {**parameters, "device": self.profile.device})
        use_style()

    @classmethod
    def reader(cls, profile: str, data: str | None = None) -> Companion:
        """A view of a profile that writes no results."""
        found = cls.__new__(cls)
        found.profile, found.data, found.run = load_profile(profile), data or None, _NoRun()
        return found

    def tasks(self, limit: int | None = None) -> dict:
        """The held-out examples of every corpus, at most `limit` of each."""
        tasks = {task.name: task for task in load_tasks(self.profile, self.data, limit=limit)}
        for name, task in tasks.items():
            self.run.uses(f"corpus {name}", task.digest)
        return tasks

    def training_tasks(self, limit: int | None = None) -> dict:
        """The training examples of every corpus, at most `limit` of each."""
        return {task.name: task for task in load_tasks(self.profile, self.data, held_out=False, limit=limit)}

    def manifests(self, names: Sequence[str]) -> dict[str, dict]:
        """The training manifests of some models."""
        return {name: manifest(self.profile, check_choice("model", name, self.model_names)) for name in names}

    @property
    def model_names(self) -> list[str]:
        """The models of the profile; `base` only where it is there, since backbones do not need it once they are trained."""
        base = checkpoint_folder(self.profile, "base") / "manifest.json"
        return [*(["base"] if base.exists() else []), *self.profile.training.backbones]

    def models(self, names: Sequence[str]) -> dict:
        """Loads some of the profile's models, in the profile's precision.

        Narrow models run on one thread from here on: it is the fastest for them, leaves the other cores to other notebooks, and sums in
        the same order on every machine.
        """
        import torch

        from .models import load_model

        if self.profile.training.shape.d_model < NARROW:
            torch.set_num_threads(1)
        loaded = {}
        for name in self.manifests(names):
            folder = checkpoint_folder(self.profile, name)
            loaded[name] = load_model(folder, dtype=self.profile.dtype, device=self.profile.device, name=name)
            self.run.uses(f"model {name}", fingerprint(folder))
        return loaded

    def classifiers(self, models: dict, progress: bool = False) -> dict:
        """The profile's exit classifiers of some loaded models: (model, variant, target) -> one a seed; trains what is missing."""
        from .exits.classifiers import load_classifier
        from .train_exits import train_classifiers

        found: dict = {}
        for job, path in train_classifiers(self.profile, self.data, tuple(models), progress).items():
            classifier = load_classifier(path, models[job.model])
            found.setdefault((job.model, job.variant, job.target), []).append(classifier)
        for key, trained in found.items():
            self.run.uses(" ".join(("classifiers", *key)), hashlib.sha256("".join(c.key() for c in trained).encode()).hexdigest())
        return found

    def long_documents(self, corpus: str, limit: int) -> dict:
        """Long documents in both layouts of the papers, layout -> `Task`: "made", or a folder inside DATA with `document` and `summary`."""
        from .evaluation.long_documents import long_tasks

        if corpus != "made":
            if not self.data or not (Path(self.data) / corpus).exists():
                raise CompanionError(f'DATA holds no folder "{corpus}": give DATA=path/to/corpora that holds it, or long_corpus="made".')
            corpus = str(Path(self.data) / corpus)
        folder = self.scratch("long_documents")
        folder.mkdir(exist_ok=True)
        tasks = long_tasks(corpus, limit, folder)
        for layout, task in tasks.items():
            self.run.uses(f"long documents, {layout} layout", task.digest)
        return tasks

    def scratch(self, name: str) -> Path:
        """A file for what is too large to keep, such as the states of a trace; gone when the notebook ends."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="mee-")
        return Path(self._scratch.name) / name

    def tokenizer(self):
        """The tokenizer that all models of the profile share."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(checkpoint_folder(self.profile, self.model_names[-1]))

    def save_table(self, table, name: str):
        """See `Run.save_table`."""
        return self.run.save_table(table, name)

    def save_figure(self, figure, name: str, drawn) -> None:
        """See `Run.save_figure`."""
        self.run.save_figure(figure, name, drawn)

    def finish(self) -> None:
        """See `Run.finish`."""
        self.run.finish()
