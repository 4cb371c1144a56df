"""``torch_compile=True``: our hooks stay outside the compiled code, results are those of eager."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback, SampleProbe
from tests.conftest import build_model
from tests.lifespan.hosts import Host, assert_ledger_holds, assert_same_training, host
from tests.lifespan.runs import Collator, add_lora, one_at_a_time, random_rows
from tests.lifespan.test_exactness import NEUTRAL

COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
pytestmark = [
    pytest.mark.slow,
    # Dynamo looks at it after a graph break, and hides the warning itself where none is an error.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # Dynamo tracing TRL 1.16's autograd function.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _run(folder: Any, callbacks: list, lora: bool = False, **settings: Any) -> Host:
    # One layer: all are compiled alike, which is what takes the time.
    model = build_model(num_hidden_layers=1)
    model = add_lora(model) if lora else model
    return host(folder, callbacks, model=model, max_steps=4, **settings).train()


@pytest.mark.parametrize("kind", ["trainer", "sft"])
@pytest.mark.parametrize("form", ["full", "lora_checkpointed"])
def test_compiled_is_eager(form, kind, tmp_path):
    lora = form != "full"
    settings = {"sft": kind == "sft", "lora": lora, "gradient_checkpointing": lora}
    eager, compiled = SampleLifespanCallback(), SampleLifespanCallback()
    one = _run(tmp_path / "a", [eager], **settings)
    two = _run(tmp_path / "b", [compiled], **settings, **COMPILED)
    assert isinstance(two.trainer.model_wrapped, torch._dynamo.OptimizedModule)
    assert_same_training(two, one, tolerance=1e-5)
    assert_ledger_holds(compiled, two.seen)
    pd.testing.assert_frame_equal(
        compiled.ledger.to_pandas(), eager.ledger.to_pandas(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_inductor_gives_the_same_signals(kind, tmp_path):
    eager, compiled = SampleLifespanCallback(NEUTRAL), SampleLifespanCallback(NEUTRAL)
    settings = {"sft": kind == "sft"}
    one = _run(tmp_path / "a", [eager], **settings)
    two = _run(tmp_path / "b", [compiled], torch_compile=True, **settings)
    assert two.losses == pytest.approx(one.losses, abs=1e-4)
    columns = ["id", "row", "lifetime", "loss", "onset_loss", "grad_norm", "weight"]
    pd.testing.assert_frame_equal(
        compiled.ledger.to_pandas()[columns],
        eager.ledger.to_pandas()[columns],
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_a_callback_that_comes_after_the_compilation_sees_everything(kind, tmp_path):
    """Code compiled before the hooks were on must not be run past them."""
    # Rows of one length: code for another is compiled anew, which the first test sees to.
    settings = {"sft": kind == "sft", "rows": random_rows(longest=10), **COMPILED}
    found = _run(tmp_path, [], **settings)
    second = SampleLifespanCallback()
    other = _run(tmp_path / "b", [second], **settings)
    assert_ledger_holds(second, other.seen)  # another model, which could run the first one's code
    late = SampleLifespanCallback(LifespanConfig(signals=("slope", "grad_norm", "drift")))
    found.trainer.add_callback(late)
    found.train()
    assert_ledger_holds(late, found.seen)
    found.trainer.remove_callback(late)
    found.train()
    assert late.ledger.to_pandas()["lifetime"].sum() == 8


@pytest.mark.parametrize("place", ["around", "inside"])
def test_a_model_that_its_owner_compiled_can_be_probed(place):
    rows = random_rows(4)
    model: Any = build_model().train()
    compiled = torch.compile(model, backend="eager") if place == "around" else model
    if place == "inside":
        model.model.compile(backend="eager")
    compiled(**Collator()(rows)).loss.backward()  # compiled before there was a hook
    compiled.zero_grad()
    with SampleProbe(compiled).attach() as signals:
        for _ in range(2):
            compiled(**Collator()(rows)).loss.backward()
        first, second = signals.drain()
    losses, norms = one_at_a_time(build_model().train(), rows)
    for seen in (first, second):
        assert seen.loss.tolist() == pytest.approx(losses, abs=1e-5)
        assert seen.grad_norm.tolist() == pytest.approx(norms, rel=1e-4)
