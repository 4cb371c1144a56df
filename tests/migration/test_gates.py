"""Gated gradients are two separate backwards, combined layer by layer."""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_glm_curriculum.errors import ConfigError, ModelError
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.gates import LayerGates, gate_factors
from hf_glm_curriculum.migration.schedule import layer_weights, neutral_weights
from hf_glm_curriculum.models import decoder_layers
from tests.conftest import build_model
from tests.lifespan.runs import add_lora
from tests.migration.tiny import (
    FAMILIES,
    PACKED,
    StayDouble,
    assert_same,
    backward,
    combined,
    family,
    gradients,
    layer_of,
    packed_batch,
    random_batch,
    tied_sum,
    token_losses,
    untied_copy,
)

MIXED = torch.tensor([0, 1, 0, 1])
STEEP = MigrationConfig(gamma_bottom=3.0, gamma_top=0.5)
"""Exponents that set the layers far apart."""

TIES = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
KINDS = pytest.mark.parametrize("kind", FAMILIES)


def weights_for(model: nn.Module, p: float = 0.3) -> torch.Tensor:
    return layer_weights(p, len(decoder_layers(model)), STEEP)


def gated(
    model: nn.Module, batches: list[dict], objectives: list[torch.Tensor], weights: torch.Tensor
) -> dict[str, torch.Tensor]:
    """One backward a micro-batch through the gates; ``objectives`` per row, or per segment."""
    gates = LayerGates(model)
    gates.attach()
    gates.set_weights(weights)
    for batch, objective in zip(batches, objectives, strict=True):
        losses, _ = token_losses(model, batch)
        if objective.numel() == losses.shape[0]:
            head = gates.assign(objective, dtype=losses.dtype)[:, None]
        else:
            segments = (batch["position_ids"] == 0).long().cumsum(1) - 1
            head = gates.assign(objective, segments, losses.dtype)[segments[:, 1:]]
        backward((losses * head).sum())
    gates.detach()
    found = gradients(model)
    model.zero_grad()
    return found


def labels_of(batch: dict, objective: torch.Tensor) -> torch.Tensor:
    """[B, T − 1] objective of each label, from one number a row or segment."""
    if "position_ids" in batch:
        return objective[(batch["position_ids"] == 0).long().cumsum(1) - 1][:, 1:]
    return objective[:, None].expand(-1, batch["labels"].shape[1] - 1)


def check(
    kind: str,
    batches: list[dict],
    objectives: list[torch.Tensor],
    tied: bool = False,
    prepare: Any = lambda model: None,
    p: float = 0.3,
) -> None:
    with StayDouble():
        model = family(kind, tied).double()
        twin = (untied_copy(model, kind) if tied else family(kind, tied)).double()
        weights = weights_for(model, p)
        prepare(model)
        ours = gated(model, batches, objectives, weights)
        spread = [labels_of(b, o) for b, o in zip(batches, objectives, strict=True)]
        theirs = combined(twin, batches, spread, weights)
    assert_same(ours, tied_sum(theirs, model) if tied else theirs, 1e-9)


@TIES
@KINDS
def test_mixed_rows_in_one_batch(kind, tied):
    check(kind, [random_batch()], [MIXED], tied)


@KINDS
def test_over_an_accumulation_window(kind):
    """Micro-batches of both objectives, of one, and of mixed ones."""
    batches = [random_batch(seed=seed) for seed in (1, 2, 3)]
    check(kind, batches, [MIXED, torch.zeros_like(MIXED), 1 - MIXED])


@TIES
@pytest.mark.parametrize("kind", PACKED)
def test_packed_rows(kind, tied):
    check(kind, [packed_batch()], [torch.tensor([0, 1, 0])], tied)


@pytest.mark.parametrize("kind", ["llama", "glm4_moe"])
def test_packed_is_the_rows_apart(kind):
    """A packed row gives what its samples give as rows of their own."""
    lengths, objective = (6, 4, 7), torch.tensor([0, 1, 0])
    packed = packed_batch(lengths)
    rows = [
        {name: value[:, start : start + n] for name, value in packed.items()}
        for start, n in zip((0, 6, 10), lengths, strict=True)
    ]
    with StayDouble():
        model = family(kind, False).double()
        weights = weights_for(model)
        ours = gated(model, [packed], [objective], weights)
        theirs = gated(model, rows, list(objective[:, None]), weights)
    assert_same(ours, theirs, 1e-9)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@KINDS
def test_under_gradient_checkpointing(kind, reentrant):
    def prepare(model: Any) -> None:
        model.activation_checkpointing_enable({"use_reentrant": reentrant})

    check(kind, [random_batch(), random_batch(seed=5)], [MIXED, 1 - MIXED], prepare=prepare)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_hooks_inside_the_recomputation(reentrant, monkeypatch):
    """Transformers before 5.24 checkpoints a layer's call, so that its hooks run twice."""
    kind = type(decoder_layers(family("llama", False))[0])
    counts = []

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def run(hidden: Any) -> Any:
            counts.append(torch.is_grad_enabled())
            return nn.Module.__call__(self, hidden, **kwargs)

        return checkpoint(run, *args, use_reentrant=reentrant)

    monkeypatch.setattr(kind, "__call__", call)
    check("llama", [random_batch(), random_batch(seed=5)], [MIXED, 1 - MIXED])
    assert len(counts) == 2 * 3 * (2 + 4)  # once more in the backward, in both runs


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_adapters(kind):
    with StayDouble():
        models = [add_lora(family(kind, False)).double().train() for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        weights = weights_for(models[0])
        ours = gated(models[0], [random_batch()], [MIXED], weights)
        theirs = combined(models[1], [random_batch()], [labels_of(random_batch(), MIXED)], weights)
    assert all("lora" in name for name in ours)
    assert_same(ours, theirs, 1e-9)


def test_hidden_states_by_name_and_in_tuples():
    """Blocks that are called by keyword and answer with tuples, as older models do."""

    class Tupled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, hidden_states: Any, **kwargs: Any) -> Any:
            return (self.inner(hidden_states, **kwargs), None)

    class Untupled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, hidden: Any, **kwargs: Any) -> Any:
            return self.inner(hidden_states=hidden, **kwargs)[0]

    class Called(nn.ModuleList):
        def __getitem__(self, place: Any) -> Any:
            return [Untupled(layer) for layer in list(self)[place]]

    with StayDouble():
        plain, wrapped = (family("llama", False).double() for _ in range(2))
        inner = wrapped.model
        inner.layers = Called([Tupled(layer) for layer in inner.layers])
        weights = weights_for(plain)
        theirs = gated(plain, [random_batch()], [MIXED], weights)
        ours = gated(wrapped, [random_batch()], [MIXED], weights)
    assert_same({name.replace(".inner.", "."): g for name, g in ours.items()}, theirs, 1e-12)


@KINDS
def test_all_ones_is_bit_for_bit(kind):
    """Gates of weight 1 leave every bit alone, and so does a batch of pre-training rows at p=0."""
    found = []
    for weights in (None, neutral_weights(3), layer_weights(0.0, 3, MigrationConfig())):
        model, batch = family(kind, False), random_batch()
        if weights is None:
            losses, _ = token_losses(model, batch)
            losses.sum().backward()
            found.append(gradients(model))
        else:
            found.append(gated(model, [batch], [torch.zeros(4, dtype=torch.long)], weights))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


@KINDS
def test_forward_values_do_not_change(kind):
    model, batch = family(kind, False), random_batch()
    with torch.no_grad():
        before, _ = token_losses(model, batch)
    gates = LayerGates(model)
    gates.attach()
    gates.set_weights(weights_for(model))
    assert torch.equal(token_losses(model, batch)[0], before)


def test_factors_multiply_up_to_one_rounding():
    weights = layer_weights(0.2, 40, STEEP)
    for dtype, rounding in (
        (torch.bfloat16, 2**-8),
        (torch.float16, 2**-10),
        (torch.float32, 2**-23),
    ):
        factors = gate_factors(weights, dtype, torch.float32)
        assert factors.shape == (41, 2) and factors.dtype == dtype
        product = weights[:, -1].float().double()
        for layer in range(40, -1, -1):
            product = product * factors[layer].double()
            error = (product / weights[:, layer] - 1).abs()
            assert (error <= rounding).all()


def test_nothing_is_left_behind():
    model = family("llama", False)
    hooks = lambda: [  # noqa: E731
        len(getattr(m, name)) for m in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ]  # fmt: skip
    before = hooks()
    gates = LayerGates(model)
    gates.attach()
    gates.attach()
    assert sum(hooks()) == sum(before) + 3 + 3
    gates.detach()
    assert hooks() == before


def test_only_training_passes_of_the_model_have_gates():
    model, batch = family("llama", False), random_batch()
    gates = LayerGates(model)
    live = True
    gates.attach(lambda: live)
    gates.set_weights(weights_for(model))
    token_losses(model, batch)
    gates.assign(MIXED)
    plain = family("llama", False)

    def backbone_gradient(m: Any) -> torch.Tensor:
        m.zero_grad()
        m.model(input_ids=batch["input_ids"]).last_hidden_state.square().sum().backward()
        return m.model.embed_tokens.weight.grad

    assert torch.equal(backbone_gradient(model), backbone_gradient(plain))
    live = False
    for m in (model, plain):
        m.zero_grad()
        token_losses(m, batch)[0].sum().backward()
    assert_same(gradients(model), gradients(plain), 0.0)
    with pytest.raises(ModelError, match="no training forward"):
        gates.assign(MIXED)


def test_a_copy_of_the_model_has_no_gates():
    model, batch = family("llama", False), random_batch()
    gates = LayerGates(model)
    gates.attach()
    gates.set_weights(weights_for(model))
    token_losses(model, batch)
    gates.assign(MIXED)
    twin, plain = copy.deepcopy(model), family("llama", False)
    for m in (twin, plain):
        token_losses(m, batch)[0].sum().backward()
    assert_same(gradients(twin), gradients(plain), 0.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 4), r"must be \[objectives, 5\].*got \[2, 4\]"),
        (torch.full((2, 5), 1.5), "at most 1, got 1.5"),
        (torch.tensor([[1.0, 1, 0, 1, 1]]), "stops the gradient of all layers below"),
    ],
)
def test_weights_that_cannot_be(weights, message):
    with pytest.raises(ConfigError, match=message):
        LayerGates(family("llama", False)).set_weights(weights)


class _NoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)


def test_models_whose_layers_are_not_found_are_refused():
    with pytest.raises(ModelError, match="_NoLayers has no decoder layers"):
        LayerGates(_NoLayers())
    shared = build_model()
    shared.model.layers[1] = shared.model.layers[0]
    with pytest.raises(ModelError, match="shares one block"):
        LayerGates(shared)
    dropped = build_model()
    dropped.config.layerdrop = 0.1
    with pytest.raises(ModelError, match="layerdrop"):
        LayerGates(dropped)


def test_blocks_behind_the_last_that_runs_do_not_count():
    model = build_model(num_hidden_layers=3)
    model.config.num_hidden_layers = 2  # as models keep blocks for multi-token prediction
    assert LayerGates(model).blocks == 2


def test_layers_of_parameters_are_told_by_name():
    """The oracle's own reading of names, on the family with the most of them."""
    found = {layer_of(name, 3) for name, _ in family("glm5_next", False).named_parameters()
             if not re.search("visual|vision", name)}  # fmt: skip
    assert found == {0, 1, 2, 3, 4}
    assert partial(layer_of, blocks=3)("lm_head.weight") == 4
