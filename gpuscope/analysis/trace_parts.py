"""The parts of a span's time, whatever kind of span it is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from gpuscope._checks import door
from gpuscope.analysis.call_parts import HOST, handle_parts, host_parts, wait_parts
from gpuscope.analysis.part import Part
from gpuscope.analysis.request_parts import RequestParts
from gpuscope.analysis.span_rows import WORK
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import once
from gpuscope.trace.model import Trace


class TraceParts:
    """What a trace tells of the time of its spans; rows are places in the trace."""

    def __init__(self, trace: Trace) -> None:
        self.work = WorkParts(trace)
        self.rows = self.work.rows
        self._of_requests: dict[int, tuple[Part, ...]] = {}

    @cached_property
    def requests(self) -> RequestParts:
        """Of requests."""
        return RequestParts(self.work)

    def explained(self, span: int) -> int:
        """Return the row whose time a span is of: a thread block's is its kernel's."""
        row = self.rows.position(span)
        parent = self.rows.number("parent", row) if self.rows.kind(row) == "block" else None
        return row if parent is None else self.rows.position(parent)

    def parts(self, row: int) -> tuple[Part, ...]:
        """Return the parts of a row's time."""
        rows, kind = self.rows, self.rows.kind(row)
        if kind in WORK:
            if not self.work.is_told(row):
                raise MissingEvidence(
                    f"nothing in the trace tells when row {rows.ids[row]} was launched or what "
                    "came before it: record with launch ids, profile(launch_ids=True), which is "
                    "the default"
                )
            return tuple(self.work.parts(row))
        if kind == "handle":
            return tuple(handle_parts(self.work, row))
        if kind == "sync":
            return tuple(wait_parts(self.work, row))
        if kind == "range" and row in self.requests:
            if row not in self._of_requests:  # each has many calls
                self._of_requests[row] = tuple(self.requests.parts(row))
            return self._of_requests[row]
        if kind in HOST:
            return tuple(host_parts(rows, row))
        if kind == "stack":
            raise MissingEvidence(
                f"row {rows.ids[row]} is a sampled stack: its status says what its thread did"
            )
        raise MissingEvidence(
            f"row {rows.ids[row]} is a {kind}: it waits for nothing, so nothing explains it"
        )


@once
def trace_parts(trace: Trace) -> TraceParts:
    """Return what a trace tells of the time of its spans, kept as long as the trace is."""
    return TraceParts(trace)


def parts_by_cause(trace: Trace, span: int) -> Iterator[tuple[Part, str]]:
    """Yield the parts of a span's time, each with the workload of what caused it, or nothing."""
    breakdown = trace_parts(trace)
    for part in breakdown.parts(breakdown.rows.position(span)):
        cause = None if part.span is None else breakdown.rows.position(part.span)
        yield part, "" if cause is None else breakdown.rows.text("category", cause) or ""


@door(trace=Trace, span=int)
def parts(trace: Trace, span: int) -> tuple[Part, ...]:
    """Return what the time of a span consists of.

    The parts are in order, each begins where the one before it ends, and each lasts at least 1 ns:
    together they are one interval, to the ns.

    - Of a kernel, copy, memset, host function or node of a graph: from entering the innermost call
      that launched it (a node's is its graph's launch) to its end. Without that call's row, from
      its return; if nothing tells of it, from the end of the last work that it had to follow. It
      begins no later than the work; where the work's end was not seen, it ends with its start.
    - Of a handle's call: from entering ``execute()`` until the host saw it done.
    - Of a host wait: from entering the call until it returned.
    - Of a request: from its arrival to its last token.
    - Of a thread block: as its kernel's.
    - Of another call, range or mark: from the return of the call before on its thread, or the
      beginning of the trace, to its end; where its end was not seen, to its start.

    Parameters
    ----------
    span
        The row's ``id``.

    Raises
    ------
    MissingEvidence
        There is no such row, it is neither a call nor work, or the trace lacks what its time
        consists of: its end, its launch and its predecessors, the work of its calls.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 100_000, grid=1, block=32)
    ...     stream.launch(kernel, 100_000, grid=1, block=32)
    >>> second = gs.telling.find(recording.trace, "spin", 1)
    >>> found = gs.analysis.parts(recording.trace, second)
    >>> [part.kind for part in found]
    ['launch call', 'stream order', 'on the way', 'running']
    >>> sum(part.duration_ns for part in found) == found[-1].end_ns - found[0].start_ns
    True
    """
    breakdown = trace_parts(trace)
    return breakdown.parts(breakdown.explained(span))
