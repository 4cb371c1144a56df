"""Language of a text, told by its scripts: English, Chinese or something else."""

import unicodedata
from typing import Literal, NamedTuple

from hf_glm_curriculum.text.words import is_han, words

Language = Literal["en", "zh", "other"]

# English borrows a few accented letters ("café"); more than this share is another language.
ACCENTED_SHARE = 0.04
# In mixed text the words that carry the grammar tell which language the sentence is in.
_ENGLISH = "the a an is are was of to in and or that it i you for with on at by"
_GRAMMAR_EN = frozenset(_ENGLISH.split())
_GRAMMAR_ZH = frozenset("的是有和在了个与为可以吗不这那我你他她")


class ScriptCounts(NamedTuple):
    """Units of each script: Latin words, Han characters, kana and other letters."""

    latin_words: int
    latin_letters: int
    accented_letters: int
    han: int
    kana: int
    other: int


def count_scripts(text: str) -> ScriptCounts:
    """Count the units of each script in a text; digits and punctuation count as nothing."""
    latin_words = latin = accented = han = kana = other = 0
    in_word = False
    for character in text:
        is_latin = False
        if character.isascii():
            is_latin = character.isalpha()
        elif is_han(character):
            han += 1
        elif character.isalpha():
            name = unicodedata.name(character, "")
            is_latin = name.startswith("LATIN")
            accented += is_latin
            is_kana = name.startswith(("HIRAGANA", "KATAKANA"))
            kana += is_kana
            other += not (is_latin or is_kana)
        latin += is_latin
        latin_words += is_latin and not in_word
        in_word = is_latin
    return ScriptCounts(latin_words, latin, accented, han, kana, other)


def detect_language(text: str) -> Language:
    """Tell English from Chinese from anything else by script.

    One Han character weighs as much as one Latin word; where both occur, the grammatical words
    (the, of, … or 的, 是, …) decide, so that Chinese with English terms is Chinese. Kana, Hangul
    and other scripts, Latin text with many accented letters, and text without letters are
    "other". Languages written in plain ASCII cannot be told from English by script.
    """
    counts = count_scripts(text)
    foreign = counts.kana + counts.other
    if foreign > 0.2 * (counts.han + counts.latin_words + foreign):
        return "other"
    if counts.han and counts.latin_words:
        return _mixed(text, counts)
    if not counts.latin_words:
        return "zh" if counts.han else "other"
    many_accents = counts.accented_letters > max(1.0, ACCENTED_SHARE * counts.latin_letters)
    return "other" if many_accents else "en"


def _mixed(text: str, counts: ScriptCounts) -> Language:
    """Decide between English and Chinese where both scripts occur."""
    english = sum(unit.lower() in _GRAMMAR_EN for unit in words(text))
    chinese = sum(character in _GRAMMAR_ZH for character in text)
    if english != chinese:
        return "zh" if chinese > english else "en"
    return "zh" if counts.han >= counts.latin_words else "en"


def same_language(first: str, second: str) -> bool:
    """Whether two texts are in one language; texts without letters agree with anything."""
    languages = {detect_language(text) for text in (first, second) if any(map(str.isalpha, text))}
    return len(languages) < 2
