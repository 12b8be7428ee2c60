"""`load_task`: a corpus as prompts, references and a way to score texts, wherever it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from ..common.errors import MeeError, check_choice, check_whole
from ..common.files import find_local
from ..common.html import table
from . import sources
from .kinds import TASKS, TaskKind
from .synthetic import generator
from .synthetic.words import Span, SyntheticExample


@dataclass(frozen=True)
class Task:
    """One split of one corpus, ready to run."""

    name: str
    source: str
    split: str
    inputs: list[str]  # prompts
    references: list[list[str]]  # the accepted outputs of each, the first being the training target
    digest: str  # sha256 of what was read
    # of synthetic data: the difficulty of every word of a target; the form of a question (`questions.FORMS`)
    spans: list[tuple[Span, ...]] | None = field(default=None, repr=False)
    forms: list[str] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        where = f'source="{self.source}", split="{self.split}"'
        return f'Task("{self.name}", {where}: {len(self)} examples, digest {self.digest[:8]})'

    def _repr_html_(self) -> str:
        return table([*zip(self.inputs, self.targets)], ("input", "reference"), repr(self))

    def __getitem__(self, part: slice) -> Task:
        """Some of the examples; the digest stays that of what was read."""
        lists = ("inputs", "references", "spans", "forms")
        return replace(self, **{name: getattr(self, name) and getattr(self, name)[part] for name in lists})

    @property
    def kind(self) -> TaskKind:
        """What it has in common with other tasks of its name."""
        return TASKS[self.name]

    @property
    def targets(self) -> list[str]:
        """The first reference of every example."""
        return [references[0] for references in self.references]

    @property
    def metric(self) -> str:
        """The metric that figures of this task show."""
        return self.kind.metric

    def score(self, texts: Sequence[str], examples: dict[str, np.ndarray] | None = None) -> dict[str, float]:
        """Scores one output an example, in percent; `examples` are their `score_examples`, if known."""
        return self.kind.score(self._checked(texts), self.references, examples)

    def score_examples(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores every output by itself. Returns metric -> array `[example]`, in percent."""
        return self.kind.score_examples(self._checked(texts), self.references)

    def baseline_texts(self, train: Task) -> dict[str, list[str]]:
        """Outputs of every trivial baseline; some take their text from the training split."""
        return {f.__name__.replace("_", " "): f(self.inputs, train) for f in self.kind.baselines}

    def _checked(self, texts: Sequence[str]) -> Sequence[str]:
        listed = isinstance(texts, Iterable) and not isinstance(texts, str)
        for text in texts if listed else [texts]:
            if not listed or not isinstance(text, str):
                raise MeeError(f"Cannot score {str(text)[:60]!r}: give a list of texts.")
        if len(texts) != len(self):
            raise MeeError(f"{len(texts)} texts for {len(self)} examples: score one output for each.")
        return texts


def load_task(
    name: str,
    source: str | Path = "synthetic",
    split: str = "validation",
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    languages: tuple[str, str] = ("en", "fr"),
    folder: str | None = None,
) -> Task:
    """Loads one split of a corpus for a task, by its `name` one of `TASKS`.

    Args:
        source: "synthetic" (seeded, offline, known difficulty); a jsonl, jsonl.gz, parquet or csv file; a
            folder with one file or folder a split; or the id of a data set on the hub. Columns are the hub's.
        limit: the number of examples to take from the beginning; required for "synthetic", which never ends.
        seed: which synthetic examples; the split of an example does not depend on it.
        revision, folder: of a hub data set: a commit, tag or branch; where its splits are, such as "3.0.0".
        languages: source and target language of a translation corpus.

    Raises `MeeError` for an unknown task or split, a missing, empty or broken file, bad limit or seed.
    """
    kind = TASKS[check_choice("task", name, TASKS)]
    check_choice("split", split, ("train", "validation", "test"))
    limit, seed = limit if limit is None else check_whole("limit", limit), check_whole("seed", seed, 0)
    pair = tuple(languages) if isinstance(languages, tuple | list) else (languages,)
    if len(pair) != 2 or not all(isinstance(language, str) and language for language in pair):
        raise MeeError(f'languages={languages!r}: give source and target, as in ("en", "fr").')
    if str(source) == "synthetic":
        if limit is None:
            raise MeeError('source="synthetic" never ends: set limit to the number of examples.')
        return _drawn(name, name, split, limit, seed)
    if path := find_local(source, 'a file, a folder, a hub id, or "synthetic"'):
        files, digest = sources.local_files(path, split)
    else:
        files, digest = sources.hub_files(str(source), split, revision, folder)
    examples = [kind.read(row, where, pair) for where, row in islice(sources.rows(files), limit)]
    inputs, references = map(list, zip(*examples, strict=True))
    return Task(name, str(source), split, inputs, references, digest)


def shortened(task: Task, tokenizer, tokens: int) -> Task:
    """The task with every input cut to `tokens` tokens, end token included; inputs that fit stay the same."""
    whole = tokenizer(task.inputs, verbose=False).input_ids  # the tokenizer would warn of what is cut here
    cut = lambda ids: tokenizer.decode(ids[: tokens - 1], skip_special_tokens=True)
    fits = [text if len(ids) <= tokens else cut(ids) for text, ids in zip(task.inputs, whole, strict=True)]
    return replace(task, inputs=fits)


def load_lesson(name: str, split: str, limit: int, seed: int = 0) -> Task:
    """Synthetic questions of one lesson (`synthetic.questions.LESSONS`), for pre-training."""
    return _drawn(name, "question_answering", split, limit, seed)


@lru_cache(maxsize=16)
def _first(drawn_as: str, split: str, seed: int, limit: int) -> list[SyntheticExample]:
    """The first synthetic examples of a split; of fifty drawn ones one is for validation, one for test."""
    return list(islice(generator.examples(drawn_as, split, seed), limit))


def _drawn(drawn_as: str, name: str, split: str, limit: int, seed: int) -> Task:
    drawn = _first(drawn_as, split, seed, limit)
    inputs = [TASKS[name].read(example.columns, "synthetic", ("en", "fr"))[0] for example in drawn]
    digest = hashlib.sha256(json.dumps([e.columns for e in drawn], sort_keys=True).encode()).hexdigest()
    references, spans, forms = [[e.target] for e in drawn], [e.spans for e in drawn], [e.form for e in drawn]
    return Task(name, "synthetic", split, inputs, references, digest, spans, forms if any(forms) else None)
