"""Is a loss function what it should be? Three tests every new loss has to pass.

(Article 1, section 4.4: a 2 × 2 case by hand, ``gradcheck``, ten steps on toy data.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from hf_glm_curriculum.errors import HfGlmCurriculumError
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.losses.context import OWN, LossContext
from hf_glm_curriculum.losses.terms import (
    CausalLMLoss,
    FunctionTerm,
    InstructionLoss,
    MaskedLMLoss,
    TemperatureLoss,
    ZLoss,
)
from hf_glm_curriculum.losses.values import SampleWeights, term_value

PASSED, FAILED, NOTE = "passed", "FAILED", "note"
TWO_BY_TWO = ((1.0, -1.0), (0.5, 2.0))
"""Logits of two tokens over two words; the first token's label is word 0, the second's word 1."""

_STEPS = 10


@dataclass(frozen=True)
class CheckLine:
    """One test and how it ended."""

    name: str
    outcome: str
    detail: str


@dataclass
class LossCheck:
    """What :func:`check_loss` found; true if nothing failed."""

    lines: list[CheckLine] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed; notes do not count."""
        return all(line.outcome != FAILED for line in self.lines)

    def __bool__(self) -> bool:
        """Whether nothing failed."""
        return self.passed

    @property
    def failures(self) -> list[str]:
        """What failed, a line each."""
        return [f"{line.name}: {line.detail}" for line in self.lines if line.outcome == FAILED]

    def __str__(self) -> str:
        """A line for every test, and the verdict."""
        rows = [f"  {line.outcome:<7} {line.name:<12} {line.detail}" for line in self.lines]
        count = len(self.failures)
        verdict = "loss check passed" if self.passed else f"loss check FAILED ({count})"
        return "\n".join([verdict, *rows])

    def require(self) -> None:
        """Raise if something failed.

        Raises:
            HfGlmCurriculumError: naming every failure.
        """
        if not self.passed:
            raise HfGlmCurriculumError(f"loss check failed: {'; '.join(self.failures)}")

    def add(self, name: str, ok: bool, detail: str, otherwise: str = FAILED) -> None:
        """Enter a test's end; ``otherwise`` is what a miss counts as."""
        self.lines.append(CheckLine(name, PASSED if ok else otherwise, detail))


MakeFields = Callable[[Tensor, int], Mapping[str, Any]]


def check_loss(
    fn: Callable[..., Tensor],
    *,
    expected: float | None = None,
    expected_gradient: Sequence[Sequence[float]] | None = None,
    make_fields: MakeFields | None = None,
    seed: int = 0,
) -> LossCheck:
    """Test a loss term, a loss function or a whole composite.

    1. ``2x2``: on :data:`TWO_BY_TWO`, the mean over both tokens and its gradient against the hand
       computation: closed forms for the terms of this library, ``expected`` and
       ``expected_gradient`` where given, else differences computed in plain Python.
    2. ``gradcheck``: analytic against numerical gradients in float64 (looser, and said so, where
       the function computes in float32).
    3. ``falls``: ten Adam steps on toy data lower it.

    Besides, noted but no failure: whether tokens without label count, whether a constant added to
    a token's logits changes it (a forgotten log-softmax shows here), and whether it stays finite at
    large logits.

    Args:
        fn: of ``(context)`` or of ``(outputs, labels)``.
        expected: value on the 2 × 2 case, worked out by hand.
        expected_gradient: its gradient with respect to the four logits.
        make_fields: gives further context fields for labels [B, T] and a vocabulary size, for
            terms that read columns or objectives.
        seed: of the random toy data.

    Returns:
        A :class:`LossCheck`: truth value, ``str`` and ``require()``.
    """
    found = LossCheck()
    try:
        subject = _Subject(FunctionTerm(fn, "checked"), make_fields)
        _two_by_two(found, subject, expected, expected_gradient)
    except Exception as error:
        # Whatever a user's function raises is the finding.
        found.add("2x2", False, _told(error))
        return found
    tests = {
        "gradcheck": _gradcheck,
        "falls": _falls,
        "ignored": _ignored,
        "shifted": _shifted,
        "large": _large,
    }
    for name, test in tests.items():
        try:
            test(found, subject, seed)
        except Exception as error:
            found.add(name, False, _told(error))
    return found


@dataclass
class _Subject:
    """The function under test, as a mean over label tokens of logits."""

    term: FunctionTerm
    make_fields: MakeFields | None

    @property
    def own(self) -> bool:
        return self.term.alignment == OWN

    def labels(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Labels [B, T + 1] whose losses fall on the first T positions."""
        ignored = torch.full((len(rows), 1), -100)
        given = torch.tensor(rows)
        return torch.cat([given, ignored] if self.own else [ignored, given], dim=1)

    def __call__(self, logits: Tensor, labels: Tensor, **fields: Any) -> Tensor:
        if self.term.takes_outputs:
            found: Any = self.term.function(SimpleNamespace(logits=logits), labels)
            if not isinstance(found, Tensor):
                raise TypeError(f"must return a tensor, got {type(found).__name__}")
            return found if found.dim() == 0 else found.sum() / (labels >= 0).sum()
        extra = dict(self.make_fields(labels, logits.shape[-1])) if self.make_fields else {}
        context = LossContext(
            labels,
            logits=logits,
            **{
                "input_ids": labels.clamp(min=0),
                "attention_mask": torch.ones_like(labels),
                **fields,
                **extra,
            },
        )
        value = term_value("checked", self.term, 1.0, context)
        whole = value.contribution(SampleWeights.ones(context)).sum()
        return whole / (context.targets_of(self.term.alignment) >= 0).sum().clamp(min=1)


# -- the hand-computed case ----------------------------------------------------------------------


def _two_by_two(
    found: LossCheck,
    subject: _Subject,
    expected: float | None,
    expected_gradient: Sequence[Sequence[float]] | None,
) -> None:
    labels = subject.labels([[0, 1]])
    flat = [list(row) for row in TWO_BY_TWO]

    def at(matrix: list[list[float]]) -> Tensor:
        return subject(torch.tensor([[*matrix, [0.0, 0.0]]], dtype=torch.float64), labels)

    logits = torch.tensor([[*flat, [0.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    value = subject(logits, labels)
    if value.dim() != 0 or not torch.isfinite(value):
        found.add("2x2", False, f"must be one finite number, got {value.tolist()}")
        return
    if not value.requires_grad:
        found.add("2x2", False, "has no gradient with respect to the logits; is it detached?")
        return
    (gradient,) = torch.autograd.grad(value, logits)
    ours = gradient[0, :2].tolist()
    closed = _closed_form(subject.term.function)
    wanted_value = closed[0] if closed and expected is None else expected
    by_hand = closed[1] if closed and expected_gradient is None else expected_gradient
    wanted = by_hand or _differences(at, flat, 1e-3 if value.dtype == torch.float32 else 1e-5)
    near = all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=2e-4)
        for row, other in zip(ours, wanted, strict=True)
        for a, b in zip(row, other, strict=True)
    )
    same = wanted_value is None or math.isclose(value.item(), wanted_value, rel_tol=1e-5)
    source = "by hand" if by_hand else "by differences"
    against = "" if wanted_value is None else f" (by hand {wanted_value:.6f})"
    found.add(
        "2x2",
        near and same,
        f"value {value.item():.6f}{against}, gradient {_matrix(ours)} ({source} {_matrix(wanted)})",
    )


def _differences(
    at: Callable[[list[list[float]]], Tensor], matrix: list[list[float]], width: float
) -> list[list[float]]:
    """Central differences, entry by entry."""
    found = [[0.0, 0.0], [0.0, 0.0]]
    for i in range(2):
        for j in range(2):
            moved = []
            for sign in (1, -1):
                shifted = [list(row) for row in matrix]
                shifted[i][j] += sign * width
                moved.append(at(shifted).item())
            found[i][j] = (moved[0] - moved[1]) / (2 * width)
    return found


def _closed_form(function: Any) -> tuple[float, list[list[float]]] | None:
    """Value and gradient on the 2 × 2 case of the terms that have a formula, in plain Python."""
    if isinstance(function, CausalLMLoss | InstructionLoss | MaskedLMLoss):
        return _softmax_form(1.0)
    if isinstance(function, TemperatureLoss):
        temperature = function.temperature
        if isinstance(temperature, float | int) and not function.rescale:
            return _softmax_form(temperature)
        return None
    if isinstance(function, ZLoss):
        logs = [math.log(sum(math.exp(z) for z in row)) for row in TWO_BY_TWO]
        rows = [
            [2 * log * math.exp(z - log) / 2 for z in row]
            for row, log in zip(TWO_BY_TWO, logs, strict=True)
        ]
        return sum(log**2 for log in logs) / 2, rows
    return None


def _softmax_form(temperature: float) -> tuple[float, list[list[float]]]:
    """Mean of log Σ exp(z/τ) − z_label/τ over two tokens; gradient (softmax − one-hot) / (2τ)."""
    total, rows = 0.0, []
    for label, row in enumerate(TWO_BY_TWO):
        powers = [math.exp(z / temperature) for z in row]
        total += math.log(sum(powers)) - row[label] / temperature
        rows.append(
            [(p / sum(powers) - (j == label)) / (2 * temperature) for j, p in enumerate(powers)]
        )
    return total / 2, rows


# -- the other tests -----------------------------------------------------------------------------


def _gradcheck(found: LossCheck, subject: _Subject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_()
    labels = subject.labels([[1, 4, 0], [2, 3, 3]])

    def function(h: Tensor, w: Tensor) -> Tensor:
        logits = h @ w.t()
        return subject(logits, labels, hidden_states=h, head=OutputHead(w)).double()

    single = subject(hidden @ weight.t(), labels, hidden_states=hidden, head=OutputHead(weight))
    loose = single.dtype != torch.float64 or _rounds(function, hidden, weight)
    eps, tolerance = (1e-2, 1e-2) if loose else (1e-6, 1e-5)
    try:
        torch.autograd.gradcheck(function, (hidden, weight), eps=eps, atol=tolerance, rtol=1e-3)
    except GradcheckError as error:
        found.add("gradcheck", False, " ".join(str(error).split())[:300])
        return
    how = "looser: the function computes in float32" if loose else "in float64"
    found.add("gradcheck", True, f"analytic and numerical gradients agree, {how}")


def _rounds(function: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor) -> bool:
    """Whether a change far below float32's resolution is lost on the way."""
    with torch.no_grad():
        return bool(function(hidden, weight) == function(hidden * (1 + 1e-11), weight))


def _falls(found: LossCheck, subject: _Subject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vocabulary, width = 8, 8
    table = (0.3 * torch.randn(vocabulary, width, generator=generator)).requires_grad_()
    weight = (0.3 * torch.randn(vocabulary, width, generator=generator)).requires_grad_()
    tokens = torch.randint(0, vocabulary, (4, 6), generator=generator)
    labels = subject.labels(tokens.tolist())
    inputs = torch.cat([tokens, tokens[:, :1]], dim=1)
    optimizer = torch.optim.Adam([table, weight], lr=0.05)
    values = []
    for _ in range(_STEPS + 1):
        hidden = table[inputs]
        loss = subject(
            hidden @ weight.t(),
            labels,
            hidden_states=hidden,
            head=OutputHead(weight),
            input_ids=inputs,
        )
        values.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ok = math.isfinite(values[-1]) and values[-1] < values[0]
    found.add("falls", ok, f"{values[0]:.4f} → {values[-1]:.4f} in {_STEPS} Adam steps on toy data")


def _ignored(found: LossCheck, subject: _Subject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 4, 5, dtype=torch.float64, generator=generator)
    labels = subject.labels([[1, 2, -100]])
    moved = logits.clone()
    moved[:, 2:] += torch.randn(1, 2, 5, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        same = torch.allclose(subject(logits, labels), subject(moved, labels))
    told = "do not count" if same else "count: mask labels below 0, or padding is trained on"
    found.add("ignored", same, f"positions without label {told}", NOTE)


def _shifted(found: LossCheck, subject: _Subject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 4, 5, dtype=torch.float64, generator=generator)
    labels = subject.labels([[1, 2, 3]])
    with torch.no_grad():
        same = torch.allclose(subject(logits, labels), subject(logits + 3.0, labels))
    told = "does not change it" if same else "changes it: meant so, or is log_softmax missing?"
    found.add("shifted", same, f"a constant added to all logits {told}", NOTE)


def _large(found: LossCheck, subject: _Subject, seed: int) -> None:
    labels = subject.labels([[1, 0]])  # the words that are as good as impossible
    logits = 1e4 * torch.tensor([[*TWO_BY_TWO, (0.0, 0.0)]], dtype=torch.float32)
    with torch.no_grad():
        finite = bool(torch.isfinite(subject(logits, labels)))
    told = "finite" if finite else "NaN or infinite: take log_softmax, not log(softmax)"
    found.add("large", finite, f"at logits of 20,000 it is {told}", NOTE)


def _matrix(rows: Sequence[Sequence[float]]) -> str:
    return "[" + ", ".join("[" + ", ".join(f"{v:+.4f}" for v in row) + "]" for row in rows) + "]"


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
