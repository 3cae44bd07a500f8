"""A Perfetto trace of each rank in one archive; a manifest tells ranks apart and joins clocks."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from gpuscope.formats.perfetto.write import write_packets
from gpuscope.formats.progress import Step
from gpuscope.trace.merging import split
from gpuscope.trace.model import Trace

MANIFEST = "perfetto_manifest.json"
"""Perfetto knows it by its first bytes, in which there is no space."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same trace gives the same bytes."""
_LEVEL = 4


def write_archive(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as an archive, in which each rank's is a file and a machine of its own.

    Raises
    ------
    MissingDependency
        The package perfetto is absent.
    """
    several = len(trace.metadata.ranks) > 1
    parts = split(trace) if several else [trace]
    names = [f"rank {part.metadata.ranks[0].rank}" if several else "trace" for part in parts]
    files = [f"{name.replace(' ', '-')}.pftrace" for name in names]
    manifest = _manifest(files, names, is_unix=trace.metadata.time_base == "unix")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST, _EPOCH), json.dumps(manifest))
        for part, name in zip(parts, files, strict=True):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as target:
                write_packets(part, target, step)


def _manifest(files: list[str], names: list[str], *, is_unix: bool) -> dict[str, Any]:
    """Return the manifest: all files are on one clock; times of no clock are taken as they are."""
    entries: list[dict[str, Any]] = [
        {"path": file, "machine": {"name": name}} for file, name in zip(files, names, strict=True)
    ]
    facts: dict[str, Any] = {"version": 1, "files": entries}
    if is_unix:
        first = {"file": files[0], "clock": "REALTIME"}
        facts["trace_time"] = first
        for entry in entries[1:]:
            entry["clocks"] = {"clock": "REALTIME", "sync_to": first, "offset_ns": 0}
    return {"perfetto_manifest": facts}
