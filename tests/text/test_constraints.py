"""Format constraints."""

import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.constraints import RULES, check_format

CASES = [
    ({"rule": "bullets", "count": 2}, "- a\n* b", "- a\n- b\n- c"),
    ({"rule": "numbered", "count": 2}, "1. a\n2) b", "1. a"),
    ({"rule": "words", "relation": "at most", "count": 3}, "one two three", "one two three four"),
    ({"rule": "words", "count": 4}, "我爱北京", "我爱北京市"),
    ({"rule": "characters", "relation": "less than", "count": 5}, "abcd", "abcde"),
    ({"rule": "sentences", "relation": "at least", "count": 2}, "One. Two.", "One."),
    ({"rule": "paragraphs", "count": 2}, "a\n\nb", "a\nb"),
    ({"rule": "lines", "count": 2}, "a\nb", "a"),
    ({"rule": "parts", "divider": "***", "count": 2}, "a\n***\nb", "a"),
    ({"rule": "sections", "value": "Section", "count": 2}, "# Section 1\nx\nSection 2", "Section"),
    ({"rule": "placeholders", "relation": "at least", "count": 1}, "Dear [name]", "Dear []"),
    ({"rule": "highlights", "count": 2}, "*a* and **b**", "* a bullet\n*a*"),
    ({"rule": "capital_words", "count": 1}, "A big DOG ran"[2:], "a big dog"),
    ({"rule": "letter", "value": "e", "count": 2}, "Eel", "elm"),
    ({"rule": "phrase", "value": "cat", "count": 1}, "A cat.", "category"),
    ({"rule": "lowercase"}, "all small", "Not small"),
    ({"rule": "uppercase"}, "LOUD 1", "Loud"),
    ({"rule": "starts_with", "value": "Dear"}, " dear all", "My dear"),
    ({"rule": "ends_with", "value": "Thank you."}, "So: thank you.", "Thank you. Bye"),
    ({"rule": "paragraph_opens", "index": 2, "value": "So"}, "a\n\nso it is", "so\n\nb"),
    ({"rule": "json"}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ({"rule": "title"}, "<<Joy>>\ntext", "<<>> text"),
    ({"rule": "quoted"}, '"all of it"', 'some "of it"'),
    ({"rule": "without", "value": ","}, "no comma", "a, b"),
    ({"rule": "language", "value": "zh"}, "中文回答", "English"),
]


@pytest.mark.parametrize(("constraint", "kept", "broken"), CASES)
def test_each_rule_kept_and_broken(constraint, kept, broken):
    assert check_format(kept, constraint)
    assert not check_format(broken, constraint)


def test_every_rule_has_a_case():
    assert {constraint["rule"] for constraint, _, _ in CASES} == set(RULES)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"rule": "rhymes"}, "unknown rule 'rhymes'"),
        ({"rule": "bullets"}, "needs the parameter 'count'"),
        ({"rule": "bullets", "count": 1, "relation": "about"}, "must be one of exactly"),
    ],
)
def test_malformed_constraints_are_named(constraint, message):
    with pytest.raises(DataError, match=message):
        check_format("- a", constraint)
