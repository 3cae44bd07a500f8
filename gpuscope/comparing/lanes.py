"""Lanes of two runs on one axis: a call of a workload, or a step of a program, in both."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.critical_path_analysis import critical_path
from gpuscope.analysis.intervals import by_workload, ended_kernels, union
from gpuscope.analysis.part import Part, PartKind
from gpuscope.analysis.steps_analysis import Step, steps
from gpuscope.analysis.trace_parts import parts_by_cause, trace_parts
from gpuscope.comparing.pair import CompareResult
from gpuscope.comparing.pairing import Pairs
from gpuscope.errors import MissingEvidence
from gpuscope.telling.explanation import in_words
from gpuscope.timeline import style
from gpuscope.timeline.hatches import HATCHES
from gpuscope.timeline.look import PATTERNS
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import axis_unit, duration, escape
from gpuscope.trace.columns import is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import stream_names
from gpuscope.trace.schema import GPU_WORK

_OF_HOST = ("launch call", "on the way", "not looking", "host", "unexplained")
_OWN = ("running", "stream order")
_LANE, _ROW, _GAP = 20, 26, 22
"""Px of a lane of calls, of a row of kernels, and between the two traces."""
_STREAMS = 3
"""Rows of streams of either trace."""
_OF_PATH: dict[str, PartKind] = {
    "running": "running",
    "copy": "running",
    "launch call": "launch call",
    "on the way": "on the way",
    "unexplained": "unexplained",
    "collective": "collective",
    "not looking": "not looking",
}
"""Kind of a part of a critical path → that whose look it has; of all others the host's."""
_SEPARATE = 500
"""Kernels of a row that are drawn one by one; of more, the time in which any ran."""


class Lanes:
    """Lanes of two traces on one axis, on which both begin at 0."""

    def __init__(self, colours: dict[str, str], around_ns: tuple[int, int]) -> None:
        self._colours, self._around_ns = colours, around_ns
        unit, self._unit_ns = axis_unit(around_ns[1] - around_ns[0])
        self.title = f"({unit})"
        self.labels: dict[float, str] = {}
        self.annotations: list[Properties] = []
        self._y = 0.0
        self.bars: dict[str, Properties] = {}

    @property
    def height(self) -> int:
        """What all lanes take, px."""
        return int(self._y) + 8

    def _heading(self, name: str, took_ns: int) -> None:
        """Say above the lane that was drawn whose it is, and how long the call or step took."""
        text = f"<b>{escape(name, 24)}: {duration(took_ns)}</b>"
        note = style.heading(text, self._y - _LANE - 9, xref="x", x=0, font={"size": 12})
        self.annotations.append(note)

    def _row(self, label: str, spans: Array, look: Properties, what: str) -> None:
        """Draw a row of kernels; of many, the time in which any ran."""
        spans = spans[(spans[:, 1] > self._around_ns[0]) & (spans[:, 0] < self._around_ns[1])]
        spans = union(*spans.T) if len(spans) > _SEPARATE else spans
        centre = self._y + _ROW / 2
        self.labels[centre] = label
        for low, high in spans.tolist():
            self._bar(low, high, centre, _ROW - 4, look, what)
        self._y += _ROW

    def _bar(
        self, low_ns: int, high_ns: int, y: float, height: float, look: Properties, what: str
    ) -> None:
        """Add a bar, beside those of the same look."""
        took, name = duration(high_ns - low_ns), escape(what, 60)
        low, high = np.clip((low_ns, high_ns), *self._around_ns).tolist()
        same: Properties = {"type": "bar", "orientation": "h", "name": name, "marker": look}
        alike = self.bars.setdefault(repr((name, look)), {**same, "showlegend": False})
        columns = {
            "base": low / self._unit_ns,
            "x": (high - low) / self._unit_ns,
            "y": y,
            "width": height,
            "hovertemplate": f"<b>{name}</b><br>{took}<extra></extra>",
        }
        for column, value in columns.items():
            alike.setdefault(column, []).append(value)


class CallLanes(Lanes):
    """The call at the p99 in both traces, with what ran around it."""

    def __init__(
        self, result: CompareResult, workload: str, pairs: Pairs, colours: dict[str, str]
    ) -> None:
        mark, (first, second) = pairs.slow
        longest = int(max(pairs.first_ns[first], pairs.second_ns[second]))
        super().__init__(colours, (-longest, 2 * longest))
        self._workload = workload
        self.title = f"time since the call at the {mark} of either was entered {self.title}"
        sides = zip(
            result.names,
            result.traces,
            (pairs.first, pairs.second),
            (pairs.first_ns, pairs.second_ns),
            (first, second),
            strict=True,
        )
        for name, trace, ids, took_ns, at in sides:
            self._y += _GAP
            rows = trace_parts(trace).rows
            zero_ns = int(rows.starts[rows.position(int(ids[at]))])
            self._calls(name, trace, ids, zero_ns, int(ids[at]))
            self._heading(name, int(took_ns[at]))
            self._kernels(name, trace, zero_ns)

    def _calls(self, name: str, trace: Trace, ids: Array, zero_ns: int, chosen: int) -> None:
        """Draw a lane of the parts of the calls in view; the chosen one has an outline."""
        rows = trace_parts(trace).rows
        centre = self._y + _LANE / 2
        self.labels[centre] = f"{escape(name, 20)}: calls of {escape(self._workload, 20)}"
        for span in ids.tolist():
            row = rows.position(span)
            low, high = (int(ns) - zero_ns for ns in (rows.starts[row], rows.ends[row]))
            if high <= self._around_ns[0] or low >= self._around_ns[1]:
                continue
            edge = 1.6 if span == chosen else 0.5
            try:
                parts = [*parts_by_cause(trace, span)]
            except MissingEvidence:
                parts = [(Part("unexplained", low + zero_ns, high + zero_ns), "")]
            for part, holder in parts:
                low, high = part.start_ns - zero_ns, part.end_ns - zero_ns
                look = part_look(part.kind, self._workload, holder, self._colours, edge)
                self._bar(low, high, centre, _LANE - 4, look, in_words(part.kind))
        self._y += _LANE

    def _kernels(self, name: str, trace: Trace, zero_ns: int) -> None:
        """Draw a row of kernels for each workload, that of the calls first."""
        kernels = ended_kernels(trace)
        groups = by_workload(kernels)
        for label in sorted(groups.labels, key=lambda label: label != self._workload):
            of = groups.of_label(label)
            spans = np.c_[kernels.array("start_ns")[of], kernels.array("end_ns")[of]] - zero_ns
            fill = self._colours.get(label, style.WHOLE_GPU_COLOUR)
            look: Properties = {"color": fill, "line": {"width": 1, "color": style.WHITE}}
            title = f"{escape(name, 20)}: {escape(label, 20)}"
            self._row(title, spans, look, f"kernel of {label}")


class StepLanes(Lanes):
    """The typical step of a program in both traces: what its end waited for, and what ran."""

    def __init__(self, result: CompareResult, known: Sequence[Step]) -> None:
        longest = max(step.length_ns for step in known)
        margin = longest // 20
        super().__init__({}, (-margin, longest + margin))
        self.title = f"time since the typical step of either began {self.title}"
        for name, trace, step in zip(result.names, result.traces, known, strict=True):
            self._y += _GAP
            centre = self._y + _LANE / 2
            self.labels[centre] = f"{escape(name, 20)}: critical path"
            for part in critical_path(trace, step).parts:
                low, high = part.start_ns - step.start_ns, part.end_ns - step.start_ns
                kind = _OF_PATH.get(part.kind, "host")
                look = part_look(kind, "", "", {})
                self._bar(low, high, centre, _LANE - 4, look, part.kind)
            self._y += _LANE
            self._heading(name, step.length_ns)
            self._streams(name, trace, step)

    def _streams(self, name: str, trace: Trace, step: Step) -> None:
        """Draw a row of work for each stream, those with most work in view first."""
        works = trace.where(
            np.isin(trace.array("id"), trace.array("id")[rows_of(trace, *GPU_WORK)])
        )
        works = works.where(~is_open(works))
        spans = np.c_[works.array("start_ns"), works.array("end_ns")] - step.start_ns
        inside = (spans[:, 1] > self._around_ns[0]) & (spans[:, 0] < self._around_ns[1])
        stream, called = works.array("stream", fill=-1), stream_names(trace)
        took = {
            number: int((spans[of, 1] - spans[of, 0]).sum())
            for number in np.unique(stream[inside]).tolist()
            if (of := inside & (stream == number)).any()
        }
        for number in sorted(took, key=lambda number: -took[number])[:_STREAMS]:
            fill = style.OKABE_ITO[list(took).index(number) % len(style.OKABE_ITO)]
            look: Properties = {"color": fill, "line": {"width": 1, "color": style.WHITE}}
            who = escape(called.get(number, f"stream {number}"), 20)
            label = f"{escape(name, 20)}: {who}"
            self._row(label, spans[stream == number], look, f"work on {who}")


def step_lanes(result: CompareResult) -> StepLanes | None:
    """Return the typical steps of two programs, if both have steps."""
    if any(trace.metadata.experiment for trace in result.traces):
        return None
    typical = [steps(trace).typical for trace in result.traces]
    typical_steps = [step for step in typical if step is not None]
    if len(typical_steps) < len(typical):
        return None
    with contextlib.suppress(MissingEvidence):
        return StepLanes(result, typical_steps)
    return None


def part_colour(kind: PartKind, workload: str, holder: str, colours: Mapping[str, str]) -> str:
    """Return the colour of who a part of a call is of: itself, who held it up, or the host."""
    who = workload if kind in _OWN else holder
    return style.HOST_COLOUR if kind in _OF_HOST else colours.get(who, style.WHOLE_GPU_COLOUR)


def part_look(
    kind: PartKind, workload: str, holder: str, colours: Mapping[str, str], edge: float = 0.5
) -> Properties:
    """Return the marker of a part of a call: its colour says who, its pattern says what."""
    colour = part_colour(kind, workload, holder, colours)
    line = {"width": edge, "color": style.INK if edge > 1 else colour}
    if not PATTERNS[kind]:
        return {"color": colour, "line": line}
    hatch = HATCHES[PATTERNS[kind]].plotly()
    pattern = {**hatch, "fgcolor": colour, "bgcolor": style.WHITE}
    return {"color": style.WHITE, "line": line, "pattern": pattern}
