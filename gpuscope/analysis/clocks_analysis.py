"""Clocks: at which SM clock and power each recording ran, and for what its GPU was throttled."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope._checks import door
from gpuscope.analysis.result import Result, Row, about
from gpuscope.errors import MissingEvidence
from gpuscope.trace.gpu_states import GpuStateFacts, throttled_rounds, typical
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class ClocksResult(Result):
    """How GPUs stood, one row for each GPU and recording, such as a round.

    Attributes
    ----------
    states
        In the order of the recordings.
    """

    states: tuple[GpuStateFacts, ...]

    def _rows(self) -> list[Row]:
        """One row per state."""
        return [
            {
                "round": state.round,
                "GPU": state.device,
                "SM clock (MHz)": state.sm_clock_mhz,
                "lowest (MHz)": state.lowest_mhz,
                "highest (MHz)": state.highest_mhz,
                "power (W)": state.power_w,
                "throttled": ", ".join(state.throttled) or None,
                "readings": state.readings,
            }
            for state in self.states
        ]

    @property
    def definition(self) -> str:
        """What the rows mean."""
        return "medians over the time of each recording; throttled: in any of the readings"


@door(trace=Trace)
def clocks(trace: Trace) -> ClocksResult:
    """Return at which SM clock and power a trace was recorded, and for what GPUs were throttled.

    Raises
    ------
    MissingEvidence
        No clock was read: the GPU is simulated, the driver does not tell, or the trace is of
        another recorder.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> from gpuscope.trace.metadata import TraceMetadata
    >>> state = {"device": "cuda:0", "sm_clock_mhz": 1755, "reasons": ["sw_power_cap"]}
    >>> trace = Trace.from_columns({}, metadata=TraceMetadata(gpu_states=[state]))
    >>> gs.analysis.clocks(trace).rows()[0]["throttled"]
    'power cap'
    """
    states = trace.metadata.gpu_states
    if not states:
        raise MissingEvidence(
            "no clock was read: record on a GPU whose driver has NVML to know at which clock it ran"
        )
    ordered = sorted(states, key=lambda state: (state.round, state.device))
    return ClocksResult(tuple(ordered), **about(trace))


def of_recording(trace: Trace) -> Row:
    """Return what columns of a comparison tell of a recording: its clocks, and what is missing."""
    states = trace.metadata.gpu_states
    clock_mhz, power_w = typical(states)
    return {
        "sm_clock_mhz": clock_mhz,
        "power_w": power_w,
        "throttled": throttled_rounds(states) or None,
        "incomplete": trace.metadata.incomplete or None,
    }
