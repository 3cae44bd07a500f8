"""An explanation of when a span started or ended, and the reasons that it consists of."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope._text import clean, shown


@dataclass(frozen=True)
class Reason:
    """What held a span back for a while.

    Attributes
    ----------
    kind
        ``"launch"``: the host had not launched it yet. ``"event wait"``, ``"graph order"``,
        ``"stream order"``, ``"legacy default stream"``: other work had to end first.
        ``"launch latency"``: a launch takes that long to reach SMs that are free. ``"SMs held"``,
        ``"copy engine"``: others had what it needed; ``"priority"``: SMs, which only its higher
        priority had let the other take first. ``"running"``: the work of a call ran.
        ``"host"``: what the host did. ``"unexplained"``: nothing in the trace tells.
    since_ns, until_ns
        On the trace's clock. Reasons follow one another; the first may begin before the rest.
    span
        Id of the row that was waited for, where there is one; of several that ran on the SMs, one
        of those that released them.
    text
        What was waited for, in words.
    """

    kind: str
    since_ns: int
    until_ns: int
    span: int | None
    text: str


@dataclass(frozen=True)
class Explanation:
    """Why a span started when it did; of a host wait and a handle's call, why it ended then.

    Attributes
    ----------
    span, kind, name
        The row that is explained; the name says its stream, too.
    ended
        Whether its end is explained.
    at_ns
        Its start or end on the trace's clock, as the trace has it.
    zero_ns
        Where the times in the text count from: the trace's beginning.
    reasons
        In order of time, up to ``at_ns``.
    doubts
        What is uncertain, and what evidence the trace lacks.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    >>> second = gs.learn.find(recording.trace, "spin", 1)
    >>> [reason.kind for reason in gs.analysis.explain(recording.trace, second).reasons]
    ['launch', 'stream order', 'launch latency']
    """

    span: int
    kind: str
    name: str
    ended: bool
    at_ns: int
    zero_ns: int
    reasons: tuple[Reason, ...]
    doubts: tuple[str, ...]
    provenance: str

    @property
    def unexplained_ns(self) -> int:
        """How long nothing in the trace tells what it waited for."""
        unexplained = (reason for reason in self.reasons if reason.kind == "unexplained")
        return sum(reason.until_ns - reason.since_ns for reason in unexplained)

    def __str__(self) -> str:
        first, *rest = self.reasons
        history = ""
        if first.kind == "launch":
            history = f"launched at {self._time(first.until_ns)}, "
        else:
            rest = [first, *rest]
        waits = ", then ".join(
            f"for {reason.text} until {self._time(reason.until_ns)}" for reason in rest
        )
        what = "returned" if self.kind == "sync" else "seen done" if self.ended else "started"
        history += f"waited {waits}, " if waits else ""
        lines = [f"{self.name}: {history}{what} at {self._time(self.at_ns)}.", *self.doubts]
        return "\n".join(map(clean, lines))

    def _time(self, ns: int) -> str:
        micros = (ns - self.zero_ns) / 1e3
        return f"{micros:,.1f} µs" if micros < 1e5 else f"{micros / 1e3:,.3f} ms"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{shown(reason.kind)}</td><td>{shown(reason.text)}</td>"
            f"<td>{self._time(reason.until_ns)}</td>"
            f"<td>{(reason.until_ns - reason.since_ns) / 1e3:,.1f} µs</td>"
            f"<td>{'–' if reason.span is None else reason.span}</td></tr>"
            for reason in self.reasons
        )
        notes = "".join(f"<p>{shown(text)}</p>" for text in (*self.doubts, self.provenance))
        return (
            f"<p>{shown(str(self).splitlines()[0])}</p><table><thead><tr><th>why</th>"
            "<th>waited for</th><th>until</th><th>for</th><th>span</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>{notes}"
        )
