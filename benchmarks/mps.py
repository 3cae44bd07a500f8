"""CUDA's Multi-Process Service, by which processes that share a GPU run at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mps() -> Iterator[None]:
    """Run MPS for the processes that the block starts; prints the ends of its logs.

    Raises
    ------
    SystemExit
        The control program is not here.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise SystemExit("nvidia-cuda-mps-control is not here: leave out --mps")
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    with tempfile.TemporaryDirectory() as name:
        folders = {f"CUDA_MPS_{part}_DIRECTORY": str(Path(name, part)) for part in ("PIPE", "LOG")}
        for folder in folders.values():
            Path(folder).mkdir()
        os.environ.update(folders)
        subprocess.run([control, "-d"], env=plain | folders, check=True, timeout=20)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", env=plain | folders, check=False, timeout=20)
            for folder in folders:
                del os.environ[folder]
            for log in Path(name, "LOG").glob("*.log"):
                print(log.name, log.read_text("utf-8", "replace")[-1500:])
