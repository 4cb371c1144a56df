"""HTML of the review page; every text of a sample passes `escape`."""

from __future__ import annotations

import html

from hf_glm_curriculum.commands.review_session import Message, Neighbour, Progress, View
from hf_glm_curriculum.lifespan.pool import PoolRow, id_text

_NAMES = {
    "loss": ("Loss, last visit", "mean over the answer's tokens"),
    "loss_mean": ("Loss, mean", "over all visits"),
    "onset_loss": ("Opening loss", "first tokens, less how rare they are"),
    "closing_loss": ("Closing loss", "last tokens"),
    "loss_slope": ("Loss slope", "below 0: being learnt"),
    "surprisal": ("Rare words", "how rare the answer's tokens are"),
    "grad_norm": ("Gradient norm", "how hard it pulls"),
    "drift": ("Drift", "away from its neighbours"),
    "confidence": ("Confidence", "mean probability of the answer"),
    "variability": ("Variability", "of the confidence"),
}
_MEANING = {
    "RELABEL": "looks wrong: weight 0 until reviewed",
    "RESAMPLE": "trained on again at weight 1",
    "MASTERED": "learnt: small weight",
    "OBSERVED": "waits for a verdict: small weight",
}
_WORDS = {"keep": "kept", "fix": "fixed", "drop": "dropped"}
_LONGEST = 20_000
_LONGEST_NEIGHBOUR = 400


def escape(text: str) -> str:
    """Text that can only ever be text: no tags, entities or template placeholders."""
    shown = html.escape(text, quote=True)
    for mark in "{}$`":  # the page's own templates
        shown = shown.replace(mark, f"&#{ord(mark)};")
    return shown


def header_html(run: str, progress: Progress) -> str:
    """Title, run and progress bar."""
    total = max(progress.total, 1)
    parts = "".join(
        f'<i class="{name}" style="width:{100 * count / total:.2f}%"></i>'
        for name, count in zip(("keep", "fix", "drop"), progress[1:], strict=True)
    )
    return (
        '<div class="hgc-top"><div><b>Sample review</b>'
        f'<span class="hgc-soft">{escape(run)}</span></div>'
        f'<div class="hgc-count"><b id="hgc-decided">{progress.decided}</b> of {progress.total} '
        f'decided<span class="hgc-soft">{progress.kept} kept · {progress.fixed} fixed · '
        f"{progress.dropped} dropped</span></div></div>"
        f'<div class="hgc-progress" role="progressbar" aria-valuemin="0" '
        f'aria-valuemax="{progress.total}" aria-valuenow="{progress.decided}">{parts}</div>'
    )


def message_html(message: Message | None) -> str:
    """The line that says what has just happened; empty if nothing has."""
    if message is None:
        return ""
    return f'<div class="hgc-message {message.kind}" role="status">{escape(message.text)}</div>'


def sample_html(view: View) -> str:
    """Verdict, decision, prompt and answer of the sample shown."""
    row = view.row
    if row is None:
        return _empty(view)
    place = f"{view.place} of {view.listed} in this list" if view.place else "not in this list"
    return (
        f'<div class="hgc-card" id="hgc-sample" data-row="{row.row}">'
        f'<div class="hgc-tags">{_pill(row)}{_decision_pill(view)}'
        f'<span class="hgc-soft">row {row.row} · {id_text(row.id)} · {place}</span></div>'
        f"{_texts(row)}</div>"
    )


def side_html(view: View, population: str) -> str:
    """Signals against the population, and neighbours."""
    if view.row is None:
        return ""
    return _signals(view.row, view, population) + _neighbours(view.neighbours)


def _empty(view: View) -> str:
    done = view.progress.decided == view.progress.total
    head = "Everything is decided" if done else "No sample passes these filters"
    way = (
        "Write the corrected data with <code>hf-glm-curriculum review RUN --export "
        "corrected.jsonl --data ORIGINAL</code>."
        if done
        else "Choose other filters above."
    )
    return f'<div class="hgc-card hgc-empty" id="hgc-sample"><b>{head}.</b><p>{way}</p></div>'


def _pill(row: PoolRow) -> str:
    meaning = escape(_MEANING.get(row.verdict, ""))
    return (
        f'<span class="hgc-pill" title="{meaning}"><i class="{row.verdict.lower()}"></i>'
        f"{escape(row.verdict)}</span>"
    )


def _decision_pill(view: View) -> str:
    last = view.decision
    if last is None:
        return '<span class="hgc-pill hgc-undecided">undecided</span>'
    by = f"by {last.reviewer or 'somebody'}, {last.time}"
    word = _WORDS[last.decision or "keep"]
    return f'<span class="hgc-pill hgc-{last.decision}" title="{escape(by)}">{word}</span>'


def _texts(row: PoolRow) -> str:
    if row.prompt is None:
        return (
            '<p class="hgc-soft">The run could not read this sample\'s text: nothing can be '
            "decided about it.</p>"
        )
    trained = _alike() if row.decoded and not row.prompt.strip() else ""
    origin = _as_seen() if row.decoded else ""
    return (
        f'<h4>Prompt</h4><div class="hgc-text" id="hgc-prompt">{_clipped(row.prompt)}</div>'
        f'{trained}<h4>Answer in the data</h4><div class="hgc-text hgc-answer" id="hgc-answer">'
        f"{_clipped(row.response or '')}</div>{origin}"
    )


def _alike() -> str:
    return (
        '<p class="hgc-soft">The run trained on prompt and answer alike: the whole exchange '
        "stands below, and can be kept or dropped, not fixed.</p>"
    )


def _as_seen() -> str:
    return (
        '<p class="hgc-soft">Text as the run saw it: decoded from tokens, perhaps in a template, '
        "perhaps cut. A fix replaces the whole answer.</p>"
    )


def _clipped(text: str, longest: int = _LONGEST) -> str:
    if not text:
        return '<span class="hgc-soft">(empty)</span>'
    if len(text) <= longest:
        return escape(text)
    rest = f' <span class="hgc-soft">… {len(text) - longest:,} more characters</span>'
    return escape(text[:longest]) + rest


def _signals(row: PoolRow, view: View, population: str) -> str:
    lines = [_suspicion(row)]
    for name, share in view.shares.items():
        if name in _NAMES:
            lines.append(_bar(name, row.signals[name] or 0.0, share))
    visits = row.signals.get("lifetime") or row.signals.get("visits")
    seen = f" · seen {visits:g} times" if visits else ""
    weight = f" · weight {row.weight:g}" if row.weight is not None else ""
    return (
        f'<div class="hgc-card"><h4>Signals<span class="hgc-soft">{escape(population)}{seen}'
        f'{weight}</span></h4><div class="hgc-bars">{"".join(lines)}</div></div>'
    )


def _suspicion(row: PoolRow) -> str:
    if row.suspicion is None:
        return ""
    width = min(max(row.suspicion, 0.0) / 6.0, 1.0)
    return (
        '<span class="hgc-name" title="robust deviations above the median"><b>Suspicion</b></span>'
        f'<span class="hgc-bar"><i class="hot" style="width:{100 * width:.1f}%"></i></span>'
        f'<span class="hgc-value"><b>{row.suspicion:.2f}</b></span>'
        '<span class="hgc-share">deviations</span>'
    )


def _bar(name: str, value: float, share: float) -> str:
    label, meaning = _NAMES[name]
    extreme = "hot" if share >= 0.95 or share <= 0.05 else "cool"
    return (
        f'<span class="hgc-name" title="{escape(meaning)}">{escape(label)}</span>'
        f'<span class="hgc-bar" title="higher than {share:.0%} of the samples">'
        f'<u></u><i class="{extreme}" style="left:calc({100 * share:.1f}% - 4px)"></i></span>'
        f'<span class="hgc-value">{value:.3g}</span>'
        f'<span class="hgc-share">{share:.0%}</span>'
    )


def _neighbours(neighbours: list[Neighbour]) -> str:
    if not neighbours:
        body = '<p class="hgc-soft">No other prompt shares enough words with this one.</p>'
    else:
        body = "".join(
            f'<div class="hgc-near"><div class="hgc-text">{_clipped(n.prompt, _LONGEST_NEIGHBOUR)}'
            f'</div><div class="hgc-text hgc-answer">{_clipped(n.response, _LONGEST_NEIGHBOUR)}'
            f'</div><span class="hgc-soft">{n.similarity:.0%} of the words'
            f"{' · ' + escape(n.verdict) if n.verdict else ''}</span></div>"
            for n in neighbours
        )
    return f'<div class="hgc-card" id="hgc-neighbours"><h4>Similar prompts</h4>{body}</div>'
