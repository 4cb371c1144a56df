"""Each rule of the audit: what it must find, and what looks alike and is right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data.audit_endings import ending
from hf_glm_curriculum.data.audit_text import (
    asks_for_other_script,
    contradiction,
    copied,
    is_empty,
    mojibake,
    normalise,
    question_key,
    script,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there", "latin"),
        ("什么是Python？", "zh"),
        ("これは日本語です", "ja"),
        ("한국어 문장입니다", "ko"),
        ("91-33=58", "other"),
        ("Ça va, où est l'école ?", "latin"),
    ],
)
def test_script(text, expected):
    assert script(text) == expected


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("What is 2 + 2?", "  what is 2+2", True),
        ("请问，法国的首都是哪里？", "法国的首都是哪里", True),
        ("Please name the capital of France.", "Name the capital of France", True),
        ("Hello, could you tell me who he is? Thanks!", "Who he is", True),
        ("history of Rome", "story of Rome", False),
        ("请教一下", "教一下", True),
        ("3-2=", "3+2=", False),
        ("Double 3.5", "Double 35", False),
        ("(2+3)*4", "2+(3*4)", False),
        ("Ｗｈａｔ is it", "what is it?", True),
    ],
)
def test_question_key(first, second, same):
    assert (question_key(normalise(first)) == question_key(normalise(second))) == same


@pytest.mark.parametrize("answer", ["", "  \n", "...", "。", "—", "\u3000"])
def test_empty(answer):
    assert is_empty(answer)


@pytest.mark.parametrize("answer", ["+", "0", "无", ":-)"])
def test_not_empty(answer):
    assert not is_empty(answer)


@pytest.mark.parametrize(
    ("prompt", "answer", "found"),
    [
        ("name three fruits", "name three fruits", True),
        (f"explain {'x' * 40}", f"explain {'x' * 40}: it works.", True),
        ("91-33=", "91-33=58", False),
        ("什么是位图", "什么是位图，位图是一种图像。", False),
        ("fix the grammar: he go home", "he goes home", False),
        ("", "", False),
    ],
)
def test_copied(prompt, answer, found):
    assert (copied(prompt, answer) is not None) == found


CLEAN = [
    "Les élèves ont dit : « déjà vu » à Noël — “café”… naïve",
    "NÃO É VERDADE, AÇÃO! Ärger über Öl; 20 °C ± 3 µm",
    "„Ä“ ist ein Umlaut, “Ö” auch",
    "联通电话由中国联合网络通信集团提供服务，请拨打客服热线。",
    "Здравствуйте, как дела? こんにちは 안녕하세요 🙂🚀",
    "tabs\tand\r\nline breaks\nare fine",
]


@pytest.mark.parametrize("text", CLEAN)
def test_clean_text_is_not_mojibake(text):
    assert mojibake(text) is None


@pytest.mark.parametrize("text", CLEAN[:1] + CLEAN[3:5])
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1", "gb18030", "replace", "lossy"])
def test_misread_text_is_found(text, wrong):
    data = text.encode("utf-8")
    if wrong == "replace":
        broken = data[:-1].decode("utf-8", "replace") if text[-1] > "\x7f" else text + "\ufffd"
    elif wrong == "lossy":
        broken = "\ufffd\ufffd".encode().decode("gbk") + text
    else:
        broken = data.decode(wrong, "replace")
    assert mojibake(broken) is not None


def test_control_characters():
    assert mojibake("a\x00b") == "control character U+0000"
    assert mojibake("中\x85文") is None  # NEL, a line break


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Here is the code:\n```python\nprint(1)", "code fence"),
        ("The main reason for this is the", "'the'"),
        ("First you should mix the eggs, the flour, the sugar,", "','"),
        ("这种方法能够有效地修复和再制造破损的部件，降低成本，", "'，'"),
        ("数据结构包括数组、链表、栈、队列以及", "'以及'"),
        ("It was founded in Paris (in the year of the great war", "'('"),
        ("他在文章中引用了一句古诗：“山重水复疑无路，柳暗花明", "'“'"),
        ("1. Join a club. 2. Call a friend. 3", "list number '3'"),
        ("53*90=", "'='"),
        ("70-", "'-'"),
        ("1- Wake up early 2- Eat well 3-", "list number '3'"),
        ("- Visit the tower - Eat a crepe - Walk home -", "list mark '-'"),
        ("def total(k): s = 0 for", "'for'"),
        ('fruits = ["apple", "banana"', "'['"),
        ("You can go there by bus. The fare is low. It takes", "the last sentence has no stop"),
        ("认知科学是一门学科。它通过多种方法研究人脑的运作", "the last sentence has no stop"),
    ],
)
def test_answers_cut_for_certain(answer, reason):
    found = ending(answer)
    assert found.reason is not None and reason in found.reason and not found.finished


@pytest.mark.parametrize(
    "answer",
    [
        "Yes",
        "Rated 17+",
        "- apples\n- pears\n- plums",
        "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you",
        "def f(x):\n    return x",
        "See https://example.com/a_page",
        "Dear Ann,\nthank you for the gift.\n\nYours,\nBob",
        "A smile :(",
        "1) red 2) green",
        "The 1. FC won with 2",
        "So 4 - 3 = 1 more than 9-8=<<9-8=1>>1.\n#### 1",
        "A Visit From St. Nicholas by Clement Moore",
        '"G" (A3|A2) d| "C" g2 g|!',
        "Between 3 and 4",
        "该方法（见图1)效果很好。",
        "Done.",
        "正面情绪",
    ],
)
def test_answers_that_end_as_they_should(answer):
    found = ending(answer)
    assert found.reason is None
    assert found.finished or found.peers is None


@pytest.mark.parametrize(
    "answer",
    [
        "The largest city in the U.S. that lies inland is Indianapolis",
        "No. I am your father",
        "It depends on which country you are in",
        "Yes, they are",
    ],
)
def test_whole_sentences_without_a_stop_are_not_cut_for_certain(answer):
    assert ending(answer).reason is None


def test_prose_is_left_to_its_peers():
    cut = ending("Water boils at a lower temperature on a mountain because the air pressure is")
    whole = ending("Water boils at a lower temperature on a mountain, as pressure is low there.")
    assert (cut.reason, cut.finished, whole.finished) == (None, False, True)
    assert cut.peers == whole.peers == "latin, long"
    assert ending("水在高山上沸腾的温度比较低，这是因为那里的气压").peers == "zh, long"


@pytest.mark.parametrize(
    ("prompt", "first", "second", "clash"),
    [
        ("is the earth flat?", "no, it is round.", "yes.", True),
        ("块对大小写敏感吗?", "在1.4中,块对大小写敏感。", "块不区分大小写。", True),
        ("capital of france?", "paris", "lyon", True),
        ("capital of france?", "paris", "the capital is paris", False),
        ("capital of france?", "paris.", "paris", False),
        ("how far is it?", "it is 42 km away.", "it is 24 km away.", True),
        ("荷兰在哪个洲?", "它在欧洲。", "荷兰位于欧洲。", False),
        ("荷兰在哪个洲?", "它在欧洲。", "荷兰位于亚洲。", True),
        ("这个词是哪种情绪?", "正面情绪", "负面情绪", True),
        ("write a poem", "the sea is wide and blue and old", "a bird sat on a garden wall", False),
        ("如何检测是否按下?", "使用按键块。", "使用另一块检测是否按下,不用别的。", False),
        ("什么是递归?", "递归是函数调用自身。", "递归是一种方法,不是循环。", False),
    ],
)
def test_contradiction(prompt, first, second, clash):
    assert (contradiction(prompt, first, second) is not None) == clash
    assert (contradiction(prompt, second, first) is not None) == clash


def test_other_script_can_be_asked_for():
    assert asks_for_other_script("translate to chinese: good morning", "zh")
    assert asks_for_other_script("what does 学而时习之 mean", "zh")
    assert asks_for_other_script("用python写排序", "latin")
    assert not asks_for_other_script("name three fruits", "zh")
    assert not asks_for_other_script("说出三种水果", "latin")


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_text_breaks_a_rule(first, second):
    one, two = normalise(first), normalise(second)
    assert normalise(one) == one or not one.isascii()
    contradiction(one, two, one)
    copied(one, two)
    mojibake(first)
    question_key(one)
    found = ending(first)
    assert not (found.reason and found.finished)


@given(st.text(alphabet=st.sampled_from("ab12 .,:!?\"'，。！\u3000\u00a0中"), max_size=30))
def test_the_quick_way_to_a_key_is_the_expression(text):
    from hf_glm_curriculum.data import audit_text

    expected = audit_text._KEY_NOISE.sub("", audit_text._POLITE.sub("", text))
    assert question_key(text) == (expected or text)


@given(st.text(alphabet=st.characters(min_codepoint=0x3400, max_codepoint=0x9FFF), min_size=6))
def test_any_chinese_misread_as_gbk_is_found(text):
    run = text.encode("utf-8").decode("gb18030", "ignore")
    whole = text.encode("utf-8") == run.encode("gb18030")
    if whole and all("\u3400" <= c <= "\u9fff" for c in run) and len(run) >= 6:
        assert mojibake(run) is not None
