"""Racy programs and their mended twins, on either device.

:data:`CUSAN` are written after what the runtime tests of CuSan (https://github.com/tudasc/cusan)
describe: memory that the host and the GPU share is page-locked memory here, and what sends by MPI
is a library that copies on a stream of its own. :data:`TRIED` are for ``gs.confirm``: without a
delay the race is always won, or always lost, so their results are the same in every run.
"""

from __future__ import annotations

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
    "double": ("out[i] * 2", lambda out: out * 2),
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
        Of the hazard that is found.
    """

    name: str
    after: str
    program: Callable[..., object]
    kind: str
    first: str
    second: str
    mend: str

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
        launch(b, "double", storage["two"])  # the same stream
        if mended:
            gpu.synchronize()
        launch(a, "rewrite", storage["two"])
        gpu.synchronize()
    return storage["two"]


@race(CUSAN, "11_struct_of_buff", WAW, "double", "rewrite", "a.wait(b.record())")
def a_structure_of_arrays(gpu, mended):
    return _structure(gpu, mended, {"one": filled(gpu, 0), "two": filled(gpu, 0)})


@race(CUSAN, "12_struct_ptr, 13_struct_recursion", WAW, "double", "rewrite", "a.wait(b.record())")
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


@race(CUSAN, "11_cuda_to_mpi_struct_of_buff", RAW, "double", "copy", "mpi.wait(b.record())")
def a_library_that_sends_an_array_of_a_structure(gpu, mended):
    one, two = filled(gpu, 0), filled(gpu, 0)
    with (
        gpu.create_stream(name="a", blocking=True) as a,
        gpu.create_stream(name="b", blocking=True) as b,
    ):
        launch(a, "write", one)
        launch(b, "write", two)
        launch(b, "double", two)
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


@race(CUSAN, "21_chunked_streams_example", RAW, "write", "copy", "chunk_0.wait(a.record())")
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
