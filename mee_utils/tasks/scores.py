"""Scores, by the field's own packages: sacrebleu, rouge-score, and the answer normalisation of SQuAD's official script.

All scores are percentages. `per_example` gives one number an example (for intervals and calibration), `corpus` the numbers
that papers report. BLEU is no mean of sentence scores, so the two differ for translation by definition.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
PRIMARY = {
    "question_answering": "f1",
    "summarization": "rougeL",
    "translation": "bleu",
    "long_document_summarization": "rougeL",
}


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation (Rajpurkar et al. 2016): lower case, without punctuation, articles and double spaces.

    >>> normalize_answer("The  old Bridge!")
    'old bridge'
    """
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the normalised prediction equals a normalised reference, else 0."""
    return float(any(normalize_answer(prediction) == normalize_answer(reference) for reference in references))


def token_f1(prediction: str, references: Sequence[str]) -> float:
    """The best token F1 (0 to 1) of the prediction against any reference, after normalisation."""
    return max(_f1(normalize_answer(prediction).split(), normalize_answer(r).split()) for r in references)


def _f1(predicted: list[str], reference: list[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))


@lru_cache(maxsize=1)
def _rouge():
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(ROUGE_TYPES), use_stemmer=True)


def _rouge_rows(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    scored = (_rouge().score_multi(list(refs), text) for text, refs in zip(texts, references, strict=True))
    return [{name: 100 * score.fmeasure for name, score in row.items()} for row in scored]


def _answer_rows(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    return [
        {"exact_match": 100 * exact_match(text, refs), "f1": 100 * token_f1(text, refs)}
        for text, refs in zip(texts, references, strict=True)
    ]


def _translation_rows(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    import sacrebleu

    bleu = sacrebleu.BLEU(effective_order=True)
    return [
        {"bleu": bleu.sentence_score(text, list(refs)).score, "chrf": sacrebleu.sentence_chrf(text, list(refs)).score}
        for text, refs in zip(texts, references, strict=True)
    ]


ROWS = {
    "question_answering": _answer_rows,
    "summarization": _rouge_rows,
    "translation": _translation_rows,
    "long_document_summarization": _rouge_rows,
}


def per_example(task: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Scores each example. Returns metric -> array `[example]`, in percent."""
    rows = ROWS[task](texts, references)
    return {metric: np.array([row[metric] for row in rows]) for metric in rows[0]}


def corpus(
    task: str, texts: Sequence[str], references: Sequence[Sequence[str]], examples: dict[str, np.ndarray] | None = None
) -> dict[str, float]:
    """Scores a corpus. Returns metric -> percent: corpus BLEU and chrF for translation, else the mean over examples."""
    if task != "translation":
        return {metric: float(values.mean()) for metric, values in (examples or per_example(task, texts, references)).items()}
    import sacrebleu

    streams = [[refs[min(i, len(refs) - 1)] for refs in references] for i in range(max(map(len, references)))]
    return {
        "bleu": sacrebleu.corpus_bleu(list(texts), streams).score,
        "chrf": sacrebleu.corpus_chrf(list(texts), streams).score,
    }
