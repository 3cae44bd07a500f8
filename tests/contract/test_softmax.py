"""The softmax kind: right values on every device, through its handle and from an experiment."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import InvalidOperand
from gpuscope.workloads import Softmax

ANY_DEVICE = ["sim:h200", "cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
SIZES = [(1, 1), (3, 5), (64, 256), (7, 257), (2, 10_000), (300, 33)]


@pytest.fixture(params=ANY_DEVICE)
def device(request):
    found = gs.open_device(request.param, quiet=True)
    yield found
    found.close()


def expected(x):
    raised = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_the_values_are_numpys(device, rows, columns):
    with Softmax(device, rows=rows, columns=columns, seed=3) as softmax:
        with device.create_stream() as stream:
            out = softmax.execute(stream=stream)
            softmax.wait()
        x, values = device.to_host(softmax.x), device.to_host(out)
    assert values.shape == (rows, columns)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected(x), rtol=2e-6, atol=1e-7)


def test_each_call_in_flight_writes_an_array_of_its_own(device):
    with Softmax(device, rows=8, columns=8, max_in_flight=2) as softmax:
        first, second, third = (softmax.execute() for _ in range(3))
        assert first is not second
        assert first is third


def test_a_partition_limits_it(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts, Softmax(parts["a"], rows=64, columns=64) as it:
        stream = parts["a"].create_stream()
        with gs.profile(gpu) as recording:
            it.execute(stream=stream)
        (kernel,) = recording.trace.where(kind="kernel").spans.to_pylist()
        assert "softmax_kernel" in kernel["name"]
        assert kernel["partition"] == "a"


def test_an_experiment_runs_it(device):
    if device.info.kind == "cpu":
        pytest.skip("experiments record kernels of a GPU")
    run = gs.run(
        {
            "name": "softmax", "alone_repeats": 0, "streams": {"s": {}},
            "workloads": {"w": {"kind": "softmax", "rows": 64, "columns": 512, "stream": "s",
                                "repeats": 5}},
        },
        device,
    )  # fmt: skip
    assert run["default"].kind_counts()["kernel"] == 5


def test_sizes_are_checked(device):
    for sizes in ({"rows": 0, "columns": 1}, {"rows": 1, "columns": 1.5}):
        with pytest.raises(InvalidOperand, match=r"(rows|columns) is .*whole number from 1"):
            Softmax(device, **sizes)
