"""What a simulated GPU draws, and the energy that this comes to."""

from __future__ import annotations

from gpuscope.simulator.engine.waves import Sharing
from gpuscope.simulator.models.assumed import CAP_W, GEMM_W, IDLE_W, MEMORY_W, SM_W


class Energy:
    """Integrates the power, which is constant from one instant of the engine to the next.

    It begins when somebody asks for the first time.
    """

    def __init__(self) -> None:
        self._joules = 0.0
        self._since_ns: int | None = None
        self._watts = 0.0

    def joules(self, now_ns: int, busy_sms: int, sharing: Sharing) -> float:
        """Return what was drawn until a time, since the first that was asked for.

        Parameters
        ----------
        busy_sms
            Bit mask of the SMs that are busy.
        sharing
            Tells what is moved and multiplied.
        """
        if self._since_ns is None:
            self._since_ns = now_ns
        self.follow(now_ns, busy_sms, sharing)
        return self._joules

    def follow(self, now_ns: int, busy_sms: int, sharing: Sharing) -> None:
        """Draw from now on what runs now, if anybody has asked."""
        if self._since_ns is None:
            return
        self._joules += self._watts * (now_ns - self._since_ns) / 1e9
        self._since_ns = now_ns
        watts = IDLE_W + SM_W * busy_sms.bit_count() + GEMM_W * sharing.gemms
        self._watts = min(CAP_W, watts + MEMORY_W * min(1.0, sharing.memory))
