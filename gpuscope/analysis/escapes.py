"""Which work was given to which partition, where it ran, and what of it ran outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gpuscope._text import duration
from gpuscope._types import Array
from gpuscope.analysis.projection import launched_inside, pairs
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, launch_calls, rows_of
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named

Way: TypeAlias = Literal["partition", "outside", "sms"]
"""Where work escaped to: another partition or green context, none, or SMs of others."""
_SPANS = 8
"""Kernels that an escape names."""
Intended: TypeAlias = Mapping[Any, str | int]
"""Name of a range or id of a stream → name of a partition or id of a green context."""


class GivenWork:
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
        partitions = trace.metadata.partitions.items()
        context_of = {name: facts.context for name, facts in partitions}
        self.contexts = {name: number for name, number in context_of.items() if number is not None}
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


def give(trace: Trace, work: GivenWork, intended: Intended) -> list[str]:
    """Give kernels to partitions as the caller says; return what there is to note."""
    if not intended:
        return []
    stream, streams = codes(trace.spans.column("stream"))
    recorded = {*streams, *codes(trace.spans.column("name"))[1]}
    absent = [repr(key) for key in intended if key not in recorded]
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
        launched = np.flatnonzero(calls >= 0)
        order, low, high = launched_inside(trace, ranges, calls[launched])
        for number, positions in pairs(low, high):
            # Of equal places the last assignment stays: the range that began last.
            given[launched[order[positions]]] = homes[number]
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


def _mapped_ranges(trace: Trace, work: GivenWork, intended: Intended) -> tuple[Array, Array]:
    """Ranges whose names the caller maps, in the order of their starts, and their targets."""
    ranges = rows_of(trace, "range")
    name, names = codes(trace.spans.column("name"))
    home = np.full(len(names), -1, np.int64)
    for index, label in enumerate(names):
        if isinstance(label, str) and label in intended:
            home[index] = work.number(intended[label])
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
class Escape:
    """Kernels of one name that ran outside the partition they were given to, in one place.

    Attributes
    ----------
    where
        The partition that ran them, the SMs that held their blocks, or
        ``"outside any partition (stream 7)"``.
    kernels
        How many of them escaped, wholly or in part.
    given
        How many of that name were given to the partition.
    blocks
        Thread blocks seen outside; ``None`` if blocks were not recorded.
    time_ns
        Their time outside.
    to
        ``"partition"``: another partition or green context ran them; ``"outside"``: none did;
        ``"sms"``: SMs that the partition does not have held their blocks.
    spans
        Ids of a few of them.
    """

    kernel: str
    where: str
    evidence: str
    kernels: int
    given: int
    blocks: int | None
    time_ns: float
    to: Way = "partition"
    spans: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """What escaped, how many of how many, to where and for how long."""
        of = "all" if self.kernels == self.given else f"of {self.given:,}"
        took = duration(self.time_ns)
        return f"{self.kernel} ×{self.kernels:,} ({of}) → {self.where}, {took}"


@dataclass(frozen=True)
class Judgement:
    """What became of the kernels of :class:`GivenWork`; arrays are parallel to them.

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


def judge(trace: Trace, work: GivenWork, notes: list[str]) -> Judgement:
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
    held_by, owners = _owners(trace, work.rows[kernel[stray]], sm[stray])
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
    for block in combined(work.target[kernel], sm)[0]:
        sm_ids.setdefault(int(work.target[kernel[block]]), []).append(int(sm[block]))
    return Judgement(time_ns, escaped_ns, at_home, blocks, escapes, sm_ids)


def _ran_at_home(trace: Trace, work: GivenWork) -> Array:
    """Whether each kernel was run by the partition it was given to.

    The partition that the trace names decides; where it names none, the green context does.
    """
    partition, partitions = codes(trace.spans.column("partition"))
    partition = partition[work.rows]
    context = trace.array("green_context", fill=-1)[work.rows]
    position = {name: index for index, name in enumerate(partitions)}
    homes = [position.get(name, -1) for name in work.names]
    contexts = [work.contexts.get(name, -2) for name in work.names]
    by_name = partition == np.array([*homes, -1])[work.target]
    by_context = context == np.array([*contexts, -2])[work.target]
    return np.asarray(np.where(partition > 0, by_name, by_context))


def _blocks(trace: Trace, work: GivenWork, notes: list[str]) -> tuple[Array, Array, Array, Array]:
    """Kernel, SM, weight, and whether outside, of the blocks that kernels are judged by.

    They are the finished blocks of kernels given to a partition whose SM ids are known. A
    block on another device than its partition's is outside, whatever its SM's number.
    """
    rows = rows_of(trace, "block")
    sm = trace.array("sm", fill=-1)[rows]
    parent = match(trace.array("parent", fill=-1)[rows], trace.array("id"))
    lost = int(np.count_nonzero(parent < 0))
    if lost:
        notes.append(f"{lost:,} blocks have no kernel row: not judged")
    position = np.full(len(trace) + 1, -1, np.int64)  # the last is that of no row
    position[work.rows] = np.arange(len(work.rows))
    kernel = position[parent]
    target = np.where(kernel >= 0, work.target[kernel], -1)
    sms = [trace.metadata.partition(name).sm_ids for name in work.names]
    usable = (sm >= 0) & ~is_open(trace)[rows] & np.array([*map(bool, sms), False])[target]
    rows, sm, kernel, target = rows[usable], sm[usable], kernel[usable], target[usable]
    device, devices = codes(trace.spans.column("device"))
    width = max([int(sm.max(initial=0)), *(max(ids) for ids in sms if ids)]) + 1
    inside = [index * width + sm_id for index, ids in enumerate(sms) for sm_id in ids]
    is_own = np.isin(target * width + sm, np.array(inside, np.int64))
    devices_of = _devices(trace)
    homes = [devices_of.get(name, {*devices}) for name in work.names]
    on_device = [[index is None or index in home for index in devices] for home in homes]
    is_there = np.array(on_device, bool).reshape(-1, len(devices))
    lasted = trace.array("end_ns", fill=0)[rows] - trace.array("start_ns")[rows]
    return kernel, sm, np.maximum(lasted, 1), ~(is_own & is_there[target, device[rows]])


def _devices(trace: Trace) -> dict[str, set[int]]:
    """Return partition → the indices of the devices on which one of this name has streams."""
    devices = trace.metadata.devices
    indices: dict[str, set[int]] = {}
    for facts in trace.metadata.streams.values():
        device = devices.get(facts.device or "")
        if facts.partition is not None and device is not None and device.index is not None:
            indices.setdefault(facts.partition, set()).add(device.index)
    return indices


def _ran_in(trace: Trace, rows: Array) -> tuple[Array, list[tuple[Way, str]]]:
    """Row → number of what ran it, and its name in words."""
    partition, partitions = codes(trace.spans.column("partition"))
    context, contexts = codes(trace.spans.column("green_context"))
    stream, streams = codes(trace.spans.column("stream"))
    first, code = combined(partition[rows], context[rows], stream[rows])
    owners = {facts.context: name for name, facts in trace.metadata.partitions.items()}
    places: list[tuple[Way, str]] = []
    for row in rows[first]:
        name, number = partitions[partition[row]], contexts[context[row]]
        if name is None and number is not None:
            name = owners.get(number, f"green context {number}")
        outside = f"outside any partition ({named(trace).stream_name(streams[stream[row]])})"
        places.append(("partition", name) if name else ("outside", outside))
    return code, places


def _owners(trace: Trace, rows: Array, sm: Array) -> tuple[Array, list[tuple[Way, str]]]:
    """Block, by its kernel's row and its SM → number of who owns that SM, and that in words."""
    device, devices = codes(trace.spans.column("device"))
    first, code = combined(device[rows], sm)
    owners = {index: partitions_by_sm(trace, index) for index in devices}
    partitions = (owners[devices[device[rows[at]]]].get(int(sm[at]), ()) for at in first)
    return code, [
        ("sms", f"SMs of {' and '.join(names) or 'no partition'}") for names in partitions
    ]


def partitions_by_sm(trace: Trace, device: int | None = None) -> dict[int, list[str]]:
    """Return SM → the partitions that have it, of one device or of all."""
    owners: dict[int, list[str]] = {}
    devices = trace.metadata.devices
    for name, facts in trace.metadata.partitions.items():
        home = devices.get(facts.device_key or "")
        if home is not None and device not in (None, home.index):
            continue
        for sm_id in dict.fromkeys(facts.sm_ids):
            owners.setdefault(sm_id, []).append(name)
    return owners


def _escapes(
    trace: Trace,
    work: GivenWork,
    *,
    kernel: Array,
    where: Array,
    places: list[tuple[Way, str]],
    by_blocks: Array,
    blocks: Array,
    ns: Array,
) -> dict[int, list[Escape]]:
    """Group parts of kernels that escaped by target, name, place and evidence."""
    number = {way: index for index, way in enumerate(dict.fromkeys(places))}
    where = np.array([number[way] for way in places], np.int64)[where]
    name, names = codes(trace.spans.column("name"))
    first, group = combined(
        work.target[kernel], name[work.rows[kernel]], where, by_blocks[kernel].astype(np.int64)
    )
    whole = combined(group, kernel)[0]
    kernels = np.bincount(group[whole], minlength=len(first))
    total_blocks = np.bincount(group, blocks, len(first))
    total_ns = np.bincount(group, ns, len(first))
    given, of_name = combined(work.target + 1, name[work.rows])
    given = np.bincount(of_name, minlength=len(given))
    ways = list(number)
    ids = trace.array("id")[work.rows[kernel[whole]]]
    by_group = np.argsort(group[whole], kind="stable")
    begins = np.searchsorted(group[whole][by_group], np.arange(len(first)))
    by_target: dict[int, list[Escape]] = {}
    for index, part in enumerate(first):
        seen = bool(by_blocks[kernel[part]])
        to, words = ways[where[part]]
        escape = Escape(
            kernel=names[name[work.rows[kernel[part]]]],
            where=words,
            evidence=evidence_kind(trace, by_blocks=seen),
            kernels=int(kernels[index]),
            given=int(given[of_name[kernel[part]]]),
            blocks=int(total_blocks[index]) if seen else None,
            time_ns=float(total_ns[index]),
            to=to,
            spans=tuple(ids[by_group[begins[index] :][: min(_SPANS, kernels[index])]].tolist()),
        )
        by_target.setdefault(int(work.target[kernel[part]]), []).append(escape)
    return by_target


def evidence_kind(trace: Trace, *, by_blocks: bool) -> str:
    """Return what a verdict on kernels rests on."""
    if trace.is_simulated:
        return "simulated"
    return "resident" if by_blocks else "allocated"
