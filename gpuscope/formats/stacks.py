"""Sampled stacks for flame graphs: speedscope's JSON, and folded stacks as flamegraph.pl takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Ints
from gpuscope.errors import ExportError
from gpuscope.formats.progress import Step, check_count, version
from gpuscope.formats.tracks import OPEN, layout, names, times
from gpuscope.trace.columns import rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.sites import SiteLine, lines_of
from gpuscope.trace.tracks import Group

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNKNOWN = ""
"""The file of a frame whose line is not known."""


class _ThreadStacks(NamedTuple):
    """The stacks of a thread in order of time.

    ``starts`` and ``ends`` are ns since the first stack of the trace; ``lines``: outermost first.
    """

    name: str
    starts: Ints
    ends: Ints
    samples: list[int]
    lines: list[tuple[SiteLine, ...]]


class _Profile(TypedDict):
    """What speedscope reads of a thread; ``samples`` are numbers of frames, the outermost first."""

    type: str
    name: str
    unit: str
    startValue: int
    endValue: int
    samples: list[list[int]]
    weights: list[int]


def write_speedscope(trace: Trace, path: Path, step: Step) -> None:
    """Write sampled stacks as speedscope's JSON: a profile for each thread, weights in ns.

    Between two stacks of a thread that are apart stands an empty one, so that times are true.

    Raises
    ------
    ExportError
        The trace has no sampled stacks, or the file does not hold all of them.
    """
    frames: dict[SiteLine, int] = {}
    profiles: list[_Profile] = []
    for thread in _threads(trace):
        profiles.append(_profile(thread, frames))
        step(len(thread.samples))
    missing = trace.metadata.incomplete
    data: dict[str, object] = {
        "$schema": _SCHEMA,
        "exporter": f"gpuscope {version()}",
        "name": "; ".join(["Python's threads", *filter(None, [missing])]),
        "shared": {"frames": [_frame(line) for line in frames]},
        "profiles": profiles,
    }
    path.write_bytes(msgspec.json.encode(data))
    written = msgspec.json.decode(path.read_bytes())["profiles"]
    check_count(
        path,
        "stacks",
        sum(len(profile["samples"]) for profile in profiles),
        sum(len(profile["samples"]) for profile in written),
    )
    step(len(trace) - len(rows_of(trace, "stack")))


def write_folded(trace: Trace, path: Path, step: Step) -> None:
    """Write sampled stacks as lines ``thread;outer;inner N``, N samples each, a line a stack.

    Raises
    ------
    ExportError
        The trace has no sampled stacks, or the file does not hold all of them.
    """
    samples: defaultdict[str, int] = defaultdict(int)
    for thread in _threads(trace):
        for lines, count in zip(thread.lines, thread.samples, strict=True):
            words = [thread.name, *map(_in_words, lines)]
            samples[";".join(map(_plain, words))] += count
        step(len(thread.samples))
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{stack} {count}\n" for stack, count in samples.items())
    with path.open(encoding="utf-8", newline="\n") as file:
        check_count(path, "stacks", len(samples), sum(1 for _ in file))
    step(len(trace) - len(rows_of(trace, "stack")))


def _threads(trace: Trace) -> Iterator[_ThreadStacks]:
    """Yield each thread's stacks; what a foreign file has of overlaps counts once.

    Raises
    ------
    ExportError
        There are none.
    """
    rows = rows_of(trace, "stack")
    if not len(rows):
        raise ExportError(
            "the trace has no sampled stacks: record with profile(sample=200) or gpuscope record, "
            "or export to another format"
        )
    stacks = trace.where(kind="stack")
    starts, ends = times(stacks, int(stacks.array("start_ns").min()))
    ends = np.where(ends == OPEN, starts, ends)
    values = stacks.spans.column("value").cast(pa.float64()).fill_null(1).to_numpy()
    samples = np.nan_to_num(values, nan=1).clip(0, 1 << 53).astype(np.int64)
    texts = [stacks.texts(name) for name in ("payload", "site", "name")]
    tracks, track = layout(stacks).of(stacks)
    labels = [names(key._replace(group=Group.THREAD), trace) for key in tracks]
    several = len({owner for owner, _ in labels}) > 1
    for number, (owner, row) in enumerate(labels):
        of_thread = np.flatnonzero(track == number)
        of_thread = of_thread[np.argsort(starts[of_thread], kind="stable")]
        lines = []
        for at in of_thread.tolist():
            payload, site, name = (column[at] for column in texts)
            inward = (lines_of(payload) or lines_of(site))[::-1]
            lines.append(inward or (SiteLine(_UNKNOWN, 0, str(name)),))
        yield _ThreadStacks(
            f"{owner} · {row}" if several else row,
            starts[of_thread],
            np.maximum.accumulate(ends[of_thread]),
            samples[of_thread].tolist(),
            lines,
        )


def _profile(thread: _ThreadStacks, frames: dict[SiteLine, int]) -> _Profile:
    """Return a thread's profile; frames that are new get the next numbers."""
    stacks: list[list[int]] = []
    weights: list[int] = []
    at = begin = int(thread.starts[0])

    def add(stack: list[int], weight: int) -> None:
        if not weight:
            return
        if stacks and stacks[-1] == stack:
            weights[-1] += weight
        else:
            stacks.append(stack)
            weights.append(weight)

    for start, end, lines in zip(
        thread.starts.tolist(), thread.ends.tolist(), thread.lines, strict=True
    ):
        add([], max(start - at, 0))
        at = max(at, start)
        add([frames.setdefault(line, len(frames)) for line in lines], max(end - at, 0))
        at = max(at, end)
    return {
        "type": "sampled",
        "name": thread.name,
        "unit": "nanoseconds",
        "startValue": begin,
        "endValue": at,
        "samples": stacks,
        "weights": weights,
    }


def _frame(line: SiteLine) -> dict[str, str | int]:
    if line.file == _UNKNOWN:
        return {"name": line.function}
    return {"name": line.function, "file": line.file, "line": line.line}


def _in_words(line: SiteLine) -> str:
    if line.file == _UNKNOWN:
        return line.function
    return f"{line.function} ({line.file}:{line.line})"


def _plain(text: str) -> str:
    """Return a text without what parts frames and lines."""
    return " ".join(text.replace(";", ":").split())
