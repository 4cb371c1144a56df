"""A judge that does not ask again about what an annotator has confirmed."""

from __future__ import annotations

import pandas as pd
import pytest

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan.confirmed import Confirmed, confirmed_judge
from hf_glm_curriculum.lifespan.corrections import import_annotations
from hf_glm_curriculum.lifespan.judges import SurveyingJudge
from tests.lifespan.pools import pairs, pool_line, write_jsonl, write_pool
from tests.lifespan.runs import random_rows, train


def frame(rows: list[int], texts: bool = True) -> pd.DataFrame:
    cases = pd.DataFrame(
        {
            "id": [0x7A00_0000_0000_0000 + k for k in rows],
            "loss": [3.0] * len(rows),
            "loss_rank": [0.9 if k else 0.1 for k in rows],
            "suspicion": [9.0] * len(rows),
        }
    )
    if texts:
        cases["prompt"], cases["response"] = zip(*[pairs()[k] for k in rows], strict=True)
    return cases


class Accuser:
    """Sends everything to relabelling and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, cases: pd.DataFrame) -> list[str]:
        assert list(cases.index) == list(range(len(cases)))
        self.asked += cases["id"].tolist()
        return ["RELABEL"] * len(cases)


@pytest.fixture
def corrected(tmp_path):
    """Rows 0 and 3 kept, 1 fixed, 2 dropped, 4 and 5 not reviewed."""
    rows = [{"prompt": p, "response": r} for p, r in pairs()]
    data = write_jsonl(tmp_path / "data.jsonl", rows)
    run = write_pool(tmp_path / "run", [pool_line(k, *p) for k, p in enumerate(pairs())])
    fix = {"row": 1, "decision": "fix", "corrected_response": "Right."}
    said = [{"row": 0, "decision": "keep"}, fix, {"row": 2, "decision": "drop"}]
    answers = write_jsonl(tmp_path / "a.jsonl", [*said, {"row": 3, "decision": "keep"}])
    import_annotations(run, answers, data, tmp_path / "corrected.jsonl")
    return tmp_path / "corrected.jsonl"


def test_kept_samples_are_not_asked_about_again(corrected):
    accuser = Accuser()
    judge = confirmed_judge(accuser, Confirmed.from_data(corrected))
    cases = frame([4, 0, 3, 5])
    assert judge(cases) == ["RELABEL", "MASTERED", "RESAMPLE", "RELABEL"]
    assert accuser.asked == [cases["id"][0], cases["id"][3]]


def test_kept_samples_are_known_by_id_where_no_text_can_be_read(corrected):
    judge = confirmed_judge(Accuser(), Confirmed.from_data(corrected))
    assert judge(frame([3, 4], texts=False)) == ["RESAMPLE", "RELABEL"]


def test_fixed_samples_are_known_by_their_new_text_only(corrected):
    judge = confirmed_judge(Accuser(), Confirmed.from_data(corrected))
    cases = frame([1, 1])
    cases.loc[1, "response"] = " Right.\n"
    cases["id"] = [1, 2]
    assert judge(cases) == ["RELABEL", "RESAMPLE"]


def test_data_without_a_review_leave_the_judge_as_it_is(tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", [{"prompt": "p", "response": "r"}])
    accuser = Accuser()
    assert confirmed_judge(accuser, Confirmed.from_data(data)) is accuser


def test_a_judge_that_returns_too_few_verdicts_is_refused(corrected):
    judge = confirmed_judge(lambda cases: ["RELABEL"], Confirmed.from_data(corrected))
    with pytest.raises(ConfigError, match="one verdict a sample, got 1 for 2"):
        judge(frame([4, 0, 5]))


def test_a_judge_that_surveys_the_data_still_does(corrected):
    class Surveyor(Accuser):
        survey_rows = 7
        seen = 0

        def survey(self, population: pd.DataFrame) -> None:
            self.seen = len(population)

    surveyor = Surveyor()
    judge = confirmed_judge(surveyor, Confirmed.from_data(corrected))
    assert isinstance(judge, SurveyingJudge) and judge.survey_rows == 7
    judge.survey(frame([1, 2]))
    assert surveyor.seen == 2
    assert not isinstance(
        confirmed_judge(Accuser(), Confirmed.from_data(corrected)), SurveyingJudge
    )


def test_in_a_run_a_confirmed_sample_is_never_relabelled():
    rows = random_rows(10)
    everything = LifespanConfig(life_threshold=1e9, warmup_visits=2)  # all go to the pool
    first = SampleLifespanCallback(everything, judge=Accuser())
    train([first], rows=rows, max_steps=15)
    accused = first.ledger.to_pandas().query("state == 'RELABEL'")["id"].tolist()
    assert len(accused) >= 2
    judge = confirmed_judge(Accuser(), Confirmed(frozenset(accused[:1]), frozenset()))
    second = SampleLifespanCallback(everything, judge=judge)
    train([second], rows=rows, max_steps=15)
    samples = second.ledger.to_pandas().set_index("id")
    assert samples["state"][accused[0]] in ("MASTERED", "RESAMPLE", "TRAINING")
    assert samples["weight"][accused[0]] > 0
    assert (samples["state"][accused[1:]] == "RELABEL").all()
