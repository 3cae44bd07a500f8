"""What a live timeline costs each launch beyond recording alone: used by h200.py.

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

CHUNK, CHUNKS = 400_000, 8
"""Launches between two changes, about 2 s, and changes."""
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
    alone, live, frames, reads = [], [], [], []
    for turn in range(2 * CHUNKS + 2):
        view = timeline if turn % 2 else None
        with gs.profile(gpu) as one, watched(view, one):
            before = timeline.bar.frame, counted.nbytes
            start = time.perf_counter()
            us = loop(CHUNK if turn > 1 else 20_000)
            took_s = time.perf_counter() - start
        if view is not None:
            timeline.wait()
            frames.append((timeline.bar.frame - before[0]) / took_s)
            reads.append(len(one.trace))
        if turn > 1:
            (live if view is not None else alone).append(us)
    sent = (counted.nbytes - opened[0]) / max(1, timeline.bar.frame - opened[1])
    timeline.close()
    return {
        "bare": bare_us, "alone": alone, "live": live,
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
    pairs = zip(found["live"], found["alone"], strict=True)
    added = recording.quartiles([live - alone for live, alone in pairs])
    rate = statistics.median(found["frames_per_s"])
    scaled = added["median"] * FAST_US / found["bare"]
    return [
        row(
            f"a live timeline of torch.mm 64³: added a launch beyond recording alone (median and "
            f"quartiles of {CHUNKS} alternations of {CHUNK} launches), as on a host where a bare "
            f"launch takes {FAST_US} µs",
            "≤ 0.5 µs at 10 Hz", scaled, "µs", met=scaled <= 0.5 and rate >= 9,
            measured_us=added, torch_mm_us=found["bare"],
            alone_us=recording.quartiles(found["alone"]),
            frames_per_s=recording.quartiles(found["frames_per_s"]), rows=found["rows"],
            bytes_a_frame=found["bytes_a_frame"],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(child()))
