"""Run the property tests on many more examples than a usual test run tries.

    python scripts/fuzz.py [EXAMPLES]

Tests that fix their own number of examples keep it. What fails is kept in .hypothesis/
and tried first by the next ordinary test run.
"""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings


def main(examples: int) -> int:
    settings.register_profile(
        "fuzz",
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    quiet = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is loaded already
    marked = "hypothesis and not gpu"
    profile = ["--hypothesis-profile=fuzz", "--timeout=0"]
    return int(pytest.main([*profile, "-W", quiet, "-m", marked, "tests"]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
