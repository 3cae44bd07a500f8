"""Idle SMs inside kernels: which had no thread block, and what blocks did outside any scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Bools, Ints
from gpuscope.analysis.intervals import Busy, Groups
from gpuscope.analysis.result import Result, about
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import plain_names


@dataclass(frozen=True)
class KernelSms:
    """What became of the SMs of a kernel, over all its launches whose blocks are known.

    Attributes
    ----------
    partition
        ``None``: the whole GPU.
    sms
        SMs that it may use: those of its partition, or of the device. Where that is unknown, those
        on which any block of it was seen.
    empty
        How many of them had no block in any launch.
    held
        Share of the kernel's time × SMs in which a block was on the SM.
    in_scopes
        Share of it in which any scope was open there; ``None`` where no scope was recorded.
    at_once
        Whether in each launch all blocks were there at once, as those of a persistent kernel are:
        the SM of a block that ends stays empty.
    spans
        Ids of its longest launches.
    """

    kernel: Annotated[str, "kernel"]
    partition: Annotated[str | None, "partition"]
    launches: Annotated[int, "launches"]
    sms: Annotated[int, "SMs"]
    empty: Annotated[int, "SMs without a block"]
    held: Annotated[float, "held by blocks"]
    in_scopes: Annotated[float | None, "in scopes"]
    at_once: Annotated[bool, "all blocks at once"]
    spans: tuple[int, ...] = field(repr=False, default=())


@dataclass(frozen=True)
class IdleSmsResult(Result):
    """What became of the SMs of kernels, those with most idle SM time first."""

    kernels: tuple[KernelSms, ...]
    entries = "kernels"

    @property
    def definition(self) -> str:
        """What the rows mean."""
        return "shares of kernel time × SMs that the kernel may use"


_SHOWN = 4


@door(trace=Trace)
def idle_sms(trace: Trace) -> IdleSmsResult:
    """Sum up, by kernel and partition, which SMs held a thread block, and a block in a scope.

    Raises
    ------
    MissingEvidence
        Of no finished kernel it is known where its blocks ran.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2, 3], "parent": [None, 1, 1], "kind": ["kernel", "block", "block"],
    ...     "name": ["k"] * 3, "sm": [None, 0, 1], "start_ns": [0, 0, 0],
    ...     "end_ns": [100, 100, 50], "source": ["cupti", "proton", "proton"],
    ... })
    >>> (of_k,) = gs.analysis.idle_sms(trace).kernels
    >>> of_k.sms, of_k.held, of_k.at_once
    (2, 0.75, True)
    """
    times = trace.array("start_ns"), trace.array("end_ns", fill=0)
    ids, parent = trace.array("id"), trace.array("parent", fill=-1)
    kernels = rows_of(trace, "kernel")
    kernels = kernels[~is_open(trace)[kernels]]
    blocks = _usable(trace, "block")
    of_block = match(parent[blocks], ids[kernels])
    blocks, of_block = blocks[of_block >= 0], of_block[of_block >= 0]
    if not len(blocks):
        raise MissingEvidence(
            "of no finished kernel is it known where its thread blocks ran: put Proton's trace "
            "inside (trace.put_inside), or run a TracedGemm or a simulated GPU with detail='full'"
        )
    scopes = _usable(trace, "scope")
    of_scope = match(parent[scopes], ids[blocks])
    scopes, of_scope = scopes[of_scope >= 0], of_block[of_scope[of_scope >= 0]]
    name, names = codes(plain_names(trace.spans))
    partition, partitions = codes(trace.spans.column("partition"))
    device, devices = codes(trace.spans.column("device"))
    traced = np.unique(of_block)
    first, group = combined(*(column[kernels[traced]] for column in (name, partition, device)))
    of_kernel = np.full(len(kernels), -1, np.int64)
    of_kernel[traced] = group
    of_group, sm = of_kernel[of_block], trace.array("sm", fill=-1)[blocks].astype(np.int64)
    seen = np.bincount(of_group[combined(of_group, sm)[0]], minlength=len(first))
    held_ns = _held(trace, kernels, blocks, of_block)
    in_scopes_ns = _held(trace, kernels, scopes, of_scope)
    at_once = _at_once(times, blocks, of_block, len(kernels))
    results = []
    for number, row in enumerate(kernels[traced[first]].tolist()):
        launches = traced[group == number]
        home, lasted = partitions[partition[row]], (times[1] - times[0])[kernels[launches]]
        facts = trace.metadata.partition(home)
        granted = facts.sm_count or len(facts.sm_ids)
        if home is None:
            granted = trace.metadata.device(devices[device[row]]).sm_count or 0
        sms = max(granted, int(seen[number]))
        total = max(int(lasted.sum()), 1) * sms
        longest = kernels[launches[np.argsort(-lasted, kind="stable")[:_SHOWN]]]
        result = KernelSms(
            str(names[name[row]]),
            home,
            len(launches),
            sms,
            sms - int(seen[number]),
            float(held_ns[launches].sum() / total),
            float(in_scopes_ns[launches].sum() / total) if len(scopes) else None,
            bool(at_once[launches].all()),
            tuple(ids[longest].tolist()),
        )
        results.append((total - int(held_ns[launches].sum()), result))
    results.sort(key=lambda entry: -entry[0])
    return IdleSmsResult(tuple(result for _, result in results), **about(trace))


def _usable(trace: Trace, kind: str) -> Ints:
    """Return the rows of a kind that ended and whose SM is known."""
    rows = rows_of(trace, kind)
    return rows[(trace.array("sm", fill=-1)[rows] >= 0) & ~is_open(trace)[rows]]


def _held(trace: Trace, kernels: Ints, rows: Ints, of_row: Ints) -> Ints:
    """Kernel → SM time in which any of its rows was there, no longer than the kernel was."""
    held_ns = np.zeros(len(kernels), np.int64)
    if not len(rows):
        return held_ns
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    begin = np.maximum(starts[rows], starts[kernels[of_row]])
    end = np.maximum(np.minimum(ends[rows], ends[kernels[of_row]]), begin)
    first, group = combined(of_row, trace.array("sm", fill=-1)[rows].astype(np.int64))
    np.add.at(held_ns, of_row[first], Busy.of(Groups(group, [*range(len(first))]), begin, end).ns)
    return held_ns


def _at_once(times: tuple[Ints, Ints], blocks: Ints, of_block: Ints, count: int) -> Bools:
    """Kernel → whether its last block began before its first ended."""
    last_start, first_end = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(last_start, of_block, times[0][blocks])
    np.minimum.at(first_end, of_block, times[1][blocks])
    return np.asarray(last_start < first_end, bool)
