"""Several losses as one, whose parts may change while training runs.

Shape letters: B rows, T positions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, IncompatibleError, StateError
from hf_glm_curriculum.losses.context import OWN, LossContext
from hf_glm_curriculum.losses.monitor import AddUp, TermMonitor
from hf_glm_curriculum.losses.preflight import PREFLIGHT_BATCHES, Candidate
from hf_glm_curriculum.losses.schedules import checked_weight, parse_schedule
from hf_glm_curriculum.losses.term_table import TermEntry, TermTable
from hf_glm_curriculum.losses.terms import CausalLMLoss, MaskedLMLoss
from hf_glm_curriculum.losses.values import SampleWeights, TermValue, gradient_norms, term_value
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size

logger = logging.getLogger(__name__)

ON_NONFINITE = ("deactivate", "stop")


class CompositeLoss(TermTable):
    """A weighted sum of loss terms over one forward pass.

    Loss = Σₖ λₖ Σₜ ℓₖₜ / N, with N the host's denominator, the same for every term. Usable
    alone and as a trainer's ``compute_loss_func`` by calling it, and through
    ``CompositeLossCallback`` on ``Trainer`` and both forms of TRL's ``SFTTrainer``. With the
    single term ``CausalLMLoss()`` at weight 1 it is the host's own loss, bit for bit.

    A term that returns NaN or infinity is never trained on: called directly, the composite leaves
    it out of the sum; under the callback the optimizer step is refused. Either way the term is
    reported by its name and deactivated, or training stops with ``on_nonfinite="stop"``.

    Args:
        terms: name → term: a class of ``losses.terms``, or any function of ``(context)`` or
            ``(outputs, labels)``. A term returns [B, T] token losses, or one number, which
            counts as the mean over the micro-batch's label tokens.
        weights: name → weight ≥ 0; 1 for names left out.
        on_nonfinite: "deactivate" or "stop".

    Raises:
        ConfigError: for unusable names, terms or weights.

    Example::

        composite = CompositeLoss({"lm": CausalLMLoss(), "z": ZLoss()}, {"z": 1e-4})
        Trainer(..., callbacks=[CompositeLossCallback(composite)])
    """

    def __init__(
        self,
        terms: Mapping[str, Any] | None = None,
        weights: Mapping[str, float] | None = None,
        *,
        on_nonfinite: str = "deactivate",
    ) -> None:
        """Enter the terms; all of them act from the start."""
        super().__init__()
        if on_nonfinite not in ON_NONFINITE:
            raise ConfigError(f"on_nonfinite: must be one of {ON_NONFINITE}, got {on_nonfinite!r}.")
        self.on_nonfinite = on_nonfinite
        self.attached = False
        """Whether a callback trains with it: new terms then pass a preflight first."""
        self.locked = ""
        """Why the run under way can train on nothing but next-token cross-entropy, if so."""
        self.measure_shares = False
        """Whether the next micro-batch measures gradient shares."""
        self.edits: list[dict[str, Any]] = []
        """Every change made by a control file, and every refusal: step and what."""
        self.monitor = TermMonitor()
        self.candidates: dict[str, Candidate] = {}
        terms, weights = dict(terms or {}), dict(weights or {})
        for name in weights:
            if name not in terms:
                raise ConfigError(f"weights: no term {name!r}; {nearest(name, terms)}")
        for name, term in terms.items():
            self.add_term(name, term, weights.get(name, 1.0))

    # -- terms -------------------------------------------------------------------------------

    def add_term(
        self,
        name: str,
        term: Any = None,
        weight: float = 1.0,
        active: bool = True,
        *,
        schedule: Any = None,
        preflight: bool | None = None,
        force: bool = False,
    ) -> None:
        """Add a term, or bring a registered one in.

        While a callback trains with this composite, a new term is first evaluated on ten
        micro-batches without gradients; it joins at the end of the optimizer step in which the
        tenth fell, or is refused with a reason in the log.

        Args:
            name: letters, digits, "_" and "-".
            term: see the class; None takes the registered term of that name.
            weight: its weight, ≥ 0.
            active: whether it counts at once.
            schedule: see :meth:`schedule`.
            preflight: whether it passes a preflight; None: if training is under way.
            force: join even if the preflight objects (a term that raises is refused always).

        Raises:
            ConfigError: if the name is taken or unusable, or a setting is wrong.
        """
        wrapped = self.entry(name).term if term is None else self._wrapped(name, term)
        weight = checked_weight(weight, f"weight of {name!r}")
        plan = None if schedule is None else parse_schedule(schedule, weight, self.step)
        waits = self.attached if preflight is None else preflight
        entry = TermEntry(wrapped, weight, active, plan, joined=not waits)
        self._put(name, entry)
        if waits:
            self.candidates[name] = Candidate(name, entry, force)

    def remove_term(self, name: str) -> None:
        """Take a term out, or a candidate off its preflight; it stays known by its name.

        Raises:
            ConfigError: if there is none of that name.
        """
        super().remove_term(name)
        self.candidates.pop(name, None)

    def columns(self) -> tuple[str, ...]:
        """Batch columns that terms read and the model must not see."""
        found = [c for e in self._entries.values() for c in e.term.columns]
        return tuple(dict.fromkeys(found))

    def neutral(self) -> bool:
        """Whether it is the host's own next-token loss: that term alone, at weight 1."""
        acting = list(self.acting())
        if len(acting) != 1 or acting[0][2] != 1.0:
            return False
        term = acting[0][1].term.function
        return type(term) is CausalLMLoss and term.only is None

    # -- alone and as compute_loss_func ------------------------------------------------------

    def __call__(
        self,
        outputs: Any,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
        **fields: Any,
    ) -> Tensor:
        """Loss of a model's outputs: the form that ``Trainer(compute_loss_func=...)`` calls.

        Args:
            outputs: with ``logits`` [B, T, V]; or the logits themselves.
            labels: [B, T] int64, negative = ignored.
            num_items_in_batch: N; the label tokens of this batch by default.
            fields: further fields of the context (``input_ids``, ``attention_mask``,
                ``objective``, ``hidden_states``, ``head``, ``columns``, …) for terms that read
                them.

        Returns:
            0-dim loss.

        Raises:
            IncompatibleError: if a term reads what is not there.
            StateError: if every term returned NaN or infinity.
        """
        logits = outputs if isinstance(outputs, Tensor) else None
        context = LossContext(
            labels,
            outputs=None if logits is not None else outputs,
            logits=logits,
            num_items_in_batch=num_items_in_batch,
            step=self.step,
            **fields,
        )
        training = torch.is_grad_enabled()
        plain = None if self.candidates else self._plain_loss(context, num_items_in_batch)
        n = self._local_count(context)
        if plain is not None:
            if training:
                divisor = n.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
                self._note_plain(plain.detach() * divisor, n)
                self._finite([])
            return plain
        values = self.term_values(context)
        if training:
            self.note(context, values)
            values = self._finite(values)
            self.settle()
        weights = SampleWeights.ones(context)
        if training:
            name = "logits" if context.has("logits") else "hidden_states"
            self.note_shares(values, weights, getattr(context, name))
        total = torch.stack([v.contribution(weights).sum() for v in values]).sum()
        return total / (n.clamp(min=1) if num_items_in_batch is None else num_items_in_batch)

    def _plain_loss(self, context: LossContext, num_items: Any) -> Tensor | None:
        """The host's own function where it is what the terms amount to."""
        from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

        acting = list(self.acting())
        term = acting[0][1].term.function if len(acting) == 1 else None
        masked = type(term) is MaskedLMLoss and term.labels_column is None
        if not (self.neutral() or (masked and acting[0][2] == 1.0)):
            return None
        if not context.has("logits") or context.logits.dtype == torch.float64:
            return None  # transformers' own computes in float32
        context.term = acting[0][0]
        function = ForMaskedLMLoss if masked else ForCausalLMLoss
        logits: Any = context.logits
        labels: Any = context.labels
        return function(logits, labels, logits.shape[-1], num_items_in_batch=num_items)

    def _local_count(self, context: LossContext) -> Tensor:
        own = all(entry.term.alignment == OWN for _, entry, _ in self.acting())
        return (context.targets_of(OWN if own else "next") >= 0).sum()

    def _finite(self, values: list[TermValue]) -> list[TermValue]:
        """Leave out the terms that returned NaN or infinity, on every rank alike."""
        bad = self.refuse_nonfinite()
        kept = [v for v in values if v.name not in bad]
        if bad and not kept:
            raise StateError(
                f"terms: {', '.join(bad)} returned NaN or infinity and no other term is active; "
                "lower the learning rate, or resume from an earlier checkpoint."
            )
        return kept

    # -- one micro-batch ---------------------------------------------------------------------

    def term_values(self, context: LossContext) -> list[TermValue]:
        """Ask every acting term.

        Raises:
            ConfigError: if a term's answer has the wrong form.
            IncompatibleError: if no term acts, or one reads what the host does not give.
        """
        found = [term_value(n, entry.term, w, context) for n, entry, w in self.acting()]
        if not found:
            settings = ", ".join(f"{n} {w:g}" for n, w in self.weights.items()) or "none"
            raise IncompatibleError(
                f"terms: none is active with a weight above 0 at step {self.step} ({settings}); "
                "set a weight."
            )
        return found

    def note(self, context: LossContext, values: list[TermValue]) -> None:
        """Enter a micro-batch's values, and let candidates look at it."""
        labelled = (context.targets >= 0).float()
        totals = {v.name: (v.weight, v.total(labelled)) for v in values}
        self.monitor.note(totals, labelled.sum())
        self._look(context)

    def note_plain(self, context: LossContext, summed_loss: Tensor) -> None:
        """The same where the host computed the only term itself."""
        self._note_plain(summed_loss, (context.targets >= 0).sum())
        self._look(context)

    def note_shares(
        self, values: list[TermValue], weights: SampleWeights, anchor: Tensor | None
    ) -> None:
        """Where it is time to, measure every weighted term's gradient at ``anchor``."""
        if not self.measure_shares or len(values) < 2:
            return
        self.measure_shares = False
        norms = gradient_norms(values, weights, anchor)
        if norms is not None:
            self.monitor.note_shares(values, norms)

    def _note_plain(self, summed_loss: Tensor, n_tokens: Tensor) -> None:
        name = next(self.acting())[0]
        self.monitor.note({name: (1.0, summed_loss.float())}, n_tokens)

    def _look(self, context: LossContext) -> None:
        for candidate in self.candidates.values():
            candidate.look(context)

    # -- between steps -----------------------------------------------------------------------

    def settle(self) -> dict[str, str]:
        """Let candidates that have seen enough join, or refuse them.

        Returns:
            Name → why it was refused, "" if it joined; of the candidates decided now.
        """
        due = [c for c in self.candidates.values() if c.batches >= PREFLIGHT_BATCHES]
        found = {}
        for candidate in due:
            del self.candidates[candidate.name]
            reason = candidate.verdict(self.monitor.running, _adder())
            found[candidate.name] = reason
            candidate.entry.joined = not reason
            if reason:
                logger.warning("term %r was refused: %s", candidate.name, reason)
            else:
                logger.info("term %r joined at step %d", candidate.name, self.step)
        return found

    def refuse_nonfinite(self) -> list[str]:
        """Deactivate the terms that returned NaN or infinity since the last call, on any rank.

        Returns:
            Their names.

        Raises:
            StateError: with ``on_nonfinite="stop"``.
        """
        bad = self.monitor.nonfinite(self.names, _adder())
        for name in bad:
            message = f"term {name!r} returned NaN or infinity at step {self.step}"
            if self.on_nonfinite == "stop":
                raise StateError(f"{message}; on_nonfinite='stop' ends training here.")
            self.entry(name).active = False
            logger.warning("%s: it is deactivated, and nothing was trained on it", message)
        return bad

    def values(self) -> dict[str, float]:
        """Name → mean over the label tokens since the last call, weights not applied, all ranks."""
        return self.monitor.values(self.names, _adder())

    def shares(self) -> dict[str, float]:
        """Name → share of the gradient at the last hidden states, when last looked at."""
        found = self.monitor.shares(self.names, _adder())
        acting = [name for name, _, _ in self.acting()]
        return found or ({acting[0]: 1.0} if len(acting) == 1 else {})

    def metrics(self) -> dict[str, float]:
        """Values since the last call, present weights and last shares, for trackers."""
        found = self.values()
        found |= {f"{name}/weight": weight for name, weight in self.weights.items()}
        return found | {f"{name}/share": share for name, share in self.shares().items()}

    # -- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Settings of every term and the edits so far, as plain values."""
        waiting = {name: c.force for name, c in self.candidates.items()}
        return {
            "step": self.step,
            "terms": self.describe(),
            "waiting": waiting,
            "edits": list(self.edits),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state over; a preflight under way begins anew.

        Raises:
            StateError: if a term of it is not known here.
        """
        self.restore(state["terms"])
        self.edits = list(state["edits"])
        self.candidates = {
            name: Candidate(name, self.entry(name), force)
            for name, force in state["waiting"].items()
        }
        self.monitor = TermMonitor(self.monitor.history is not None)


def _adder() -> AddUp | None:
    return sum_over_ranks if world_size() > 1 else None
