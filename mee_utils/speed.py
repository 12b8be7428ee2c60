"""`make bench`, second part: a profile's own models at the settings that notebooks found, exit rules against no exit, by the clock.

Decoding is timed as users run it: in single precision, in batches; rules take turns, round by round, and every ratio is taken within a
round. The first round warms up and is dropped.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from .errors import CompanionError
from .results import output_root

QUALITY = 0.99  # of the full score: notebook 06's question


def _found(profile: str, notebook: str, table: str) -> tuple[Path, dict]:
    """The folder of a notebook's results, which must hold a table, and the parameters that it was run with."""
    folder = output_root() / profile / notebook
    if not (folder / f"{table}.csv").exists():
        raise CompanionError(f"{folder} has no {table}.csv: run notebook {notebook} for profile {profile} first.")
    return folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["parameters"]


def reductions(profile_name: str, data: str | None, rounds: int, progress=print) -> pd.DataFrame:
    """Seconds, samples and tokens a second of every row of notebook 03's complete table.

    Raises:
        CompanionError: notebook 03 has not been run for this profile.
    """
    from .companion import Companion, weights_digest
    from .evaluation.pruning import margins

    folder, settings = _found(profile_name, "03_pruning", "complete_table")
    companion, wanted, rows = Companion.reader(profile_name, data), pd.read_csv(folder / "complete_table.csv"), []
    policies = {form: policy for form, policy in margins(settings).items() if form in set(wanted.reduction)}
    for name, model in companion.models(list(dict.fromkeys(wanted.model))).items():
        model.network.float()
        for task in companion.tasks(settings["limit"]).values():
            for batch in (1, settings["batch_size"]):
                progress(f"{profile_name}, {name}, {task.name}: reductions, batch {batch}")
                for form, row in speeds(model, task, policies, settings, batch, rounds).items():
                    rows.append({"profile": profile_name, "task": task.name, "model": name, "batch": batch, "reduction": form, **row,
                                 "weights": weights_digest(companion.profile, name)[:12]})  # fmt: skip
    return pd.DataFrame(rows)


def results(profile_name: str, data: str | None, rounds: int, progress=print) -> pd.DataFrame:
    """Tokens and samples a second of the settings that notebook 06 speaks of (`mee_utils.evaluation.verdicts.timed`), against no exit.

    The main model is timed one row at a time and in batches, the others one row at a time.

    Raises:
        CompanionError: `python -m mee_utils decode` has not been run for this profile.
    """
    from .companion import Companion, weights_digest
    from .decoded import rule_policy
    from .evaluation.verdicts import timed
    from .exits.classifiers import load_classifier
    from .stored import decodings
    from .train_exits import MAIN, train_classifiers

    companion, wanted, rows = Companion.reader(profile_name, data), timed(decodings(profile_name), MAIN, QUALITY), []
    settings, files = companion.profile.results, train_classifiers(companion.profile, data)
    for name, model in companion.models(list(dict.fromkeys(wanted.model))).items():
        classifiers = {job.variant: load_classifier(path, model).float() for job, path in files.items()
                       if (job.model, job.target, job.seed) == (name, "consistency", 0)}  # fmt: skip
        model.network.float()
        for task in companion.tasks(settings.examples if name == MAIN else settings.other_examples).values():
            chosen = wanted[(wanted.model == name) & (wanted.task == task.name)]
            policies = {(row.rule, row.threshold): rule_policy(row.rule, row.threshold, settings, classifiers) for row in chosen.itertuples()}
            for batch in (1, settings.batch_size) if name == MAIN else (1,):
                progress(f"{profile_name}, {name}, {task.name}: {len(policies)} settings, batch {batch}")
                timings = speeds(model, task, policies, {"max_new_tokens": settings.max_new_tokens}, batch, rounds)
                for (rule, threshold), row in timings.items():
                    rows.append({"profile": profile_name, "task": task.name, "model": name, "batch": batch, "rule": rule, "threshold": threshold, **row,
                                 "weights": weights_digest(companion.profile, name)[:12]})  # fmt: skip
    return pd.DataFrame(rows)


def speeds(model, task, policies: dict, settings: dict, batch: int, rounds: int) -> dict:
    """Policies against no exit on one task, taking turns: label -> `seconds`, `samples_per_second`, `tokens_per_second`, `speed` (tokens a second, of no
    exit) and its range over rounds, `samples_speed` (samples a second, of no exit: what longer or shorter outputs do to it included).

    Args:
        model: from `load_model`.
        task: its inputs; at batch 1 the first 16.
        policies: label -> policy; None, for no exit, is added.
        settings: `max_new_tokens`.
        batch: rows at a time.
        rounds: how often each runs; the warm-up is not counted.
    """
    from .decoding.generation import generate

    few, times = task.inputs[:16] if batch == 1 else task.inputs, []
    for _ in range(rounds + 1):
        found = {
            label: generate(model, few, policy, max_new_tokens=settings["max_new_tokens"], batch_size=batch, progress=False)
            for label, policy in {None: None, **policies}.items()
        }
        times.append({label: (out.seconds, out.tokens / out.seconds) for label, out in found.items()})
    rows = {}
    for label in policies:
        ratio = np.array([time[label][1] / time[None][1] for time in times[1:]])
        seconds = float(np.median([time[label][0] for time in times[1:]]))
        plain = np.array([time[None][0] / time[label][0] for time in times[1:]])
        rows[label] = {
            "seconds": seconds, "samples_per_second": len(few) / seconds, "tokens_per_second": float(np.median([time[label][1] for time in times[1:]])),
            "speed": float(np.median(ratio)), "lowest": float(ratio.min()), "highest": float(ratio.max()),
            "samples_speed": float(np.median(plain)),
        }  # fmt: skip
    return rows
