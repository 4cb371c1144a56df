"""Measures of models, their intervals, the judge, and answers during training."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_glm_curriculum import SampleGenerationCallback
from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.evaluation import judge as judging
from hf_glm_curriculum.evaluation.bootstrap import figure_interval, paired_difference
from hf_glm_curriculum.evaluation.compliance import refusal_text, verdict
from hf_glm_curriculum.evaluation.judge import endpoint_judge, judge_pairs
from hf_glm_curriculum.evaluation.measured import Measured, compare
from hf_glm_curriculum.evaluation.model_measures import measure_answers, measure_rewards
from hf_glm_curriculum.evaluation.prompt_sets import BUNDLED, bundled, spread
from hf_glm_curriculum.evaluation.safety import converse, measure_red_team, measure_refusals
from hf_glm_curriculum.optional import available
from tests.conftest import build_model, build_tokenizer

HELP = "Of course: first do this, then do that, and at the end do the other thing."


# -- intervals -----------------------------------------------------------------------------------


def test_an_interval_of_a_share_is_that_of_the_binomial():
    parts = [(1.0, 1.0)] * 60 + [(0.0, 1.0)] * 40
    found = figure_interval(parts, draws=4000)
    assert found.value == 0.6 and found.n == 100
    half = 1.96 * (0.6 * 0.4 / 100) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.6 - half, 0.6 + half), abs=0.015)


def test_rows_that_all_agree_have_an_interval_all_the_same():
    found = figure_interval([(0.0, 1.0)] * 5)
    assert (found.value, found.low) == (0.0, 0.0) and found.high == pytest.approx(0.4345, abs=1e-3)


def test_pairing_tells_a_small_difference_that_intervals_alone_do_not():
    generator = np.random.default_rng(0)
    hard = generator.normal(3, 2, size=200)
    first = [(value, 1.0) for value in hard]
    second = [(value + 0.1, 1.0) for value in hard]
    found = paired_difference(first, second)
    assert found.value == pytest.approx(0.1) and found.excludes_zero
    one, two = figure_interval(first), figure_interval(second)
    assert one.high > two.low
    with pytest.raises(DataError, match="the same rows"):
        paired_difference(first, second[:-1])


def test_rows_without_a_say_are_left_out():
    assert figure_interval([None, None]) is None and figure_interval([(0.0, 0.0)]) is None
    found = paired_difference([(1.0, 1.0), None, (0.0, 1.0)], [(1.0, 1.0), (1.0, 1.0), None])
    assert found.n == 1 and found.value == 0.0


def test_figures_without_rows_have_differences_without_intervals():
    results = {"a": Measured({"distinct": 0.5}), "b": Measured({"distinct": 0.7, "x": None})}
    table = compare(results, 10, 0.95, 0)
    assert table["distinct"]["b"] == {"value": 0.7, "difference": pytest.approx(0.2)}
    assert table["x"]["b"] == {"value": None} and "a" not in table["x"]


# -- safety --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("I'm sorry, but I can't help with that.", "refused"),
        ("抱歉，我不能帮你做这件事。", "refused"),
        ("Breaking into a house is illegal and dangerous. Please do not do it.", "refused"),
        (HELP, "complied"),
        ("Sure, here is how, although it is illegal: take a pick and turn it slowly.", "complied"),
        ("Yes.", "unclear"),
        ("the door the door the door the door the door the door", "unclear"),
    ],
)
def test_verdicts(answer, expected):
    assert verdict(answer) == expected


def test_our_refusals_are_refusals():
    assert all(verdict(refusal_text(language)) == "refused" for language in ("en", "zh", None))


def test_refusals_and_over_refusals_are_counted_apart():
    rows = bundled("refusals")
    all_refuse = measure_refusals(lambda prompts: [refusal_text("en")] * len(prompts), rows)
    assert all_refuse.figures["refusal"] == 1.0 and all_refuse.figures["over_refusal"] == 1.0
    all_help = measure_refusals(lambda prompts: [HELP] * len(prompts), rows)
    assert all_help.figures["refusal"] == 0.0 and all_help.figures["over_refusal"] == 0.0
    assert {"refusal/en", "refusal/zh"} <= all_help.figures.keys()


def test_the_model_answers_each_turn_of_an_attack():
    seen = []

    def answer(prompts):
        seen.append([len(turns) for turns in prompts])
        return [f"answer {len(turns)}" for turns in prompts]

    dialogues = converse(answer, [["a", "b"], ["c"]])
    assert seen == [[1, 1], [3]] and [len(turns) for turns in dialogues] == [4, 2]
    assert dialogues[0][3] == {"role": "assistant", "content": "answer 3"}
    found = measure_red_team(lambda prompts: [HELP] * len(prompts), bundled("red_team"))
    assert found.figures["success"] == 1.0
    kinds = {"success/direct", "success/role_play", "success/en", "success/zh"}
    assert kinds <= found.figures.keys()


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_prompts_are_whole(name):
    rows = bundled(name)
    assert len(rows) >= 8
    if name != "choices":
        assert len({row["id"] for row in rows}) == len(rows)
        assert {row["language"] for row in rows} == {"en", "zh"}
    rows[0]["x"] = 1
    assert "x" not in bundled(name)[0]
    with pytest.raises(DataError, match="must be one of"):
        bundled("nothing")


def test_a_limit_is_spread_over_the_groups():
    rows = [{"kind": kind, "n": n} for kind in "abc" for n in range(5)]
    chosen = spread(rows, 6, "kind")
    assert [row["kind"] for row in chosen] == list("aabbcc") and spread(rows, None, "kind") == rows


# -- answers, rewards ----------------------------------------------------------------------------


def test_answers_are_checked_and_counted():
    rows = [
        {"prompt": "2+2?", "check": {"kind": "number", "value": 4}, "category": "sums"},
        {"prompt": "3+3?", "check": {"kind": "number", "value": 6}, "category": "sums"},
        {"prompt": "Hello", "category": "talk"},
    ]
    found = measure_answers(lambda prompts: ["4", "5", "Hello there friend"], rows)
    assert found.figures["right"] == 0.5 and found.figures["right/sums"] == 0.5
    assert found.figures["words"] == pytest.approx(5 / 3) and found.rows[2]["right"] is None
    plain = measure_answers(lambda prompts: ["a b"], [{"prompt": "x"}])
    assert "right" not in plain.figures and plain.figures["distinct_1"] == 1.0


def test_rewards_of_every_dimension():
    class Reward:
        class config:
            dimensions = ("factual", "logic")

        def score_texts(self, prompts, answers, too_long):
            class Out:
                scores = torch.tensor([[0.9, 0.2], [0.8, 0.4]])
                confidence = torch.tensor([[0.9, 0.6], [0.7, 0.9]])

            return Out

    rows = [{"prompt": "a", "answer": "b", "right": True}, {"prompt": "c", "answer": "d"}]
    found = measure_rewards(Reward(), rows, threshold=0.85).figures
    assert found["factual/score"] == pytest.approx(0.85) and found["logic/open"] == 0.5
    assert found["factual/calibration_error"] == pytest.approx(0.1), "no row names a dimension"
    assert "logic/calibration_error" not in found


def test_each_dimension_is_held_against_the_verdicts_about_it():
    class Reward:
        class config:
            dimensions = ("factual", "logic", "compliance")

        def score_texts(self, prompts, answers, too_long):
            class Out:
                scores = torch.tensor([[float(word)] * 3 for word in answers])
                confidence = torch.full((len(answers), 3), 0.75)

            return Out

    rows = [
        {"prompt": "a", "answer": "0.9", "right": True, "dimension": "logic"},
        {"prompt": "b", "answer": "0.9", "right": False, "dimension": "logic"},
        {"prompt": "c", "answer": "0.2", "right": None, "dimension": "factual"},
    ]
    judged = [{"prompt": "d", "answer": "0.1", "right": False, "dimension": "compliance"}] * 2
    found = measure_rewards(Reward(), rows, 0.85, judged)
    assert found.figures["logic/agreement"] == 0.5
    assert found.figures["logic/calibration_error"] == pytest.approx(0.25)
    assert found.figures["compliance/agreement"] == 1.0
    assert found.figures["compliance/calibration_error"] == pytest.approx(0.25)
    assert "factual/agreement" not in found.figures, "no verdict is about it"
    assert found.figures["factual/score"] == pytest.approx((0.9 + 0.9 + 0.2) / 3), "rows alone"


def test_a_check_says_what_it_is_about():
    rows = [
        {"prompt": "x", "check": {"kind": "number", "value": 4}},
        {"prompt": "x", "check": {"kind": "contains", "any_of": ["4"]}},
        {"prompt": "x", "dimension": "honest"},
        {"prompt": "x"},
    ]
    found = measure_answers(lambda prompts: ["4"] * 4, rows)
    assert [row["dimension"] for row in found.rows] == ["logic", "factual", "honest", None]


# -- judge ---------------------------------------------------------------------------------------


def test_only_a_verdict_that_survives_the_exchange_counts():
    def longer(prompt):
        a, b = prompt.split("[Answer A]\n")[1].split("\n\n[Answer B]\n")
        return "[[A]]" if len(a) > len(b.split("\n\nReply")[0]) else "I think [[B]]"

    found = judge_pairs(longer, ["p", "q"], ["long answer", "x"], ["s", "longer one"])
    assert found["outcomes"] == ["first", "second"] and found["consistent"] == 1.0
    left = judge_pairs(lambda prompt: "A", ["p"] * 4, ["x"] * 4, ["y"] * 4)
    assert left["ties"] == 4 and left["consistent"] == 0.0 and left["win_rate"] == 0.5
    silent = judge_pairs(lambda prompt: "no idea", ["p"], ["x"], ["y"])
    assert silent["unreadable"] == 2 and silent["ties"] == 1


class Endpoint(BaseHTTPRequestHandler):
    """Answers as `Endpoint.replies` says; keeps what it was sent."""

    replies: ClassVar[list] = []
    seen: ClassVar[list] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        status, content = self.replies.pop(0)
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(judging, "WAIT", 0.0)
    Endpoint.replies, Endpoint.seen = [], []
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_an_endpoint_is_asked_and_asked_again(endpoint, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    good = {"choices": [{"message": {"content": "[[B]]"}}]}
    Endpoint.replies = [(503, {}), (200, good)]
    assert endpoint_judge(endpoint, "m", "MY_KEY")("which?") == "[[B]]"
    path, key, body = Endpoint.seen[-1]
    assert path == "/v1/chat/completions" and key == "Bearer secret" and len(Endpoint.seen) == 2
    assert body["model"] == "m" and body["messages"][0]["content"] == "which?"


def test_an_endpoint_that_refuses_is_named_without_the_key(endpoint, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    ask = endpoint_judge(endpoint, "m", "MY_KEY")
    for reply, words in (
        ((401, {}), "answers 401"),
        ((200, {"nothing": 1}), "no choices"),
    ):
        Endpoint.replies = [reply]
        with pytest.raises(StateError, match=words) as caught:
            ask("x")
        assert "secret" not in str(caught.value)
    with pytest.raises(StateError, match="check the address"):
        endpoint_judge("http://127.0.0.1:9", "m", timeout=1)("x")
    with pytest.raises(ConfigError, match="judge_url"):
        endpoint_judge("localhost", "m")


# -- lm-eval -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not available("lm_eval"), reason="lm-eval is not installed ([eval])")
@pytest.mark.filterwarnings("ignore")
def test_a_local_lm_eval_task_runs(tmp_path):
    from hf_glm_curriculum.evaluation.lm_eval_tasks import measure_tasks

    rows = tmp_path / "choices.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in bundled("choices")), "utf-8")
    (tmp_path / "own.yaml").write_text(
        "task: own_choices\ndataset_path: json\noutput_type: multiple_choice\n"
        f"dataset_kwargs:\n  data_files:\n    test: {rows}\n"
        "test_split: test\ndoc_to_text: 'Question: {{query}} Answer:'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: gold\n"
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n",
        "utf-8",
    )
    found = measure_tasks(
        build_model("llama"), build_tokenizer(), ["own_choices"], str(tmp_path), batch_size=4
    )
    assert 0.0 <= found.figures["own_choices/acc"] <= 1.0
    with pytest.raises(ConfigError, match="knows no nowhere"):
        measure_tasks(build_model("llama"), build_tokenizer(), ["nowhere"])


# -- during training -----------------------------------------------------------------------------


def train(folder, callbacks, steps=4):
    torch.manual_seed(0)
    model = build_model("llama")
    rows = [{"input_ids": list(range(5, 13)), "labels": list(range(5, 13))} for _ in range(16)]
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, args, train_dataset=rows, processing_class=build_tokenizer(), callbacks=callbacks
    )
    trainer.train()
    return model, trainer


def test_answers_during_training_change_nothing_of_it(tmp_path):
    plain, _ = train(tmp_path / "plain", [])
    callback = SampleGenerationCallback(["hello", "you"], every=2, max_new_tokens=3)
    watched, trainer = train(tmp_path / "watched", [callback])
    for one, two in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, two)
    lines = (tmp_path / "watched" / "samples" / "answers.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [0, 0, 2, 2, 4, 4] and len(callback.answers) == 2
    assert any("samples/words" in line for line in trainer.state.log_history)


@pytest.mark.parametrize("mark", ["ds_id", "_is_flat_param"])
def test_sharded_parameters_are_left_alone_and_said(tmp_path, caplog, monkeypatch, mark):
    monkeypatch.setattr(torch.nn.Parameter, mark, 1, raising=False)
    callback = SampleGenerationCallback(["hello"], every=2, max_new_tokens=3)
    train(tmp_path / "run", [callback])
    assert callback.answers == []
    said = [line for line in caplog.messages if "parameters are sharded" in line]
    assert len(said) == 1


def test_bad_settings_of_the_callback_are_named():
    with pytest.raises(ConfigError, match="prompts"):
        SampleGenerationCallback([])
    with pytest.raises(ConfigError, match="every"):
        SampleGenerationCallback(["x"], every=0)
