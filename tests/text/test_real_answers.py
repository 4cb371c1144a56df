"""Text rules on real answers that nobody here wrote."""

import json
import os
from pathlib import Path

import pytest

from hf_glm_curriculum.text import check_answer, detect_language, is_refusal, looks_truncated

_DATA = Path(os.environ.get("HGC_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not _DATA.exists(), reason="the real data are not at $HGC_DATA")


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (_DATA / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def chinese() -> list[str]:
    folder = _DATA / "instruct_zh_supplement"
    answers = [row["output"] for path in sorted(folder.glob("*.jsonl")) for row in _rows(str(path))]
    return [answer for answer in answers if len(answer) > 30]


@pytest.fixture(scope="module")
def english() -> list[str]:
    tasks = _rows("instruct_self_instruct/seed_tasks.jsonl")
    answers = [instance["output"] for task in tasks for instance in task["instances"]]
    return [answer for answer in answers if len(answer) > 30]


def test_marked_solutions_get_the_verdict_of_their_markers():
    agree = total = 0
    for row in _rows("logic_gsm8k/example_model_solutions_first.jsonl"):
        value = float(row["ground_truth"].split("A:")[-1].replace(",", ""))
        for entry in row.values():
            if isinstance(entry, dict):
                right = check_answer(entry["solution"], {"kind": "number", "value": value})
                agree += right is entry["is_correct"]
                total += 1
    assert total > 1000
    assert agree / total > 0.995


def test_language_of_real_answers(english, chinese):
    assert sum(detect_language(text) == "en" for text in english) / len(english) > 0.97
    assert sum(detect_language(text) == "zh" for text in chinese) / len(chinese) > 0.95


def test_truncation_separates_whole_answers_from_their_first_half(english, chinese):
    for texts, found, false_alarms in ((english, 0.5, 0.1), (chinese, 0.8, 0.02)):
        halves = [text[: len(text) // 2] for text in texts]
        assert sum(map(looks_truncated, halves)) / len(halves) > found
        assert sum(map(looks_truncated, texts)) / len(texts) < false_alarms


def test_real_answers_are_rarely_called_refusals(english, chinese):
    assert sum(map(is_refusal, english + chinese)) / len(english + chinese) < 0.005
