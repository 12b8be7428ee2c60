"""Scores in percent, by sacrebleu, rouge-score and the answer normalisation of SQuAD's official script.

Papers report means over examples, but for translation: corpus BLEU is no mean of sentence scores.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
Texts = Sequence[str]
References = Sequence[Sequence[str]]
Scores = dict[str, np.ndarray]


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation (Rajpurkar et al. 2016): lower case, no punctuation, articles or double spaces.

    >>> normalize_answer("The  old Bridge!")
    'old bridge'
    """
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, references: Texts) -> float:
    """1 if the normalised prediction equals a normalised reference, else 0."""
    return float(any(normalize_answer(prediction) == normalize_answer(reference) for reference in references))


def token_f1(prediction: str, references: Texts) -> float:
    """The best token F1 (0 to 1) of the prediction against any reference, after normalisation."""
    return max(_f1(normalize_answer(prediction).split(), normalize_answer(r).split()) for r in references)


def _f1(predicted: list[str], reference: list[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))


def answer_scores(texts: Texts, references: References) -> Scores:
    """Exact match and token F1 of short answers."""
    pairs, metrics = list(zip(texts, references, strict=True)), {"exact_match": exact_match, "f1": token_f1}
    return {name: np.array([100 * score(*pair) for pair in pairs]) for name, score in metrics.items()}


def rouge_scores(texts: Texts, references: References) -> Scores:
    """ROUGE-1, ROUGE-2 and ROUGE-L, F-measures with stemming; the best reference counts."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    rows = [scorer.score_multi(list(refs), text) for text, refs in zip(texts, references, strict=True)]
    return {name: np.array([100 * row[name].fmeasure for row in rows]) for name in ROUGE_TYPES}


def translation_scores(texts: Texts, references: References) -> Scores:
    """Sentence BLEU (effective order) and chrF."""
    import sacrebleu

    bleu, pairs = sacrebleu.BLEU(effective_order=True), list(zip(texts, references, strict=True))
    return {
        "bleu": np.array([bleu.sentence_score(text, list(refs)).score for text, refs in pairs]),
        "chrf": np.array([sacrebleu.sentence_chrf(text, list(refs)).score for text, refs in pairs]),
    }


def corpus_translation(texts: Texts, references: References) -> dict[str, float]:
    """Corpus BLEU and chrF; where an example has fewer references than another, its last one is repeated."""
    import sacrebleu

    streams = [[refs[min(i, len(refs) - 1)] for refs in references] for i in range(max(map(len, references)))]
    bleu, chrf = sacrebleu.corpus_bleu(list(texts), streams), sacrebleu.corpus_chrf(list(texts), streams)
    return {"bleu": bleu.score, "chrf": chrf.score}
