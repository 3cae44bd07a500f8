"""The device: carving, streams, arrays and kernels."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from gpuscope import _interrupts
from gpuscope._checks import IN_ANY_ORDER, SeveralOf, count, door, given, require_kind
from gpuscope._text import clean
from gpuscope._types import Array
from gpuscope.device import caller, carve
from gpuscope.device.accesses import of_arrays, pointers_of
from gpuscope.device.api import Capabilities, DeviceInfo, Kernel, KernelModel, NativeArray
from gpuscope.device.arrays import as_dtype, as_shape, require_array
from gpuscope.device.call_log import CallLog
from gpuscope.device.carve import CarvePlan, SmLayout
from gpuscope.device.event import Event
from gpuscope.device.handles import AnyStream, checked_handle
from gpuscope.device.memory import Block, Lent, Pinned
from gpuscope.device.owner import Owner
from gpuscope.device.partition import Partition, Partitions, make_partitions
from gpuscope.device.pinned import PinnedArray
from gpuscope.device.raw import AnyBackend
from gpuscope.device.registry import Registry
from gpuscope.device.scratch import Scratch, take_scratch
from gpuscope.device.sizes import Rounding, Sizes
from gpuscope.device.stream import Stream, make_stream
from gpuscope.device.unique import Unique, close_all
from gpuscope.errors import CapabilityError, InvalidOperand, StreamError


class Device(Unique):
    """A real or simulated GPU, created by :func:`gpuscope.open_device`.

    Attributes
    ----------
    info
        What it is.
    capabilities
        What it can do, and the reason for what it cannot.
    identity
        Its key in registries: the device key of a GPU or of the host, of which a process has one;
        the object itself for a simulated GPU.
    backend, calls, registry
        For other parts of the package: the implementation, the observers of calls, and the
        existing streams, partitions and spare events.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gpu
    Device('sim:h200', NVIDIA H200 (simulated), 132 SMs)
    >>> with gpu.carve({"small": 16, "load": "rest"}) as parts:
    ...     parts["load"].sm_count
    116
    >>> gpu.to_host(gpu.asarray([1, 2, 3], "float32")).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(self, backend: AnyBackend, *, correlations: Iterator[int] | None = None) -> None:
        self.backend = backend
        self.info: DeviceInfo = backend.info
        self.capabilities: Capabilities = backend.capabilities
        self.calls = CallLog(self.backend, correlations)
        self.registry = Registry()
        self.identity: Hashable = self if self.is_simulated else self.info.key

    @property
    def is_simulated(self) -> bool:
        """Whether what runs here is simulated."""
        return self.info.kind == "sim"

    @property
    def name(self) -> str:
        """The device's name, marked where it is simulated."""
        return self.info.name

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors of the whole GPU."""
        return self.info.sm_count

    def now_ns(self) -> int:
        """Return the host clock: Unix ns; on a simulated device its virtual time."""
        return self.backend.now_ns()

    def __repr__(self) -> str:
        return clean(f"Device({self.info.key!r}, {self.info.name}, {self.info.sm_count} SMs)")

    def close(self) -> None:
        """Close every open partition and stream. The device itself stays usable."""
        close_all([*self.partitions, *cast("list[Stream]", self.registry.streams), self.backend])

    def told_from(self, other: Owner) -> str:
        """Return its key, with its number where ``other`` has the same key."""
        key, number = self.info.key, self.registry.number
        return key if key != other.info.key else f"{key} (no. {number} of this process)"

    # -- carving ----------------------------------------------------------------------
    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Its open partitions, in order of creation."""
        return cast("tuple[Partition, ...]", tuple(self.registry.partitions))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Its open streams, in order of creation."""
        streams = sorted(cast("list[Stream]", self.registry.streams), key=lambda stream: stream.id)
        return tuple(stream for stream in streams if not stream.closed)

    @property
    def layout(self) -> SmLayout:
        """The parts into which its driver splits its SMs."""
        return self.backend.layout

    @door(instead_of=SeveralOf(Partition, of=IN_ANY_ORDER))
    def plan_carve(
        self,
        sizes: Sizes,
        *,
        rounding: Rounding = "exact",
        allow_shared: bool = False,
        keep: Collection[str] | None = None,
        instead_of: Collection[Partition] = (),
    ) -> CarvePlan:
        """Return what :meth:`carve` would grant, without changing anything.

        Parameters
        ----------
        sizes, rounding, allow_shared
            As :meth:`carve` takes them.
        keep
            Partitions whose counts ``rounding="nearest"`` leaves as they are, if it can. Where it
            is given, be it empty, too many SMs become as many as there are.
        instead_of
            Open partitions that will be closed first: their SMs count as free.

        Raises
        ------
        InvalidPartition
            As :meth:`carve`.
        CapabilityError
            This device or driver cannot carve.
        """
        self.capabilities.require("partitions", feature="carving SMs into partitions")
        layout, held_parts = self.layout, self.registry.held_parts(without=instead_of)
        plan = carve.plan_carve(
            layout, sizes, rounding=rounding, held=held_parts, allow_shared=allow_shared, keep=keep
        )
        self.backend.check_plan(plan)
        return plan

    def carve(
        self, sizes: Sizes, *, rounding: Rounding = "exact", allow_shared: bool = False
    ) -> Partitions:
        """Carve the SMs into partitions.

        Parameters
        ----------
        sizes
            Name → SM count, a percentage of the GPU's SMs as ``"25%"``, or ``"rest"`` for one
            of them; or a list of these.
        rounding
            ``"exact"``: a count that this GPU cannot grant is an error that names the nearest
            counts. ``"up"`` and ``"down"`` take the nearest count in that direction.
            ``"nearest"`` takes the counts that can be granted together and differ least from
            those asked for.
        allow_shared
            Whether SMs of open partitions may be granted again. Such partitions list each other
            in ``shares_with``.

        Returns
        -------
        Partitions
            The partitions, by name or position. Close them, or use ``with``.

        Raises
        ------
        InvalidPartition
            The request cannot be granted. The message says why, and what could be granted.
        CapabilityError
            This device or driver cannot carve. The message names what is required and what was
            found.
        """
        with self.registry.carving:
            plan = self.plan_carve(sizes, rounding=rounding, allow_shared=allow_shared)
            return Partitions(self, plan, make_partitions(self, plan.partitions))

    # -- streams and events -----------------------------------------------------------
    def create_stream(
        self, *, name: str | None = None, priority: int = 0, blocking: bool = False
    ) -> Stream:
        """Create a stream on the whole GPU.

        Parameters
        ----------
        priority
            CUDA's: lower runs first.
        blocking
            Whether it synchronises with the legacy default stream: its work waits for earlier
            work there, and later work there waits for it.
        """
        return make_stream(self, None, name=name, priority=priority, blocking=blocking)

    def wrap_stream(self, stream: AnyStream, *, name: str | None = None) -> Stream:
        """Wrap a foreign stream: an integer handle or an object with ``__cuda_stream__``.

        A gpuscope stream is returned unchanged. The result never destroys the foreign stream.
        """
        if isinstance(stream, Stream):
            if stream.device is not self:
                raise StreamError(
                    f"stream {stream.name!r} belongs to {stream.device.told_from(self)}, not to "
                    f"{self.told_from(stream.device)}: create one with this device's "
                    "create_stream(), or put the operands on the stream's device"
                )
            return stream
        handle = checked_handle(stream)
        if (existing := self.find_stream(handle)) is not None:
            return existing
        raw = self.backend.borrow_stream(handle)
        return Stream(self, raw, handle, name=name or f"stream {handle:#x}", owned=False)

    def find_stream(self, handle: int) -> Stream | None:
        """Return the open stream with this raw handle, if this device created or wrapped it."""
        require_kind("handle", handle, int)
        return cast("Stream | None", self.registry.find_stream(handle))

    def default_stream(self) -> Stream:
        """Return this thread's default stream."""
        raw, handle = self.backend.default_stream()
        with self.registry.lock:
            if (stream := self.find_stream(handle)) is None:
                stream = Stream(self, raw, handle, name="per-thread default", owned=False)
                self.registry.add_stream(stream, handle, is_default=True)
        self.registry.of_thread.default = stream  # it lives as long as a thread that used it
        return stream

    def choose_stream(self, stream: AnyStream = None) -> tuple[Stream, bool]:
        """Pick the stream that work should run on, and whether one was selected.

        The explicit ``stream``, else the caller stream, else this thread's current stream;
        without any of these, the per-thread default stream, which counts as not selected.
        """
        if stream is None:
            stream = caller.get_caller_stream()
        if stream is None:
            stream = caller.peek_current_stream(self.identity)
        if stream is None:
            return self.default_stream(), False
        if type(stream) is Stream and stream.device is self:
            stream.require_open()
            return stream, True
        return self.wrap_stream(stream), True

    @door("timing")
    def create_event(self, *, timing: bool = True) -> Event:
        """Create an event, not yet recorded."""
        return Event(self, timing=timing)

    def synchronize(self) -> None:
        """Wait on the host for everything queued on this device."""
        with self.calls.during("sync", "device.synchronize"):
            self.backend.synchronize()
        if _interrupts.pending:
            _interrupts.deliver()

    # -- arrays -----------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> NativeArray:
        """Return an uninitialised array in device memory.

        Parameters
        ----------
        shape
            In elements.
        dtype
            A NumPy dtype or its name; ``"bfloat16"`` is known too.

        Notes
        -----
        Its memory is reused once there is no reference to the array or a view of it, and the work
        that gpuscope queued with it is done, on all streams. Work of other libraries is
        considered on the stream that is selected in this call, and where :meth:`Stream.hold` is
        called.
        """
        return self._selected_holds(self.backend.empty(as_shape(shape), as_dtype(dtype)))

    def _selected_holds(self, array: NativeArray) -> NativeArray:
        """Let an array count as used on the selected stream: libraries launch there unseen."""
        if self.calls.watchers:  # it was given out when all that used its memory was done
            self.calls.tell("given", "empty", accesses=of_arrays((array,), ()))
        if (stream := caller.get_caller_stream()) is None:
            stream = caller.peek_current_stream(self.identity)
        if isinstance(stream, Stream) and stream.device is self and not stream.closed:
            if stream.tag is None and (made := self.registry.of_thread.made) is not None:
                made.append(array)
            else:
                stream.hold(array)
        return array

    def empty_pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> Array:
        """Return an uninitialised array in page-locked host memory.

        :meth:`Stream.copy` from and to it never waits. Do not change it before the copy is done:
        ``profile(hazards=True)`` sees what NumPy reads and writes in it.
        """
        array = self.backend.empty_pinned(as_shape(shape), as_dtype(dtype))
        if self.calls.watchers:
            self.calls.tell("given", "empty_pinned", accesses=of_arrays((array,), ()))
        return array if self.info.kind == "cpu" else PinnedArray.over(array, self.calls)

    @door(memory=np.ndarray)
    def as_pinned(self, memory: Array) -> PinnedArray:
        """Return an array of the caller's as page-locked memory of this simulated device.

        For memory that a program of another process shares; :meth:`PinnedArray.note_access` tells
        of what that reads and writes.

        Parameters
        ----------
        memory
            Contiguous; it is not copied, and is to stay until all work with it is done.

        Raises
        ------
        CapabilityError
            This is no simulated device.
        InvalidOperand
            The array is not contiguous.
        """
        if not memory.flags.c_contiguous:
            raise InvalidOperand("memory is not contiguous: its bytes must lie one behind another")
        if not self.is_simulated:
            raise CapabilityError(
                f"{self.info.key} is not simulated, and takes page-locked memory of its own alone: "
                "use empty_pinned()"
            )
        pinned = Pinned(Block(memory, Lent()), memory.ctypes.data, memory.nbytes)
        array = pinned.array(memory.shape, as_dtype(memory.dtype))
        return PinnedArray.over(array, self.calls)

    def asarray(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> NativeArray:
        """Copy host values into device memory and wait for the copy.

        Values in another byte order are converted to native order.
        """
        wanted = None if dtype is None else as_dtype(dtype)
        try:
            host = np.asarray(values, dtype=wanted)
        except Exception as error:  # an array of another library may refuse in its own way
            raise InvalidOperand(
                f"values is {given(values)}, which NumPy cannot read ({error}): give numbers in "
                "host memory"
            ) from error
        host = host.astype(as_dtype(host.dtype.newbyteorder("=")), copy=False)
        with self.calls.during("setup", "asarray"):
            host = np.ascontiguousarray(host).reshape(host.shape)
            return self._selected_holds(self.backend.asarray(host))

    def random(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32", *, seed: int = 0
    ) -> NativeArray:
        """Return an array of uniform values in [-0.5, 0.5), and wait until it is filled."""
        seed, array = count("seed", seed, error=InvalidOperand), self.empty(shape, dtype)
        with self.calls.during("setup", "random"):
            self.backend.fill_random(array, seed)
        return array

    def scratch(self, nbytes: int) -> Scratch:
        """Allocate temporary device memory. Use it in ``with``, or close it.

        Inside a workload's call, it is tagged with the call's stream and freed at the end of the
        call. Outside any call, it is untagged: the device is synchronised now and when the memory
        is freed.

        Raises
        ------
        InvalidOperand
            ``nbytes`` is negative, overflows, or is more than the device has.
        """
        return take_scratch(self, nbytes)

    def to_host(self, array: NativeArray) -> Array:
        """Wait for the whole device, then return the array's values.

        Raises
        ------
        InvalidOperand
            It is not an array of this device.
        """
        require_array(self, array, "array", on_host=False)
        self.synchronize()
        with self.calls.during("setup", "to_host"):
            return self.backend.to_host(array)

    # -- kernels ----------------------------------------------------------------------
    @door("source", "name", "model")
    def compile(
        self, source: str, name: str, *, model: KernelModel | None = None, holds_sms: bool = False
    ) -> Kernel:
        """Compile CUDA C++ ``source`` and return its ``extern "C"`` kernel ``name``.

        Parameters
        ----------
        model
            Of the kernel, for devices that cannot run source; required on a simulated device.
        holds_sms
            Give each block all of its SM's shared memory, so that it has that SM to itself.

        Raises
        ------
        InvalidArgument
            ``source`` or ``name`` is not text, or ``model`` is not a :class:`KernelModel`.
        CapabilityError
            The device cannot run source and no model was given.
        """
        require_kind("holds_sms", holds_sms, bool)
        kernel = self.backend.compile(source, name, model)
        return replace(kernel, pointers=pointers_of(source, name), holds_sms=holds_sms)


def device_for(owner: Device | Partition) -> Device:
    """Return a device, or the one that a partition is of."""
    return cast("Device", owner.device) if isinstance(owner, Partition) else owner
