"""The device: carving, streams, arrays, kernels, and the hook for observers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from gpuscope._checks import count, given, require_kind
from gpuscope._fork import free_in_children
from gpuscope._text import clean
from gpuscope.device import caller, carve
from gpuscope.device.api import (
    Activity,
    Backend,
    Call,
    Capabilities,
    DeviceInfo,
    Kernel,
    KernelModel,
    Observer,
)
from gpuscope.device.carve import CarvePlan, PlannedPartition, Rounding, Sizes, SmLayout
from gpuscope.device.partition import Partition, Partitions
from gpuscope.device.stream import Event, Stream, close_all
from gpuscope.device.unique import Unique
from gpuscope.errors import DeviceUnavailable, InvalidOperand, InvalidPartition, StreamError

if TYPE_CHECKING:
    from gpuscope.device.scratch import Scratch

_T = TypeVar("_T")
_numbers = itertools.count(1)
_LARGEST = 2**62


def alive(registry: weakref.WeakValueDictionary[Any, _T]) -> list[_T]:
    """Return what a registry holds now, whatever other threads and the collector do to it."""
    return [item for kept in registry.valuerefs() if (item := kept()) is not None]


class Device(Unique):
    """A GPU, real or simulated; made by :func:`gpuscope.open_device`.

    Attributes
    ----------
    info
        What it is.
    capabilities
        What it can do, and why not.
    backend
        What does the work; its own business.
    observers
        Who watches it.
    identity
        What registries know it by: a GPU and the host by their key, of which a process has
        one, a simulated GPU by itself.
    carving
        Held while SMs are planned and carved, which is one step for other threads.

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

    def __init__(self, backend: Backend, *, correlations: Iterator[int] | None = None) -> None:
        self.backend = backend
        self.info: DeviceInfo = backend.info
        self.capabilities: Capabilities = backend.capabilities
        self.observers: tuple[Observer, ...] = ()
        self.identity: Hashable = self if self.is_simulated else self.info.key
        self.carving = free_in_children(threading.RLock())
        self._number = next(_numbers)
        self._lock = free_in_children(threading.RLock())
        self._partitions: weakref.WeakValueDictionary[int, Partition] = (
            weakref.WeakValueDictionary()
        )
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        # Devices that share a clock share their numbers, so that one trace can hold both.
        self.next_correlation = (correlations or itertools.count(1)).__next__
        self.next_stream_id = itertools.count(1).__next__
        self._of_thread = threading.local()
        self._spare_events: list[Event] = []

    def disown(self) -> None:
        """Refuse all use from now on: this is a forked child, and the device is its parent's."""
        self.observers = ()

        def refuse(*_: object, **__: object) -> NoReturn:
            raise DeviceUnavailable(
                f"{self.info.key} was opened by the process that this one was forked from, and "
                "cannot be used here: open a device in the child, and where CUDA was in use start "
                "it with multiprocessing's 'spawn' method"
            )

        kind = type(self.backend)
        for name in dir(kind):
            if not name.startswith("_") and callable(getattr(kind, name)):
                setattr(self.backend, name, refuse)

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
        """Close every live partition and stream; the device itself stays usable."""
        close_all([*alive(self._partitions), *alive(self._streams), self.backend])

    def told_from(self, other: Device) -> str:
        """Return its key, with its number where ``other`` has the same key."""
        key = self.info.key
        return key if key != other.info.key else f"{key} (no. {self._number} of this process)"

    # -- carving ----------------------------------------------------------------------
    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Its live partitions, of all carvings, in the order in which they were made."""
        live = [part for part in alive(self._partitions) if not part.closed]
        return tuple(sorted(live, key=lambda part: part.context))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Its streams that are open, in the order in which they were made."""
        return tuple(sorted(
            (stream for stream in alive(self._streams) if not stream.closed),
            key=lambda stream: stream.id,
        ))  # fmt: skip

    @property
    def layout(self) -> SmLayout:
        """The parts into which its driver splits its SMs."""
        return self.backend.layout

    def held_parts(self, *, without: Collection[Partition] = ()) -> dict[str, tuple[int, ...]]:
        """Name → parts of the live partitions, but for those in ``without``."""
        held: dict[str, tuple[int, ...]] = {}
        for part in alive(self._partitions):
            if not part.closed and part not in without:
                name = (
                    part.name if part.name not in held else f"{part.name} (context {part.context})"
                )
                held[name] = part.parts
        return held

    def plan_carve(
        self,
        sizes: Sizes,
        *,
        rounding: Rounding = "exact",
        allow_shared: bool = False,
        keep: Collection[str] = (),
        instead_of: Collection[Partition] = (),
    ) -> CarvePlan:
        """Say what :meth:`carve` would grant; touches nothing.

        Parameters
        ----------
        sizes, rounding, allow_shared
            As :meth:`carve` takes them.
        keep
            Partitions whose counts ``rounding="nearest"`` leaves as they are, if it can.
        instead_of
            Live partitions that will be closed before: their SMs count as free.

        Raises
        ------
        InvalidPartition
            As :meth:`carve`.
        CapabilityError
            This device or driver cannot carve.
        """
        self.capabilities.require("partitions", feature="carving SMs into partitions")
        require_kind("allow_shared", allow_shared, bool)
        for what, names in (("keep", keep), ("instead_of", instead_of)):
            require_kind(what, names, list, tuple, set, frozenset, dict)
        for name in keep:
            require_kind("a name in keep", name, str)
        for part in instead_of:
            require_kind("a partition in instead_of", part, Partition)
        plan = carve.plan_carve(
            self.backend.layout,
            sizes,
            rounding=rounding,
            held=self.held_parts(without=instead_of),
            allow_shared=allow_shared,
            keep=keep,
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
            Name → SM count, or a list of counts; at most one may be ``"rest"``.
        rounding
            ``"exact"``: a count that this GPU cannot give is an error with the nearest
            counts; ``"up"`` and ``"down"`` take the nearest in that direction; ``"nearest"``
            the counts that can be had together and differ least from those asked for.
        allow_shared
            Whether SMs of live partitions may be given out again. Such partitions name
            each other in ``shares_with``.

        Returns
        -------
        Partitions
            By name or position; close it, or hold it in ``with``.

        Raises
        ------
        InvalidPartition
            The request cannot be granted; says why and what could.
        CapabilityError
            This device or driver cannot carve; names what is required and found.
        """
        with self.carving:
            plan = self.plan_carve(sizes, rounding=rounding, allow_shared=allow_shared)
            return Partitions(self, plan, self.make_partitions(plan.partitions))

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[Partition]:
        """Make planned partitions: the step of :meth:`carve` that touches the device.

        :attr:`carving` is held from the plan on.
        """
        live = self.partitions
        granted = self.backend.make_partitions(planned)
        partitions = [Partition(self, *pair) for pair in zip(planned, granted, strict=True)]
        for one in partitions:
            seen = [other.name for other in live if set(other.sm_ids) & set(one.sm_ids)]
            if set(seen) - set(one.shares_with):
                close_all(partitions)
                raise InvalidPartition(
                    f"partition {one.name!r} was planned apart from {', '.join(seen)}, but the "
                    "driver gave it SMs of theirs: close them first"
                )
            for other in live:
                if other.name in seen:
                    other.shares_with += (one.name,)
        self._partitions.update({partition.context: partition for partition in partitions})
        return partitions

    def forget_partition(self, partition: Partition) -> None:
        """Stop counting a closed partition's SMs as held."""
        self._partitions.pop(partition.context, None)

    # -- streams and events -----------------------------------------------------------
    def create_stream(
        self, *, name: str | None = None, priority: int = 0, blocking: bool = False
    ) -> Stream:
        """Make a stream on the whole GPU.

        Parameters
        ----------
        priority
            CUDA's: lower runs first.
        blocking
            Whether it knows the legacy default stream's barrier: its work waits for what was
            queued there, and what is queued there later waits for it.
        """
        return self.make_stream(None, name=name, priority=priority, blocking=blocking)

    def make_stream(
        self,
        partition: Partition | None,
        *,
        name: str | None,
        priority: int,
        blocking: bool = False,
    ) -> Stream:
        """Make a stream, in ``partition`` if one is given."""
        require_kind("name", name, str, None)
        require_kind("blocking", blocking, bool)
        priority = count("priority", priority, least=-(2**31), most=2**31 - 1)
        home = partition.raw if partition else None
        raw, handle = self.backend.make_stream(home, priority, blocking=blocking)
        stream = Stream(self, raw, handle, name=name, partition=partition, priority=priority)
        # Where every handle is 0 no stream is found by it, but each is still closed with us.
        self._streams[handle or -stream.id] = stream
        return stream

    def wrap_stream(self, stream: Any, *, name: str | None = None) -> Stream:
        """Use somebody else's stream: an integer handle or an object with ``__cuda_stream__``.

        One of ours is returned as it is. What is returned never destroys the stream.
        """
        if isinstance(stream, Stream):
            if stream.device is not self:
                raise StreamError(
                    f"stream {stream.name!r} belongs to {stream.device.told_from(self)}, not to "
                    f"{self.told_from(stream.device)}: create one with this device's "
                    "create_stream(), or put the operands on the stream's device"
                )
            return stream
        handle = caller.checked_handle(stream)
        known = self._streams.get(handle)
        if known is not None:
            return known
        return Stream(
            self, self.backend.borrow_stream(handle), handle, name=name or f"stream {handle:#x}",
            owned=False,
        )  # fmt: skip

    def find_stream(self, handle: int) -> Stream | None:
        """Return the open stream with this raw handle, if this device made or knows it."""
        require_kind("handle", handle, int)
        return self._streams.get(handle)

    def default_stream(self) -> Stream:
        """Return this thread's default stream."""
        raw, handle = self.backend.default_stream()
        stream = self._streams.get(handle)
        if stream is None:
            with self._lock:
                stream = self._streams.get(handle)
                if stream is None:
                    stream = Stream(self, raw, handle, name="per-thread default", owned=False)
                    self._streams[handle] = stream
        self._of_thread.default = stream  # it lives as long as a thread that used it
        return stream

    def forget_stream(self, stream: Stream) -> None:
        """Stop finding a closed stream by its handle."""
        for key in (stream._handle, -stream.id):
            if self._streams.get(key) is stream:
                self._streams.pop(key, None)

    def choose_stream(self, stream: Any = None) -> tuple[Stream, bool]:
        """Pick the stream that work should run on, and whether one was selected.

        An explicit ``stream``, else the caller stream, else this thread's current stream;
        with none of these the per-thread default, which counts as not selected.
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

    def intended_stream(self, stream: Stream) -> Stream:
        """Return what the caller meant when ``stream`` is launched on directly."""
        selected = caller.get_caller_stream()
        if selected is None:
            return stream
        if isinstance(selected, Stream):
            return selected
        return self.wrap_stream(selected)

    def require_event(self, event: Any, name: str, *, across: bool = False) -> None:
        """Refuse what is no event of this device, or ``across``, none it can wait for."""
        if not isinstance(event, Event):
            raise StreamError(
                f"{name} is {given(event)}: an event made with create_event() or a stream's "
                "record() is needed"
            )
        both_cuda = self.info.kind == event.device.info.kind == "cuda"
        if event.device is not self and not (across and both_cuda):
            raise StreamError(
                f"{name} is an event of {event.device.told_from(self)}, not of "
                f"{self.told_from(event.device)}: create one with this device's create_event()"
            )

    def create_event(self, *, timing: bool = True) -> Event:
        """Make an event, not yet recorded."""
        require_kind("timing", timing, bool)
        return Event(self, timing=timing)

    def synchronize(self) -> None:
        """Wait on the host for everything queued on this device."""
        call = self.begin_call("sync", "device.synchronize", None, None)
        try:
            self.backend.synchronize()
        finally:
            self.end_call(call)

    def take_event(self) -> Event:
        """Return an event without timing for a handle's completion: a spare one, or new."""
        while True:
            try:
                event = self._spare_events.pop()
            except IndexError:  # none is left, or another thread took the last one
                return Event(self, timing=False)
            if not event.closed:  # one collected together with its owner comes back closed
                return event

    def give_event(self, event: Event) -> None:
        """Take back an event from :meth:`take_event`."""
        self._spare_events.append(event)

    # -- arrays -----------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
        """Return an uninitialised array in device memory.

        Parameters
        ----------
        shape
            In elements.
        dtype
            A NumPy dtype or its name; ``"bfloat16"`` is known too.

        Notes
        -----
        Its memory is given out again when nobody holds the array or a view of it, and what
        gpuscope queued with it is done, on whatever stream; work of another library counts on
        the stream that was selected here, and where :meth:`Stream.hold` says so.
        """
        return self._selected_holds(self.backend.empty(as_shape(shape), as_dtype(dtype)))

    def _selected_holds(self, array: Any) -> Any:
        """Let an array count as used on the selected stream: libraries launch there unseen."""
        stream = caller.get_caller_stream()
        if stream is None:
            stream = caller.peek_current_stream(self.identity)
        if isinstance(stream, Stream) and stream.device is self and not stream.closed:
            made: list[Any] | None = getattr(self._of_thread, "made", None)
            if stream.tag is None and made is not None:
                made.append(array)
            else:
                stream.hold(array)
        return array

    @contextlib.contextmanager
    def holding_arrays(self, stream: Stream) -> Iterator[None]:
        """Hold the arrays that this thread makes meanwhile for what is then queued on ``stream``.

        For a stream that is not ours; on one of ours an array is held as soon as it is made.
        """
        before: list[Any] | None = getattr(self._of_thread, "made", None)
        made: list[Any] = []
        self._of_thread.made = made
        try:
            yield
        finally:
            self._of_thread.made = before
            stream.hold(*made)

    def empty_pinned(
        self, shape: int | tuple[int, ...], dtype: Any = "float32"
    ) -> np.ndarray[Any, Any]:
        """Return an uninitialised array in page-locked host memory.

        :meth:`Stream.copy` from and to it never waits; do not change it before the copy is done.
        """
        return self.backend.empty_pinned(as_shape(shape), as_dtype(dtype))

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        """Copy host values into device memory; done when it returns.

        Values in another byte order are turned into this machine's, the only one of a device.
        """
        try:
            host = np.asarray(values, dtype=None if dtype is None else as_dtype(dtype))
        except InvalidOperand:
            raise
        except Exception as error:  # an array of another library may refuse in its own way
            raise InvalidOperand(
                f"values is {given(values)}, which NumPy cannot read ({error}): give numbers in "
                "host memory"
            ) from error
        host = host.astype(as_dtype(host.dtype.newbyteorder("=")), copy=False)
        with self._setting_up("asarray"):
            array = self.backend.asarray(np.ascontiguousarray(host).reshape(host.shape))
            return self._selected_holds(array)

    def random(self, shape: int | tuple[int, ...], dtype: Any = "float32", *, seed: int = 0) -> Any:
        """Return an array of uniform values in [-0.5, 0.5); done when it returns."""
        seed = count("seed", seed, error=InvalidOperand)
        array = self.empty(shape, dtype)
        with self._setting_up("random"):
            self.backend.fill_random(array, seed)
        return array

    @contextlib.contextmanager
    def _setting_up(self, name: str) -> Iterator[None]:
        """Tell observers that what runs now is given to no stream of anybody's."""
        if not self.observers:
            yield
            return
        call = self.begin_call("setup", name, None, None)
        try:
            yield
        finally:
            self.end_call(call)

    def scratch(self, nbytes: int) -> Scratch:
        """Take device memory for a while: hold it in ``with``, or close it.

        Inside a workload's call it is the call's: tagged by its stream, and given back with
        it. Outside any it is untagged: the device is synchronised now and when it goes back.

        Raises
        ------
        InvalidOperand
            ``nbytes`` is negative, overflows, or is more than the device has.
        """
        from gpuscope.device import scratch  # noqa: PLC0415 - it needs this module

        return scratch.take(self, nbytes)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """Wait for the whole device, then return the array's values.

        Raises
        ------
        InvalidOperand
            It is no array of this device.
        """
        self.require_array(array, "array", on_host=False)
        self.synchronize()
        return self.backend.to_host(array)

    def require_array(
        self, value: Any, name: str, *, write: bool = False, on_host: bool = True
    ) -> None:
        """Refuse what is neither an array of this device nor one of NumPy, or is read-only.

        Raises
        ------
        InvalidOperand
            Names the argument.
        """
        backend = self.backend
        if isinstance(value, np.ndarray) and (on_host or type(value) is backend.array_type):
            if write and not value.flags.writeable:
                raise InvalidOperand(f"{name} is read-only: give an array that can be written")
            return
        array = value
        if type(value) is not backend.array_type:
            try:
                array = backend.adopt(value, write=write)
            except InvalidOperand as error:
                raise InvalidOperand(f"{name}: {error}") from error
        if array is None:
            raise InvalidOperand(
                f"{name} is {given(value)}, not an array on {self.info.key}: make one with the "
                "device's asarray() or empty()"
            )
        if backend.home_of(array) != backend.home:
            raise InvalidOperand(
                f"{name} is on another device than {self.info.key}: copy it there first"
            )

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, *, model: KernelModel | None = None) -> Kernel:
        """Compile CUDA C++ ``source`` and return its ``extern "C"`` kernel ``name``.

        Parameters
        ----------
        model
            How the kernel behaves on a device that cannot run source; a simulated device
            needs it.

        Raises
        ------
        InvalidOperand
            ``source`` or ``name`` is no text, or ``model`` no :class:`KernelModel`.
        CapabilityError
            The device cannot run source and no model was given.
        """
        for what, text in (("source", source), ("name", name)):
            if not isinstance(text, str):
                raise InvalidOperand(f"{what} is {given(text)}; a text is needed")
        if not (model is None or isinstance(model, KernelModel)):
            raise InvalidOperand(f"model is {given(model)}; a KernelModel or None is needed")
        return self.backend.compile(source, name, model)

    # -- observers --------------------------------------------------------------------
    def observe(self, observer: Observer) -> None:
        """Let ``observer`` watch every call on this device until :meth:`unobserve`."""
        with self._lock:
            self.observers = (*self.observers, observer)
            self.backend.set_activity_sink(self.report)

    def unobserve(self, observer: Observer) -> None:
        """Stop telling ``observer``."""
        with self._lock:
            self.observers = tuple(other for other in self.observers if other is not observer)
            if not self.observers:
                self.backend.set_activity_sink(None)

    def report(self, activity: Activity) -> None:
        """Tell observers of finished work."""
        for observer in self.observers:
            observer.activity(activity)

    def begin_call(
        self, kind: str, name: str, stream: Stream | None, intended: Stream | None, **facts: Any
    ) -> Call:
        """Tell observers that a call begins; returns its record for :meth:`end_call`."""
        call = Call(
            kind,
            name,
            self.info.key,
            self.next_correlation(),
            self.backend.process_and_thread()[1],
            self.backend.now_ns(),
            stream,
            intended,
            **facts,
        )
        if stream is not None and stream.capturing:
            return call  # it becomes part of a graph: nothing happens now
        meant: Stream | None = getattr(self._of_thread, "meant", None)
        if meant is not None and intended is not None:
            call.intended = meant
        handle: Call | None = getattr(self._of_thread, "call", None)
        if handle is not None and kind != "setup":
            call.parent, call.workload = handle.correlation, handle.name
        if kind == "launch":
            around: Call | None = getattr(self._of_thread, "around", None)
            if around is not None:
                around.superseded = True
        for observer in self.observers:
            observer.call_begins(call)
        return call

    def enter_handle(self, call: Call | None) -> Call | None:
        """Let calls of this thread name ``call``'s handle as theirs; returns the one before."""
        before: Call | None = getattr(self._of_thread, "call", None)
        self._of_thread.call = call
        return before

    @contextlib.contextmanager
    def meant_for(self, stream: Stream) -> Iterator[None]:
        """Let this thread's calls count as given to ``stream``, whatever stream they name."""
        self._of_thread.meant = stream
        try:
            yield
        finally:
            self._of_thread.meant = None

    def launch_around(self, call: Call | None) -> Call | None:
        """Let a launch of this thread supersede ``call``; returns the one before."""
        before: Call | None = getattr(self._of_thread, "around", None)
        self._of_thread.around = call
        return before

    def end_call(self, call: Call) -> None:
        """Tell observers that a call returned."""
        if call.stream is not None and call.stream.capturing:
            return
        call.end_ns = self.backend.now_ns()
        for observer in self.observers:
            observer.call_ends(call)


class UnifiedDevice(Device):
    """A device on which every choice of stream gives the same one.

    For telling whether streams are to blame: work keeps the order in which it was queued.
    Memory is not tagged by stream, and partitions are not used.
    """

    def __init__(self, backend: Backend, *, correlations: Iterator[int] | None = None) -> None:
        super().__init__(backend, correlations=correlations)
        why = f"{self.info.key} was opened with unified_stream=True"
        self.capabilities = replace(
            self.capabilities,
            stream_ordered_memory=False,
            reasons={**self.capabilities.reasons, "stream_ordered_memory": why},
        )
        self._unified: Stream | None = None

    def choose_stream(self, stream: Any = None) -> tuple[Stream, bool]:
        """Return the one stream, and whether any was selected; refuses what all refuse."""
        chosen, selected = super().choose_stream(stream)
        if chosen.capturing:
            return chosen, selected
        with self._lock:
            if self._unified is None or self._unified.closed:
                self._unified = self.create_stream(name="unified")
            return self._unified, selected


def as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple of sizes, checked."""
    if isinstance(shape, str | bytes):
        raise InvalidOperand(f"shape is {given(shape)}; whole numbers are needed")
    try:
        sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    except TypeError:  # an array of no dimensions says it can be iterated over
        sizes = (shape,)
    checked = tuple(
        count("a size in shape", size, least=-_LARGEST, most=_LARGEST, error=InvalidOperand)
        for size in sizes
    )
    if any(size < 0 for size in checked):
        raise InvalidOperand(f"a shape has no negative sizes, but {checked} was asked for")
    return checked


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a NumPy dtype; knows ``"bfloat16"`` too."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes  # noqa: PLC0415 - only needed for this dtype

        dtype = ml_dtypes.bfloat16
    try:  # of None NumPy would make float64
        found: np.dtype[Any] = np.dtype("none is given" if dtype is None else dtype)
    except Exception as error:  # NumPy evaluates what it is given, which fails in many ways
        raise InvalidOperand(
            f"dtype is {given(dtype)}; one that NumPy or ml_dtypes has is needed"
        ) from error
    if found.kind in "OSUMm" or found.names is not None or found.subdtype is not None:
        raise InvalidOperand(f"dtype is {clean(found, 60)}; one of numbers is needed")
    if not found.isnative:
        raise InvalidOperand(
            f"dtype is {clean(found, 60)}, in another byte order than this machine's, which no "
            f"device computes with; use {found.newbyteorder('=').name}"
        )
    return found
