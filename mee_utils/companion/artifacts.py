"""What is made once and read by all notebooks: traces and exit classifiers, stored below `build`.

They are made again when what is behind them changes: `freshness` says so of a trace. Classifiers are
shipped beside the models (`make train`), so each has in its file the key of what it belongs to: weights,
data and settings.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from ..common.files import complete_file
from .catalogue import RULES
from .inputs import load_profile_model, load_profile_tokenizer, load_tasks, weights_digest
from .profiles import Profile
from .running import freshness
from .running.digests import digest_of
from .running.jobs import ClassifierSpec, Job, classifier_specs

# how a rule over predictions learns: it has few weights, which take more and larger steps
OF_PREDICTIONS = {"epochs": 10, "batch_size": 256, "learning_rate": 0.02}


def stored_trace(
    profile: Profile, model: str, task: str, limit: int | None = None, max_new_tokens: int | None = None
):
    """The `Trace` of a model's own output on a task; made and stored where it is missing or stale.

    Args:
        profile: whose model and corpus.
        model: the name of a model of the profile.
        task: the name of a task of the profile.
        limit: how many examples are needed; at least as many as the profile says are traced.
        max_new_tokens: the longest output; by default what the profile says.
    """
    from ..traces.trace import load_trace, states_path
    from ..traces.tracing import trace

    settings = profile.results
    examples = max(limit or 0, settings.examples)
    longest = max_new_tokens or settings.max_new_tokens
    job = Job("trace", model, task)
    path = job.path(profile)
    record = freshness.job_record_path(profile, job)
    if (examples, longest) != (settings.examples, settings.max_new_tokens):
        path = path.with_stem(f"{path.stem}-{examples}-{longest}")
        record = record.with_stem(f"{record.stem}-{examples}-{longest}")
    digests = freshness.trace_digests(profile, model, task, examples, longest)
    if not path.exists() or not freshness.is_recorded(record, digests):
        with freshness.recorded(record, digests):
            (chosen,) = load_tasks(profile, limit=examples, only=task)
            loaded = load_profile_model(profile, model, task=task)
            traced = trace(loaded, chosen.inputs, max_new_tokens=longest, states=states_path(path))
            traced.save(path)
    return load_trace(path)


def train_classifiers(
    profile: Profile,
    models: Collection[str] = (),
    seeds: Collection[int] = (),
    variants: Collection[str] = (),
    targets: Collection[str] = (),
) -> dict[ClassifierSpec, Path]:
    """Takes or trains what is missing of the classifiers: of all or some models, seeds, variants, targets."""
    wanted = [
        spec
        for spec in classifier_specs(profile)
        if (not models or spec.model in models)
        and (not seeds or spec.seed in seeds)
        and (not variants or spec.variant in variants)
        and (not targets or spec.target in targets)
    ]
    if not wanted:
        return {}
    tasks = training_tasks(profile, wanted)
    keys = classifier_keys(profile, wanted, tasks)
    missing = []
    for spec in wanted:
        if stored_key(spec.path(profile)) == keys[spec]:
            continue
        if stored_key(spec.shipped(profile)) == keys[spec]:
            copy_file(spec.shipped(profile), spec.path(profile))
        else:
            missing.append(spec)
    if missing:
        tasks["held_out"] = first_tokens(profile, "held_out")
        for name in dict.fromkeys(spec.model for spec in missing):
            chosen = {spec: keys[spec] for spec in missing if spec.model == name}
            _train_all(profile, name, chosen, tasks)
    return {spec: spec.path(profile) for spec in wanted}


def ship_classifiers(profile: Profile) -> None:
    """Puts the classifiers beside the models, with which they come."""
    for spec in classifier_specs(profile):
        copy_file(spec.path(profile), spec.shipped(profile))


def training_tasks(profile: Profile, specs: Collection[ClassifierSpec]) -> dict[str, list]:
    """The examples that some classifiers learn from, by `Variant.learns_from`."""
    sources = dict.fromkeys(RULES[spec.variant].classifier.learns_from for spec in specs)
    return {
        source: unseen_first(profile) if source == "outputs" else first_tokens(profile, "train")
        for source in sources
    }


def classifier_keys(profile: Profile, specs: Sequence[ClassifierSpec], tasks: dict[str, list]) -> dict:
    """What each of some classifiers belongs to: weights, settings, and the `training_tasks`."""
    deciding = profile.results.model_dump(include={"min_layer", "top_k", "max_new_tokens"})
    learning = profile.classifiers.model_dump(exclude={"seeds"})
    settings = {
        "outputs": [OF_PREDICTIONS, deciding, profile.dtype],
        "references": [learning, profile.dtype, profile.training.max_target],
    }
    data = {
        source: digest_of([[(task.inputs, task.targets) for task in chosen]])
        for source, chosen in tasks.items()
    }
    keys = {}
    for spec in specs:
        variant = RULES[spec.variant].classifier
        source = variant.learns_from
        common_key = digest_of([weights_digest(profile, spec.model), data[source], settings[source]])
        keys[spec] = f"{common_key} {asdict(spec)} {asdict(variant)}"
    return keys


def how_it_learns(profile: Profile, rule: str) -> dict:
    """Epochs, batch size and learning rate of a rule, as `train_classifier` takes them."""
    if RULES[rule].classifier.learns_from == "outputs":
        return OF_PREDICTIONS
    return profile.classifiers.model_dump(include={"epochs", "batch_size", "learning_rate"})


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, which appears only when it is complete."""
    with complete_file(target) as partial:
        shutil.copyfile(source, partial)


def stored_key(path: Path) -> str | None:
    """What a stored classifier belongs to, or None where there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("about", "{}")).get("key")
    except (SafetensorError, OSError):
        return None


def first_tokens(profile: Profile, part: str) -> list:
    """The first examples of each corpus with about `classifiers.tokens` target tokens (held out: half)."""
    wanted = profile.classifiers.tokens // (2 if part == "held_out" else 1)
    return [with_tokens(profile, part, name, wanted) for name in profile.corpora]


def unseen_first(profile: Profile) -> list:
    """Examples for own outputs, half of `classifiers.tokens` target tokens of each corpus.

    Those that no model was trained on come first, training examples where these are too few: a model is surer
    of what it has seen, but on real text more examples help more than this hurts.
    """
    wanted = profile.classifiers.tokens // 2
    chosen = []
    for name in profile.corpora:
        unseen = with_tokens(profile, "unseen", name, wanted)
        missing = wanted - sum(_target_lengths(profile, unseen))
        chosen.append(unseen)
        if missing > 0:
            chosen.append(with_tokens(profile, "train", name, missing))
    return chosen


def with_tokens(profile: Profile, part: str, name: str, wanted: int):
    """The first examples of a corpus with so many target tokens, or all there are."""
    limit = wanted // 16 + 1
    while True:
        (task,) = load_tasks(profile, part, limit, name)
        lengths = _target_lengths(profile, task)
        tokens = sum(lengths)
        if tokens >= wanted or len(task) < limit:
            break
        missing = limit * (wanted / tokens - 1)  # examples, if the next ones are as long
        limit += 1 + int(1.1 * missing)  # a few more than that, since drawing them again takes long
    enough = int(np.searchsorted(np.cumsum(lengths), wanted)) + 1
    return task[:enough]


def _target_lengths(profile: Profile, task) -> list[int]:
    """Tokens of each target of a task."""
    if not len(task):
        return []
    tokenizer = load_profile_tokenizer(profile, next(iter(profile.training.backbones)))
    return [min(len(ids), profile.training.max_target) for ids in tokenizer(task.targets).input_ids]


def _train_all(profile: Profile, name: str, keys: dict[ClassifierSpec, str], tasks: dict[str, list]) -> None:
    """Trains classifiers of one model on what it does with some `tasks`, traced once."""
    from .. import save_classifier, trace, train_classifier

    model = load_profile_model(profile, name)
    with tempfile.TemporaryDirectory(prefix="mee-") as folder:

        @cache
        def traced(source: str):
            """The model's own "outputs", or what it predicts along references."""
            inputs = [text for task in tasks[source] for text in task.inputs]
            states = Path(folder) / f"{source}.npy"
            if source == "outputs":
                return trace(model, inputs, states=states, max_new_tokens=profile.results.max_new_tokens)
            targets = [text for task in tasks[source] for text in task.targets]
            return trace(model, inputs, targets, states=states, max_new_tokens=profile.training.max_target)

        for spec, key in keys.items():
            variant = RULES[spec.variant].classifier
            training_trace = traced(variant.learns_from)
            classifier, curve = train_classifier(
                variant.kind,
                training_trace,
                model,
                held_out=traced("held_out") if variant.learns_from == "references" else None,
                target=spec.target,
                seed=spec.seed,
                policy=deciding_policy(profile, spec.variant),
                **how_it_learns(profile, spec.variant),
                **variant.options(model.network.config.hidden_size),
            )
            save_classifier(
                classifier,
                spec.path(profile),
                model.fingerprint,
                key=key,
                curve=curve,
                tokens=len(training_trace),
                **asdict(spec),
            )


def deciding_policy(profile: Profile, rule: str):
    """How a rule that learns from predictions decides: its layers and its pruning; None for other rules."""
    if RULES[rule].classifier.learns_from == "references":
        return None
    any_measure = {rule: "softmax_margin"}
    return RULES[rule].policy(1.0, profile.results.model_dump(), any_measure)
