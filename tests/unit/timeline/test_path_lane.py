"""The critical path in a picture: a lane of its own, whose parts are those of the path."""

from __future__ import annotations

import gpuscope as gs
from gpuscope.timeline.labels import LAYOUT
from gpuscope.timeline.path_lane import with_path
from gpuscope.trace.tracks import Group


def test_the_path_is_a_lane_of_its_own():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        with gs.annotate("mine"):
            stream.launch(kernel, 50_000, grid=1, block=32)
        stream.synchronize()
    trace = recording.trace
    path = gs.analysis.critical_path(trace)
    drawn = with_path(trace, path)
    keys, track = LAYOUT.of(drawn)
    (lane,) = (number for number, key in enumerate(keys) if key.group == Group.PATH)
    on_lane = drawn.where(track == lane)
    lasted_ns = on_lane.array("end_ns") - on_lane.array("start_ns")
    assert lasted_ns.tolist() == [part.duration_ns for part in path.parts]
    assert len(drawn) == len(trace) + len(path.parts)
    before, _ = LAYOUT.of(trace)
    assert [key for key in keys if key.group != Group.PATH] == before
