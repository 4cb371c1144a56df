"""The audit as one self-contained page; all text from the data is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

if TYPE_CHECKING:
    from hf_glm_curriculum.data.audit_result import Issue, RecordAudit

SHOWN = 50
_TEMPLATE = Path(__file__).with_name("audit.html")


def render_html(
    audit: RecordAudit, kinds: dict[str, str], notes: frozenset[str], title: str
) -> str:
    """Render the page.

    Args:
        audit: the findings.
        kinds: meaning of each kind.
        notes: kinds that are no fault by themselves.
        title: heading of the page.
    """
    counts = audit.counts
    largest = max(counts.values(), default=1)
    sections = [
        {
            "name": kind,
            "meaning": kinds[kind],
            "count": count,
            "width": 100 * count / largest,
            "is_note": kind in notes,
            "findings": _findings(audit, kind),
        }
        for kind, count in counts.items()
    ]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        rows=audit.rows,
        flagged=len(audit.flagged()),
        kinds=sections,
        diversity=audit.diversity,
        tables=_tables(audit.diversity),
    )


def excerpt(text: str, head: int = 220, tail: int = 140) -> str:
    """Return a text's start and end, where faults show."""
    if len(text) <= head + tail + 20:
        return text
    return f"{text[:head]} … {text[-tail:]}"


def _findings(audit: RecordAudit, kind: str) -> list[dict[str, Any]]:
    """Return the first findings of a kind with excerpts."""
    chosen: list[Issue] = [issue for issue in audit.issues if issue.kind == kind][:SHOWN]
    found = []
    for issue in chosen:
        entry: dict[str, Any] = {"row": issue.row, "detail": issue.detail}
        entry["prompt"], entry["answer"] = _texts(audit, issue.row)
        entry["other_row"] = issue.other_row
        if issue.other_row is not None:
            entry["other_prompt"], entry["other_answer"] = _texts(audit, issue.other_row)
        found.append(entry)
    return found


def _texts(audit: RecordAudit, row: int) -> tuple[str, str]:
    """Return excerpts of a row's prompt and answer."""
    record = audit.records[row]
    return excerpt(record["prompt"]), excerpt(record["response"])


def _tables(diversity: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the counts as tables with bar widths."""
    named = {
        "Prompt → answer language": diversity["prompt_to_answer_language"],
        "Prompts begin with": diversity["prompt_openings"],
        "Answers begin with": diversity["answer_openings"],
        **{f"Label “{name}”": counts for name, counts in diversity["labels"].items()},
    }
    tables = []
    for name, counts in named.items():
        largest = max(counts.values(), default=1)
        rows = [(key, count, 100 * count / largest) for key, count in counts.items()]
        tables.append({"name": name, "rows": rows})
    return tables
