"""Scores in percent, by sacrebleu, rouge-score and the answer normalisation of SQuAD's official script.

Papers report means over examples, except for translation: corpus BLEU is not a mean of sentence scores.

Text in any script is scored. On text in ASCII letters the numbers are those of the official tools; beyond it:

| metric | words |
|---|---|
| ROUGE | runs of Unicode letters and digits ("müller", where rouge-score itself sees "m" and "ller") |
| token F1 | as the official script, at spaces |
| BLEU | sacrebleu's tokenizer for the target language (`bleu_tokenizer`) |

In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan) each character counts as a
word of ROUGE and token F1.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from . import languages

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
# BLEU tokenizers by target language, the best first; those with MeCab need a package that may be missing
BLEU_TOKENIZERS = {
    **dict.fromkeys(("zh", "yue"), ("zh",)),
    "ja": ("ja-mecab", "char"),
    "ko": ("ko-mecab", "char"),
    **dict.fromkeys(("th", "lo", "km", "my", "bo"), ("char",)),
}
STANDARD_TOKENIZER = "13a"  # sacrebleu's default, WMT's tokenizer for languages with spaces
Texts = Sequence[str]
References = Sequence[Sequence[str]]
Scores = dict[str, np.ndarray]


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation (Rajpurkar et al. 2016): lower case, no punctuation, articles or double spaces.

    >>> normalize_answer("The  old Bridge!")
    'old bridge'
    """
    composed = unicodedata.normalize("NFC", text)  # a corpus may write "é" as two characters
    bare = composed.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(prediction: str, references: Texts) -> float:
    """1 if the normalised prediction equals a normalised reference, else 0."""
    return float(any(normalize_answer(prediction) == normalize_answer(reference) for reference in references))


def token_f1(prediction: str, references: Texts) -> float:
    """The best token F1 (0 to 1) of the prediction against any reference, after normalisation."""
    predicted = languages.split_at_spaces(normalize_answer(prediction))
    best = 0.0
    for reference in references:
        expected = languages.split_at_spaces(normalize_answer(reference))
        common = sum((Counter(predicted) & Counter(expected)).values())
        tokens = len(predicted) + len(expected)
        best = max(best, 2 * common / tokens if tokens else 1.0)
    return best


def answer_scores(texts: Texts, references: References, language: str = "en") -> Scores:
    """Exact match and token F1 of short answers, in any language."""
    pairs = list(zip(texts, references, strict=True))
    return {
        "exact_match": np.array([100 * exact_match(text, expected) for text, expected in pairs]),
        "f1": np.array([100 * token_f1(text, expected) for text, expected in pairs]),
    }


class UnicodeTokenizer:
    """rouge-score's tokenizer for words in any script; words in ASCII letters are stemmed as there."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self._stem = lru_cache(maxsize=2**16)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The words of a text in lower case, without English endings if longer than three letters."""
        words = languages.words(text.lower())
        return [self._stem(word) if len(word) > 3 and word.isascii() else word for word in words]


def rouge_scores(texts: Texts, references: References, language: str = "en") -> Scores:
    """ROUGE-1, ROUGE-2 and ROUGE-L, F-measures with stemming; the best reference counts. Any language."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_TYPES), tokenizer=UnicodeTokenizer())
    rows = [scorer.score_multi(list(refs), text) for text, refs in zip(texts, references, strict=True)]
    return {name: np.array([100 * row[name].fmeasure for row in rows]) for name in ROUGE_TYPES}


@lru_cache
def bleu_tokenizer(language: str) -> str:
    """The sacrebleu tokenizer for a target language: "zh" for Chinese, "char" for Thai, mostly "13a".

    Japanese and Korean are split by MeCab where it is installed (`pip install "sacrebleu[ja,ko]"`), else into
    characters. Numbers of different tokenizers do not compare.
    """
    import sacrebleu

    for tokenizer in BLEU_TOKENIZERS.get(languages.language_code(language), ()):
        try:
            sacrebleu.BLEU(tokenize=tokenizer)
        except (ImportError, RuntimeError):  # no MeCab, or none of its dictionaries
            continue
        return tokenizer
    return STANDARD_TOKENIZER


def translation_scores(texts: Texts, references: References, language: str = "en") -> Scores:
    """Sentence BLEU (effective order) and chrF of translations into `language`."""
    import sacrebleu

    bleu = sacrebleu.BLEU(effective_order=True, tokenize=bleu_tokenizer(language))
    pairs = list(zip(texts, references, strict=True))
    return {
        "bleu": np.array([bleu.sentence_score(text, list(refs)).score for text, refs in pairs]),
        "chrf": np.array([sacrebleu.sentence_chrf(text, list(refs)).score for text, refs in pairs]),
    }


def corpus_translation(texts: Texts, references: References, language: str = "en") -> dict[str, float]:
    """Corpus BLEU and chrF of translations into `language`.

    Where an example has fewer references than another, its last one is repeated.
    """
    import sacrebleu

    most = max(len(refs) for refs in references)
    streams = [[refs[min(number, len(refs) - 1)] for refs in references] for number in range(most)]
    bleu = sacrebleu.corpus_bleu(list(texts), streams, tokenize=bleu_tokenizer(language))
    chrf = sacrebleu.corpus_chrf(list(texts), streams)
    return {"bleu": bleu.score, "chrf": chrf.score}
