"""Half precision with a loss scale: norms are undone from it, overflows leave no mark."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.signals.ledger import SampleLedger
from hf_glm_curriculum.signals.probe import SampleProbe
from tests.conftest import build_model
from tests.lifespan.runs import Collator, one_at_a_time, random_rows

ROWS = random_rows(4)


class Loop:
    """A mixed-precision loop as accelerate runs it, on the CPU, with a ledger beside it."""

    def __init__(self, scale: float, half: torch.dtype = torch.float16) -> None:
        self.model = build_model().train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        self.half = half
        ids = [content_ids(torch.tensor([row["input_ids"]])) for row in ROWS]
        self.ledger = SampleLedger(SampleIndex(torch.cat(ids)))
        self.signals = SampleProbe(self.model).attach()

    def step(self) -> bool:
        """One optimizer step; whether the scaler let it through."""
        before = self.scaler.get_scale()
        with torch.autocast("cpu", dtype=self.half):
            loss = self.model(**Collator()(ROWS)).loss
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        for signals in self.signals.drain():
            self.ledger.observe(signals)
        return self.scaler.get_scale() >= before


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_norms_do_not_depend_on_the_loss_scale(scale):
    loop = Loop(scale)
    assert loop.step()
    losses, norms = one_at_a_time(build_model().train(), ROWS)
    frame = loop.ledger.to_pandas()
    assert frame["loss"].tolist() == pytest.approx(losses, rel=1e-2)
    assert frame["grad_norm"].tolist() == pytest.approx(norms, rel=3e-2)


def test_an_overflow_is_no_gradient_norm():
    """The scaler skips the step; losses are finite and seen, norms are not."""
    loop = Loop(2.0**10)
    assert loop.step()
    before = loop.ledger.to_pandas()
    weights = [p.detach().clone() for p in loop.model.parameters()]
    loop.scaler.update(2.0**40)
    assert not loop.step()
    assert all(torch.equal(p, w) for p, w in zip(loop.model.parameters(), weights, strict=True))
    after = loop.ledger.to_pandas()
    assert after["visits"].tolist() == [2] * 4
    assert after["grad_norm"].tolist() == before["grad_norm"].tolist()  # the last observed
    assert torch.isnan(loop.ledger.history(torch.arange(4)).grad_norm[:, 1]).all()
    loop.scaler.update(2.0**10)
    assert loop.step()
    final = loop.ledger.to_pandas()
    assert (final["grad_norm"] != before["grad_norm"]).all()
    assert final.drop(columns=["drift", "suspicion", "state"]).notna().all().all()


def test_a_loss_that_is_not_finite_is_no_visit():
    loop = Loop(2.0**10)
    assert loop.step()
    before = loop.ledger.to_pandas()
    with torch.no_grad():
        loop.model.lm_head.weight.mul_(torch.inf)
    loop.step()
    columns = ["visits", "lifetime", "loss", "loss_mean", "grad_norm", "weight", "n_tokens"]
    assert loop.ledger.to_pandas()[columns].equals(before[columns])
    loop.signals.__exit__()
