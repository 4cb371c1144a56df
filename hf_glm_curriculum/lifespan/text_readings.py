"""What the texts alone say against a row, read before the first step.

Rows that ask one thing and answer it differently: one of two answers that exclude each other is
wrong, and no signal of training says which (where a misconception is common the wrong one even
has the lower loss), so both rows get the same value. And rows whose answer is their prompt, which
a model finds easier than any right answer.

Shape letter: N rows of the data set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from hf_glm_curriculum.data.audit_text import HAN, normalise
from hf_glm_curriculum.progress import progress

Pair = tuple[str, str] | None
"""(prompt, response) of a row, or None where it cannot be read."""

LONGEST_ANSWER = 60
"""Words: two longer answers to one prompt may differ and both be right."""
LARGEST_FRAME = 5
"""Words that one prompt may have more than the other, in front or behind."""
_LEAST_COPY = 4
_AFFIX = 4
_LARGEST_GROUP = 32
_TEMPLATE_ROWS = 256
_WORD = re.compile(f"[{HAN}]|[^\\W_{HAN}]+(?:['’][^\\W_]+)*")
_CHANGES_MEANING = re.compile(r"\d|^(?:no|not|never|without|except|不|没|无|非)$|n['’]t$")


def text_readings(pairs: Sequence[Pair], show_progress: bool | None = None) -> np.ndarray:
    """How much each row's text speaks against it.

    The larger of two: 1 where the answer gives the prompt back, and the distance of the answer
    from that of another row with the same request. Two prompts ask the same if one is the other
    with at most ``LARGEST_FRAME`` words in front or behind ("Question: …", "… Be brief."), none of
    them a number or a negation. What all prompts begin or end with (a chat template) is left out
    first. The distance of two answers is 1 − Jaccard similarity of their words, 0 if one holds the
    other; of more than two rows the largest counts. Rows are brought together by the first and the
    last words of their prompts; a group of more than 32 rows is a template of many tasks and is
    not searched, so that time is linear.

    Args:
        pairs: prompt and response by row.
        show_progress: see ``progress``; a bar on more than 20,000 rows if None.

    Returns:
        float32 [N] in [0, 1]; 0 where nothing was found, or nothing can be read.
    """
    result = np.zeros(len(pairs), np.float32)
    show = show_progress if len(pairs) > 20_000 else False
    with progress(2 * len(pairs), "Reading texts", show) as bar:
        texts = []
        for pair in pairs:
            texts.append((_words(pair[0]), _words(pair[1])) if pair else ([], []))
            bar.advance()
        prompts = list(_without_template([prompt for prompt, _ in texts]))
        for row, (prompt, (_, answer)) in enumerate(zip(prompts, texts, strict=True)):
            result[row] = gives_back(prompt, answer)
        for group in _groups(prompts):
            for one, two in combinations(group, 2):
                if same_request(prompts[one], prompts[two]):
                    distance = answer_distance(texts[one][1], texts[two][1])
                    result[one] = max(result[one], distance)
                    result[two] = max(result[two], distance)
        bar.advance(len(pairs))
    return result


def gives_back(prompt: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether an answer's words are the prompt's, or begin with all of them."""
    return len(prompt) >= _LEAST_COPY and list(answer[: len(prompt)]) == list(prompt)


def same_request(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether one list of words is the other with a short frame in front, behind, or both."""
    short, long = sorted((list(first), list(second)), key=len)
    extra = len(long) - len(short)
    if len(short) < 2 or extra > LARGEST_FRAME:
        return False
    for start in range(extra + 1):
        if long[start : start + len(short)] == short:
            frame = long[:start] + long[start + len(short) :]
            return not any(_CHANGES_MEANING.search(word) for word in frame)
    return False


def answer_distance(first: Sequence[str], second: Sequence[str]) -> float:
    """1 − Jaccard similarity of two answers' words; 0 if one holds the other, or one is long."""
    one, two = set(first), set(second)
    if not one or not two or min(len(first), len(second)) > LONGEST_ANSWER:
        return 0.0
    common = len(one & two)
    if common == min(len(one), len(two)):
        return 0.0
    return 1 - common / (len(one) + len(two) - common)


def _words(text: str) -> list[str]:
    return _WORD.findall(normalise(text))


def _without_template(prompts: list[list[str]]) -> Iterator[list[str]]:
    """Prompts without the words that all of them begin and end with."""
    filled = [words for words in prompts if words]
    sample = filled[:: max(1, len(filled) // _TEMPLATE_ROWS)]
    start = _common_length(sample) if len(sample) > 1 else 0
    rest = [words[start:][::-1] for words in sample]
    end = _common_length(rest) if len(sample) > 1 else 0
    for words in prompts:
        yield words[start : len(words) - end] if len(words) > start + end else []


def _common_length(lists: Sequence[Sequence[str]]) -> int:
    length = 0
    for words in zip(*lists, strict=False):
        if len(set(words)) > 1:
            break
        length += 1
    return length


def _groups(prompts: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Rows that share their first or their last words; a pair may come twice."""
    for side in (slice(None, _AFFIX), slice(-_AFFIX, None)):
        places: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, words in enumerate(prompts):
            if words:
                places[tuple(words[side])].append(row)
        for rows in places.values():
            if 1 < len(rows) <= _LARGEST_GROUP:
                yield rows
