"""Answer checks."""

import json

import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text import check_answer
from hf_glm_curriculum.text.checks import first_named, normalize

NUMBER = {"kind": "number", "value": 12}
YES = {"kind": "yes_no", "value": True}
CHOICE = {"kind": "choice", "value": "Mali", "options": ["Mali", "Peru", "Somalia"]}


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (NUMBER, ["12", "12.0", "It is 12 km.", "7 + 5 = 12.", "Twelve"], ["13", "120", "none"]),
        ({**NUMBER, "ignore": [5]}, ["12 of the 5 boxes"], ["5"]),
        ({"kind": "number", "value": 3.1416, "tolerance": 0.01}, ["3.14"], ["3.2"]),
        ({"kind": "exact", "value": "Paris"}, ["paris", '"Paris."', " Paris \n"], ["In Paris"]),
        ({"kind": "exact", "value": "ABC", "case": True}, ["ABC."], ["abc"]),
        ({"kind": "exact", "any_of": ["yes", "sure"]}, ["Sure!"], ["no"]),
        ({"kind": "contains", "value": "Rome"}, ["It is Rome."], ["Romeo", "It is Oslo."]),
        ({"kind": "contains", "any_of": ["USA", "美国"]}, ["美国队", "the USA"], ["Peru"]),
        ({"kind": "contains", "all_of": ["a", "b"]}, ["a b"], ["a"]),
        ({"kind": "contains", "value": "x", "none_of": ["y"]}, ["x"], ["x and y"]),
        ({"kind": "contains", "value": "ABC", "case": True}, ["so ABC"], ["so abc"]),
        (CHOICE, ["Mali is larger than Peru.", "The answer is Mali, not Peru."], ["Peru", "Asia"]),
        ({"kind": "sequence", "value": ["ant", "bee"]}, ["ant, bee"], ["bee, ant", "ant"]),
        (YES, ["Yes.", "Yes, it is", "是的", "The answer is yes"], ["No.", "不是", "Maybe"]),
        ({"kind": "yes_no", "value": False}, ["No, sorry", "不对", "False"], ["Yes", "Nothing"]),
        ({"kind": "language", "value": "zh"}, ["你好"], ["Hello"]),
        ({"kind": "refusal"}, ["I can't help with that."], ["Sure, here it is."]),
        ({"kind": "refusal", "value": False}, ["Sure, here it is."], ["抱歉，我不能帮你。"]),
        ({"kind": "all", "checks": [NUMBER, {"kind": "language", "value": "en"}]},
         ["It is 12."], ["是12。"]),
        ({"kind": "any", "checks": [NUMBER, YES]}, ["12", "yes"], ["no"]),
        ({"kind": "not", "check": NUMBER}, ["13"], ["12"]),
        ({"kind": "format", "constraints": [{"rule": "lowercase"}, {"rule": "json"}]},
         ['{"a": 1}'], ["lower", '{"A": 1}']),
    ],
)  # fmt: skip
def test_right_and_wrong_answers(spec, right, wrong):
    for answer in right:
        assert check_answer(answer, spec), answer
        assert check_answer(answer, json.dumps(spec)), answer
    for answer in wrong:
        assert not check_answer(answer, spec), answer


def test_the_longest_option_at_a_place_is_the_one_named():
    assert first_named("巴布亚新几内亚在大洋洲", ["几内亚", "巴布亚新几内亚"]) == "巴布亚新几内亚"
    assert first_named("Nigeria", ["Niger", "Nigeria"]) == "Nigeria"
    assert first_named("nothing here", ["Niger"]) is None


def test_normalize_folds_width_case_and_edges():
    assert normalize(" “Ｐａｒｉｓ”。 ") == "paris"
    assert normalize("A  B!", case=True) == "A B"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "guess"}, "unknown answer check"),
        ({}, "unknown answer check"),
        ({"kind": "number"}, "needs the field 'value'"),
        ({"kind": "contains"}, "needs the field 'value'"),
        ({"kind": "choice", "value": "a"}, "needs the field 'options'"),
        ("[1]", "must be a JSON object"),
        ("{", "not valid JSON"),
    ],
)
def test_malformed_checks_say_what_is_missing(spec, message):
    with pytest.raises(DataError, match=message):
        check_answer("12", spec)
