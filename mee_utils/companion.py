"""What every notebook begins with: a profile's corpora and models, and the run that collects its results."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import CompanionError, check_choice
from .lock import at_locked_commit
from .profiles import PACKAGE, Checkpoint, Profile, ShapeSettings, load_profile
from .results import Run

NARROW = 256  # models below this width are fastest on one thread


def checkpoint_folder(profile: Profile, name: str) -> Path:
    """Where a model of a profile is, or will be; of a ready checkpoint only its manifest."""
    return PACKAGE / "checkpoints" / profile.name / name


def fingerprint(folder: Path) -> str:
    """sha256 of a checkpoint's weights: what a manifest records."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def weights_digest(profile: Profile, name: str) -> str:
    """What identifies the weights of a model of a profile; of a ready checkpoint, what `make train` recorded."""
    if isinstance(profile.training.recipe(name), Checkpoint):
        return manifest(profile, name)["weights"]
    return fingerprint(checkpoint_folder(profile, name))


def from_source(profile: Profile, name: str, load: Callable[[str, str | None], object]):
    """Calls `load(folder or hub id, commit)` for a model of a profile: its own folder, or the ready checkpoint that it is.

    A hub id is loaded at the commit that the profile's lock names.
    """
    from .tasks.loading import is_hub_id

    recipe = profile.training.recipe(name)
    if not isinstance(recipe, Checkpoint):
        return load(str(checkpoint_folder(profile, name)), None)
    if not is_hub_id(recipe.source):
        return load(recipe.source, None)
    return at_locked_commit(profile, "models", recipe.source, recipe.revision, lambda commit: load(recipe.source, commit))


def load_profile_model(profile: Profile, name: str, dtype: str | None = None):
    """Loads a model of a profile, in the profile's precision or in `dtype`, on the profile's device."""
    from .models import load_model

    options = dict(dtype=dtype or profile.dtype, device=profile.device, name=name)
    return from_source(profile, name, lambda source, commit: load_model(source, commit, **options))


def load_profile_tokenizer(profile: Profile, name: str):
    """The tokenizer of a model of a profile."""
    from .models.loading import load_tokenizer

    return from_source(profile, name, load_tokenizer)


def with_shape(profile: Profile) -> Profile:
    """The profile with the sizes of its models filled in where they are those of a ready checkpoint: its first backbone's manifest has them.

    Raises:
        CompanionError: that model is not there yet.
    """
    if profile.training.shape:
        return profile
    shape = ShapeSettings(**manifest(profile, next(iter(profile.training.backbones)))["shape"])
    return profile.model_copy(update={"training": profile.training.model_copy(update={"shape": shape})})


def manifest(profile: Profile, name: str) -> dict:
    """How a mini model was made and how well it does, as `make train` recorded it."""
    path = checkpoint_folder(profile, name) / "manifest.json"
    if not path.exists():
        base = profile.training.base
        source = f" (from {base.checkpoint})" if isinstance(base, Checkpoint) else ""
        raise CompanionError(
            f'Profile "{profile.name}" has no trained model "{name}"{source}: run "make train PROFILE={profile.name}" '
            "(with DATA=... where the profile reads local corpora)."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def load_tasks(profile: Profile, data: str | None, held_out: bool = True, limit: int | None = None, only: str | None = None) -> list:
    """Every corpus of a profile: the split that scores are measured on, or the training split.

    Hub data sets are loaded at the commit that the profile's lock names. Models that start from a ready checkpoint get their sources cut to
    `max_source` tokens, as they were trained; no source of a model trained from scratch is cut.

    Args:
        profile: the profile.
        data: the folder that stands for `{data}`.
        held_out: the split of the profile's `held_out_split`, else "train".
        limit: at most this many examples of each.
        only: the task of one corpus; all by default.
    """
    from .tasks import load_task
    from .tasks.loading import is_hub_id, shortened

    tasks = []
    for name, corpus in profile.corpora.items():
        if only and name != only:
            continue
        split, size = (corpus.held_out_split, corpus.held_out) if held_out else ("train", corpus.train)
        size = min(limit, size) if limit and size else limit or size
        source, given = profile.source(name, data), (split, size, profile.training.seed)
        options = dict(config=corpus.config, languages=tuple(corpus.languages), folder=corpus.folder)
        load = lambda commit, call=(name, source, *given), options=options: load_task(*call, revision=commit, **options)
        tasks.append(at_locked_commit(profile, "datasets", source, corpus.revision, load) if is_hub_id(source) else load(corpus.revision))
    if isinstance(profile.training.base, Checkpoint):
        tokenizer = load_profile_tokenizer(profile, "base")
        tasks = [shortened(task, tokenizer, profile.training.max_source) for task in tasks]
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

        self.profile, self.data = with_shape(load_profile(profile)), data or None
        self.run = Run(notebook, self.profile.name, {**parameters, "device": self.profile.device})
        use_style()

    @classmethod
    def reader(cls, profile: str, data: str | None = None) -> Companion:
        """A view of a profile that writes no results."""
        found = cls.__new__(cls)
        found.profile, found.data, found.run = with_shape(load_profile(profile)), data or None, _NoRun()
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

        if self.profile.training.shape.d_model < NARROW:
            torch.set_num_threads(1)
        loaded = {}
        for name in self.manifests(names):
            loaded[name] = load_profile_model(self.profile, name)
            self.run.uses(f"model {name}", weights_digest(self.profile, name))
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
        """Long documents in both layouts of the papers, layout -> `Task`.

        Args:
            corpus: "made"; a folder inside DATA with `document` and `summary`; or a hub id that has them, with a revision and a folder of its
                repository after it where it needs them, as in "owner/name@refs/convert/parquet:default".
            limit: how many documents.
        """
        from .evaluation.long_documents import long_tasks

        folder = self.scratch("long_documents")
        folder.mkdir(exist_ok=True)
        identifier, _, rest = corpus.partition("@")
        if corpus == "made":
            tasks = long_tasks(corpus, limit, folder)
        elif self.data and (Path(self.data) / corpus).exists():
            tasks = long_tasks(str(Path(self.data) / corpus), limit, folder)
        elif identifier.count("/") == 1 and not identifier.startswith((".", "/")):
            revision, _, place = rest.partition(":")
            load = lambda commit: long_tasks(identifier, limit, folder, revision=commit, folder=place or None)
            tasks = at_locked_commit(self.profile, "datasets", identifier, revision or None, load)
        else:
            raise CompanionError(
                f'DATA holds no folder "{corpus}": give DATA=path/to/corpora that holds it, a hub id such as owner/name, or long_corpus="made".'
            )
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
        return load_profile_tokenizer(self.profile, self.model_names[-1])

    def save_table(self, table, name: str):
        """See `Run.save_table`."""
        return self.run.save_table(table, name)

    def save_figure(self, figure, name: str, drawn) -> None:
        """See `Run.save_figure`."""
        self.run.save_figure(figure, name, drawn)

    def finish(self) -> None:
        """See `Run.finish`."""
        self.run.finish()
