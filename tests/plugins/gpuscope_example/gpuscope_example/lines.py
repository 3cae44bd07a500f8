"""A trace format: kernels as lines of text, a tab between stream, start, end and name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gpuscope.errors import TraceFormatError
from gpuscope.formats import Format, Limits, Step
from gpuscope.trace import Trace

HEAD = "KERNEL LINES 1\n"


def write(trace: Trace, path: Path, step: Step) -> None:
    """Write the kernels; names lose tabs and line breaks."""
    kernels = trace.where(kind="kernel")
    columns = (kernels.spans.column(name).to_pylist()
               for name in ("stream", "start_ns", "end_ns", "name"))  # fmt: skip
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        for stream, start, end, name in zip(*columns, strict=True):
            file.write(f"{stream}\t{start}\t{end}\t{' '.join(name.split())}\n")
    step(len(trace))


def recognise(head: bytes) -> bool:
    """Whether a file begins with our first line."""
    return head.startswith(HEAD.encode())


def read(path: Path, limits: Limits, *, keep_private: bool) -> Trace:
    """Read kernels; gpuscope takes out what is private."""
    del keep_private
    with path.open(encoding="utf-8") as file:
        file.readline()
        lines = list(islice(file, limits.rows + 1))
    limits.check_rows("lines", len(lines))
    rows = [line.rstrip("\n").split("\t") for line in lines]
    if any(len(row) != 4 for row in rows):
        raise TraceFormatError(f"{path.name!r} has a line without four parts")
    return Trace.from_columns(
        {
            "id": list(range(len(rows))),
            "kind": ["kernel"] * len(rows),
            "name": [row[3] for row in rows],
            "stream": [int(row[0]) for row in rows],
            "start_ns": [int(row[1]) for row in rows],
            "end_ns": [int(row[2]) for row in rows],
            "source": ["lines"] * len(rows),
        }
    )


LINES = Format(
    name="Kernel lines",
    suffixes=(".lines",),
    description="Kernels as lines of text.",
    write=write,
    recognise=recognise,
    read=read,
)
