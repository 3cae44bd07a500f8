"""gpuscope: carve a GPU's SMs, assign streams, launch, and see what overlapped.

Public names resolve at first use (PEP 562), so that ``import gpuscope`` stays fast
and loads no CUDA library, notebook or plotting package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope import _live
from gpuscope._lazy import public
from gpuscope._live import LiveView

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from gpuscope import analysis as analysis
    from gpuscope import device as device
    from gpuscope import errors as errors
    from gpuscope import experiments as experiments
    from gpuscope import figures as figures
    from gpuscope import judging as judging
    from gpuscope import learn as learn
    from gpuscope import search as search
    from gpuscope import telling as telling
    from gpuscope import widgets as widgets
    from gpuscope import workloads as workloads
    from gpuscope.analyses.registry import findings as findings
    from gpuscope.comparing.compare import compare as compare
    from gpuscope.device.caller import CallerStreamGuard as CallerStreamGuard
    from gpuscope.device.caller import get_caller_stream as get_caller_stream
    from gpuscope.device.select import open_device as open_device
    from gpuscope.experiments.execution import run as run
    from gpuscope.experiments.profiling import profile as profile
    from gpuscope.experiments.trying import try_delay as try_delay
    from gpuscope.formats.reading import load_trace as load_trace
    from gpuscope.formats.writing import export as export
    from gpuscope.judging.diffing import diff as diff
    from gpuscope.races.confirming import confirm as confirm
    from gpuscope.races.default_stream import no_default_stream as no_default_stream
    from gpuscope.record.annotate import annotate as annotate
    from gpuscope.search.tuning import tune as tune
    from gpuscope.simulator.forecast.what_if import what_if as what_if
    from gpuscope.trace.merging import merge as merge
    from gpuscope.widgets.dashboard import Dashboard as Dashboard
    from gpuscope.widgets.timeline import Timeline as Timeline
    from gpuscope.workloads.gemm import Gemm as Gemm
    from gpuscope.workloads.product import mm_out as mm_out
    from gpuscope.workloads.torch_module import TorchModule as TorchModule

__getattr__, __dir__, __all__ = public(__name__)


def _shown_timeline() -> LiveView:
    """Make the view of ``profile(live=True)``."""
    from gpuscope.widgets.shown_timeline import ShownTimeline  # noqa: PLC0415 - only where one is shown

    return ShownTimeline()


_live.usual[:] = [_shown_timeline]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext gpuscope``: the magics."""
    from gpuscope.magics import load  # noqa: PLC0415 - only notebooks have them

    load(shell)
