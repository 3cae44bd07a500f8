"""What a calibration measures: SM counts and shapes, chosen before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from gpuscope.device.carve import SmLayout
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream

Shape = tuple[int, int, int]

SHAPES = 640
"""Shapes of a whole design."""

LEAST, MOST = 16, 8192
"""Sides of a random shape."""

# A few of every kind of kernels, and of the largest that say what the GPU can do at most.
_FIRST: list[Shape] = [
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (511, 257, 1023),
    (514, 1026, 770),
    (4096, 4096, 4096),
    (1, 4096, 4096),
    (256, 256, 256),
    (1025, 2049, 511),
    (2050, 1030, 4098),
    (8192, 8192, 4096),
    (512, 512, 8192),
    (129, 65, 2047),
    (66, 130, 1022),
    (4096, 1, 2048),
    (8192, 128, 1024),
    (64, 8192, 512),
]
_STEPS = (64, 8, 64, 1, 64, 2, 64, 8, 64, 1)
"""Sides are multiples of these, by turns: which kernels there are goes by alignment."""

_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)


def sm_counts(layout: SmLayout) -> list[int]:
    """Return the SM counts to measure on, the whole GPU's first.

    By powers of two, and where a partition leaves out few SMs: all but the driver's remainder,
    or but two quanta, of which partition the remainder is then a part.
    """
    quantum, total = layout.quantum_sm_count, layout.sm_count
    quanta = {max(1, round(share * total / quantum)) for share in _SHARES}
    counts = {number * quantum for number in quanta}
    counts |= {total - (layout.remainder_sm_count or quantum), total - 2 * quantum}
    counts &= set(layout.grantable())
    return sorted(counts | {total}, reverse=True)


def shapes(count: int = SHAPES, *, seed: int = 0, most_elements: int = MOST**2) -> list[Shape]:
    """Return shapes to measure, in an order of which every beginning is a fair sample.

    First a few chosen ones, then random ones with sides from 16 to 8192, by octave alike.

    Parameters
    ----------
    seed
        0 is the fit's own: another gives shapes that the fit never saw, and no chosen ones.
    most_elements
        Of one operand; larger shapes are left out.
    """
    rng = np.random.default_rng(seed)
    default_shapes = set(shapes()) if seed else set()
    chosen: dict[Shape, None] = {}
    candidates = itertools.chain([] if seed else _FIRST, _random(rng))
    while len(chosen) < count:
        m, n, k = shape = next(candidates)
        if max(m * n, m * k, k * n) <= most_elements and shape not in default_shapes:
            chosen[shape] = None
    return list(chosen)


def _random(rng: np.random.Generator) -> Iterator[Shape]:
    for step in itertools.cycle(_STEPS):
        sides = np.exp(rng.uniform(np.log(LEAST), np.log(MOST), 3))
        m, n, k = np.maximum(step, np.round(sides / step) * step).astype(int).tolist()
        yield (m | 1, n | 1, k | 1) if step == 1 else (m, n, k)


def streams_by_count(device: Device) -> Iterator[tuple[int, Stream]]:
    """Yield a stream on each SM count to measure on; it is closed when the next one is asked for.

    Where the device cannot carve, that is the whole GPU only.
    """
    counts = sm_counts(device.backend.layout) if device.capabilities.partitions else []
    with device.create_stream(name="calibration") as stream:
        yield device.sm_count, stream
    for count in counts[1:]:
        with device.carve([count]) as parts, parts[0].create_stream(name="calibration") as stream:
            yield count, stream
