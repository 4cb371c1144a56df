"""IFEval's instructions as checks."""

import json
import os
from pathlib import Path

import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text import check_answer, ifeval_checks
from hf_glm_curriculum.text.ifeval import INSTRUCTIONS

_DATA = Path(os.environ.get("HGC_DATA", Path(__file__).parents[3] / "shared" / "data"))
_FILE = _DATA / "instruct_ifeval" / "input_data.jsonl"


def _passes(name, arguments, response):
    (check,) = ifeval_checks([name], [arguments])
    return check_answer(response, check)


@pytest.mark.parametrize(
    ("name", "arguments", "kept", "broken"),
    [
        ("punctuation:no_comma", {}, "No comma here.", "One, two."),
        ("keywords:existence", {"keywords": ["sea", "sun"]}, "Sun and sea.", "Sun only."),
        ("keywords:forbidden_words", {"forbidden_words": ["no"]}, "Yes.", "No."),
        ("keywords:frequency", {"keyword": "go", "frequency": 2, "relation": "at least"},
         "go go", "go"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "less than"},
         "two words", "three whole words"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n* b", "* a"),
        ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
        ("combination:two_responses", {}, "One\n******\nTwo", "One"),
        ("startend:end_checker", {"end_phrase": "Over."}, "That is it. Over.", "Over and out"),
        ("language:response_language", {"language": "ko"}, "안녕하세요", "Hello"),
        ("length_constraints:nth_paragraph_first_word",
         {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, "a\n\nSo b", "so\n\na"),
    ],
)  # fmt: skip
def test_instructions_kept_and_broken(name, arguments, kept, broken):
    assert _passes(name, arguments, kept)
    assert not _passes(name, arguments, broken)


def test_unknown_ids_and_missing_arguments_are_errors():
    with pytest.raises(DataError, match="unknown id"):
        ifeval_checks(["poetry:rhyme"], [{}])
    with pytest.raises(DataError, match="kwargs lack"):
        ifeval_checks(["keywords:existence"], [{}])


@pytest.mark.skipif(not _FILE.exists(), reason="the IFEval prompts are not at $HGC_DATA")
def test_every_published_prompt_has_checks_that_run():
    rows = [json.loads(line) for line in _FILE.read_text("utf-8").splitlines()]
    seen = set()
    for row in rows:
        arguments = [{k: v for k, v in k_.items() if v is not None} for k_ in row["kwargs"]]
        checks = ifeval_checks(row["instruction_id_list"], arguments)
        assert len(checks) == len(row["instruction_id_list"])
        for check in checks:
            assert check_answer("Hello.", check) in (True, False)
        seen |= set(row["instruction_id_list"])
    assert seen == set(INSTRUCTIONS)
