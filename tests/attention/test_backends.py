"""Every backend against the reference: outputs and all gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from hf_glm_curriculum.attention.backends import gather as gather_module
from hf_glm_curriculum.attention.backends.base import AttentionProblem, call_of
from hf_glm_curriculum.attention.backends.choice import BACKENDS, choose_backend
from hf_glm_curriculum.attention.backends.flash import FlashBackend, pages_serve
from hf_glm_curriculum.attention.backends.flex import FlexBackend
from hf_glm_curriculum.attention.backends.gather import GatherBackend
from hf_glm_curriculum.attention.backends.reference import ReferenceBackend
from hf_glm_curriculum.attention.layout import Sequence
from hf_glm_curriculum.attention.rotary import KeyShift
from hf_glm_curriculum.errors import DataError, IncompatibleError
from tests.attention.cases import heads, problem_of, select_all

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2}


def varlen_attention(
    q, k, v, query_ends, key_ends, longest_q, longest_k, softmax_scale, causal, block_table=None
):
    """What FlashAttention's varlen function computes, sequence by sequence in plain torch."""
    assert causal and int(query_ends.diff().max()) == longest_q
    assert int(key_ends.diff().max()) == longest_k
    assert query_ends.dtype == key_ends.dtype == torch.int32
    found = []
    for place in range(len(query_ends) - 1):
        asked = q[query_ends[place] : query_ends[place + 1]]
        if block_table is None:
            keys, values = (x[key_ends[place] : key_ends[place + 1]] for x in (k, v))
        else:
            length = int(key_ends[place + 1] - key_ends[place])
            pages = block_table[place].long()
            keys, values = (x[pages].flatten(0, 1)[:length] for x in (k, v))
        group = q.shape[1] // k.shape[-2]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", asked, keys) * softmax_scale
        future = torch.ones(scores.shape[1:]).triu(1 + scores.shape[2] - scores.shape[1])
        scores = scores.masked_fill(future.bool(), -torch.inf)
        found.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.cat(found)


FLASH = FlashBackend(varlen_attention)


def compare(backend, problem: AttentionProblem, kinds, size=64, dtype=torch.float32, grads=True):
    layout = problem.layout
    inputs = heads(layout.rows, layout.queries, layout.keys, kinds, size, dtype)
    wanted = ReferenceBackend()(*inputs, problem)
    with torch.set_grad_enabled(grads):
        found = backend(*inputs, problem)
    assert found.dtype == dtype and found.shape == wanted.shape
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
    if not grads:
        return found
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    for name, ours, theirs in zip(
        ("query", "key", "value"),
        torch.autograd.grad(found, inputs, slope),
        torch.autograd.grad(wanted, inputs, slope),
        strict=True,
    ):
        torch.testing.assert_close(
            ours, theirs, atol=3 * tolerance, rtol=3 * tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    return found


@pytest.mark.parametrize("kinds", [(3, 3), (3, 1), (8, 1)], ids=["1:1", "3:1", "8:1"])
@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("length", [1, 63, 130])
def test_gather_and_flash_equal_the_reference(kinds, size, length):
    for groups in {1, kinds[1]}:
        problem = problem_of(1, length, length, groups=groups, head_size=size)
        compare(GatherBackend(), problem, kinds, size)
        compare(FLASH, problem, kinds, size)


@pytest.mark.parametrize("length", [1000, 1025])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gather_at_lengths_that_are_no_multiple_of_the_block(length, dtype):
    problem = problem_of(1, length, length, groups=2, budget=5, block=64, tile=64)
    compare(GatherBackend(), problem, (6, 2), dtype=dtype)


def test_gather_at_4096_tokens_with_tiles_of_sixteen():
    problem = problem_of(1, 4096, 256, groups=1, budget=9, block=64, tile=16)
    compare(GatherBackend(), problem, (3, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16])
@pytest.mark.parametrize("tile", [4, 16])
def test_bfloat16(dtype, tile):
    for groups in (1, 2):
        problem = problem_of(2, 150, 150, groups=groups, tile=tile)
        compare(GatherBackend(), problem, (6, 2), dtype=dtype)


def padded(rows: int, length: int) -> torch.Tensor:
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[0, :37] = 0
    mask[1, -21:] = 0
    mask[2, 60:64] = 0  # a hole
    mask[3] = 0  # nothing at all
    return mask


@pytest.mark.parametrize("queries", [150, 40, 1])
def test_padding_on_either_side_holes_and_empty_rows(queries):
    mask = padded(5, 150)
    problem = problem_of(5, 150, queries, groups=2, budget=3, tile=8, mask=mask, head_size=16)
    for backend in (GatherBackend(), FLASH):
        found = compare(backend, problem, (4, 2), 16)
        assert found[3].abs().sum() == 0  # a row without visible keys
    compare(FlexBackend(), problem, (4, 2), 16, grads=False)


def packed(*lengths: int) -> list[Sequence]:
    ends = np.cumsum(lengths)
    return [Sequence(0, np.arange(end - n, end)) for n, end in zip(lengths, ends, strict=True)]


def test_packed_rows_equal_the_rows_alone():
    lengths = (70, 1, 100, 16)
    problem = problem_of(1, 187, 187, sequences=packed(*lengths), head_size=16, budget=3)
    for backend in (GatherBackend(), FLASH):
        compare(backend, problem, (4, 2), 16)
    compare(FlexBackend(), problem, (4, 2), 16, grads=False)
    inputs = heads(1, 187, 187, (4, 2), 16, torch.float32)
    everything = AttentionProblem(problem.layout, select_all(problem.layout), 0.25)
    together = GatherBackend()(*inputs, everything)
    start = 0
    for length in lengths:
        part = [x[:, :, start : start + length] for x in inputs]
        alone = torch.nn.functional.scaled_dot_product_attention(
            *part, is_causal=True, enable_gqa=True, scale=0.25
        )
        torch.testing.assert_close(
            together[:, start : start + length], alone.transpose(1, 2), atol=2e-6, rtol=1e-5
        )
        start += length


@pytest.mark.parametrize("backend", ["gather", "flex", "flash", "reference"])
def test_all_blocks_selected_is_dense_attention(backend):
    serves = FLASH if backend == "flash" else BACKENDS[backend]
    inputs = heads(2, 100, 100, (4, 2), 16, torch.float32)
    problem = problem_of(2, 100, 100, budget=99, head_size=16)
    with torch.no_grad():
        found = serves(*inputs, problem)
        dense = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=True, enable_gqa=True
        )
    torch.testing.assert_close(found, dense.transpose(1, 2), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_flex_reads_the_selection(groups):
    problem = problem_of(2, 130, 130, groups=groups, head_size=16)
    compare(FlexBackend(), problem, (4, 2), 16, grads=False)


def llama_shift() -> KeyShift:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4)
    rotary = modeling_llama.LlamaRotaryEmbedding(config)
    return KeyShift(modeling_llama.apply_rotary_pos_emb, rotary)


@pytest.mark.parametrize("groups", [1, 2])
def test_compact_positions_move_keys_and_gradients(groups):
    problem = problem_of(1, 140, 140, groups=groups, head_size=16, budget=3, shift=llama_shift())
    for backend in (GatherBackend(), FLASH):
        compare(backend, problem, (4, 2), 16)
    still = AttentionProblem(problem.layout, problem.selection, problem.scaling)
    inputs = heads(1, 140, 140, (4, 2), 16, torch.float32)
    apart = GatherBackend()(*inputs, problem) - GatherBackend()(*inputs, still)
    assert apart.abs().max() > 0.05


def test_a_shifted_key_is_the_key_rotated_at_its_new_place():
    shift = llama_shift()
    keys = torch.randn(1, 2, 5, 16)
    places = torch.arange(5)[None]

    def at(positions):
        cos, sin = shift.rotary(keys, positions)
        return shift.rotate(keys, keys, cos, sin)[1]

    torch.testing.assert_close(
        shift(at(places), torch.full((1, 5), 37)), at(places + 37), atol=1e-5, rtol=1e-5
    )


def test_gather_without_the_fused_kernel(monkeypatch):
    """The plain kernel serves devices the fused one does not: same numbers."""
    monkeypatch.setattr(gather_module.kernels, "fused_serves", lambda query: False)
    monkeypatch.setattr(gather_module, "PLAIN_RUN", 32)
    for groups in (1, 2):
        problem = problem_of(2, 150, 150, groups=groups, tile=8, head_size=16)
        compare(GatherBackend(), problem, (4, 2), 16)


def test_gather_in_many_batches(monkeypatch):
    monkeypatch.setattr(gather_module, "CPU_BYTES", 4096)
    compare(GatherBackend(), problem_of(2, 150, 150, groups=2, head_size=16), (4, 2), 16)


def test_strided_and_expanded_inputs():
    problem = problem_of(2, 90, 90, head_size=16)
    made = [x.detach() for x in heads(2, 90, 90, (4, 2), 16, torch.float32)]
    wanted = ReferenceBackend()(*made, problem)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    torch.testing.assert_close(GatherBackend()(*turned, problem), wanted, atol=2e-6, rtol=1e-5)
    wide = [torch.cat([x, x], -1)[..., :16] for x in made]
    torch.testing.assert_close(GatherBackend()(*wide, problem), wanted, atol=2e-6, rtol=1e-5)
    same = made[1][:, :1].expand(-1, 2, -1, -1)
    torch.testing.assert_close(
        GatherBackend()(made[0], same, same, problem),
        ReferenceBackend()(made[0], same, same, problem),
        atol=2e-6,
        rtol=1e-5,
    )


def test_dropout_drops_that_share_and_repeats_in_the_backward_pass():
    problem = problem_of(1, 128, 128, head_size=16, budget=99, dropout=0.3)
    query, key, _ = heads(1, 128, 128, (4, 2), 16, torch.float32)
    value = torch.ones(1, 2, 128, 16, requires_grad=True)
    torch.manual_seed(0)
    output = GatherBackend()(query, key, value, problem)
    assert abs(float(output.detach().mean()) - 1.0) < 0.02  # kept weights are scaled up
    assert float(output.detach()[:, 64:].std()) > 0.05
    # the output is linear in the values: its gradient must come from the same draw
    (slope,) = torch.autograd.grad(output.sum(), value)
    torch.testing.assert_close((slope * value).sum(), output.sum(), atol=1e-2, rtol=1e-5)


def test_gradients_against_finite_differences():
    problem = problem_of(1, 40, 40, head_size=8, block=16, tile=8, budget=2)
    inputs = [x.detach() for x in heads(1, 40, 40, (2, 1), 8, torch.float32)]
    slope = torch.randn(1, 40, 2, 8, generator=torch.Generator().manual_seed(3))

    def loss(*tensors):
        return (GatherBackend()(*tensors, problem) * slope).sum()

    asked = [x.clone().requires_grad_() for x in inputs]
    grads = torch.autograd.grad(loss(*asked), asked)
    for place, grad in enumerate(grads):
        step = torch.randn(grad.shape, generator=torch.Generator().manual_seed(place))
        ahead, behind = ([*inputs], [*inputs])
        ahead[place] = inputs[place] + 1e-2 * step
        behind[place] = inputs[place] - 1e-2 * step
        measured = (loss(*ahead) - loss(*behind)) / 2e-2
        torch.testing.assert_close((grad * step).sum(), measured, atol=2e-2, rtol=2e-2)


def test_pages_are_read_in_place_when_they_lie_in_order():
    problem = problem_of(2, 1024, 300, budget=2, block=256, tile=64, head_size=16)
    query, key, value = (x.detach() for x in heads(2, 300, 1024, (4, 2), 16, torch.float32))
    assert pages_serve(key, problem)
    seen = []

    def attend(*args, **kwargs):
        seen.append(kwargs.get("block_table"))
        assert args[1].data_ptr() in (key[0].data_ptr(), key[1].data_ptr())  # no copy
        return varlen_attention(*args, **kwargs)

    with torch.no_grad():
        found = FlashBackend(attend)(query, key, value, problem)
    assert len(seen) == 2 and all(table is not None for table in seen)
    wanted = ReferenceBackend()(query, key, value, problem)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)
    mask = torch.ones(2, 1024)
    mask[0, :5] = 0  # padding in front moves the pages: gathered then
    assert not pages_serve(key, problem_of(2, 1024, 300, block=256, tile=64, mask=mask))


def call(problem, size=16, dtype=torch.float32, grads=False):
    layout = problem.layout
    inputs = heads(layout.rows, layout.queries, layout.keys, (4, 2), size, dtype)
    with torch.set_grad_enabled(grads):
        return call_of(*inputs, problem)


def test_auto_takes_gather_here_and_absent_libraries_are_named():
    problem = problem_of(1, 40, 40, head_size=16)
    assert choose_backend("auto", call(problem)).name == "gather"
    reason = BACKENDS["flash"].supports(call(problem))
    assert reason is not None and ("flash-attn" in reason or "CUDA" in reason)


def test_a_degraded_path_is_said_once(caplog):
    problem = problem_of(1, 40, 40, head_size=16)
    caplog.set_level("WARNING")
    from hf_glm_curriculum.attention.backends.choice import _say_once

    _say_once.cache_clear()
    for _ in range(3):
        assert choose_backend("flex", call(problem, grads=True)).name == "gather"
    assert [r.message for r in caplog.records if "flex" in r.message] == [
        "hf_glm_curriculum: attention backend flex is not used where FlexAttention has no backward "
        "pass on a CPU; gather serves instead."
    ]
    assert choose_backend("flex", call(problem)).name == "flex"


@pytest.mark.parametrize("backend", ["auto", "gather", "flex", "flash"])
def test_float64_is_refused_by_name(backend):
    problem = problem_of(1, 40, 40, head_size=16)
    with pytest.raises(IncompatibleError, match="float64"):
        choose_backend(backend, call(problem, dtype=torch.float64))
    assert choose_backend("reference", call(problem, dtype=torch.float64)).name == "reference"


def test_a_cache_too_short_is_refused():
    with pytest.raises(DataError, match="too short"):
        problem_of(1, 40, 41)
