"""Did it get slower, and does it keep its budget: measured against its own noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.comparing.diff_result import DiffResult as DiffResult
    from gpuscope.judging.budget import Budget as Budget
    from gpuscope.judging.checking import CheckResult as CheckResult
    from gpuscope.judging.checking import check as check
    from gpuscope.judging.diffing import diff as diff
    from gpuscope.judging.programs import Command as Command

__getattr__, __dir__, __all__ = public(__name__)
