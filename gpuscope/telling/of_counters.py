"""Findings of hardware counters: what was granted and not used, and what partitions share."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analysis.counters_analysis import KernelUse, partition_use
from gpuscope.errors import MissingEvidence
from gpuscope.telling.finding import Finding, Quantity, counts
from gpuscope.telling.of_trace import shown
from gpuscope.trace.model import Trace

_SHARE = 0.05
"""Share of a partition's time in which a kernel has to be for a finding."""
_UNUSED = 0.05
"""Share of the SMs granted that are a finding where they are not used; and how far the mean may be
from that of thread blocks which each have an SM, for a size to be told."""
_NEAR_PEAK = 0.8
"""Share of what the memory moves at most from which on a kernel is bound by it: above it Nsight
Compute's rule *SOLBottleneck* says so, too."""
_IDLE_PIPES = 0.01
_SLOWER, _MORE_MEMORY = 1.1, 2.0
_NAMED = 3


def of_counters(trace: Trace) -> Iterator[Finding]:
    """Find kernels that do not use what they were granted, or wait for memory beside others."""
    try:
        result = partition_use(trace)
    except MissingEvidence:
        return
    ran_ns = {(use.device, use.partition): use.ran_ns for use in result.partitions}
    kernels = [
        kernel
        for kernel in result.kernels
        if kernel.ran_ns >= _SHARE * ran_ns[kernel.device, kernel.partition]
    ]
    for find in (_unused, _memory, _idle_pipes, _beside):
        findings = [finding for kernel in kernels for finding in find(trace, kernel)]
        yield from findings[:_NAMED]


def _subject(kernel: KernelUse) -> dict[str, str]:
    partition = {"partition": kernel.partition} if kernel.partition else {}
    return {"kernel": kernel.workload or kernel.kernel, **partition}


def _unused(trace: Trace, kernel: KernelUse) -> Iterator[Finding]:
    """Find SMs of a partition that a kernel leaves idle, and how many would do."""
    granted = kernel.granted
    if kernel.partition is None or granted is None:
        return
    if granted - kernel.busy < max(1.0, _UNUSED * granted):
        return
    yield Finding(
        "counters.unused",
        "warning",
        _subject(kernel),
        (
            Quantity("used", kernel.busy),
            *([] if kernel.busy_most is None else [Quantity("most", kernel.busy_most)]),
            *counts(sms=granted, **_enough(kernel, granted)),
        ),
        shown(trace, kernel.spans),
    )


def _enough(kernel: KernelUse, granted: int) -> dict[str, int]:
    """Return with how many SMs a kernel takes as many waves; nothing where that is unknown."""
    if kernel.blocks is None or kernel.blocks < 1:
        return {}
    waves = -(-kernel.blocks // granted)
    enough = -(-kernel.blocks // waves)
    is_by_waves = abs(kernel.blocks / waves - kernel.busy) <= _UNUSED * granted
    if enough >= granted or not is_by_waves:
        return {}
    return {"blocks": kernel.blocks, "waves": waves, "enough": enough}


def _memory(trace: Trace, kernel: KernelUse) -> Iterator[Finding]:
    """Find kernels that move nearly all that the GPU's memory moves at most."""
    if kernel.rate is None or not kernel.peak or kernel.rate < _NEAR_PEAK * kernel.peak:
        return
    yield Finding(
        "counters.memory",
        "note",
        _subject(kernel),
        (Quantity("moved", kernel.rate), Quantity("peak", kernel.peak)),
        shown(trace, kernel.spans),
    )


def _idle_pipes(trace: Trace, kernel: KernelUse) -> Iterator[Finding]:
    """Find matrix products that leave the tensor pipes idle."""
    is_product = kernel.kernel.startswith("GEMM")
    if is_product and kernel.tensor is not None and kernel.tensor < _IDLE_PIPES:
        idle = Quantity("pipes", kernel.tensor, "%")
        yield Finding(
            "counters.pipes", "warning", _subject(kernel), (idle,), shown(trace, kernel.spans)
        )


def _beside(trace: Trace, kernel: KernelUse) -> Iterator[Finding]:
    """Find kernels that take longer beside another partition, where that moves more memory."""
    if kernel.alone_ns is None or kernel.beside_ns is None:
        return
    if kernel.rate is None or kernel.beside_rate is None:
        return
    slower = kernel.beside_ns / kernel.alone_ns
    if slower < _SLOWER or kernel.beside_rate < _MORE_MEMORY * kernel.rate:
        return
    yield Finding(
        "counters.beside",
        "warning",
        _subject(kernel),
        (
            Quantity("beside", kernel.beside_ns, "ns"),
            Quantity("alone", kernel.alone_ns, "ns"),
            Quantity("slower", slower),
            Quantity("moved", kernel.beside_rate),
            Quantity("moved_alone", kernel.rate),
            *([Quantity("peak", kernel.peak)] if kernel.peak else []),
        ),
        shown(trace, kernel.spans),
    )
