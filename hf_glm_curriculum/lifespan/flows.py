"""How many samples moved between states from one moment of a run to the next.

Moments are the end of an epoch, what a judge said then, and the end of the run. Counting reads the
whole ledger, so it is done there and nowhere else. Shape letter: F moments.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.lifespan.life_views import blocks
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState
from hf_glm_curriculum.signals.ledger_columns import NOT_SEEN

UNSEEN = "UNSEEN"
"""Where samples come from that no step had seen before."""
ORDER = (
    UNSEEN,
    *(SampleState(s).name for s in (0, 3, 1, 2, 4)),
)
"""States in the order pictures stack them: unseen, in training, in the pool, out of it."""
PREFIX = "flow_"
COLUMNS = ("moment", "step", "epoch", "source", "target", "samples")
"""Of ``state_flow.csv``."""
_STATES = len(SampleState)


@dataclass(frozen=True)
class Moment:
    """One moment and what moved since the one before."""

    name: str
    """"epoch 1", "judged" or "end"."""
    step: int
    epoch: float
    moves: dict[tuple[str, str], int]
    """(source, target) → samples, those that stayed where they were included."""

    def moved(self) -> bool:
        """Whether any sample is elsewhere than it was."""
        return any(source != target for source, target in self.moves)


@dataclass
class StateFlow:
    """The moments of a run so far."""

    moments: list[Moment] = field(default_factory=list)

    def note(self, ledger: SampleLedger, name: str, step: int, epoch: float) -> None:
        """Count what moved since the last moment; one at which nothing has moved is left out."""
        moves = count_moves(ledger)
        found = {
            (UNSEEN if source == _STATES else SampleState(source).name, SampleState(target).name): n
            for source, row in enumerate(moves.tolist())
            for target, n in enumerate(row)
            if n
        }
        moment = Moment(name, step, epoch, found)
        if moment.moved():
            self.moments.append(moment)

    def rows(self) -> Iterator[tuple[str, int, float, str, str, int]]:
        """Lines of ``state_flow.csv``."""
        for m in self.moments:
            for (source, target), samples in m.moves.items():
                yield m.name, m.step, m.epoch, source, target, samples

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs: moments as rows of numbers, and their names."""
        names = "\n".join(m.name for m in self.moments).encode()
        facts = [(float(m.step), m.epoch) for m in self.moments]
        moves = torch.zeros(len(self.moments), _STATES + 1, _STATES, dtype=torch.int64)
        for table, moment in zip(moves, self.moments, strict=True):
            for (source, target), samples in moment.moves.items():
                origin = _STATES if source == UNSEEN else SampleState[source].value
                table[origin, SampleState[target].value] = samples
        return {
            f"{PREFIX}names": torch.tensor(list(names), dtype=torch.uint8),
            f"{PREFIX}facts": torch.tensor(facts, dtype=torch.float64).view(-1, 2),
            f"{PREFIX}moves": moves,
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> StateFlow:
        """Rebuild the moments; none if the tensors hold none."""
        names = bytes(tensors[f"{PREFIX}names"].tolist()).decode()
        parts = (tensors[f"{PREFIX}facts"].tolist(), tensors[f"{PREFIX}moves"].tolist())
        flow = cls()
        for name, (step, epoch), table in zip(names.split("\n"), *parts, strict=False):
            moves = {
                (UNSEEN if s == _STATES else SampleState(s).name, SampleState(t).name): n
                for s, row in enumerate(table)
                for t, n in enumerate(row)
                if n
            }
            flow.moments.append(Moment(name, int(step), epoch, moves))
        return flow


def read_flow(path: Path) -> list[Moment]:
    """Read a ``state_flow.csv``.

    Raises:
        StateError: if it cannot be read or holds something else.
    """
    moments: list[Moment] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                facts = (row["moment"], int(row["step"]), float(row["epoch"]))
                if not moments or facts != _facts(moments[-1]):
                    moments.append(Moment(*facts, {}))
                moments[-1].moves[row["source"], row["target"]] = int(row["samples"])
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise StateError(f"cannot read {path}: {error}; restore it or delete it") from error
    return moments


def _facts(moment: Moment) -> tuple[str, int, float]:
    return moment.name, moment.step, moment.epoch


def count_moves(ledger: SampleLedger) -> Tensor:
    """Samples by state at the last count and state now; remembers the states of now.

    Returns:
        [6, 5] int64 on the CPU; the last row is of samples that were not seen at the last count.
    """
    total = torch.zeros((_STATES + 1) * _STATES, dtype=torch.int64)
    columns = (ledger.column(name) for name in ("lifetime", "state", "counted_state"))
    lifetime, state, counted = columns
    for part in blocks(len(ledger)):
        now = state[part].long()
        before = counted[part].long().clamp(max=_STATES)
        codes = (before * _STATES + now)[lifetime[part] > 0]
        total += torch.bincount(codes, minlength=len(total)).cpu()
        counted[part] = torch.where(lifetime[part] > 0, state[part], NOT_SEEN)
    return total.view(_STATES + 1, _STATES)


# -- geometry ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ribbon:
    """Samples that went from a state at one moment to a state at the next."""

    column: int
    """Number of the moment they left; 0 is the start."""
    source: str
    target: str
    samples: int
    left: tuple[int, int]
    """First and last sample of the source's stack they take up, counted from the bottom."""
    right: tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A flow diagram in units of samples."""

    columns: list[dict[str, tuple[int, int]]]
    """Of each moment, the start first: state → lower and upper edge of its stack."""
    ribbons: list[Ribbon]
    total: int


def layout(moments: Sequence[Moment]) -> Layout:
    """Stack the states of every moment, and lead ribbons between the stacks.

    Raises:
        StateError: if samples come from where none were.
    """
    total = sum(n for m in moments for (source, _), n in m.moves.items() if source == UNSEEN)
    counts = [{UNSEEN: total}]
    full = []
    for moment in moments:
        moves = dict(moment.moves)
        known = sum(n for (source, _), n in moves.items() if source == UNSEEN)
        waiting = counts[-1].get(UNSEEN, 0) - known
        if waiting > 0:
            moves[UNSEEN, UNSEEN] = waiting
        after: dict[str, int] = {}
        for (_, target), n in moves.items():
            after[target] = after.get(target, 0) + n
        counts.append(after)
        full.append(moves)
    if any(sum(c.values()) != total for c in counts):
        raise StateError("state_flow: moments do not hold the same samples; write the run anew.")
    columns = [_stacked(c) for c in counts]
    ribbons = [r for i, moves in enumerate(full) for r in _ribbons(i, moves, columns)]
    return Layout(columns, ribbons, total)


def _stacked(counts: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Edges of the stacks, the first state of ``ORDER`` on top."""
    edges, base = {}, 0
    for state in reversed(ORDER):
        if counts.get(state):
            edges[state] = (base, base + counts[state])
            base += counts[state]
    return edges


def _ribbons(
    number: int, moves: dict[tuple[str, str], int], columns: list[dict[str, tuple[int, int]]]
) -> Iterator[Ribbon]:
    """Ribbons from one column to the next, none crossing another within a stack."""
    out = {state: low for state, (low, _) in columns[number].items()}
    into = {state: low for state, (low, _) in columns[number + 1].items()}
    place = {state: i for i, state in enumerate(reversed(ORDER))}
    if any(state not in place for move in moves for state in move):
        raise StateError("state_flow: names a state that samples cannot have.")
    for source, target in sorted(moves, key=lambda m: (place[m[0]], place[m[1]])):
        n = moves[source, target]
        if source not in out or target not in into:
            raise StateError(f"state_flow: {n} samples come from {source}, where none were.")
        left, right = out[source], into[target]
        out[source], into[target] = left + n, right + n
        yield Ribbon(number, source, target, n, (left, left + n), (right, right + n))
