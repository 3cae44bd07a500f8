"""The critical path: the chain of causes that ends with a trace, a range, a call or work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import numpy as np

from gpuscope._checks import door, given
from gpuscope._text import percent
from gpuscope._types import Ints
from gpuscope.analysis.causes import NEVER_NS, Causes, find_causes
from gpuscope.analysis.path_columns import LASTING, last_node, path_columns
from gpuscope.analysis.result import Result, Row, about, row_of
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.steps_analysis import steps
from gpuscope.errors import InvalidArgument, MissingEvidence, NotFound
from gpuscope.trace.columns import once
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, range_label

_OF_PARTS = ("kind", "span", "name", "thread", "stream", "line", "range", "rank")
_BY = ("kind", "line", "range", "kernel", "stream", "thread", "rank")


@dataclass(frozen=True)
class PathPart:
    """A part of a critical path: what the end waited for then.

    Attributes
    ----------
    kind
        ``"running"``, ``"copy"``, ``"host function"``: a kernel, a copy or memset, a function of
        the host that a stream called. ``"launch call"``: until the call had launched what is
        next. ``"on the way"``: until the GPU began it. ``"unexplained"``: it began even later.
        ``"collective"``: from when the last rank had begun one. ``"host"``:
        the host's program between calls. ``"call"``: in a call that launches nothing, or
        waits for nothing. ``"not looking"``: work was done, and the host had not seen it.
        ``"start-up"``: before the first call of a thread. ``"thread start"``, ``"hand-over"``:
        from one thread to another.
    start_ns, end_ns
        On the trace's clock.
    span
        Id of the row; ``None`` for the host's program.
    name
        Of the row.
    line
        That made the call; of the host's program, that of its next call.
    range
        The innermost one of the thread, or of the thread that launched it, without a number at
        its end.
    """

    kind: Annotated[str, "kind"]
    start_ns: int
    end_ns: int
    span: Annotated[int | None, "span"]
    name: Annotated[str, "name"]
    thread: Annotated[int | None, "thread"]
    stream: Annotated[int | None, "stream"]
    line: Annotated[str | None, "line"]
    range: Annotated[str | None, "range"]
    rank: Annotated[int | None, "rank"]

    @property
    def duration_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class CriticalPathResult(Result):
    """The critical path to an end.

    Attributes
    ----------
    to
        What ends with it, in words.
    slack_ns
        Row → how much longer it can take without moving that end; ``NEVER_NS``: however long.
    inferred
        Kinds of causes that are worked out of times and names, as the trace does not tell them.
    columns
        Name → number of each part's value, and the values.
    """

    start_ns: int
    end_ns: int
    to: str
    inferred: tuple[str, ...]
    ids: Ints = field(repr=False, compare=False)
    slack_ns: Ints = field(repr=False, compare=False)
    starts_ns: Ints = field(repr=False, compare=False)
    columns: Mapping[str, tuple[Ints, list[Any]]] = field(repr=False, compare=False)
    weight = "duration (µs)"

    @property
    def is_empty(self) -> bool:
        """Whether there is no part."""
        return not len(self.starts_ns)

    def _rows(self) -> list[Row]:
        """One row per part; its time is that since the path began."""
        return [
            {
                "since (ms)": (part.start_ns - self.start_ns) / 1e6,
                "duration (µs)": part.duration_ns / 1e3,
                **row_of(part),
            }
            for part in self.parts
        ]

    def readable(self) -> tuple[list[Row], str]:
        """Return a row a kind of part, the one that has most of the path first."""
        rows: list[Row] = []
        for name, kind_ns in self.by("kind").items():
            row: Row = {"part": name, "ms": kind_ns / 1e6}
            row["share"] = percent(kind_ns / max(self.end_ns - self.start_ns, 1))
            row["most of it at"] = greatest(self, "line", "kind", name)
            row["most of it in"] = kernel_name(greatest(self, "name", "kind", name) or "") or None
            rows.append(row)
        return rows, ""

    @cached_property
    def parts(self) -> tuple[PathPart, ...]:
        """The parts in order, each of which begins where the one before it ends."""
        columns = (
            [values[code] for code in number.tolist()]
            for number, values in (self.columns[name] for name in _OF_PARTS)
        )
        kinds, *attributes = columns
        starts = self.starts_ns.tolist()
        return tuple(map(PathPart, kinds, starts, [*starts[1:], self.end_ns], *attributes))

    @door(by=str)
    def by(self, by: str) -> dict[Any, int]:
        """Return how much of the path each kind, line, range… has, ns, the most first.

        Parameters
        ----------
        by
            ``"kind"``, ``"line"``, ``"range"``, ``"kernel"``, ``"stream"``, ``"thread"`` or
            ``"rank"``. What has none has the key ``None``.
        """
        if by not in _BY:
            raise InvalidArgument(f"by is one of {', '.join(_BY)}, not {by!r}")
        number, values = self.columns[by]
        sums = np.zeros(len(values), np.int64)
        np.add.at(sums, number, np.diff(self.starts_ns, append=self.end_ns))
        order = np.argsort(-sums, kind="stable").tolist()
        return {values[code]: int(sums[code]) for code in order if sums[code]}

    @door(span=int)
    def slack(self, span: int) -> int | None:
        """Return how much longer a row can take without moving the end, ns.

        ``None``: however long. A row that is not there raises :class:`MissingEvidence`.
        """
        rows = np.flatnonzero(self.ids == span)
        if not len(rows):
            raise MissingEvidence(f"the trace has no row {given(span)}: rows are named by their id")
        slack_ns = int(self.slack_ns[rows[0]])
        return None if slack_ns == NEVER_NS else slack_ns

    @property
    def definition(self) -> str:
        """What a path is."""
        inferred = ", ".join(self.inferred)
        return f"critical path to {self.to}: what it waited for, back from cause to cause" + (
            f"; worked out of times and names: {inferred}" if inferred else ""
        )


def greatest(path: CriticalPathResult, by: str, of: str, value: object) -> Any:
    """Return which line or name has most of the parts of one kind or kernel of a path."""
    (number, values), (of_part, of_values) = path.columns[by], path.columns[of]
    took_ns = np.diff(path.starts_ns, append=path.end_ns) * (of_part == of_values.index(value))
    return values[int(np.argmax(np.bincount(number, took_ns, len(values))))] or None


@door(trace=Trace)
def critical_path(trace: Trace, to: object = None) -> CriticalPathResult:
    """Find what an end waited for, back from cause to cause.

    Parameters
    ----------
    to
        The end: of the trace's last work or call; of the row with an id; of the last range or
        handle's call of a name, or where none has it, of one but for a number at its end; of a
        step. The path to a range, a handle's call or a step begins with it, that to others with
        the trace.

    Raises
    ------
    MissingEvidence
        The trace is empty, or has no such row.
    NotFound
        The trace has no range of that name.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 500_000, grid=1, block=32)
    ...     stream.synchronize()
    >>> path = gs.analysis.critical_path(recording.trace)
    >>> [part.kind for part in path.parts]
    ['launch call', 'on the way', 'running', 'not looking']
    >>> path.by("kernel")["spin"]
    500000
    """
    return _path_to(trace, _end(find_causes(trace), to), is_whole=to is None)


_End: TypeAlias = tuple[int, int, int, str]


def _path_to(trace: Trace, end: _End, *, is_whole: bool = False) -> CriticalPathResult:
    """Return the path to what :func:`_end` returns."""
    causes, (node, since_ns, until_ns, words) = find_causes(trace), end
    starts_ns, columns = path_columns(trace, causes, node, since_ns, until_ns)
    return CriticalPathResult(
        start_ns=since_ns,
        end_ns=until_ns,
        to=words,
        inferred=causes.inferred,
        ids=causes.rows.ids,
        slack_ns=causes.slack(None if is_whole else node)[1:-1:2],
        starts_ns=starts_ns,
        columns=columns,
        **about(trace),
    )


def _end(causes: Causes, to: Any) -> _End:
    """Return the node that a path leads to, from when until when it goes, and what ends with it."""
    rows, times = causes.rows, causes.times
    if to is None:
        node = last_node(causes)
        return node, int(times[-1]), int(times[node]), "the end"
    if isinstance(to, str):
        is_finished = rows.having("kind", LASTING) & (rows.ends != OPEN)
        named = is_finished & rows.having("name", (to,))
        if not named.any():
            code, names = rows.coded("name")
            named = is_finished & np.array([range_label(name or "") == to for name in names])[code]
        if not named.any():
            raise NotFound(f"the trace has no finished range and no handle's call {given(to)}")
        to = int(rows.ids[np.argmax(np.where(named, rows.ends, -1))])
    if isinstance(to, int) and not isinstance(to, bool):
        row = rows.position(to)
        since_ns = int(rows.starts[row]) if rows.kind(row) in LASTING else int(times[-1])
        return 2 * row + 1, since_ns, rows.end_ns(row), f"the end of {rows.text('name', row)}"
    if not hasattr(to, "end_ns") or not hasattr(to, "thread"):
        raise InvalidArgument(f"to is {given(to)}; a row's id, a range's name or a step is needed")
    thread, process = (-1 if number is None else number for number in (to.thread, to.process))
    rows_of = np.arange(len(times) - 1) // 2
    is_before = (causes.threads[:-1] >= 0) & (times[:-1] <= to.end_ns)
    is_before &= (rows.threads[rows_of] == thread) & (rows.processes[rows_of] == process)
    if not is_before.any():
        raise MissingEvidence(f"thread {thread} did nothing before {to.end_ns} ns")
    # Of several at one instant any will do: nothing lies between them.
    node = int(np.argmax(np.where(is_before, times[:-1], -1)))
    return node, to.start_ns, to.end_ns, f"the end of {getattr(to, 'name', 'a stretch')}"


@once
def steady_path(trace: Trace) -> CriticalPathResult:
    """Return the critical path to the last work of the steady time, since that began."""
    rows, (low, high) = find_causes(trace).rows, steps(trace).steady_ns
    ends = np.where(rows.is_work & (rows.ends <= high), rows.ends, low)
    if ends.max(initial=low) <= low:
        return critical_path(trace)
    last = int(np.argmax(ends))
    return _path_to(trace, (2 * last + 1, low, int(ends[last]), "the end of the steady time"))
