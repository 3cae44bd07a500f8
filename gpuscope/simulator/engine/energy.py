"""What a simulated GPU draws, and the energy that this comes to."""

from __future__ import annotations

from gpuscope.simulator.engine.waves import Sharing
from gpuscope.simulator.models.assumed import CAP_W, GEMM_W, IDLE_W, MEMORY_W, SM_W


class Energy:
    """Integrates the power, which is constant from one instant of the engine to the next."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._since_ns: int | None = None
        self._watts = float(IDLE_W)
        self._draws = (0, 0.0, 0.0)

    def joules(self, now_ns: int) -> float:
        """Return what was drawn until a time, since any other."""
        if self._since_ns is None:
            self._since_ns = now_ns
        return self._joules + self._watts * (now_ns - self._since_ns) / 1e9

    def follow(self, now_ns: int, busy_sms: int, sharing: Sharing) -> None:
        """Draw from now on what runs now.

        Parameters
        ----------
        busy_sms
            Bit mask of the SMs that are busy.
        sharing
            Tells what is moved and multiplied.
        """
        draws = (busy_sms, sharing.memory, sharing.gemms)
        if draws == self._draws:
            return
        self._joules = self.joules(now_ns)
        self._since_ns, self._draws = now_ns, draws
        watts = IDLE_W + SM_W * busy_sms.bit_count() + GEMM_W * sharing.gemms
        self._watts = min(CAP_W, watts + MEMORY_W * min(1.0, sharing.memory))
