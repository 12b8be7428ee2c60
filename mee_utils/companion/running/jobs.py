"""What the pipeline has to do for a profile, as lists of jobs. The Snakefile says which of them need which:

models -> traces, classifiers -> measurements -> notebooks
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...common.files import build_root
from ..catalogue import ABLATED, DISTILLED, HEADS, MAIN_MODEL, SURVEY_VARIANTS, VARIANTS, target_of
from ..inputs import checkpoint_folder
from ..profiles import Profile

ALL = "all"
CLASSIFIERS = ("classifiers", "further_classifiers")
OF_ALL_TASKS = ("inputs", "learning", "learned_from", "published_bugs")  # of the main model
MEASUREMENTS = ("settings", "survey", "oracle", "fresh", *OF_ALL_TASKS)
RETRAININGS = ("seeds", "rivals", "right_sized", "ablations")
KINDS = ("model", "trace", *CLASSIFIERS, *MEASUREMENTS, *RETRAININGS, "tables")  # of the command `job`


@dataclass(frozen=True)
class Job:
    """One piece of work on a model, perhaps on one task, perhaps with a seed.

    Kinds:
        trace: the model's own output on a task, for all notebooks.
        classifiers, further_classifiers: exit classifiers of a model, with the first seed or with the others.
        settings, survey, oracle, fresh and those of `OF_ALL_TASKS`: measurements (`companion.measure`).
        seeds, rivals, right_sized, ablations: trainings beside the shipped models; `model` names the
            backbone, the rival (`vanilla` too, with which the others are compared) or the ablation.
    """

    kind: str
    model: str
    task: str = ALL
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of what it makes, without ending; of classifiers `specs_of` knows it."""
        if self.kind in ("trace", "settings"):
            return f"{self.model}-{self.task}"
        if self.kind in ("survey", "oracle"):
            return f"{self.kind}-{self.task}"
        if self.kind in RETRAININGS:
            return f"{self.kind}-{self.model}-{self.seed}"
        return self.kind

    def path(self, profile: Profile) -> Path:
        """What it makes: a trace, the table of a measurement, the rows of a retraining."""
        if self.kind == "trace":
            return folder_of(profile, "traces") / f"{self.name}.safetensors"
        if self.kind in RETRAININGS:
            return folder_of(profile, "retrained") / f"{self.name}.json"
        return folder_of(profile, "measured") / f"{self.name}.parquet"


@dataclass(frozen=True)
class ClassifierSpec:
    """Which classifier: a variant (the name of its rule) for a backbone, with a target and a seed.

    A job of the kinds `CLASSIFIERS` trains several of them, see `specs_of`.
    """

    model: str
    variant: str
    target: str
    seed: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.model}-{self.variant}-{self.target}-{self.seed}.safetensors"

    def path(self, profile: Profile) -> Path:
        """Where it is made."""
        return folder_of(profile, "classifiers") / self.file

    def shipped(self, profile: Profile) -> Path:
        """Where it comes with the package, if it does."""
        return checkpoint_folder(profile, "classifiers") / self.file


def classifier_specs(profile: Profile) -> list[ClassifierSpec]:
    """The classifiers of a profile.

    All on the main model (the survey's once); the ablated also for the other target and on vanilla. The rule
    over the history of predictions also on all other backbones, once; exit heads on vanilla alone, since on
    the main model CALM's objective has done their work.
    """
    seeds = profile.classifiers.seeds
    if not seeds:
        return []
    others = [name for name in profile.training.backbones if name != MAIN_MODEL]
    groups = [
        (MAIN_MODEL, "consistency", VARIANTS, seeds),
        (MAIN_MODEL, "correctness", ABLATED, seeds),
        ("vanilla", "consistency", ABLATED, seeds),
        *((name, "consistency", ("history",), 1) for name in others),
        (MAIN_MODEL, "consistency", SURVEY_VARIANTS, 1),
        (MAIN_MODEL, "distilled", DISTILLED, 1),
        *(("vanilla", target_of(name), (name,), 1) for name in HEADS),
    ]
    return [
        ClassifierSpec(model, variant, target, seed)
        for model, target, variants, count in groups
        if model in profile.training.backbones
        for variant in variants
        for seed in range(count)
    ]


def classifier_sets(profile: Profile) -> list[Job]:
    """The classifiers of each model as two jobs: measurements wait for those of the first seed alone."""
    models = dict.fromkeys(spec.model for spec in classifier_specs(profile))
    sets = [Job(kind, model) for model in models for kind in CLASSIFIERS]
    return [job for job in sets if specs_of(profile, job)]


def specs_of(profile: Profile, job: Job) -> list[ClassifierSpec]:
    """The classifiers that one of `classifier_sets` trains: of the first seed, or of all others."""
    first_seed = job.kind == "classifiers"
    of_model = [spec for spec in classifier_specs(profile) if spec.model == job.model]
    return [spec for spec in of_model if (spec.seed == 0) == first_seed]


def folder_of(profile: Profile, part: str) -> Path:
    """Where one kind of products of a profile is made."""
    return build_root() / part / profile.name


def traces(profile: Profile) -> list[Job]:
    """A trace of every model that notebooks read, on every task."""
    models = [*profile.training.models[:1], *profile.training.backbones]
    return [Job("trace", model, task) for model in dict.fromkeys(models) for task in profile.corpora]


def measurements(profile: Profile) -> list[Job]:
    """The measurements of a profile, in the order of the tables: the main model first."""
    chosen = {MAIN_MODEL, *(profile.results.models or profile.training.backbones)}
    models = [name for name in profile.training.backbones if name in chosen]
    models.sort(key=lambda name: name != MAIN_MODEL)
    jobs = [Job("settings", model, task) for model in models for task in profile.corpora]
    if MAIN_MODEL in models:
        jobs += [Job("survey", MAIN_MODEL, task) for task in profile.corpora]
        jobs += [Job("oracle", MAIN_MODEL, task) for task in profile.corpora]
        endless = [task for task, corpus in profile.corpora.items() if corpus.source == "synthetic"]
        jobs += [Job("fresh", MAIN_MODEL, task) for task in endless[-1:]]
    return [*jobs, *(Job(kind, MAIN_MODEL) for kind in OF_ALL_TASKS)]


def retrainings(profile: Profile) -> list[Job]:
    """Seeds of every backbone, the shipped ones too, rivals and ablations; in the order of the tables."""
    first = profile.training.seed
    jobs = [
        Job("seeds", name, seed=first + number)
        for name, backbone in profile.training.objectives.items()
        for number in range(backbone.seeds)
    ]
    if profile.rivals:
        jobs += [
            Job("rivals", name, seed=first + number)
            for name in ("vanilla", *profile.shallow_decoders)
            for number in range(profile.rivals.seeds)
        ]
        jobs += [
            Job("right_sized", name, seed=first + number)
            for name in profile.right_sized
            for number in range(profile.rivals.right_sized_seeds)
        ]
    return jobs + [Job("ablations", name, seed=first) for name in profile.ablation_runs]
