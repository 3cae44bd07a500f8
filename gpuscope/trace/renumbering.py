"""Ranks of several traces: who they are, and rows whose numbers and names no other rank has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from gpuscope.errors import InvalidArgument
from gpuscope.trace import arrow, schema
from gpuscope.trace.clocks import Line
from gpuscope.trace.facts import DeviceFacts, HazardFacts, RankFacts
from gpuscope.trace.model import Trace

_TEXT = "id stream channel correlation external_correlation graph graph_node context green_context"
_NUMBERED = _TEXT.split()
"""Columns whose numbers are of one process: those of the next rank go on behind."""
_NAMED = ("partition", "intended_partition")
_GIVE_IT = "give it its own, as in trace.with_metadata(ranks=[{'rank': 1, 'world_size': 2}])"


@dataclass
class Rank:
    """One rank's trace, its rows numbered so that they stand beside those of the others.

    Attributes
    ----------
    slack_ns
        How far its times can be off from its own clock.
    """

    trace: Trace
    facts: RankFacts
    slack_ns: int
    line: Line = Line()  # noqa: RUF009 - immutable

    @property
    def name(self) -> str:
        """What it is called."""
        return f"rank {self.facts.rank}"

    @property
    def reach(self) -> tuple[int, int]:
        """The first and the last time of its rows."""
        starts, ends = self.trace.array("start_ns"), self.trace.array("end_ns", fill=0)
        first = int(starts.min(initial=schema.LATEST_NS)) if len(starts) else 0
        return first, max(int(starts.max(initial=0)), int(ends.max(initial=0)))


def ranked(traces: Sequence[Trace]) -> list[Rank]:
    """Return the ranks in order, with distinct numbers and names."""
    stated = [trace.metadata.ranks for trace in traces]
    for number, ranks in enumerate(stated):
        if len(ranks) > 1:
            raise InvalidArgument(
                f"traces[{number}] is of {len(ranks)} ranks, merged already: merge the traces of "
                "all ranks at once"
            )
    if len(traces) < 2:
        raise InvalidArgument(
            f"there is {'one trace' if traces else 'no trace'}: give one of each rank, two or more"
        )
    if not any(stated):
        stated = [(RankFacts(number, len(traces)),) for number in range(len(traces))]
    first_trace: dict[int, int] = {}
    world_size = next(ranks[0] for ranks in stated if ranks).world_size
    for number, ranks in enumerate(stated):
        if not ranks:
            raise InvalidArgument(f"traces[{number}] tells no rank, others do: {_GIVE_IT}")
        rank, size = ranks[0].rank, ranks[0].world_size
        if rank in first_trace:
            raise InvalidArgument(
                f"rank {rank} is there twice, as traces[{first_trace[rank]}] and "
                f"traces[{number}]: give one trace a rank"
            )
        if size != world_size:
            raise InvalidArgument(
                f"rank {next(iter(first_trace))} is of a world of {world_size} ranks, rank {rank} "
                f"of one of {size}: these are not traces of one run"
            )
        if rank >= size:
            raise InvalidArgument(
                f"traces[{number}] is of rank {rank} in a world of {size}, whose ranks are 0 to "
                f"{size - 1}: {_GIVE_IT}"
            )
        first_trace[rank] = number
    partitions = Counter(name for trace in traces for name in _partitions(trace))
    shared = {name for name, count in partitions.items() if count > 1}
    taken = _Taken()
    order = [first_trace[rank] for rank in sorted(first_trace)]
    return [_numbered(traces[number], stated[number][0], taken, shared) for number in order]


def _partitions(trace: Trace) -> set[str]:
    return {name for column in _NAMED for name in _distinct(trace.spans, column)} | set(
        trace.metadata.partitions
    )


def _numbers(spans: pa.Table, *columns: str) -> set[int]:
    return {int(number) for column in columns for number in _distinct(spans, column)}


def _distinct(spans: pa.Table, column: str) -> list[str]:
    return [str(value) for value in spans.column(column).unique().drop_null().to_pylist()]


class _Taken:
    """The numbers that ranks so far have."""

    def __init__(self) -> None:
        self.next: Counter[str] = Counter()
        self.processes: set[int] = set()
        self.threads: set[int] = set()
        self.devices: dict[int, DeviceFacts] = {}

    @staticmethod
    def free(numbers: Sequence[int], taken: set[int]) -> dict[int, int]:
        """Return number → itself or, if it is taken, one that is not; takes these."""
        renumbered = {}
        for number in sorted(numbers):
            ours = number if number not in taken else max(taken | set(numbers)) + 1
            taken.add(ours)
            renumbered[number] = ours
        return renumbered

    def device(self, index: int, facts: DeviceFacts, *, simulated: bool) -> int:
        """Return the index of a device here: the same for the same GPU, a free one otherwise."""
        for taken_index, other in self.devices.items():
            if facts.uuid and facts.uuid == other.uuid and not simulated:
                return taken_index
        ours = index if index not in self.devices else max(self.devices) + 1
        self.devices[ours] = facts
        return ours


def _numbered(trace: Trace, facts: RankFacts, taken: _Taken, shared: set[str]) -> Rank:
    """Return a rank with numbers and names that no rank before it has."""
    metadata, spans, edges = trace.metadata, trace.spans, trace.edges
    offsets = {name: taken.next[name] for name in _NUMBERED}
    for name in _NUMBERED:
        most = [pc.max(spans.column(name)).as_py()] if len(trace) else []
        most += [int(key) for key in metadata.streams] if name == "stream" else []
        taken.next[name] += max((number for number in most if number is not None), default=-1) + 1
        spans = schema.added(spans, offsets[name], name)
    spans = schema.added(spans, offsets["id"], "parent")
    edges = schema.added(edges, offsets["id"], "from", "to")

    recorded = _numbers(spans, "process")
    process = facts.process
    if process is None:
        working = _numbers(trace.where(kind="kernel").spans, "process")
        if len(working or recorded) > 1:
            raise InvalidArgument(
                f"the trace of rank {facts.rank} is of {len(working or recorded)} processes: keep "
                "one's rows, trace.where(process=…), or name it in its rank, RankFacts(process=…)"
            )
        process = next(iter(working or recorded), facts.rank + 1)
    processes = taken.free([*recorded | {process}], taken.processes)
    spans = schema.changed(
        spans, "process", lambda column: _renumbered(column.fill_null(process), processes)
    )
    if pa.types.is_null(spans.column("process").type):
        spans = schema.with_column(
            spans, "process", pa.array([processes[process]] * len(spans), pa.int64())
        )
    threads = taken.free([*_numbers(spans, "thread", "end_thread")], taken.threads)
    for name in ("thread", "end_thread"):
        spans = schema.changed(spans, name, lambda column: _renumbered(column, threads))

    indices = _numbers(spans, "device")
    indices |= {gpu.index for gpu in metadata.devices.values() if gpu.index is not None}
    devices = {
        index: taken.device(index, metadata.device(index), simulated=metadata.simulated)
        for index in sorted(indices)
    }
    spans = schema.changed(spans, "device", lambda column: _renumbered(column, devices))
    homes = {
        stream.partition: stream.device for stream in metadata.streams.values() if stream.partition
    }
    sole = next(iter(metadata.devices)) if len(metadata.devices) == 1 else facts.device
    keys = {key: _key(key, gpu, devices) for key, gpu in metadata.devices.items()}
    names = {name: f"{name} · rank {facts.rank}" for name in shared}
    for name in _NAMED:
        spans = schema.changed(spans, name, lambda column: _renamed(column, names))
    if facts.host:
        spans = schema.with_column(spans, "host", arrow.constant(facts.host, len(spans)))
    own_facts = replace(
        metadata,
        devices={
            keys[key]: gpu if gpu.index is None else replace(gpu, index=devices[gpu.index])
            for key, gpu in metadata.devices.items()
        },
        partitions={
            names.get(name, name): replace(
                partition,
                shares_with=tuple(names.get(other, other) for other in partition.shares_with),
                process=processes.get(partition.process or 0, partition.process),
                device_key=keys.get(homes.get(name) or sole or "", partition.device_key),
                context=_moved(partition.context, offsets["context"]),
                parent_context=_moved(partition.parent_context, offsets["context"]),
            )
            for name, partition in metadata.partitions.items()
        },
        streams={
            str(int(key) + offsets["stream"]): replace(
                stream,
                device=keys.get(stream.device or "", stream.device),
                partition=names.get(stream.partition or "", stream.partition),
            )
            for key, stream in metadata.streams.items()
        },
        gpu_states=tuple(
            replace(state, device=keys.get(state.device, state.device))
            for state in metadata.gpu_states
        ),
        process_names=_keyed(metadata.process_names, processes),
        thread_names=_keyed(metadata.thread_names, threads),
        clocks={_clock(key, keys): clock for key, clock in metadata.clocks.items()},
        hazards=_moved_hazards(metadata.hazards, offsets["id"]),
    )
    device = keys.get(facts.device or "", facts.device)
    facts = replace(facts, process=processes[process], device=device, clock=metadata.clock)
    residuals = [
        float(clock.residual_ns or 0)
        for name, clock in metadata.clocks.items()
        if not name.startswith("globaltimer")  # of thread blocks, which lie inside their kernels
    ]
    slack = int(np.ceil(max(residuals, default=0.0)))
    return Rank(Trace(spans, edges, own_facts), facts, slack)


def _renumbered(column: pa.ChunkedArray, numbers: Mapping[int, int]) -> pa.ChunkedArray:
    if all(number == ours for number, ours in numbers.items()):
        return column
    codes = pc.index_in(column, pa.array([*numbers], column.type))
    return pa.array([*numbers.values()], column.type).take(codes.combine_chunks())


def _renamed(column: pa.ChunkedArray, names: Mapping[str, str]) -> pa.Array:
    whole = schema.one_dictionary(column).combine_chunks()
    texts = [names.get(text, text) for text in whole.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(whole.indices, pa.array(texts, pa.string()))


def _keyed(names: Mapping[str, str], numbers: Mapping[int, int]) -> dict[str, str]:
    """Return names by their numbers here."""
    moved = {key: numbers.get(int(key), key) if key.isdecimal() else key for key in names}
    return {str(moved[key]): name for key, name in names.items()}


def _moved(number: int | None, by: int) -> int | None:
    return None if number is None else number + by


def _key(key: str, facts: DeviceFacts, devices: Mapping[int, int]) -> str:
    """Return the key of a device whose index may have changed."""
    ours = devices.get(facts.index, facts.index) if facts.index is not None else None
    return key if ours == facts.index else f"{re.sub(r':[0-9]+$', '', key)}:{ours}"


def _clock(name: str, keys: Mapping[str, str]) -> str:
    for key, ours in keys.items():
        if name in (key, f"globaltimer {key}"):
            return name.replace(key, ours)
    return name


def _moved_hazards(hazards: HazardFacts | None, by: int) -> HazardFacts | None:
    if hazards is None:
        return None
    moved = [
        replace(hazard, first=_moved(hazard.first, by), second=_moved(hazard.second, by))
        for hazard in hazards.found
    ]
    return replace(hazards, found=tuple(moved))
