"""Why two sides differ: the time of a call, a round or a step, in parts that add up."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, TypeAlias

from gpuscope._text import duration
from gpuscope.analysis.result import Result, Row, row_of
from gpuscope.telling.finding import Finding, Quantity, Shown
from gpuscope.telling.rules import RULES, fill

Cause: TypeAlias = Literal["kernels", "copies", "gaps", "launch", "waits", "SMs", "host"]
"""What a part of the time is: work that ran; ``"gaps"``: between two works, or without a known
cause; ``"launch"``: in the launch call or on the way to the GPU; ``"waits"``: for other work, an
event, data; ``"SMs"``: for SMs that other work held; ``"host"``: the program between calls."""
SHOWN = 3
"""Spans that show one part, of either side."""
_SAME = 0.002
"""A change of a part below this share of the whole is none."""
_RULES = ("change.better", "change.worse", "change.captures")
"""Of findings whose cause a split may tell."""
_LINE = re.compile(r":(\d+) in (.*)$")
"""The end of a source line as texts have it: number and function."""


class What(NamedTuple):
    """What a part of the time is of.

    Attributes
    ----------
    name
        Of the kernel or copy; else what was waited for, in words.
    configuration
        Of a kernel's launch: grid and block; and the shape where its workload tells it.
    """

    cause: Cause
    name: str
    configuration: str = ""
    range: str = ""
    line: str = ""


class Sum:
    """Time and number of what is alike, and its longest spans."""

    def __init__(self) -> None:
        self.ns, self.count = 0.0, 0
        self.longest: list[tuple[float, int]] = []

    def add(self, ns: float, count: int, spans: Iterable[tuple[float, int]]) -> None:
        """Add time, in so many pieces."""
        self.ns += ns
        self.count += count
        self.longest = heapq.nlargest(SHOWN, {*self.longest, *spans})

    @property
    def spans(self) -> tuple[int, ...]:
        """Ids of the spans that took longest, the longest first."""
        return tuple(dict.fromkeys(span for _, span in self.longest))


Sums: TypeAlias = dict[What, Sum]


class Used(NamedTuple):
    """What a kernel used where it ran alone, by counters.

    Attributes
    ----------
    sms
        Busy SMs, their mean.
    nbytes
        That a launch read and wrote; ``None`` where that is unknown.
    """

    sms: float
    nbytes: float | None


@dataclass(frozen=True)
class SplitSide:
    """The time of one side.

    Attributes
    ----------
    sums
        What it consists of.
    units
        How many calls or steps that is.
    used
        Name of a kernel → what it used, where counters were sampled.
    """

    sums: Sums
    units: int
    used: Mapping[str, Used] = field(default_factory=dict)

    @property
    def ns(self) -> float:
        """The time of a unit."""
        return sum(total.ns for total in self.sums.values()) / max(self.units, 1)


@dataclass(frozen=True)
class SplitPart:
    """A part of the time of a call or step, and how it differs.

    Attributes
    ----------
    before_ns, after_ns
        Of one call or step, on either side.
    often_before, often_after
        Pieces in one call or step.
    first, second
        Ids of its longest spans in the trace of either side.
    used
        What a kernel used on either side; ``None``: not of both sides.
    """

    cause: Annotated[Cause, "part"]
    name: Annotated[str, "what"]
    configuration: Annotated[str | None, "launch"]
    range: Annotated[str | None, "range"]
    line: Annotated[str | None, "line"]
    before_ns: float
    after_ns: float
    often_before: float
    often_after: float
    first: tuple[int, ...] = field(repr=False, default=())
    second: tuple[int, ...] = field(repr=False, default=())
    used: tuple[Used, Used] | None = None

    @property
    def change_ns(self) -> float:
        """How much longer it takes."""
        return self.after_ns - self.before_ns

    @property
    def change(self) -> str:
        """What became of it: new, gone, more, fewer; slower or faster, longer or shorter."""
        if not self.often_before:
            return "new"
        if not self.often_after:
            return "gone"
        mean_ns = [
            ns / often
            for ns, often in (
                (self.before_ns, self.often_before),
                (self.after_ns, self.often_after),
            )
        ]
        by_number = (self.often_after - self.often_before) * mean_ns[0]
        is_same_way = (by_number > 0) == (self.change_ns > 0)
        if is_same_way and abs(by_number) > abs(self.change_ns) / 2:
            return "more" if by_number > 0 else "fewer"
        if self.cause in ("kernels", "copies"):
            return "slower" if self.change_ns > 0 else "faster"
        return "longer" if self.change_ns > 0 else "shorter"

    @property
    def counted(self) -> str:
        """What counters tell of either side: ``"16 → 8 busy SMs, 2.1 → 2.1 MB a launch"``."""
        if self.used is None:
            return ""
        before, after = self.used
        words = [f"{before.sms:.3g} → {after.sms:.3g} busy SMs"]
        if before.nbytes is not None and after.nbytes is not None:
            words.append(f"{before.nbytes / 1e6:.3g} → {after.nbytes / 1e6:.3g} MB a launch")
        return ", ".join(words)


@dataclass(frozen=True)
class SplitResult(Result):
    """The time of a call or step of two sides, in parts: their changes add up to the whole change.

    Attributes
    ----------
    of
        The workload, or the program.
    unit
        What the time is of.
    names
        What the sides are called.
    before_ns, after_ns
        Mean time of a unit.
    """

    of: str
    unit: str
    names: tuple[str, str]
    before_ns: float
    after_ns: float
    parts: tuple[SplitPart, ...]
    entries = "parts"
    weight = ""

    def _rows(self) -> list[Row]:
        """One row per part, the one that changed most first."""
        first, second = self.names
        rows = []
        for part in self.parts:
            row = row_of(part)
            row |= {f"{first} (µs)": part.before_ns / 1e3, f"{second} (µs)": part.after_ns / 1e3}
            row["change (µs)"] = part.change_ns / 1e3
            row |= {f"n {first}": part.often_before, f"n {second}": part.often_after}
            if part.used is not None:
                row |= _counted_row(self.names, part.used)
            rows.append({**row, "it is": self.became(part)})
        return rows

    def became(self, part: SplitPart) -> str:
        """Say what became of a part; nothing of next to nothing."""
        small = abs(part.change_ns) < _SAME * max(self.before_ns, self.after_ns)
        return "" if small else part.change

    @property
    def changed(self) -> tuple[SplitPart, ...]:
        """The parts that changed by more than next to nothing."""
        return tuple(part for part in self.parts if self.became(part))

    def by_cause(self) -> dict[Cause, float]:
        """Return how much longer each cause takes, ns; the sum is the whole change."""
        sums: dict[Cause, float] = {}
        for part in self.parts:
            sums[part.cause] = sums.get(part.cause, 0.0) + part.change_ns
        return dict(sorted(sums.items(), key=lambda item: -abs(item[1])))

    def readable(self) -> tuple[list[Row], str]:
        """Return what changed, each part with its change first."""
        first, second = self.names
        rows: list[Row] = []
        for part in self.changed:
            where = (part.configuration, part.range, part.line)
            rows.append(
                {
                    "part": part.cause,
                    "what": " · ".join(filter(None, (part.name, *where, part.counted))),
                    "change (µs)": part.change_ns / 1e3,
                    first: part.before_ns / 1e3,
                    second: part.after_ns / 1e3,
                    "it is": self.became(part),
                }
            )
        left = len(self.parts) - len(rows)
        return rows, f"parts that changed by next to nothing: {left}" if left else ""

    @property
    def definition(self) -> str:
        """What the parts add up to."""
        return (
            f"mean time of {self.unit}: {duration(self.before_ns)} and {duration(self.after_ns)}; "
            "the parts add up to both, and their changes to the difference; n: pieces in one"
        )


def _counted_row(names: tuple[str, str], used: tuple[Used, Used]) -> Row:
    row: Row = {}
    for name, of_side in zip(names, used, strict=True):
        row[f"busy SMs {name}"] = of_side.sms
        if of_side.nbytes is not None:
            row[f"MB a launch {name}"] = of_side.nbytes / 1e6
    return row


def _alike(first: Sums, second: Sums) -> list[tuple[What, list[What], list[What]]]:
    """Pair what is alike on both sides: a line by its function and order, as edits move lines.

    Where a function has more such lines on one side, all of them are one part.
    """
    groups: dict[What, tuple[list[What], list[What]]] = {}
    for at, sums in enumerate((first, second)):
        for what in sums:
            line = _LINE.search(what.line)
            key = what._replace(line=line[2] if line else what.line)
            groups.setdefault(key, ([], []))[at].append(what)
    pairs = []
    for left, right in groups.values():
        if len(left) == len(right):
            ordered = (sorted(side, key=_line_number) for side in (left, right))
            pairs += [(new, [old], [new]) for old, new in zip(*ordered, strict=True)]
        else:
            pairs.append(((right or left)[0], left, right))
    return pairs


def _line_number(what: What) -> tuple[str, int]:
    line = _LINE.search(what.line)
    return (what.line[: line.start()], int(line[1])) if line else (what.line, 0)


def _summed(sums: Sums, alike: Sequence[What]) -> Sum:
    total = Sum()
    for what in alike:
        total.add(sums[what].ns, sums[what].count, sums[what].longest)
    return total


def split(
    of: str, unit: str, names: tuple[str, str], first: SplitSide, second: SplitSide
) -> SplitResult:
    """Split the difference of two sides."""
    parts = []
    for what, left, right in _alike(first.sums, second.sums):
        both = _summed(first.sums, left), _summed(second.sums, right)
        units = max(first.units, 1), max(second.units, 1)
        used = first.used.get(what.name), second.used.get(what.name)
        parts.append(
            SplitPart(
                what.cause,
                what.name,
                what.configuration or None,
                what.range or None,
                what.line or None,
                both[0].ns / units[0],
                both[1].ns / units[1],
                both[0].count / units[0],
                both[1].count / units[1],
                both[0].spans,
                both[1].spans,
                (used[0], used[1]) if what.cause == "kernels" and used[0] and used[1] else None,
            )
        )
    parts.sort(key=lambda part: -abs(part.change_ns))
    return SplitResult(of, unit, names, first.ns, second.ns, tuple(parts))


def joined(sides: Sequence[SplitSide]) -> SplitSide:
    """Return several runs of one side as one; their longest spans are the first run's.

    What a kernel used is that of the first run that tells it.
    """
    sums: Sums = {}
    used: dict[str, Used] = {}
    for number, side in enumerate(sides):
        for what, total in side.sums.items():
            spans = [(0.0, span) for span in total.spans] if not number else []
            sums.setdefault(what, Sum()).add(total.ns, total.count, spans)
        used = {**side.used, **used}
    return SplitSide(sums, sum(side.units for side in sides), used)


# -- in words ------------------------------------------------------------------------------
def with_cause(findings: Sequence[Finding], splits: Sequence[SplitResult]) -> tuple[Finding, ...]:
    """Return findings of a comparison, the first with its cause from a split if it has none."""
    first, *rest = findings
    for split in splits:
        if split.of == first.subject.get("workload") and first.rule in _RULES:
            part = _greatest(split)
            if part is not None and not first.subject.get("cause"):
                first = replace(
                    first,
                    subject={**first.subject, "cause": cause(split, part)},
                    spans=first.spans or shown(split, part),
                )
    return (first, *rest)


def _greatest(split: SplitResult) -> SplitPart | None:
    """Return the part that changed most in the direction of the whole."""
    way = 1 if split.after_ns > split.before_ns else -1
    changed = [part for part in split.changed if way * part.change_ns > 0]
    return max(changed, key=lambda part: abs(part.change_ns), default=None)


def cause(split: SplitResult, part: SplitPart) -> str:
    """Return what became of a part, as a clause."""
    amount = f"{Quantity('', abs(part.change_ns), 'ns')} in {split.unit}"
    configuration = f" [{part.configuration}]" if part.configuration else ""
    names = {
        "what": f"{part.name}{configuration}",
        "range": part.range or "",
        "line": part.line or "",
        "by": amount,
        "counted": part.counted,
    }
    return fill(RULES[f"split.{part.change}"].text, names)


def shown(split: SplitResult, part: SplitPart) -> tuple[Shown, ...]:
    """Return the spans that show a part, of either side."""
    sides = zip(split.names, (part.first, part.second), strict=True)
    return tuple(Shown(name, span) for name, spans in sides for span in spans)
