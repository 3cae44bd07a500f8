"""Confinement: whether work stayed on the SMs it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.launch import launch_calls, positions
from gpuscope.analysis.projection import launched_inside, pairs
from gpuscope.analysis.result import Result
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.model import Trace

EVIDENCE = ("resident", "allocated", "simulated")
"""What a verdict rests on, the strongest first."""
_NAMED = 3


@dataclass(frozen=True)
class Evidence:
    """The work of one partition that was judged in one way.

    Attributes
    ----------
    kind
        ``"resident"``: the SM of every thread block was seen; ``"allocated"``: the green
        context or partition of the kernel is known; ``"simulated"``.
    judged_by
        ``"blocks"`` or ``"kernels"``: what ``observations`` counts.
    time_ns, escaped_ns
        Durations of the kernels summed, and the part outside. A kernel judged by blocks is
        outside by the share of its blocks' time.
    """

    kind: str
    judged_by: str
    observations: int
    kernels: int
    time_ns: float
    escaped_ns: float

    @property
    def fraction(self) -> float:
        """Time inside / all time."""
        return (self.time_ns - self.escaped_ns) / self.time_ns


@dataclass(frozen=True)
class Escape:
    """Kernels of one name that ran outside the partition they were given to, in one place.

    Attributes
    ----------
    where
        The partition that ran them, the SMs that held their blocks, or
        ``"outside any partition (stream 7)"``.
    kernels
        How many of them escaped, wholly or in part.
    blocks
        Thread blocks seen outside; ``None`` where blocks were not seen.
    time_ns
        Their time outside.
    """

    kernel: str
    where: str
    evidence: str
    kernels: int
    blocks: int | None
    time_ns: float


@dataclass(frozen=True)
class PartitionConfinement:
    """What became of the work given to one partition.

    Attributes
    ----------
    fraction
        Time of the work inside / all time of it; ``None`` without work.
    evidence
        One a way of judging, the strongest first; empty without work.
    escapes
        By kernel name and place, the longest first.
    escaping_sm_ids
        SMs outside the partition on which its work was seen.
    sm_count
        SMs of the partition, where known.
    sm_ids_known
        Whether the partition's SM ids are known.
    shares_with
        Partitions that have SMs in common with it.
    notes
        What to know before trusting the fraction.
    """

    partition: str
    fraction: float | None
    evidence: tuple[Evidence, ...]
    escapes: tuple[Escape, ...]
    escaping_sm_ids: tuple[int, ...]
    sm_count: int | None
    sm_ids_known: bool
    shares_with: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def observations(self) -> int:
        """Kernels and blocks that were judged."""
        return sum(one.observations for one in self.evidence)

    @property
    def kernels(self) -> int:
        """Finished kernels given to it."""
        return sum(one.kernels for one in self.evidence)

    @property
    def time_ns(self) -> float:
        """Their durations, summed."""
        return sum(one.time_ns for one in self.evidence)

    @property
    def escaped_ns(self) -> float:
        """The part of that time outside the partition."""
        return sum(one.escaped_ns for one in self.evidence)

    @property
    def weakest(self) -> str | None:
        """The weakest evidence that the fraction rests on."""
        kinds = [one.kind for one in self.evidence]
        return max(kinds, key=EVIDENCE.index) if kinds else None


@dataclass(frozen=True)
class ConfinementResult(Result):
    """Confinement by partition.

    Attributes
    ----------
    partitions
        Those that the trace describes, in its order, then others that were given work.
    notes
        What holds for the whole trace.
    """

    partitions: tuple[PartitionConfinement, ...]
    notes: tuple[str, ...]
    provenance: str
    weight = "time (ms)"

    def __getitem__(self, name: str) -> PartitionConfinement:
        for one in self.partitions:
            if one.partition == name:
                return one
        raise KeyError(
            f"no partition {name!r}; there are {[one.partition for one in self.partitions]}"
        )

    def _rows(self) -> list[dict[str, Any]]:
        """One row per partition."""
        return [
            {
                "partition": one.partition,
                "confinement": one.fraction,
                "evidence": " + ".join(
                    f"{part.kind} ({part.observations:,} {part.judged_by}: {part.fraction:.4g})"
                    for part in one.evidence
                )
                or "no work was given to it",
                "observations": one.observations,
                "kernels": one.kernels,
                "time (ms)": one.time_ns / 1e6,
                "escaped (ms)": one.escaped_ns / 1e6,
                "escaping kernels": _listed(one.escapes),
                "escaping SM ids": ", ".join(map(str, one.escaping_sm_ids)) or None,
                "notes": "; ".join(one.notes) or None,
            }
            for one in self.partitions
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        said = "".join(f" {one}." for one in self.notes)
        if any(one.kind == "simulated" for part in self.partitions for one in part.evidence):
            said += " Simulated: the simulated GPU confines by construction."
        return (
            "confinement: time inside the partition / all time of the kernels that were launched "
            "while its stream was selected, whatever ran them; resident: by the SM of every "
            f"thread block; allocated: by the kernel's green context.{said} {self.provenance}"
        )


def _listed(escapes: tuple[Escape, ...]) -> str | None:
    said = [
        f"{one.kernel} ×{one.kernels} → {one.where}, {one.time_ns / 1e6:.4g} ms"
        for one in escapes[:_NAMED]
    ]
    if len(escapes) > _NAMED:
        said.append(f"and {len(escapes) - _NAMED} more")
    return "; ".join(said) or None


@door(trace=Trace, intended=(Mapping, None))
def confinement(
    trace: Trace, *, intended: Mapping[str, str | int] | Mapping[int, str | int] | None = None
) -> ConfinementResult:
    """Say how much of the work given to each partition ran inside it, and what escaped.

    The work given to a partition is every kernel launched while a guard, an explicit stream
    or an experiment's entry selected a stream of it (``intended_partition``), whatever stream
    ran it. Confinement is the time of that work inside the partition / all its time. Kernels
    with block rows are judged by the SMs of their blocks, weighted by the blocks' durations,
    where the partition's SM ids are known; others by the green context or partition that ran
    them. A span shorter than 1 ns counts as 1 ns, so that no escape has no weight.

    Parameters
    ----------
    intended
        For a trace that does not say what was given to whom: name of a range → partition
        name or green context id, for the kernels launched in ranges of that name by the
        range's thread (in the innermost, where they nest); or stream id → the same, for the
        kernels of that stream. Where it says nothing, the trace's own word holds.

    Raises
    ------
    MissingEvidence
        No finished kernel was given to a partition, ``intended`` applies to none, or the
        trace does not say where any kernel that it applies to ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> decode = gs.analysis.confinement(gs.learn.case("A").trace)["decode"]
    >>> decode.fraction < 1, [one.kernel for one in decode.escapes]
    (True, ['norm'])
    >>> gs.analysis.confinement(trace, intended={"decode step": 3})  # doctest: +SKIP
    """
    rows = rows_of(trace, "kernel")
    work = _Work(trace, rows[~is_open(trace)[rows]])
    notes = _give(trace, work, intended or {})
    if not (work.target >= 0).any():
        raise MissingEvidence(
            f"none of {len(work.rows):,} finished kernels was given to a partition: record with "
            "profile() and launch under a CallerStreamGuard or on a stream of a partition, or say "
            "what was given to whom with intended={range name or stream id: partition or green "
            "context id}"
        )
    unfinished = len(rows) - len(work.rows)
    if unfinished:
        notes.append(f"{unfinished:,} unfinished kernels are not judged")
    found = _judge(trace, work, notes)
    given = (work.names[index] for index in np.unique(work.target) if index >= 0)
    groups = Groups(work.target + 1, ["", *work.names])
    owners = _by_sm(trace)
    place = {name: index for index, name in enumerate(trace.metadata.partitions)}
    return ConfinementResult(
        tuple(
            _partition(trace, name, work, found, groups, owners, place)
            for name in dict.fromkeys([*trace.metadata.partitions, *given])
        ),
        tuple(notes),
        trace.provenance,
        incomplete=trace.metadata.incomplete,
    )


class _Work:
    """The finished kernels and to which partition each was given.

    Attributes
    ----------
    rows
        Positions in the trace; the other arrays are parallel to it.
    names
        Partitions that may have been given work.
    target
        Position in ``names``, −1 for work given to none.
    place
        Name → position in ``names``.
    contexts
        Name → green context.
    """

    def __init__(self, trace: Trace, rows: Array) -> None:
        intended, values = codes(trace.spans.column("intended_partition"))
        self.rows = rows
        self.names: list[str] = values[1:]
        self.target = intended[rows] - 1
        self.place = {name: index for index, name in enumerate(self.names)}
        self.contexts: dict[str, int] = {
            name: facts.context
            for name, facts in trace.metadata.partitions.items()
            if facts.context is not None
        }
        self._by_context = {context: name for name, context in self.contexts.items()}

    def number(self, home: str | int) -> int:
        """Position in ``names`` of a partition or green context that the caller named."""
        if isinstance(home, int):
            name = self._by_context.setdefault(home, f"green context {home}")
            self.contexts[name] = home
        else:
            name = home
        if name not in self.place:
            self.place[name] = len(self.names)
            self.names.append(name)
        return self.place[name]


def _give(trace: Trace, work: _Work, intended: Mapping[Any, str | int]) -> list[str]:
    """Give kernels to partitions as the caller says; return what there is to note."""
    if not intended:
        return []
    stream, streams = codes(trace.spans.column("stream"))
    there = {*streams, *codes(trace.spans.column("name"))[1]}
    absent = [repr(key) for key in intended if key not in there]
    notes = [f"the trace has no {', '.join(absent)}, which intended= names"] if absent else []
    home = np.full(len(streams), -1, np.int64)
    number_of = {value: index for index, value in enumerate(streams)}
    for key, target in intended.items():
        if not isinstance(key, str) and key in number_of:
            home[number_of[key]] = work.number(target)
    given = home[stream[work.rows]]
    ranges, homes = _mapped_ranges(trace, work, intended)
    if len(ranges):
        calls = launch_calls(trace)[work.rows]
        lost = int(np.count_nonzero(calls < 0))
        if lost:
            notes.append(f"{lost:,} kernels have no known launch call: in no range")
        known = np.flatnonzero(calls >= 0)
        order, low, high = launched_inside(trace, ranges, calls[known])
        for number, place in pairs(low, high):
            # Of equal places the last assignment stays: the range that began last.
            given[known[order[place]]] = homes[number]
    if not (given >= 0).any():
        raise MissingEvidence(
            f"intended={dict(intended)!r} applies to none of {len(work.rows):,} finished kernels: "
            "streams are matched by id, ranges by name and by the thread of the launch calls, "
            "which must be in the trace (profile(launch_ids=True), the default)"
        )
    _require_places(trace, work.rows[given >= 0])
    work.target = np.where(given >= 0, given, work.target)
    notes.append("what was given to whom is the caller's word")
    return notes


def _mapped_ranges(
    trace: Trace, work: _Work, intended: Mapping[Any, str | int]
) -> tuple[Array, Array]:
    """Ranges whose names the caller maps, in the order of their starts, and their targets."""
    ranges = rows_of(trace, "range")
    name, names = codes(trace.spans.column("name"))
    home = np.full(len(names), -1, np.int64)
    for index, one in enumerate(names):
        if isinstance(one, str) and one in intended:
            home[index] = work.number(intended[one])
    ranges = ranges[home[name[ranges]] >= 0]
    ranges = ranges[np.argsort(trace.array("start_ns")[ranges], kind="stable")]
    return ranges, home[name[ranges]]


def _require_places(trace: Trace, rows: Array) -> None:
    """Refuse to judge where a trace from elsewhere does not say what ran where."""
    for column in ("partition", "green_context"):
        if codes(trace.spans.column(column))[0][rows].any():
            return
    parents = trace.array("parent", fill=-1)[rows_of(trace, "block")]
    if not np.isin(trace.array("id")[rows], parents).any():
        raise MissingEvidence(
            "the trace does not say in which green context any of these kernels ran: record with "
            "profile() or with a tool that writes the green context of each kernel"
        )


@dataclass(frozen=True)
class _Found:
    """What became of the kernels of :class:`_Work`; arrays are parallel to them.

    Attributes
    ----------
    at_home
        Whether the partition that a kernel was given to ran it.
    blocks
        How many blocks it was judged by; 0: by what ran it.
    escapes, sm_ids
        Target → escapes, and SMs outside on which blocks were seen.
    """

    time_ns: Array
    escaped_ns: Array
    at_home: Array
    blocks: Array
    escapes: dict[int, list[Escape]]
    sm_ids: dict[int, list[int]]


def _judge(trace: Trace, work: _Work, notes: list[str]) -> _Found:
    """Say of every kernel given to a partition how much of it ran outside, and where."""
    size = len(work.rows)
    lasted = trace.array("end_ns", fill=0)[work.rows] - trace.array("start_ns")[work.rows]
    time_ns = np.maximum(lasted, 1).astype(np.float64)
    at_home = _ran_at_home(trace, work)
    kernel, sm, weight, outside = _blocks(trace, work, notes)
    blocks = np.bincount(kernel, minlength=size)
    all_ns = np.maximum(np.bincount(kernel, weight, size), 1)
    kernel, sm, weight = kernel[outside], sm[outside], weight[outside]
    share = np.where(blocks > 0, np.bincount(kernel, weight, size) / all_ns, ~at_home)
    escaped_ns = np.where(work.target >= 0, time_ns * share, 0.0)

    # A kernel that something else ran escaped to there, a block of another to its SM's owner.
    away = np.flatnonzero((escaped_ns > 0) & ~at_home)
    stray = np.flatnonzero(at_home[kernel])
    ran_in, places = _ran_in(trace, work.rows[away])
    held_by, owners = _owners(trace, sm[stray])
    escapes = _escapes(
        trace,
        work,
        kernel=np.r_[away, kernel[stray]],
        where=np.r_[ran_in, len(places) + held_by],
        places=[*places, *owners],
        by_blocks=blocks > 0,
        blocks=np.r_[np.bincount(kernel, minlength=size)[away], np.ones(len(stray), np.int64)],
        ns=np.r_[escaped_ns[away], (time_ns / all_ns)[kernel[stray]] * weight[stray]],
    )
    sm_ids: dict[int, list[int]] = {}
    for one in combined(work.target[kernel], sm)[0]:
        sm_ids.setdefault(int(work.target[kernel[one]]), []).append(int(sm[one]))
    return _Found(time_ns, escaped_ns, at_home, blocks, escapes, sm_ids)


def _ran_at_home(trace: Trace, work: _Work) -> Array:
    """Whether each kernel was run by the partition it was given to.

    The partition that the trace names decides; where it names none, the green context does.
    """
    partition, partitions = codes(trace.spans.column("partition"))
    partition = partition[work.rows]
    context = trace.array("green_context", fill=-1)[work.rows]
    place = {name: index for index, name in enumerate(partitions)}
    own = [place.get(name, -1) for name in work.names]
    contexts = [work.contexts.get(name, -2) for name in work.names]
    by_name = partition == np.array([*own, -1])[work.target]
    by_context = context == np.array([*contexts, -2])[work.target]
    return np.asarray(np.where(partition > 0, by_name, by_context))


def _blocks(trace: Trace, work: _Work, notes: list[str]) -> tuple[Array, Array, Array, Array]:
    """Kernel, SM, weight, and whether outside, of the blocks that kernels are judged by.

    They are the finished blocks of kernels given to a partition whose SM ids are known. A
    block on another device than its partition's is outside, whatever its SM's number.
    """
    rows = rows_of(trace, "block")
    sm = trace.array("sm", fill=-1)[rows]
    parent = positions(trace, trace.spans.column("parent").take(rows))
    lost = int(np.count_nonzero(parent < 0))
    if lost:
        notes.append(f"{lost:,} blocks have no kernel row: not judged")
    place = np.full(len(trace) + 1, -1, np.int64)  # the last is that of no row
    place[work.rows] = np.arange(len(work.rows))
    kernel = place[parent]
    target = np.where(kernel >= 0, work.target[kernel], -1)
    sms = [trace.metadata.partition(name).sm_ids for name in work.names]
    usable = (sm >= 0) & ~is_open(trace)[rows] & np.array([*map(bool, sms), False])[target]
    rows, sm, kernel, target = rows[usable], sm[usable], kernel[usable], target[usable]
    device, devices = codes(trace.spans.column("device"))
    width = max([int(sm.max(initial=0)), *(max(ids) for ids in sms if ids)]) + 1
    own = [index * width + one for index, ids in enumerate(sms) for one in ids]
    is_own = np.isin(target * width + sm, np.array(own, np.int64))
    there = _devices(trace)
    is_there = np.array(
        [
            [one is None or not there.get(name) or one in there[name] for one in devices]
            for name in work.names
        ],
        bool,
    ).reshape(-1, len(devices))
    lasted = trace.array("end_ns", fill=0)[rows] - trace.array("start_ns")[rows]
    return kernel, sm, np.maximum(lasted, 1), ~(is_own & is_there[target, device[rows]])


def _devices(trace: Trace) -> dict[str, set[int]]:
    """Return partition → the indices of the devices on which one of this name has streams."""
    devices = trace.metadata.devices
    found: dict[str, set[int]] = {}
    for facts in trace.metadata.streams.values():
        device = devices.get(facts.device or "")
        if facts.partition is not None and device is not None and device.index is not None:
            found.setdefault(facts.partition, set()).add(device.index)
    return found


def _ran_in(trace: Trace, rows: Array) -> tuple[Array, list[str]]:
    """Row → number of what ran it, and its name in words."""
    partition, partitions = codes(trace.spans.column("partition"))
    context, contexts = codes(trace.spans.column("green_context"))
    stream, streams = codes(trace.spans.column("stream"))
    first, code = combined(partition[rows], context[rows], stream[rows])
    owners = {facts.context: name for name, facts in trace.metadata.partitions.items()}
    places = []
    for row in rows[first]:
        name, number = partitions[partition[row]], contexts[context[row]]
        if name is None and number is not None:
            name = owners.get(number, f"green context {number}")
        places.append(name or f"outside any partition ({_stream(trace, streams[stream[row]])})")
    return code, places


def _stream(trace: Trace, number: int | None) -> str:
    name = trace.stream_name(number)
    return name if number is None or name == f"stream {number}" else f"stream {number}, {name}"


def _owners(trace: Trace, sm: Array) -> tuple[Array, list[str]]:
    """Block → number of who owns its SM, and that in words."""
    ids, code = np.unique(sm, return_inverse=True)
    owners = _by_sm(trace)
    return code, [f"SMs of {' and '.join(owners.get(one, ())) or 'no partition'}" for one in ids]


def _by_sm(trace: Trace) -> dict[int, list[str]]:
    """Return SM → the partitions that have it."""
    found: dict[int, list[str]] = {}
    for name, facts in trace.metadata.partitions.items():
        for one in dict.fromkeys(facts.sm_ids):
            found.setdefault(one, []).append(name)
    return found


def _escapes(
    trace: Trace, work: _Work, *, kernel: Array, where: Array, places: list[str],
    by_blocks: Array, blocks: Array, ns: Array,
) -> dict[int, list[Escape]]:  # fmt: skip
    """Group parts of kernels that escaped by target, name, place and evidence."""
    number = {place: index for index, place in enumerate(dict.fromkeys(places))}
    where = np.array([number[place] for place in places], np.int64)[where]
    name, names = codes(trace.spans.column("name"))
    first, group = combined(
        work.target[kernel], name[work.rows[kernel]], where, by_blocks[kernel].astype(np.int64)
    )
    whole = combined(group, kernel)[0]
    kernels = np.bincount(group[whole], minlength=len(first))
    total_blocks = np.bincount(group, blocks, len(first))
    total_ns = np.bincount(group, ns, len(first))
    words = list(number)
    found: dict[int, list[Escape]] = {}
    for index, one in enumerate(first):
        seen = bool(by_blocks[kernel[one]])
        escape = Escape(
            kernel=names[name[work.rows[kernel[one]]]],
            where=words[where[one]],
            evidence=_kind(trace, by_blocks=seen),
            kernels=int(kernels[index]),
            blocks=int(total_blocks[index]) if seen else None,
            time_ns=float(total_ns[index]),
        )
        found.setdefault(int(work.target[kernel[one]]), []).append(escape)
    return found


def _kind(trace: Trace, *, by_blocks: bool) -> str:
    if trace.is_simulated:
        return "simulated"
    return "resident" if by_blocks else "allocated"


def _partition(
    trace: Trace, name: str, work: _Work, found: _Found, groups: Groups[str],
    owners: Mapping[int, Sequence[str]], place: Mapping[str, int],
) -> PartitionConfinement:  # fmt: skip
    """Sum up one partition.

    Parameters
    ----------
    groups
        Kernels by target; the first group was given to none.
    owners, place
        SM → its partitions, and partition → its place among those that the trace describes.
    """
    facts = trace.metadata.partition(name)
    sms = set(facts.sm_ids)
    index = work.place.get(name, -1)
    given = groups.mine(index + 1) if index >= 0 else np.zeros(0, np.int64)
    evidence = []
    for by_blocks in (True, False):
        mine = given[(found.blocks[given] > 0) == by_blocks]
        kernels = len(mine)
        if kernels:
            evidence.append(
                Evidence(
                    kind=_kind(trace, by_blocks=by_blocks),
                    judged_by="blocks" if by_blocks else "kernels",
                    observations=int(found.blocks[mine].sum()) if by_blocks else kernels,
                    kernels=kernels,
                    time_ns=float(found.time_ns[mine].sum()),
                    escaped_ns=float(found.escaped_ns[mine].sum()),
                )
            )
    shares = dict.fromkeys(facts.shares_with)
    others = {other for one in sms for other in owners[one]} - {name}
    shares.update(dict.fromkeys(sorted(others, key=place.__getitem__)))
    notes = []
    if shares:
        notes.append(
            f"shares SMs with {' and '.join(shares)}: confined to shared SMs does not mean alone "
            "on them"
        )
    if evidence and not sms:
        notes.append("its SM ids were not seen: judged by what ran each kernel alone")
    seen = given[found.blocks[given] > 0]
    lucky = int(np.count_nonzero(~found.at_home[seen] & (found.escaped_ns[seen] == 0)))
    if lucky:
        notes.append(
            f"{lucky:,} kernels that it did not run count as inside: all their "
            "blocks were seen on its SMs"
        )
    total = sum(one.time_ns for one in evidence)
    return PartitionConfinement(
        partition=name,
        fraction=(total - sum(one.escaped_ns for one in evidence)) / total if evidence else None,
        evidence=tuple(evidence),
        escapes=tuple(sorted(found.escapes.get(index, ()), key=lambda one: -one.time_ns)),
        escaping_sm_ids=tuple(sorted(found.sm_ids.get(index, ()))),
        sm_count=facts.sm_count or len(sms) or None,
        sm_ids_known=bool(sms),
        shares_with=tuple(shares),
        notes=tuple(notes),
    )
