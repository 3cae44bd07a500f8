"""Which bytes strided accesses have in common, against sets of bytes, and where those are too large."""

import itertools

import numpy as np
import pytest

from gpuscope.device.accesses import Access, operand_of, ranges
from gpuscope.device.overlap import common, shared_bytes


def bytes_of(array):
    """Return the addresses of an array's bytes."""
    offsets = itertools.product(
        *[range(0, size * step, step) if step else [0] * size
          for size, step in zip(array.shape, array.strides, strict=True)],
        range(array.itemsize),
    )  # fmt: skip
    start = array.__array_interface__["data"][0]
    return {start + sum(offset) for offset in offsets}


def all_pairs(mine, theirs, low, high):
    return [(one, other, low, high) for one in mine for other in theirs]


def view_of(rng, block):
    parts = []
    for size in block.shape:
        start = rng.integers(0, size)
        parts.append(slice(start, rng.integers(start, size + 1), rng.integers(1, 4)))
    array = block[tuple(parts)]
    return array[::-1] if rng.random() < 0.3 else array


@pytest.mark.parametrize("item", ["u1", "f4"])
@pytest.mark.parametrize("seed", range(20))
def test_views_of_one_array(seed, item):
    rng = np.random.default_rng(seed)
    block = np.zeros((12, 10, 8), item)
    low, high = block.ctypes.data, block.ctypes.data + block.nbytes
    for _ in range(50):
        one, other = view_of(rng, block), view_of(rng, block)
        expected = bytes_of(one) & bytes_of(other)
        pairs = all_pairs(operand_of(one).accesses(), operand_of(other).accesses(), low, high)
        assert any(common(*pair) for pair in pairs) == bool(expected)
        assert shared_bytes(pairs) == (min(expected, default=0), len(expected))


@pytest.mark.parametrize("seed", range(10))
def test_several_accesses_between_any_addresses(seed):
    """Of two pieces of work with several arrays each, whose bytes count once."""
    rng = np.random.default_rng(seed)
    block = np.zeros(600, "u1")
    for _ in range(30):
        pairs, expected = [], set()
        for _ in range(rng.integers(1, 4)):
            views = [
                block[rng.integers(0, 50) :: rng.integers(1, 40)][: rng.integers(1, 600)]
                for _ in range(2)
            ]
            low, high = block.ctypes.data + np.sort(rng.integers(0, 600, 2))
            mine, theirs = (operand_of(view).accesses() for view in views)
            pairs += all_pairs(mine, theirs, int(low), int(high))
            expected |= bytes_of(views[0]) & bytes_of(views[1]) & set(range(low, high))
        assert shared_bytes(pairs) == (min(expected, default=0), len(expected))


@pytest.mark.parametrize("seed", range(10))
def test_arrays_that_fall_into_too_many_pieces(seed):
    rng = np.random.default_rng(seed)
    block = np.zeros((300, 4, 6, 3), "u2")
    low, high = block.ctypes.data, block.ctypes.data + block.nbytes

    def view():
        starts = [rng.integers(0, size) for size in block.shape[1:]]
        return block[(slice(rng.integers(0, 3), 300), *[slice(one, one + 2) for one in starts])]

    for _ in range(20):
        one, other = view(), view()
        mine, theirs = operand_of(one).accesses(), operand_of(other).accesses()
        assert len(mine) <= 256
        expected = bytes_of(one) & bytes_of(other)
        assert shared_bytes(all_pairs(mine, theirs, low, high)) == (
            min(expected, default=0), len(expected)
        )  # fmt: skip


def test_tiles_of_a_batch_have_nothing_in_common():
    left, right = (ranges(start, (1000, 8, 8), (64 * 64 * 4, 64 * 4, 4), 4) for start in (0, 8 * 4))
    assert len(left) == 1
    assert not common(*left, *right, 0, 1 << 40)


def test_no_row_is_looked_at_twice_where_they_come_back():
    """Of 10¹¹ elements every second and every third."""
    count = 10**11
    one, other = (Access(0, 4 * (count - 1) // step * step + 4, step=4 * step, width=4)
                  for step in (2, 3))  # fmt: skip
    high = min(one.stop, other.stop)
    assert shared_bytes([(one, other, 0, high)]) == (0, 4 * len(range(0, -(-high // 4), 6)))
    assert common(one, other, 0, high)
    odd = Access(4, one.stop - 4, step=8, width=4)
    assert not common(one, odd, 0, high)
    assert not common(
        Access(0, 8 * count, step=8, width=4), Access(4, 16 * count, step=16, width=4), 0, 8 * count
    )


def test_columns_of_a_matrix_have_nothing_in_common():
    matrix = np.zeros((50, 40), "f4")
    left, right, some = (
        operand_of(matrix[:, part]).accesses()[0]
        for part in (slice(0, 8), slice(8, 40), slice(6, 9))
    )
    first = matrix.ctypes.data
    everything = Access(first, first + matrix.nbytes)
    last = everything.stop
    assert not common(left, right, first, last)
    assert common(left, some, first, last)
    assert common(some, right, first, last)
    assert common(left, everything, first, last)
    assert not common(left, everything, first + 32, first + 160)
