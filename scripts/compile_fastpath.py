"""Compile gpuscope's C for the Python that runs this: the launch path, `_fastpath.c` and the units
of it, what tells `gpuscope record` that a program is about to use CUDA, `_injection.c`, what looks
through CUPTI's records beside the program, `_records.c`, and the program that samples hardware
counters, `_counters.c`.

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
_UNITS = (
    *("fastpath", "guards", "ranges", "products", "operands", "events"),
    *("launches", "graphs", "codes", "sites", "handover", "stacks", "passes"),
)
MODULES = {
    f"gpuscope/_fastpath{sysconfig.get_config_var('EXT_SUFFIX')}": _UNITS,
    "gpuscope/_injection.so": ("injection",),
    "gpuscope/_records.so": ("records",),
}
"""Where what is compiled belongs, in the checkout and in a wheel → sources, ``gpuscope/_*.c``."""
PROGRAMS = {"gpuscope/_counters": ("counters",)}
"""Likewise, on Linux: programs of their own."""
if sys.platform == "linux":
    MODULES |= PROGRAMS


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
    for target in MODULES:
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
    texts = [path.read_bytes() for path in sorted((ROOT / "gpuscope").glob("_*.[ch]"))]
    crc = f"-DSOURCE_CRC={zlib.crc32(b''.join(texts))}u"  # gpuscope asks for it
    options = ["-O3", "-fPIC", "-pthread", "-fvisibility=hidden", include, crc]
    for target, units in MODULES.items():
        kind = [] if target in PROGRAMS else shared
        sources = [str(ROOT / "gpuscope" / f"_{unit}.c") for unit in units]
        if why_not := run([*command, *kind, *options, *sources, "-o", str(root / target), "-ldl"]):
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
    compiled = f"compiled {', '.join(MODULES)}"
    print(f"gpuscope launches in Python: {why_not}" if why_not else compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
