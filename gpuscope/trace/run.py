"""Several traces: what an experiment gave, and what of it is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from gpuscope._columns import COMPARED, tables
from gpuscope._tables import Printer, text_table, wide_table
from gpuscope._text import shown
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

_TRACES = 3
"""Incomplete traces that are told one by one."""


def incomplete(traces: Mapping[str, Trace]) -> str:
    """Return how many rows of which traces are missing and why; empty if none is.

    Parameters
    ----------
    traces
        Label → trace; a label stands where traces differ.
    """
    words = missing(traces)
    return f"incomplete: {words}" if words else ""


def missing(traces: Mapping[str, Trace]) -> str:
    """Return the same without ``"incomplete: "``."""
    words = {label: trace.metadata.missing for label, trace in traces.items()}
    if len(set(words.values())) <= 1:
        return next(iter(words.values()), "")
    lacking = [f"{label}: {text}" for label, text in words.items() if text]
    more = [f"and {len(lacking) - _TRACES} more traces"] if len(lacking) > _TRACES else []
    return "; ".join([*lacking[:_TRACES], *more])


@dataclass(frozen=True)
class Run(Mapping[str, Trace]):
    """The result of an experiment: setting → trace, and a comparison of the settings.

    Attributes
    ----------
    traces
        Setting → trace.
    comparison
        One row per setting and workload: kernels, latency, throughput, shares.
    experiment
        The experiment that was run.
    stopped
        Whether the run was stopped early; it then holds what was recorded until then.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run({**one, "settings": {"first": {}, "second": {}}}, gpu)
    >>> list(run), run.stopped
    (['first', 'second'], False)
    >>> run.comparison.column("kernels").to_pylist()
    [2, 2]
    """

    traces: Mapping[str, Trace]
    comparison: pa.Table = field(repr=False)
    experiment: Description
    stopped: bool = False

    def __getitem__(self, setting: str) -> Trace:
        return self.traces[setting]

    def __iter__(self) -> Iterator[str]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def _notes(self) -> list[str]:
        """Return what stands below the table, and above all if something is missing."""
        origins = dict.fromkeys(trace.origin for trace in self.traces.values())
        stopped = "stopped early: what was recorded until then is here" if self.stopped else ""
        share = COMPARED["share_of_alone_on_whole_gpu"]
        notes = [stopped, incomplete(self.traces), f"{share.title}: {share.meaning}", *origins]
        return list(filter(None, notes))

    def _tables(self) -> list[list[dict[str, object]]]:
        return [*tables(self.comparison.to_pylist()).values()]

    def __str__(self) -> str:
        *first, last = self._tables() or [[]]
        parts = [text_table(list(rows[0]), rows) for rows in first]
        parts.append(text_table(list(last[0]) if last else (), last, self._notes()))
        return "\n\n".join(parts)

    def _repr_pretty_(self, printer: Printer, _cycle: object) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        parts = "".join(wide_table(rows) for rows in self._tables())
        return parts + "".join(f"<p>{shown(note)}</p>" for note in self._notes())
