"""Record what lesson 10 replays where there is no GPU: CuPy and PyTorch cells, on this GPU.

    python scripts/make_lesson_recording.py

The functions are those of notebooks/10_your_own_code.ipynb: its cells tagged ``recorded`` are
run, and each function is recorded into gpuscope/learn/recordings/.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import gpuscope as gs
from gpuscope.learn.recorded import RECORDINGS, note_of, observe

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "10_your_own_code.ipynb"
FUNCTIONS = {"cupy": "cupy_code", "torch": "torch_code", "partition": "partition_code"}


def main() -> None:
    gpu = gs.open_device("cuda:0")
    names: dict[str, object] = {"gs": gs}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if "recorded" in cell["metadata"].get("tags", ()):
            exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    RECORDINGS.mkdir(exist_ok=True)
    for name, function in FUNCTIONS.items():
        trace = observe(gpu, name, names[function])
        note = note_of(trace, time.strftime("%Y-%m-%d"))
        trace = trace.with_metadata(notes=(*trace.metadata.notes, note))
        path = gs.export(trace, RECORDINGS / f"{name}.parquet")
        print(f"{name}: {trace!r}, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
