"""Confinement: whether work stayed on the SMs it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscope._checks import door
from gpuscope.analysis import escapes
from gpuscope.analysis.escapes import Escape, GivenWork, Judgement
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.result import Result, Row, about, named, sentences
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, is_open, rows_of
from gpuscope.trace.model import Trace

EVIDENCE = ("resident", "allocated", "simulated")
"""What a verdict rests on, the strongest first."""
_NAMED = 3


@dataclass(frozen=True)
class Evidence:
    """The work of one partition that was judged by one kind of evidence.

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
class PartitionConfinement:
    """Where the work given to one partition ran.

    Attributes
    ----------
    fraction
        Time of the work inside the partition / its total time; ``None`` without work.
    evidence
        One entry per kind of evidence, the strongest first; empty without work.
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
        Limitations of the fraction.
    strays
        Finished kernels given to it that ran outside, wholly or in part.
    unfinished
        Kernels given to it whose end is not known: these are not judged.
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
    strays: int = 0
    unfinished: int = 0

    @property
    def observations(self) -> int:
        """Kernels and blocks that were judged."""
        return sum(part.observations for part in self.evidence)

    @property
    def kernels(self) -> int:
        """Finished kernels given to it."""
        return sum(part.kernels for part in self.evidence)

    @property
    def time_ns(self) -> float:
        """Their durations, summed."""
        return sum(part.time_ns for part in self.evidence)

    @property
    def escaped_ns(self) -> float:
        """The part of that time outside the partition."""
        return sum(part.escaped_ns for part in self.evidence)

    @property
    def weakest(self) -> str | None:
        """The weakest evidence that the fraction rests on."""
        kinds = [part.kind for part in self.evidence]
        return max(kinds, key=EVIDENCE.index) if kinds else None


@dataclass(frozen=True)
class ConfinementResult(Result):
    """Confinement by partition.

    Attributes
    ----------
    partitions
        The partitions that the trace describes, in its order, then others that were given work.
    notes
        Notes on the whole trace.
    """

    partitions: tuple[PartitionConfinement, ...]
    notes: tuple[str, ...]
    weight = "escaped (ms)"

    def __getitem__(self, name: str) -> PartitionConfinement:
        return named(self.partitions, name, "partition", "partition")

    def _rows(self) -> list[Row]:
        """One row per partition."""
        return [
            {
                "partition": partition.partition,
                "confinement": partition.fraction,
                "evidence": " + ".join(
                    f"{part.kind} ({part.observations:,} {part.judged_by}: {part.fraction:.4g})"
                    for part in partition.evidence
                )
                or "no work given to it ended" * bool(partition.unfinished)
                or "no work was given to it",
                "observations": partition.observations,
                "kernels": partition.kernels,
                "time (ms)": partition.time_ns / 1e6,
                "escaped (ms)": partition.escaped_ns / 1e6,
                "escaping kernels": _listed(partition.escapes),
                "escaping SM ids": ", ".join(map(str, partition.escaping_sm_ids)) or None,
                "notes": "; ".join(partition.notes) or None,
            }
            for partition in self.partitions
        ]

    @property
    def definition(self) -> str:
        """What confinement is, and the notes."""
        evidence = {part.kind for partition in self.partitions for part in partition.evidence}
        return sentences(
            "confinement: time inside the partition / all time of the kernels that were launched "
            "while its stream was selected, whatever ran them; resident: by the SM of every "
            "thread block; allocated: by the kernel's green context",
            *self.notes,
            "Simulated: the simulated GPU confines by construction"
            if "simulated" in evidence
            else "",
        )


def _listed(escapes: tuple[Escape, ...]) -> str | None:
    words = [escape.told for escape in escapes[:_NAMED]]
    if len(escapes) > _NAMED:
        words.append(f"and {len(escapes) - _NAMED} more")
    return "; ".join(words) or None


@door(trace=Trace, intended=(Mapping, None))
def confinement(
    trace: Trace, *, intended: Mapping[str, str | int] | Mapping[int, str | int] | None = None
) -> ConfinementResult:
    """Compute the share of each partition's work that ran inside it, and name what escaped.

    The work given to a partition is every kernel launched while a guard, an explicit stream or an
    experiment's entry selected one of its streams (``intended_partition``), whichever stream ran
    it. Confinement is the time of that work inside the partition / its total time. Kernels with
    block rows are judged by the SMs of their blocks, weighted by the blocks' durations, if the
    partition's SM ids are known; other kernels are judged by the green context or partition that
    ran them. A span shorter than 1 ns counts as 1 ns, so that every escape has weight.

    Parameters
    ----------
    intended
        For a trace without intended partitions. Name of a range → partition name or green context
        id, for the kernels that the range's thread launched in ranges of that name (the innermost
        range counts); or stream id → the same, for the kernels of that stream. For kernels that
        it does not cover, the trace's own intended partition holds.

    Raises
    ------
    MissingEvidence
        No finished kernel was given to a partition, ``intended`` applies to none, or it is
        unknown where the kernels that it applies to ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> decode = gs.analysis.confinement(recording.trace)["decode"]
    >>> decode.fraction < 1, [one.kernel for one in decode.escapes]
    (True, ['norm'])
    >>> gs.analysis.confinement(trace, intended={"decode step": 3})  # doctest: +SKIP
    """
    rows = rows_of(trace, "kernel")
    work = GivenWork(trace, rows[~is_open(trace)[rows]])
    notes = escapes.give(trace, work, intended or {})
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
    if whole_graphs := len(rows_of(trace, "graph")):
        notes.append(f"{whole_graphs:,} launches of graphs recorded as a whole are not judged")
    judgement = escapes.judge(trace, work, notes)
    given = (work.names[index] for index in np.unique(work.target) if index >= 0)
    groups = Groups(work.target + 1, ["", *work.names])
    owners = escapes.partitions_by_sm(trace)
    position = {name: index for index, name in enumerate(trace.metadata.partitions)}
    intended_code, homes = codes(trace.spans.column("intended_partition"))
    open_rows = rows[is_open(trace)[rows]]
    open_in = Counter(homes[code] for code in intended_code[open_rows].tolist())
    partitions = [
        replace(
            _partition(trace, name, work, judgement, groups, owners, position),
            unfinished=open_in[name],
        )
        for name in dict.fromkeys([*trace.metadata.partitions, *given])
    ]
    return ConfinementResult(tuple(partitions), tuple(notes), **about(trace))


def _partition(
    trace: Trace,
    name: str,
    work: GivenWork,
    judgement: Judgement,
    groups: Groups[str],
    owners: Mapping[int, Sequence[str]],
    position: Mapping[str, int],
) -> PartitionConfinement:
    """Sum up one partition.

    Parameters
    ----------
    groups
        Kernels by target; the first group was given to none.
    owners, position
        SM → its partitions, and partition → its place among those that the trace describes.
    """
    facts = trace.metadata.partition(name)
    sms = set(facts.sm_ids)
    index = work.place.get(name, -1)
    given = groups.rows(index + 1) if index >= 0 else np.zeros(0, np.int64)
    evidence = []
    for by_blocks in (True, False):
        judged = given[(judgement.blocks[given] > 0) == by_blocks]
        kernels = len(judged)
        if kernels:
            evidence.append(
                Evidence(
                    kind=escapes.evidence_kind(trace, by_blocks=by_blocks),
                    judged_by="blocks" if by_blocks else "kernels",
                    observations=int(judgement.blocks[judged].sum()) if by_blocks else kernels,
                    kernels=kernels,
                    time_ns=float(judgement.time_ns[judged].sum()),
                    escaped_ns=float(judgement.escaped_ns[judged].sum()),
                )
            )
    shares = dict.fromkeys(facts.shares_with)
    sharers = {
        other
        for sm_id in sms
        for other in owners[sm_id]
        if other != name and trace.metadata.partition(other).device_key == facts.device_key
    }
    shares.update(dict.fromkeys(sorted(sharers, key=position.__getitem__)))
    notes = []
    if shares:
        notes.append(
            f"shares SMs with {' and '.join(shares)}: confined to shared SMs does not mean alone "
            "on them"
        )
    if evidence and not sms:
        notes.append("its SM ids were not seen: judged by what ran each kernel alone")
    seen = given[judgement.blocks[given] > 0]
    lucky = int(np.count_nonzero(~judgement.at_home[seen] & (judgement.escaped_ns[seen] == 0)))
    if lucky:
        notes.append(
            f"{lucky:,} kernels that it did not run count as inside: all their "
            "blocks were seen on its SMs"
        )
    total_ns = sum(piece.time_ns for piece in evidence)
    escaped_ns = sum(piece.escaped_ns for piece in evidence)
    return PartitionConfinement(
        partition=name,
        fraction=(total_ns - escaped_ns) / total_ns if evidence else None,
        evidence=tuple(evidence),
        escapes=tuple(sorted(judgement.escapes.get(index, ()), key=lambda escape: -escape.time_ns)),
        escaping_sm_ids=tuple(sorted(judgement.sm_ids.get(index, ()))),
        sm_count=facts.sm_count or len(sms) or None,
        sm_ids_known=bool(sms),
        shares_with=tuple(shares),
        notes=tuple(notes),
        strays=int(np.count_nonzero(judgement.escaped_ns[given] > 0)),
    )
