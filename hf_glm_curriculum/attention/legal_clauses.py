"""Numbered clauses of contracts and statutes, English and Chinese, and references to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hf_glm_curriculum.attention.clause_numbers import chinese_number, roman_number
from hf_glm_curriculum.attention.marks import Line, Mark, Span

DIVISION_RANK = 100
"""Parts, chapters and articles: inside Markdown headings, around numbered clauses."""

CLAUSE_RANK = 120
"""Numbered clauses: one rank deeper for every dot in the number."""

ITEM_RANK = 200
"""List items that are numbered inside a clause: one rank deeper for every column of indent."""

_DECORATION = r"[ \t　]{0,40}(?:#{1,6}[ \t]+|>[ \t]?|[*-][ \t]+)?(?:\*\*|__|<[^<>\n]{0,100}>){0,3}"
_NUMBER = r"\d{1,4}(?:\.\d{1,3}){0,5}"
_ROMAN = r"[IVXLC]{1,7}(?![A-Za-z])"
_DIVISIONS = {
    "book": 0, "title": 1, "part": 2, "schedule": 2, "exhibit": 2, "annex": 2, "appendix": 2,
    "chapter": 3, "article": 4, "section": 5, "clause": 6, "paragraph": 7,
}  # fmt: skip
_WORDS = "|".join(_DIVISIONS)

# "Section 4. Term", "ARTICLE IV", "Exhibit B: Prices"; not "Section 4 provides …".
_DIVISION = re.compile(
    rf"{_DECORATION}((?i:{_WORDS}))[ \t]{{1,4}}({_NUMBER}|{_ROMAN}|[A-Z](?![A-Za-z]))"
    r"[.:)]?(?:\*\*|__|</[a-z]{1,8}>)?\.?"
    r"(?=[ \t]{0,3}(?:\n|[-–—:(])|[ \t]{1,3}[\"“*A-Z<])"
)
# "4.2 Fees", "10. Term", "**10.4**", "4) Costs".
_NUMBERED = re.compile(
    rf"({_DECORATION})(?:(\d{{1,3}}(?:\.\d{{1,3}}){{1,5}})[.)]?|(\d{{1,3}})[.)])"
    r"(?:\*\*|__)?\.?[ \t]{1,8}(?=[^\s\d])"
)
# "## A. Definitions"
_LETTERED = re.compile(rf"(?=[ \t]{{0,3}}#|\*\*){_DECORATION}([A-Z])[.)][ \t]{{1,8}}(?=\S)")
# "(a) …", "a. …", "(iv) …"
_ITEM = re.compile(
    r"[ \t　]{0,40}(?:[*-][ \t]+)?(?:\*\*|__)?"
    r"(?:\(([a-z]|[ivx]{1,5})\)|([a-z]|[ivx]{1,5})[.)])[ \t]{1,8}(?=\S)"
)

_CHINESE_DIVISIONS = {"编": 0, "分编": 1, "部分": 1, "章": 3, "节": 4, "条": 10}
_CHINESE_DIGITS = "零〇一二两三四五六七八九十百千0-9"
_CHINESE = re.compile(
    rf"{_DECORATION}第([{_CHINESE_DIGITS}]{{1,9}})(分编|部分|编|章|节|条)"
    r"(?:之([一二三四五六七八九十]{1,2}))?(?=[\s　*【（(「:：、.])"
)
_CHINESE_ITEM = re.compile(
    rf"{_DECORATION}(?:([一二三四五六七八九十]{{1,3}})[、.．]|[（(]([一二三四五六七八九十]{{1,3}})[）)])"
    r"(?=.)"
)


class EnglishClauses:
    """Lines that begin with "Article 10", "Section 4.", "4.2 Fees", "## A. Scope" or "(a)"."""

    def head(self, line: Line) -> Mark | None:
        """The clause a line begins."""
        text = line.text
        if text[:1] == "|":
            return None
        return _division(text) or _numbered(text) or _lettered(text) or _item(text)

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a clause begins its line."""
        yield from ()


def _division(text: str) -> Mark | None:
    found = _DIVISION.match(text)
    if found is None:
        return None
    word, number = found[1].lower(), _plain_number(found[2])
    rank = DIVISION_RANK + _DIVISIONS[word]
    return Mark("clause", 0, found.end() + 4, rank, (f"{word}:{number}", f":{number}"))


def _numbered(text: str) -> Mark | None:
    found = _NUMBERED.match(text)
    if found is None:
        return None
    decoration, number, known = found[1], found[2] or found[3], found.end() + 1
    if found[2] or any(sign in decoration for sign in "#*_"):
        rank = CLAUSE_RANK + number.count(".")
        return Mark("clause", 0, known, rank, (f":{number}",))
    return Mark("clause", 0, known, ITEM_RANK + _indent(text), (f":{number}",), nested=True)


def _indent(text: str) -> int:
    blank = text[: len(text) - len(text.lstrip())]
    return len(blank.expandtabs(4))


def _lettered(text: str) -> Mark | None:
    found = _LETTERED.match(text)
    if found is None:
        return None
    return Mark("clause", 0, found.end() + 1, CLAUSE_RANK, (f":{found[1]}",))


def _item(text: str) -> Mark | None:
    found = _ITEM.match(text)
    if found is None:
        return None
    letters = found[1] or found[2]
    roman = len(letters) > 1 or letters in "ivx"
    rank = ITEM_RANK + _indent(text) + (2 if roman else 1)
    return Mark("clause", 0, found.end() + 1, rank, (f":({letters})",), nested=True)


def _plain_number(number: str) -> str:
    """Roman numbers as digits, so that "Article IV" and "Article 4" meet; letters as they are."""
    if len(number) == 1 and number not in "IVX":
        return number  # "Exhibit C", not "Exhibit 100"
    value = roman_number(number)
    return str(value) if value else number


class ChineseClauses:
    """第三章, 第十条, 第十条之一, 一、, （一）, at the beginning of a line."""

    def head(self, line: Line) -> Mark | None:
        """The clause a line begins."""
        found = _CHINESE.match(line.text)
        if found is not None:
            name = _chinese_name(found[2], found[1], found[3])
            rank = DIVISION_RANK + _CHINESE_DIVISIONS[found[2]]
            return Mark("clause", 0, found.end() + 1, rank, (name,))
        found = _CHINESE_ITEM.match(line.text)
        if found is None:
            return None
        rank = CLAUSE_RANK if found[1] else CLAUSE_RANK + 1
        name = f"项:{chinese_number(found[1] or found[2])}"
        return Mark("clause", 0, found.end() + 1, rank, (name,), nested=True)

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a clause begins its line."""
        yield from ()


def _chinese_name(division: str, number: str, inserted: str | None) -> str:
    """The name of 第X条之Y: division, number and what was inserted after it."""
    tail = f"-{chinese_number(inserted)}" if inserted else ""
    return f"{division}:{chinese_number(number)}{tail}"


_LETTER = r"[A-Z](?:\.\d{1,3}){0,3}(?![A-Za-z])"
_ITEMS = r"(?:\([a-z0-9]{1,4}\)){0,3}"
_ONE = rf"(?:{_NUMBER}|{_LETTER}|{_ROMAN}){_ITEMS}"
_REFERENCE = re.compile(
    rf"(?<![A-Za-z])(?:((?i:{_WORDS}))s?|(?i:sec|art|cl)\.|§§?)[ \t]{{0,2}}"
    rf"({_ONE}(?:(?:,|,? ?(?:and|or|to|through|&)|[-–]) ?{_ONE}){{0,3}})"
)
_ONE_NUMBER = re.compile(rf"({_NUMBER}|[A-Z]+(?:\.\d{{1,3}}){{0,3}})({_ITEMS})")
_CHINESE_REFERENCE = re.compile(
    rf"(?<!》)(?:第([{_CHINESE_DIGITS}]{{1,9}})(分编|部分|编|章|节|条)(?:之([一二三四五六七八九十]{{1,2}}))?"
    r"|(前[两二三]?条))"
)


class EnglishReferences:
    """Mentions of "Section 4.2", "Sections 3, 5.1(a) and 9", "Article IV", "§ 7" in a line."""

    def head(self, line: Line) -> Mark | None:
        """Nothing: references stand anywhere."""
        return None

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """References in a line; one mark for each number."""
        for found in _REFERENCE.finditer(text, start):
            marks = tuple(
                Mark("reference", found.start(2) + one.start(), 0, names=_names(found[1], one))
                for one in _ONE_NUMBER.finditer(found[2])
            )
            yield Span(found.start(), found.end(), found.end() + 20, marks)


def _names(word: str | None, number: re.Match[str]) -> tuple[str, ...]:
    """Names that "section 8.1(a)(i)" may stand under, the exact one first."""
    plain, items = _plain_number(number[1]), re.findall(r"\([a-z0-9]+\)", number[2])
    names = [":" + plain + "".join(items[:count]) for count in range(len(items), -1, -1)]
    if word:
        names.insert(len(items), f"{word.lower()}:{plain}")
    while "." in plain:
        plain = plain.rpartition(".")[0]
        names.append(f":{plain}")
    return tuple(names)


class ChineseReferences:
    """第十条, 第三章, 前条 anywhere in a line, but not those of another law (《…》第十条)."""

    def head(self, line: Line) -> Mark | None:
        """Nothing: references stand anywhere."""
        return None

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """References in a line."""
        for found in _CHINESE_REFERENCE.finditer(text, start):
            if found[4]:
                back = {"前条": 1, "前三条": 3}.get(found[4], 2)
                names = tuple(f"before:{step}" for step in range(back, 0, -1))
                marks = tuple(Mark("reference", found.start(), 0, names=(n,)) for n in names)
            else:
                exact = _chinese_name(found[2], found[1], found[3])
                whole = _chinese_name(found[2], found[1], None)
                names = (exact,) if exact == whole else (exact, whole)
                marks = (Mark("reference", found.start(), 0, names=names),)
            yield Span(found.start(), found.end(), found.end() + 3, marks)
