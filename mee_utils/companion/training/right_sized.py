"""Exits from a decoder of the right size: do they add anything where it is only as deep as the tasks need?

A decoder of fewer layers, trained for exits with CALM's loss (`training.rivals`), is decoded with a few
rules. Rules and thresholds are fixed before a test example is looked at: of each rule the thresholds at which
a replay of validation examples keeps given shares of the predictions.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ... import EncoderCache, Model, Task, trace
from ...analysis.beside_full import beside_full
from ...analysis.comparison import decode, examples_of
from ...analysis.threshold_choice import thresholds_for
from ...traces.replay import replay_policy
from .. import inputs
from ..catalogue import RULES
from ..profiles import Profile
from ..running.jobs import Job
from .rivals import load_rival

RULES_DECODED = ("softmax_margin", "few", "entropy", "hidden_similarity", "elbert", "rising_fixed")
SHARES = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9)  # of the predictions that a threshold keeps


def exits_of_right_sized(profile: Profile, job: Job) -> list[dict]:
    """One row a task, rule and share: `threshold`, what is `kept` of vanilla's score, FLOPs beside vanilla's.

    The first row of a task is the model's own full depth. What stands beside vanilla has a paired interval.
    """
    model = load_rival(profile, job)
    vanilla = inputs.load_profile_model(profile, "vanilla")
    rows = []
    for part in zip(
        inputs.load_tasks(profile, "validation", profile.results.validation),
        inputs.load_tasks(profile, "test", profile.results.test),
        strict=True,
    ):
        rows += _rows_of_task(profile, model, vanilla, *part)
    return [{"model": job.model, "seed": job.seed, "decoder_layers": model.layers} | row for row in rows]


def _rows_of_task(profile: Profile, model: Model, vanilla: Model, validation: Task, test: Task) -> list[dict]:
    settings = profile.results
    options = {"max_new_tokens": settings.max_new_tokens, "batch_size": settings.batch_size}
    baseline = examples_of(decode(vanilla, test, None, **options))
    options["encodings"] = EncoderCache()
    tried = {("full_depth", 1.0, np.nan): decode(model, test, None, **options)}
    for rule, (policy, thresholds) in _thresholds(profile, model, vanilla, validation).items():
        for share, threshold in zip(SHARES, thresholds, strict=True):
            decoded = decode(model, test, replace(policy, threshold=threshold), **options)
            tried[rule, share, threshold] = decoded
    rows = []
    beside = beside_full([examples_of(decoding) for decoding in tried.values()], baseline)
    for number, ((rule, share, threshold), decoding) in enumerate(tried.items()):
        columns = beside["retained"].item(number).columns("kept", "kept_")
        del columns["kept_draws"]
        rows.append(
            {
                **{"task": test.name, "rule": rule, "same_predictions": share, "threshold": threshold},
                **{name: float(value) for name, value in columns.items()},
                "relative_flops": float(beside["flops_share"].value[number]),
                "relative_whole": float(beside["whole_share"].value[number]),
                "score": decoding.score,
                "mean_exit_layer": decoding.mean_exit_layer,
            }
        )
    return rows


def _thresholds(profile: Profile, model: Model, vanilla: Model, validation: Task) -> dict:
    """Rule -> its policy, and the thresholds at which it keeps `SHARES` of the predictions.

    Tokens may exit from as deep on, relative to all layers, as from vanilla.
    """
    options = profile.results.model_dump()
    options["min_layer"] = ceil(options["min_layer"] * model.layers / vanilla.layers)
    found = {}
    with TemporaryDirectory() as folder:
        at_full_depth = trace(
            model,
            validation.inputs,
            max_new_tokens=profile.results.max_new_tokens,
            states=Path(folder) / "states.npy",
        )
        for rule in RULES_DECODED:
            policy = RULES[rule].policy(None, options)
            replayed = replay_policy(at_full_depth, policy, model)
            found[rule] = policy, thresholds_for(replayed, SHARES).threshold
    return found
