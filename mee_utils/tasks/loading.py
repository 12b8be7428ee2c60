"""`load_task`: a corpus as prompts, references and a way to score texts, wherever it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..common.errors import MeeError, check_choice, check_seed, check_whole, nearest, shown
from ..common.html import table
from ..common.sources import find_local
from . import rows, sources
from .kinds import TASKS, Languages, TaskKind, Unanswerable
from .languages import language_code
from .scores import STANDARD_TOKENIZER, bleu_tokenizer
from .synthetic.generator import GENERATORS
from .synthetic.stored import first_examples
from .synthetic.words import Span


class Example(NamedTuple):
    """One example of a task, as `task[0]` gives it."""

    prompt: str
    references: list[str]  # the accepted outputs, the first being the training target


@dataclass(frozen=True)
class Task:
    """One split of one corpus, ready to run. A slice of it is a smaller task; `task[0]` is an `Example`."""

    name: str
    source: str
    split: str
    inputs: list[str]  # prompts
    references: list[list[str]]  # the accepted outputs of each, the first being the training target
    digest: str  # sha256 of what was read
    # of synthetic data: the difficulty of every word of a target; the form of a question (`questions.FORMS`)
    spans: list[tuple[Span, ...]] | None = field(default=None, repr=False)
    forms: list[str] | None = field(default=None, repr=False)
    language: str = "en"  # of the references: it decides how BLEU splits them
    skipped: int = 0  # unanswerable questions that were left out

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        parts = [f"{len(self)} examples"]
        # nothing behind "summarize:", as in one document of SAMSum
        if blank := sum(not prompt.split(":", 1)[-1].strip() for prompt in self.inputs):
            parts.append(f"{blank} of them without a text")
        if self.skipped:
            parts.append(f"{self.skipped} unanswerable questions left out")
        if self.kind.metric == "bleu" and (tokenizer := bleu_tokenizer(self.language)) != STANDARD_TOKENIZER:
            parts.append(f'BLEU tokenizer "{tokenizer}"')
        parts.append(f"digest {self.digest[:8]}")
        return f'Task("{self.name}", source="{self.source}", split="{self.split}": {", ".join(parts)})'

    def _repr_html_(self) -> str:
        return table([*zip(self.inputs, self.targets, strict=True)], ("input", "reference"), repr(self))

    def __iter__(self) -> Iterator[Example]:
        return map(Example, self.inputs, self.references)

    def __getitem__(self, part: int | slice) -> Task | Example:
        """One example by its number, or a task of a slice of them; the digest stays that of what was read."""
        try:
            if not isinstance(part, slice):
                return Example(self.inputs[part], self.references[part])
            return replace(
                self,
                inputs=self.inputs[part],
                references=self.references[part],
                spans=self.spans and self.spans[part],
                forms=self.forms and self.forms[part],
            )
        except (TypeError, ValueError, IndexError) as error:
            advice = f"give a number from 0 to {len(self) - 1}, or a slice such as [:100]"
            raise MeeError(f"task[{part!r}] of {len(self)} examples: {advice}.") from error

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
        """Scores one output per example, in percent.

        Pass `examples` if `score_examples` was already computed.
        """
        return self.kind.score(self._checked(texts), self.references, examples, self.language)

    def score_examples(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores every output by itself. Returns metric -> array `[example]`, in percent."""
        return self.kind.score_examples(self._checked(texts), self.references, self.language)

    def baseline_texts(self, train: Task) -> dict[str, list[str]]:
        """Outputs of every trivial baseline; some take their text from the training split."""
        if not isinstance(train, Task):
            raise MeeError(f"train={str(train)[:60]!r}: give the training split, from load_task.")
        if not len(train):
            raise MeeError("The training split holds no examples: baselines need at least one.")
        return {
            baseline.__name__.replace("_", " "): baseline(self.inputs, train)
            for baseline in self.kind.baselines
        }

    def _checked(self, texts: Sequence[str]) -> list[str]:
        # sets have no order, and of a dict nobody knows whether keys or values are meant
        ordered = isinstance(texts, Iterable) and not isinstance(texts, str | bytes | Mapping | Set)
        listed = list(texts) if ordered else []
        if not ordered or not all(isinstance(text, str) for text in listed):
            raise MeeError(f"Cannot score {shown(texts)}: give a list of texts.")
        if len(listed) != len(self):
            raise MeeError(f"{len(listed)} texts for {len(self)} examples: score one output for each.")
        if not listed:
            nothing = "This task has no examples, so that there is nothing to score"
            raise MeeError(f"{nothing}: take a larger slice.")
        return listed


def load_task(
    name: str,
    source: str | Path = "synthetic",
    split: str = "validation",
    limit: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    languages: tuple[str, str] = ("en", "fr"),
    folder: str | None = None,
    skip_unanswerable: bool = False,
) -> Task:
    """Loads one split of a corpus for a task, by its `name` one of `TASKS`.

    Args:
        name: one of `TASKS`, such as "translation".
        source: "synthetic" (seeded, offline, known difficulty); a jsonl, jsonl.gz, parquet or csv file; a
            folder with one file or folder for each split; a folder that `save_to_disk` of the `datasets`
            library wrote, whatever it was read from; or the id of a data set on the hub. Columns are those
            that the hub has.
        split: "train", "validation" or "test". A single file is read whole, whatever the split.
        limit: the number of examples to take from the beginning; required for "synthetic", which never ends.
        seed: which synthetic examples; the split of an example does not depend on it.
        revision: of a hub data set: a commit, tag or branch.
        folder: where the splits are inside a hub data set or a local folder, such as "3.0.0".
        languages: source and target language of a translation corpus, by the codes or English names that it
            uses as keys.
        skip_unanswerable: leave out questions without an answer, as SQuAD 2 has them; `Task.skipped` counts
            them. Without it they are an error, since no score is defined for them here.

    Raises `MeeError` for an unknown task, split or language, a bad limit or seed, and a missing, empty or
    broken file.
    """
    if not isinstance(name, str) or name not in TASKS:
        new = "A new task is an entry of TASKS in mee_utils/tasks/kinds.py."
        raise MeeError(f'Unknown task "{name}": {nearest(name, TASKS)} {new}')
    check_choice("split", split, ("train", "validation", "test"))
    limit = None if limit is None else check_whole("limit", limit)
    seed = check_seed(seed)
    pair = checked_languages(languages)
    of_corpus = {"revision": revision, "folder": folder}
    for option, value in of_corpus.items():
        if not isinstance(value, str | None):
            raise MeeError(f"{option}={value!r}: give a text, or leave it out.")
    if str(source) == "synthetic":
        _check_synthetic(name, limit, pair, of_corpus)
        return _drawn(name, name, split, limit, seed)
    if path := find_local(source, 'a file, a folder, a hub id, or "synthetic"'):
        if revision:
            raise MeeError(f"{source} is local and revision={revision!r} belongs to the hub: leave it out.")
        files, digest = sources.local_files(path, split, folder)
    else:
        files, digest = sources.hub_files(str(source), split, revision, folder)
    language = pair[1] if name == "translation" else "en"
    task = Task(name, str(source), split, [], [], digest, language=language)
    return _with_examples(task, rows.rows(files), pair, limit, skip_unanswerable)


def _with_examples(
    task: Task,
    numbered_rows: Iterable[tuple[str, dict]],
    languages: Languages,
    limit: int | None,
    skip_unanswerable: bool,
) -> Task:
    """The task with the examples in the first rows; no row after the last one that is needed is read."""
    inputs: list[str] = []
    references: list[list[str]] = []
    skipped = 0
    for where, row in numbered_rows:
        try:
            prompt, accepted = task.kind.read(row, where, languages)
        except Unanswerable:
            if not skip_unanswerable:
                raise
            skipped += 1
            continue
        inputs.append(prompt)
        references.append(accepted)
        if len(inputs) == limit:
            break
    if not inputs:
        raise MeeError(
            f"None of the {skipped} questions of {task.source} has an answer: choose another corpus."
        )
    return replace(task, inputs=inputs, references=references, skipped=skipped)


def checked_languages(languages: tuple[str, str]) -> tuple[str, str]:
    """Source and target language, each known by name and different from the other."""
    pair = tuple(languages) if isinstance(languages, tuple | list) else (languages,)
    named = len(pair) == 2 and all(isinstance(language, str) and language for language in pair)
    if not named or pair[0] == pair[1]:
        raise MeeError(f'languages={languages!r}: give source and target, as in ("en", "fr").')
    for language in pair:
        try:
            language_code(language)
        except MeeError as error:
            raise MeeError(f"languages={languages!r}: {error}") from error
    return pair


def _check_synthetic(name: str, limit: int | None, languages: Languages, of_corpus: dict) -> None:
    if name not in GENERATORS:
        advice = "give the source of a corpus, or add a generator to mee_utils/tasks/synthetic/generator.py"
        raise MeeError(f'Task "{name}" has no synthetic examples: {advice}.')
    if limit is None:
        raise MeeError('source="synthetic" never ends: set limit to the number of examples.')
    if name == "translation" and languages != ("en", "fr"):
        raise MeeError(f'languages={languages!r}: synthetic translation is from "en" to "fr" only.')
    for option, value in of_corpus.items():
        if value:
            owner = 'belongs to a corpus, not to source="synthetic"'
            raise MeeError(f"{option}={value!r} {owner}: leave it out.")


def shortened(task: Task, tokenizer, tokens: int) -> Task:
    """The task with every input cut to `tokens` tokens, end token included; inputs that fit stay the same."""
    return replace(task, inputs=shortened_texts(task.inputs, tokenizer, tokens))


def shortened_texts(texts: Sequence[str], tokenizer, tokens: int) -> list[str]:
    """Texts cut to `tokens` tokens, end token included; those that fit stay the same."""
    if not len(texts):  # a tokenizer takes no empty list
        return []
    # verbose=False: the tokenizer would warn of the long texts that are cut here
    encoded = tokenizer(list(texts), verbose=False).input_ids
    return [
        text if len(ids) <= tokens else _cut(tokenizer, ids, tokens)
        for text, ids in zip(texts, encoded, strict=True)
    ]


def _cut(tokenizer, ids: list[int], tokens: int) -> str:
    """The longest beginning of a text with at most `tokens` tokens, also when it is tokenized again."""
    for kept in range(tokens - 1, 0, -1):
        text = tokenizer.decode(ids[:kept], skip_special_tokens=True)
        if len(tokenizer(text, verbose=False).input_ids) <= tokens:
            return text
    return ""


def load_lesson(name: str, split: str, limit: int, seed: int = 0) -> Task:
    """Synthetic questions of one lesson (`synthetic.questions.LESSONS`), for pre-training."""
    return _drawn(name, "question_answering", split, limit, seed)


def _drawn(drawn_as: str, name: str, split: str, limit: int, seed: int) -> Task:
    examples = first_examples(drawn_as, split, seed, limit)
    columns = [example.columns for example in examples]
    forms = [example.form for example in examples]
    return Task(
        name,
        "synthetic",
        split,
        inputs=[TASKS[name].read(row, "synthetic", ("en", "fr"))[0] for row in columns],
        references=[[example.target] for example in examples],
        digest=hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest(),
        spans=[example.spans for example in examples],
        forms=forms if any(forms) else None,
        language="fr" if name == "translation" else "en",
    )
