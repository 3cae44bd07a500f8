"""What a live timeline costs each launch beyond recording alone: used by observer.py.

    python benchmarks/live.py child OUT     one measured process, for the parent

Hosts differ: the goal is for a host where a bare torch.mm 64³ launch takes 7.7 µs, so what was
measured is also given as if this host took that long.

No browser looks, so that no frame waits for one; what would go to it is made all the same.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import recording

CHUNK, PAIRS = 60_000, 8
"""Launches between two changes, about 1 s, and pairs of a recording alone and one that is live.
Which of the two comes first alternates, so that a host that gets slower adds to neither."""
SETTLE_S = 0.4
"""From the beginning of a recording to its measured launches: the first frame is there."""
FAST_US = 7.7
"""What a bare torch.mm 64³ launch takes on the host that goals in µs are for."""
HERE = Path(__file__).resolve()


class Counted:
    """Bytes and messages that widgets send: they are written as JSON, as a kernel does."""

    def __init__(self) -> None:
        import comm.base_comm

        self.nbytes = self.messages = 0
        counted = self

        class Comm(comm.base_comm.BaseComm):
            def publish_msg(self, _type: str, data: Any = None, metadata: Any = None,
                            buffers: Any = None, **keys: Any) -> None:  # fmt: skip
                text = json.dumps({"data": data, "metadata": metadata, **keys}, ensure_ascii=False)
                counted.nbytes += len(text) + sum(memoryview(one).nbytes for one in buffers or ())
                counted.messages += 1

        comm.create_comm = Comm


@contextlib.contextmanager
def watched(timeline: Any, one: Any) -> Iterator[None]:
    if timeline is not None:
        timeline.watch(one)
    yield
    if timeline is not None:
        timeline._stop_reading()  # what follows is not the loop's


def child() -> dict[str, Any]:
    counted = Counted()
    import gpuscope as gs

    loop, _ = recording.launches()
    gpu = gs.open_device("cuda:0", quiet=True)
    bare_us = statistics.median(loop(CHUNK // 10) for _ in range(9))
    timeline = gs.Timeline()
    opened = counted.nbytes, timeline.bar.frame
    us: dict[bool, list[float]] = {False: [], True: []}
    frames, reads = [], []
    for turn in range(-2, 2 * PAIRS):
        is_live = turn % 4 in (1, 2)
        with gs.profile(gpu) as one, watched(timeline if is_live else None, one):
            loop(CHUNK // 20)
            time.sleep(SETTLE_S)
            before, start = timeline.bar.frame, time.perf_counter()
            us[is_live].append(loop(CHUNK))
            took_s = time.perf_counter() - start
            drawn = timeline.bar.frame - before
        if is_live:
            timeline.wait()
            frames.append(drawn / took_s)
            reads.append(len(one.trace))
    sent = (counted.nbytes - opened[0]) / max(1, timeline.bar.frame - opened[1])
    timeline.close()
    return {
        "bare": bare_us, "alone": us[False][1:], "live": us[True][1:],
        "frames_per_s": frames[1:], "rows": reads[1:],
        "bytes_a_frame": sent, "threads": threading.active_count(),
    }  # fmt: skip


def live_figures(_gpu: Any, row: recording.Row) -> list[dict]:
    """Return every figure about live views."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [sys.executable, str(HERE), "child", str(out)],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        if not out.exists():
            raise RuntimeError(f"live: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = json.loads(out.read_text())
    each = [live - alone for live, alone in zip(found["live"], found["alone"], strict=True)]
    added = recording.quartiles(each)
    rate = statistics.median(found["frames_per_s"])
    scaled = added["median"] * FAST_US / found["bare"]
    return [
        row(
            f"live timeline beside torch.mm 64³, added a launch at 10 Hz beyond recording alone "
            f"(median and quartiles of {PAIRS} pairs of {CHUNK} launches), as on a host where a "
            f"bare launch takes {FAST_US} µs",
            "≤ 0.5 µs at 10 Hz", scaled, "µs", met=scaled <= 0.5 and rate >= 9,
            measured_us=added, each_us=each, torch_mm_us=found["bare"],
            alone_us=recording.quartiles(found["alone"]),
            frames_per_s=recording.quartiles(found["frames_per_s"]), rows=found["rows"],
            bytes_a_frame=found["bytes_a_frame"],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(child()))
