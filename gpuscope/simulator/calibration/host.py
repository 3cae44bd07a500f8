"""Measuring what host calls cost, what stands between kernels, and how fast memory is copied."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._types import Array, Floats, Ints
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import MissingEvidence
from gpuscope.experiments.execution import run
from gpuscope.experiments.profiling import profile
from gpuscope.simulator.calibration.design import sm_counts
from gpuscope.simulator.engine.jitter import Speeds
from gpuscope.simulator.engine.ops import FULL
from gpuscope.simulator.models.assumed import IDLE_POWER
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.workloads.gemm import Gemm
from gpuscope.workloads.product import mm_out
from gpuscope.workloads.spin import Spin

Source = Literal["auto", "cupti"]
_Launches: TypeAlias = tuple[Floats, Ints, Ints]
"""µs since the last one of its kind, ns until its kernel was queued, and until its end was seen."""

_BATCHES, _CALLS = 7, 100
_WAITS, _HELD_NS = 40, 200_000
_QUEUED, _HOLD_NS = 24, 5_000_000
_STREAMS = 8
_COPIES = 5
_TRANSFERS = 11
_TRANSFER_BYTES = (4, *(1 << power for power in range(10, 29)))
_GEMM = {"kind": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "float16"}
_COPY = {"kind": "copy", "nbytes": 4096}
_RARE = {"kind": "spin", "duration_us": 5000, "max_queued": 3}
_AT_ONCE = 200, {**_GEMM, "max_queued": 8}
_LATER, _COPIED = (500, _RARE), (300, _RARE)
"""Launches of a small GEMM, and of a small copy, and the load beside them."""
_RATE_HZ = 2000
_SINCE_US = (15, 30, 60, 150, 400, 1000)
"""Between these, times since the launch before are taken together; below the first is at once."""
_FEW = 30
"""Fewer launches of a sample have no quantiles of their own."""
_PER_MILLE = (0, 10, 50, *range(100, 1000, 100), 950, 980, 990, 995, 998, 1000)
_SHARES = tuple(share / 1000 for share in _PER_MILLE)
_HEATING, _HEATING_NS = 4096, 400_000_000
_COOLING_NS, _COOL_NS, _HOT_NS = 300_000_000, 20_000_000, 100_000_000
_EMPTY = 'extern "C" __global__ void empty_kernel() {}'


def call_costs(device: Device) -> dict[str, int]:
    """Return what calls cost on the host, in ns, as a program pays that makes them here."""
    kernel = device.compile(
        _EMPTY, "empty_kernel", model=KernelModel(lambda *_: KernelCost(1, 1000))
    )
    a, b = (device.random((64, 64), "float16", seed=seed) for seed in (0, 1))
    out = device.empty((64, 64), "float16")
    event = device.create_event()
    with device.create_stream(name="calls") as stream:
        calls: dict[str, Callable[[], object]] = {
            "launch_call_ns": lambda: stream.launch(kernel, grid=1, block=32),
            "gemm_call_ns": lambda: mm_out(out, a, b, stream=stream),
            "event_record_call_ns": lambda: stream.record(event),
            "stream_wait_call_ns": lambda: stream.wait(event),
            "query_call_ns": lambda: event.is_done,
        }
        return {name: _cost_ns(device, stream, call) for name, call in calls.items()}


def _cost_ns(device: Device, stream: Stream, call: Callable[[], object]) -> int:
    """Median cost of a call: batches are short enough for the launch queue."""
    costs = []
    for _ in range(1 + _BATCHES):  # the first loads and compiles what is needed
        start_ns = device.now_ns()
        for _ in range(_CALLS):
            call()
        costs.append((device.now_ns() - start_ns) / _CALLS)
        stream.synchronize()
    return max(1, round(statistics.median(costs[1:])))


def launches(device: Device) -> tuple[_Launches, _Launches, _Launches]:
    """Launch small kernels as an experiment does, and wait for each.

    First GEMMs while the loop launches others as fast as it can, then GEMMs at random moments while
    it has little to do, then copies. A host is slower for seconds: sample it now and then.
    """
    return (
        _launches(device, _GEMM, *_AT_ONCE),
        _launches(device, _GEMM, *_LATER),
        _launches(device, _COPY, *_COPIED),
    )


def experiment_costs(
    samples: Sequence[tuple[_Launches, _Launches, _Launches]], calls: Mapping[str, int]
) -> tuple[dict[str, int], Speeds]:
    """Return what launches cost in an experiment, in ns, and how that varies.

    The kernels are over before their launch has returned; so the time until the loop sees them is
    the host's alone.

    Parameters
    ----------
    samples
        What :func:`launches` saw.
    calls
        What :func:`call_costs` found.

    Returns
    -------
    dict
        Medians of launches that follow each other at once.
    Speeds
        How much longer they take later; empty where launches do not vary.
    """
    _, later, copied = (
        [np.concatenate(parts) for parts in zip(*some, strict=True)]
        for some in zip(*samples, strict=True)
    )
    gemms = [[np.concatenate(pair) for pair in zip(*some[:2], strict=True)] for some in samples]
    times: list[tuple[float, Floats]] = []
    for low_us, high_us in itertools.pairwise((0, *_SINCE_US, math.inf)):
        members = [(low_us <= since_us) & (since_us < high_us) for since_us, *_ in gemms]
        # Of several samples the median: one falls into seconds in which the host is slow.
        quantiles = [
            np.quantile(before_ns[some], _SHARES)
            for (_, before_ns, _), some in zip(gemms, members, strict=True)
            if np.sum(some) >= _FEW
        ]
        if quantiles:
            late_us = [since_us[some] for (since_us, *_), some in zip(gemms, members, strict=True)]
            times.append((_middle(np.concatenate(late_us)), np.median(quantiles, axis=0)))
    costs = {"gemm_call_ns": max(1, round(float(np.interp(0.5, _SHARES, times[0][1]))))}
    slower = _middle(copied[1]) / _middle(later[1])  # both of a host with little to do
    costs["launch_call_ns"] = max(1, round(slower * costs["gemm_call_ns"]))
    for name, (_, before, whole) in (("gemm", later), ("launch", copied)):
        call_ns = costs[f"{name}_call_ns"]  # nothing else is launched until it is seen
        other_calls_ns = call_ns + calls["event_record_call_ns"] + calls["query_call_ns"]
        costs[f"{name}_return_ns"] = max(
            0, round(_middle(whole / before) * call_ns) - other_calls_ns
        )
    speeds: list[tuple[float, list[tuple[float, float]]]] = []
    for since_us, took_ns in [(0.0, times[0][1]), *times]:
        ratios = np.round(took_ns / costs["gemm_call_ns"], 3).tolist()
        speeds.append((round(since_us, 1), [*zip(_SHARES, ratios, strict=True)]))
    varies = any(ratio != 1 for _, quantiles in speeds for _, ratio in quantiles)
    return costs, speeds if varies else []


def _launches(
    device: Device, paced: Mapping[str, object], count: int, load: Mapping[str, object]
) -> _Launches:
    pace = {"repeats": count, "max_queued": 1, "arrival": "poisson", "rate_hz": _RATE_HZ}
    experiment = {
        "name": "calibration",
        "alone_repeats": 0,
        "streams": {"a": {}, "b": {}},
        "workloads": {
            "paced": {**paced, "stream": "a", **pace},
            "load": {**load, "stream": "b", "background": True},
        },
    }
    trace = complete(run(experiment, device)["default"])
    alike = ("paced", "load") if load["kind"] == paced["kind"] else ("paced",)
    handles = _in_order(trace.where(kind="handle", category=alike))
    queued_ns = np.sort(trace.where(kind="kernel", category=alike).array("queued_ns"))
    start_ns, seen_ns = (handles.array(name)[1:] for name in ("start_ns", "end_ns"))
    return (start_ns - queued_ns[:-1]) / 1e3, queued_ns[1:] - start_ns, seen_ns - start_ns


def power(device: Device, source: Source, dtypes: Iterable[str]) -> dict[str, float]:
    """Return what a large GEMM draws of what the GPU may draw for long, beside an idle GPU.

    By how much slower it goes after some time than at first: 1 together with an idle GPU's draw
    if it does not.
    """
    drawn: dict[str, float] = {}
    for dtype in dtypes:
        gemm = Gemm(device, m=_HEATING, n=_HEATING, k=_HEATING, dtype=dtype, max_in_flight=16)
        with gemm, device.create_stream(name="power") as stream:
            operands = gemm.operands()
            gemm.execute(*operands, stream=stream)
            stream.synchronize()
            device.backend.wait_until_ns(device.now_ns() + _COOLING_NS)
            with profile(device, source=source) as recording:
                until_ns = device.now_ns() + _HEATING_NS
                while device.now_ns() < until_ns:
                    for _ in range(16):
                        gemm.execute(*operands, stream=stream)
                    stream.synchronize()
        kernels = _in_order(complete(recording.trace).where(kind="kernel"))
        start_ns = kernels.array("start_ns")
        since_ns, took_ns = start_ns - start_ns[0], kernels.array("end_ns") - start_ns
        first = np.median(took_ns[since_ns < _COOL_NS])
        last = np.median(took_ns[since_ns > since_ns[-1] - _HOT_NS])
        drawn[dtype] = round(max(1.0, float(last / first)) - IDLE_POWER / FULL, 3)
    return drawn


def partition_costs(device: Device) -> dict[str, int]:
    """Return what a partition and a stream in one cost, in ns; of a partition, where it can be."""
    costs: dict[str, int] = {}
    partition_ns, streams = [], []
    if device.capabilities.partitions:
        for count in sm_counts(device.backend.layout)[1:]:
            start_ns = device.now_ns()
            parts = device.carve([count])
            partition_ns.append(device.now_ns() - start_ns)
            with parts:
                streams += [_stream_ns(device, parts[0]) for _ in range(_STREAMS)]
        costs["create_partition_call_ns"] = max(1, round(statistics.median(partition_ns)))
    else:
        streams = [_stream_ns(device, device) for _ in range(_STREAMS)]
    return costs | {"create_stream_call_ns": max(1, round(statistics.median(streams)))}


def _stream_ns(device: Device, owner: Device | Partition) -> int:
    start_ns = device.now_ns()
    stream = owner.create_stream()
    took_ns = device.now_ns() - start_ns
    stream.close()
    return took_ns


def overheads(device: Device, source: Source) -> tuple[dict[str, int], TraceMetadata]:
    """Return the times from a launch to its kernel, between kernels, and to the host's return.

    From kernels that were recorded: medians, in ns; with what the recording says of itself.
    """
    spin = Spin(device, duration_ns=_HELD_NS, name="held")
    hold = Spin(device, duration_ns=_HOLD_NS, name="hold")
    gemm = Gemm(device, m=1024, n=1024, k=1024, name="queued", sm_count_target=None)
    with spin, hold, gemm, device.create_stream(name="overheads") as stream:
        operands = gemm.operands()
        for handle in (spin, gemm, hold):
            handle.execute(stream=stream)
        stream.synchronize()
        returned_ns = []
        with profile(device, source=source) as recording:
            for _ in range(_WAITS):
                spin.execute(stream=stream)
                stream.device.backend.sync_stream(stream.raw)  # nobody watches: it is timed
                returned_ns.append(device.now_ns())
            hold.execute(stream=stream)
            for _ in range(_QUEUED):
                gemm.execute(*operands, stream=stream)
            stream.synchronize()
    trace = complete(recording.trace).where(kind="kernel")
    waited, queued = (_in_order(trace.where(category=name)) for name in ("held", "queued"))
    start_ns, end_ns = (queued.array(name) for name in ("start_ns", "end_ns"))
    costs = {
        "launch_latency_ns": _typical(waited.array("start_ns") - waited.array("queued_ns")),
        "synchronize_return_ns": _typical(np.array(returned_ns) - waited.array("end_ns")),
        "kernel_gap_ns": _typical(start_ns[1:] - end_ns[:-1]),
    }
    return costs, trace.metadata


def complete(trace: Trace) -> Trace:
    """Return what was recorded.

    Raises
    ------
    MissingEvidence
        Rows are missing: the times of the others would pass for those of all.
    """
    if trace.metadata.incomplete:
        raise MissingEvidence(
            "measure again: a recording that the profile would rest on is "
            f"{trace.metadata.incomplete}. Let nothing else run on the GPU or record meanwhile"
        )
    return trace


def _in_order(trace: Trace) -> Trace:
    order = np.argsort(trace.array("start_ns"), kind="stable")
    return Trace(trace.spans.take(order), trace.edges, trace.metadata)


def _typical(times_ns: Array) -> int:
    """Median; at least 1, where the clocks of host and GPU are apart by more than there is."""
    return max(1, round(_middle(times_ns)))


def _middle(values: Array) -> float:
    return float(np.median(values))


def transfers(device: Device, source: Source) -> dict[str, list[tuple[int, float]]]:
    """Return the time of copies and memsets in µs on the GPU, by way and bytes.

    The ways are the fields of :class:`~gpuscope.simulator.profiles.schema.Transfers`.
    """
    sizes = [nbytes for nbytes in _TRANSFER_BYTES if 64 * nbytes <= device.info.memory_bytes]
    times: dict[str, list[tuple[int, float]]] = {}
    with device.create_stream(name="transfers") as stream:
        for nbytes in sizes:
            near, far = device.empty(nbytes, "uint8"), device.empty(nbytes, "uint8")
            pinned, pageable = device.empty_pinned(nbytes, "uint8"), np.ones(nbytes, np.uint8)
            pinned[...] = 1
            copies = {
                "pinned_host_to_device": (near, pinned),
                "pinned_device_to_host": (pinned, near),
                "pageable_host_to_device": (near, pageable),
                "pageable_device_to_host": (pageable, near),
                "device_to_device": (far, near),
            }
            nothing = device.empty((nbytes // 4, 0)), device.empty((0, 1))
            cleared = device.empty((nbytes // 4, 1))
            for pair in copies.values():
                stream.copy(*pair)  # the first pins, maps or loads what it needs
            stream.synchronize()
            with profile(device, source=source) as recording:
                for pair in copies.values():
                    for _ in range(_TRANSFERS):
                        stream.copy(*pair)
                        stream.synchronize()
                for _ in range(_TRANSFERS):
                    mm_out(cleared, *nothing, stream=stream)
                    stream.synchronize()
            copied = durations_us(complete(recording.trace).where(kind="memcpy"))
            cleared_by = "kernel" if device.is_simulated else "memset"
            set_us = durations_us(complete(recording.trace).where(kind=cleared_by))
            medians = np.median(copied.reshape(len(copies), _TRANSFERS), axis=1).tolist()
            for way, us in zip((*copies, "memset"), (*medians, np.median(set_us)), strict=True):
                times.setdefault(way, []).append((nbytes, max(0.001, round(float(us), 3))))
    return times


def durations_us(trace: Trace) -> Floats:
    """Return how long its rows took, in the order in which they started."""
    ordered = _in_order(trace)
    return np.asarray((ordered.array("end_ns") - ordered.array("start_ns")) / 1e3)


def copy_rate(device: Device, source: Source) -> dict[str, int]:
    """Return the rate of a copy inside device memory in bytes/µs, read and write counted."""
    count = min(128 << 20, device.info.memory_bytes // 64)  # float32: 512 MiB, or a sixteenth
    first, second = device.empty(count), device.empty(count)
    with device.create_stream(name="copies") as stream:
        with profile(device, source=source) as recording:
            for _ in range(_COPIES):
                stream.copy(second, first)
                stream.synchronize()
        us = float(np.median(durations_us(complete(recording.trace).where(kind="memcpy"))))
    return {"device_copy_bytes_per_us": max(1, round(2 * first.nbytes / us))}
