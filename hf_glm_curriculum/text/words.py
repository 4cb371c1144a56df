"""Words, sentences, paragraphs and lines of English, Chinese and mixed text.

One unit of text is a Latin word ("don't" is one), a number, or one Han character: the unit in
which lengths, n-grams and limits are counted everywhere in the package.
"""

SENTENCE_ENDS = ".!?。！？…"
CLOSERS = "\"'”’)）]】」』*_"
APOSTROPHES = "'’"
ABBREVIATIONS = frozenset(
    {"mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "e.g", "i.e", "a.m", "p.m", "no", "fig"}
)


def is_han(character: str) -> bool:
    """Whether a character is a Chinese (Han) ideograph."""
    code = ord(character)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x323AF
    )


def words(text: str) -> list[str]:
    """Split text into units in their original case: words, numbers and single Han characters."""
    units: list[str] = []
    start = -1
    for position, character in enumerate(text):
        if is_han(character):
            _close(text, start, position, units)
            units.append(character)
            start = -1
        elif character.isalnum() or (start >= 0 and _joins(text, position)):
            start = position if start < 0 else start
        else:
            _close(text, start, position, units)
            start = -1
    _close(text, start, len(text), units)
    return units


def _joins(text: str, position: int) -> bool:
    """Whether the character inside a word keeps it together (don't, 3.5, 1,000)."""
    if position + 1 >= len(text):
        return False
    before, character, after = text[position - 1], text[position], text[position + 1]
    if character in APOSTROPHES:
        return before.isalpha() and after.isalpha() and not is_han(after)
    return character in ".," and before.isdigit() and after.isdigit()


def _close(text: str, start: int, end: int, units: list[str]) -> None:
    if start >= 0:
        units.append(text[start:end])


def word_count(text: str) -> int:
    """Count the units of a text (Latin words, numbers, Han characters)."""
    return len(words(text))


def sentences(text: str) -> list[str]:
    """Split text into sentences at end marks and line breaks, without empty ones.

    A full stop ends a sentence only before white space, a closing quote or the end, and not
    after a known abbreviation, an initial or a list number ("1.").
    """
    found: list[str] = []
    for line in text.splitlines():
        start = position = 0
        while position < len(line):
            if line[position] in SENTENCE_ENDS and _ends_sentence(line, position):
                position = _past_closers(line, position + 1)
                found.append(line[start:position])
                start = position
            else:
                position += 1
        found.append(line[start:])
    return [sentence.strip() for sentence in found if any(c.isalnum() for c in sentence)]


def _ends_sentence(line: str, position: int) -> bool:
    if line[position] in "。！？":
        return True
    after = line[position + 1 : position + 2]
    if after and not after.isspace() and after not in CLOSERS + SENTENCE_ENDS and not is_han(after):
        return False
    if line[position] != ".":
        return True
    before = line[:position].split()
    last = before[-1].lower().lstrip("(\"'“") if before else ""
    is_list_number = last.isdigit() and len(before) == 1
    is_initial = len(last) == 1 and last.isalpha() and last != "i"
    return not (last in ABBREVIATIONS or is_list_number or is_initial)


def _past_closers(line: str, position: int) -> int:
    while position < len(line) and line[position] in SENTENCE_ENDS + CLOSERS:
        position += 1
    return position


def paragraphs(text: str) -> list[str]:
    """Split text at blank lines into paragraphs, without empty ones."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


def lines(text: str) -> list[str]:
    """Return the lines that are not blank, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def contains_phrase(text: str, phrase: str, *, case: bool = False) -> bool:
    """Whether a phrase occurs in a text as whole words (Latin) or as characters (Han)."""
    return bool(phrase_positions(text, phrase, case=case))


def phrase_positions(text: str, phrase: str, *, case: bool = False) -> list[int]:
    """Return the start of every whole-word occurrence of a phrase.

    Word boundaries count only next to Latin letters and digits of the phrase, so "art" is not in
    "start" while 北京 is in 在北京市.
    """
    if not case:
        text, phrase = text.lower(), phrase.lower()
    positions = []
    position = text.find(phrase) if phrase else -1
    while position >= 0:
        end = position + len(phrase)
        if not (_glued(text, position - 1, position) or _glued(text, end - 1, end)):
            positions.append(position)
        position = text.find(phrase, position + 1)
    return positions


def _glued(text: str, left: int, right: int) -> bool:
    """Whether two neighbouring characters belong to one Latin word or number."""
    if left < 0 or right >= len(text):
        return False
    return _in_word(text[left]) and _in_word(text[right])


def _in_word(character: str) -> bool:
    return character.isalnum() and not is_han(character)
