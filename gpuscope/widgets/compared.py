"""Runs side by side: each pair with its headline, the call at the p99, curves and differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpuscope._tables import Html
from gpuscope._text import duration
from gpuscope.analysis.part import PartKind
from gpuscope.analysis.result import Row
from gpuscope.analysis.trace_parts import parts_by_cause
from gpuscope.comparing.compare import compare
from gpuscope.comparing.effects import Effect
from gpuscope.comparing.figure import difference_look
from gpuscope.comparing.lanes import part_colour
from gpuscope.comparing.pair import CompareResult
from gpuscope.comparing.pairing import Pairs
from gpuscope.errors import MissingEvidence
from gpuscope.figures.latency_figure import slower
from gpuscope.telling.explanation import in_words
from gpuscope.telling.media import rich
from gpuscope.telling.of_trace import confinement_verdict
from gpuscope.timeline import style
from gpuscope.trace.run import Run
from gpuscope.widgets import html

_NAMES = ("A", "B")
_CHANGES = 8
"""Changes that are named."""
_PX, _TALL = 260, 110
"""Size of the curves."""
_GONE = (
    "Its trace is no longer kept, so its calls cannot be compared: pin a run before three others, "
    "or run it again."
)
_INK = "var(--jp-ui-font-color1,#171a1f)"


def side_by_side(runs: Mapping[str, Run | None]) -> str:
    """Return runs beside the last of them as HTML, a section each.

    Parameters
    ----------
    runs
        What to call each → it, or nothing where its trace is no longer kept.
    """
    *earlier, (last, shown) = runs.items()
    sections = [
        _section(label, run, last, shown, is_open=number == 0)
        for number, (label, run) in enumerate(earlier)
    ]
    return (
        '<div class="gpuscope-differences" style="line-height:1.5;overflow-x:auto">'
        f"<b>Side by side</b>{''.join(sections)}</div>"
    )


def _section(label: str, run: Run | None, last: str, shown: Run | None, *, is_open: bool) -> str:
    names = html.text(f"A: {label}; B: {last}.", 400)
    if run is None or shown is None:
        return f"<div>{names} {html.text(_GONE)}</div>"
    both = [list(side.values())[-1] for side in (run, shown)]
    try:
        result = compare(both[0], both[1], names=_NAMES)
    except MissingEvidence as error:
        return f"<div>{names} {html.text(error)}</div>"
    costs = [rich(finding) for finding in result.findings[1:] if finding.rule != "change.calls"]
    headline = " ".join([rich(result.findings[0]), *costs])
    lines = [names, _changed(result.changes)]
    lines += [rich(finding) for finding in result.findings if finding.rule == "change.calls"]
    stopped = [name for name, side in zip(_NAMES, (run, shown), strict=True) if side.stopped]
    lines += [html.text(f"Not run to the end: {', '.join(stopped)}.")] if stopped else []
    lines += [
        f"{name}: {rich(confinement_verdict(trace))}"
        for name, trace in zip(_NAMES, both, strict=True)
    ]
    notes = html.text(f"{result.definition}. {result.provenance}.", 1000)
    return (
        f"<details{' open' if is_open else ''}><summary style='font-size:15px;font-weight:600'>"
        f"{headline}</summary><small>{'<br>'.join(lines)}</small>{_pictures(result)}"
        f"<small>{notes}</small></details>"
    )


def _changed(changes: Sequence[str]) -> str:
    more = f"; and {len(changes) - _CHANGES} more" if len(changes) > _CHANGES else ""
    words = f"changed: {'; '.join(changes[:_CHANGES])}{more}" if changes else "the same experiment"
    return html.text(f"{words}.", 2000)


def _pictures(result: CompareResult) -> str:
    workload = str(result.findings[0].subject["workload"])
    above, beside = "", [html.table([*_rows(result)])]
    if (pairs := result.pairs.get(workload)) is not None:
        colours = style.colours_of(effect.workload for effect in result.differences)
        above = _call(result, workload, pairs, colours)
        beside += [_curves(pairs), html.table([*_means(result, workload, colours)])]
    boxes = "".join(f"<div>{part}</div>" for part in beside)
    return f'{above}<div style="display:flex;flex-wrap:wrap;gap:6px 24px">{boxes}</div>'


# -- the call at the p99 ------------------------------------------------------------------
def _call(result: CompareResult, workload: str, pairs: Pairs, colours: Mapping[str, str]) -> str:
    """Return the parts of each run's call at its p99, aligned where they were entered."""
    mark, (first, second) = pairs.slow
    took_ns = int(pairs.first_ns[first]), int(pairs.second_ns[second])
    lines = []
    spans = int(pairs.first[first]), int(pairs.second[second])
    for name, trace, span, length in zip(_NAMES, result.traces, spans, took_ns, strict=True):
        bar = ""
        for part, holder in parts_by_cause(trace, span):
            share = 100 * part.duration_ns / max(took_ns)
            words = f"{in_words(part.kind)}: {duration(part.duration_ns)}"
            bar += _part(part.kind, part_colour(part.kind, workload, holder, colours), share, words)
        lines.append(
            f"<div style='display:flex;gap:8px'><b>{name}</b><div class='gs-lane' style='flex:1'>"
            f"{bar}</div><span style='width:64px'>{duration(length)}</span></div>"
        )
    title = html.text(f"Each run's call of {workload} at its {mark}, from its entry", 200)
    return f"<div style='max-width:900px'><b>{title}</b>{''.join(lines)}</div>"


def _part(kind: PartKind, colour: str, share: float, words: str) -> str:
    """Return a part of a bar, so many per cent of it wide."""
    return (
        f"<i class='gs-{html.part_class(kind)}' title='{html.text(words)}' "
        f"style='width:{share:.3f}%;--c:{colour}'></i>"
    )


# -- numbers ------------------------------------------------------------------------------
def _rows(result: CompareResult) -> Iterator[Row]:
    """Yield the rows of a comparison, each with a picture of its interval."""
    ends = [
        end for effect in result.differences for end in (effect.low, effect.high, effect.change)
    ]
    reach = max((abs(end) for end in ends if np.isfinite(end)), default=0) or 1
    for row, effect in zip(result.rows(), result.differences, strict=True):
        yield {**row, "95 % interval": Html(_interval(effect, reach))}


def _interval(effect: Effect, reach: float) -> str:
    if not np.isfinite(effect.high - effect.low + effect.change):
        return ""
    colour, _ = difference_look(effect)
    low, dot, high = (60 + 56 * end / reach for end in (effect.low, effect.change, effect.high))
    return (
        '<svg width="120" height="12" style="vertical-align:middle" aria-hidden="true">'
        f'<path d="M60 0V12" stroke="{_INK}" stroke-width=".7"/>'
        f'<path d="M{low:.1f} 6H{high:.1f}" stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{dot:.1f}" cy="6" r="3.5" fill="{colour}"/></svg>'
    )


def _means(result: CompareResult, workload: str, colours: Mapping[str, str]) -> Iterator[Row]:
    """Yield what a mean call consists of in both; the last row is its length."""
    try:
        parts = result.parts(workload)
    except MissingEvidence:
        return
    sums: list[tuple[str, int, int]] = [
        (Html(f"{_swatch(part.kind, colour)}{in_words(part.kind)}"), part.first_ns, part.second_ns)
        for part in parts
        for colour in [part_colour(part.kind, workload, part.holder, colours)]
    ]
    sums.append(("a mean call", sum(e[1] for e in sums), sum(e[2] for e in sums)))
    for what, *totals in sums:
        before, after = (total / parts[0].calls for total in totals)
        change = f"{'+' if after > before else '−'} {duration(abs(after - before))}"
        row: Row = {"where its time goes": what, "A": duration(before), "B": duration(after)}
        yield {**row, "change": change if after != before else "0"}


def _swatch(kind: PartKind, colour: str) -> str:
    look = f"class='gs-{html.part_class(kind)}' style='--c:{colour}'"
    return f"<span class='gs-key'><i aria-hidden='true' {look}></i></span>"


def _curves(pairs: Pairs) -> str:
    """Return which share of the calls takes at least so long, in both."""
    longest = max(int(pairs.first_ns.max()), int(pairs.second_ns.max())) or 1
    lines, decades = "", np.log10(len(pairs.first_ns)) or 1
    looks = ((pairs.first_ns, style.WHOLE_GPU_COLOUR, "5 3"), (pairs.second_ns, "#0072B2", "none"))
    for took_ns, colour, dash in looks:
        times, shares = slower(took_ns)
        x, y = times / longest * _PX, -np.log10(shares) / decades * _TALL
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
        lines += (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
    return (
        "<b>Share of calls slower than …</b><br>"
        f'<svg width="{_PX}" height="{_TALL}" style="border-left:1px solid {_INK};'
        f'border-bottom:1px solid {_INK};overflow:visible" role="img" '
        f'aria-label="Share of calls slower than a time, logarithmic">{lines}</svg>'
        f"<br><small>0 to {duration(longest)}; 100 % to 1 of {len(pairs.first_ns):,} calls, "
        "logarithmic; A dashed, B solid</small>"
    )
