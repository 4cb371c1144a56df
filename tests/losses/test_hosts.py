"""The composite inside every host: exact, accumulating, weighted, without a second forward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback

from hf_glm_curriculum import (
    CompositeLoss,
    CompositeLossCallback,
    LifespanConfig,
    SampleLifespanCallback,
)
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.losses.distillation import DistillationLoss
from hf_glm_curriculum.losses.objective import CompositeObjective
from hf_glm_curriculum.losses.schedules import linear
from hf_glm_curriculum.losses.terms import (
    CausalLMLoss,
    InstructionLoss,
    MaskedLMLoss,
    TemperatureLoss,
    ZLoss,
)
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.signals.probe import probe_for
from tests.conftest import build_model
from tests.lifespan.runs import Collator, random_rows, train

HOSTS: dict[str, dict[str, Any]] = {
    "trainer": {},
    "sft": {"sft": True},  # TRL 1.12: chunked losses; newer: log_probs
    "sft_nll": {"sft": True, "loss_type": "nll"},
}
ON_ALL = pytest.mark.parametrize("host", HOSTS)


def plain_terms(teacher: torch.nn.Module | None = None) -> CompositeLoss:
    """Every term that needs no column."""
    terms: dict[str, Any] = {"lm": CausalLMLoss(), "z": ZLoss(), "soft": TemperatureLoss(2.0)}
    if teacher is not None:
        terms["teacher"] = DistillationLoss(teacher, direction="reverse", temperature=1.5)
    terms["mean"] = lambda context: context.token_loss.sum() / (context.targets >= 0).sum()
    weights = {"lm": 0.7, "z": 1e-2, "soft": 0.5, "teacher": 0.3, "mean": 0.1}
    return CompositeLoss(terms, {name: weights[name] for name in terms})


def by_hand(rows: list[dict], teacher: torch.nn.Module, weights: list[float]) -> torch.Tensor:
    """Gradient of the same sum, written down plainly; weights of samples do not reach "mean"."""
    model, batch = build_model().train(), Collator()(rows)
    inputs = {n: batch[n] for n in ("input_ids", "attention_mask")}
    logits = model(**inputs).logits[:, :-1]
    with torch.no_grad():
        theirs = torch.log_softmax(teacher(**inputs).logits[:, :-1] / 1.5, -1)
    labels = batch["labels"][:, 1:]
    used = (labels >= 0).float()

    def ce(temperature: float) -> torch.Tensor:
        flat = (logits / temperature).transpose(1, 2)
        return functional.cross_entropy(flat, labels, reduction="none")

    ours = torch.log_softmax(logits / 1.5, -1)
    reverse = (ours.exp() * (ours - theirs)).sum(-1) * 1.5**2
    z = logits.logsumexp(-1).square()
    token = 0.7 * ce(1.0) + 0.5 * ce(2.0) + used * (1e-2 * z + 0.3 * reverse)
    row = torch.tensor(weights).unsqueeze(1)
    loss = ((token * row).sum() + 0.1 * ce(1.0).sum()) / used.sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@ON_ALL
@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_causal_lm_alone_at_weight_1_is_the_host_bit_for_bit(host, precision):
    settings = {"gradient_accumulation_steps": 2, **HOSTS[host], **precision}
    plain = train([], **settings)
    composite = CompositeLoss({"lm": CausalLMLoss()})
    ours = train([CompositeLossCallback(composite)], **settings)
    assert plain.losses == ours.losses
    for a, b in zip(ours.grads, plain.grads, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    logged = [h for h in ours.trainer.state.log_history if "losses/lm" in h]
    assert len(logged) == 3 and all(h["losses/lm/share"] == 1 for h in logged)
    if not precision:
        assert [h["losses/lm"] for h in logged] == pytest.approx(plain.losses, rel=1e-5)


@ON_ALL
@pytest.mark.parametrize("weighted", [False, True], ids=["alone", "weighted"])
@pytest.mark.parametrize("batch", [(8, 1), (2, 4)], ids=["8x1", "2x4"])
def test_all_terms_equal_the_sum_written_by_hand(host, weighted, batch):
    rows, teacher = random_rows(8), build_model(seed=7).eval()
    size, accumulation = batch
    weights = {tuple(r["input_ids"]): 0.25 * i for i, r in enumerate(rows)}
    callbacks = [CompositeLossCallback(plain_terms(teacher))]
    if weighted:
        callbacks.append(Weights(weights))
    found = train(
        callbacks,
        rows=rows,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        max_grad_norm=0.0,
        **HOSTS[host],
    )
    given = [weights[tuple(r["input_ids"])] if weighted else 1.0 for r in rows]
    wanted = by_hand(rows, teacher, given)
    assert (found.grads[0] - wanted).norm() <= 1e-5 * wanted.norm()


class Weights(TrainerCallback):
    """Weights samples by their tokens, as other callbacks of the shared probe do."""

    def __init__(self, weights: dict[tuple[int, ...], float]) -> None:
        self.weights, self.subscription = weights, None

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        from hf_glm_curriculum.data.content_id import content_ids

        table = {
            content_ids(torch.tensor([tokens])).item(): w for tokens, w in self.weights.items()
        }
        self.subscription = probe_for(model).subscribe(
            lambda batch: torch.tensor([table[i] for i in batch.ids.tolist()])
        )

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.subscription.close()


@ON_ALL
def test_one_forward_a_micro_batch_and_no_trace_afterwards(host):
    calls = []

    class Count(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
            self.handles = [
                module.register_forward_hook(lambda *a: calls.append(torch.is_grad_enabled()))
                for module in (model, model.model)
            ]

        def on_train_end(self, args, state, control, **kwargs) -> None:
            for handle in self.handles:
                handle.remove()

    run = train([CompositeLossCallback(plain_terms()), Count()], **HOSTS[host])
    assert calls == [True] * 6  # three steps, model and backbone
    assert not run.model._forward_pre_hooks and not run.model._forward_hooks
    assert not run.model.model._forward_hooks
    assert run.model.loss_function.__name__ == "ForCausalLMLoss"


@ON_ALL
def test_callbacks_in_any_order_give_the_same_run(host):
    found = []
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        life = SampleLifespanCallback(LifespanConfig(sync_every=1))
        callbacks = [
            CompositeLossCallback(plain_terms()),
            life,
            SampleLifespanCallback(LifespanConfig(observe_only=True), name="other"),
        ]
        run = train([callbacks[i] for i in order], max_steps=8, **HOSTS[host])
        frame = life.ledger.to_pandas()
        assert frame["weight"].nunique() > 1
        found.append((run.losses, frame["loss"].tolist(), frame["weight"].tolist()))
    assert all(one == found[0] for one in found[1:])


@ON_ALL
def test_ledgers_see_cross_entropy_whatever_is_trained(host):
    rows = random_rows(8)
    settings = {"rows": rows, "per_device_train_batch_size": 8, "max_steps": 1, **HOSTS[host]}
    frames = []
    for callbacks in ([], [CompositeLossCallback(CompositeLoss({"z": ZLoss()}, {"z": 3.0}))]):
        life = SampleLifespanCallback(LifespanConfig(weighting="none"))
        train([life, *callbacks], **settings)
        frames.append(life.ledger.to_pandas())
    assert frames[0]["loss"].tolist() == pytest.approx(frames[1]["loss"].tolist(), abs=1e-5)
    assert frames[1]["grad_norm"].notna().all()
    assert frames[0]["grad_norm"].tolist() != pytest.approx(frames[1]["grad_norm"].tolist())


@ON_ALL
def test_terms_are_reported_with_weights_and_shares(host, tmp_path):
    composite = plain_terms()
    composite.schedule("soft", linear(0, 2, 0.5, 0.0))
    train(
        [CompositeLossCallback(composite, debug_dir=tmp_path / "debug")],
        output_dir=tmp_path,
        **HOSTS[host],
    )
    entries = [m for m in read_metrics(tmp_path) if "losses/lm" in m]
    assert [m["losses/soft/weight"] for m in entries] == [0.5, 0.25, 0.0]
    for entry in entries:
        shares = [v for k, v in entry.items() if k.endswith("/share")]
        assert sum(shares) == pytest.approx(1) and all(s > 0 for s in shares)
    first = entries[0]
    names = [n for n in composite.names if f"losses/{n}" in first]
    total = sum(first[f"losses/{n}"] * first[f"losses/{n}/weight"] for n in names)
    trainer = next(m for m in read_metrics(tmp_path) if "loss" in m)
    assert total == pytest.approx(trainer["loss"], rel=1e-4)
    lines = (tmp_path / "debug" / "losses_terms.csv").read_text().splitlines()
    assert lines[0] == "step,micro_batch,term,weight,loss,n_tokens" and len(lines) == 1 + 3 * 4 - 1


@ON_ALL
def test_lora_and_checkpointing(host):
    settings = {"lora": True, "gradient_checkpointing": True, **HOSTS[host]}
    plain = train([], **settings)
    halved = CompositeLoss({"lm": CausalLMLoss()}, {"lm": 0.5})
    ours = train([CompositeLossCallback(halved)], max_grad_norm=0.0, **settings)
    again = train([], max_grad_norm=0.0, **settings)
    assert torch.allclose(ours.grads[0], again.grads[0] / 2, atol=1e-6)
    assert len(plain.grads) == 3


@ON_ALL
def test_logits_are_made_or_asked_for(host):
    composite = CompositeLoss({"lm": CausalLMLoss(), "mine": lambda c: c.logits.square().mean()})
    makes_logits = host == "trainer" or (host == "sft_nll" and not _fused())
    if not makes_logits:
        with pytest.raises(IncompatibleError, match=r"term 'mine': reads logits.*full_logits=True"):
            train([CompositeLossCallback(composite)], **HOSTS[host])
    found = train([CompositeLossCallback(composite, full_logits=True)], **HOSTS[host])
    plain = train([], **HOSTS[host])
    assert found.losses[0] > plain.losses[0]


def _fused() -> bool:
    """Whether this TRL's SFT computes log-probabilities itself, whatever its loss_type."""
    from packaging.version import Version

    from hf_glm_curriculum.optional import version_of

    return Version(version_of("trl") or "0") >= Version("1.13")


class Columns(Collator):
    """A user's collator that stacks further columns."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(rows)
        tokens = batch["input_ids"]
        batch["objective"] = torch.tensor([row["objective"] for row in rows])
        batch["masked"] = torch.where(tokens % 3 == 0, tokens, -100)
        torch.manual_seed(0)
        batch["teacher_logits"] = torch.randn(*tokens.shape, 260)
        return batch


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_columns_reach_the_terms_and_not_the_model(host):
    rows = [{**row, "objective": i % 2} for i, row in enumerate(random_rows(8))]
    terms = {
        "pretrain": CausalLMLoss(only=0),
        "instruct": InstructionLoss(only=1),
        "teacher": DistillationLoss(),
        "masked": MaskedLMLoss("masked"),
    }
    composite = CompositeLoss(terms, {"masked": 0.5})
    seen = []

    class Inputs(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
            model.model.register_forward_pre_hook(
                lambda module, args, kwargs: seen.extend(kwargs), with_kwargs=True
            )

    run = train(
        [CompositeLossCallback(composite), Inputs()],
        rows=rows,
        collator=Columns(),
        remove_unused_columns=False,
        per_device_train_batch_size=8,
        max_steps=1,
        max_grad_norm=0.0,
        **HOSTS[host],
    )
    assert not {"objective", "masked", "teacher_logits"} & set(seen)
    entry = next(
        h for h in run.trainer.state.log_history if "losses/lm" in h or "losses/masked" in h
    )
    plain = train([], rows=rows, per_device_train_batch_size=8, max_steps=1, **HOSTS[host])
    both = entry["losses/pretrain"] + entry["losses/instruct"]
    assert both == pytest.approx(plain.losses[0], rel=1e-5)
    assert min(entry["losses/pretrain"], entry["losses/instruct"], entry["losses/masked"]) > 0
    # The masked tokens' losses, by hand, on the same untrained model.
    batch = Columns()(rows)
    with torch.no_grad():
        logits = build_model()(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    own = functional.cross_entropy(logits.transpose(1, 2), batch["masked"], reduction="none")
    n = int((batch["labels"][:, 1:] >= 0).sum())
    assert entry["losses/masked"] == pytest.approx(own.sum().item() / n, rel=1e-4)


def test_a_missing_column_is_named():
    composite = CompositeLoss({"lm": CausalLMLoss(), "teacher": DistillationLoss()})
    with pytest.raises(IncompatibleError, match="term 'teacher': reads the batch column"):
        train([CompositeLossCallback(composite)])


def test_packed_samples_are_what_they_are_alone():
    """Padding-free rows: the teacher and every term see each sample by itself."""
    rows, teacher = random_rows(4), build_model(seed=7)
    found = []
    packed = {
        "input_ids": torch.tensor([[t for r in rows for t in r["input_ids"]]]),
        "labels": torch.tensor([[t for r in rows for t in (-100, *r["labels"][1:])]]),
        "position_ids": torch.tensor([[p for r in rows for p in range(len(r["input_ids"]))]]),
        "use_cache": False,
    }
    for batch in (Collator()(rows), packed):
        model = build_model().train()
        objective = CompositeObjective(plain_terms(teacher), None, (), False)
        subscription = probe_for(model).subscribe(objective=objective)
        loss = model(**batch).loss
        loss.backward()
        subscription.close()
        found.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert (found[0][1] - found[1][1]).norm() <= 1e-4 * found[0][1].norm()


def test_objectives_by_sample():
    rows = random_rows(6)
    composite = CompositeLoss({"a": CausalLMLoss(only=0), "b": CausalLMLoss(only=1)}, {"b": 0.0})
    callback = CompositeLossCallback(composite, objective=lambda ids: torch.ones_like(ids))
    run = train([callback], rows=rows)
    assert run.losses == [0.0, 0.0, 0.0]
    assert all(g.abs().sum() == 0 for g in run.grads)


def test_settings_are_checked_before_the_first_step():
    composite = CompositeLoss({"lm": CausalLMLoss()})
    composite.schedule("lm", linear(50, 60, 1.0, 0.5))
    with pytest.raises(ConfigError, match="begins at step 50, and the run ends after 3"):
        train([CompositeLossCallback(composite)])
    with pytest.raises(IncompatibleError, match=r"label_smoothing_factor.*compose its loss"):
        train(
            [CompositeLossCallback(CompositeLoss({"lm": CausalLMLoss()}))],
            label_smoothing_factor=0.1,
        )
    two = [CompositeLossCallback(CompositeLoss({"lm": CausalLMLoss()})) for _ in range(2)]
    with pytest.raises(IncompatibleError, match="put all terms into one CompositeLoss"):
        train(two)
    exact = SampleLifespanCallback(LifespanConfig(grad_norm="exact"))
    with pytest.raises(IncompatibleError, match="use grad_norm='hidden'"):
        train([exact, CompositeLossCallback(CompositeLoss({"z": ZLoss()}))])


def test_exact_norms_stay_right_while_the_composite_is_neutral():
    frames = []
    for callbacks in ([], [CompositeLossCallback(CompositeLoss({"lm": CausalLMLoss()}))]):
        life = SampleLifespanCallback(LifespanConfig(grad_norm="exact", weighting="none"))
        train([life, *callbacks])
        frames.append(life.ledger.to_pandas())
    assert frames[0]["grad_norm"].tolist() == pytest.approx(frames[1]["grad_norm"].tolist())


def test_a_run_that_died_leaves_the_model_alone():
    class Fail(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            raise RuntimeError("died")

    model = build_model()
    composite = plain_terms()
    with pytest.raises(RuntimeError, match="died"):
        train([CompositeLossCallback(composite)], model=model, fail=Fail)
    batch = Collator()(random_rows(3))
    plain = build_model().train()(**batch).loss
    again = train([], max_steps=1).losses
    model.load_state_dict(build_model().state_dict())
    assert torch.equal(model.train()(**batch).loss, plain)
    assert not model._forward_pre_hooks
    assert (
        train(
            [CompositeLossCallback(CompositeLoss({"lm": CausalLMLoss()}))], model=model, max_steps=1
        ).losses
        == again
    )


def test_evaluation_keeps_the_hosts_loss(tmp_path):
    composite = plain_terms()
    run = train([CompositeLossCallback(composite)], output_dir=tmp_path)
    assert isinstance(run.trainer, Trainer)
    from datasets import Dataset

    held = Dataset.from_list(random_rows(4, seed=5))
    before = run.trainer.evaluate(held)["eval_loss"]
    fresh = train([], max_steps=1, output_dir=tmp_path / "b")
    fresh.trainer.model.load_state_dict(run.model.state_dict())
    assert fresh.trainer.evaluate(held)["eval_loss"] == pytest.approx(before, abs=1e-7)


FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"final_logit_softcapping": 2.0, "head_dim": 8, "num_key_value_heads": 2},
    "cohere": {"logit_scale": 0.25},
    "glm": {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


@pytest.mark.filterwarnings("ignore:It is strongly recommended to train Gemma")
@pytest.mark.parametrize("kind", FAMILIES)
def test_terms_from_hidden_states_are_those_from_logits(kind):
    """Soft-caps, logit scales and heads of other families, chunked or not."""
    found = []
    for host in ("trainer", "sft"):
        config = AutoConfig.for_model(
            kind,
            vocab_size=260,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            bos_token_id=1,
            eos_token_id=1,
            attn_implementation="eager",
            **{"pad_token_id": 0, **FAMILIES[kind]},
        )
        torch.manual_seed(0)
        run = train(
            [CompositeLossCallback(plain_terms(build_model(seed=7)))],
            model=AutoModelForCausalLM.from_config(config),
            rows=random_rows(8),
            per_device_train_batch_size=8,
            max_steps=1,
            max_grad_norm=0.0,
            **HOSTS[host],
        )
        found.append(run.grads[0])
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


@pytest.mark.slow
@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_compiled_is_eager(host):
    eager = train([CompositeLossCallback(plain_terms())], **HOSTS[host])
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        compiled = train(
            [CompositeLossCallback(plain_terms())],
            torch_compile=True,
            torch_compile_backend="eager",
            **HOSTS[host],
        )
    torch.compiler.reset()
    for a, b in zip(eager.grads, compiled.grads, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
