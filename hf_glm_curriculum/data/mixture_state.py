"""The state of a mixture as a checkpoint keeps it: JSON types, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_glm_curriculum.data.mixture_draw import DrawState
from hf_glm_curriculum.data.mixture_log import Change
from hf_glm_curriculum.errors import StateError

VERSION = 1


@dataclass
class MixtureState:
    """What a run leaves to the one that goes on with it.

    Attributes:
        identity: settings and sources that must be the same.
        changes: the log.
        drawn: where the stream stands after ``origin``; None where that is not known.
        origin: (step, row) after which the state was taken.
        first: (step, row) from which the run counted its steps.
        rows_per_step: rows of one of its optimizer steps; None where they were not known.
    """

    identity: dict[str, Any]
    changes: list[Change]
    drawn: DrawState | None
    origin: tuple[int, int]
    first: tuple[int, int]
    rows_per_step: int | None

    def as_dict(self) -> dict[str, Any]:
        """The state in JSON types."""
        return {
            "version": VERSION,
            "identity": self.identity,
            "changes": [asdict(one) for one in self.changes],
            "drawn": None if self.drawn is None else self.drawn.as_dict(),
            "origin": list(self.origin),
            "first": list(self.first),
            "rows_per_step": self.rows_per_step,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], identity: Mapping[str, Any]) -> MixtureState:
        """Read what :meth:`as_dict` wrote.

        Args:
            saved: the dictionary.
            identity: of the mixture that is to go on.

        Raises:
            StateError: if it is no such state, or one of another mixture.
        """
        if not isinstance(saved, Mapping) or saved.get("version") != VERSION:
            raise StateError(
                "mixture: the state is of no known version; resume from a checkpoint that this "
                "version of the package wrote"
            )
        for name, value in identity.items():
            if saved["identity"].get(name) != value:
                raise StateError(
                    f"mixture: the checkpoint's {name} is {saved['identity'].get(name)!r}, this "
                    f"mixture's is {value!r}; resume with the settings and data of the run"
                )
        drawn = saved["drawn"]
        return cls(
            dict(saved["identity"]),
            [Change(**one) for one in saved["changes"]],
            None if drawn is None else DrawState.from_dict(drawn),
            (saved["origin"][0], saved["origin"][1]),
            (saved["first"][0], saved["first"][1]),
            saved["rows_per_step"],
        )

    def position(self) -> DrawState:
        """Where the stream goes on.

        Raises:
            StateError: if that is not known.
        """
        if self.drawn is None:
            raise StateError(
                "mixture: the checkpoint does not hold the position in the streams; leave "
                "ignore_data_skip off, so that the rows are read again"
            )
        return self.drawn

    def check_replay(self, rows_per_step: int | None) -> None:
        """Refuse to read past rows by steps of another size.

        Raises:
            StateError: naming the way out.
        """
        before, (step, row) = self.rows_per_step, self.first
        if before is None or rows_per_step is None:
            return
        if before != rows_per_step or row != step * before:
            raise StateError(
                f"mixture: the steps of the checkpoint's run held {before} rows, those of this run "
                f"hold {rows_per_step}, so a trainer that counts batches would skip the wrong "
                "rows; set ignore_data_skip=True to go on from the saved position"
            )
