"""``torch_compile=True``: gates stay outside the compiled code, results are those of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import build_model
from tests.migration.runs import migration, run

pytestmark = [
    pytest.mark.slow,
    # Dynamo looks at it after a graph break, and hides the warning itself where none is an error.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # Dynamo tracing TRL 1.16's autograd function.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("sft", [False, True], ids=["trainer", "sft"])
def test_compiled_is_eager(sft):
    eager = run([migration()], sft=sft, max_steps=4)
    compiled = run([migration()], sft=sft, max_steps=4, **COMPILED)
    assert isinstance(compiled.trainer.model_wrapped, torch._dynamo.OptimizedModule)
    for ours, theirs in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_code_compiled_before_is_not_run_past_the_gates():
    model = build_model()
    run([], model=model, **COMPILED)
    twin = build_model()
    twin.load_state_dict(model.state_dict())
    late = run([migration()], model=model, **COMPILED)
    eager = run([migration()], model=twin)
    for ours, theirs in zip(late.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
