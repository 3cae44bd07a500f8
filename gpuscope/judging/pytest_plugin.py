"""A fixture for pytest: ``gpuscope_budget``, which fails a test whose budget is violated.

A ``conftest.py`` names it in ``pytest_plugins``: an entry point would have pytest rewrite the
asserts of the whole package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def gpuscope_budget() -> Callable[..., object]:
    """Check a budget in a test.

    Called as :func:`gpuscope.judging.check`, whose result it returns where the budget holds. A
    test whose budget is violated fails with the limits as a table; one that cannot be told is
    skipped with the reason, as it has shown nothing.
    """

    def hold(target: Any, budget: Any, **options: Any) -> object:
        from gpuscope.judging.checking import check  # noqa: PLC0415 - only in tests that ask
        from gpuscope.judging.told import check_markdown  # noqa: PLC0415 - as above

        result = check(target, budget, **options)
        if result.verdict == "violated":
            pytest.fail(check_markdown(result), pytrace=False)
        if result.verdict == "cannot tell":
            pytest.skip(result.headline)
        return result

    return hold
