"""What ``gpuscope record`` and the processes of a program tell each other, and in which files.

It is imported wherever Python starts: it imports little.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

VARIABLE = "GPUSCOPE_RECORD"
"""Holds the order, as JSON, in the environment of a program's processes."""
JOURNAL = ".journal"
"""Ending of the files in which buffers wait."""


@dataclass(frozen=True)
class RecordingOrder:
    """What the processes of a program are to record, and into which folder."""

    folder: str
    device: Literal["auto", "cuda", "sim", "cpu"] = "auto"
    detail: Literal["launches", "full"] = "launches"
    keep_ns: int | None = None
    live: bool = False
    stacks: bool = True
    graphs: Literal["nodes", "launch", "sampled"] = "nodes"
    sample: int = 0
    counters_ns: int = 0


@dataclass
class ProcessFacts:
    """What a process says of its recordings, in a file beside their traces.

    Attributes
    ----------
    name
        Of the process: its script's, ``multiprocessing``'s, or its rank.
    ended
        Whether it ended by itself. Otherwise its traces are of the moment ``at_ns``.
    traces
        File → how many rows of each kind.
    notes
        What could not be recorded, and why.
    lost
        Files of traces that could not be written at its end, and what else was not recorded.
    """

    pid: int
    name: str = ""
    ended: bool = False
    at_ns: int = 0
    traces: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def who(self) -> str:
        """The process, as people are told of it."""
        return f"process {self.pid} ({self.name})"


def process_name() -> str:
    """Return what this process is called, fit for a file's name."""
    script = Path(sys.argv[0] if getattr(sys, "argv", None) else "")
    name = script.parent.name if script.stem == "__main__" else script.stem
    name = "command" if name == "-c" else name
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        name = multiprocessing.current_process().name
    rank = os.environ.get("RANK")
    name = f"{name}-rank{rank}" if rank else name
    return re.sub(r"[^\w.-]+", "-", name).strip("-")[:60] or "python"
