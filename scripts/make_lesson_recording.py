"""Record what lesson 10 replays where there is no GPU: CuPy and PyTorch cells, on this GPU.

    python scripts/make_lesson_recording.py

The functions are those of notebooks/10_your_own_code.ipynb: its cells tagged ``recorded`` are
run, and each function is recorded into lessons/gpuscope_lessons/recordings/.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import gpuscope as gs
from gpuscope.trace import Trace
from gpuscope_lessons.recorded import RECORDED, RECORDINGS, observe

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "10_your_own_code.ipynb"
FUNCTIONS = {"cupy": "cupy_code", "torch": "torch_code", "partition": "partition_code"}


def main() -> None:
    gpu = gs.open_device("cuda:0")
    names: dict[str, object] = {"gs": gs}
    sources = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if "recorded" in cell["metadata"].get("tags", ()):
            sources[cell["id"]] = "".join(cell["source"])
            exec(sources[cell["id"]], names)  # noqa: S102 - our own notebook
    RECORDINGS.mkdir(exist_ok=True)
    for name, function in FUNCTIONS.items():
        trace = observe(gpu, name, names[function])
        note = note_of(trace, time.strftime("%Y-%m-%d"), sources[f"{name}-code"])
        trace = trace.with_metadata(notes=(*trace.metadata.notes, note))
        path = gs.export(trace, RECORDINGS / f"{name}.parquet")
        print(f"{name}: {trace!r}, {path.stat().st_size / 1024:.0f} KiB")


def note_of(trace: Trace, day: str, source: str) -> str:
    """Return the note that marks a trace as a shipped recording of this source code."""
    names = ", ".join(str(facts.name) for facts in trace.metadata.devices.values())
    digest = hashlib.sha256(source.strip().encode()).hexdigest()[:12]
    return f"{RECORDED}{names}, {day}, code {digest}"


if __name__ == "__main__":
    main()
