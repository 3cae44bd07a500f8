"""Compile gpuscope/_fastpath.c, the launch path in C, for the Python that runs this.

    python scripts/compile_fastpath.py     into the checkout

``CC`` names the compiler; without it cc, gcc and clang are tried, then the one in the package
ziglang. Without any, or with ``GPUSCOPE_PURE=1``, gpuscope does the same in Python.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "gpuscope" / "_fastpath.c"
MODULE = f"gpuscope/_fastpath{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Where it belongs in the checkout and in a wheel."""


def compiler() -> list[str] | None:
    """Return the command of a C compiler, or ``None``."""
    if named := os.environ.get("CC"):
        return shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def compile_to(target: Path) -> str:
    """Compile the module to a file; returns why that was not possible, or ``""``."""
    target.unlink(missing_ok=True)
    if os.environ.get("GPUSCOPE_PURE") == "1":
        return "GPUSCOPE_PURE is set"
    if sys.implementation.name != "cpython" or sys.platform == "win32":
        return f"{sys.implementation.name} on {sys.platform} is not supported"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "Python without a global lock is not supported"
    command = compiler()
    if command is None:
        return "no C compiler was found"
    macos = ["-bundle", "-undefined", "dynamic_lookup"]
    shared = macos if sys.platform == "darwin" else ["-shared"]
    include = f"-I{sysconfig.get_paths()['include']}"
    source_crc = f"-DSOURCE_CRC={zlib.crc32(SOURCE.read_bytes())}u"  # gpuscope asks for it
    words = [
        *command, "-O2", "-fPIC", "-pthread", *shared, include, source_crc, str(SOURCE),
        "-o", str(target),
    ]  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{shlex.join(command)} cannot be run ({error})"
    return "" if done.returncode == 0 else f"{shlex.join(words)} failed:\n{done.stderr}"


def main() -> int:
    why_not = compile_to(ROOT / MODULE)
    print(f"gpuscope launches in Python: {why_not}" if why_not else f"compiled {MODULE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
