"""The tasks. A new one is one entry of `TASKS`; whatever differs between tasks is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..common.errors import CompanionError
from . import baselines, layouts, scores
from .layouts import Layout
from .scores import References, Scores, Texts


@dataclass(frozen=True)
class TaskKind:
    """What differs between tasks.

    Attributes:
        layouts: the column layouts its corpora come in, each with its prompt.
        metric: the metric that figures show, one of those that `score_examples` returns.
        score_examples: `(texts, references)` -> metric -> array `[example]`, in percent.
        baselines: trivial baselines, name -> `(prompts, training split)` -> texts.
        score_corpus: `(texts, references)` -> metric -> percent, where that is no mean over examples.
    """

    layouts: tuple[Layout, ...]
    metric: str
    score_examples: Callable[[Texts, References], Scores]
    baselines: dict[str, Callable[[Texts, object], list[str]]]
    score_corpus: Callable[[Texts, References], dict[str, float]] | None = None

    def score(self, texts: Texts, references: References, examples: Scores | None = None) -> dict[str, float]:
        """Scores a corpus, in percent; `examples` are its `score_examples`, if known."""
        if self.score_corpus:
            return self.score_corpus(texts, references)
        examples = examples or self.score_examples(texts, references)
        return {metric: float(values.mean()) for metric, values in examples.items()}

    def layout(self, columns: Sequence[str], where: str) -> Layout:
        """The layout whose columns are all there; an error says what `where` lacks."""
        for layout in self.layouts:
            if set(layout.columns) <= set(columns):
                return layout
        wanted = " or ".join(f"{', '.join(layout.columns)} ({layout.corpora})" for layout in self.layouts)
        present = ", ".join(sorted(columns))
        raise CompanionError(f"{where} has the columns {present}; this task needs {wanted}.")


SUMMARY_BASELINES = {
    "first sentence": baselines.first_sentence,
    "one constant summary": baselines.constant_summary,
}

TASKS: dict[str, TaskKind] = {
    "question_answering": TaskKind(
        layouts=(layouts.SQUAD,),
        metric="f1",
        score_examples=scores.answer_scores,
        baselines={
            "best overlapping sentence": baselines.best_overlap_sentence,
            "three random words": baselines.three_random_words,
        },
    ),
    "summarization": TaskKind(
        layouts=(layouts.CNN_DAILYMAIL, layouts.DIALOGUES),
        metric="rougeL",
        score_examples=scores.rouge_scores,
        baselines=SUMMARY_BASELINES,
    ),
    "translation": TaskKind(
        layouts=(layouts.TRANSLATIONS,),
        metric="bleu",
        score_examples=scores.translation_scores,
        baselines={
            "source copied": baselines.copied_source,
            "nearest training sentence": baselines.nearest_translation,
        },
        score_corpus=scores.corpus_translation,
    ),
    "long_document_summarization": TaskKind(
        layouts=(layouts.MULTI_NEWS, layouts.BIG_PATENT),
        metric="rougeL",
        score_examples=scores.rouge_scores,
        baselines=SUMMARY_BASELINES,
    ),
}
