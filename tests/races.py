"""Racy programs and their mended twins, on either device.

:data:`CUSAN` are written after what the runtime tests of CuSan (https://github.com/tudasc/cusan)
describe: memory that the host and the GPU share is page-locked memory here, and what sends by MPI
is a library that copies on a stream of its own. Not among them are 10_cudahostalloc, which only
allocates; 34_negative_array, whose kernel writes in front of the pointer that it gets, so that no
argument tells of it (CuSan misses it, too); and two for several GPUs, which ``test_hazards`` has as
notes for the detector. :data:`TRIED` are for ``gs.confirm``: without a
delay the race is always won, or always lost, so their results are the same in every run.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel

SIZE = 1024
SLOW_NS = 5_000_000
_PAUSE_NS = 3_000_000
_LEGACY = 1

_VALUES: dict[str, tuple[str, Callable[..., Any]]] = {
    "write": ("1", lambda: 1),
    "rewrite": ("2", lambda: 2),
    "increment": ("out[i] + 1", lambda out: out + 1),
    "twice": ("out[i] * 2", lambda out: out * 2),
    "read": ("in[i]", lambda values: values),
    "add": ("out[i] + in[i]", lambda out, values: out + values),
}
"""Name of a kernel → what it writes to an element; and the same of arrays."""
_SOURCE = r"""
extern "C" __global__ void NAME(float* out, const float* in, long long n, long long ns) {
  unsigned long long begun, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while ((long long)(now - begun) < ns);
  for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = VALUE;
}
"""


def launch(stream: Any, name: str, out: Any, *read: Any, ns: int = 2_000) -> None:
    """Launch a kernel of ``_VALUES`` that takes ``ns`` and then writes ``out``."""
    value, compute = _VALUES[name]
    updates = "out[i]" in value
    model = KernelModel(
        lambda _profile, grid, _args, _sm_count: KernelCost(grid, ns),
        reads=lambda _args: [out] * updates + [*read],
        writes=lambda _args: out,
        compute=lambda *values: np.broadcast_to(compute(*values), out.shape),
    )
    source = _SOURCE.replace("NAME", name).replace("VALUE", value)
    kernel = stream.device.compile(source, name, model=model)
    stream.launch(kernel, out, *(read or (0,)), out.size, ns, grid=1, block=256)


def load(gpu: Any, *names: str) -> None:
    """Launch kernels once, as what is captured must be loaded."""
    with gpu.create_stream(name="load") as stream:
        for name in names:
            launch(stream, name, filled(gpu, 0), *[filled(gpu, 0)] * (name == "read"))


def filled(gpu: Any, value: float) -> Any:
    return gpu.asarray(np.full(SIZE, value, "float32"))


def page_of(gpu: Any, value: float) -> Any:
    """Return page-locked memory, which a GPU's kernels can access, too."""
    page = gpu.empty_pinned(SIZE)
    page[...] = value
    return page


def pause(gpu: Any) -> None:
    """Let the host do other things for longer than the work that is queued takes."""
    gpu.backend.wait_until_ns(gpu.now_ns() + _PAUSE_NS)


def default(gpu: Any) -> Any:
    return gpu.wrap_stream(_LEGACY, name="default")


def send(gpu: Any, data: Any, *, wait: bool = True) -> Any:
    """Send as a library that knows nothing of the caller's streams; returns what it sent."""
    page = page_of(gpu, 0)
    with gpu.create_stream(name="mpi") as mpi:
        mpi.copy(page[: data.size], data)
        if wait:
            mpi.synchronize()
    return page


def values(gpu: Any, result: Any) -> list[Any]:
    """Return what a program returned, as lists of numbers."""
    results = result if isinstance(result, list) else [result]
    return [
        (one if isinstance(one, np.ndarray) else gpu.to_host(one)).ravel().tolist()
        for one in results
    ]


class Race(NamedTuple):
    """A racy program and its mended twin.

    Attributes
    ----------
    after
        What it is modelled on.
    program
        ``program(gpu, mended=…)`` → what the race could spoil.
    kind, first, second, mend
        Of the hazard that is found; "" where a library chooses the name.
    """

    name: str
    after: str
    program: Callable[..., object]
    kind: str
    first: str
    second: str
    mend: str

    def is_found(self, fact: Any) -> bool:
        """Whether a hazard is the one that it has."""
        return fact.kind == self.kind and all(
            expected in ("", found)
            for expected, found in (
                (self.first, fact.first_name),
                (self.second, fact.second_name),
                (self.mend, fact.mend.split("  #")[0]),
            )
        )

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


CUSAN: list[Race] = []
TRIED: list[Race] = []


def race(
    races: list[Race], after: str, kind: str, first: str, second: str, mend: str
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Put a program into a table."""

    def put(program: Callable[..., object]) -> Callable[..., object]:
        name = program.__name__.replace("_", " ")
        races.append(Race(name, after, program, kind, first, second, mend))
        return program

    return put


RAW, WAR, WAW = "read after write", "write after read", "write after write"
REUSE, COPY, HOST = "reuse of freed memory", "use before a copy ended", "host access too early"
READS, WRITES = "NumPy's copy", "NumPy's write"


# -- CuSan: the host and what it waits for ---------------------------------------------------
@race(CUSAN, "02_event", HOST, "write", READS, "default.synchronize()")
def an_event_that_nobody_waits_for(gpu, mended):
    page = page_of(gpu, 0)
    stream = default(gpu)
    launch(stream, "write", page)
    event = stream.record()
    if mended:
        event.synchronize()
    return page.copy()


@race(CUSAN, "14_cuda_functor", HOST, "write", READS, "a.synchronize()")
def a_function_that_holds_its_array(gpu, mended):
    page = page_of(gpu, 0)

    @gs.workloads.workload(writes=("held",))
    def functor(ctx, held):
        launch(ctx.stream, "write", held)

    with gpu.create_stream(name="a") as a, functor(gpu) as handle:
        handle.execute(page, stream=a)
        if mended:
            a.record().synchronize()
        return page.copy()


@race(CUSAN, "35_struct_null", HOST, "write", READS, "default.synchronize()")
def a_kernel_with_a_null_pointer(gpu, mended):
    page = page_of(gpu, 0)
    launch(default(gpu), "write", page)
    if mended:
        gpu.synchronize()
    return page.copy()


@race(CUSAN, "09_cudamemcpy_default", HOST, "copy", READS, "default.synchronize()")
def a_copy_from_host_to_host(gpu, mended):
    page, other = page_of(gpu, 0), page_of(gpu, 1)
    default(gpu).copy(page, other)
    if mended:
        default(gpu).synchronize()
    return page.copy()


@race(CUSAN, "17_cuda_stream_query_busy_loop", HOST, "write", READS, "a.synchronize()")
def a_loop_that_asks_a_stream(gpu, mended):
    page = page_of(gpu, 0)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", page)
        while mended and not a.is_done:
            pass
        return page.copy()


@race(CUSAN, "18_cuda_event_query_busy_loop", HOST, "write", READS, "a.synchronize()")
def a_loop_that_asks_an_event(gpu, mended):
    page, event = page_of(gpu, 0), gpu.create_event()
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", page)
        a.record(event)
        while mended and not event.is_done:
            pass
        return page.copy()


@race(CUSAN, "18_cuda_event_with_flags_query_busy_loop", HOST, "write", READS, "a.synchronize()")
def a_loop_that_asks_an_event_without_timing(gpu, mended):
    page, event = page_of(gpu, 0), gpu.create_event(timing=False)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", page)
        a.record(event)
        while mended and not event.is_done:
            pass
        return page.copy()


# -- CuSan: structures of arrays, and two streams ----------------------------------------------
def _structure(gpu, mended, storage):
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", storage["one"])
        launch(b, "write", storage["two"])  # another array
        launch(b, "twice", storage["two"])  # the same stream
        if mended:
            gpu.synchronize()
        launch(a, "rewrite", storage["two"])
        gpu.synchronize()
    return storage["two"]


@race(CUSAN, "11_struct_of_buff", WAW, "twice", "rewrite", "a.wait(b.record())")
def a_structure_of_arrays(gpu, mended):
    return _structure(gpu, mended, {"one": filled(gpu, 0), "two": filled(gpu, 0)})


@race(CUSAN, "12_struct_ptr, 13_struct_recursion", WAW, "twice", "rewrite", "a.wait(b.record())")
def arrays_of_one_allocation(gpu, mended):
    both = filled(gpu, 0)
    return _structure(gpu, mended, {"one": both[: SIZE // 2], "two": both[SIZE // 2 :]})


@race(CUSAN, "31_tsan_cuda_event", RAW, "increment", "increment", "b.wait(a.record())")
def an_event_that_the_host_should_wait_for(gpu, mended):
    data = filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "increment", data)
        event = a.record()
        if mended:
            event.synchronize()
        launch(b, "increment", data)
    return data


@race(CUSAN, "32_tsan_async_copy", RAW, "write", "copy", "b.wait(a.record())")
def a_copy_on_another_stream(gpu, mended):
    data, host = filled(gpu, 0), np.zeros(SIZE, "float32")
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data)
        if mended:
            a.synchronize()
        b.copy(host, data)
        b.synchronize()
    return host


@race(CUSAN, "33_tsan_wait_event", RAW, "write", "read", "b.wait(a.record())")
def a_wait_for_an_event(gpu, mended):
    data, found, host = filled(gpu, 0), filled(gpu, 0), np.zeros(SIZE, "float32")
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", data)
        event = a.record()
        if mended:
            b.wait(event)
        launch(b, "read", found, data)
        default(gpu).copy(host, data)  # waits for both, and reads only
        b.synchronize()
    return found


# -- CuSan: the barrier of the legacy default stream -------------------------------------------
@race(CUSAN, "15_cuda_memset_sync", HOST, "write", READS, "a.synchronize()")
def a_barrier_between_blocking_streams(gpu, mended):
    page, other, small = page_of(gpu, 0), filled(gpu, 0), filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", page)
        if mended:
            launch(default(gpu), "write", small)
        launch(b, "write", other)
        b.synchronize()
        return page.copy()


@race(CUSAN, "15_cuda_memset_sync_nonblocking", HOST, "write", READS, "a.synchronize()")
def a_barrier_that_a_stream_does_not_know(gpu, mended):
    page, other, small = page_of(gpu, 0), filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b", blocking=True) as b:
        launch(a, "write", page)
        launch(default(gpu), "write", small)
        if mended:
            a.synchronize()
        launch(b, "write", other)
        b.synchronize()
        return page.copy()


@race(CUSAN, "16_cuda_malloc_implicit_sync", RAW, "write", "copy", "b.wait(a.record())")
def memory_whose_allocation_waits(gpu, mended):
    data, page = filled(gpu, 0), page_of(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", data)
        if mended:
            gpu.scratch(64).close()  # of no stream: it waits for the device
        else:
            gpu.empty(16)
        b.copy(page, data)
        b.synchronize()
        return page.copy()


@race(CUSAN, "19_cuda_cudaMemcpyAsyncH2H_implicit_sync", RAW, "write", "copy", "b.wait(a.record())")
def a_copy_from_host_to_host_as_a_barrier(gpu, mended):
    data, page = filled(gpu, 0), page_of(gpu, 0)
    host, other = np.zeros(4, "float32"), np.zeros(4, "float32")
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", data)
        if mended:
            default(gpu).copy(host, other)
        b.copy(page, data)
        b.synchronize()
        return page.copy()


@race(
    CUSAN, "19_cuda_cudaMemcpyAsyncH2H_implicit_sync_nonblocking", RAW, "write", "copy",
    "b.wait(a.record())",
)  # fmt: skip
def a_copy_from_host_to_host_that_orders_nothing(gpu, mended):
    data, page = filled(gpu, 0), page_of(gpu, 0)
    host, other = np.zeros(4, "float32"), np.zeros(4, "float32")
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data)
        default(gpu).copy(host, other)
        if mended:
            a.synchronize()
        b.copy(page, data)
        b.synchronize()
        return page.copy()


@race(CUSAN, "20_cuda_default_stream_sync", HOST, "write", READS, "a.synchronize()")
def a_wait_for_the_default_stream(gpu, mended):
    page, other = page_of(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", page)
        launch(default(gpu), "write", other)
        if mended:
            default(gpu).synchronize()
        return page.copy()


@race(CUSAN, "23_cuda_default_stream_post_sync", HOST, "write", READS, "default.synchronize()")
def a_wait_behind_the_default_stream(gpu, mended):
    page, other = page_of(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(default(gpu), "write", page)
        launch(a, "write", other)
        if mended:
            a.synchronize()
        return page.copy()


@race(
    CUSAN, "23_cuda_default_stream_post_sync_nonblocking", HOST, "write", READS,
    "default.synchronize()",
)  # fmt: skip
def a_wait_beside_the_default_stream(gpu, mended):
    page, other = page_of(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a:
        launch(default(gpu), "write", page)
        launch(a, "write", other)
        a.synchronize()
        if mended:
            gpu.synchronize()
        return page.copy()


@race(CUSAN, "24_cuda_sync_stream_default_nonblocking", HOST, "write", READS, "a.synchronize()")
def a_wait_for_an_empty_default_stream(gpu, mended):
    page = page_of(gpu, 0)
    with gpu.create_stream(name="a", blocking=mended) as a:
        launch(a, "write", page)
        default(gpu).synchronize()
        return page.copy()


@race(CUSAN, "25_cuda_default_stream_double_sync", HOST, "write", READS, "a.synchronize()")
def a_barrier_on_the_way(gpu, mended):
    page, other = page_of(gpu, 0), filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", page)
        launch(default(gpu), "write", other)
        launch(b, "write", other)
        if mended:
            b.synchronize()
        return page.copy()


@race(CUSAN, "27_cuda_memcpy2d_implicit_syn", RAW, "write", "copy", "b.wait(a.record())")
def a_copy_to_pageable_memory_as_a_barrier(gpu, mended):
    data, page, host = filled(gpu, 0), page_of(gpu, 0), np.zeros((16, 16), "float32")
    rows = data.reshape((16, SIZE // 16))[:, :16]  # of a pitch
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", data)
        if mended:
            default(gpu).copy(host[0], rows[0])
        b.copy(page, data)
        b.synchronize()
        return page.copy()


@race(CUSAN, "28_cuda_memset2d_implicit_syn", RAW, "write", "copy", "b.wait(a.record())")
def a_barrier_and_a_priority(gpu, mended):
    data, page, small = filled(gpu, 0), page_of(gpu, 0), filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True, priority=-1) as b,
    ):
        launch(a, "write", data)
        if mended:
            launch(default(gpu), "write", small)
        b.copy(page, data)
        b.synchronize()
        return page.copy()


# -- CuSan: what a library sends ----------------------------------------------------------------
@race(
    CUSAN, "03_cuda_to_mpi, 26_malloc_pitch, 29_tsan_cuda_to_mpi, 30_tsan_annotate_cuda_to_mpi",
    RAW, "write", "copy", "mpi.wait(default.record())",
)  # fmt: skip
def a_library_that_sends(gpu, mended):
    data = filled(gpu, 0)
    launch(default(gpu), "write", data)
    if mended:
        gpu.synchronize()
    return send(gpu, data)


@race(CUSAN, "05_cuda_to_mpi_stream", RAW, "write", "copy", "mpi.wait(a.record())")
def a_library_that_sends_what_a_stream_writes(gpu, mended):
    data = filled(gpu, 0)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", data)
        if mended:
            a.synchronize()
        return send(gpu, data)


@race(
    CUSAN, "06_cuda_to_mpi_event, 18_cuda_to_mpi_event_query_busy_loop", RAW, "write", "copy",
    "mpi.wait(default.record())",
)  # fmt: skip
def a_library_that_sends_behind_an_event(gpu, mended):
    data, stream = filled(gpu, 0), default(gpu)
    launch(stream, "write", data)
    event = stream.record()
    if mended:
        event.synchronize()
    return send(gpu, data)


@race(CUSAN, "07_cuda_to_mpi_read", RAW, "increment", "copy", "mpi.wait(default.record())")
def a_library_that_sends_what_others_read(gpu, mended):
    data, found = filled(gpu, 1), filled(gpu, 0)
    if mended:
        launch(default(gpu), "read", found, data)
    else:
        launch(default(gpu), "increment", data)
    return send(gpu, data)


@race(CUSAN, "04_mpi_to_cuda", COPY, "copy", "rewrite", "default.wait(mpi.record())")
def a_library_that_receives(gpu, mended):
    data, message = filled(gpu, 0), page_of(gpu, 1)
    with gpu.create_stream(name="mpi") as mpi:
        mpi.copy(data, message)
        if mended:
            mpi.synchronize()
        launch(default(gpu), "rewrite", data)
    return data


@race(CUSAN, "08_cudamemcpy_to_mpi", COPY, "copy", "copy", "mpi.wait(a.record())")
def a_copy_from_pageable_memory(gpu, mended):
    data, host = filled(gpu, 0), np.ones(SIZE, "float32")
    with gpu.create_stream(name="a") as a:
        a.copy(data, host)  # returns once it is staged
        if mended:
            a.synchronize()
        return send(gpu, data)


@race(CUSAN, "11_cuda_to_mpi_struct_of_buff", RAW, "twice", "copy", "mpi.wait(b.record())")
def a_library_that_sends_an_array_of_a_structure(gpu, mended):
    one, two = filled(gpu, 0), filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", one)
        launch(b, "write", two)
        launch(b, "twice", two)
        if mended:
            gpu.synchronize()
        return send(gpu, two)


@race(
    CUSAN, "19_cuda_to_mpi_send_cudaMemcpyAsyncH2H_implicit_sync, 20_cuda_to_mpi_send_ds_sync_w_r",
    RAW, "write", "copy", "mpi.wait(a.record())",
)  # fmt: skip
def a_library_that_sends_behind_a_barrier(gpu, mended):
    data, other = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", data)
        launch(default(gpu), "write", other)
        if mended:
            default(gpu).synchronize()
        return send(gpu, data)


@race(CUSAN, "21_chunked_streams_example", RAW, "write", "copy", "")
def chunks_on_streams_of_their_own(gpu, mended):
    data, page = filled(gpu, 0), page_of(gpu, 0)
    chunk = SIZE // 4
    parts = [slice(start, start + chunk) for start in range(0, SIZE, chunk)]
    streams = [gpu.create_stream(name=f"chunk {n}", blocking=True) for n in range(4)]
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", data)
        if mended:
            a.synchronize()
        for stream, part in zip(streams, parts, strict=True):
            stream.copy(page[part], data[part])
        found = []
        for stream, part in zip(streams, parts, strict=True):
            stream.synchronize()
            found.append(page[part].copy())
            stream.close()
    return found


@race(CUSAN, "22_cuda_to_mpi_partial_buff_write", RAW, "write", "copy", "mpi.wait(a.record())")
def halves_of_an_array(gpu, mended):
    data, half = filled(gpu, 0), SIZE // 2
    with gpu.create_stream(name="a", blocking=True) as a:
        launch(a, "write", data[:half])
        a.synchronize()
        launch(a, "write", data[half:])
        sent = [send(gpu, data[:half])]  # of which nobody writes
        if mended:
            a.synchronize()
        return [*sent, send(gpu, data[half:])]


# -- for gs.confirm ------------------------------------------------------------------------------
# pause() lets the first work end in front of the second, so that the race is won unless somebody
# delays it; SLOW_NS lets it be lost every time.
@race(TRIED, "a consumer that forgets its event", RAW, "write", "read", "b.wait(a.record())")
def read_after_write(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "read", found, data)
    return found


@race(
    TRIED, "the same, where it always comes too early", RAW, "write", "read", "b.wait(a.record())"
)
def read_after_a_slow_write(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data, ns=SLOW_NS)
        if mended:
            b.wait(a.record())
        launch(b, "read", found, data)
    return found


@race(TRIED, "an input that is used again too early", WAR, "read", "write", "b.wait(a.record())")
def write_after_read(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 5)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "read", found, data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "write", data)
    return found


@race(TRIED, "two that write one result", WAW, "write", "rewrite", "b.wait(a.record())")
def write_after_write(gpu, mended):
    data = filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "rewrite", data)
    return data


@race(TRIED, "a wait for an event recorded too early", RAW, "write", "read", "b.wait(a.record())")
def an_event_recorded_too_early(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        event = a.record()
        launch(a, "write", data)
        b.wait(a.record() if mended else event)
        pause(gpu)
        launch(b, "read", found, data)
    return found


@race(TRIED, "half of an array", RAW, "write", "read", "b.wait(a.record())")
def a_view_that_overlaps(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        launch(a, "write", data[SIZE // 4 : SIZE // 2])
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "read", found[: SIZE // 2], data[: SIZE // 2])
    return found


@race(TRIED, "a step of many", RAW, "increment", "read", "b.wait(a.record())")
def one_step_of_a_loop(gpu, mended):
    data, found = filled(gpu, 0), [filled(gpu, 0) for _ in range(4)]
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        for step, out in enumerate(found):
            a.wait(b.record())
            launch(a, "increment", data)
            if mended or step != 2:
                b.wait(a.record())
            pause(gpu)
            launch(b, "read", out, data)
    return found


@race(TRIED, "streams without names", RAW, "write", "read", "")
def streams_without_names(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream() as a, gpu.create_stream() as b:
        launch(a, "write", data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "read", found, data)
    return found


@race(TRIED, "two partitions", RAW, "write", "read", "b.wait(a.record())")
def streams_of_two_partitions(gpu, mended):
    data, found = filled(gpu, 0), filled(gpu, 0)
    with (
        gpu.carve([16, 16]) as parts,
        parts[0].create_stream(name="a") as a,
        parts[1].create_stream(name="b") as b,
    ):
        launch(a, "write", data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "read", found, data)
        gpu.synchronize()
    return found


@race(TRIED, "CuSan's 15_cuda_memset_sync_nonblocking", RAW, "write", "read", "b.wait(a.record())")
def a_barrier_that_is_none(gpu, mended):
    data, other, found = filled(gpu, 0), filled(gpu, 0), filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b", blocking=True) as b:
        launch(a, "write", data)
        if mended:
            default(gpu).wait(a.record())
        launch(default(gpu), "write", other)
        pause(gpu)
        launch(b, "read", found, data)
    return found


# -- copies and the host
@race(TRIED, "a batch that is still on its way", COPY, "copy", "read", "b.wait(a.record())")
def use_before_a_copy_ended(gpu, mended):
    data, found, page = filled(gpu, 0), filled(gpu, 0), page_of(gpu, 1)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        a.copy(data, page)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "read", found, data)
    return found


@race(TRIED, "a result that is read too early", HOST, "copy", READS, "a.synchronize()")
def host_read_of_a_copy(gpu, mended):
    data, page = filled(gpu, 1), page_of(gpu, 0)
    with gpu.create_stream(name="a") as a:
        a.copy(page, data)
        if mended:
            a.synchronize()
        pause(gpu)
        return page.copy()


@race(TRIED, "a staging buffer that is filled again", HOST, "copy", WRITES, "a.synchronize()")
def host_write_to_a_staging_buffer(gpu, mended):
    data, page = filled(gpu, 0), page_of(gpu, 1)
    with gpu.create_stream(name="a") as a:
        a.copy(data, page)
        if mended:
            a.synchronize()
        pause(gpu)
        page[...] = 2
    return data


@race(TRIED, "CuSan's 02_event", HOST, "write", READS, "a.synchronize()")
def host_read_of_what_a_kernel_writes(gpu, mended):
    page = page_of(gpu, 0)
    with gpu.create_stream(name="a") as a:
        launch(a, "write", page, ns=SLOW_NS)
        if mended:
            a.record().synchronize()
        return page.copy()


# -- memory, graphs, products
@race(TRIED, "scratch used beside its stream", REUSE, "read", "rewrite", "")
def reuse_of_freed_memory(gpu, mended):
    found = filled(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:

        @gs.workloads.workload
        def first(ctx):
            scratch = ctx.scratch(SIZE * 4).view(SIZE)
            launch(ctx.stream, "write", scratch)
            b.wait(ctx.stream.record())
            launch(b, "read", found, scratch)
            if mended:
                ctx.stream.wait(b.record())

        @gs.workloads.workload
        def second(ctx):
            launch(ctx.stream, "rewrite", ctx.scratch(SIZE * 4).view(SIZE))

        with first(gpu) as one, second(gpu) as two:
            one.execute(stream=a)
            one.close()
            pause(gpu)
            two.execute(stream=a)
    return found


@race(TRIED, "a graph that nobody waits for", RAW, "write", "read", "b.wait(a.record())")
def read_after_a_graph(gpu, mended):
    data, other, found = (filled(gpu, 0) for _ in range(3))
    load(gpu, "write", "rewrite")
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        with a.capture() as graph:
            launch(a, "rewrite", other)
            launch(a, "write", data)
        with graph:
            graph.launch(stream=a)
            if mended:
                b.wait(a.record())
            pause(gpu)
            launch(b, "read", found, data)
            gpu.synchronize()
    return found


@race(TRIED, "a graph launched too early", COPY, "copy", "read", "b.wait(a.record())")
def a_graph_before_its_input(gpu, mended):
    data, found, page = filled(gpu, 0), filled(gpu, 0), page_of(gpu, 1)
    load(gpu, "read")
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        with b.capture() as graph:
            launch(b, "read", found, data)
        with graph:
            a.copy(data, page)
            if mended:
                b.wait(a.record())
            pause(gpu)
            graph.launch(stream=b)
            gpu.synchronize()
    return found


def _square(gpu, value):
    return gpu.asarray(np.full((64, 64), value, "float32"))


@race(TRIED, "a handle whose product is read too early", RAW, "", "copy", "b.wait(a.record())")
def read_after_a_handle(gpu, mended):
    one, product, found = _square(gpu, 1), _square(gpu, 0), _square(gpu, 0)
    with (
        gpu.create_stream(name="a") as a,
        gpu.create_stream(name="b") as b,
        gs.Gemm(gpu, m=64, n=64, k=64, dtype="float32") as gemm,
    ):
        gemm.execute(one, one, product, stream=a)
        if mended:
            b.wait(a.record())
        pause(gpu)
        b.copy(found, product)
        gpu.synchronize()
    return found


@race(TRIED, "a handle whose operand comes too late", RAW, "write", "", "b.wait(a.record())")
def a_handle_before_its_operand(gpu, mended):
    one, data, product = _square(gpu, 1), _square(gpu, 0), _square(gpu, 0)
    with (
        gpu.create_stream(name="a") as a,
        gpu.create_stream(name="b") as b,
        gs.Gemm(gpu, m=64, n=64, k=64, dtype="float32") as gemm,
    ):
        launch(a, "write", data)
        if mended:
            b.wait(a.record())
        pause(gpu)
        gemm.execute(one, data, product, stream=b)
        gpu.synchronize()
    return product


@race(TRIED, "a product that is overwritten", WAW, "", "rewrite", "b.wait(a.record())")
def write_after_mm_out(gpu, mended):
    one, product = _square(gpu, 1), _square(gpu, 0)
    with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
        gs.mm_out(product, one, one, stream=a)
        if mended:
            b.wait(a.record())
        pause(gpu)
        launch(b, "rewrite", product)
    return product


BORROWED: list[Race] = []
"""With operands of the other libraries that are installed: on a GPU only."""


def _of_library(library: str) -> Callable[..., object]:
    def program(gpu, mended):
        module = importlib.import_module(library)
        place = {"device": "cuda"} if library == "torch" else {}
        one = module.ones((64, 64), **place)
        product, found = (module.zeros((64, 64), **place) for _ in range(2))
        gpu.synchronize()
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            gs.mm_out(product, one, one, stream=a)
            if mended:
                b.wait(a.record())
            pause(gpu)
            gs.mm_out(found, product, one, stream=b)
            gpu.synchronize()
        return found

    program.__name__ = f"operands_of_{library}"
    return program


def operators_of_torch(gpu, mended):
    torch = importlib.import_module("torch")
    data, found = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(a):
        data.fill_(1)
    if mended:
        b.wait_stream(a)
    pause(gpu)
    with torch.cuda.stream(b):
        torch.add(data, 1, out=found)
    torch.cuda.synchronize()
    return found


for _library in ("cupy", "torch"):
    if importlib.util.find_spec(_library) is not None:
        race(BORROWED, "a product of another library's arrays", RAW, "", "", "b.wait(a.record())")(
            _of_library(_library)
        )
if importlib.util.find_spec("torch") is not None:
    race(BORROWED, "operators of PyTorch's", RAW, "aten::fill_", "aten::add", "")(
        operators_of_torch
    )
