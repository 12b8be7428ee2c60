"""The tasks: an entry of `TASKS` has all that differs between them.

The layout of a corpus is recognised by its columns. `source="synthetic"` also needs a generator of the same
name in `synthetic.generator.GENERATORS`. Prompts are those of T5 (Raffel et al. 2020, appendix D).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..common.errors import MeeError, shown
from . import baselines, scores
from .languages import language_name
from .rows import parsed_json
from .scores import References, Scores, Texts

Languages = tuple[str, str]  # source and target
Example = tuple[str, list[str]]  # prompt and references


class Unanswerable(MeeError):
    """A question that its corpus marks as one without an answer, as SQuAD 2 does."""


class Layout(NamedTuple):
    """The columns of a corpus, and how a row of it becomes an example."""

    corpora: str
    columns: tuple[str, ...]
    read: Callable[[dict, Languages], Example]


@dataclass(frozen=True)
class TaskKind:
    """What differs between tasks."""

    layouts: tuple[Layout, ...]  # the columns its corpora come in
    metric: str  # the one that figures show; a key of what `score_examples` returns
    # called as score_examples(texts, references, language): metric -> array `[example]`, in percent
    score_examples: Callable[..., Scores]
    # trivial ones, called as baseline(prompts, training split): a text for each prompt
    baselines: tuple[Callable[[Texts, Any], list[str]], ...]
    # called like score_examples: metric -> percent, for metrics that are no mean over examples, such as BLEU
    score_corpus: Callable[..., dict[str, float]] | None = None

    def score(
        self, texts: Texts, references: References, examples: Scores | None = None, language: str = "en"
    ) -> dict[str, float]:
        """Scores a corpus in `language`, in percent; `examples` are its `score_examples`, if at hand."""
        if self.score_corpus:
            return self.score_corpus(texts, references, language)
        examples = examples or self.score_examples(texts, references, language)
        return {metric: float(values.mean()) for metric, values in examples.items()}

    def read(self, row: dict, where: str, languages: Languages) -> Example:
        """The example in a row of any layout; an error says what the row, which is `where`, lacks."""
        for layout in self.layouts:
            if set(layout.columns) <= set(row):
                try:
                    return layout.read(row, languages)
                except MeeError as error:
                    raise type(error)(f"{where}: {error}") from error
        wanted = " or ".join(f"{', '.join(layout.columns)} ({layout.corpora})" for layout in self.layouts)
        advice = f"this task needs {wanted}: rename yours, or add a layout to mee_utils/tasks/kinds.py"
        raise MeeError(f"{where} has the columns {', '.join(sorted(row))}; {advice}.")


def _text(value: Any, what: str, empty: bool = False) -> str:
    """`value`, if it is a text; only documents may be `empty`, as one of SAMSum is."""
    if not isinstance(value, str) or not (value.strip() or empty):
        raise MeeError(f"{what} holds {str(value)[:60]!r}, a text is expected: correct or remove it.")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # as JSON writes an emoji that was cut in two
        half = f"{value[error.start]!r}, half of a character"
        raise MeeError(f"{what} holds {half}, which no tokenizer can read: correct or remove it.") from error
    return value


def _parsed(value: Any, column: str, form: str) -> dict:
    """A nested column as a dict without its nulls; in CSV files it is JSON text."""
    holds = f'Column "{column}" holds {str(value)[:60]!r}'
    try:
        parsed = parsed_json(value) if isinstance(value, str) else value
    except MeeError as error:
        raise MeeError(f"{holds}, which {error}: write {form}.") from error
    if not isinstance(parsed, dict):
        raise MeeError(f"{holds}: write {form}.")
    return {key: item for key, item in parsed.items() if item is not None}


def _squad(row: dict, languages: Languages) -> Example:
    question = _text(row["question"], 'Column "question"')
    context = _text(row["context"], 'Column "context"')
    form = '{"text": [...], "answer_start": [...]}'
    answers = {} if row["answers"] in (None, "") else _parsed(row["answers"], "answers", form)
    texts = answers.get("text")
    if not answers or (isinstance(texts, str | list) and not any(texts)):
        advice = "set skip_unanswerable=True to leave them out, or use SQuAD 1.1"
        raise Unanswerable(f"the question has no answer (SQuAD 2 has such questions): {advice}")
    if not isinstance(texts, list):
        raise MeeError(f'Column "answers" has no list of texts but {shown(answers)}: write {form}.')
    return f"question: {question} context: {context}", [_text(text, 'Column "answers"') for text in texts]


def _translation(row: dict, languages: Languages) -> Example:
    form = "one text a language, and set `languages` to two that are there"
    pair = _parsed(row["translation"], "translation", form)
    for language in languages:
        if language not in pair:
            present = ", ".join(sorted(pair)) or "nothing"
            raise MeeError(f'Column "translation" has no "{language}", only {present}: write {form}.')
    source, target = (_text(pair[code], f'Column "translation", language "{code}",') for code in languages)
    names = [language_name(language) for language in languages]
    return f"translate {names[0]} to {names[1]}: {source}", [target]


def _two_columns(corpora: str, instruction: str, source: str, target: str) -> Layout:
    """A layout of two texts a row; prompts are the `instruction`, a colon and the source."""

    def read(row: dict, languages: Languages) -> Example:
        text = _text(row[source], f'Column "{source}"', empty=True)
        return f"{instruction}: {text}", [_text(row[target], f'Column "{target}"')]

    return Layout(corpora, (source, target), read)


SUMMARY_BASELINES = (baselines.first_sentence, baselines.one_constant_summary)

TASKS: dict[str, TaskKind] = {
    "question_answering": TaskKind(
        layouts=(Layout("SQuAD", ("context", "question", "answers"), _squad),),
        metric="exact_match",
        score_examples=scores.answer_scores,
        baselines=(baselines.best_overlapping_sentence, baselines.three_random_words),
    ),
    "summarization": TaskKind(
        layouts=(
            _two_columns("CNN/DailyMail", "summarize", "article", "highlights"),
            _two_columns("SAMSum, DialogSum", "summarize", "dialogue", "summary"),
        ),
        metric="rougeL",
        score_examples=scores.rouge_scores,
        baselines=SUMMARY_BASELINES,
    ),
    "translation": TaskKind(
        layouts=(Layout("IWSLT 2017, WMT15, Multi30k", ("translation",), _translation),),
        metric="bleu",
        score_examples=scores.translation_scores,
        baselines=(baselines.source_copied, baselines.nearest_training_sentence),
        score_corpus=scores.corpus_translation,
    ),
    "long_document_summarization": TaskKind(
        layouts=(
            _two_columns("Multi-News", "summarize", "document", "summary"),
            _two_columns("BigPatent", "summarize", "description", "abstract"),
        ),
        metric="rougeL",
        score_examples=scores.rouge_scores,
        baselines=SUMMARY_BASELINES,
    ),
}
