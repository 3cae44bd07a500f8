"""Opening devices."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn, cast

from gpuscope import _interrupts
from gpuscope._checks import door, given
from gpuscope._fork import free_in_children
from gpuscope._libcupti import arrange_nvtx
from gpuscope._text import clean
from gpuscope._types import Untyped
from gpuscope.device.api import NativeArray
from gpuscope.device.calls import Observer
from gpuscope.device.device import Device
from gpuscope.device.families import FAMILIES, Pace
from gpuscope.device.handles import AnyStream
from gpuscope.device.raw import AnyBackend
from gpuscope.device.registry import alive
from gpuscope.device.stream import Stream
from gpuscope.errors import DeviceUnavailable, GpuscopeError, InvalidOperand

opened: dict[Callable[[Device], object], None] = {}
"""Told of each device that this process opens, when it is open."""
holders: list[Callable[[], object]] = []
"""Let go of devices that they alone hold, for who counts those that are open."""
_open: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
"""By their ids."""
_opening = free_in_children(threading.RLock())
_handing_over = threading.Event()
_DIGITS = 10
_cuda: dict[int, Device] = {}
_cpu: dict[str, Device] = {}
_cuda_correlations = itertools.count(1)
_finders: dict[type, Callable[[NativeArray], Device]] = {}


class UnifiedDevice(Device):
    """A device on which every choice of stream gives the same one.

    For telling whether streams are to blame: work keeps the order in which it was queued.
    Memory is not tagged by stream, and partitions are not used.
    """

    def __init__(self, backend: AnyBackend, *, correlations: Iterator[int] | None = None) -> None:
        super().__init__(backend, correlations=correlations)
        why = f"{self.info.key} was opened with unified_stream=True"
        self.capabilities = replace(
            self.capabilities,
            stream_ordered_memory=False,
            reasons={**self.capabilities.reasons, "stream_ordered_memory": why},
        )
        self._unified: Stream | None = None

    def choose_stream(self, stream: AnyStream = None) -> tuple[Stream, bool]:
        """Return the one stream, and whether any was selected; refuses what all refuse."""
        chosen, selected = super().choose_stream(stream)
        if chosen.capturing:
            return chosen, selected
        with self.registry.lock:
            if self._unified is None or self._unified.closed:
                self._unified = self.create_stream(name="unified")
            return self._unified, selected


@door("jitter", "unified_stream", "quiet")
def open_device(
    spec: str = "auto",
    *,
    pace: Pace = "none",
    jitter: bool = True,
    unified_stream: bool = False,
    quiet: bool = False,
) -> Device:
    """Open a device and print one line that says what it is.

    Parameters
    ----------
    spec
        ``"auto"``: a usable CUDA device, even one without green contexts; otherwise the simulated
        H200, with the reason. ``"cuda"`` or ``"cuda:N"``: that device and no other.
        ``"sim:h200"``: a new simulated GPU. ``"cpu"``: NumPy on the host, where stream operations
        are no-ops. ``"NAME:…"``: a device of a :class:`DeviceFamily` of another package.
    pace
        For simulated devices: ``"real"`` keeps virtual time from running ahead of the
        wall clock.
    jitter
        For simulated devices: let the times of host calls vary as they were measured. They are
        drawn anew from the same seed by each device, and by each experiment from its own. False:
        every call takes its median time.
    unified_stream
        Map every stream to a single one, to find out whether a bug depends on streams. A process
        opens a CUDA device or ``"cpu"`` only once, so this must be set the first time.
    quiet
        Print nothing.

    Raises
    ------
    DeviceUnavailable
        The device does not exist or cannot be used here, or it is already open without the
        unified stream.
    MissingDependency
        A CUDA device was asked for and a package it needs is missing; or the simulator is, or what
        another package registers under that name cannot be used.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gpu.sm_count, gpu.is_simulated
    (132, True)
    >>> gs.open_device("cpu", quiet=True).capabilities.partitions
    False
    """
    if not isinstance(pace, str) or pace not in ("none", "real"):
        raise DeviceUnavailable(f"pace is {given(pace)}; 'none' or 'real' is needed")
    if not isinstance(spec, str):
        raise DeviceUnavailable(f"spec is {given(spec)}; text such as 'cuda:0' is needed")
    _interrupts.install()
    kind, _, rest = spec.partition(":")
    device_type = UnifiedDevice if unified_stream else Device
    why = ""
    if kind == "cuda" and (not rest or (rest.isdecimal() and len(rest) < _DIGITS)):
        device = _open_cuda(int(rest or 0), device_type)
    elif spec == "cpu":
        device = _open_cpu(device_type)
    elif spec == "auto":
        try:
            device = _open_cuda(0, device_type)
        except GpuscopeError as error:
            why = why_not(error)
            device = _open_registered("sim", "h200", pace, device_type, jitter=jitter)
    elif rest and kind != "cuda":
        device = _open_registered(kind, rest, pace, device_type, jitter=jitter)
    else:
        raise _unknown(spec)
    if not quiet:
        _say(device, why)
    return device


def _disown() -> None:
    """In a forked child: give up what is the parent's; a CPU device can be opened anew."""
    for device in alive(_open):
        if not (_handing_over.is_set() and device.is_simulated):
            _refuse_all_use(device)
    _cpu.clear()


@contextlib.contextmanager
def handing_over() -> Iterator[None]:
    """Let a child that is forked in the block use copies of the simulated devices.

    No other thread may use them meanwhile.

    Examples
    --------
    >>> import gpuscope as gs, os
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gs.device.handing_over():
    ...     child = os.fork()
    >>> if not child:
    ...     gpu.synchronize()
    ...     os._exit(0)
    >>> os.waitpid(child, 0)[1]
    0
    """
    _handing_over.set()
    try:
        yield
    finally:
        _handing_over.clear()


def _refuse_all_use(device: Device) -> None:
    device.calls.observers = device.calls.recorders = device.calls.watchers = ()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise DeviceUnavailable(
            f"{device.info.key} was opened by the process that this one was forked from, and "
            "cannot be used here: open a device in the child, and where CUDA was in use start "
            "it with multiprocessing's 'spawn' method"
        )

    kind = type(device.backend)
    for name in dir(kind):
        is_use = not name.startswith("_") and name != "home_of"  # which tells whose an array is
        if is_use and callable(getattr(kind, name)):
            setattr(device.backend, name, refuse)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def why_not(error: GpuscopeError) -> str:
    """Return in one line why there is no GPU, for whoever goes on with a simulated one."""
    from gpuscope.device.cuda.driver import ELSEWHERE  # noqa: PLC0415 - only where it fails

    return str(error).splitlines()[0].removesuffix(ELSEWHERE)


def _say(device: Device, why: str) -> None:
    info = device.info
    lines = [f"gpuscope: opened {info.name}, {info.sm_count} SMs ({info.driver})"]
    if isinstance(device, UnifiedDevice):
        lines[0] += ", every choice of stream gives one"
    if device.is_simulated and why:
        lines.append(f"  no GPU used: {why}")
    sys.stdout.write("".join(f"{clean(line)}\n" for line in lines))


def _open_cuda(index: int, device_type: type[Device] = Device) -> Device:
    with _opening:
        device = _cuda.get(index)
        if device is None:
            from gpuscope.device.cuda.backend import CudaBackend  # noqa: PLC0415 - loads CUDA

            arrange_nvtx()  # before the program's first range, so that recordings see them all
            device = device_type(CudaBackend(index), correlations=_cuda_correlations)
            _cuda[index] = device
            atexit.unregister(_close_at_exit)  # last in is first out: before what CUDA's
            atexit.register(_close_at_exit)  # libraries do when the interpreter ends
            _note_open(device, _cuda_device_of)
    return _as_asked(device, device_type)


def _open_cpu(device_type: type[Device]) -> Device:
    from gpuscope.device.cpu import CpuBackend  # noqa: PLC0415 - rarely wanted

    with _opening:
        device = _cpu.get("cpu")
        if device is None:
            device = device_type(cast("AnyBackend", CpuBackend()))
            _cpu["cpu"] = device
            _note_open(device, _holder_of)
    return _as_asked(device, device_type)


def _as_asked(device: Device, device_type: type[Device]) -> Device:
    if not isinstance(device, device_type):
        raise DeviceUnavailable(
            f"{device.info.key} is open already in this process, without a unified stream: ask "
            "for unified_stream=True where it is opened first"
        )
    return device


def _open_registered(
    family: str, name: str, pace: Pace, device_type: type[Device], *, jitter: bool
) -> Device:
    registered = FAMILIES.find(family)
    if registered is None:
        raise _unknown(f"{family}:{name}")
    device = device_type(registered.make(name, pace=pace, jitter=jitter))
    if registered.opened is not None:
        registered.opened(device)
    _note_open(device, _holder_of)
    return device


def _unknown(spec: str) -> DeviceUnavailable:
    other_families = "".join(f", '{name}:…'" for name in FAMILIES.names() if name != "sim")
    return DeviceUnavailable(
        f"unknown device {given(spec)}: use 'auto', 'cuda:N' (such as 'cuda:0'), 'sim:h200', "
        f"'sim:h100'{other_families} or 'cpu'"
    )


def _note_open(device: Device, finder: Callable[[NativeArray], Device]) -> None:
    _open[id(device)] = device
    _finders[device.backend.array_type] = finder
    for tell in [*opened]:
        tell(device)


@atexit.register
def _close_at_exit() -> None:
    """Destroy what is left while the CUDA libraries are still whole; nobody to tell.

    Daemon threads may still be launching: destroying a stream under them would crash, so
    then everything is left to the operating system.
    """
    if any(thread.daemon and thread.is_alive() for thread in threading.enumerate()):
        return
    for device in alive(_open):
        with contextlib.suppress(Exception):
            device.close()


def open_devices() -> list[Device]:
    """Return the devices that are open in this process."""
    return alive(_open)


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let an observer watch the devices that are open, and those that are opened meanwhile."""

    def watch(device: Device) -> None:
        undo.callback(device.calls.unobserve, observer)
        device.calls.observe(observer)

    with contextlib.ExitStack() as undo:
        undo.callback(opened.pop, watch, None)
        opened[watch] = None
        for device in open_devices():
            watch(device)
        yield


def device_of(value: object, name: str) -> Device:
    """Return the device that holds an array.

    Raises
    ------
    InvalidOperand
        ``value`` is not an array on a device; names the argument.
    """
    if (finder := _finders.get(type(value))) is not None:
        return finder(cast("NativeArray", value))
    if _is_on_cuda(value):
        from gpuscope.device.cuda.arrays import device_index_of  # noqa: PLC0415 - loads CUDA

        return _open_cuda(device_index_of(value))
    raise InvalidOperand(
        f"{name} is {type(value).__name__}, not an array on a device: make one with the device's "
        "asarray() or empty()"
    )


def _is_on_cuda(value: object) -> bool:
    """Whether an array of any library says that a CUDA device holds it."""
    from gpuscope.device.cuda import dlpack  # noqa: PLC0415 - only foreign arrays need it

    # DLPack first: PyTorch refuses the other to what requires a gradient, by an error of its own.
    is_there = dlpack.device_of(value)[0] in dlpack.ON_CUDA
    return is_there or hasattr(value, "__cuda_array_interface__")


def _cuda_device_of(array: Untyped) -> Device:
    index = array.data.device_id
    return _cuda.get(index) or _open_cuda(index)


def _holder_of(array: NativeArray) -> Device:
    for device in alive(_open):
        backend = device.backend
        if type(array) is backend.array_type and backend.home_of(array) == backend.home:
            return device
    raise InvalidOperand("the simulated device that this array was made on is gone: keep it")
