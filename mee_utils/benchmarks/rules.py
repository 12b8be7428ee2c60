"""`make bench`, second part: a profile's own models at the settings that notebooks found, against full depth.

Decoding is timed as users run it: in single precision, alone and in batches. Policies take turns, round by
round, and every ratio is taken within a round; a first round warms up and is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd

from ..common.errors import CompanionError
from ..study.results import output_root

QUALITY = 0.99  # of the full score: notebook 06's question
FEW = 16  # examples that are decoded one at a time


def reductions(
    profile_name: str, data: str | None, rounds: int, progress: Callable[[str], None] = print
) -> pd.DataFrame:
    """Every row of notebook 03's complete table, one at a time and in batches.

    Raises:
        CompanionError: notebook 03 has not been run for this profile.
    """
    from ..study.catalogue import PRUNED, rule_policies
    from ..study.experiment import Experiment

    folder = output_root() / profile_name / "03_pruning"
    if not (folder / "complete_table.csv").exists():
        missing = f"{folder} has no complete_table.csv"
        raise CompanionError(f"{missing}: run notebook 03_pruning for profile {profile_name} first.")
    wanted = pd.read_csv(folder / "complete_table.csv")
    settings = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["parameters"]
    experiment, tables = Experiment.reader(profile_name, data), []
    forms = [form for form in ("unpruned", *PRUNED) if form in set(wanted.reduction)]
    policies = rule_policies(forms, settings["threshold"], settings)
    labels = pd.DataFrame({"reduction": list(policies)})
    for name, model in experiment.models(list(dict.fromkeys(wanted.model))).items():
        for task in experiment.tasks(settings["limit"]).values():
            for batch in (1, settings["batch_size"]):
                progress(f"{profile_name}, {name}, {task.name}: reductions, batch {batch}")
                length = settings["max_new_tokens"]
                found = speeds(model, task, list(policies.values()), length, batch, rounds)
                tables.append(_labelled(experiment, name, task, batch, labels, found))
    return pd.concat(tables, ignore_index=True)


def results(
    profile_name: str, data: str | None, rounds: int, progress: Callable[[str], None] = print
) -> pd.DataFrame:
    """The settings that notebook 06 speaks of (`study.verdicts.timed`); only the main model in batches.

    Raises:
        CompanionError: the rules of this profile have not been decoded.
    """
    from ..exits.classifiers import load_classifier
    from ..study.catalogue import MAIN_MODEL, RULES
    from ..study.experiment import Experiment
    from ..study.result_tables import read_sweep
    from ..study.train_classifiers import train_classifiers
    from ..study.verdicts import timed

    experiment = Experiment.reader(profile_name, data)
    wanted = timed(read_sweep(profile_name), MAIN_MODEL, QUALITY)
    settings, files = experiment.profile.results, train_classifiers(experiment.profile, data)
    tables = []
    for name, model in experiment.models(list(dict.fromkeys(wanted.model))).items():
        classifiers = {
            job.variant: load_classifier(path, model).float()
            for job, path in files.items()
            if (job.model, job.target, job.seed) == (name, "consistency", 0)
        }
        options = settings.model_dump()
        options["exit_layer"] = experiment.profile.training.exit_layer(name, model.layers)
        limit = settings.examples if name == MAIN_MODEL else settings.other_examples
        for task in experiment.tasks(limit).values():
            labels = wanted[(wanted.model == name) & (wanted.task == task.name)][["rule", "threshold"]]
            rows = labels.itertuples(index=False)
            policies = [RULES[row.rule].policy(row.threshold, options, classifiers) for row in rows]
            for batch in (1, settings.batch_size) if name == MAIN_MODEL else (1,):
                progress(f"{profile_name}, {name}, {task.name}: {len(policies)} settings, batch {batch}")
                found = speeds(model, task, policies, settings.max_new_tokens, batch, rounds)
                tables.append(_labelled(experiment, name, task, batch, labels, found))
    return pd.concat(tables, ignore_index=True)


PARTS = {"reductions": reductions, "results": results}


def _labelled(experiment, name: str, task, batch: int, labels: pd.DataFrame, found: pd.DataFrame):
    from ..study.inputs import weights_digest

    profile = experiment.profile
    where = pd.DataFrame({"profile": profile.name, "task": task.name, "model": name, "batch": [batch]})
    table = where.merge(labels, how="cross").join(found)
    return table.assign(weights=weights_digest(profile, name)[:12])


def speeds(model, task, policies: list, max_new_tokens: int, batch: int, rounds: int) -> pd.DataFrame:
    """Policies against full depth on one task, in single precision.

    Args:
        model: from `load_model`; it is turned to single precision.
        task: its inputs; at batch 1 the first 16.
        policies: what is timed.
        max_new_tokens: of every output.
        batch: rows at a time.
        rounds: how often each runs, the warm-up not counted.

    Returns:
        One row a policy, medians over rounds: `seconds`, `samples_per_second`, `tokens_per_second`, `speed`
        (tokens a second, full depth being 1) with `lowest` and `highest`, and `samples_speed` (samples a
        second likewise: what longer or shorter outputs do to it included).
    """
    from ..decoding.generation import generate

    model.network.float()
    inputs = task.inputs[:FEW] if batch == 1 else task.inputs
    options = dict(max_new_tokens=max_new_tokens, batch_size=batch, progress=False)
    times = np.empty((rounds + 1, 1 + len(policies), 2))  # [round, policy, (seconds, tokens)]
    for row in times:
        for place, policy in enumerate([None, *policies]):
            out = generate(model, inputs, policy, **options)
            row[place] = out.seconds, out.tokens
    seconds = times[1:, :, 0]
    rate = times[1:, :, 1] / seconds
    speed, median = rate[:, 1:] / rate[:, :1], np.median(seconds, axis=0)[1:]
    return pd.DataFrame(
        {
            "seconds": median,
            "samples_per_second": len(inputs) / median,
            "tokens_per_second": np.median(rate, axis=0)[1:],
            "speed": np.median(speed, axis=0),
            "lowest": speed.min(axis=0),
            "highest": speed.max(axis=0),
            "samples_speed": np.median(seconds[:, :1] / seconds[:, 1:], axis=0),
        }
    )
