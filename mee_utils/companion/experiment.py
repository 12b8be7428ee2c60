"""`Experiment`: what every notebook begins with. It loads a profile's inputs and saves results."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from .. import MeeError, Model, Task, Trace, load_classifier
from ..analysis.long_documents import long_tasks
from ..common.errors import check_choice
from . import inputs
from .artifacts import stored_trace, train_classifiers
from .catalogue import HEADS, MAIN_MODEL, SURVEY_VARIANTS
from .figures import label, use_style
from .profiles import Profile, load_profile
from .results import Run
from .running.notebook_files import declared_parameters, read_source
from .running.parameters import check_injected, check_parameters


class Experiment:
    """One notebook's view of a profile. `finish` and all that begins with `save_` are those of its `Run`.

    `notebook` is its name (None where nothing is saved), `data` the folder that stands for `{data}`, or "";
    `parameters`, what else it was run with, are for the manifest. `layers` is the number L of decoder layers;
    `model_names` are the models that are there, `backbones` those that were trained on the tasks.
    """

    def __init__(self, notebook: str | None, profile: str | Profile, data: str | None = "", **parameters):
        self.profile = profile if isinstance(profile, Profile) else load_profile(profile, data)
        self.data = data or self.profile.data
        self.used: dict[str, str] = {}  # name -> sha256
        self.layers = inputs.model_shape(self.profile)["num_decoder_layers"]
        self.backbones = list(self.profile.training.backbones)  # they do not need what they started from
        if self.profile.training.is_all_ready:
            self.backbones.insert(0, "base")  # nothing starts from it: a model like the others
        self.model_names = [
            name
            for name in self.profile.training.models
            if name in self.backbones or inputs.is_trained(self.profile, name)
        ]
        self._models: dict[tuple, Model] = {}  # (name, ready checkpoint) -> model
        self._scratch: tempfile.TemporaryDirectory | None = None
        if notebook:
            self.run = Run(notebook, self.profile.name, {**parameters, "device": self.profile.device})
            self.used = self.run.inputs
            self.save_table = self.run.save_table
            self.save_figure = self.run.save_figure
            self.finish = self.run.finish
            use_style()

    @classmethod
    def of_notebook(cls, notebook: str, variables: Mapping) -> "Experiment":
        """The experiment of a notebook, with the parameters that its `parameters` cell declares.

        `variables` has their values: the notebook passes `globals()`.
        """
        declared = declared_parameters(read_source(notebook))
        check_injected(notebook)
        values = check_parameters({name: variables[name] for name in declared}, declared)
        results = load_profile(values["profile"], values["data"]).results
        values |= {name: getattr(results, name) for name, value in values.items() if value is None}
        experiment = cls(notebook, **values)
        name = experiment.profile.name
        if name != "real":
            print(f"The text speaks of profile real, figures and numbers are those of profile {name}.")
        if experiment.main != MAIN_MODEL:
            print(f"Where the text speaks of CALM, profile {name} shows {label(experiment.main)}.")
        return experiment

    @property
    def parameters(self) -> dict:
        """The values of the notebook's parameters by name, except `profile` and `data`."""
        return {name: value for name, value in self.run.parameters.items() if name != "device"}

    @property
    def settings(self) -> dict:
        """What rules are made with: the `results` of the profile, and the parameters of the notebook."""
        return self.profile.results.model_dump() | self.parameters

    def note(self, examples: int | None = None, intervals: str = "") -> str:
        """The small print of a figure: whose data, how many examples of each task, and what its bands are."""
        sources = {corpus.source for corpus in self.profile.corpora.values()}
        kind = "synthetic data" if sources == {"synthetic"} else "real text"
        counted = f"{examples} examples per task" if examples else ""
        parts = [f"profile {self.profile.name}: {kind}", counted, intervals]
        return "; ".join(part for part in parts if part)

    @staticmethod
    def table(
        function: Callable, by_key: Mapping, labels: Sequence[str] = ("task", "model"), **options
    ) -> pd.DataFrame:
        """One table of what a function returns for every value of a mapping, labelled by its keys.

        Args:
            function: called as `function(value, **labels, **options)`, where value is mostly a trace; returns
                a table, or a row as a dict.
            by_key: key -> value; a key has one part for each label.
            labels: what the parts of a key are.
        """
        tables = []
        for key, value in by_key.items():
            parts = key if isinstance(key, tuple) else (key,)
            rows = function(value, **dict(zip(labels, parts, strict=True)), **options)
            tables.append(rows if isinstance(rows, pd.DataFrame) else pd.DataFrame([rows]))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def tasks(self, limit: int | None = None, part: str = "held_out") -> dict[str, Task]:
        """The held-out examples of every corpus, or another part (`inputs.load_tasks`); at most `limit`."""
        tasks = {task.name: task for task in inputs.load_tasks(self.profile, part, limit)}
        if part == "held_out":
            self.used |= {f"corpus {name}": task.digest for name, task in tasks.items()}
        return tasks

    def away(self, limit: int) -> dict[str, Task]:
        """At most `limit` examples of each corpus of another domain; none where the profile names none."""
        tasks = inputs.load_away(self.profile, limit)
        self.used |= {f"corpus {name}": task.digest for name, task in tasks.items()}
        return tasks

    def manifests(self, names: Sequence[str]) -> dict[str, dict]:
        """The training manifests of some models."""
        checked = [check_choice("model", name, self.model_names) for name in names]
        return {name: inputs.manifest(self.profile, name) for name in checked}

    def model(self, name: str, task: str) -> Model:
        """A model of the profile, in its precision; where it has a checkpoint a task, that of `task`.

        Loaded once: a model of all tasks is the same for each of them.
        """
        self.manifests([name])
        checkpoint = inputs.ready_checkpoint(self.profile, name, task)
        key = (name, checkpoint)
        if key not in self._models:
            self._models[key] = inputs.load_profile_model(self.profile, name, task=task)
            self.used[f"model {name}"] = inputs.weights_digest(self.profile, name)
        return self._models[key]

    @property
    def main(self) -> str:
        """The model shown in single-model figures: CALM's, or the last where there is none."""
        return MAIN_MODEL if MAIN_MODEL in self.backbones else self.backbones[-1]

    def models(self, names: Sequence[str]) -> dict[str, Model]:
        """Loads some of the profile's models, each of which is one checkpoint for all tasks."""
        loaded = {name: inputs.load_profile_model(self.profile, name) for name in self.manifests(names)}
        self.used |= {f"model {name}": inputs.weights_digest(self.profile, name) for name in loaded}
        return loaded

    def trace(self, model: str, task: str, limit: int | None = None, max_new_tokens=None) -> Trace:
        """The model's own output on the first held-out examples, traced with states; notebooks share it."""
        traced = stored_trace(self.profile, model, task, limit, max_new_tokens)
        return traced.first(limit) if limit else traced

    def classifiers(
        self,
        models: dict[str, Model],
        seeds=(),
        survey: bool = False,
        variants: Sequence[str] = (),
        targets: Sequence[str] = (),
    ) -> dict[tuple, list]:
        """(model, variant, target) -> one classifier per seed; missing ones are trained.

        Args:
            models: name -> the model that they belong to.
            seeds: of their training.
            survey: whether the survey's classifiers are trained and returned, too.
            variants: limits the rules whose classifiers are returned. Exit heads are returned only if named.
            targets: limits the training targets.
        """
        groups: dict = {}
        left_out = {*(() if survey else SURVEY_VARIANTS), *(set(HEADS) - set(variants))}
        for spec, path in train_classifiers(self.profile, models, seeds, variants, targets).items():
            if spec.variant in left_out:
                continue
            classifier = load_classifier(path, models[spec.model])
            groups.setdefault((spec.model, spec.variant, spec.target), []).append(classifier)
        for key, trained in groups.items():
            digest = hashlib.sha256("".join(c.key() for c in trained).encode()).hexdigest()
            self.used[" ".join(("classifiers", *key))] = digest
        return groups

    def long_documents(self, corpus: str, limit: int) -> dict[str, Task]:
        """Documents of a corpus ("synthetic", or a folder inside DATA) in both layouts: layout -> `Task`."""
        folder = self.scratch("long_documents")
        folder.mkdir(exist_ok=True)
        source = corpus if corpus == "synthetic" else str(Path(self.data or "DATA") / corpus)
        if corpus != "synthetic" and not Path(source).exists():
            wanted = 'give DATA=path/to/corpora that holds it, or long_corpus="synthetic"'
            raise MeeError(f'DATA holds no folder "{corpus}": {wanted}.')
        tasks = long_tasks(source, limit, folder)
        self.used |= {f"long documents, {layout} layout": task.digest for layout, task in tasks.items()}
        return tasks

    def tokenizer(self):
        """The tokenizer that all models of the profile share."""
        return inputs.load_profile_tokenizer(self.profile, self.model_names[-1])

    def scratch(self, name: str) -> Path:
        """A file for what is too large to keep; gone when the notebook ends."""
        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="mee-")
        return Path(self._scratch.name) / name
