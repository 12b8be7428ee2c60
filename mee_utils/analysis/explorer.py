"""The explorer: move a threshold and see, token by token, where a sentence exits and what it says.

Nothing is foretold: each sentence is decoded for real at every threshold of the slider, once with exits as
they are and once with exits verified, and every decision is kept. Only the layers behind an exit, which were
not run, show what full depth would say there. The page holds all of it and asks no server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from html import escape
from itertools import product
from math import isfinite
from pathlib import Path
from string import Template
from textwrap import wrap

import numpy as np
import yaml

from ..common.errors import CompanionError, check_whole
from ..common.files import PACKAGE, complete_file
from ..decoding.generation import Generation, generate
from ..decoding.inputs import EncoderCache, check_inputs
from ..decoding.token import on_host
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..tasks.loading import Task
from ..traces.replay import check_policy
from ..traces.trace import trace
from .lossless import KEPT, LAST, REPLACED, one_output
from .monotonicity import token_text

MOST, WIDE = 16, 110  # sentences at a time; characters in a line
RULES = ("softmax_margin", "hidden_similarity", "rising_top1")
AGREES, DIFFERS, ALL = "the last layer agrees", "the last layer differs", "no exit"
OF_DRAFTS = {KEPT: AGREES, REPLACED: DIFFERS, LAST: ALL}
CHOICES = ("task", "model", "rule", "sentence", "exits")
FILES = {name: PACKAGE / "analysis" / f"explorer.{name}" for name in ("yaml", "html")}


@dataclass(frozen=True)
class Explorer:
    """A page of `runs`, as the function of this name returns them. JupyterLab shows it, `save` writes it."""

    runs: list[dict] = field(repr=False)

    @property
    def spec(self) -> dict:
        """The page in Vega-Lite: explorer.yaml with its data and parameters."""
        rows: dict[str, int] = {}  # what a token says at every layer -> its number
        number = lambda *said: rows.setdefault(json.dumps(said), len(rows))
        kept = (
            "model",
            "rule",
            "exits",
            "task",
            "sentence",
            "layers",
            "levels",
            "thresholds",
            "flops",
            "same",
        )
        runs = [
            {name: run[name] for name in (*kept, "token", "layer", "fate")}
            | {"about": _about(run), "row": [*map(number, run["said"], run["confidence"])]}
            for run in self.runs
        ]
        inputs = {(run["task"], run["sentence"]): wrap(f"Input: {run['input']}", WIDE) for run in self.runs}
        sets = {
            "inputs": [{"task": task, "sentence": n, "lines": text} for (task, n), text in inputs.items()]
        }
        cells = [json.loads(said) for said in rows]
        sets |= {
            "runs": runs,
            "rows": [{"row": i, "said": a, "confidence": b} for i, (a, b) in enumerate(cells)],
        }
        params, last = [], max(run["levels"][-1] for run in runs)
        for name in CHOICES:
            options = list(dict.fromkeys(run[name] for run in runs))
            bind = {"bind": {"input": "select", "options": options, "name": f"{name} "}}
            params.append({"name": name, "value": options[0]} | (bind if len(options) > 1 else {}))
        slider = {"input": "range", "min": 0, "max": last, "step": 1, "name": "threshold, low to high "}
        params.append({"name": "level", "value": last // 3, "bind": slider})
        views = yaml.safe_load(FILES["yaml"].read_text(encoding="utf-8"))
        return {**views, "datasets": sets, "params": params}

    @property
    def html(self) -> str:
        """The page, with the library that draws it inside."""
        from vl_convert import javascript_bundle

        spec = json.dumps(self.spec, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        page = Template(FILES["html"].read_text(encoding="utf-8"))
        return page.substitute(library=javascript_bundle(), spec=spec)

    def save(self, path: str | Path) -> Path:
        """Writes the page: one file that asks no network for anything."""
        with complete_file(path) as partial:
            partial.write_text(self.html, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 900px; border: 0"></iframe>'


def explore(
    model, inputs: str | Sequence[str] | Task | Mapping[str, Task], policies=None, **options
) -> Explorer:
    """Shows what exits do to some sentences: `explore(model, "translate English to French: ...")`.

    Args:
        model: from `load_model`.
        inputs: a prompt, up to 16 of them, a task of as many, or name -> task.
        policies: an `ExitPolicy`, or name -> `ExitPolicy`, at the thresholds of the slider; by default three
            rules that need no training and may exit from the first layer on.
        options: `levels` of the slider, `max_new_tokens`, and `max_draft` where exits are verified.

    Raises:
        CompanionError: too many inputs, a policy that has no threshold to move, and what `generate` raises.
    """
    return Explorer(runs(model, inputs, policies, **options))


def runs(
    model,
    inputs: str | Sequence[str] | Task | Mapping[str, Task],
    policies: ExitPolicy | Mapping[str, ExitPolicy] | None = None,
    *,
    levels: int = 16,
    max_new_tokens: int = 64,
    max_draft: int = MAX_DRAFT,
) -> list[dict]:
    """Decodes every sentence at every level of the slider; neighbours that decode alike are one run.

    Levels are quantiles of the confidences at full depth; at the last one nothing exits. A run has `CHOICES`,
    its `levels` and their `thresholds`, `text`, `flops` as a share of full depth's, `same` (are the tokens
    full depth's?), and of every token its `layer`, its `fate`, and what is `said` at every layer, with which
    `confidence` (None: nothing was decided there).
    """
    if isinstance(inputs, Task):
        inputs = {inputs.name: inputs}
    if not isinstance(inputs, Mapping):
        inputs = {"": inputs}
    labels = [
        {"task": name.replace("_", " "), "sentence": number, "input": text}
        for name, task in inputs.items()
        for number, text in enumerate(check_inputs(getattr(task, "inputs", task)), start=1)
    ]
    texts = [label["input"] for label in labels]
    if len(texts) > MOST:
        raise CompanionError(f"{len(texts)} sentences are more than a page shows: give at most {MOST}.")
    check_whole("levels", levels, 2)
    if policies is None:
        policies = {name.replace("_", " "): ExitPolicy(name, min_layer=1) for name in RULES}
    if not isinstance(policies, Mapping):
        policies = {check_policy(policies).measure.name.replace("_", " "): policies}
    settings = dict(max_new_tokens=max_new_tokens, batch_size=len(texts), encodings=EncoderCache())
    full, found = generate(model, texts, **settings), []
    final, decode = _traced(model, texts, full), token_text(model.tokenizer)
    for rule, policy in policies.items():
        if check_policy(policy).propagation == "verify":  # done below
            policy = replace(policy, propagation="copy", max_draft="auto")
        _, sure = _decided(model, texts, policy.at_threshold(policy.measure.range[1]), settings)
        thresholds, latest = _thresholds(policy, sure, levels), {}
        for threshold in sorted(set(thresholds)):
            at = policy.at_threshold(threshold)
            taken, seen = _decided(model, texts, at, settings)
            traced = final if taken.token_ids == full.token_ids else _traced(model, texts, taken)
            drafts = replace(at, propagation="verify", max_draft=max_draft)
            verified = generate(model, texts, drafts, **settings), sure, final
            here = [level for level, other in enumerate(thresholds) if other == threshold]
            ways = {"taken": (taken, seen, traced), "verified": verified}
            for (exits, way), (number, label) in product(ways.items(), enumerate(labels)):
                run = {**label, "model": model.name, "rule": rule, "exits": exits, "layers": model.layers}
                run |= _run(*way, full, number, max_draft, decode)
                before = latest.get((exits, number), {})
                if any(before.get(name) != value for name, value in run.items()):
                    before = latest[exits, number] = {**run, "levels": [], "thresholds": []}
                    found.append(before)
                before["levels"] += here
                before["thresholds"] += [threshold] * len(here)
    return found


def _decided(model, texts: list[str], policy: ExitPolicy, settings: dict) -> tuple[Generation, dict]:
    """A decoding, and all of its decisions: (input, position, layer) -> confidence and id."""
    seen, measure = [], copy(policy.measure)

    def confidence(state):
        value = policy.measure.confidence(state)
        ids = state.top1_id if measure.readout else state.full_logits.argmax(-1)  # adds nothing to the FLOPs
        places = np.broadcast_to(state.position, len(state.sequence))
        columns = np.full_like(places, state.layer), on_host(value), on_host(ids)
        seen.extend(zip(*map(np.ndarray.tolist, (state.sequence, places, *columns))))
        return value

    measure.confidence = confidence
    out = generate(model, texts, replace(policy, measure=measure), **settings)
    left = lambda row, place, layer, *_: layer > out.exit_layers[row][place]  # and goes along until others do
    return out, {decision[:3]: decision[3:] for decision in seen if not left(*decision)}


def _thresholds(policy: ExitPolicy, sure: dict, levels: int) -> list[float]:
    """Quantiles of the confidences of full depth, and as the last one a threshold that nothing exceeds."""
    low, high = policy.measure.range
    values = [value for value, _ in sure.values()] or [low]
    found = np.quantile(values, np.linspace(0, 1, levels), method="lower").clip(low, high)
    return [*found[:-1].round(4).tolist(), high if isfinite(high) else float(found[-1])]


def _traced(model, texts: list[str], out: Generation) -> list[np.ndarray]:
    """`[token, layer]` for each output: the ids that full depth would say there."""
    found = trace(model, texts, outputs=out.token_ids, batch_size=len(texts))
    return found.by_output(found.top1_id)


def _run(out, decisions: dict, traced: list, full: Generation, number: int, most: int, decode) -> dict:
    """What became of one input; see `runs`."""
    ids, layers, said = out.token_ids[number], out.exit_layers[number].tolist(), traced[number].copy()
    depth, drafts = said.shape[1], out.drafts and out.drafts[number]
    if drafts:
        judged = one_output(out, number, most, depth, decode).query("fate != 'dropped'")
        layers, fates = judged.layer.tolist(), [OF_DRAFTS[fate] for fate in judged.fate]
    else:
        agrees = [AGREES if token == last else DIFFERS for token, last in zip(ids, said[:, -1])]
        fates = [ALL if layer == depth else fate for layer, fate in zip(layers, agrees)]
        said[range(len(ids)), np.array(layers) - 1] = ids
    confidence = np.full(said.shape, None)
    for place, layer in np.ndindex(said.shape):
        if decision := decisions.get((number, place, layer + 1)):
            confidence[place, layer], said[place, layer] = round(decision[0], 4), decision[1]
    return {
        "text": out.texts[number],
        "full": full.texts[number],
        "same": ids == full.token_ids[number],
        "flops": round(float(out.flops[number] / full.flops[number]), 4),
        "mean_exit_layer": round(float(out.exit_layers[number].mean()), 2),
        "drafts": drafts and [drafts.judged, drafts.kept],
        "token": [decode(token) for token in ids],
        "layer": layers,
        "fate": fates,
        "said": [[decode(int(token)) for token in row] for row in said],
        "confidence": confidence.tolist(),
    }


def _about(run: dict) -> str:
    """What a run costs and says, as the reader is told; in lines."""
    cost = f" · mean exit layer {run['mean_exit_layer']:.1f} of {run['layers']}"
    cost += f" · {run['flops']:.0%} of full depth's FLOPs"
    if run["drafts"]:
        cost += " · {1} of {0} drafts kept".format(*run["drafts"])
    same = "as at full depth" if run["same"] else "not as at full depth"
    says = f"Full depth: {run['full']}", f"With exits: {run['text']} ({same})"
    return "\n".join([cost, *(line for said in says for line in wrap(said, WIDE))])
