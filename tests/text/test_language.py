"""Language by script."""

import pytest

from hf_glm_curriculum.text.language import count_scripts, detect_language, same_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France?", "en"),
        ("法国的首都是哪里？", "zh"),
        ("Python 是一种编程语言。", "zh"),
        ("请使用 repeat until 和 change x by 这两个块。", "zh"),
        ("The capital of China is 北京.", "en"),
        ("The word 学校 means school.", "en"),
        ("This café is open.", "en"),
        ("これは日本語の文章です。", "other"),
        ("안녕하세요, 반갑습니다", "other"),
        ("Это русский текст.", "other"),
        ("Où est l'école à côté du marché ?", "other"),
        ("42 + 1 = 43", "other"),
        ("", "other"),
    ],
)
def test_language_of_plain_and_mixed_text(text, language):
    assert detect_language(text) == language


def test_counts_by_script():
    counts = count_scripts("Hello 世界, こ é 1")
    assert counts.latin_words == 2
    assert counts.han == 2
    assert counts.kana == 1
    assert counts.accented_letters == 1


def test_text_without_letters_agrees_with_any_language():
    assert same_language("42", "是四十二。")
    assert same_language("Yes.", "No way.")
    assert not same_language("Yes, it is.", "是的。")
