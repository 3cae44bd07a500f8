"""Files of Triton's Proton for tests, written as its StreamChromeTraceWriter writes them.

Of Triton 3.6 times are single floats and blocks do not tell when they began; later versions write
both, asynchronous events and bars of the host's scopes (triton-lang/triton,
third_party/proton/common/lib/TraceDataIO/TraceWriter.cpp).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

GHZ = 2.0
"""Cycles a ns of the GPU that is played."""
BEGAN_NS = 1_795_257_927_753_520_000
"""What ``%globaltimer`` said when the first kernel began."""


@dataclass
class Block:
    """A thread block: when it began and ended by the GPU's clock, and its scopes in cycles.

    ``scopes``: (warp, name, first cycle, last cycle), by warp and then by end; ``links``: events
    between two warps or of one, ((warp, cycle), (warp, cycle), name).
    """

    sm: int
    number: int
    init_ns: int
    final_ns: int
    scopes: list[tuple[int, str, int, int]]
    writing_ns: int = 640
    links: list[tuple[tuple[int, int], tuple[int, int], str]] = field(default_factory=list)


def chrome_trace(launches, *, version="3.6", call_stack=("ROOT", "test")):
    """Return the file of several launches, (kernel, blocks)."""
    least = min(block.init_ns for _, blocks in launches for block in blocks)
    events = []
    if version != "3.6":
        events.append(
            {"cname": "cq_build_passed", "name": "test", "cat": "call_path", "ph": "X",
             "pid": "Kernel Call Path", "tid": "path 1", "ts": 0.0, "dur": 10.0,
             "args": {"call_stack": ["ROOT", "test"]}}
        )  # fmt: skip
    flow = 0
    for kernel, blocks in launches:
        for block in sorted(blocks, key=lambda block: block.sm):
            flow = _block(events, kernel, block, least, version, [*call_stack, kernel], flow)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _block(events, kernel, block, least, version, call_stack, flow):
    cycles = [first for _, _, first, _ in block.scopes]
    cycles += [cycle for link in block.links for _, cycle in link[:2]]
    adjust = block.init_ns - least - min(cycles)
    place = {"pid": f"{kernel} Core{block.sm} CTA{block.number}", "ph": "X"}

    def number(value):
        if version != "3.6":
            return value / 1000
        # Single floats, divided by one.
        return struct.unpack("f", struct.pack("f", _single(value) / 1000.0))[0]

    for warp, name, first, last in block.scopes:
        args = {"Finalization Time (ns)": block.writing_ns, "Frequency (MHz)": 1000.0}
        if version != "3.6":
            args |= {
                "Init Time (ns)": block.init_ns,
                "Post Final Time (ns)": block.final_ns + block.writing_ns,
            }
        events.append(
            {**place, "cname": "rail_idle", "name": name, "cat": kernel, "tid": f"warp {warp} (line 0)",
             "ts": number(first + adjust), "dur": number(last - first),
             "args": {**args, "call_stack": call_stack}}
        )  # fmt: skip
    for (warp, first), (other, last), name in block.links:
        if warp == other:
            events.append(
                {**place, "name": name, "cat": "async", "tid": f"warp {warp} (line 1)",
                 "ts": number(first + adjust), "dur": number(last - first),
                 "args": {"call_stack": call_stack}}
            )  # fmt: skip
            continue
        flow += 1
        for of, cycle, way in ((warp, first, "flow_out"), (other, last, "flow_in")):
            events.append(
                {**place, "name": name, "cat": "flow", "dur": 0, "bind_id": flow, way: True,
                 "tid": f"warp {of} (line 0)", "ts": number(cycle + adjust),
                 "args": {"call_stack": call_stack}}
            )  # fmt: skip
    return flow


def _single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def written(path, launches, **options):
    """Write that file."""
    path.write_text(json.dumps(chrome_trace(launches, **options), separators=(",", ":")) + "\n")
    return path


def persistent(kernel="persistent", sms=range(4), *, at_ns=0, tiles=3, tile_ns=1000, gap_ns=200):
    """Return a launch whose blocks each stay on an SM and do tile after tile.

    The block on the n-th SM does n tiles fewer, at least one; a scope ``kernel`` holds them all.
    """
    blocks = []
    for place, sm in enumerate(sms):
        clock = 1_000_003 * (place + 1)  # each SM counts its own
        count = max(1, tiles - place)
        ends = count * tile_ns + (count - 1) * gap_ns
        scopes = [
            (0, "tile", clock + int(GHZ * at), clock + int(GHZ * (at + tile_ns)))
            for at in range(0, count * (tile_ns + gap_ns), tile_ns + gap_ns)
        ]
        scopes.append((0, "all", clock, clock + int(GHZ * ends)))
        init_ns = BEGAN_NS + at_ns + 32 * place
        writing_ns = 640 + at_ns // 100
        blocks.append(Block(sm, place, init_ns, init_ns + ends, scopes, writing_ns))
    return kernel, blocks
