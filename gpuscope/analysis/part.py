"""A part of a span's time, and arithmetic on ordered parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

PartKind: TypeAlias = Literal[
    "launch call",
    "on the way",
    "stream order",
    "event wait",
    "graph order",
    "legacy default stream",
    "SMs held",
    "priority",
    "copy engine",
    "request queue",
    "collective",
    "running",
    "not looking",
    "host",
    "unexplained",
]

ORDER: tuple[PartKind, ...] = ("stream order", "event wait", "graph order", "legacy default stream")
"""Kinds of waiting for other work to end."""


@dataclass(frozen=True)
class Part:
    """One part of the time of a span: what it was doing, or what it waited for.

    Attributes
    ----------
    kind
        ``"launch call"``: the host had not launched the work yet. ``"on the way"``: the launch had
        not reached the GPU yet, or the GPU took its time from one work to the next.
        ``"stream order"``, ``"event wait"``, ``"graph order"``, ``"legacy default stream"``: other
        work had to end first. ``"SMs held"``, ``"copy engine"``: other work held the SMs or the
        copy engine. ``"priority"``: other work held the SMs only because of its higher priority.
        ``"request queue"``: no call served the request yet. ``"collective"``: another rank had
        not begun the collective. ``"running"``: it ran. ``"not looking"``: all was done, and the
        host had not seen it yet. ``"host"``: the host's program ran between two calls.
        ``"unexplained"``: the trace shows no cause.
    start_ns, end_ns
        On the trace's clock.
    span
        Id of the row that caused it: the launch call, the work waited for, one of those that held
        the SMs, the work that ran. ``None`` where no row did.
    others
        How many further rows held the SMs or the copy engine, or stood in the queue.
    """

    kind: PartKind
    start_ns: int
    end_ns: int
    span: int | None = None
    others: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


def lasted_ns(parts: Iterable[Part]) -> int:
    """Return for how long parts lasted, all together."""
    return sum(part.duration_ns for part in parts)


def cut(parts: Iterable[Part], start_ns: int, end_ns: int) -> Iterator[Part]:
    """Yield what lies in [start, end) of parts that are in order."""
    for part in parts:
        low, high = max(part.start_ns, start_ns), min(part.end_ns, end_ns)
        if low < high:
            yield replace(part, start_ns=low, end_ns=high)


def filled(
    parts: Iterable[Part],
    start_ns: int,
    end_ns: int,
    before: PartKind,
    after: PartKind,
    cause: int | None = None,
) -> list[Part]:
    """Return parts of exactly [start, end): what they leave at both ends is ``before``, ``after``.

    Where the first is of the kind ``before`` already, it becomes longer. ``cause`` is the span
    that caused what is added before them.
    """
    inside = list(cut(parts, start_ns, end_ns))
    first_ns = inside[0].start_ns if inside else end_ns
    last_ns = inside[-1].end_ns if inside else end_ns
    if start_ns < first_ns:
        if inside and inside[0].kind == before:
            inside[0] = replace(inside[0], start_ns=start_ns)
        else:
            inside.insert(0, Part(before, start_ns, first_ns, cause))
    if last_ns < end_ns:
        inside.append(Part(after, last_ns, end_ns))
    return inside
