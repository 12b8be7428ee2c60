"""The explorer: move a threshold and see, token by token, where a sentence exits and what it says.

Each sentence is decoded for real at every threshold of the slider, with exits as they are and with exits
verified. Only layers behind an exit, which were not run, show what full depth would say. No server is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from math import isfinite
from pathlib import Path
from string import Template
from textwrap import wrap

import numpy as np

from ..common.errors import MeeError, check_whole
from ..common.files import PACKAGE, complete_file, read_yaml
from ..decoding.generation import Generation, generate
from ..decoding.inputs import EncoderCache, check_inputs
from ..decoding.token import on_host
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..tasks.loading import Task
from ..traces.replay import check_policy
from ..traces.trace import trace
from .monotonicity import token_text

MOST, WIDE = 16, 110  # sentences at a time; characters in a line
RULES = ("softmax_margin", "hidden_similarity", "rising_top1")
AGREES, DIFFERS, ALL = "the last layer agrees", "the last layer differs", "no exit"
CHOICES = ("task", "model", "rule", "sentence", "exits")
LARGE = ("input", "text", "full", "said", "confidence")  # the page has these in a shorter form
VIEWS, PAGE = (PACKAGE / "analysis" / f"explorer.{kind}" for kind in ("yaml", "html"))


@dataclass(frozen=True, repr=False)
class Explorer:
    """A page; JupyterLab shows it, `save` writes it.

    A run is a decoding at one or more `levels` of the slider. It has `CHOICES`, `thresholds` of its levels,
    `text`, `flops` as a share of full depth's, `same` (are the tokens full depth's?), and of every token its
    `layer`, its `fate`, and what is `said` at every layer, with which `confidence` (None: nothing decided).
    """

    runs: list[dict]

    @property
    def spec(self) -> dict:
        """The page in Vega-Lite: explorer.yaml with its data and parameters."""
        rows: dict[str, int] = {}  # what a token says at every layer, which runs share -> its number
        number = lambda *said: rows.setdefault(json.dumps(said), len(rows))
        runs, inputs, params = [], {}, []
        for run in self.runs:
            inputs[run["task"], run["sentence"]] = wrap(f"Input: {run['input']}", WIDE)
            same = f"With exits: {run['text']} ({'' if run['same'] else 'not '}as at full depth)"
            lines = [*wrap(f"Full depth: {run['full']}", WIDE), *wrap(same, WIDE)]
            said = map(number, run["said"], run["confidence"])
            lean = {name: value for name, value in run.items() if name not in LARGE}
            runs.append(lean | {"lines": "\n".join(lines), "row": [*said]})
        for name in CHOICES:
            options = list(dict.fromkeys(run[name] for run in runs))
            bind = {"bind": {"input": "select", "options": options, "name": f"{name} "}}
            params.append({"name": name, "value": options[0]} | (bind if len(options) > 1 else {}))
        last = max(run["levels"][-1] for run in runs)
        slider = {"input": "range", "min": 0, "max": last, "step": 1, "name": "threshold, low to high "}
        params.append({"name": "level", "value": last // 2, "bind": slider})
        cells = [json.loads(row) for row in rows]
        sets = {
            "runs": runs,
            "rows": [{"row": n, "said": said, "confidence": sure} for n, (said, sure) in enumerate(cells)],
            "inputs": [{"task": task, "sentence": n, "lines": text} for (task, n), text in inputs.items()],
        }
        return read_yaml(VIEWS) | {"datasets": sets, "params": params}

    @property
    def html(self) -> str:
        """The page, with the library that draws it inside."""
        from vl_convert import javascript_bundle

        spec = json.dumps(self.spec, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        page = Template(PAGE.read_text(encoding="utf-8"))
        return page.substitute(library=javascript_bundle(), spec=spec)

    def save(self, path: str | Path) -> Path:
        """Writes the page: one file that asks no network for anything."""
        with complete_file(path) as partial:
            partial.write_text(self.html, encoding="utf-8")
        return Path(path)

    def __repr__(self) -> str:
        return f"Explorer({len(self.runs)} runs; JupyterLab shows them, save(path) writes a page)"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 900px; border: 0"></iframe>'


def explore(
    model,
    inputs: str | Sequence[str] | Task | Mapping[str, Task],
    policies: ExitPolicy | Mapping[str, ExitPolicy] | None = None,
    *,
    levels: int = 16,
    max_new_tokens: int = 64,
    max_draft: int = MAX_DRAFT,
) -> Explorer:
    """Shows what exits do to some sentences: `explore(model, "translate English to French: ...")`.

    Args:
        inputs: a prompt, up to 16 of them, a task of as many, or name -> task.
        policies: an `ExitPolicy`, or name -> `ExitPolicy`; by default three rules that need no training and
            may exit from the first layer on. Their thresholds are the slider's.
        levels: how many thresholds: quantiles of what is seen at full depth; at the last nothing exits.
        max_new_tokens, max_draft: as in `generate` and `ExitPolicy`.

    Raises `MeeError` for too many inputs, a policy without a threshold, and as `generate` does.
    """
    given = inputs if isinstance(inputs, Mapping) else {getattr(inputs, "name", ""): inputs}
    labels = []
    for name, task in given.items():
        for number, text in enumerate(check_inputs(getattr(task, "inputs", task)), start=1):
            labels.append({"task": name.replace("_", " "), "sentence": number, "input": text})
    texts = [label["input"] for label in labels]
    if len(texts) > MOST:
        raise MeeError(f"{len(texts)} sentences are more than a page shows: give at most {MOST}.")
    check_whole("levels", levels, 2)
    if policies is None:
        policies = {name.replace("_", " "): ExitPolicy(name, min_layer=1) for name in RULES}
    if not isinstance(policies, Mapping):
        policies = {check_policy(policies).measure.name.replace("_", " "): policies}
    settings = dict(max_new_tokens=max_new_tokens, batch_size=len(texts), encodings=EncoderCache())
    full, runs = generate(model, texts, **settings), []
    final, decode = _traced(model, texts, full), token_text(model.tokenizer)
    for rule, policy in policies.items():
        if check_policy(policy).propagation == "verify":  # done below
            policy = replace(policy, propagation="copy", max_draft="auto")
        _, sure = _decided(model, texts, policy.at_threshold(policy.measure.range[1]), settings)
        thresholds, latest = _thresholds(policy, sure, levels), {}
        for threshold in sorted(set(thresholds)):
            at = policy.at_threshold(threshold)
            taken = _decided(model, texts, at, settings)
            drafts = replace(at, propagation="verify", max_draft=max_draft)
            said = final if taken[0].token_ids == full.token_ids else _traced(model, texts, taken[0])
            ways = {"taken": (*taken, said), "verified": (*_decided(model, texts, drafts, settings), final)}
            here = [level for level, other in enumerate(thresholds) if other == threshold]
            for (exits, way), (number, label) in product(ways.items(), enumerate(labels)):
                run = {**label, "model": model.name, "rule": rule, "exits": exits}
                run |= _run(*way, full, number, decode)
                before = latest.get((exits, number), {})
                if any(before.get(name) != value for name, value in run.items()):
                    before = latest[exits, number] = {**run, "levels": [], "thresholds": []}
                    runs.append(before)
                before["levels"] += here
                before["thresholds"] += [threshold] * len(here)
    return Explorer(runs)


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
    return out, {decision[:3]: decision[3:] for decision in seen}


def _thresholds(policy: ExitPolicy, sure: dict, levels: int) -> list[float]:
    """Quantiles of the confidences of full depth (equal ones once), and last what nothing exceeds."""
    low, high = policy.measure.range
    values = np.unique([value for value, _ in sure.values()] or [low])
    found = np.quantile(values, np.linspace(0, 1, levels), method="lower").clip(low, high)
    return [*found[:-1].round(4).tolist(), high if isfinite(high) else float(found[-1])]


def _traced(model, texts: list[str], out: Generation) -> list[np.ndarray]:
    """`[token, layer]` for each output: the ids that full depth would say there."""
    found = trace(model, texts, outputs=out.token_ids, batch_size=len(texts))
    return found.by_output(found.top1_id)


def _run(out, decisions: dict, traced: list, full: Generation, number: int, decode) -> dict:
    """What became of one input; see `Explorer`."""
    ids, exits, said = out.token_ids[number], out.exit_layers[number].tolist(), traced[number].copy()
    layers, depth, drafts = exits, said.shape[1], out.drafts and out.drafts[number]
    if drafts:  # of a token drafted again the last
        last = dict(zip(drafts.positions.tolist(), drafts.exit_layers.tolist()))
        layers = [last[place] for place in range(len(ids))]
        agrees = [at == settled for at, settled in zip(layers, exits)]
    else:
        agrees = [token == final for token, final in zip(ids, said[:, -1])]
        said[range(len(ids)), np.array(layers) - 1] = ids
    fates = [ALL if at == depth else AGREES if same else DIFFERS for at, same in zip(layers, agrees)]
    confidence = np.full(said.shape, None)
    for place, layer in np.ndindex(said.shape):
        if layer < layers[place] and (decision := decisions.get((number, place, layer + 1))):
            confidence[place, layer], said[place, layer] = round(decision[0], 4), decision[1]
    run = {"text": out.texts[number], "full": full.texts[number], "same": ids == full.token_ids[number]}
    run |= {"flops": round(float(out.flops[number] / full.flops[number]), 4), "layers": depth}
    run |= {"mean_exit_layer": round(float(out.exit_layers[number].mean()), 2)}
    run |= {"drafts": drafts and [drafts.judged, drafts.kept], "layer": layers, "fate": fates}
    texts = [[decode(int(token)) for token in row] for row in said]
    return run | {"token": [*map(decode, ids)], "said": texts, "confidence": confidence.tolist()}
