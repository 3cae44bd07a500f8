"""Page-locked arrays: NumPy works as ever, and tells what it touched while hazards are recorded."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel

SIZE = 64


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def test_it_computes_as_a_plain_array(gpu):
    page = gpu.empty_pinned((4, 8))
    page[:] = np.arange(32).reshape(4, 8)
    plain = np.arange(32, dtype="float32").reshape(4, 8)
    assert (page == plain).all()
    assert page.sum() == plain.sum()
    assert (page + 1).tolist() == (plain + 1).tolist()
    assert np.concatenate([page, plain]).shape == (8, 8)
    assert page[1, 2] == 10
    assert page[[0, 2]].tolist() == plain[[0, 2]].tolist()
    assert page[page > 5].tolist() == plain[plain > 5].tolist()
    assert page.T.reshape(-1).tolist() == plain.T.reshape(-1).tolist()
    page += 1
    np.add(page, plain, out=page)
    assert page.tolist() == (2 * plain + 1).tolist()
    np.copyto(page, plain)
    page[0] = page[1]
    page[1, 2:4] = 7
    page[[2, 3]] = 0
    assert page.tolist()[0] == plain[1].tolist()
    assert page.argmax() == np.asarray(page).argmax()
    assert [row.tolist() for row in page] == page.tolist()
    assert np.array_equal(copy.deepcopy(page), page)
    assert "array" in repr(page).lower()
    assert float(page[0, 0]) == 8.0


READS = {
    "an element": lambda page: page[0],
    "an element of a view": lambda page: page[8:].reshape(-1, 2)[0, 1],
    "a method": lambda page: page.tolist(),
    "a sum": lambda page: page.sum(),
    "a comparison": lambda page: (page == 1).all(),
    "a function": lambda page: np.concatenate([page, page]),
    "equality": lambda page: np.array_equal(page, page),
    "a loop": list,
    "a choice": lambda page: page[[1, 2]],
    "a mask": lambda page: page[np.ones(SIZE, bool)],
    "text": repr,
    "copyto": lambda page: np.copyto(np.empty(SIZE, "float32"), page),
}
WRITES = {
    "an element": lambda page: page.__setitem__(0, 3),
    "a slice": lambda page: page[4:8].__setitem__(slice(None), 3),
    "a choice": lambda page: page.__setitem__([1, 2], 3),
    "fill": lambda page: page.fill(3),
    "in place": lambda page: page.__iadd__(1),
    "out": lambda page: np.add(1, 1, out=page),
    "copyto": lambda page: np.copyto(page, 3),
    "at": lambda page: np.add.at(page, [0], 1),
}
NEITHER = {
    "its shape": lambda page: (page.shape, len(page), page.dtype, page.nbytes),
    "a view": lambda page: page[3:5].reshape(2, 1).T,
    "another of its kind": np.empty_like,
}


def found(gpu, act, *, upload=False, wait=False):
    page, there = gpu.empty_pinned(SIZE), gpu.empty(SIZE)
    page[:] = 0
    with gpu.create_stream(name="copies") as stream, gs.profile(gpu, hazards=True) as recording:
        if upload:
            stream.copy(there, page)
        else:
            stream.copy(page, there)
        if wait:
            stream.synchronize()
        act(page)
    return gs.analysis.hazards(recording.trace).found


@pytest.mark.parametrize("act", READS.values(), ids=READS)
def test_reading_what_a_copy_still_writes_is_a_hazard(gpu, act):
    assert {one.kind for one in found(gpu, act)} == {"host access too early"}
    assert found(gpu, act, wait=True) == ()


@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_writing_what_a_copy_still_reads_is_a_hazard(gpu, act):
    (one,) = found(gpu, act, upload=True)
    assert one.kind == "host access too early"
    assert one.second_stream == "host"
    assert "synchronize" in one.mend
    assert found(gpu, act, upload=True, wait=True) == ()


@pytest.mark.parametrize("act", READS.values(), ids=READS)
def test_two_may_read(gpu, act):
    assert found(gpu, act, upload=True) == ()


@pytest.mark.parametrize("act", NEITHER.values(), ids=NEITHER)
def test_what_looks_at_no_value_is_no_access(gpu, act):
    assert found(gpu, act) == ()


def test_other_bytes_are_no_hazard(gpu):
    page, there = gpu.empty_pinned(2 * SIZE), gpu.empty(SIZE)
    with gpu.create_stream() as stream, gs.profile(gpu, hazards=True) as recording:
        stream.copy(page[:SIZE], there)
        page[SIZE:] = 1
        page[SIZE:].sum()
    assert gs.analysis.hazards(recording.trace).found == ()


def test_a_kernel_reads_and_writes_it(gpu):
    """A page, an array and both: values are those of when a kernel starts."""
    page, other, x = gpu.empty_pinned(SIZE), gpu.empty_pinned(SIZE), gpu.asarray(np.ones(SIZE))
    page[:] = 2
    add = KernelModel(
        lambda _profile, grid, _args, _sms: KernelCost(grid, 5_000),
        reads=lambda args: args[1:],
        writes=lambda args: args[0],
        compute=lambda one, two: one + two,
    )
    kernel = gpu.compile("", "add", model=add)
    with gpu.create_stream() as stream:
        for out in (other, x, page):
            stream.launch(kernel, out, page, x, grid=1, block=32)
        stream.synchronize()
    assert other.tolist() == [3] * SIZE
    assert gpu.to_host(x).tolist() == [3] * SIZE
    assert page.tolist() == [5] * SIZE
