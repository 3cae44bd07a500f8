"""Where Nsight's tools are, and what is missing where they do not work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpuscope.errors import ExportError, MissingDependency

_NAMES = {"nsys": "Nsight Systems (nsys)", "ncu": "Nsight Compute (ncu)"}
_PLACES = {
    "nsys": (
        "{cuda}/bin/nsys",
        "/opt/nvidia/nsight-systems*/*/bin/nsys",
        "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
        "{cuda}/nsight-systems*/bin/nsys",
        "{cuda}/nsight-systems*/target-linux-*/nsys",
        "/usr/lib/nsight-systems/target-linux-*/nsys",
        # Nsight Compute brings one along.
        "/opt/nvidia/nsight-compute*/*/host/target-linux-*/nsys",
        "{cuda}/nsight-compute*/host/target-linux-*/nsys",
    ),
    "ncu": ("{cuda}/bin/ncu", "/opt/nvidia/nsight-compute*/*/ncu", "{cuda}/nsight-compute*/ncu"),
}
_PACKAGES = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1", "libxcb": "libxcb1"}
"""Beginning of a library's name → Debian's package."""


def find(tool: str, path: str | Path | None = None) -> Path:
    """Return ``nsys`` or ``ncu``: the one named, or from PATH, CUDA's toolkit, Nsight's folders.

    Raises
    ------
    MissingDependency
        There is none; says where it was looked for.
    """
    if path is not None:
        program = shutil.which(str(path))
        if program is None:
            raise MissingDependency(f"{str(path)!r} is no program that can be run: check the path")
        return Path(program)
    on_path = shutil.which(tool)
    if on_path is not None:
        return Path(on_path)
    for folder in _places(tool):
        if os.access(folder, os.X_OK):
            return folder
    raise MissingDependency(
        f"{_NAMES[tool]} is needed and was found neither on PATH nor in CUDA's toolkit nor in "
        f"/opt/nvidia: install it, or say where it is with {tool}=PATH"
    )


def _places(tool: str) -> Iterable[Path]:
    """Yield the usual places, of several versions the newest first."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for pattern in _PLACES[tool]:
        roots = [*filter(None, homes), "/usr/local/cuda*"] if "{cuda}" in pattern else [""]
        for root in roots:
            whole = pattern.format(cuda=root).lstrip("/")
            yield from sorted(Path("/").glob(whole), key=_version, reverse=True)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def root(nsys: Path) -> Path:
    """Return the folder that holds an nsys's ``target-linux-…`` and ``host-linux-…``."""
    real = nsys.resolve()
    for folder in real.parents:
        if any(folder.glob("target-linux-*")):
            return folder
    return real.parent.parent


def missing_libraries(nsys: Path) -> list[str]:
    """Return what nsys's importer, which makes reports, cannot load, with Debian's packages."""
    missing: list[str] = []
    for importer in root(nsys).glob("*/QdstrmImporter"):
        try:
            done = subprocess.run(  # noqa: S603 - a file of nsys's
                ["/usr/bin/ldd", importer], capture_output=True, text=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        for name in re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE):
            if (importer.parent / name).exists():
                continue  # its own, which its launcher finds
            package = next((deb for key, deb in _PACKAGES.items() if name.startswith(key)), None)
            text = f"{name} (Debian's package {package})" if package else name
            missing += [text] if text not in missing else []
    return missing


def export_sqlite(report: Path, target: Path, nsys: Path, *, seconds: float | None = None) -> Path:
    """Have nsys write a report as SQLite.

    Raises
    ------
    ExportError
        It does not, or not in so many seconds; quotes its output.
    """
    options = ("--type=sqlite", "--force-overwrite=true", f"--output={target.absolute()}")
    command = [str(nsys.absolute()), "export", *options, str(report.absolute())]
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(  # noqa: S603 - the program that was found or named
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd=target.parent,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"nsys export of {report.name!r} had not ended after {seconds} s"
            ) from error
        if done.returncode or not target.exists():
            output.seek(0)
            raise ExportError(
                f"nsys could not export {report.name!r}: {tail(output.read())}. Use an nsys that "
                "is at least as new as the one that recorded it: see nsys --version"
            )
    return target


def tail(output: bytes, length: int = 600) -> str:
    """Return the end of a program's output."""
    text = output.decode("utf-8", "replace").strip()
    return text[-length:] or "it said nothing"
