"""What a scene says in words: the tooltips of its spans, and what is drawn and what is not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpuscope._columns import MEANINGS
from gpuscope._text import percent, stream_label
from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.labels import Class, Track, partition_label
from gpuscope.timeline.readings import STACK, STATES, SYSTEM_CALL
from gpuscope.timeline.scene import LANES, Scene
from gpuscope.timeline.text import clean, duration, escape
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace.columns import combined
from gpuscope.trace.sites import lines_of

_CHARACTERS = 44_000
"""What the names in a figure may take; with many spans each is cut shorter."""
_SHORTEST, _LONGEST = 32, 120
_STACK_LINES = 4
"""Lines of the program that a tooltip of a stack has."""
_MARKS = {"torn": "torn: frames moved while they were read", "cut": "cut: frames are left out"}
OUTSIDE = "ESCAPED"
"""What a tooltip says first of a kernel that ran outside the partition it was intended for."""

_escaped = lru_cache(maxsize=65_536)(escape)


def shared_lines(tracks: Tracks, bar_class: Class) -> list[str]:
    """Return what the tooltips of a class end with, in plain text."""
    lines = [style.KIND_STYLES[bar_class.kind].label]
    if bar_class.partition is not None:
        where = partition_label(tracks.names, bar_class.partition or None)
        lines[0] += f", partition {where}" if bar_class.partition else f", {where}"
    if meaning := MEANINGS.get(bar_class.kind):
        lines.append(f"{bar_class.kind}: {meaning}")
    sources = tracks.classes.get(bar_class, ())
    if len(sources) == 1:
        lines.append(f"source: {clean(sources[0], 40)}")
    return lines


def hovers(scene: Scene) -> list[str]:
    """Return one text a bar for Plotly, which adds when it starts and the lines of its class."""
    tracks, rows = scene.tracks, scene.rows
    limit = min(_LONGEST, max(_SHORTEST, _CHARACTERS // max(1, len(rows))))
    coded = tracks.coded["name"]
    names = [_short(coded.values[code], limit) for code in coded.codes[rows].tolist()]
    lines, number = tails(scene)
    ends = ["".join(map(_emphasised, tail)) for tail in lines]
    columns = (scene.start_ns, scene.end_ns, scene.is_open, *tracks.uncertainties(rows), number)
    low, high = scene.window_ns
    texts = []
    for name, start, end, is_open, early, late, tail in zip(
        names, *(column.tolist() for column in columns), strict=True
    ):
        if is_open:
            lasts = f"OPEN: its end was not seen; {duration(high - start)} until the window's end"
        else:
            lasts = duration(end - start) if end > start else "an instant"
            if end > high:
                lasts += f", {duration(end - high)} of it after the window"
        if start < low:
            lasts += f", {duration(low - start)} of it before the window"
        if early:
            lasts += f"<br>true start up to {duration(early)} later"
        if late and not is_open:
            lasts += f"<br>true end up to {duration(late)} earlier"
        texts.append(f"{name}</b><br>{lasts}{ends[tail]}")
    return texts


def _short(text: str, limit: int) -> str:
    escaped = _escaped(text, limit)
    # Letters outside ASCII and escapes take more than a byte each.
    return escaped if 2 * len(escaped.encode()) <= 3 * limit else _escaped(text, limit // 3)


def _emphasised(line: tuple[str, bool]) -> str:
    text, stands_out = line
    return f"<br><b>{escape(text)}</b>" if stands_out else f"<br>{escape(text)}"


def tails(scene: Scene) -> tuple[list[list[tuple[str, bool]]], Array]:
    """Return what tooltips say of stream, intention, status and samples, and which each span has.

    Returns
    -------
    tuple
        Lines of plain text, each with whether it stands out, of which many spans have the same;
        bar → number of its own.
    """
    tracks, rows = scene.tracks, scene.rows
    columns = ("partition", "intended_partition", "stream", "status", "source", "site")
    coded = [tracks.coded[name].codes[rows] for name in columns]
    classes, of_class = scene.classed
    is_stack = np.array([bar_class.kind in (*STATES, STACK) for bar_class in classes], bool)
    category = tracks.coded["category"]
    marks = np.where(is_stack[of_class], category.codes[rows], 0)
    samples = tracks.samples(rows)
    first, number = combined(of_class, *coded, marks, samples)
    lines = []
    for at in first.tolist():
        bar_class = classes[of_class[at]]
        values = [
            tracks.coded[name].values[codes[at]] for name, codes in zip(columns, coded, strict=True)
        ]
        if is_stack[of_class[at]]:
            mark = category.values[marks[at]]
            lines.append(_stack_tail(bar_class, int(samples[at]), mark, values[3], values[5]))
        else:
            lines.append(_tail(tracks, bar_class, values))
    return lines, number


def _stack_tail(
    bar_class: Class, samples: int, mark: str | None, status: str | None, site: str | None
) -> list[tuple[str, bool]]:
    lines = [f"{samples:,} sample{'s' * (samples != 1)}"]
    if status is not None and bar_class.kind in (SYSTEM_CALL, STACK):
        lines.append(clean(status, 60))
    lines += [clean(_MARKS.get(word, word), 60) for word in (mark or "").split(", ") if word]
    program = lines_of(site)
    lines += [f"at {clean(str(line), 80)}" for line in program[:_STACK_LINES]]
    if len(program) > _STACK_LINES:
        lines.append(f"and {len(program) - _STACK_LINES} lines more")
    return [(line, False) for line in lines]


def _tail(tracks: Tracks, bar_class: Class, values: list[Any]) -> list[tuple[str, bool]]:
    partition, intended, stream, status, source, site = values
    lines: list[tuple[str, bool]] = []
    if stream is not None or bar_class.partition is not None:
        lines.append((stream_label(tracks.names.stream_name(stream), 60), False))
    if intended is not None and intended != partition:
        where = f"{OUTSIDE}: " * bar_class.escaped + f"intended for partition {clean(intended, 40)}"
        lines.append((where, bar_class.escaped))
    if status is not None:
        lines.append((f"status {clean(status, 60)}", False))
    if len(tracks.classes[bar_class]) != 1:
        lines.append((f"source: {clean(source, 40)}", False))
    lines += [(f"at {clean(str(line), 80)}", False) for line in lines_of(site)[:1]]
    return lines


def shares_of(
    tracks: Tracks, shown: Sequence[Track], window_ns: tuple[int, int]
) -> list[list[str]]:
    """Return of each row of a GPU which share of the time it was busy, and how long.

    Where rows of some of the window are missing, the share is of the rest, and that is said.
    """
    seen_ns = tracks.seen_ns(window_ns)
    is_whole = seen_ns == window_ns[1] - window_ns[0]
    texts: list[list[str]] = []
    for track in shown:
        if not track.is_work:
            texts.append([])
            continue
        busy_ns = tracks.busy_in([track.number], window_ns)
        length = duration(busy_ns) if is_whole else f"of {duration(seen_ns)}"
        texts.append([percent(busy_ns / seen_ns), length] if seen_ns else ["–"])
    return texts


def mark_text(what: str, count: int) -> str:
    """Say what a mark stands for."""
    return f"{count:,} {what}{'s' if count > 1 else ''} from here on"


def statement(scene: Scene, *, besides: Collection[str] = ()) -> str:
    """Say in plain text what is drawn and what is not.

    Parameters
    ----------
    besides
        Kinds that are drawn elsewhere in the figure.
    """
    total, drawn = scene.total, len(scene.rows)
    parts = [f"all {total:,} spans of the window drawn" if total else "no spans in the window"]
    if drawn != total:
        low, high = scene.window_ns
        column = duration((high - low) // (len(scene.columns.edges) - 1))
        parts = [
            f"{drawn:,} of {total:,} spans drawn as themselves",
            f"tracks of narrow spans drawn in columns of {column}, as high as they were busy",
        ]
        if scene.hidden_tracks:
            parts.append(f"{scene.hidden_tracks:,} less busy tracks not shown")
    if escapes := int(scene.columns.escapes.sum()):
        parts.append(f"{escapes:,} escape{'s' if escapes > 1 else ''} marked")
    if opened := int(scene.is_open.sum()):
        parts.append(f"{opened:,} open, drawn to the window's end")
    if scene.crowded:
        names = ", ".join(clean(name, 30) for name in scene.crowded[:3])
        parts.append(f"more than {LANES} at once share a line in {names}")
    unseen = [
        f"{clean(kind)} ({count:,})"
        for kind, count in scene.tracks.elsewhere().items()
        if kind not in besides
    ]
    if unseen:
        parts.append(f"rows of other kinds not shown: {', '.join(unseen)}")
    return "; ".join(parts)
