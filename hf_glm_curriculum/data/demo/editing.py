"""Text editing: order, case, sorting, counting, replacing, in word lists and sentences."""

from collections.abc import Callable
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Pair,
    Phrase,
    Task,
    exact_check,
    near_miss,
    number_check,
    wording,
)
from hf_glm_curriculum.data.demo.lexicon import groups
from hf_glm_curriculum.data.demo.sentences import random_sentence
from hf_glm_curriculum.data.demo.word_problems import NAMES

_SAY_EN = """
    {answer}
    Here it is: {answer}
    The result is: {answer}"""
_SAY_ZH = """
    {answer}
    结果是：{answer}
    答案：{answer}"""


def plain_words(rng: Random, count: int) -> list[Pair]:
    """Draw different words from different groups."""
    pool = [word for members in groups().values() for word in members]
    return rng.sample(pool, count)


def _spaced(words: list[Pair]) -> Pair:
    return " ".join(w[0] for w in words), "、".join(w[1] for w in words)


def listed(words: list[Pair]) -> Pair:
    """Write words as a list on one line, English and Chinese."""
    return ", ".join(w[0] for w in words), "、".join(w[1] for w in words)


def list_size(rng: Random, level: str) -> int:
    """Draw the length of a list for a level."""
    return {"easy": 3, "medium": 4, "hard": 6}[level] + rng.randint(0, 1)


def _reverse_words(rng: Random, level: str) -> Draw:
    words = plain_words(rng, list_size(rng, level))
    answer, slipped = words[::-1], words[::-1]
    slipped[0], slipped[1] = slipped[1], slipped[0]
    fields: dict[str, Phrase] = {"x": _spaced(words)}
    return Draw(fields, _spaced(answer), _spaced(slipped), exact_check(_spaced(answer)), level)


def _reverse_letters(rng: Random, level: str) -> Draw:
    pool = [w for members in groups().values() for w in members if len(set(w[0])) > 2]
    sizes = {"easy": (3, 4), "medium": (5, 6), "hard": (7, 12)}[level]
    word = rng.choice([w[0] for w in pool if sizes[0] <= len(w[0]) <= sizes[1]])
    answer = word[::-1]
    spots = [i for i in range(len(answer) - 1) if answer[i] != answer[i + 1]]
    at = rng.choice(spots)
    wrong = answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
    return Draw({"x": word}, answer, wrong, exact_check(answer), level)


def _upper(rng: Random, level: str) -> Draw:
    text = random_sentence(rng)[0].rstrip(".")
    answer = text.upper()
    wrong = " ".join(answer.split()[:-1] + text.split()[-1:])
    return Draw({"x": text}, answer, wrong, exact_check(answer), level)


def _lower(rng: Random, level: str) -> Draw:
    text = random_sentence(rng)[0].rstrip(".").upper()
    answer = text.lower()
    wrong = answer.capitalize()
    return Draw({"x": text}, answer, wrong, exact_check(answer), level)


def _title(rng: Random, level: str) -> Draw:
    text = random_sentence(rng)[0].rstrip(".").lower()
    answer = " ".join(word.capitalize() for word in text.split())
    return Draw({"x": text}, answer, answer.capitalize(), exact_check(answer), level)


def _sort_words(rng: Random, level: str) -> Draw:
    words = [w[0] for w in plain_words(rng, list_size(rng, level))]
    answer = sorted(words)
    slipped = [*answer[:-2], answer[-1], answer[-2]]
    rng.shuffle(words)
    answer_text, wrong = ", ".join(answer), ", ".join(slipped)
    return Draw({"x": ", ".join(words)}, answer_text, wrong, exact_check(answer_text), level)


def _sort_numbers(rng: Random, level: str) -> Draw:
    high = {"easy": 20, "medium": 99, "hard": 999}[level]
    numbers = rng.sample(range(1, high + 1), list_size(rng, level))
    down = rng.random() < 0.4
    answer = sorted(numbers, reverse=down)
    slipped = [answer[1], answer[0], *answer[2:]]
    order = ("descending", "从大到小") if down else ("ascending", "从小到大")
    text = ", ".join(map(str, answer))
    fields: dict[str, Phrase] = {"x": ", ".join(map(str, numbers)), "order": order}
    return Draw(fields, text, ", ".join(map(str, slipped)), exact_check(text), level)


def _count_letter(rng: Random, level: str) -> Draw:
    pool = [w[0] for members in groups().values() for w in members]
    word = rng.choice([w for w in pool if len(w) > {"easy": 3, "medium": 5, "hard": 6}[level]])
    letter = rng.choice(word)
    count = word.count(letter)
    wrong = count + 1 if rng.random() < 0.7 or count == 1 else count - 1
    verb = ("time", "次") if count == 1 else ("times", "次")
    spoiled: dict[str, Phrase] = {"times": ("times" if wrong > 1 else "time", "次")}
    fields: dict[str, Phrase] = {"w": word, "l": letter, "times": verb}
    return Draw(fields, count, wrong, number_check(count), level, spoiled)


def _count_words(rng: Random, level: str) -> Draw:
    english, chinese = random_sentence(rng)
    if level == "hard":
        more = random_sentence(rng)
        english, chinese = english + " " + more[0], chinese + more[1]
    count = len(english.split())
    return Draw({"x": english}, count, near_miss(count, rng), number_check(count), level)


def _length(rng: Random, level: str) -> Draw:
    words = plain_words(rng, list_size(rng, level))
    text = "".join(w[1] for w in words)
    return Draw({"x": text}, len(text), near_miss(len(text), rng), number_check(len(text)), level)


def _dedupe(rng: Random, level: str) -> Draw:
    words = plain_words(rng, list_size(rng, level))
    repeated = list(words)
    for word in rng.sample(words, 2):
        repeated.insert(rng.randint(repeated.index(word) + 1, len(repeated)), word)
    wrong = words[:-1]
    fields: dict[str, Phrase] = {"x": listed(repeated)}
    return Draw(fields, listed(words), listed(wrong), exact_check(listed(words)), level)


def _replace(rng: Random, level: str) -> Draw:
    (name, name_zh), (new, new_zh), (third, third_zh) = rng.sample(NAMES, 3)
    english, chinese = random_sentence(rng, (name, name_zh))
    answer = english.replace(name, new), chinese.replace(name_zh, new_zh)
    wrong = english.replace(name, third), chinese.replace(name_zh, third_zh)
    fields: dict[str, Phrase] = {"x": (english, chinese), "a": (name, name_zh), "b": (new, new_zh)}
    return Draw(fields, answer, wrong, exact_check(answer), level)


def _longest(rng: Random, level: str) -> Draw:
    words = [w[0] for w in plain_words(rng, list_size(rng, level))]
    ranked = sorted(words, key=len)
    if len(ranked[-1]) == len(ranked[-2]):
        return _longest(rng, level)
    check = exact_check(ranked[-1], case=False)
    return Draw({"x": ", ".join(words)}, ranked[-1], ranked[-2], check, level)


def _text_task(
    name: str, draw: Callable[[Random, str], Draw], en: str, zh: str, weight: float = 1.0
) -> Task:
    """Build a task whose answer is a text given back letter for letter."""
    english, chinese = wording(en, _SAY_EN), wording(zh, _SAY_ZH)
    return Task(name, "editing", draw, english, chinese, verbatim=True, weight=weight)


TASKS = (
    _text_task(
        "reverse_words",
        _reverse_words,
        """
        Write these words in reverse order: {x}
        Reverse the order of the words: {x}
        Put these words back to front: {x}
        List the words from last to first: {x}""",
        """
        把这些词倒序排列：{x}
        请按相反的顺序写出：{x}
        从后往前写出这些词：{x}""",
    ),
    _text_task(
        "reverse_letters",
        _reverse_letters,
        """
        Spell the word "{x}" backwards.
        Reverse the letters of "{x}".
        What is "{x}" written backwards?
        Write "{x}" from the last letter to the first.""",
        """
        把单词{x}的字母倒过来写。
        将{x}反向拼写。
        单词{x}从后往前怎么写？""",
    ),
    _text_task(
        "uppercase",
        _upper,
        """
        Write this in capital letters: {x}
        Convert to uppercase: {x}
        Put the text in all caps: {x}""",
        """
        把这句话全部改成大写：{x}
        转换为大写字母：{x}""",
    ),
    _text_task(
        "lowercase",
        _lower,
        """
        Write this in lowercase: {x}
        Convert to small letters: {x}
        Remove all capitals: {x}""",
        """
        把这句话全部改成小写：{x}
        转换为小写字母：{x}""",
    ),
    _text_task(
        "title_case",
        _title,
        """
        Capitalise the first letter of every word: {x}
        Write this in title case: {x}
        Give every word a capital first letter: {x}""",
        """
        把每个单词的首字母改成大写：{x}
        用标题格式书写，每个词首字母大写：{x}""",
        0.7,
    ),
    _text_task(
        "sort_words",
        _sort_words,
        """
        Sort these words alphabetically: {x}
        Put the words in alphabetical order: {x}
        Arrange from A to Z: {x}""",
        """
        按字母顺序排列这些单词：{x}
        请把这些英文词从A到Z排序：{x}""",
    ),
    _text_task(
        "sort_numbers",
        _sort_numbers,
        """
        Sort these numbers in {order} order: {x}
        Arrange in {order} order: {x}
        Put the numbers {x} in {order} order.""",
        """
        把这些数字{order}排列：{x}
        将{x}按{order}的顺序排好。""",
    ),
    _text_task(
        "dedupe",
        _dedupe,
        """
        Remove the repeated words, keep the order: {x}
        Drop duplicates from this list: {x}
        List each word once, in order: {x}""",
        """
        去掉重复的词，保持顺序：{x}
        删除列表中重复的项：{x}""",
    ),
    _text_task(
        "replace",
        _replace,
        """
        Replace "{a}" with "{b}": {x}
        Change {a} to {b} in this sentence: {x}
        Rewrite with {b} instead of {a}: {x}""",
        """
        把“{a}”换成“{b}”：{x}
        将句中的{a}改为{b}：{x}""",
    ),
    Task(
        "longest_word",
        "editing",
        _longest,
        wording(
            """
            Which of these words is the longest: {x}?
            Find the longest word: {x}
            Pick the word with the most letters: {x}""",
            """
            The longest word is "{answer}".
            It is "{answer}".""",
        ),
        wording(
            """
            这些单词中哪个最长：{x}？
            找出字母最多的单词：{x}""",
            """
            最长的是{answer}。
            是{answer}。""",
        ),
    ),
    Task(
        "count_letter",
        "editing",
        _count_letter,
        wording(
            """
            How many times does the letter "{l}" occur in "{w}"?
            Count the letter {l} in the word {w}.
            How often do you find "{l}" in "{w}"?""",
            """
            The letter "{l}" occurs {answer} {times}.
            It occurs {answer} {times} in "{w}".""",
        ),
        wording(
            """
            单词{w}里有几个字母{l}？
            字母{l}在{w}中出现几次？""",
            """
            出现了{answer}次。
            有{answer}个字母{l}。""",
        ),
    ),
    Task(
        "count_words",
        "editing",
        _count_words,
        wording(
            """
            How many words are in this text? {x}
            Count the words: {x}
            What is the word count of: {x}""",
            """
            The text has {answer} words.
            There are {answer} words.""",
        ),
        wording(
            """
            这段英文有多少个单词？{x}
            数一数单词个数：{x}""",
            """
            一共有{answer}个单词。
            共{answer}个单词。""",
        ),
    ),
    Task(
        "count_characters",
        "editing",
        _length,
        None,
        wording(
            """
            “{x}”一共有几个汉字？
            数一数“{x}”有多少个字。""",
            """
            一共有{answer}个字。
            共{answer}个汉字。""",
        ),
    ),
)
