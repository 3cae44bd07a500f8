"""Measuring copies and row-wise kernels alone, and kernels beside others that load the memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from gpuscope.device.carve import SmLayout
from gpuscope.device.device import Device
from gpuscope.experiments.execution import run
from gpuscope.experiments.profiling import profile
from gpuscope.simulator.calibration.design import streams_by_count
from gpuscope.simulator.calibration.host import Source, complete, durations_us
from gpuscope.simulator.calibration.memory import Pair
from gpuscope.trace.model import Trace
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.gemm import Gemm
from gpuscope.workloads.handle import Handle
from gpuscope.workloads.softmax import Softmax

_Spec = Mapping[str, Any]
_Size = TypeVar("_Size", int, bool)
_CALLS, _REPEATS = 5, 60
_COPY_MIB = (1, 2, 4, 8, 12, 16, 20, 24, 32, 64, 512)
_BLOCKS_PER_SM, _COLUMNS = (1, 4, 16, 64), (256, 1024, 4096, 8192, 16384)
_ROW_BYTES = 4
_VECTOR_SIDE, _HALF_BYTES = 16384, 2
_SHARES = 0.12, 0.3, 0.67
"""Of the SMs, what the one that is watched gets."""


def _gemm(m: int, n: int, k: int, dtype: str = "float16") -> _Spec:
    return {"kind": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}


def _softmax(rows: int, columns: int) -> _Spec:
    return {"kind": "softmax", "rows": rows, "columns": columns}


def _copy(mib: int) -> _Spec:
    return {"kind": "copy", "nbytes": mib << 20}


WATCHED: tuple[_Spec, ...] = (
    _copy(8),
    _copy(128),
    _softmax(2048, 1024),
    _softmax(32768, 1024),
    _softmax(512, 4096),
    _softmax(8192, 4096),
    _gemm(1, 4096, 4096),
    _gemm(512, 512, 512),
    _gemm(2048, 2048, 2048),
    _gemm(16, 4096, 4096),
    _gemm(1024, 1024, 1024, "float32"),
    _gemm(1024, 1024, 1024, "float64"),
)
"""Workloads, each of which is called and waited for alone, and beside each of the next."""

BESIDE: tuple[_Spec, ...] = (
    _copy(256),
    _copy(16),
    _gemm(4096, 4096, 4096),
    _softmax(16384, 4096),
    _gemm(1, 16384, 16384),
)


def copy_kernels(device: Device, source: Source) -> list[dict[str, float]]:
    """Measure the element-wise copy kernel: ``mb`` read (MiB), ``sms``, ``us`` of each."""
    sizes = [mib for mib in _COPY_MIB if mib << 24 <= device.info.memory_bytes]
    sized = {mib: lambda mib=mib: Copy(device, nbytes=mib << 20) for mib in sizes}
    return [{"mb": mib, "sms": sms, "us": us} for sms, mib, us in _alone(device, source, sized)]


def row_kernels(device: Device, source: Source) -> list[dict[str, float]]:
    """Measure the softmax kernel: ``rows``, ``columns``, ``sm_count``, ``us`` of each."""
    rows: list[dict[str, float]] = []
    for columns in _COLUMNS:
        for blocks in _BLOCKS_PER_SM:
            most = device.info.memory_bytes // (16 * columns * _ROW_BYTES)
            count = min(blocks * device.sm_count, most)
            sized = {count: lambda c=columns, n=count: Softmax(device, rows=n, columns=c)}
            rows += [
                {"rows": number, "columns": columns, "sm_count": sms, "us": us}
                for sms, number, us in _alone(device, source, sized)
            ]
    return rows


def vector_kernels(device: Device, source: Source) -> list[dict[str, float]]:
    """Measure products of a vector and a matrix that the cache does not hold.

    Returns ``sms``, ``nbytes`` and ``us`` of each, and whether the library was ``told`` the SM
    count, for which it takes another kernel. Where it launches several kernels: left out.
    """
    side = min(_VECTOR_SIDE, math.isqrt(device.info.memory_bytes // (16 * _HALF_BYTES)))
    nbytes = _HALF_BYTES * (side * side + 2 * side)
    product = partial(Gemm, device, m=1, n=side, k=side, dtype="float16")
    sized = {False: partial(product, sm_count_target=None), True: product}
    return [
        {"sms": sms, "nbytes": nbytes, "us": us, "told": is_told}
        for sms, is_told, us in _alone(device, source, sized)
    ]


def _alone(
    device: Device, source: Source, sized: Mapping[_Size, Callable[[], Handle]]
) -> Iterator[tuple[int, _Size, float]]:
    """Yield SMs, size and median µs of kernels alone, again and again on the same data."""
    handles = {size: make() for size, make in sized.items()}
    for sms, stream in streams_by_count(device):
        for size, handle in handles.items():
            with profile(device, source=source) as recording:
                for _ in range(1 + _CALLS):
                    handle.execute(stream=stream)
                stream.synchronize()
            took_us = durations_us(complete(recording.trace).where(kind="kernel"))
            if len(took_us) == 1 + _CALLS:
                yield sms, size, float(np.median(took_us[1:]))
    for handle in handles.values():
        handle.close()


def _sizes(layout: SmLayout) -> list[int]:
    """Return the SM counts on which kernels are watched, that leave SMs for another."""
    grantable = [
        count
        for count in layout.grantable()
        if count % layout.quantum_sm_count == 0 and count < layout.sm_count
    ]
    wanted = [share * layout.sm_count for share in _SHARES]
    nearest = (min(grantable, key=lambda count: abs(count - want)) for want in wanted)
    return sorted(set(nearest)) if grantable else []


def pairs(device: Device, progress: Callable[[float], None] = lambda _: None) -> list[Pair]:
    """Measure kernels alone and beside others, on partitions of three sizes."""
    layout = device.backend.layout
    sizes = _sizes(layout)
    measured: list[Pair] = []
    for number, watched in enumerate(WATCHED if sizes else ()):
        alone = _watched(device, watched, None, sizes)
        for other in BESIDE:
            beside = _watched(device, watched, other, sizes)
            measured += [
                Pair(watched, other, sms, layout.sm_count - sms, alone[sms][0], *beside[sms])
                for sms in sizes
                if sms in alone and sms in beside
            ]
        progress((number + 1) / len(WATCHED))
    return measured


def _watched(
    device: Device, watched: _Spec, other: _Spec | None, sizes: list[int]
) -> dict[int, tuple[float, float]]:
    """Return SMs → median µs of a kernel, and from call to call.

    Where the library launches several kernels for a product, their number varies: left out.
    """
    workloads = {"watched": {**watched, "stream": "a", "repeats": _REPEATS, "max_queued": 1}}
    streams = {"a": {"partition": "a"}}
    if other is not None:
        workloads["other"] = {**other, "stream": "b", "background": True, "max_queued": 3}
        streams["b"] = {"partition": "b"}
    rest = {} if other is None else {"b": "rest"}
    experiment = {
        "name": "contention",
        "alone_repeats": 0,
        "streams": streams,
        "workloads": workloads,
        "settings": {str(sms): {"partitions": {"a": sms, **rest}} for sms in sizes},
    }
    traces = run(experiment, device)
    return {
        sms: _figures(complete(traces[str(sms)]))
        for sms in sizes
        if len(traces[str(sms)].where(kind="kernel", category="watched").spans) == _REPEATS
    }


def _figures(trace: Trace) -> tuple[float, float]:
    calls = trace.where(kind="handle", category="watched").array("start_ns")
    took_us = durations_us(trace.where(kind="kernel", category="watched"))
    return statistics.median(took_us), float(np.median(np.diff(np.sort(calls)))) / 1000
