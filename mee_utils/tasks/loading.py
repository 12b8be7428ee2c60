"""`load_task`: a corpus as inputs, references and a way to score texts, whatever it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from ..errors import CompanionError, check_choice
from . import layouts, made, scores, sources
from .made import Span


@dataclass(frozen=True)
class Task:
    """One split of one corpus, ready to run.

    Attributes:
        name: "question_answering", "summarization", "translation" or "long_document_summarization".
        source: where it came from ("made", a path or a hub id).
        split: the split.
        inputs: prompts, one an example.
        references: the accepted outputs of each example; the first is the training target.
        spans: made data only: for each example the difficulty of every word of its target.
        digest: sha256 over what was read, for manifests.
    """

    name: str
    source: str
    split: str
    inputs: list[str]
    references: list[list[str]]
    digest: str
    spans: list[tuple[Span, ...]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def targets(self) -> list[str]:
        """The first reference of every example."""
        return [references[0] for references in self.references]

    @property
    def metric(self) -> str:
        """The metric that figures of this task show."""
        return scores.PRIMARY[self.name]

    def score(self, texts: Sequence[str], examples: dict[str, np.ndarray] | None = None) -> dict[str, float]:
        """Scores one output an example. Returns metric -> percent (see `mee_utils.tasks.scores`).

        `examples` is what `score_examples` returned for the same texts, where it is known already.
        """
        self._check_length(texts)
        return scores.corpus(self.name, texts, self.references, examples)

    def score_examples(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores every output by itself. Returns metric -> array `[example]`, in percent."""
        self._check_length(texts)
        return scores.per_example(self.name, texts, self.references)

    def _check_length(self, texts: Sequence[str]) -> None:
        if len(texts) != len(self):
            raise CompanionError(f"{len(texts)} texts for {len(self)} examples: score one output for each input.")


def load_task(
    name: str,
    source: str | Path = "made",
    split: str = "validation",
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    config: str | None = None,
    languages: tuple[str, str] = ("en", "fr"),
    folder: str | None = None,
) -> Task:
    """Loads one split of a corpus.

    Args:
        name: "question_answering", "summarization", "translation" or "long_document_summarization".
        source: "made" (seeded, offline, known difficulty); a jsonl, jsonl.gz, parquet or csv file; a folder with one file a
            split; or the id of a data set on the hub. All but "made" in the hub's columns (`layouts.LAYOUTS`).
        split: "train", "validation" or "test".
        limit: the number of examples to take from the beginning; required for "made", which never ends.
        seed: which made examples; the split an example belongs to does not depend on it.
        revision: a commit or tag of a hub data set.
        config: the configuration of a hub data set, such as "3.0.0" for CNN/DailyMail.
        languages: source and target language of a translation corpus.
        folder: the folder of a hub data set's repository that holds the splits, in place of `config`.

    Raises:
        CompanionError: unknown task or split, missing or empty file, columns of another task, bad limit.
    """
    check_choice("task", name, layouts.LAYOUTS)
    check_choice("split", split, made.SPLITS)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise CompanionError(f"limit={limit!r}: the number of examples must be a whole number of at least 1.")
    if str(source) == "made":
        return _made_task(name, split, limit, seed)
    path = Path(source).expanduser()
    if path.exists():
        rows, digest = sources.local_rows(path, split)
    elif _looks_like_a_path(str(source)):
        raise CompanionError(f"{source} does not exist: give a file, a folder, a hub id, or \"made\".")
    else:
        rows, digest = sources.hub_rows(str(source), split, revision, config, folder, limit)
    return _corpus_task(name, str(source), split, rows.head(limit) if limit else rows, digest, languages)


def is_hub_id(source: str) -> bool:
    """Whether `load_task` would ask the hub for this source."""
    return source != "made" and not Path(source).expanduser().exists() and not _looks_like_a_path(source)


def shortened(task: Task, tokenizer, tokens: int) -> Task:
    """The task with every input cut to its first `tokens` tokens, end token included; inputs that fit stay the same text."""
    whole = tokenizer(task.inputs, verbose=False).input_ids  # the tokenizer would warn of what is cut here
    cut = [text if len(ids) <= tokens else tokenizer.decode(ids[: tokens - 1], skip_special_tokens=True)
           for text, ids in zip(task.inputs, whole, strict=True)]  # fmt: skip
    return replace(task, inputs=cut)


def _looks_like_a_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith((".gz", ".jsonl", ".csv", ".parquet"))


def _made_task(name: str, split: str, limit: int | None, seed: int) -> Task:
    if limit is None:
        raise CompanionError('source="made" never ends: set limit to the number of examples you want.')
    drawn = list(islice(made.examples(name, split, seed), limit))
    read = next(layout for layout in layouts.LAYOUTS[name] if set(layout.columns) <= set(drawn[0].columns)).read
    inputs = [read(example.columns, ("en", "fr"))[0] for example in drawn]
    digest = hashlib.sha256(json.dumps([e.columns for e in drawn], sort_keys=True).encode()).hexdigest()
    return Task(name, "made", split, inputs, [[e.target] for e in drawn], digest, [e.spans for e in drawn])


def _corpus_task(name: str, source: str, split: str, rows, digest: str, languages: tuple[str, str]) -> Task:
    layout = layouts.find_layout(name, list(rows.columns), source)
    inputs, references = [], []
    for number, row in enumerate(rows.to_dict("records"), start=1):
        missing = [column for column in layout.columns if row[column] is None or row[column] != row[column]]
        if missing:
            raise CompanionError(f'{source}, row {number}: column "{missing[0]}" is empty; remove the row or fill it.')
        text, accepted = layout.read(row, languages)
        if not accepted:
            raise CompanionError(f"{source}, row {number} has no reference; remove the row or fill it.")
        inputs.append(text)
        references.append(list(accepted))
    return Task(name, source, split, inputs, references, digest)


