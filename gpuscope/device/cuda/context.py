"""A CUDA device as a context: opened, made current, carved."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from gpuscope._optional import require
from gpuscope.device.api import DeviceInfo
from gpuscope.device.calls import Activity
from gpuscope.device.carve import CarvePlan, PlannedPartition, SmLayout
from gpuscope.device.cuda import driver as versions
from gpuscope.device.cuda.driver import CudaObject
from gpuscope.device.raw import GrantedPartition, Health, RawPartition
from gpuscope.errors import DeviceUnavailable

_SPIN_NS = 200_000


def _load(index: int) -> tuple[int, CudaObject, CudaObject]:
    """Check driver and packages in the order in which their absence is best explained."""
    version = versions.driver_version()
    cupy = versions.import_cupy()
    core = require("cuda.core", package="cuda-core", feature="a CUDA device")
    versions.check_driver(version, int(cupy.cuda.runtime.runtimeGetVersion()))
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({error})") from error
    if index >= count:
        raise DeviceUnavailable(
            f"there is no device cuda:{index}; there are {count}: "
            + ", ".join(f"cuda:{one}" for one in range(count))
        )
    return version, cupy, core


class CudaContext:
    """One CUDA device: its context, its clock, its partitions.

    Parameters
    ----------
    index
        CUDA ordinal.
    """

    def __init__(self, index: int) -> None:
        version, self._cupy, self._core = _load(index)
        from gpuscope.device.cuda import arrays, blas, partition, probe  # noqa: PLC0415

        self._arrays = arrays
        self._probe_type = probe.SmProbe
        self._blas_type = blas.Blas
        self._probe: CudaObject = None
        self.array_type: type = self._cupy.ndarray
        self.home: object = index
        self._index = index
        self._runtime = self._cupy.cuda.runtime
        self._get_device = self._runtime.getDevice
        self._ready = threading.local()
        self._device = self._core.Device(index)
        with self._current():
            pools = bool(self._device.properties.memory_pools_supported)
            self.capabilities = versions.capabilities(version, pools)
            properties = self._runtime.getDeviceProperties(index)
            sm_count = int(properties["multiProcessorCount"])
            self._splitter: CudaObject = None
            self._contexts: CudaObject = None
            if self.capabilities.partitions:
                resource = self._device.resources.sm
                self._splitter = (
                    partition.HeterogeneousSplit(self._core, resource)
                    if self.capabilities.arbitrary_split
                    else partition.ComposedQuanta(self._core, resource)
                )
                self._contexts = partition.GreenContexts(self._core, self._device, self._splitter)
        self.layout: SmLayout = (
            self._splitter.layout if self._splitter else SmLayout(sm_count, 1, 0)
        )
        release = versions.driver_release()
        driver = f"{release}, " if release else ""
        self.info = DeviceInfo(
            key=f"cuda:{index}",
            kind="cuda",
            index=index,
            name=properties["name"].decode(),
            uuid=self._device.uuid,
            sm_count=sm_count,
            compute_capability=(int(properties["major"]), int(properties["minor"])),
            memory_bytes=int(properties["totalGlobalMem"]),
            driver=f"driver {driver}CUDA {versions.version_text(version)}",
        )

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device current; the one that was current before is restored."""
        before = int(self._runtime.getDevice())
        if before == self._index and getattr(self._ready, "done", False):
            yield
            return
        self._device.set_current()
        self._ready.done = True
        try:
            yield
        finally:
            if before != self._index:
                self._core.Device(before).set_current()

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current for whatever library runs inside, then restore."""
        return self._current()

    def _is_current(self) -> bool:
        """Whether this thread can call the device as it stands; the common case."""
        try:
            return bool(self._ready.done and self._get_device() == self._index)
        except AttributeError:
            return False

    # -- clock ------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Return Unix ns."""
        return time.time_ns()

    def wait_until_ns(self, time_ns: int) -> None:
        """Sleep until shortly before, then spin."""
        while (left := time_ns - time.time_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) / 1e9)

    def process_and_thread(self) -> tuple[int, int]:
        """Return the system's ids."""
        return os.getpid(), threading.get_native_id()

    def health(self) -> Health:
        """Return clocks in MHz, power in W and throttle reasons, as NVML tells them."""
        found: Health = {}
        with contextlib.suppress(Exception):  # NVML may be absent or forbidden: then unknown
            system = self._device.to_system_device()
            found["sm_clock_mhz"] = int(system.get_clock("sm").get_current_mhz())
            found["memory_clock_mhz"] = int(system.get_clock("memory").get_current_mhz())
            reasons = system.current_clock_event_reasons
            found["throttle_reasons"] = tuple(str(reason) for reason in reasons)
        with contextlib.suppress(Exception):
            nvml = importlib.import_module("cuda.bindings.nvml")
            handle = nvml.device_get_handle_by_index_v2(self._index)
            found["power_w"] = nvml.device_get_power_usage(handle) / 1000
        return found

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Ignore it: a GPU does not say by itself when its work ran."""

    # -- partitions -------------------------------------------------------------------
    def check_plan(self, plan: CarvePlan) -> None:
        """Ask the driver, where it can be asked without making anything."""
        self._splitter.check(plan)

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make green contexts and find their SM ids with a probe kernel."""
        with self._current():
            if self._probe is None:
                self._probe = self._probe_type(self._device)
            granted: list[GrantedPartition] = self._contexts.make(planned, self._probe)
            return granted

    def context_handle(self, partition: RawPartition) -> int:
        """Return the ``CUcontext`` of a partition's green context, or of the device."""
        with self._current():
            home = self._device.context if partition is None else partition.context
            return int(home.handle)

    def close_partition(self, raw: RawPartition) -> None:
        """Give a green context back."""
        with self._current():
            self._contexts.close(raw)

    def close(self) -> None:
        """Destroy what is kept for the next use."""
        if self._contexts is not None:
            with self._current():
                self._contexts.clear()
