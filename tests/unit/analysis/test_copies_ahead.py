"""Copies beside kernels: what is said to be gained is what two buffers and two streams gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs

CHANGE = "copy beside kernels"


class Program:
    """Chunks that are copied, worked on and copied back, on one stream or on one for each of these.

    Parameters
    ----------
    chunks
        Of each: bytes to the GPU, ns of its kernels, bytes to the host.
    ahead
        Which copies are on a stream of their own, with two buffers.
    """

    def __init__(self, chunks, ahead=()):
        self.gpu = gs.open_device("sim:h200", quiet=True, jitter=False)
        spin = gs.workloads.spin_kernel(self.gpu)
        work = self.gpu.create_stream(name="work")
        streams = {way: self.gpu.create_stream(name=way) if way in ahead else work
                   for way in ("up", "down")}  # fmt: skip
        used, emptied = {}, {}  # the last work of each buffer, and the last copy out of it
        with gs.profile(self.gpu) as recording:
            for number, (up, lengths, down) in enumerate(chunks):
                buffer = number % 2
                if up:
                    if "up" in ahead and buffer in used:
                        streams["up"].wait(used[buffer])
                    self.copy(streams["up"], up, to_gpu=True)
                    if "up" in ahead:
                        work.wait(streams["up"].record())
                if "down" in ahead and buffer in emptied:
                    work.wait(emptied[buffer])
                for ns in lengths:
                    work.launch(spin, ns, grid=1, block=32)
                used[buffer] = work.record()
                if down:
                    if "down" in ahead:
                        streams["down"].wait(used[buffer])
                    self.copy(streams["down"], down, to_gpu=False)
                    emptied[buffer] = streams["down"].record()
            self.gpu.synchronize()
        self.trace = recording.trace
        works = self.trace.where(kind=("kernel", "memcpy"))
        self.length_ns = int(works.array("end_ns").max() - works.array("start_ns").min())

    def copy(self, stream, nbytes, *, to_gpu):
        pair = self.gpu.empty(nbytes // 4), self.gpu.empty_pinned(nbytes // 4)
        stream.copy(*(pair if to_gpu else pair[::-1]))

    def gains(self):
        changes = gs.analysis.what_would_help(self.trace).changes
        return {change.about: change for change in changes if change.change == CHANGE}


MB = 1_000_000
uploads = st.lists(
    st.tuples(
        st.integers(4, 40).map(lambda count: count * MB),
        st.lists(st.integers(100_000, 1_500_000), min_size=1, max_size=3),
        st.just(0),
    ),
    min_size=6, max_size=12,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(uploads, st.booleans())
def test_the_gain_is_that_of_two_buffers(chunks, back):
    if back:
        chunks = [(0, lengths, up) for up, lengths, _ in chunks]
    slow, mended = Program(chunks), Program(chunks, ahead=("down",) if back else ("up",))
    change = slow.gains()["copies to the host" if back else "copies to the GPU"]
    saved_ns = slow.length_ns - mended.length_ns
    assert change.gain_ns == pytest.approx(saved_ns, abs=0.02 * slow.length_ns)
    assert change.basis == "recording"


def test_a_host_that_waits_for_each_chunk_gains_nothing():
    gpu = gs.open_device("sim:h200", quiet=True, jitter=False)
    spin = gs.workloads.spin_kernel(gpu)
    stream, on_gpu, on_host = gpu.create_stream(), gpu.empty(5 * MB), gpu.empty_pinned(5 * MB)
    with gs.profile(gpu) as recording:
        for _ in range(8):
            stream.copy(on_gpu, on_host)
            stream.launch(spin, 500_000, grid=1, block=32)
            stream.synchronize()
    changes = gs.analysis.what_would_help(recording.trace).changes
    (change,) = (change for change in changes if change.change == CHANGE)
    assert change.gain_ns < 0.05 * np.diff(gs.analysis.steps(recording.trace).steady_ns)[0]


def test_copies_behind_which_nothing_comes_could_be_nowhere_else():
    trace = Program([(20 * MB, [1_000_000], 0)]).trace
    changes = gs.analysis.what_would_help(trace).changes
    assert not any(change.change == CHANGE and change.gain_ns for change in changes)
