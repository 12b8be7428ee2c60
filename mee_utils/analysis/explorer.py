"""The explorer: move a threshold and see, token by token, where a sentence exits and what it predicts.

Each sentence is decoded for real at every threshold of the slider: with exits as they are, with exits
verified, and with copies of the input verified before them (a copied token has layer 0). Only layers behind
an exit, which were not run, show what full depth would predict. Of models that are not decoded with exits
here a trace is replayed (`explorer_replay`). The page needs no server.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from textwrap import wrap

import numpy as np

from ..common.errors import MeeError, check_whole, shown
from ..common.extras import needs_extra
from ..common.files import PACKAGE, check_file, complete_file, read_yaml
from ..decoding.cache import on_host
from ..decoding.generation import Generation, generate
from ..decoding.inputs import EncoderCache, check_inputs
from ..decoding.outputs import Drafts
from ..decoding.token import confidence_of
from ..exits.copies import Copies
from ..exits.policy import MAX_DRAFT, ExitPolicy
from ..models.any_model import AnyModel
from ..models.loading import Model
from ..tasks.loading import Task
from ..traces.replay import check_policy
from ..traces.trace import Trace
from ..traces.tracing import trace
from .explorer_replay import replayed_runs
from .explorer_runs import TAKEN, VERIFIED, WITH_COPIES, fate, merged_runs, threshold_levels
from .monotonicity import token_text

MAX_SENTENCES = 16
LINE_WIDTH = 110  # characters
DEFAULT_RULES = ("softmax_margin", "hidden_similarity", "rising_top1")

CHOICES = ("task", "model", "rule", "sentence", "exits")
LARGE = ("input", "text", "full", "said", "confidence")  # the page has these in a shorter form
VIEWS = PACKAGE / "analysis" / "explorer.yaml"
PAGE = PACKAGE / "analysis" / "explorer.html"

# (sentence from 0, position from 0, layer) -> the confidence there, and the token that is predicted
Decisions = dict[tuple[int, int, int], tuple[float, int]]


@dataclass(frozen=True, repr=False)
class Explorer:
    """A page; JupyterLab shows it, `save` writes it.

    A run is a decoding at one or more `levels` of the slider. It has `CHOICES`, `thresholds` of its levels,
    `text`, `flops` as a share of full depth's, `same` (are the tokens full depth's?), and of every token its
    `layer`, its `fate`, and what each layer predicts (`said`) with which `confidence` (None: no decision).
    """

    runs: list[dict]

    @property
    def spec(self) -> dict:
        """The page in Vega-Lite: explorer.yaml with its data and parameters."""
        # what each layer predicts for a token, as JSON -> number of the row; runs share rows
        row_numbers: dict[str, int] = {}
        runs = []
        for run in self.runs:
            same = "as at full depth" if run["same"] else "not as at full depth"
            lines = [
                *wrap(f"Full depth: {run['full']}", LINE_WIDTH),
                *wrap(f"With exits: {run['text']} ({same})", LINE_WIDTH),
            ]
            numbers = []
            for said, confidence in zip(run["said"], run["confidence"], strict=True):
                row = json.dumps({"said": said, "confidence": confidence})
                numbers.append(row_numbers.setdefault(row, len(row_numbers)))
            small = {name: value for name, value in run.items() if name not in LARGE}
            runs.append({**small, "lines": "\n".join(lines), "row": numbers})
        rows = [{"row": number, **json.loads(row)} for row, number in row_numbers.items()]
        sentences = {(run["task"], run["sentence"]): run["input"] for run in self.runs}
        inputs = [
            {"task": task, "sentence": number, "lines": wrap(f"Input: {text}", LINE_WIDTH)}
            for (task, number), text in sentences.items()
        ]
        datasets = {"runs": runs, "rows": rows, "inputs": inputs}
        return read_yaml(VIEWS) | {"datasets": datasets, "params": self._params()}

    def _params(self) -> list[dict]:
        """A menu for each of `CHOICES` that leaves a choice, and the slider."""
        params = []
        for name in CHOICES:
            options = list(dict.fromkeys(run[name] for run in self.runs))
            param = {"name": name, "value": options[0]}
            if len(options) > 1:
                param["bind"] = {"input": "select", "options": options, "name": f"{name} "}
            params.append(param)
        last = max(run["levels"][-1] for run in self.runs)
        slider = {"input": "range", "min": 0, "max": last, "step": 1, "name": "threshold, low to high "}
        params.append({"name": "level", "value": last // 2, "bind": slider})
        return params

    @property
    def html(self) -> str:
        """The page, with the library that draws it inside."""
        with needs_extra("notebooks"):
            from vl_convert import javascript_bundle

        spec = json.dumps(self.spec, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        page = Template(PAGE.read_text(encoding="utf-8"))
        return page.substitute(library=javascript_bundle(), spec=spec)

    def save(self, path: str | Path) -> Path:
        """Writes the page: one file that uses no network. `MeeError` where it cannot be written."""
        path = check_file("path", path, "explorer.html")
        with complete_file(path) as partial:
            partial.write_text(self.html, encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return f"Explorer({len(self.runs)} runs; JupyterLab shows them, save(path) writes a page)"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 900px; border: 0"></iframe>'


def explore(
    model: Model | AnyModel,
    inputs: str | Sequence[str] | Task | Mapping[str, Task],
    policies: ExitPolicy | Mapping[str, ExitPolicy] | None = None,
    *,
    levels: int = 16,
    max_new_tokens: int = 64,
    max_draft: int = MAX_DRAFT,
) -> Explorer:
    """Shows what exits do to some sentences: `explore(model, "translate English to French: ...")`.

    Args:
        model: what decodes. An `AnyModel` is traced, and its exits are replayed: each token is what its exit
            predicts given the full-depth prefix.
        inputs: a prompt, up to 16 of them, a task of as many, or name -> task.
        policies: an `ExitPolicy`, or name -> `ExitPolicy`; by default three rules that need no training and
            may exit from the first layer on. Their thresholds are the slider's.
        levels: how many thresholds: quantiles of the confidences at full depth; at the last nothing exits.
        max_new_tokens: as in `generate`.
        max_draft: as in `ExitPolicy`.

    Raises:
        MeeError: too many inputs, a policy without a threshold, and as `generate` does.
    """
    sentences = _sentences(inputs)
    check_whole("levels", levels, 2)
    check_whole("max_draft", max_draft)
    if isinstance(model, AnyModel):
        texts = [sentence["input"] for sentence in sentences]
        traced = trace(model, texts, max_new_tokens=max_new_tokens)
        return _explorer_of_trace(traced, model.tokenizer, sentences, policies, levels, max_draft)
    decoding = _Decoding(model, sentences, max_new_tokens)
    runs = []
    for rule, policy in _policies(policies).items():
        runs += decoding.runs(rule, policy, levels, max_draft)
    return Explorer(runs)


def explore_trace(
    traced: Trace,
    tokenizer,
    policies: ExitPolicy | Mapping[str, ExitPolicy] | None = None,
    *,
    levels: int = 16,
    max_draft: int = MAX_DRAFT,
) -> Explorer:
    """The explorer of a trace of a model's own outputs; no model is run.

    Args:
        traced: of any model, at most 16 inputs.
        tokenizer: of the model.
        policies: as in `explore`; rules that look at states cannot be replayed without the model.
        levels, max_draft: as in `explore`.
    """
    check_whole("levels", levels, 2)
    check_whole("max_draft", max_draft)
    if not isinstance(traced, Trace):
        raise MeeError(f"traced={shown(traced)}: give a Trace, from trace(...) or load_trace(...).")
    if not hasattr(tokenizer, "decode"):
        raise MeeError(f"tokenizer={shown(tokenizer)}: give the model's tokenizer, model.tokenizer.")
    traced.check_own(len(traced.source_tokens))
    sentences = _sentences([tokenizer.decode(ids, skip_special_tokens=True) for ids in traced.source_ids])
    return _explorer_of_trace(traced, tokenizer, sentences, policies, levels, max_draft)


def _explorer_of_trace(traced, tokenizer, sentences, policies, levels: int, max_draft: int) -> Explorer:
    runs = []
    for rule, policy in _policies(policies).items():
        labels = [{**sentence, "model": traced.model, "rule": rule} for sentence in sentences]
        runs += replayed_runs(traced, tokenizer, policy, labels, levels, max_draft)
    return Explorer(runs)


def _sentences(inputs) -> list[dict]:
    """The sentences, each with its `task`, `sentence` (a number) and `input`."""
    tasks = inputs if isinstance(inputs, Mapping) else {getattr(inputs, "name", ""): inputs}
    sentences = []
    for name, task in tasks.items():
        texts = check_inputs(getattr(task, "inputs", task))
        for number, text in enumerate(texts, start=1):
            sentences.append({"task": name.replace("_", " "), "sentence": number, "input": text})
    if len(sentences) > MAX_SENTENCES:
        raise MeeError(
            f"{len(sentences)} sentences are more than a page shows: give at most {MAX_SENTENCES}."
        )
    return sentences


def _policies(policies) -> dict[str, ExitPolicy]:
    """Policies by the name of their rule, none of them verified."""
    if policies is None:
        policies = {name.replace("_", " "): ExitPolicy(name, min_layer=1) for name in DEFAULT_RULES}
    if not isinstance(policies, Mapping):
        policies = {check_policy(policies).measure.name.replace("_", " "): policies}
    unverified = {}
    for rule, policy in policies.items():
        verified = check_policy(policy).propagation == "verify"
        unverified[rule] = replace(policy, propagation="copy", max_draft="auto") if verified else policy
    return unverified


class _Decoding:
    """Decodes the sentences of a page; `full` is their decoding at full depth."""

    def __init__(self, model, sentences: list[dict], max_new_tokens: int):
        self.model = model
        self.sentences = sentences
        self.texts = [sentence["input"] for sentence in sentences]
        self.max_new_tokens = max_new_tokens
        self.encodings = EncoderCache()
        self.full = self.generate(None)
        self.full_ids = self.full_depth_ids(self.full)
        self.token_text = token_text(model.tokenizer)

    def generate(self, policy: ExitPolicy | None) -> Generation:
        """Decodes all sentences at once; at full depth without a policy."""
        return generate(
            self.model,
            self.texts,
            policy,
            max_new_tokens=self.max_new_tokens,
            batch_size=len(self.texts),
            encodings=self.encodings,
        )

    def full_depth_ids(self, generation: Generation) -> list[np.ndarray]:
        """What full depth predicts at each layer along some outputs, `[token, layer]` for each of them."""
        along = trace(self.model, self.texts, outputs=generation.token_ids, batch_size=len(self.texts))
        return along.by_output(along.top1_id)

    def runs(self, rule: str, policy: ExitPolicy, levels: int, max_draft: int) -> list[dict]:
        """The runs of one rule at all levels of the slider; see `Explorer`."""
        recorded, decisions = _recorded(policy.at_threshold(policy.measure.range[1]))
        self.generate(recorded)  # nothing exits
        confidences = [confidence for confidence, _ in decisions.values()]

        def described(threshold: float) -> dict[str, list[dict]]:
            taken = policy.at_threshold(threshold)
            verified = replace(taken, propagation="verify", max_draft=max_draft)
            copying = replace(verified, copies=Copies())
            ways = {TAKEN: taken, VERIFIED: verified, WITH_COPIES: copying}
            return {way: self.described(policy) for way, policy in ways.items()}

        labels = [{**sentence, "model": self.model.name, "rule": rule} for sentence in self.sentences]
        return merged_runs(labels, threshold_levels(policy, confidences, levels), described)

    def described(self, policy: ExitPolicy) -> list[dict]:
        """What became of each sentence, decoded with a policy; see `Explorer`."""
        recorded, decisions = _recorded(policy)
        generation = self.generate(recorded)
        same = policy.propagation == "verify" or generation.token_ids == self.full.token_ids
        full_ids = self.full_ids if same else self.full_depth_ids(generation)
        return [
            self._sentence(generation, number, full_depth, decisions)
            for number, full_depth in enumerate(full_ids)
        ]

    def _sentence(
        self, generation: Generation, number: int, full_depth: np.ndarray, decisions: Decisions
    ) -> dict:
        """What became of one sentence; `full_depth` `[token, layer]` is what full depth predicts there."""
        ids = generation.token_ids[number]
        exit_layers = generation.exit_layers[number]
        drafts = generation.drafts[number] if generation.drafts else None
        said = full_depth.copy()  # up to the exit what was decoded, behind it full depth's
        if drafts:
            layers, decided = _as_drafted_last(drafts, len(ids))
            agrees = np.array(layers) == exit_layers
        else:
            layers = decided = exit_layers.tolist()
            agrees = np.array(ids) == full_depth[:, -1]
            said[np.arange(len(ids)), exit_layers - 1] = ids
        confidence = np.full(said.shape, None)  # None: nothing was decided
        for position, last in enumerate(decided):
            for layer in range(1, last + 1):
                if (number, position, layer) in decisions:
                    seen, token_id = decisions[number, position, layer]
                    confidence[position, layer - 1] = round(seen, 4)
                    said[position, layer - 1] = token_id
        depth = said.shape[1]
        fates = [fate(layer, depth, right) for layer, right in zip(layers, agrees.tolist(), strict=True)]
        return {
            "text": generation.texts[number],
            "full": self.full.texts[number],
            "same": ids == self.full.token_ids[number],
            "flops": round(float(generation.flops[number] / self.full.flops[number]), 4),
            "layers": depth,
            "mean_exit_layer": round(float(exit_layers.mean()), 2),
            "drafts": [drafts.verified, drafts.accepted] if drafts else None,
            "layer": layers,
            "fate": fates,
            "token": [self.token_text(token_id) for token_id in ids],
            "said": [[self.token_text(int(token_id)) for token_id in of_token] for of_token in said],
            "confidence": confidence.tolist(),
        }


def _as_drafted_last(drafts: Drafts, length: int) -> tuple[list[int], list[int]]:
    """The layer of each token of an output when it was last drafted, and up to which layer that was decided.

    In a round of copies nothing is decided.
    """
    latest = dict(zip(drafts.positions.tolist(), range(len(drafts.positions)), strict=True))
    runs = [latest[position] for position in range(length)]
    layers = drafts.exit_layers[runs]
    of_copies = drafts.in_round[drafts.exit_layers == 0]
    decided = np.where(np.isin(drafts.in_round[runs], of_copies), 0, layers)
    return layers.tolist(), decided.tolist()


def _recorded(policy: ExitPolicy) -> tuple[ExitPolicy, Decisions]:
    """The policy with a measure that writes down what it returns; where a token is drafted again, anew."""
    decisions: Decisions = {}

    def confidence(state) -> np.ndarray:
        found = confidence_of(policy.measure, state)
        # logits for the page alone are not counted among the FLOPs
        ids = on_host(state.top1_id if policy.measure.readout else state.full_logits.argmax(-1))
        positions = np.broadcast_to(state.position, len(ids)).tolist()
        for row, number in enumerate(state.sequence.tolist()):
            decisions[number, positions[row], state.layer] = float(found[row]), int(ids[row])
        return found

    measure = copy.copy(policy.measure)
    measure.confidence = confidence
    return replace(policy, measure=measure), decisions
