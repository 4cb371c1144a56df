"""Changes to a composite loss, as a control file asks for them.

A control file is YAML with one section, ``loss``: term name → weight, or a mapping of ``weight``,
``active``, ``joined``, ``schedule`` and ``force``. It says how things should be; terms and fields
that it leaves out stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_glm_curriculum.config import read_yaml
from hf_glm_curriculum.config_types import coerce, nearest
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.losses.schedules import (
    Ramp,
    Schedule,
    Steps,
    checked_weight,
    describe_schedule,
    parse_schedule,
)

SECTION = "loss"
FIELDS = ("weight", "active", "joined", "schedule", "force")

Wishes = dict[str, dict[str, Any]]
"""Term name → field → value."""


def read_control(path: Any) -> Any:
    """The ``loss`` section of a control file; {} for an empty file.

    Raises:
        ConfigError: if the file cannot be read, is not YAML, or has another section.
    """
    tree = read_yaml(path)
    for name in tree:
        if name != SECTION:
            raise ConfigError(f"{path}: no section {name!r}; {nearest(str(name), [SECTION])}")
    section = tree.get(SECTION)
    return {} if section is None else section


def checked_wishes(section: Any, names: Iterable[str]) -> Wishes:
    """Check a section's form: terms are known, fields exist, values have their types.

    Args:
        section: what :func:`read_control` returns.
        names: the terms there are.

    Raises:
        ConfigError: naming the term or field, the nearest valid one, and the value.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{SECTION}: must be a mapping of term names to weights, got {section!r}; write "
            "`loss: {instruction: 0.3}`."
        )
    known = list(names)
    found: Wishes = {}
    for name, wish in section.items():
        if name not in known:
            raise ConfigError(f"{SECTION}: no term {name!r}; {nearest(str(name), known)}")
        fields = wish if isinstance(wish, Mapping) else {"weight": wish}
        found[name] = {f: _checked_field(name, f, v) for f, v in fields.items()}
    return found


def planned(composite: CompositeLoss, wishes: Wishes, max_steps: int | None = None) -> Wishes:
    """What of the wishes would change the composite; nothing is changed yet.

    Raises:
        ConfigError: if a term would have to join first, a schedule lies outside the run, or no
            term would be left to train on.
    """
    changes = {name: _changes_of(composite, name, wish) for name, wish in wishes.items()}
    changes = {name: change for name, change in changes.items() if change}
    for name, change in changes.items():
        schedule = _read_schedule(composite, name, change)
        if max_steps is None or not isinstance(schedule, Ramp | Steps):
            continue
        if schedule.first_step >= max_steps:
            raise ConfigError(
                f"{SECTION}.{name}.schedule: begins at step {schedule.first_step}, and the run "
                f"ends after {max_steps}; let it begin earlier."
            )
    if changes and composite.locked:
        raise ConfigError(f"{SECTION}: {composite.locked}.")
    _check_something_is_left(composite, changes)
    return changes


def apply_changes(composite: CompositeLoss, changes: Wishes) -> None:
    """Make the changes of :func:`planned`; a term that joins passes its preflight first."""
    for name, change in changes.items():
        entry = composite.entry(name)
        schedule = _read_schedule(composite, name, change)
        if change.get("joined"):
            composite.add_term(
                name,
                weight=change.get("weight", entry.weight),
                active=change.get("active", entry.active),
                schedule=schedule if "schedule" in change else entry.schedule,
                preflight=True,
                force=change.get("force", False),
            )
            continue
        if "weight" in change:
            composite.set_weight(name, change["weight"])
        if "schedule" in change:
            composite.schedule(name, schedule)
        if "active" in change:
            composite.set_active(name, change["active"])
        if change.get("joined") is False:
            composite.remove_term(name)


def as_metrics(changes: Wishes) -> dict[str, float]:
    """Changes as numbers for trackers: ``<term>/weight``, ``/active``, ``/joined``, ``/force``."""
    found = {}
    for name, change in changes.items():
        for field, value in change.items():
            number = float(value is not None) if field == "schedule" else float(value)
            found[f"{name}/{field}"] = number
    return found


def _checked_field(name: str, field: Any, value: Any) -> Any:
    place = f"{SECTION}.{name}.{field}"
    if field not in FIELDS:
        raise ConfigError(f"{SECTION}.{name}: no field {field!r}; {nearest(str(field), FIELDS)}")
    if field == "weight":
        return checked_weight(value, place)
    if field == "schedule":
        if value is None:
            return None
        try:
            parse_schedule(value)
        except ConfigError as error:
            raise ConfigError(f"{SECTION}.{name}: {error}") from None
        return dict(value)
    return coerce(value, bool, place)


def _changes_of(composite: CompositeLoss, name: str, wish: Mapping[str, Any]) -> dict[str, Any]:
    entry = composite.entry(name)
    present = entry.joined or name in composite.candidates
    if not present and "joined" not in wish:
        raise ConfigError(
            f"{SECTION}.{name}: the term is registered and has not joined; write "
            f"`{name}: {{joined: true, weight: ...}}` to add it."
        )
    if not wish.get("joined", True):
        return {"joined": False} if present else {}
    if not present:
        return dict(wish)
    changes = {}
    if "weight" in wish and (wish["weight"] != entry.weight or entry.schedule is not None):
        changes["weight"] = wish["weight"]
    if "schedule" in wish and not _is_followed(wish["schedule"], entry.schedule):
        changes["schedule"] = wish["schedule"]
        # A weight beside a schedule is where it starts.
        changes |= {"weight": wish["weight"]} if "weight" in wish else {}
    elif "schedule" in wish:
        changes.pop("weight", None)
    if "active" in wish and wish["active"] != entry.active:
        changes["active"] = wish["active"]
    return changes


def _is_followed(wish: Mapping[str, Any] | None, schedule: Schedule | None) -> bool:
    """Whether a schedule is what a file asks for, in every field that the file names."""
    present = describe_schedule(schedule)
    if wish is None or not isinstance(present, Mapping):
        return wish is None and present is None
    return all(present.get(name) == value for name, value in wish.items())


def _read_schedule(composite: CompositeLoss, name: str, change: Mapping[str, Any]) -> Any:
    if change.get("schedule") is None:
        return None
    entry = composite.entry(name)
    weight = change.get("weight", entry.weight_at(composite.step, name) or entry.weight)
    return parse_schedule(change["schedule"], weight, composite.step)


def _check_something_is_left(composite: CompositeLoss, changes: Wishes) -> None:
    """At least one joined, active term must keep a weight above 0, or a schedule."""
    for name in composite.names:
        entry, change = composite.entry(name), changes.get(name, {})
        joined = entry.joined and change.get("joined", True)
        active = change.get("active", entry.active)
        scheduled = (
            change["schedule"] is not None
            if "schedule" in change
            else (entry.schedule is not None and "weight" not in change)
        )
        if joined and active and (scheduled or change.get("weight", entry.weight) > 0):
            return
    raise ConfigError(f"{SECTION}: no active term with a weight above 0 would be left; keep one.")
