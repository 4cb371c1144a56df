"""The page of `analyze`: histograms, extremes, coverage and templates in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_glm_curriculum.curriculum.analysis import MEASURES, Distribution, InstructionAnalysis
from hf_glm_curriculum.evaluation.report_style import (
    card,
    esc,
    facts,
    figure,
    number,
    page,
    percent,
    section,
    table,
)
from hf_glm_curriculum.evaluation.svg_charts import Line, line_chart


def render_analysis(analysis: InstructionAnalysis, about: Mapping[str, Any]) -> str:
    """The whole page as HTML; every text of the data is escaped."""
    heading = (
        '<p class="brand">hf_glm_curriculum · instructions</p>'
        f"<h1>{analysis.rows:,} instructions</h1>"
        + facts({"sources": ", ".join(about["sources"]), "rarity of words": about["background"]})
    )
    parts = [
        f'<div class="cards">{_cards(analysis)}</div>',
        section(
            "entropy",
            "Entropy",
            "Instruction entropy is high where an instruction says rare things and leaves many "
            "answers. The entropy of characters and words is that of the text's own letters: it "
            "says more of script and length than of difficulty.",
            _distributions(analysis),
        ),
        section(
            "extremes",
            "Lowest and highest",
            "The rows at both ends of the instruction entropy.",
            _extremes("Lowest", analysis.lowest) + _extremes("Highest", analysis.highest),
        ),
        section(
            "coverage",
            "Coverage",
            "What is asked for (head verbs, Chinese ones by their English rendering), in which "
            "language, and the labels that the data carry.",
            _coverage(analysis),
        ),
        section(
            "templates",
            "Templates",
            "Instructions that differ in numbers, names and quotations only.",
            _templates(analysis),
        ),
    ]
    return page(f"{analysis.rows:,} instructions", heading, "\n".join(parts))


def _cards(analysis: InstructionAnalysis) -> str:
    found = analysis.distributions["instruction"].summary()
    heaps = "two or more" if found["two_heaps"] else "one"
    note = f"dip {number(found['dip'])}, by chance up to {number(found['dip_by_chance'])}"
    cards = [
        card("Instruction entropy, median", number(found["p50"], 1), "bits"),
        card("Heaps", heaps, esc(note)),
        card("Rows from shared templates", percent(analysis.templated)),
    ]
    cards += [card(f"Characters in {name} bits", percent(s)) for name, s in analysis.bands.items()]
    return "".join(cards)


def _distributions(analysis: InstructionAnalysis) -> str:
    boxes = "".join(
        f"<div>{_distribution(name, found)}</div>" for name, found in analysis.distributions.items()
    )
    return f'<div class="pair">{boxes}</div>'


def _distribution(name: str, found: Distribution) -> str:
    """A histogram as a stepped curve."""
    xs = [x for low, high in zip(found.edges, found.edges[1:], strict=False) for x in (low, high)]
    ys = [float(count) for count in found.counts for _ in range(2)]
    chart = line_chart([Line(name, list(map(float, xs)), ys, "var(--accent)")], "bits", "rows")
    return figure(MEASURES[name], chart)


def _extremes(title: str, rows: Sequence[tuple[int, float, str]]) -> str:
    cells = ((f"{row:,}", f"{score:.2f}", esc(text)) for row, score, text in rows)
    return f"<h3>{title}</h3>{table(('row', 'bits', 'instruction'), cells)}"


def _coverage(analysis: InstructionAnalysis) -> str:
    tables = {"head verb": analysis.verbs, "language": analysis.languages, **analysis.labels}
    return "".join(
        f"<h3>{esc(name)}</h3>{_counts(counts, analysis.rows)}" for name, counts in tables.items()
    )


def _counts(counts: Mapping[str, int], rows: int) -> str:
    cells = ((esc(n, 80), f"{count:,}", percent(count / rows)) for n, count in counts.items())
    return table(("", "rows", "share"), cells)


def _templates(analysis: InstructionAnalysis) -> str:
    if not analysis.templates:
        return '<p class="soft">No two rows fill the same template.</p>'
    cells = ((f"{count:,}", esc(text, 300)) for text, count in analysis.templates)
    return table(("rows", "template"), cells)
