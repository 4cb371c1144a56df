"""Exact norms against one sample at a time: its own forward and backward, alone and unpacked."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.models import causal_lm
from hf_glm_curriculum.signals.exact import GhostNorms
from hf_glm_curriculum.signals.probe import SampleProbe
from tests.conftest import build_model
from tests.lifespan.runs import Collator, random_rows, train
from tests.processes import launch_script

CONFIG = LifespanConfig(grad_norm="exact", weighting="none", life_threshold=0.0)
UNTIED = {"tie_word_embeddings": False}
MODELS = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-untied": ("llama", UNTIED),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "gpt2": ("gpt2", {}),
}
LORA = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear", "use_rslora": True, "bias": "all"},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
}


def with_lora(model: nn.Module, **settings: Any) -> nn.Module:
    """The model with LoRA whose matrices are all non-zero."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **settings))


def norm_alone(model: nn.Module, row: dict[str, list[int]]) -> float:
    """Norm over all trainable parameters of the row's own mean loss."""
    batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
    model.zero_grad()
    model(**batch, use_cache=False).loss.backward()
    found = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.stack(found).norm().item()


def alone(model: nn.Module, rows: list[dict[str, list[int]]]) -> list[float]:
    """The oracle for every row."""
    model.train()
    return [norm_alone(model, row) for row in rows]


def probed(
    model: nn.Module,
    batch: dict[str, Tensor],
    weights: Any = None,
    scale: float = 1.0,
    **kwargs: Any,
) -> list[float]:
    """What the probe says in one pass over a batch."""
    model.train()
    with SampleProbe(model).attach(weights, exact=True) as signals:
        (model(**batch, use_cache=False, **kwargs).loss * scale).backward()
        (seen,) = signals.drain()
    model.zero_grad()
    return seen.grad_norm.tolist()


def packed(rows: list[list[dict[str, list[int]]]], gap: int = 0) -> dict[str, Tensor]:
    """Several samples a row, first labels masked as collators do, rows padded to one length."""
    width = max(sum(len(s["input_ids"]) for s in row) for row in rows) + gap
    batch: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "position_ids": []}
    for row in rows:
        ids = [t for s in row for t in s["input_ids"]]
        labels = [t for s in row for t in [-100, *s["labels"][1:]]]
        position = [i for s in row for i in range(len(s["input_ids"]))]
        rest = width - len(ids)
        batch["input_ids"].append(ids + [0] * rest)
        batch["labels"].append(labels + [-100] * rest)
        batch["position_ids"].append(position + [0] * rest)
    return {name: torch.tensor(values) for name, values in batch.items()}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_padded_rows_are_one_sample_at_a_time(name, side):
    if name == "gpt2" and side == "left":
        pytest.skip("GPT-2 counts positions from the padding: a padded row is another input")
    kind, settings = MODELS[name]
    model = build_model(kind, **settings)
    rows = random_rows(6)
    expected = alone(model, rows)
    assert probed(model, Collator(side)(rows)) == pytest.approx(expected, rel=1e-4)
    assert max(expected) > 1.1 * min(expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_packed_rows_are_one_sample_at_a_time(name, attention):
    kind, settings = MODELS[name]
    model = build_model(kind, attn_implementation=attention, **settings)
    rows = [*random_rows(5), *random_rows(2, seed=4, longest=60)]
    expected = alone(model, rows)
    batch = packed([rows[:3], rows[3:6], rows[6:]], gap=3)
    assert probed(model, batch) == pytest.approx(expected, rel=1e-4)
    one_row = packed([rows])
    assert probed(model, one_row) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("adapter", LORA)
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_lora_is_one_sample_at_a_time(adapter, layout):
    model = with_lora(build_model("llama", attention_bias=True), **LORA[adapter])
    rows = random_rows(5)
    expected = alone(model, rows)
    batch = Collator()(rows) if layout == "padded" else packed([rows[:2], rows[2:]])
    assert probed(model, batch) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": True}], ids=["untied", "tied"])
def test_both_forms_of_a_linear_layer_agree(settings, monkeypatch):
    """Samples longer than the layers are wide take the explicit gradient, in small pieces."""
    from hf_glm_curriculum.signals import ghost_math

    model = build_model("llama", **settings)
    rows = random_rows(4, longest=200)
    expected = alone(model, rows)
    for by_gram in (True, False):
        for name in ("ghost_sums", "ghost_modules", "ghost_head", "ghost_math"):
            module = __import__(f"hf_glm_curriculum.signals.{name}", fromlist=[name])
            if hasattr(module, "prefers_gram"):
                monkeypatch.setattr(module, "prefers_gram", lambda *a, g=by_gram: g)
        for pieces in (2**24, 3000):
            monkeypatch.setattr(ghost_math, "DIRECT_ELEMENTS", pieces)
            assert probed(model, Collator()(rows)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_checkpointing_changes_nothing(reentrant, lora):
    rows = random_rows(4)

    def run(checkpointing: bool) -> list[float]:
        model = build_model("llama")
        model = with_lora(model, **LORA["attention"]) if lora else model
        if checkpointing:
            inner = causal_lm(model)
            inner.activation_checkpointing_enable({"use_reentrant": reentrant})
            inner.enable_input_require_grads()
        return probed(model, Collator()(rows))

    plain = run(False)
    assert run(True) == pytest.approx(plain, rel=1e-6)
    assert all(norm > 0 for norm in plain)


def test_weights_denominator_and_loss_scale_are_undone():
    model = build_model("llama", tie_word_embeddings=True)
    rows = random_rows(5)
    expected = alone(model, rows)
    weights = torch.tensor([0.0, 0.3, 1.0, 2.0, 1.0])
    seen = probed(
        model, Collator()(rows), lambda batch: weights, scale=1024.0, num_items_in_batch=77
    )
    assert seen[1:] == pytest.approx(expected[1:], rel=1e-4)
    assert seen[0] != seen[0]


def test_a_real_token_that_equals_padding_gets_no_embedding_gradient():
    """opacus#724: torch keeps the row of ``padding_idx`` still, wherever it stands."""
    for settings in ({}, {"tie_word_embeddings": True}):
        model = build_model("llama", **settings)
        assert model.get_input_embeddings().padding_idx == 0
        rows = random_rows(4)
        for row in rows:
            for place in (2, 4, 7):
                row["input_ids"][place] = 0
                row["labels"][place] = 0
        assert probed(model, Collator()(rows)) == pytest.approx(alone(model, rows), rel=1e-4)


def test_frozen_parameters_do_not_count():
    model = build_model("llama", tie_word_embeddings=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1.mlp" in name or name.endswith("norm.weight"))
    rows = random_rows(4)
    assert probed(model, Collator()(rows)) == pytest.approx(alone(model, rows), rel=1e-4)


def test_rows_without_labels_have_no_norm():
    model = build_model("llama")
    rows = random_rows(4)
    expected = alone(model, rows)
    silent = [*rows[:3], {**rows[3], "labels": [-100] * len(rows[3]["labels"])}]
    seen = probed(model, Collator()(silent))
    assert seen[:3] == pytest.approx(expected[:3], rel=1e-4) and seen[3] != seen[3]


def test_a_sample_that_predicts_the_next_one_is_refused_by_name():
    model = build_model("llama")
    rows = random_rows(4)
    batch = packed([rows])
    start = len(rows[0]["input_ids"])
    batch["labels"][0, start] = batch["input_ids"][0, start]  # sample 0 now predicts for sample 1
    with pytest.raises(IncompatibleError, match=r"labels: the first token .* -100 .*'hidden'"):
        probed(model, batch)
    with SampleProbe(model).attach() as signals:
        model(**batch, use_cache=False).loss.backward()
        (seen,) = signals.drain()
    assert torch.isfinite(seen.grad_norm).all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_first_labels_of_padded_rows_are_part_of_the_loss(side):
    """With padding on the left, a padding position predicts a row's first token."""
    model = build_model("llama", tie_word_embeddings=True)
    rows = [{**row, "labels": list(row["input_ids"])} for row in random_rows(4)]
    batch = Collator(side)(rows)
    expected = []
    for number in range(4):
        own = {name: values[number : number + 1] for name, values in batch.items()}
        model.zero_grad()
        model(**own, use_cache=False).loss.backward()
        norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
        expected.append(torch.stack(norms).norm().item())
    assert probed(model, batch) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_autocast_is_close(tied):
    model = build_model("llama", tie_word_embeddings=tied)
    rows = random_rows(6)
    expected = alone(model, rows)
    model.train()
    with SampleProbe(model).attach(exact=True) as signals:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**Collator()(rows)).loss
        loss.backward()
        (seen,) = signals.drain()
    assert seen.grad_norm.tolist() == pytest.approx(expected, rel=0.02)


def test_every_hook_is_gone_afterwards():
    def hooks(model: nn.Module) -> int:
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        modules = sum(len(getattr(m, k)) for m in model.modules() for k in kinds)
        return modules + sum(len(p._backward_hooks or {}) for p in model.parameters())

    model = build_model("llama").train()
    batch = Collator()(random_rows(3))
    probe = SampleProbe(model)
    hidden, exact = probe.subscribe(), probe.subscribe(exact=True)
    assert hooks(model) > 40
    model(**batch).loss.backward()
    norms = [s.drain()[0].grad_norm for s in (hidden, exact)]
    assert (norms[1] > norms[0]).all()  # the two listeners get their own kind
    exact.close()
    assert 0 < hooks(model) < 5
    hidden.close()
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="boom"), probe.attach(exact=True):
        raise RuntimeError("boom")
    assert hooks(model) == 0


class Shift(nn.Module):
    """A layer with a parameter nobody knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.shift = nn.Parameter(torch.zeros(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.shift.sum(1)


class Bypassed(nn.Module):
    """Multiplies with a linear layer's weight and never calls the layer."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inner.weight.t()


class Twice(nn.Module):
    """Calls a layer twice."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(2 * x)


def test_what_is_not_known_is_refused_by_name():
    def wrapped(kind: type[nn.Module]) -> nn.Module:
        model = build_model("llama")
        attention = model.model.layers[1].self_attn
        attention.q_proj = kind(attention.q_proj)
        return model

    with pytest.raises(IncompatibleError, match=r"shift in model.layers.1.*grad_norm='hidden'"):
        GhostNorms(wrapped(Shift))
    batch = Collator()(random_rows(3))
    with pytest.raises(IncompatibleError, match=r"saw no call of model.layers.1.*q_proj.inner"):
        probed(wrapped(Bypassed), batch)
    with pytest.raises(IncompatibleError, match=r"q_proj.inner ran twice"):
        probed(wrapped(Twice), batch)
    with pytest.raises(IncompatibleError, match="Glm4Moe"):
        GhostNorms(build_model("glm4_moe"))
    shared = build_model("llama")
    shared.model.layers[1].mlp.up_proj.weight = shared.model.layers[0].mlp.up_proj.weight
    with pytest.raises(IncompatibleError, match=r"up_proj and .*up_proj share one too"):
        GhostNorms(shared)
    balanced = build_model("llama")
    balanced.config.output_router_logits = True
    with pytest.raises(IncompatibleError, match="output_router_logits"):
        GhostNorms(balanced)
    compiled = build_model("llama")
    compiled.model.layers[0].compile()
    with pytest.raises(IncompatibleError, match="torch_compile"):
        GhostNorms(compiled)


def test_moe_with_lora_on_attention_is_known():
    model = with_lora(build_model("glm4_moe"), **LORA["attention"])
    rows = random_rows(4)
    assert probed(model, Collator()(rows)) == pytest.approx(alone(model, rows), rel=1e-4)


@pytest.mark.parametrize("batch", [(8, 1), (2, 4)], ids=["8x1", "2x4"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("host", ["trainer", "sft", "sft-nll"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_trainers_see_one_sample_at_a_time(host, lora, batch, tied):
    rows = random_rows(8)
    size, accumulation = batch
    model = build_model("llama", tie_word_embeddings=tied)
    model = with_lora(model, **LORA["attention"]) if lora else model
    expected = alone(model, rows)
    callback = SampleLifespanCallback(CONFIG)
    run = train(
        [callback],
        model=model,
        sft=host != "trainer",
        rows=rows,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        gradient_checkpointing=size == 2,
        **({"loss_type": "nll"} if host == "sft-nll" else {}),
    )
    frame = callback.ledger.to_pandas().set_index("row")
    assert frame["grad_norm"].tolist() == pytest.approx(expected, rel=1e-4)
    assert not any(m._forward_hooks for m in run.model.modules() if isinstance(m, nn.Linear))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("pieces", [2**24, 700])
def test_sft_head_with_softcap_scale_and_bias(tied, pieces, monkeypatch):
    """The head that TRL multiplies itself, whole and in pieces of the vocabulary."""
    from hf_glm_curriculum.signals import ghost_head

    monkeypatch.setattr(ghost_head, "LOGIT_ELEMENTS", pieces)
    rows = random_rows(6)
    model = build_model("llama", tie_word_embeddings=tied)
    model.lm_head.bias = nn.Parameter(torch.randn(260, generator=torch.Generator().manual_seed(0)))
    callback = SampleLifespanCallback(CONFIG)
    # Reference: the same transform written out on the logits.
    expected = []
    for row in rows:
        ids, labels = (torch.tensor([row[n]]) for n in ("input_ids", "labels"))
        hidden = model.model(ids).last_hidden_state
        logits = 5 * torch.tanh(model.lm_head(hidden) * 3 / 5)
        loss = nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:])
        model.zero_grad()
        loss.backward()
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        expected.append(torch.stack(norms).norm().item())
    model.config.logit_scale, model.config.final_logit_softcapping = 3.0, 5.0
    train([callback], model=model, sft=True, rows=rows, per_device_train_batch_size=6, max_steps=1)
    frame = callback.ledger.to_pandas().set_index("row")
    assert frame["grad_norm"].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("padding_free", [False, True])
def test_sft_packing_is_one_sample_at_a_time(padding_free):
    rows = random_rows(8)
    model = build_model("llama", attn_implementation="sdpa")
    expected = alone(model, rows)
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as SftCollator

    if padding_free:
        collator = SftCollator(pad_token_id=0, padding_free=True)
    else:

        def collator(examples: list) -> dict[str, Tensor]:
            halves = [examples[: len(examples) // 2], examples[len(examples) // 2 :]]
            return packed(halves, gap=2)

    callback = SampleLifespanCallback(CONFIG)
    train(
        [callback],
        model=model,
        sft=True,
        rows=rows,
        collator=collator,
        per_device_train_batch_size=8,
        max_steps=1,
    )
    frame = callback.ledger.to_pandas().set_index("row")
    assert len(frame) == 8
    assert frame["grad_norm"].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("host", ["trainer", "sft"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_training_is_what_it_is_without(host, lora):
    settings = {"sft": host == "sft", "lora": lora, "gradient_accumulation_steps": 2}
    plain = train([], **settings)
    watched = train([SampleLifespanCallback(CONFIG)], **settings)
    assert watched.losses == pytest.approx(plain.losses, abs=1e-6)
    for ours, theirs in zip(watched.grads, plain.grads, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * (1 + theirs.norm())


def test_evaluation_and_no_grad_passes_leave_no_trace():
    model = build_model("llama").train()
    rows = random_rows(3)
    expected = alone(model, rows)
    batch = Collator()(rows)
    with SampleProbe(model).attach(exact=True) as signals:
        loss = model(**batch).loss
        with torch.no_grad():
            model(**batch)
            model.eval()(**batch)
        loss.backward()
        (seen,) = signals.drain()
    assert seen.grad_norm.tolist() == pytest.approx(expected, rel=1e-4)


def test_compiled_runs_are_refused_before_the_first_step(tmp_path):
    from transformers import TrainerControl, TrainerState

    from tests.lifespan.runs import arguments

    args = arguments(tmp_path)
    args.torch_compile = True
    with pytest.raises(IncompatibleError, match=r"torch_compile.*grad_norm='hidden'"):
        SampleLifespanCallback(CONFIG).on_train_begin(
            args, TrainerState(), TrainerControl(), model=build_model()
        )


_TWO_PROCESSES = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.conftest import build_model
from tests.lifespan.runs import random_rows, train
from tests.signals.test_exact import CONFIG
from hf_glm_curriculum import SampleLifespanCallback
callback = SampleLifespanCallback(CONFIG)
run = train(
    [callback], sft=True, rows=random_rows(8), output_dir=sys.argv[1], max_steps=1,
    model=build_model("llama", tie_word_embeddings=True), per_device_train_batch_size=2,
    gradient_accumulation_steps=2, ddp_backend="gloo",
)
assert isinstance(run.trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
callback.ledger.to_pandas().to_pickle(f"{{sys.argv[1]}}/rank{{os.environ['RANK']}}.pkl")
"""


@pytest.mark.slow
def test_two_processes_see_one_sample_at_a_time(tmp_path):
    launch_script(_TWO_PROCESSES, tmp_path)
    rows = random_rows(8)
    expected = alone(build_model("llama", tie_word_embeddings=True), rows)
    for rank in (0, 1):
        frame = pd.read_pickle(tmp_path / f"rank{rank}.pkl").set_index("row")
        assert frame["grad_norm"].tolist() == pytest.approx(expected, rel=1e-4)
