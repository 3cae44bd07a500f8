"""Try the readers of traces on damaged files, C with sanitizers, and the property tests at length.

    python scripts/fuzz.py [EXAMPLES [MUTANTS]] [--seed SEED] [--only FORMAT] [--mutants-only]
    python scripts/fuzz.py --c-only

Of each format, MUTANTS (20,000) files are damaged, in one process a format. Each that loads is
analysed, summarised, drawn, exported to every format and loaded again (tests/trace_chain.py);
one in 16 is made HTML pages of, too, which take as long as all the rest. A trace that equals one
that went that way already does not go again. What was done is kept in .hypothesis/mutants/ beside
the files that failed: the next call tries those first and goes on where this one stopped.

C is compiled with gcc's address and undefined-behaviour sanitizers into a folder like the package;
its tests and tests/try_fastpath.py run on that.

EXAMPLES (2,000) are those of each property test; tests that fix their own number keep it. What
fails is kept in .hypothesis/ and tried first by the next ordinary test run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from compile_fastpath import compile_to  # beside this file
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".hypothesis" / "mutants"
FORMATS = ("parquet", "json", "gzip", "sqlite")
C_TESTS = (
    "device/test_compiled_products.py", "record/test_noted_launches.py", "device/test_guard.py",
    "record/test_nvtx.py", "record/test_stacks.py",
)  # fmt: skip
C_ROUNDS = 1000
QUARANTINED = "test_a_code_at_the_address_of_one_that_is_gone"
"""It needs an address that comes again, which sanitizers keep back."""
BESIDE = "tests", "benchmarks"
"""Folders whose modules that imports."""


def mutate(forms: list[str], seed: int, most: int) -> int:
    """Try the mutants of several formats, each in a process that is begun again if it dies."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])

    def begun(form: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "tests/try_mutants.py"), form, str(seed)]
        return subprocess.Popen(
            [*command, str(most), str(KEPT)], env={**os.environ, "PYTHONPATH": path}
        )

    running = {form: begun(form) for form in forms}
    failed = 0
    for form in forms:
        while running[form].wait() < 0:
            running[form] = begun(form)
        failed += running[form].returncode
        facts = json.loads((KEPT / f"{form}-{seed}.json").read_text())
        failed += len(facts["failed"])
        print(
            f"{form}: {facts['done']:,} mutants, {facts['loaded']:,} loaded, {facts['differ']:,} "
            f"of them different, {facts['seconds']:.0f} s, {len(facts['failed'])} failed"
        )
        for number, why in facts["failed"].items():
            print(f"  {form} {number}: {why}")
    return failed


def sanitized(seed: int) -> int:
    """Run what tries the C part on a build with sanitizers; returns how many runs failed."""
    flags = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover"
    library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    tests = [str(ROOT / "tests" / "unit" / path) for path in C_TESTS]
    runs = [
        [str(ROOT / "tests" / "try_fastpath.py"), str(seed), str(C_ROUNDS)],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not {QUARANTINED}", *tests],
    ]
    nasty = [str(ROOT / "benchmarks" / "stacks.py"), "--only", "nasty", "--out"]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "gpuscope"
        with mock.patch.dict(os.environ, CC=f"gcc {flags}"):
            why_not = compile_to(Path(folder))
        if why_not:
            print(f"C with sanitizers: {why_not}")
            return 1
        for path in (ROOT / "gpuscope").iterdir():
            if path.suffix != ".so":
                (package / path.name).symlink_to(path)
        environment = os.environ | {
            "LD_PRELOAD": library,
            "PYTHONPATH": os.pathsep.join([folder, *(str(ROOT / name) for name in BESIDE)]),
            "PYTHONMALLOC": "malloc",  # Python's own would hide what is used after it was freed
            "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves much behind; references are counted
        }
        loaded = "import sys, gpuscope._compiled as c; sys.exit(c.fastpath is None)"
        return sum(
            subprocess.run([sys.executable, "-P", *words], env=environment, check=False).returncode
            != 0
            for words in [["-c", loaded], *runs, [*nasty, str(Path(folder) / "stacks.json")]]
        )


def properties(examples: int) -> int:
    """Run the property tests."""
    settings.register_profile(
        "fuzz",
        max_examples=examples,
        derandomize=False,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    quiet = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is loaded already
    marked = "hypothesis and not gpu"
    # A stack that is dumped every so often ends Python 3.11 now and then.
    endless = ["--timeout=0", "-o", "faulthandler_timeout=0"]
    profile = ["--hypothesis-profile=fuzz", *endless]
    return int(pytest.main([*profile, "-W", quiet, "-m", marked, "tests"]))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("examples", type=int, nargs="?", default=2_000)
    parser.add_argument("mutants", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=FORMATS, action="append")
    parser.add_argument("--mutants-only", action="store_true")
    parser.add_argument("--c-only", action="store_true")
    given = parser.parse_args()
    if given.c_only:
        return int(sanitized(given.seed) > 0)
    failed = mutate(given.only or list(FORMATS), given.seed, given.mutants)
    if given.mutants_only:
        return int(failed > 0)
    os.environ["GPUSCOPE_MUTATIONS"] = str(given.mutants)
    failed += sanitized(given.seed)
    return properties(given.examples) or int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
