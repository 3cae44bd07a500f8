"""Many runs: sweeps, tuning, interference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.search.interference import measure_interference as measure_interference
    from gpuscope.search.scale_out import executor_of as executor_of
    from gpuscope.search.scale_out import make_locks as make_locks
    from gpuscope.search.sweeps import load_sweep as load_sweep
    from gpuscope.search.sweeps import sweep as sweep
    from gpuscope.search.tune_result import TuneResult as TuneResult
    from gpuscope.search.tuned_code import manual_divisions as manual_divisions
    from gpuscope.search.tuning import tune as tune

__getattr__, __dir__, __all__ = public(__name__)
