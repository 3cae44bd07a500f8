"""merge: traces of several ranks as one trace, on one clock."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from gpuscope._checks import given, require_kind
from gpuscope._text import clean, duration
from gpuscope.errors import AlignmentError, InvalidArgument
from gpuscope.trace import schema
from gpuscope.trace.clocks import Bound, Line, aligned
from gpuscope.trace.collectives import Matching, matched, parts
from gpuscope.trace.combining import RANKS, combined
from gpuscope.trace.facts import ClockFacts, HazardFacts, RankFacts
from gpuscope.trace.joins import union
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.renumbering import Rank, ranked
from gpuscope.trace.run import Run

_TIMES = ("start_ns", "end_ns", "queued_ns", "submitted_ns")
_OWN = ("id", "stream", "device", "partition", "intended_partition")


def merge(traces: Sequence[Trace]) -> Trace:
    """Join the traces of several ranks, of one machine or of several, on one clock.

    The clock is that of the lowest rank. Times of the same clock (Unix time of one machine) stay
    as they are; what their own clocks' residuals add up to is the stated error. Another clock is
    put beside it by the collectives in which both took part: none ends on any rank before it has
    begun on all. That bounds the offset from both sides; the middle is taken, as a line over the
    time of the recordings, and the stated error is how far any line within the bounds can be from
    it. Collectives are those of gpuscope's handles, and NCCL's kernels in their order on a stream.

    Ids, streams, correlations and contexts are numbered anew, as are processes and devices where
    two ranks have the same number. Partitions of one name get their rank's behind it. The same GPU
    (by its UUID) is one device.

    Parameters
    ----------
    traces
        One a rank, in any order. Where none has a rank, they are ranks in the order given.

    Returns
    -------
    Trace
        ``metadata.ranks`` states each rank's offset, error and evidence; edges of kind
        ``"collective"`` lead from the rank that began last to those that waited for it.

    Raises
    ------
    AlignmentError
        Clocks differ and no collective is common, or the collectives contradict each other or the
        stated error.
    InvalidArgument
        There are not two traces, a rank is there twice, or ranks are not of one world.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> from gpuscope.trace.metadata import TraceMetadata
    >>> def of_rank(rank, start_ns):
    ...     columns = {"id": [1], "kind": ["kernel"], "name": ["ncclDevKernel_AllReduce_Sum_f32"],
    ...                "start_ns": [start_ns], "end_ns": [start_ns + 1_000 - 600 * rank],
    ...                "stream": [7], "source": ["cupti"]}
    ...     ranks = ({"rank": rank, "world_size": 2},)
    ...     return Trace.from_columns(columns, None, TraceMetadata(ranks=ranks))
    >>> merged = gs.merge([of_rank(0, 0), of_rank(1, 5_000)])
    >>> merged.metadata.ranks[1].offset_ns, merged.kind_counts()
    (-4700, {'kernel': 2})
    """
    if isinstance(traces, Run):
        raise InvalidArgument(
            "traces is a Run, whose traces are of settings and no ranks: give one trace of each "
            "rank, such as [of_rank_0['default'], of_rank_1['default']]"
        )
    if isinstance(traces, str | Path):
        raise InvalidArgument(
            f"traces is {given(str(traces))}: give the traces themselves, such as "
            "[gs.load_trace(path) for path in paths]"
        )
    require_kind("traces", traces, list, tuple)
    for trace in traces:
        require_kind("one of traces", trace, Trace)
    ranks = ranked(traces)
    parts_of = {rank.facts.rank: parts(rank.trace) for rank in ranks}
    clock_of = _clocks(ranks)
    matching = matched(
        {number: in_sets for number, (in_sets, _) in parts_of.items()},
        {rank.facts.rank: rank.trace.metadata.complete for rank in ranks},
        {rank.facts.rank: (clock_of[rank.facts.rank], rank.slack_ns) for rank in ranks},
    )
    _align(ranks, clock_of, matching)
    unmatched = matching.unmatched + sum(unassigned for _, unassigned in parts_of.values())
    waits = _edges(matching, {rank.facts.rank: rank.line for rank in ranks})
    return Trace(
        schema.concat([_on_one_clock(rank) for rank in ranks], schema.SPAN_TYPES),
        schema.concat([*(rank.trace.edges for rank in ranks), waits], schema.EDGE_TYPES),
        _metadata(ranks, matching.notes, unmatched),
    )


def are_ranks(traces: Sequence[Trace]) -> bool:
    """Whether there are several, each of another rank of one world."""
    ranks = [rank for trace in traces for rank in trace.metadata.ranks]
    numbers = {rank.rank for rank in ranks}
    is_each = len(traces) == len(ranks) == len(numbers) > 1
    return is_each and len({rank.world_size for rank in ranks}) == 1


def split(trace: Trace) -> list[Trace]:
    """Return the trace of each rank of a merged one, on one clock, so that merging joins them."""
    facts = trace.metadata
    clock = facts.clock or hashlib.sha256(repr(facts.ranks).encode()).hexdigest()[:32]
    return [_of_rank(trace, rank, clock) for rank in facts.ranks]


def _of_rank(trace: Trace, rank: RankFacts, clock: str) -> Trace:
    part, facts = trace.where(process=rank.process), trace.metadata
    used = {name: set(part.spans.column(name).unique().to_pylist()) for name in _OWN}
    named = used["partition"] | used["intended_partition"]
    hazards = facts.hazards
    if hazards is not None:
        here = [hazard for hazard in hazards.found if {hazard.first, hazard.second} & used["id"]]
        hazards = replace(hazards, found=tuple(here))
    other_prefixes = tuple(f"rank {other.rank}: " for other in facts.ranks if other != rank)
    notes = [note for note in facts.notes if not note.startswith(other_prefixes)]
    own_process = str(rank.process)
    devices = {
        key: device
        for key, device in facts.devices.items()
        if device.index in used["device"] or key == rank.device
    }
    metadata = replace(
        facts,
        clock=clock,
        # Two halves are no less than what the two can be off against each other.
        clocks={"of ranks": ClockFacts(residual_ns=(rank.error_ns or 0) / 2)},
        ranks=(replace(rank, offset_ns=0, drift_ns=0, error_ns=None, evidence=""),),
        devices=devices,
        gpu_states=tuple(state for state in facts.gpu_states if state.device in devices),
        streams={key: name for key, name in facts.streams.items() if int(key) in used["stream"]},
        partitions={name: size for name, size in facts.partitions.items() if name in named},
        process_names={
            key: name for key, name in facts.process_names.items() if key == own_process
        },
        hazards=hazards,
        counts={},
        notes=tuple(note.removeprefix(f"rank {rank.rank}: ") for note in notes),
    )
    return Trace(part.spans, part.edges, metadata)


# -- clocks ----------------------------------------------------------------------------------
def _clocks(ranks: Sequence[Rank]) -> dict[int, int]:
    """Return rank → the number of its clock, from 0 in the order of the ranks."""
    names = [(rank.trace.metadata.time_base, rank.facts.clock or rank.name) for rank in ranks]
    clocks = list(dict.fromkeys(names))
    return {rank.facts.rank: clocks.index(name) for rank, name in zip(ranks, names, strict=True)}


def _align(ranks: Sequence[Rank], clocks: Mapping[int, int], matching: Matching) -> None:
    """Put all ranks on the first one's clock, and state their errors."""
    members: list[list[Rank]] = [[] for _ in range(max(clocks.values()) + 1)]
    for rank in ranks:
        members[clocks[rank.facts.rank]].append(rank)
    bounds = _bounds(ranks, clocks, matching)
    reach = []
    for timed in members:
        firsts, lasts = zip(*(rank.reach for rank in timed), strict=True)
        reach.append((min(firsts), max(lasts)))
    names = [" and ".join(rank.name for rank in timed[:4]) for timed in members]
    try:
        lines, errors = aligned(bounds, reach, names)
    except AlignmentError as error:
        notes = "".join(f" ({note})" for note in matching.notes)
        raise AlignmentError(f"{error}{notes}") from None
    evidence = "the same clock" if len(members) == 1 else f"collectives: {len(bounds):,}"
    for rank in ranks:
        clock = clocks[rank.facts.rank]
        rank.line = line = lines[clock]
        begin, end = (int(line.at(np.array([time]))[0]) for time in rank.reach)
        other_ranks = [other for other in ranks if other is not rank]
        slack = {other.facts.rank: rank.slack_ns + other.slack_ns for other in other_ranks}
        furthest = max(errors[clock, clocks[number]] + more for number, more in slack.items())
        moved = {"offset_ns": begin, "drift_ns": end - begin}
        stated = {"error_ns": int(np.ceil(furthest)), "evidence": evidence}
        rank.facts = replace(rank.facts, **moved, **stated)


def _bounds(ranks: Sequence[Rank], clocks: Mapping[int, int], matching: Matching) -> list[Bound]:
    """Return what collectives tell of clocks; refuse what ranks of one clock contradict."""
    slack = {rank.facts.rank: rank.slack_ns for rank in ranks}
    bounds = []
    for collective in matching.sets:
        begin: dict[int, tuple[int, int]] = {}
        end: dict[int, tuple[int, int]] = {}
        for rank, part in collective.items():
            clock = clocks[rank]
            begun, ended = (part.start_ns - slack[rank], rank), (part.end_ns + slack[rank], rank)
            begin[clock] = max(begin.get(clock, begun), begun)
            end[clock] = min(end.get(clock, ended), ended)
        facts = next(iter(collective.values())).facts
        name = f"{facts.kind} {facts.sequence}" + (f" of {facts.group!r}" if facts.group else "")
        for clock, (late, last) in begin.items():
            early, first = end[clock]
            if late > early:
                raise AlignmentError(
                    f"{clean(name, 80)} ended on rank {first} {duration(late - early)} before it "
                    f"began on rank {last}, beyond what their clocks can be off "
                    f"({duration(slack[first] + slack[last])}): the traces are not of one run, or "
                    "the clock was set meanwhile"
                )
        bounds.append(
            Bound(*({clock: when for clock, (when, _) in side.items()} for side in (begin, end)))
        )
    return bounds


def _on_one_clock(rank: Rank) -> pa.Table:
    spans = rank.trace.spans
    if rank.line == Line():
        return spans
    for name in _TIMES:
        spans = schema.changed(spans, name, lambda column: _shifted(column, rank.line))
    low = pc.min(spans.column("start_ns")).as_py() if len(spans) else 0
    high = max(filter(None, (pc.max(spans.column(name)).as_py() for name in _TIMES)), default=0)
    if low < 0 or high >= schema.LATEST_NS:
        raise AlignmentError(
            f"{rank.name} would begin before time 0 on the clock of the lowest rank: give that "
            "rank's trace later times"
        )
    return spans


def _shifted(column: pa.ChunkedArray, line: Line) -> pa.Array:
    missing = np.asarray(column.is_null())
    times = np.asarray(column.fill_null(0).to_numpy(), np.int64)
    return pa.array(times + line.at(times), pa.int64(), mask=missing)


def _edges(matching: Matching, lines: Mapping[int, Line]) -> pa.Table:
    """Lead from the rank that began a collective last to the others, which waited for it."""
    columns: dict[str, list[object]] = defaultdict(list)
    for collective in matching.sets:
        begun = {
            rank: part.start_ns + int(lines[rank].at(np.array([part.start_ns]))[0])
            for rank, part in collective.items()
        }
        last = max(begun, key=lambda rank: (begun[rank], rank))
        for rank, part in collective.items():
            if rank != last:
                columns["from"].append(collective[last].kernel)
                columns["to"].append(part.kernel)
                columns["kind"].append("collective")
    return schema.table(columns, schema.EDGE_TYPES)


# -- metadata --------------------------------------------------------------------------------
def _metadata(ranks: Sequence[Rank], notes: Sequence[str], unmatched: int) -> TraceMetadata:
    every = [rank.trace.metadata for rank in ranks]
    merged = combined(every, RANKS)
    if unmatched:
        merged = replace(merged, counts={**merged.counts, "unmatched_collectives": unmatched})
    absent = ranks[0].facts.world_size - len(ranks)
    missing = [f"{absent:,} of {absent + len(ranks):,} ranks are not here"] if absent > 0 else []
    own_notes = [f"{rank.name}: {note}" for rank in ranks for note in rank.trace.metadata.notes]
    return replace(
        merged,
        windows_ns=_windows(ranks),
        ranks=tuple(rank.facts for rank in ranks),
        clocks={
            f"{name} of {rank.name}": facts
            for rank in ranks
            for name, facts in rank.trace.metadata.clocks.items()
        },
        hazards=_hazards([metadata.hazards for metadata in every]),
        notes=(*own_notes, *missing, *notes),
    )


def _windows(ranks: Sequence[Rank]) -> tuple[tuple[int, int], ...]:
    """Return the times in which any rank was recorded."""
    windows = [np.zeros((0, 2), np.int64)]
    for rank in ranks:
        times_ns = np.array(rank.trace.metadata.windows_ns, np.int64).reshape(-1, 2)
        windows.append((times_ns + rank.line.at(times_ns)).clip(min=0))
    return tuple((begin, end) for begin, end in union(*np.concatenate(windows).T).tolist())


def _hazards(every: Sequence[HazardFacts | None]) -> HazardFacts | None:
    """Return the hazards of all ranks that looked for them."""
    searched = [facts for facts in every if facts is not None]
    if not searched:
        return None
    totals = ("accesses", "unseen", "left_out", "undecided")
    return HazardFacts(
        unseen_names=tuple(
            dict.fromkeys(name for facts in searched for name in facts.unseen_names)
        ),
        found=tuple(hazard for facts in searched for hazard in facts.found),
        **{name: sum(getattr(facts, name) for facts in searched) for name in totals},
    )
