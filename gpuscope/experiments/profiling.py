"""``profile``: record any code."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Literal

from gpuscope import _live
from gpuscope._checks import door, length_ns
from gpuscope._live import LiveView, ViewMaker
from gpuscope._optional import needed_for
from gpuscope.device.device import Device
from gpuscope.device.select import holders, open_devices
from gpuscope.record.counters import EVERY_NS
from gpuscope.record.recorder import Recording
from gpuscope.record.source import MEMORY_LIMIT, Options


@door(
    "device",
    "source",
    "detail",
    "launch_ids",
    "wait",
    "live",
    "keep",
    "hazards",
    "stacks",
    "graphs",
    "sample",
    "counters",
)
@contextlib.contextmanager
def profile(
    device: Device | None = None,
    *,
    source: Literal["auto", "cupti", "events"] = "auto",
    detail: Literal["launches", "full"] = "launches",
    launch_ids: bool | Literal["runtime"] = True,
    memory_limit: int = MEMORY_LIMIT,
    wait: bool = True,
    live: bool | ViewMaker = False,
    keep: str | float | None = None,
    hazards: bool = False,
    stacks: bool = True,
    graphs: Literal["nodes", "launch", "sampled"] = "nodes",
    sample: int = 0,
    counters: bool | str | float = False,
) -> Iterator[Recording]:
    """Record everything that happens on a device inside the ``with`` block.

    On a GPU, CUPTI records the work of every library in the process. Without CUPTI, events around
    each launch time the work that gpuscope launches.

    Parameters
    ----------
    device
        The device to record. Default: all open devices, which must share one clock.
    source
        ``"cupti"``, ``"events"``, or ``"auto"``: CUPTI if it is installed, else events.
    detail
        ``"launches"``: only API calls that launch, copy or set. ``"full"``: all API calls, and
        synchronisations; on a simulated GPU also when each SM was held by which kernel's thread
        blocks, a row for each, as ``figures.sm_map`` and ``figures.timeline(sm=True)`` draw.
    launch_ids
        Whether API calls are recorded. Without them a launch costs less, but work cannot be
        linked to its call and its intended partition. ``"runtime"`` records only calls of the
        CUDA runtime API, which PyTorch and cuBLAS use; CuPy, Triton, cuda.core and gpuscope's own
        kernels use the driver API.
    memory_limit
        Bytes of buffers that CUPTI may fill between two readings. Records beyond it are dropped
        and counted.
    wait
        Whether to wait at the end for the work launched. Otherwise work that is still running is
        recorded without an end.
    live
        True shows a :class:`~gpuscope.Timeline` that grows while the block runs and stays
        afterwards. A function that returns another view shows that view instead. Reading the
        records meanwhile competes with the recorded host code.
    keep
        How long rows are kept, in seconds or as a text such as ``"60 s"`` or ``"10 min"``: a
        recording of any length takes bounded memory. The trace then holds what ended in that
        time before the end of the block, and what has not ended. ``trace.metadata.kept`` and a
        note say since when, and how much was left out; ``complete`` is about what is kept.
        Default: everything.
    hazards
        Whether to look for hazards: work that reads or writes what other work writes, in no order.
        :func:`gpuscope.analysis.hazards` says what was found.
    stacks
        Whether each call is told with the lines of Python that made it, outside installed
        packages; see :func:`gpuscope.analysis.launch_sites`.
    graphs
        ``"nodes"``: each node of a CUDA graph is recorded, which slows graphs of short kernels.
        ``"launch"``: each launch of a graph is one row of kind ``graph``. ``"sampled"``: the same,
        but of each graph the first launch in a second has rows of its nodes instead. Graphs that
        were instantiated before the recording are recorded by node.
    sample
        How often a second the stacks of all Python threads are sampled, such as 200: what the host
        did while the GPU waited, as rows of kind ``stack``. They are read without Python's lock.
        Where that is not possible, as in Python 3.14, a note says why. 0: not at all.
    counters
        True samples hardware counters of the GPU every 100 µs: busy SMs, tensor pipes, bytes read
        and written, as rows of kind ``counter``. A length of time, in seconds or as a text such as
        ``"20 us"``, is that of a sample: 10 µs to 10 ms, those below 50 µs of busy SMs alone. A
        process apart does it, which takes half a second to begin.
        :func:`gpuscope.analysis.partition_use` says what each partition used. Where there are no
        counters, a note says why.

    Yields
    ------
    Recording
        It has ``batches(since)`` while it runs and ``trace`` afterwards, also after an exception.

    Raises
    ------
    InvalidArgument
        ``keep`` or ``counters`` is no length of time.
    GpuscopeError
        Devices with different clocks are open and no device was given.
    RecorderBusy
        Another client of CUPTI, such as PyTorch's profiler or Nsight Systems, records in
        this process.
    MissingDependency, CapabilityError
        CUPTI was requested but is missing, or a package that the live view needs is missing.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> recording.trace.kind_counts()["kernel"]
    1
    """
    keep_ns = length_ns("keep", keep) if keep is not None else None
    devices = (device,) if device is not None else _one_clock()
    counters_ns = EVERY_NS if counters is True else 0
    if not isinstance(counters, bool):
        counters_ns = length_ns("counters", counters)
    options = Options(
        *(source, detail, launch_ids, memory_limit, keep_ns, hazards, stacks, graphs, sample),
        counters_ns=counters_ns,
    )
    recording = Recording(devices, options)
    view = _open_view(live)
    watching = started = False
    try:
        recording.start(threads=True)
        started = True
        if view is not None:
            watching = True
            view.watch(recording)
        yield recording
    finally:
        try:
            _stop(recording, wait=wait and started)
        finally:
            try:
                _stop(recording, wait=False)  # what is left where that was interrupted
            finally:
                if view is not None and watching:
                    view.finish()


def _stop(recording: Recording, *, wait: bool) -> None:
    """Stop what has begun; at the interpreter's end it goes with the process."""
    if recording.has_begun and not sys.is_finalizing():
        recording.stop(wait=wait)


def _open_view(live: bool | ViewMaker) -> LiveView | None:  # noqa: FBT001 - as profile takes it
    if live is False:
        return None
    with needed_for("profile(live=True)"):
        return _live.usual[0]() if live is True else live()


def _one_clock() -> tuple[Device, ...]:
    devices = open_devices()
    kinds = [device.info.kind for device in devices]
    if len(set(kinds)) > 1 or sum(device.is_simulated for device in devices) > 1:
        del devices  # a device that nobody holds any more must not count
        for let_go in holders:
            let_go()
        gc.collect()
        devices = open_devices()
    return tuple(devices)
