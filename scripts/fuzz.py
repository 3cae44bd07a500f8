"""Try the readers of traces on damaged files, and the property tests on many more examples.

    python scripts/fuzz.py [EXAMPLES [MUTANTS]] [--seed SEED] [--only FORMAT] [--mutants-only]

Of each format, MUTANTS (20,000) files are damaged, in one process a format. Each that loads is
analysed, summarised, drawn, exported to every format and loaded again (tests/trace_chain.py);
one in 16 is made HTML pages of, too, which take as long as all the rest. A trace that equals one
that went that way already does not go again. What was done is kept in .hypothesis/mutants/ beside
the files that failed: the next call tries those first and goes on where this one stopped.

EXAMPLES (2,000) are those of each property test; tests that fix their own number keep it. What
fails is kept in .hypothesis/ and tried first by the next ordinary test run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".hypothesis" / "mutants"
FORMATS = ("parquet", "json", "gzip", "sqlite")


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


def properties(examples: int) -> int:
    """Run the property tests."""
    settings.register_profile(
        "fuzz",
        max_examples=examples,
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
    given = parser.parse_args()
    failed = mutate(given.only or list(FORMATS), given.seed, given.mutants)
    if given.mutants_only:
        return int(failed > 0)
    os.environ["GPUSCOPE_MUTATIONS"] = str(given.mutants)
    return properties(given.examples) or int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
