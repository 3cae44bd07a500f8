"""What a workload reaches alone: the reference of gain and shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope._types import Ints
from gpuscope.trace.metadata import SoloFacts
from gpuscope.trace.model import Trace


def solo_statistics(
    in_place: Sequence[Trace], whole_gpu: Sequence[Trace], *, paced: bool
) -> SoloFacts | None:
    """Return what one workload reached alone; ``None`` if no kernel of it ended.

    Parameters
    ----------
    in_place
        Recordings of it on its own stream and partition.
    whole_gpu
        Recordings of it on the unpartitioned GPU.
    paced
        Whether its calls arrive at given times: their rate says nothing about the GPU.
    """
    kernels, whole_kernels = _ended_kernels(in_place), _ended_kernels(whole_gpu)
    durations, whole_durations = _durations(kernels), _durations(whole_kernels)
    if not len(durations):
        return None
    names = {name for trace in kernels for name in trace.texts("name")}
    # A workload that launches different kernels has no typical one.
    typical = np.median(durations) if len(names) == 1 else np.mean(durations)
    return SoloFacts(
        kernel_ns=float(typical),
        n=len(durations),
        whole_gpu_kernel_ns=float(np.median(whole_durations)) if len(whole_durations) else None,
        whole_gpu_tflop_per_s=None if paced else _tflop_per_s(whole_kernels),
    )


def _ended_kernels(traces: Sequence[Trace]) -> list[Trace]:
    """Keep kernels; leave out those that still ran when the recording was stopped."""
    kept = []
    for trace in traces:
        kernels = trace.where(kind="kernel").spans
        ended = kernels.filter(kernels.column("end_ns").is_valid())
        kept.append(Trace(ended, trace.edges, trace.metadata))
    return kept


def _durations(kernels: Sequence[Trace]) -> Ints:
    durations = [trace.array("end_ns") - trace.array("start_ns") for trace in kernels]
    return np.concatenate([np.zeros(0, np.int64), *durations])


def _tflop_per_s(kernels: Sequence[Trace]) -> float | None:
    """Operations over first start to last end, summed over traces."""
    flops = span_ns = 0.0
    for trace in kernels:
        if len(trace):
            flops += float(trace.array("flop_count", fill=0).sum())
            span_ns += float(trace.array("end_ns").max() - trace.array("start_ns").min())
    return flops / span_ns / 1e3 if flops and span_ns else None
