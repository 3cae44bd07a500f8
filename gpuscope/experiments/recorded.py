"""What ``gpuscope record`` and the processes of a program tell each other, and in which files.

It is imported wherever Python starts: it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

VARIABLE = "GPUSCOPE_RECORD"
"""Holds the order, as JSON, in the environment of a program's processes."""
JOURNAL = ".journal"
"""Ending of the files in which buffers wait."""


@dataclass(frozen=True)
class Order:
    """What the processes of a program are to record, and into which folder."""

    folder: str
    device: Literal["auto", "cuda", "sim", "cpu"] = "auto"
    detail: Literal["launches", "full"] = "launches"
    keep_ns: int | None = None
    live: bool = False


@dataclass
class Facts:
    """What a process says of its recordings, in a file beside their traces.

    Attributes
    ----------
    name
        Of the process: its script's, ``multiprocessing``'s, or its rank.
    ended
        Whether it wrote everything. Otherwise its traces are of the moment ``at_ns``.
    traces
        File → how many rows of each kind.
    notes
        What could not be recorded, and why.
    """

    pid: int
    name: str = ""
    ended: bool = False
    at_ns: int = 0
    traces: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
