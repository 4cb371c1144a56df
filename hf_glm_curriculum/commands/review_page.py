"""The review page in gradio: lays out fields and buttons, and passes presses to the session."""

from __future__ import annotations

from collections import Counter
from functools import partial
from importlib.resources import files
from types import ModuleType
from typing import Any

from hf_glm_curriculum.commands.review_html import (
    header_html,
    message_html,
    sample_html,
    side_html,
)
from hf_glm_curriculum.commands.review_session import (
    ALL,
    BACK,
    DECIDED,
    SKIP,
    STAY,
    UNDECIDED,
    UNDO,
    Filters,
    ReviewSession,
    View,
)
from hf_glm_curriculum.lifespan.answers import DROP, FIX, KEEP

_BUTTONS = (
    (KEEP, "Keep (K)"),
    (FIX, "Fix (F)"),
    (DROP, "Drop (D)"),
    (SKIP, "Skip (S)"),
    (BACK, "Back (B)"),
    (UNDO, "Undo (U)"),
)
_DECISIONS = (
    ("Undecided", UNDECIDED),
    ("Decided", DECIDED),
    ("Kept", KEEP),
    ("Fixed", FIX),
    ("Dropped", DROP),
    ("All", ALL),
)
_VERDICTS = ("RELABEL", "OBSERVED", "RESAMPLE", "MASTERED")
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans CJK SC", "sans-serif")


def build_page(gradio: ModuleType, session: ReviewSession, run: str, population: str) -> Any:
    """Lay out the page.

    Args:
        gradio: the module.
        session: answers the presses.
        run: what the title names.
        population: what the signals' ranks are among, in words.

    Returns:
        The gradio app, not yet serving.
    """
    with gradio.Blocks(title="Sample review", analytics_enabled=False) as page:
        header = gradio.HTML(elem_id="hgc-header")
        with gradio.Row(elem_id="hgc-filters"):
            verdict = gradio.Radio(
                _verdicts(session), value=ALL, label="Verdict of the run", elem_id="hgc-verdict"
            )
            decision = gradio.Radio(
                list(_DECISIONS), value=UNDECIDED, label="Decision", elem_id="hgc-decision"
            )
        note = gradio.HTML(elem_id="hgc-note")
        with gradio.Row():
            with gradio.Column(scale=3):
                sample = gradio.HTML(elem_id="hgc-view")
                editor = gradio.Textbox(
                    label="Correction (E to edit, Ctrl+Enter to save it as a fix, Esc to leave)",
                    lines=3,
                    max_lines=14,
                    elem_id="hgc-editor",
                )
                buttons = _buttons(gradio)
            with gradio.Column(scale=2):
                side = gradio.HTML(elem_id="hgc-side")
        token = gradio.Textbox(elem_id="hgc-token", show_label=False)

        inputs = [token, editor, verdict, decision]
        outputs = [header, note, sample, side, editor, token]

        def show(view: View) -> tuple[str, ...]:
            return (
                header_html(run, view.progress),
                message_html(view.message),
                sample_html(view),
                side_html(view, population),
                view.editor,
                view.token,
            )

        def act(action: str, *values: str) -> tuple[str, ...]:
            token, edited, *filters = values
            return show(session.act(action, token, edited or "", Filters(*filters)))

        # Not queued: the token, not the order of arrival, says what a press is about.
        quiet = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
        page.load(
            lambda *chosen: show(session.first(Filters(*chosen))), inputs[2:], outputs, **quiet
        )
        for name, button in buttons.items():
            button.click(partial(act, STAY if name == "reset" else name), inputs, outputs, **quiet)
        for field in (verdict, decision):
            field.input(partial(act, STAY), inputs, outputs, **quiet)
    return page


def launch_settings(gradio: ModuleType) -> dict[str, Any]:
    """How the page looks and behaves, as arguments of ``Blocks.launch``; nothing is fetched."""
    assets = files("hf_glm_curriculum.commands") / "assets"
    theme = gradio.themes.Base(
        primary_hue="blue", neutral_hue="slate", radius_size="md", font=list(_FONT)
    )
    return {
        "theme": theme,
        "css": (assets / "review.css").read_text("utf-8"),
        "head": f"<script>{(assets / 'review.js').read_text('utf-8')}</script>",
        "footer_links": [],
        "share": False,
        "ssr_mode": False,
        "quiet": True,
        "show_error": True,
        "prevent_thread_lock": True,
    }


def _verdicts(session: ReviewSession) -> list[tuple[str, str]]:
    """The verdicts that the pool has, with their counts."""
    counts = Counter(row.verdict for row in session.rows)
    named = [(f"{name} ({counts[name]})", name) for name in _VERDICTS if counts[name]]
    return [(f"All ({len(session.rows)})", ALL), *named]


def _buttons(gradio: ModuleType) -> dict[str, Any]:
    """The row of buttons, by action."""
    buttons = {}
    with gradio.Row(elem_id="hgc-actions"):
        for name, label in (*_BUTTONS, ("reset", "Reset (R)")):
            buttons[name] = gradio.Button(
                label, elem_id=f"hgc-{name}", size="md", scale=1, min_width=80
            )
    return buttons
