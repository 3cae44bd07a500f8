"""Hazards among CuPy's kernels, and between CuPy and gpuscope, on a GPU."""

from __future__ import annotations

import pytest

import gpuscope as gs

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

SIZE = 1 << 20
SCALE = cupy.RawKernel(
    r"""
extern "C" __global__ void scale(float* out, const float* in, long long n) {
  for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = 2 * in[i];
}
""",
    "scale",
)
ADD = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x + y", "add")
NORM = cupy.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
TOTAL = cupy.zeros((), "float32")


def scale(out, source):
    SCALE((1,), (256,), (out, source, out.size))


WRITES = {
    "universal function": lambda x, y: cupy.add(y, 1, out=x),
    "in place": lambda x, y: x.__iadd__(y),
    "element-wise": lambda x, y: ADD(y, y, x),
    "fill": lambda x, _y: x.fill(3),
    "part": lambda x, _y: x.__setitem__(slice(0, None, 2), 1),
    "raw": scale,
    "cumsum": lambda x, y: y.cumsum(out=x),
}
READS = {
    "operator": lambda x, y: x + 1,
    "element-wise": lambda x, y: ADD(x, x, y),
    "reduction": lambda x, y: NORM(x, TOTAL),
    "sum": lambda x, y: x.sum(),
    "cupy.max": lambda x, y: cupy.max(x),
    "raw": lambda x, y: scale(y, x),
    "get": lambda x, y: x.get(),
}


@pytest.fixture
def gpu():
    return gs.open_device("cuda:0", quiet=True)


@pytest.fixture
def streams():
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]


@pytest.fixture
def arrays():
    return [cupy.ones(SIZE, "float32") for _ in range(3)]


def facts_of(gpu, program):
    program()  # what it compiles
    cupy.cuda.Device().synchronize()
    with gs.profile(gpu, hazards=True) as recording:
        program()
        cupy.cuda.Device().synchronize()
    return gs.analysis.hazards(recording.trace).facts


def two(streams, arrays, write, read, order):
    (a, b), (x, y, z) = streams, arrays

    def program():
        with a:
            WRITES[write](x, y)
        order(a, b)
        with b:
            READS[read](x, z)

    return program


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("write", "read"), [*[(write, "raw") for write in WRITES], *[("raw", read) for read in READS]]
)
def test_a_read_after_a_write(gpu, streams, arrays, write, read, ordered):
    def order(a, b):
        if ordered:
            b.wait_event(a.record())

    facts = facts_of(gpu, two(streams, arrays, write, read, order))
    kinds = {fact.kind for fact in facts.found}
    assert kinds == (set() if ordered else {"read after write"}), facts
    for fact in facts.found:
        assert fact.first is not None
        assert fact.second is not None


def by_the_runtime(a, b):
    event = a.record()  # which has to live until the stream waits for it
    cupy.cuda.runtime.streamWaitEvent(b.ptr, event.ptr, 0)


@pytest.mark.parametrize(
    "order",
    [
        lambda a, _b: a.synchronize(),
        lambda a, _b: a.record().synchronize(),
        lambda _a, _b: cupy.cuda.Device().synchronize(),
        lambda _a, _b: cupy.cuda.runtime.deviceSynchronize(),
        by_the_runtime,
    ],
    ids=["stream", "event", "device", "runtime", "runtime's wait"],
)
def test_the_order_that_cupy_makes(gpu, streams, arrays, order):
    assert not facts_of(gpu, two(streams, arrays, "element-wise", "operator", order)).found


def test_two_readers_and_other_parts_are_not_accused(gpu, streams, arrays):
    x, y, z = arrays

    def program():
        for stream, start in zip(streams, (0, 1), strict=True):
            with stream:
                cupy.add(x[::2], 1, out=y[start::2])
                x.sum()
                scale(z[start * SIZE // 2 : (start + 1) * SIZE // 2], x)

    facts = facts_of(gpu, program)
    assert not facts.found
    assert facts.accesses >= 6


def test_ordinary_work_is_not_accused(gpu):
    """Temporaries that the pool gives out again, on one stream and then on another."""

    def program():
        x = cupy.random.rand(SIZE, dtype="float32")
        y = (x * 2 + 1).astype("float16")
        side = cupy.cuda.Stream(non_blocking=True)
        side.wait_event(cupy.cuda.get_current_stream().record())
        with side:
            total = cupy.sqrt(y.astype("float32")).sum()
        side.synchronize()
        assert float(total) > 0
        del x, y, total
        assert float(cupy.linalg.norm(cupy.ones(SIZE, "float32"))) > 0

    assert not facts_of(gpu, program).found


@pytest.mark.parametrize("ordered", [True, False])
def test_cupy_and_gpuscope(gpu, ordered):
    x, y = gpu.random((512, 512)), gpu.empty((512, 512))

    def program():
        with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
            with cupy.cuda.ExternalStream(a.handle):
                cupy.multiply(x, 2, out=x)
            if ordered:
                b.wait(a.record())
            b.copy(y, x)
            gpu.synchronize()

    facts = facts_of(gpu, program)
    assert [fact.kind for fact in facts.found] == ([] if ordered else ["read after write"])


def test_arrays_of_ours_are_made_and_read_in_peace(gpu):
    def program():
        x, y = gpu.random((512, 512)), gpu.empty((512, 512))
        with gpu.create_stream() as a:
            a.copy(y, x)
            a.synchronize()
        assert gpu.to_host(y).sum() != 0

    assert not facts_of(gpu, program).found


def test_all_is_as_it_was(gpu):
    before = [cupy.RawKernel.__call__, cupy.ReductionKernel.__call__, cupy.ndarray.sum]
    facts_of(gpu, lambda: cupy.ones(10).sum())
    assert before == [cupy.RawKernel.__call__, cupy.ReductionKernel.__call__, cupy.ndarray.sum]
    assert not hasattr(cupy.ndarray, "__cupy_override_elementwise_kernel__")
    assert float((cupy.ones(10) + 1).sum()) == 20
