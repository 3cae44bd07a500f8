"""Run the property tests on many more examples than a usual test run tries.

    python scripts/fuzz.py [EXAMPLES [MUTATIONS]]

EXAMPLES (2,000) are those of each property, MUTATIONS (100,000) the damaged files of each format
that the importers read. Each file that loads is analysed, drawn, exported and loaded again
(tests/unit/trace_chain.py), which an ordinary run does with one in 25. Tests that fix their own
number of examples keep it. What fails is kept in .hypothesis/ and tried first by the next ordinary
test run.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings


def main(examples: int, mutations: int) -> int:
    os.environ["GPUSCOPE_MUTATIONS"] = str(mutations)
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


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:3]]
    sys.exit(main(*given, *(2_000, 100_000)[len(given) :]))
