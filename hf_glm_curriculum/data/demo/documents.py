"""Long structured documents with headings, numbered clauses, cross references, planted facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hf_glm_curriculum.data.demo.document_parts import (
    KINDS,
    ORGANISATIONS,
    fact_templates,
    fill_clause,
    topics,
)
from hf_glm_curriculum.data.demo.draft import LANGUAGES
from hf_glm_curriculum.data.demo.word_problems import NAMES
from hf_glm_curriculum.errors import ConfigError

Row = dict[str, Any]
_MONTHS = """January February March April May June July August September October November
December"""
_SURNAMES = (
    "Adler Brooks Chen Dalton Evans Fischer Grant Holm Ivanov Jensen Keller Lopez Moore Novak",
    "王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱",
)
_GIVEN_ZH = "伟 芳 娜 敏 静 丽 强 磊 军 洋 勇 艳 杰 涛"
_HAN = "零一二三四五六七八九"
# One planted fact for about this many characters.
_CHARACTERS_PER_FACT = 1500


def demo_documents(
    n: int,
    seed: int = 0,
    target_chars: int = 8000,
    languages: Sequence[str] = LANGUAGES,
) -> list[Row]:
    """Generate long documents with known structure and planted facts.

    English documents have Markdown headings ("## Section 4: Fees") and clauses "4.2"; Chinese ones
    have chapters (第四章) and clauses (第十条). Clauses refer to earlier and later ones.

    Args:
        n: number of documents, languages in turn.
        seed: the same arguments and seed give the same documents.
        target_chars: length aimed at; the text ends with the clause that reaches it.
        languages: "en", "zh" or both.

    Returns:
        Rows with `text`, `language`, `title` and `meta`: `facts` (each `question`, `answer`,
        `answer_check`, `statement`, `clause`, `start` and `end` offsets in the text), `headings`
        and `clauses` (each `label`, `start`) and `references` (each `start`, `end`, `target`).

    Raises:
        ConfigError: if an argument is out of range.
    """
    if n < 0:
        raise ConfigError(f"n: must not be negative, got {n}")
    if target_chars < 500:
        raise ConfigError(f"target_chars: must be at least 500, got {target_chars}")
    if not languages or any(language not in LANGUAGES for language in languages):
        raise ConfigError(f"languages: must be some of {', '.join(LANGUAGES)}; got {languages!r}")
    rng = Random(f"documents-{seed}-{target_chars}")
    return [_Writer(languages[i % len(languages)], rng).write(target_chars) for i in range(n)]


@dataclass
class _Clause:
    """A clause as planned: its label, its template sentences and the fact planted in it."""

    label: str
    sentences: list[str]
    fact: dict[str, Any] | None = None


@dataclass
class _Section:
    """A section as planned: its heading and clauses."""

    heading: str
    clauses: list[_Clause] = field(default_factory=list)


class _Writer:
    """Plans a document, then writes it while noting where everything stands."""

    def __init__(self, language: str, rng: Random) -> None:
        self.language, self.rng = language, rng
        self.index = LANGUAGES.index(language)
        self.text = ""
        self.meta: dict[str, list[Any]] = {
            "facts": [],
            "headings": [],
            "clauses": [],
            "references": [],
        }

    def write(self, target_chars: int) -> Row:
        """Write one document of about the target length."""
        organisation, kind = self.rng.choice(ORGANISATIONS), self.rng.choice(KINDS)
        title = f"{kind[0]} of {organisation[0]}" if self.index == 0 else organisation[1] + kind[1]
        sections = self._plan(target_chars)
        self._plant(sections, max(2, target_chars // _CHARACTERS_PER_FACT))
        labels = [clause.label for section in sections for clause in section.clauses]
        self._add_heading(f"# {title}", "\n\n")
        for section in sections:
            self._add_heading(section.heading, "\n\n")
            for clause in section.clauses:
                self._add_clause(clause, labels)
        row = {"text": self.text.strip() + "\n", "language": self.language, "title": title}
        return row | {"meta": self.meta}

    def _plan(self, target_chars: int) -> list[_Section]:
        """Lay out sections and clauses until they add up to the target length."""
        sections: list[_Section] = []
        length = clause_number = 0
        pool: list[Any] = []
        while length < target_chars:
            pool = pool or self.rng.sample(topics(), len(topics()))
            topic, templates = pool.pop()
            number = len(sections) + 1
            section = _Section(self._heading(number, topic))
            sections.append(section)
            length += len(section.heading) + 2
            for position in range(self.rng.randint(3, 6)):
                clause_number += 1
                label = self._label(number, position + 1, clause_number)
                count = self.rng.randint(1, min(3, len(templates)))
                chosen = self.rng.sample(templates, count)
                sentences = [fill_clause(t[self.index], self.index, self.rng) for t in chosen]
                section.clauses.append(_Clause(label, sentences))
                # A cross reference in every third clause adds some thirty characters.
                length += sum(map(len, sentences)) + len(label) + (22, 9)[self.index]
                if length >= target_chars:
                    break
        return sections

    def _heading(self, number: int, topic: tuple[str, str]) -> str:
        if self.index == 0:
            return f"## Section {number}: {topic[0]}"
        return f"## 第{han_number(number)}章 {topic[1]}"

    def _label(self, section: int, position: int, clause: int) -> str:
        return f"{section}.{position}" if self.index == 0 else f"第{han_number(clause)}条"

    def _plant(self, sections: list[_Section], count: int) -> None:
        """Give facts to different clauses, spread evenly over the document."""
        clauses = [clause for section in sections for clause in section.clauses]
        templates = self.rng.sample(fact_templates(), min(count, len(fact_templates())))
        stride = len(clauses) / len(templates)
        for position, (statement, question, kind) in enumerate(templates):
            first, last = int(position * stride), max(int((position + 1) * stride) - 1, 0)
            clause = clauses[self.rng.randint(first, max(first, last))]
            if clause.fact is None:
                clause.fact = self._fact(statement[self.index], question[self.index], kind)

    def _fact(self, statement: str, question: str, kind: str) -> dict[str, Any]:
        value = {"number": self._number, "name": self._name, "date": self._date}[kind]()
        check = (
            {"kind": "number", "value": int(value)}
            if kind == "number"
            else {"kind": "contains", "value": value}
        )
        return {
            "question": question,
            "answer": value,
            "answer_check": check,
            "statement": statement.format(v=value, n=value, d=value),
        }

    def _number(self) -> str:
        return str(self.rng.randint(101, 9899))

    def _name(self) -> str:
        if self.index == 0:
            return f"{self.rng.choice(NAMES)[0]} {self.rng.choice(_SURNAMES[0].split())}"
        given = "".join(self.rng.sample(_GIVEN_ZH.split(), 2))
        return self.rng.choice(_SURNAMES[1].split()) + given

    def _date(self) -> str:
        month, day = self.rng.randint(1, 12), self.rng.randint(1, 28)
        return f"{_MONTHS.split()[month - 1]} {day}" if self.index == 0 else f"{month}月{day}日"

    def _add_heading(self, heading: str, gap: str) -> None:
        self.meta["headings"].append({"label": heading.lstrip("# "), "start": len(self.text)})
        self.text += heading + gap

    def _add_clause(self, clause: _Clause, labels: list[str]) -> None:
        self.meta["clauses"].append({"label": clause.label, "start": len(self.text)})
        self.text += clause.label + " "
        for position, sentence in enumerate(clause.sentences):
            self._add_sentence(sentence, position)
        if clause.fact is not None:
            self._add_space()
            start = len(self.text)
            self.text += clause.fact["statement"]
            place = {"clause": clause.label, "start": start, "end": len(self.text)}
            self.meta["facts"].append(clause.fact | place)
        if self.rng.random() < 1 / 3 and len(labels) > 1:
            others = [label for label in labels if label != clause.label]
            self._add_reference(self.rng.choice(others))
        self.text += "\n\n"

    def _add_sentence(self, sentence: str, position: int) -> None:
        if position:
            self._add_space()
        self.text += sentence

    def _add_space(self) -> None:
        if self.index == 0:
            self.text += " "

    def _add_reference(self, target: str) -> None:
        """Add a sentence that points to another clause."""
        before, after = self.rng.choice(_REFERENCES[self.index])
        self._add_space()
        named = f"Section {target}" if self.index == 0 else target
        start = len(self.text) + len(before)
        self.text += before + named + after
        self.meta["references"].append(
            {"start": start, "end": start + len(named), "target": target}
        )


_REFERENCES = (
    (
        ("", " applies as well."),
        ("The exceptions of ", " remain in force."),
        ("See also ", "."),
        ("This does not change ", "."),
    ),
    (
        ("", "同样适用。"),
        ("依照", "的规定处理。"),
        ("", "规定的例外情形除外。"),
        ("本条不影响", "的效力。"),
    ),
)


def han_number(number: int) -> str:
    """Write a number from 1 to 9999 in Chinese numerals (十, 二十一, 一百零三)."""
    digits = [int(digit) for digit in str(number)]
    text, pending_zero = "", False
    for place, digit in zip(range(len(digits) - 1, -1, -1), digits, strict=True):
        if digit == 0:
            pending_zero = bool(text)
            continue
        text += ("零" if pending_zero else "") + _HAN[digit] + ["", "十", "百", "千"][place]
        pending_zero = False
    return text.removeprefix("一") if 10 <= number < 20 else text
