"""What weights of 0 and of 1e-4 do in float32, bfloat16 and float16."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
from torch import nn

from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.gates import LayerGates
from hf_glm_curriculum.migration.schedule import layer_weights
from tests.conftest import build_model
from tests.migration.tiny import gradients, layer_of, random_batch, token_losses

BLOCKS = 6
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALVES = pytest.mark.parametrize("dtype", ["bf16", "fp16"])
MODES = pytest.mark.parametrize("mode", ["autocast", "pure"])
INSTRUCTION = torch.ones(4, dtype=torch.long)
MIXED = torch.tensor([0, 1, 0, 1])


def backward(
    dtype: str, mode: str, objective: Any, weights: Any, scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """Gradients in float32 of a 6-block model, the loss scale undone; no gates without weights."""
    model = build_model(num_hidden_layers=BLOCKS).train()
    if mode == "pure":
        model = model.to(DTYPES[dtype])
    gates = LayerGates(model)
    if weights is not None:
        gates.attach()
        gates.set_weights(weights)
    half = mode == "autocast" and dtype != "fp32"
    with torch.autocast("cpu", DTYPES[dtype]) if half else contextlib.nullcontext():
        losses, used = token_losses(model, random_batch())
    head = torch.ones(4)
    if weights is not None:
        head = gates.assign(objective, dtype=torch.float32)
    loss = (losses.float() * head[:, None]).sum() / used.sum()
    (loss * scale).backward()
    return {name: g.float() / scale for name, g in gradients(model).items()}


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@MODES
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_of_zero_sends_exactly_nothing(dtype, mode):
    """The other rows have the gradients they have when those rows are not trained on."""
    weights = layer_weights(0.0, BLOCKS, MigrationConfig(instruction_floor=0.0))
    assert (weights[1] == 0).all()
    found = backward(dtype, mode, INSTRUCTION, weights)
    assert all((value == 0).all() for value in found.values())
    mixed = backward(dtype, mode, MIXED, weights)
    ones = torch.ones_like(weights)
    alone = backward(dtype, mode, MIXED, torch.stack([ones[0], torch.zeros_like(ones[0])]))
    assert all(torch.equal(mixed[name], alone[name]) for name in alone)


@MODES
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-5), ("bf16", 0.05)])
def test_the_floor_is_a_factor(dtype, tolerance, mode):
    """float32 and bfloat16 share their exponents: 1e-4 of the plain gradient, rounding apart."""
    weights = layer_weights(0.0, BLOCKS, MigrationConfig())
    plain = backward(dtype, mode, None, None)
    found = backward(dtype, mode, INSTRUCTION, weights)
    for name, value in plain.items():
        assert relative(found[name], 1e-4 * value) <= tolerance, name


@MODES
def test_the_floor_in_float16_needs_a_loss_scale(mode):
    """Without one most of what is floored is lost, as small gradients are; with one it is there."""
    weights = layer_weights(0.0, BLOCKS, MigrationConfig())
    plain = backward("fp16", mode, None, None, scale=2.0**8)
    scaled = backward("fp16", mode, INSTRUCTION, weights, scale=2.0**16)
    bare = backward("fp16", mode, INSTRUCTION, weights)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert relative(scaled[name], 1e-4 * plain[name]) <= 0.05
    assert relative(bare[name], 1e-4 * plain[name]) > 0.2
    assert all(torch.isfinite(value).all() for value in (*scaled.values(), *bare.values()))


@HALVES
@MODES
def test_roundings_do_not_pile_up_over_layers(mode, dtype):
    """In the middle of the migration every layer has its own weight to the roundings of one gate.

    Measured as the projection of the gated gradient on the plain one, which averages the backward's
    own rounding out.
    """
    weights = layer_weights(0.35, BLOCKS, MigrationConfig(gamma_bottom=3.0, gamma_top=0.5))
    scale = 2.0**10 if dtype == "fp16" else 1.0
    plain = backward(dtype, mode, None, None, scale)
    found = backward(dtype, mode, INSTRUCTION, weights, scale)
    for name, value in plain.items():
        if not re.search(r"proj|lm_head", name):
            continue
        share = float((found[name] * value).sum() / value.square().sum())
        wanted = float(weights[1, layer_of(name, BLOCKS)])
        assert share == pytest.approx(wanted, rel=0.02), name


def test_gradients_are_never_larger_than_without_gates():
    """Quotients above 1 (pre-training, downwards) only take back what was divided above."""
    weights = layer_weights(
        0.9, BLOCKS, MigrationConfig(gamma_bottom=3.0, gamma_top=0.5, pretrain_floor=0.01)
    )
    assert (weights[0, :-1] / weights[0, 1:]).max() > 1.5
    seen: dict[str, torch.Tensor] = {}

    def watch(kind: str, model: nn.Module) -> None:
        for number, layer in enumerate(model.model.layers):

            def keep(
                module: Any, grad_in: Any, grad_out: Any, key: str = f"{kind}{number}"
            ) -> None:
                seen[key] = grad_out[0].abs().amax()

            layer.register_full_backward_hook(keep)

    for kind in ("plain", "gated"):
        model = build_model(num_hidden_layers=BLOCKS).train()
        gates = LayerGates(model)
        gates.attach()
        gates.set_weights(torch.ones_like(weights) if kind == "plain" else weights)
        watch(kind, model)
        losses, _ = token_losses(model, random_batch())
        head = gates.assign(torch.zeros(4, dtype=torch.long))
        (losses * head[:, None]).sum().backward()
    assert len(seen) == 2 * BLOCKS
    assert all(seen[f"gated{n}"] <= seen[f"plain{n}"] for n in range(BLOCKS))
