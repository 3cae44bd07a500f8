"""What of a machine lets gpuscope use its GPU, and what to do where something does not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope._compiled import fastpath, why_not
from gpuscope._libcupti import HOW_TO_INSTALL, library_path
from gpuscope.device.api import Capabilities
from gpuscope.device.cuda import driver
from gpuscope.errors import GpuscopeError, MissingDependency

NEEDED_BYTES = 2 << 30
"""GPU memory of the quickstart with room to spare: operands, contexts, library kernels."""


@dataclass(frozen=True)
class Check:
    """One line of ``gpuscope doctor``.

    Attributes
    ----------
    found
        What is there.
    todo
        What to do, where it is not ok; else empty.
    """

    name: str
    ok: bool
    found: str
    todo: str = ""


@contextlib.contextmanager
def _refusal_of(name: str, checks: list[Check]) -> Iterator[None]:
    """Add a failed check where what the block looks at cannot be used."""
    try:
        yield
    except GpuscopeError as error:
        cause, todo = _parts(error)
        checks.append(Check(name, ok=False, found=cause, todo=todo))


def check_gpu() -> list[Check]:
    """Check driver, CuPy, the CUDA device and green contexts; opens the first device."""
    checks: list[Check] = []
    with _refusal_of("driver", checks):
        version = driver.driver_version()
        release = driver.driver_release() or "release unknown"
        checks.append(Check("driver", ok=True, found=release))
        checks.append(Check("CUDA", ok=True, found=f"driver has {driver.version_text(version)}"))
        wanted = driver.version_text(driver.GREEN_CONTEXTS)
        can = driver.capabilities(version, pools=True)
        answer = "the driver has them" if can.partitions else can.reasons["partitions"]
        todo = "" if can.partitions else f"update the driver to CUDA {wanted} or newer"
        checks.append(Check("green contexts", ok=can.partitions, found=answer, todo=todo))
    with _refusal_of("CuPy", checks):
        cupy = driver.import_cupy()
        checks.append(Check("CuPy", ok=True, found=str(cupy.__version__)))
    if all(check.ok for check in checks):
        with _refusal_of("cuda:0", checks):
            from gpuscope.device.select import open_device  # noqa: PLC0415 - loads NumPy

            device = open_device("cuda:0", quiet=True)
            layout = device.layout
            quanta = f"{layout.quanta} quanta of {layout.quantum_sm_count}"
            layout_words = f"{device.info.name}, {device.info.sm_count} SMs, {quanta}"
            checks.append(Check("cuda:0", ok=True, found=layout_words))
            checks.append(_check_carving(device.capabilities))
            with device.backend.current():
                free, total = cupy.cuda.runtime.memGetInfo()
            checks.append(_check_memory(free, total))
    return checks


def _check_carving(can: Capabilities) -> Check:
    """Check that the driver splits SMs, and say in which way it was found to do so."""
    if not can.partitions:
        todo = "update the driver: it has green contexts, but splits no SMs for them"
        return Check("carving", ok=False, found=can.reasons["partitions"], todo=todo)
    why = can.reasons.get("arbitrary_split")
    return Check("carving", ok=True, found=f"by {can.partition_path}" + (f": {why}" if why else ""))


def _check_memory(free: int, total: int) -> Check:
    """Check that the GPU has room, in bytes, for the quickstart and the libraries it loads."""
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB"
    wanted = f"{NEEDED_BYTES / 2**30:.0f} GiB"
    todo = f"end what else uses the GPU (nvidia-smi lists it): the quickstart wants {wanted}"
    ok = free >= NEEDED_BYTES
    return Check("free memory", ok=ok, found=memory, todo="" if ok else todo)


def check_cupti() -> Check:
    """Check that CUPTI can be loaded; without it, events time what gpuscope launches."""
    checks: list[Check] = []
    with _refusal_of("CUPTI", checks), contextlib.suppress(MissingDependency):
        driver.driver_version()  # without a GPU there is nothing to record
    if checks:
        return checks[0]
    try:
        path = str(library_path())
    except GpuscopeError as error:
        major = 12 if driver.installed("cupy-cuda12x") else 13
        return Check("CUPTI", ok=False, found=_parts(error)[0], todo=HOW_TO_INSTALL[major])
    return Check("CUPTI", ok=True, found=path)


def check_launches() -> Check:
    """Check that the launch path is compiled; without it, guards and launches cost more."""
    if fastpath is not None:
        return Check("launch path", ok=True, found="compiled")
    todo = "install a C compiler, such as gcc, and then gpuscope again"
    if os.environ.get("GPUSCOPE_PURE") == "1":
        todo = "unset GPUSCOPE_PURE"
    return Check("launch path", ok=False, found=f"in Python: {why_not}", todo=todo)


def _parts(error: GpuscopeError) -> tuple[str, str]:
    """Split an error's text into what was found and what to do: its last sentence or clause."""
    text = str(error)
    for mark in (". ", ": "):
        cause, separator, todo = text.rpartition(mark)
        if separator:
            return cause, todo
    return text, "see the documentation on installing"
