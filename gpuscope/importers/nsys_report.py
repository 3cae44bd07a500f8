"""Nsight Systems' own reports, .nsys-rep: nsys turns them into SQLite."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from gpuscope.errors import MissingDependency, TraceFormatError
from gpuscope.importers.limits import Limits
from gpuscope.importers.nsys import read_nsys
from gpuscope.trace.model import Trace

MAGIC = b"NVIDIA Tegra Profiler Report "
"""What a report begins with; the version that wrote it follows."""
_SECONDS = 600
_TOLD = 300


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a report."""
    return head.startswith(MAGIC)


def read_report(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read a report through ``nsys export``, which must be at least as new as what wrote it.

    Raises
    ------
    MissingDependency
        There is no nsys on PATH.
    TraceFormatError
        nsys cannot read it, or what it made holds more than ``limits``.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        with path.open("rb") as file:
            wrote = file.readline(120)[len(MAGIC) :].split(b"-")[0]
        shown = wrote.decode("ascii", "replace").replace("@", ".")[:20]
        raise MissingDependency(
            f"{path.name!r} is an Nsight Systems report (written by {shown}), which only nsys "
            "reads, and there is none on PATH: install Nsight Systems, that version or newer (the "
            "command line alone will do), or run where it is installed: nsys export --type=sqlite "
            f"{path.name}, and load the .sqlite file"
        )
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        command = [nsys, "export", "--type=sqlite", "--force-overwrite=true",
                   f"--output={target}", str(path.absolute())]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and the path is absolute
                command, capture_output=True, text=True, errors="replace", check=False,
                cwd=folder, stdin=subprocess.DEVNULL, timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TraceFormatError(
                f"nsys export of {path.name!r} had not ended after {_SECONDS} s"
            ) from error
        if done.returncode or not target.exists():
            said = " ".join((done.stderr or done.stdout).split())[-_TOLD:]
            raise TraceFormatError(
                f"nsys could not export {path.name!r} (it said: {said or 'nothing'}). A report of "
                "a newer version needs that version: see nsys --version"
            )
        limits.check("file_bytes", f"bytes of {path.name!r} as SQLite", target.stat().st_size)
        return read_nsys(target, limits, keep_private=keep_private)
