"""Launch sites: what each line, function or file of a program had the GPU do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Bools, Ints
from gpuscope.analysis.gaps_analysis import ended_gaps
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.result import Result, about, named
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.columns import codes, is_open, linked_rows, rows_of
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK
from gpuscope.trace.sites import SiteLine, lines_of

UNKNOWN = "no line of Python"
"""What a row is about whose calls no line of the program made, such as autograd's threads."""
_BY: Mapping[str, Callable[[SiteLine], str]] = {
    "line": str,
    "function": lambda line: f"{line.function} in {line.file}",
    "file": lambda line: line.file,
}


@dataclass(frozen=True)
class LaunchSite:
    """What a line, a function or a file had the GPU do.

    Attributes
    ----------
    name
        ``"train.py:42 in step"``, ``"step in train.py"`` or ``"train.py"``.
    launches
        Calls that queued work.
    gpu_ns
        Sum of the times of its kernels, copies and memsets; of what ran at once, both count.
    copied_bytes
        Of copies and memsets, as far as amounts are known.
    calls_ns
        Sum of the times of its API calls, records of events and waits.
    idle_ns
        How long its GPU did nothing before work of this line ended that.
    hazards
        Pairs of accesses that nothing orders, the second of which it launched; ``None``: nobody
        looked for any.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> x = gpu.empty(1000)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.copy(x, x)
    >>> site = gs.analysis.launch_sites(recording.trace, by="function").sites[0]
    >>> site.launches, site.copies, site.copied_bytes
    (1, 1, 4000)
    """

    name: Annotated[str, "site"]
    launches: Annotated[int, "launches"]
    kernels: Annotated[int, "kernels"]
    copies: Annotated[int, "copies"]
    gpu_ns: Annotated[int, "GPU (ms)"]
    copied_bytes: Annotated[int, "bytes"]
    calls_ns: Annotated[int, "in calls (ms)"]
    idle_ns: Annotated[int, "GPU idle before (ms)"]
    hazards: Annotated[int | None, "hazards"]


@dataclass(frozen=True)
class LaunchSitesResult(Result):
    """Launch sites, the one with most GPU time first."""

    by: str
    sites: tuple[LaunchSite, ...]
    entries = "sites"
    weight = "GPU (ms)"

    def __getitem__(self, name: str) -> LaunchSite:
        return named(self.sites, name, self.by)

    @property
    def definition(self) -> str:
        """What a site is."""
        return (
            f"site: the innermost {self.by} outside installed packages that made the call which "
            "launched the work; start-up, set-up and warm-up count, too"
        )


@door(trace=Trace, by=str)
def launch_sites(trace: Trace, *, by: str = "line") -> LaunchSitesResult:
    """Sum the work that each line of Python launched.

    Parameters
    ----------
    by
        ``"line"``, ``"function"`` or ``"file"``.

    Raises
    ------
    MissingEvidence
        The trace holds no launch site.
    InvalidArgument
        ``by`` has another value.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> [site.kernels for site in gs.analysis.launch_sites(recording.trace).sites]
    [1]
    """
    if by not in _BY:
        raise InvalidArgument(f"by is 'line', 'function' or 'file', not {by!r}")
    site, texts = codes(trace.spans.column("site"))
    if len(texts) == 1:
        why = next((note for note in trace.metadata.notes if "launch sites" in note), "")
        raise MissingEvidence(why or "the trace holds no launch sites: record with profile()")
    names = [_BY[by](lines[0]) if (lines := lines_of(text)) else UNKNOWN for text in texts]
    groups = Groups.of(site, names)
    starts, is_known = trace.array("start_ns"), ~is_open(trace)
    lasted_ns = np.where(is_known, trace.array("end_ns", fill=0) - starts, 0)
    nbytes = trace.array("nbytes", fill=0)
    kinds = (GPU_WORK, ("kernel", "graph"), ("api", "event"), ("sync",))
    is_work, is_kernel, is_api, is_sync = (_are(trace, rows_of(trace, *kind)) for kind in kinds)
    is_call = is_api | (is_sync & (site > 0))  # CUPTI tells both
    idle_ns = np.zeros(len(starts), np.int64)
    ended_by, gap_ns = ended_gaps(trace)
    idle_ns[ended_by] = gap_ns
    columns = {
        "launches": _are(trace, linked_rows(trace.edges, trace.array("id"), "launch")[0]),
        "kernels": is_kernel,
        "copies": is_work & ~is_kernel,
        "gpu_ns": np.where(is_work, lasted_ns, 0),
        "copied_bytes": np.where(is_work & ~is_kernel, nbytes, 0),
        "calls_ns": np.where(is_call, lasted_ns, 0),
        "idle_ns": idle_ns,
        "hazards": _hazards(trace),
    }
    sums = {name: groups.sums(column.astype(np.int64)) for name, column in columns.items()}
    was_searched = trace.metadata.hazards is not None
    sites = []
    for number, label in enumerate(groups.labels):
        values = {name: int(column[number]) for name, column in sums.items()}
        if any(values.values()):
            hazards = values.pop("hazards")
            searched = hazards if was_searched else None
            sites.append(LaunchSite(label, **values, hazards=searched))
    ordered = sorted(sites, key=lambda site: (-site.gpu_ns, -site.calls_ns, site.name))
    return LaunchSitesResult(by, tuple(ordered), **about(trace))


def _are(trace: Trace, rows: Ints) -> Bools:
    """Row → whether it is one of these."""
    are = np.zeros(len(trace), bool)
    are[rows] = True
    return are


def _hazards(trace: Trace) -> Ints:
    """Row → pairs of accesses whose second it is."""
    counts = np.zeros(len(trace), np.int64)
    facts = trace.metadata.hazards
    hazards = [fact for fact in facts.found if fact.second is not None] if facts else []
    rows = match(np.array([fact.second for fact in hazards], np.int64), trace.array("id"))
    for row, fact in zip(rows.tolist(), hazards, strict=True):
        counts[row] += fact.count if row >= 0 else 0
    return counts
