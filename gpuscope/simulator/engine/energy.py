"""What a simulated GPU draws, and the energy that this comes to."""

from __future__ import annotations

from gpuscope.simulator.engine.waves import Sharing
from gpuscope.simulator.models.assumed import CAP_W, GEMM_W, IDLE_W, MEMORY_W, SM_W


class Energy:
    """Integrates the power, which is constant from one instant of the engine to the next.

    Parameters
    ----------
    now_ns
        When it begins.
    """

    def __init__(self, now_ns: int) -> None:
        self._joules = self._watts = 0.0
        self._since_ns = now_ns

    def follow(self, now_ns: int, busy_sms: int, sharing: Sharing) -> float:
        """Draw from now on what runs now; returns the joules that were drawn until now.

        Parameters
        ----------
        busy_sms
            Bit mask of the SMs that are busy.
        sharing
            Tells what is moved and multiplied.
        """
        self._joules += self._watts * (now_ns - self._since_ns) / 1e9
        self._since_ns = now_ns
        watts = IDLE_W + SM_W * busy_sms.bit_count() + GEMM_W * sharing.gemms
        self._watts = min(CAP_W, watts + MEMORY_W * min(1.0, sharing.memory))
        return self._joules
