"""The verdict on a run and its three answers, each with a small picture, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpuscope._columns import MEANINGS
from gpuscope._text import duration, percent, safe
from gpuscope.analysis.confinement_analysis import ConfinementResult
from gpuscope.analysis.part import lasted_ns
from gpuscope.telling.explanation import in_short
from gpuscope.telling.finding import Finding
from gpuscope.telling.media import rich
from gpuscope.telling.rules import RULES
from gpuscope.telling.verdict import RunVerdict
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.widgets import html

_QUESTIONS = ("Did they overlap?", "What waited, and for what?", "Did it stay on its SMs?")
_EMPTY = (
    "how much of the time they ran together",
    "a typical and a slow call, cut into its waits, by cause",
    "every kernel, given and used SMs",
)
_HELD = ("SMs held", "priority")
_SLOW = 0.74
"""Share of the width that the slow call takes; its time stands behind it."""
_ROWS = 3
Piece: TypeAlias = tuple[str, float, str]
"""Of a bar: look, share of the width, colour."""
_WORD = re.compile(rf"(?<!<b>)\b({'|'.join(MEANINGS)})\b(?![^<]*>)", re.IGNORECASE)


@dataclass(frozen=True)
class Judged:
    """The verdict on a setting, and what its pictures show.

    Attributes
    ----------
    confinement
        Or why it cannot be judged.
    busy
        Workload → share of the time in which a kernel of it ran.
    homes
        Workload → its partition.
    facts
        What is known of devices and partitions.
    """

    verdict: RunVerdict
    confinement: ConfinementResult | Finding
    busy: Mapping[str, float]
    homes: Mapping[str, str | None]
    facts: TraceMetadata


def explained(page: str) -> str:
    """Say at a hover what our own words mean, where each stands first in a piece of HTML."""
    explained_words = set[str]()

    def meaning(match: re.Match[str]) -> str:
        word = match[1].lower()
        if word in explained_words:
            return match[1]
        explained_words.add(word)
        return f'<abbr title="{safe(MEANINGS[word])}">{match[1]}</abbr>'

    return _WORD.sub(meaning, page)


def shows(finding: Finding, words: str = "show") -> str:
    """Return a button that shows a finding's first span in the timeline; nothing without one."""
    if not finding.spans:
        return ""
    span = finding.spans[0].span
    title = "Show this in the timeline"
    return f'<button type="button" hidden data-span="{span}" title="{title}">{words}</button>'


def headline(verdict: Finding, notes: Iterable[Finding], look: str = "") -> str:
    """Return the verdict, and beside it what belongs there, with a button for a mend."""
    words, button = [], ""
    for note in notes:
        words.append(rich(note))
        if note.mend and note.mend.of == "experiment" and not button:
            label = RULES[note.rule].advice
            button = (
                f'<button type="button" hidden data-mend title="{safe(note.mend.code)}">'
                f"{html.text(label)}</button>"
            )
    plain = "plain" if verdict.rule == "verdict.waits" else "good"
    look = look or ("bad" if verdict.severity == "error" else plain)
    in_full = safe(" ".join([verdict.text, *(note.text for note in notes)]))
    return (
        f'<div class="gs-verdict gs-{look}" role="status"><p class="gs-headline" title="{in_full}">'
        f'{html.text(verdict.text, 400)}</p><p class="gs-notes"><span>{explained(" ".join(words))}'
        f"</span>{button}</p></div>"
    )


def nothing() -> str:
    """Return the three answers before anything ran: what each will hold."""
    return _row(
        _card(question, f'<span class="gs-quiet">{words}</span>')
        for question, words in zip(_QUESTIONS, _EMPTY, strict=True)
    )


def answers(judged: Judged, colors: Mapping[str, str]) -> str:
    """Return the three answers; ``colors`` are the partitions'."""
    verdict, busy = judged.verdict, judged.busy

    def ink(workload: str) -> str:
        color = colors.get(judged.homes.get(workload) or "", "")
        return color if re.fullmatch("#[0-9a-fA-F]{6}", color) else "var(--gs-w)"

    most = sorted(busy, key=lambda name: busy[name])[:_ROWS]
    lanes = "".join(
        _lane(html.text(name, 30), [("run", busy[name], ink(name))], percent(busy[name]))
        for name in most
    )
    calls, waits, legend = verdict.calls, "", ""
    if calls is not None:
        inks = ink(calls.workload), ink(next(iter(calls.holders), ""))
        slow_ns = max(lasted_ns(calls.slow), 1)
        for mark, parts in (("p50", calls.typical), ("p99", calls.slow)):
            pieces = [
                (
                    html.part_class(part.kind),
                    part.duration_ns / slow_ns * _SLOW,
                    inks[part.kind in _HELD],
                )
                for part in parts
            ]
            name = shows(verdict.waited, mark) if parts is calls.slow else mark
            waits += _lane(name, pieces, duration(float(f"{lasted_ns(parts):.3g}")), beside=True)
        kinds = {part.kind: inks[part.kind in _HELD] for part in calls.slow}
        legend = "".join(
            f'<span class="gs-key"><i class="gs-{html.part_class(kind)}" style="--c:{color}"></i>'
            f"{in_short(kind)}</span>"
            for kind, color in kinds.items()
        )
    evidence = verdict.stayed.names.get("evidence", "")
    pictures = lanes, f'<div class="gs-calls">{waits}</div>', _strip(judged, colors)
    words = (
        explained(rich(verdict.won)) if verdict.won else "",
        legend,
        f"{html.text(evidence)}." if evidence else "",
    )
    values = map(_value, (verdict.overlapped, verdict.waited, verdict.stayed))
    overlapped, waited, stayed = _QUESTIONS
    of = f"{html.text(calls.workload, 20)}: w" if calls else "W"
    questions = overlapped, f"{of}{waited[1:]}", stayed
    return _row(map(_card, questions, values, pictures, words))


def _row(cards: Iterable[str]) -> str:
    return f'<div class="gs-answers">{"".join(cards)}</div>'


def _card(question: str, value: str, picture: str = "", words: str = "") -> str:
    return (
        f'<section class="gs-answer"><h4>{question}</h4><p class="gs-value">{value}</p>'
        f'{picture}<p class="gs-words">{words}</p></section>'
    )


def _value(finding: Finding) -> str:
    words = explained(html.text(finding.clause, 200))
    if finding.severity == "error":
        return f'<span class="gs-escaped">▼ {words}</span>'
    return words


def _lane(name: str, pieces: Iterable[Piece], value: str, *, beside: bool = False) -> str:
    """Return a bar with what it is of; its value follows the bar, or what it is filled with."""
    inside = f'<span class="gs-took">{value}</span>' if beside else ""
    after = "" if beside else f"<span>{value}</span>"
    return f'<div class="gs-call"><span>{name}</span>{_bar(pieces, inside)}{after}</div>'


def _bar(pieces: Iterable[Piece], after: str = "") -> str:
    """Return a bar of pieces."""
    parts = "".join(
        f'<i aria-hidden="true" class="gs-{look}" style="width:{100 * share:.2f}%;--c:{color}"></i>'
        for look, share, color in pieces
    )
    return f'<div class="gs-lane">{parts}{after}</div>'


def _strip(judged: Judged, colors: Mapping[str, str]) -> str:
    """Return the SMs by partition, and below those that the headline's workload could use."""
    facts, verdict = judged.facts, judged.verdict
    total = max((device.sm_count or 0 for device in facts.devices.values()), default=0)
    sizes = {name: part.sm_count or 0 for name, part in facts.partitions.items()}
    if not total or not sizes:
        return ""
    escaped = verdict.stayed.names.get("partition", "")
    home = judged.homes.get(verdict.calls.workload) if verdict.calls else None
    pieces, used, at = [], _bar([("out", 1, "var(--gs-w)")]) if escaped else "", 0.0
    for name, count in sizes.items():
        share, color = count / total, colors.get(name, "var(--gs-w)")
        pieces.append(("faded" if name == escaped else "sm", share, color))
        if name == home and not escaped:
            used = _bar([("gap", at, "none"), ("run", share, color)])
        at += share
    return _bar(pieces) + used
