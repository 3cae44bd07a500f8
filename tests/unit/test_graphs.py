"""Graphs where there are none."""

from __future__ import annotations

import pytest

import gpuscope as gs


@pytest.mark.parametrize("spec", ["sim:h200", "cpu"])
def test_a_device_without_graphs_says_so_and_captures_nothing(spec):
    device = gs.open_device(spec, quiet=True)
    with device.create_stream() as stream:
        refused = pytest.raises(gs.CapabilityError, match="capturing a stream is not possible")
        with refused, stream.capture():
            pass
        assert not stream.capturing
        gs.Gemm(device, m=8, n=8, k=8).execute(stream=stream)
