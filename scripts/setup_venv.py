"""Make an environment in the checkout and install what a task needs, once.

    python scripts/setup_venv.py [--cuda auto|none|cuda12|cuda13] [--folder .venv]
                                 run|docs|test|gpu|lock

``test`` and ``docs`` install the versions in scripts/locked.txt, as CI does; the others what is
newest, as users do. A stamp in the environment holds what was asked for and the hash of
what both packages need and locked.txt: while they stay as they are, nothing is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

import cuda_extra

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {
    "run": {"full"},
    "docs": {"docs", "full"},
    "test": {"dev", "full"},
    "gpu": {"dev", "full"},
    "lock": {"dev", "full"},
}
LOCKED = ROOT / "scripts" / "locked.txt"
"""Versions that CI uses; `make lock` writes them anew."""
CUPY = {"cuda12": "cupy-cuda12x", "cuda13": "cupy-cuda13x"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", default="auto", choices=["auto", "none", *CUPY])
    parser.add_argument("--folder", default=".venv", help="where in the checkout")
    parser.add_argument("task", choices=EXTRAS)
    asked = parser.parse_args()

    folder = ROOT / asked.folder
    cuda, why = _cuda(asked.cuda, asked.task)
    if asked.task == "gpu" and not cuda:
        print(f"this task needs a GPU: {why}", file=sys.stderr)
        return 1
    extras = EXTRAS[asked.task] | ({cuda} if cuda else set())
    done = _read_stamp(folder)
    if done is not None and extras <= done:
        return 0

    started = time.monotonic()
    name = folder.relative_to(ROOT)
    why_anew = _why_anew(folder, cuda)
    if why_anew:
        print(f"making {name} with Python {platform.python_version()} ({why_anew})", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        done = None
    names = ",".join(sorted(extras))
    size = ", several GB for CUDA" if cuda else ""
    print(f"installing gpuscope[{names}] and the lessons into {name} ({why}{size}) …", flush=True)
    locked = ["--constraint", str(LOCKED)] if asked.task in {"test", "docs"} else []
    packages = [f"--editable={ROOT}[{names}]", f"--editable={ROOT / 'lessons'}"]
    if status := _pip(folder, "install", *locked, *packages):
        print("the installation failed: pip says why above", file=sys.stderr)
        return status
    _write_stamp(folder, extras | (done or set()))
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _cuda(asked: str, task: str) -> tuple[str, str]:
    if task in {"test", "docs", "lock"} and asked == "auto":
        return "", "no GPU needed"
    if asked == "auto":
        return cuda_extra.choose(cuda_extra.driver_version())
    return ("" if asked == "none" else asked), f"CUDA_EXTRA={asked}"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _why_anew(folder: Path, cuda: str) -> str:
    """Say why the environment must be made anew, or return "".

    Two CuPy wheels share their files, and what came with one toolkit stays behind when
    pip goes over to another: a changed driver gets a new environment.
    """
    if not folder.exists():
        return "there is none yet"
    if _stamp(folder).get("checkout", str(ROOT)) != str(ROOT):
        return "the checkout has moved"
    check = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    try:
        works = subprocess.run([_python(folder), "-c", check], capture_output=True, check=False)
    except OSError:
        return "its Python is gone"
    if works.returncode:
        return "its Python is older than 3.11 or has no pip"
    for extra, package in CUPY.items():
        name = package.replace("-", "_")
        if cuda not in {"", extra} and any(
            folder.glob(f"lib/python*/site-packages/{name}-*.dist-info")
        ):
            return f"it holds {package}, and now {cuda} is needed"
    return ""


def _pip(folder: Path, command: str, *arguments: str) -> int:
    run = [_python(folder), "-m", "pip", command, "-qq", "--disable-pip-version-check", *arguments]
    return subprocess.run(run, check=False).returncode


def _digest() -> str:
    files = ROOT / "pyproject.toml", ROOT / "lessons" / "pyproject.toml", LOCKED
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _stamp_of(folder: Path) -> Path:
    return folder / "gpuscope-setup.json"


def _stamp(folder: Path) -> dict:
    try:
        stamp = json.loads(_stamp_of(folder).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _read_stamp(folder: Path) -> set[str] | None:
    """Return the extras installed for these requirements, or None to install again."""
    stamp = _stamp(folder)
    good = stamp.get("requirements") == _digest() and stamp.get("checkout") == str(ROOT)
    return set(stamp["extras"]) if good and _python(folder).exists() else None


def _write_stamp(folder: Path, extras: set[str]) -> None:
    content = {"checkout": str(ROOT), "requirements": _digest(), "extras": sorted(extras)}
    _stamp_of(folder).write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    sys.exit(main())
