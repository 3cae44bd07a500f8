"""What driver and packages are there, what they can do, and their errors: makes no context."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuscope._compiled import fastpath
from gpuscope._optional import how_to_install, require
from gpuscope._types import Untyped
from gpuscope.device.api import Capabilities, DeviceInfo
from gpuscope.errors import DeviceUnavailable, GpuscopeError, MissingDependency, StreamError

GREEN_CONTEXTS = 12040
"""Driver version (major · 1000 + minor · 10) that brought green contexts: CUDA 12.4."""
HETEROGENEOUS_SPLIT = 13010
"""Driver version that splits SMs into groups of different sizes: CUDA 13.1."""
ELSEWHERE = ": use a machine with an NVIDIA GPU, or open_device('sim:h200')"
"""What to do where there is no GPU; idle where a simulated one is opened instead."""
_NO_DRIVER = f"no NVIDIA driver was found (libcuda.so.1 cannot be loaded){ELSEWHERE}"
STREAM_ORDERED_MEMORY = 11020
"""Driver version that brought memory pools and allocation in stream order: CUDA 11.2."""
_ATTRIBUTES = (16, 75, 76)
"""``CUdevice_attribute``: how many SMs there are, and the compute capability."""
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""What CUDA calls on the host; whoever passes one keeps it."""
_CUPY_WHEELS = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def version_text(version: int) -> str:
    """Write 13010 as ``13.1``."""
    return f"{version // 1000}.{version % 1000 // 10}"


def installed(package: str) -> str | None:
    """Return a distribution's version, or ``None``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_cupy_wheels() -> None:
    """Refuse two CuPy wheels at once: they overwrite each other's files.

    Raises
    ------
    MissingDependency
        Names the wheels that were found and what to do.
    """
    wheels = [wheel for wheel in _CUPY_WHEELS if installed(wheel)]
    if len(wheels) > 1:
        raise MissingDependency(
            f"{' and '.join(wheels)} are installed together and overwrite each other's files: "
            f"run pip uninstall {' '.join(wheels)}, then {how_to_install('cuda12', 'cuda13')}"
        )


def import_cupy() -> Untyped:
    """Import CuPy, after the check for two wheels."""
    check_cupy_wheels()
    return require("cupy", package="cupy-cuda13x or cupy-cuda12x", feature="a CUDA device")


def has_driver() -> bool:
    """Whether the driver's library can be loaded, whatever Python packages there are."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def driver_version() -> int:
    """Return the driver's CUDA version as major · 1000 + minor · 10.

    Raises
    ------
    DeviceUnavailable
        There is no NVIDIA driver, or it does not start.
    """
    try:
        driver = require("cuda.bindings.driver", package="cuda-bindings", feature="a CUDA device")
    except MissingDependency as error:
        if has_driver():
            raise
        raise DeviceUnavailable(_NO_DRIVER) from error
    try:
        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise DeviceUnavailable(
                f"the NVIDIA driver does not start ({status.name}): run nvidia-smi to see why"
            )
        _, version = driver.cuDriverGetVersion()
    except RuntimeError as error:
        raise DeviceUnavailable(_NO_DRIVER) from error
    return int(version)


def launch_host_function(stream: int, called: object) -> None:
    """Queue ``called``, a ``HOST_FUNCTION``, on a stream.

    By the driver's library itself: CuPy and cuda-bindings free what they hand over when the
    function has run once, and a graph runs it again.

    Raises
    ------
    StreamError
        The driver refuses.
    """
    library = ctypes.CDLL("libcuda.so.1")
    if status := int(library.cuLaunchHostFunc(ctypes.c_void_p(stream), called, None)):
        reason = importlib.import_module("cuda.bindings.driver").CUresult(status).name
        raise StreamError(f"the driver refuses a host function ({reason})")


def wait_for_current_context() -> None:
    """Wait for the work of the context that is current in this thread, if there is one."""
    ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()


def address_of(function: str) -> int:
    """Return where a function of the driver's library is."""
    address = ctypes.cast(getattr(ctypes.CDLL("libcuda.so.1"), function), ctypes.c_void_p).value
    return address or 0


def recording(core: Untyped) -> Callable[[Untyped, Untyped], bool]:
    """Return what records an event of cuda.core in a stream; false where it does not.

    It does in C, for all but default streams, whatever device is current.
    """
    types = (getattr(core, "Event", None), getattr(core, "Stream", None))
    if fastpath is None or not all(isinstance(kind, type) for kind in types):
        return lambda *_: False
    fastpath.serve_events(*types, address_of("cuEventRecord"))
    record: Callable[[Untyped, Untyped], bool] = fastpath.record
    return record


def driver_release() -> str | None:
    """Return the kernel driver's release, such as 580.159.04, where Linux tells it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+[\d.]*)\s", text)
    return match.group(1) if match else None


def info_of(index: int) -> DeviceInfo:
    """Describe a GPU by the driver's library alone; whoever calls has initialised it.

    Raises
    ------
    GpuscopeError
        The driver does not know it.
    """
    library, by = ctypes.CDLL("libcuda.so.1"), ctypes.byref
    device, version, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, number = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    values = [ctypes.c_int() for _ in _ATTRIBUTES]
    refused = library.cuDeviceGet(by(device), index) or any(
        [
            library.cuDriverGetVersion(by(version)),
            library.cuDeviceGetName(name, len(name), device),
            library.cuDeviceGetUuid_v2(number, device),
            library.cuDeviceTotalMem_v2(by(memory), device),
            *map(library.cuDeviceGetAttribute, map(by, values), _ATTRIBUTES, [device] * 3),
        ]
    )
    if refused:
        raise GpuscopeError(f"the driver does not describe GPU {index}")
    sm_count, major, minor = (value.value for value in values)
    release = driver_release()
    return DeviceInfo(
        key=f"cuda:{index}",
        kind="cuda",
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=str(uuid.UUID(bytes=number.raw)),
        sm_count=sm_count,
        compute_capability=(major, minor),
        memory_bytes=memory.value,
        driver=f"driver {f'{release}, ' if release else ''}CUDA {version_text(version.value)}",
    )


def gpus() -> list[DeviceInfo]:
    """Describe each GPU that this process may use; none where there is no usable driver."""
    infos: list[DeviceInfo] = []
    with contextlib.suppress(GpuscopeError):  # of the first that does not exist, too
        driver_version()  # initialises the driver
        infos.extend(info_of(index) for index in itertools.count())
    return infos


def check_driver(version: int, runtime: int) -> None:
    """Refuse a driver older than the CUDA major version that CuPy was built for.

    Raises
    ------
    DeviceUnavailable
        Names the version required and found.
    """
    if version < runtime // 1000 * 1000:
        raise DeviceUnavailable(
            f"the driver is too old: CUDA {version_text(version)} was found, but the installed "
            f"CuPy needs {runtime // 1000}.0 or newer. Update the driver, or run "
            f"{how_to_install('cuda12')}"
        )


def capabilities(version: int, pools: bool) -> Capabilities:  # noqa: FBT001 - two facts in, one out
    """Say what a driver of ``version`` can do.

    Parameters
    ----------
    pools
        Whether the device has stream-ordered memory pools.
    """
    reasons = {}

    def lack(capability: str, what: str, needed: int) -> None:
        if version < needed:
            reasons[capability] = (
                f"{what} need a driver with CUDA {version_text(needed)} or newer; driver CUDA "
                f"{version_text(version)} was found"
            )

    lack("arbitrary_split", "groups of different sizes", HETEROGENEOUS_SPLIT)
    lack("partitions", "green contexts", GREEN_CONTEXTS)
    if not pools:
        reasons["stream_ordered_memory"] = "the device reports no memory pools"
    lack("stream_ordered_memory", "memory pools", STREAM_ORDERED_MEMORY)
    path = "composed quanta" if "arbitrary_split" in reasons else "heterogeneous split"
    return Capabilities(
        streams=True,
        partitions="partitions" not in reasons,
        partition_path=None if "partitions" in reasons else path,
        arbitrary_split="arbitrary_split" not in reasons,
        stream_ordered_memory="stream_ordered_memory" not in reasons,
        compile_source=True,
        graphs=True,
        reasons=reasons,
    )


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow calls that a capture on this thread forbids, whoever began it, but that do it no harm.

    Those are allocations, freeing, asking events, waiting for streams that are not captured, and
    instantiating a graph: none becomes part of the capture, and nothing in it depends on them.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    check(before, "change the capture mode")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before[1])


def check(result: tuple[Untyped, ...], what: str) -> None:
    """Raise unless a call of cuda.bindings succeeded."""
    status = result[0]
    if int(status) != 0:
        raise GpuscopeError(f"the driver refuses to {what} ({status.name})")


@functools.lru_cache(1024)
def all_shared_memory(kernel: Untyped, device: Untyped) -> int:
    """Let a kernel be launched with all of an SM's shared memory; returns its bytes.

    A block that takes them has its SM to itself: none that needs any fits beside it.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    nbytes = int(device.properties.max_shared_memory_per_block_optin)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    number = driver.CUdevice(device.device_id)
    asked = driver.cuKernelSetAttribute(attribute, nbytes, kernel.handle, number)
    check(asked, "let a kernel take all of an SM's shared memory")
    return nbytes


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn an error of a CUDA library into one of ours that says what failed."""
    try:
        yield
    except GpuscopeError:
        raise
    except Exception as error:
        raise GpuscopeError(f"{what}: {error}") from error


def scratch_pool(core: Untyped, device: Untyped) -> Untyped:
    """Make a stream-ordered pool that never couples streams behind the caller's back.

    CUDA's own pools reuse memory opportunistically and insert dependencies between
    streams; this one follows the dependencies that events make, and nothing else, and
    gives no memory back to the system.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    attribute = driver.CUmemPool_attribute
    pool = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions())
    for name, value in (
        (attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
        (attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, driver.cuuint64_t(2**64 - 1)),
    ):
        check(driver.cuMemPoolSetAttribute(pool.handle, name, value), "set up a memory pool")
    return pool
