"""Compile gpuscope's C for the Python that runs this: the launch path, `_fastpath.c`, and what
tells `gpuscope record` that a program is about to use CUDA, `_injection.c`.

    python scripts/compile_fastpath.py     into the checkout

``CC`` names the compiler; without it cc, gcc and clang are tried, then the one in the package
ziglang. Without any, or with ``GPUSCOPE_PURE=1``, gpuscope launches in Python, and recorded
programs load CUPTI when they start.
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
MODULES = {
    "gpuscope/_fastpath.c": f"gpuscope/_fastpath{sysconfig.get_config_var('EXT_SUFFIX')}",
    "gpuscope/_injection.c": "gpuscope/_injection.so",
}
"""Source → where what is compiled of it belongs, in the checkout and in a wheel."""


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


def compile_to(root: Path) -> str:
    """Compile into a folder like the checkout's; returns why that was not possible, or ``""``."""
    for target in MODULES.values():
        (root / target).parent.mkdir(exist_ok=True)
        (root / target).unlink(missing_ok=True)
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
    for source, target in MODULES.items():
        crc = zlib.crc32((ROOT / source).read_bytes())  # gpuscope asks for it
        options = ["-O2", "-fPIC", "-pthread", *shared, include, f"-DSOURCE_CRC={crc}u"]
        if why_not := run(
            [*command, *options, str(ROOT / source), "-o", str(root / target), "-ldl"]
        ):
            return why_not
    return ""


def run(words: list[str]) -> str:
    """Run a compiler; returns what went wrong, or ``""``."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{words[0]} cannot be run ({error})"
    return "" if done.returncode == 0 else f"{shlex.join(words)} failed:\n{done.stderr}"


def main() -> int:
    why_not = compile_to(ROOT)
    compiled = f"compiled {', '.join(MODULES.values())}"
    print(f"gpuscope launches in Python: {why_not}" if why_not else compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
