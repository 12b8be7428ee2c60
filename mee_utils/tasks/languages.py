"""Names of languages for prompts, and how text of a language falls into words.

Codes are those of translation corpora: "fr", "pt-BR", "zh_CN" or "fra_Latn". What follows the first part
(region or script) decides neither the name in a prompt nor the tokenizer.
"""

import unicodedata
from functools import lru_cache

import regex

from ..common.errors import MeeError

NO_LANGUAGE = ("mul", "und", "zxx", "root")  # codes for "several", "unknown" and "none"
# Scripts that put no space between words: each of their characters, with its marks, counts as a word.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
UNSPACED_CHARACTER = rf"[{UNSPACED}]\p{{M}}*"
WORD = regex.compile(rf"(?V1){UNSPACED_CHARACTER}|[[\p{{L}}\p{{M}}\p{{Nd}}]--[{UNSPACED}]]+")
SPACED_OUT = regex.compile(UNSPACED_CHARACTER)


def words(text: str) -> list[str]:
    """The words of a text in any script: runs of letters, marks and digits.

    >>> words("Müller's 2 cats")
    ['Müller', 's', '2', 'cats']
    >>> words("你好 world")
    ['你', '好', 'world']
    """
    return WORD.findall(unicodedata.normalize("NFC", text))


def split_at_spaces(text: str) -> list[str]:
    """The parts of a text between spaces; in a script without spaces each character is a part.

    >>> split_at_spaces("at 3.5 Bar")
    ['at', '3.5', 'Bar']
    >>> split_at_spaces("东京 tower")
    ['东', '京', 'tower']
    """
    return SPACED_OUT.sub(r" \g<0> ", text).split()


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """English names by code, codes by lower-case English name, and two-letter codes by three-letter code."""
    from babel import Locale
    from babel.core import get_global

    names = {code: name for code, name in Locale("en").languages.items() if code not in NO_LANGUAGE}
    codes = {name.lower(): code for code, name in names.items()}
    return names, codes, get_global("language_aliases")


@lru_cache
def language_code(language: str) -> str:
    """The code without region and script, as short as it comes: "zh" of "zh-CN", "zho_Hans" and "Chinese".

    Raises `MeeError` for what is no code or English name of a language.
    """
    names, codes, aliases = _tables()
    if language.lower() in codes:
        return codes[language.lower()]
    code = language.lower().replace("_", "-").split("-")[0]
    code = aliases.get(code, code)
    if code not in names:
        advice = 'give codes such as "en", "pt-BR" or "fra_Latn", or names such as "English"'
        raise MeeError(f'"{language}" is the code of no language: {advice}.')
    return code


def language_name(language: str) -> str:
    """The English name of a language, as T5's prompts have it.

    >>> language_name("es"), language_name("zh_CN"), language_name("deu_Latn")
    ('Spanish', 'Chinese', 'German')
    """
    names, _, _ = _tables()
    return names[language_code(language)]
