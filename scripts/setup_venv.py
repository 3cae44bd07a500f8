"""Make .venv in the checkout and install what a task needs, once.

    python scripts/setup_venv.py [--cuda auto|none|cuda12|cuda13] run|docs|test|gpu

A stamp in .venv holds what was asked for and the hash of pyproject.toml: while both
stay as they are, nothing is done.
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
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "gpuscope-setup.json"
EXTRAS = {"run": set(), "docs": {"docs"}, "test": {"dev"}, "gpu": {"dev"}}
CUPY = {"cuda12": "cupy-cuda12x", "cuda13": "cupy-cuda13x"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", default="auto", choices=["auto", "none", *CUPY])
    parser.add_argument("task", choices=EXTRAS)
    asked = parser.parse_args()

    cuda, why = _cuda(asked.cuda, asked.task)
    if asked.task == "gpu" and not cuda:
        print(f"this task needs a GPU: {why}", file=sys.stderr)
        return 1
    extras = EXTRAS[asked.task] | ({cuda} if cuda else set())
    done = _read_stamp()
    if done is not None and extras <= done:
        return 0

    started = time.monotonic()
    why_anew = _why_anew(cuda)
    if why_anew:
        print(f"making .venv with Python {platform.python_version()} ({why_anew})", flush=True)
        venv.create(VENV, clear=True, with_pip=True)
        done = None
    names = ",".join(sorted(extras))
    what = f"gpuscope[{names}]" if names else "gpuscope"
    size = ", several GB for CUDA" if cuda else ""
    print(f"installing {what} into .venv ({why}{size}) …", flush=True)
    if status := _pip("install", "--editable", f"{ROOT}[{names}]" if names else str(ROOT)):
        print("the installation failed: pip says why above", file=sys.stderr)
        return status
    _write_stamp(extras | (done or set()))
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _cuda(asked: str, task: str) -> tuple[str, str]:
    if task in {"test", "docs"} and asked == "auto":
        return "", "no GPU needed"
    if asked == "auto":
        return cuda_extra.choose(cuda_extra.driver_version())
    return ("" if asked == "none" else asked), f"CUDA_EXTRA={asked}"


def _why_anew(cuda: str) -> str:
    """Say why the environment must be made anew, or return "".

    Two CuPy wheels share their files, and what came with one toolkit stays behind when
    pip goes over to another: a changed driver gets a new environment.
    """
    if not VENV.exists():
        return "there is none yet"
    if _stamp().get("checkout", str(ROOT)) != str(ROOT):
        return "the checkout has moved"
    check = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    try:
        works = subprocess.run([PYTHON, "-c", check], capture_output=True, check=False)
    except OSError:
        return "its Python is gone"
    if works.returncode:
        return "its Python is older than 3.11 or has no pip"
    for extra, package in CUPY.items():
        name = package.replace("-", "_")
        if cuda not in {"", extra} and any(
            VENV.glob(f"lib/python*/site-packages/{name}-*.dist-info")
        ):
            return f"it holds {package}, and now {cuda} is needed"
    return ""


def _pip(command: str, *arguments: str) -> int:
    run = [PYTHON, "-m", "pip", command, "-qq", "--disable-pip-version-check", *arguments]
    return subprocess.run(run, check=False).returncode


def _digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def _stamp() -> dict:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _read_stamp() -> set[str] | None:
    """Return the extras installed for this pyproject.toml, or None to install again."""
    stamp = _stamp()
    good = stamp.get("pyproject") == _digest() and stamp.get("checkout") == str(ROOT)
    return set(stamp["extras"]) if good and PYTHON.exists() else None


def _write_stamp(extras: set[str]) -> None:
    content = {"checkout": str(ROOT), "pyproject": _digest(), "extras": sorted(extras)}
    STAMP.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    sys.exit(main())
