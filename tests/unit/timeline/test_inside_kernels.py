"""Scopes inside kernels on the timeline: a track for each SM, below those of streams."""

from __future__ import annotations

from gpuscope import figures
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import Trace
from gpuscope.trace.tracks import Group


def made():
    kinds = ["kernel", "block", "block", "scope", "scope", "scope", "range"]
    return Trace.from_columns(
        {
            "id": list(range(1, 8)), "parent": [None, 1, 1, 2, 2, 3, None], "kind": kinds,
            "name": ["k", "k", "k", "load", "mma", "load", "step"],
            "start_ns": [0, 0, 0, 0, 30, 0, 0], "end_ns": [100, 90, 50, 40, 90, 50, 120],
            "sm": [None, 12, 3, 12, 12, 3, None], "device": [0] * 6 + [None],
            "stream": [7] * 6 + [None], "partition": ["decode"] * 6 + [None],
            "process": [5] * 7, "thread": [None] * 6 + [6],
            "source": ["cupti", *["proton"] * 5, "nvtx"],
        }
    )  # fmt: skip


def test_each_sm_with_scopes_has_a_track_below_the_streams():
    tracks = Tracks.of(made())
    assert [track.label for track in tracks.tracks] == [
        "decode · stream 7", "inside SM 3", "inside SM 12", "ranges",
    ]  # fmt: skip
    assert [track.group for track in tracks.tracks][1:3] == [Group.SM] * 2
    assert not any(track.is_work or track.is_host for track in tracks.tracks[1:3])
    assert tracks.elsewhere() == {"block": 2}  # the SM map has them


def test_scopes_have_the_colour_of_their_partition():
    partitions = {bar.kind: bar.partition for bar in Tracks.of(made()).classes}
    assert partitions == {"kernel": "decode", "scope": "decode", "range": None}


def test_a_figure_draws_scopes():
    figure = figures.timeline(made())
    assert {"inside SM 3", "inside SM 12"} <= {*figure.layout.yaxis.ticktext}
