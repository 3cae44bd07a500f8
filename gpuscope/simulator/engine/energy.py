"""What a simulated GPU draws, and the energy that this comes to."""

from __future__ import annotations

from gpuscope.simulator.models.assumed import CAP_W, GEMM_W, IDLE_W, MEMORY_W, SM_W


class Energy:
    """Integrates the power, which is constant from one instant of the engine to the next.

    Parameters
    ----------
    now_ns
        When it begins to count.
    """

    def __init__(self, now_ns: int) -> None:
        self._joules = 0.0
        self._since_ns = now_ns
        self._watts = float(IDLE_W)

    def joules(self, now_ns: int) -> float:
        """Return what was drawn until a time."""
        return self._joules + self._watts * (now_ns - self._since_ns) / 1e9

    def draw(self, now_ns: int, sm_count: int, memory: float, gemms: float) -> None:
        """Draw power from now on.

        Parameters
        ----------
        sm_count
            SMs that are busy.
        memory
            The share of the memory bandwidth that is asked for.
        gemms
            What GEMMs draw, as the profile's ``power`` has it.
        """
        self._joules, self._since_ns = self.joules(now_ns), now_ns
        watts = IDLE_W + SM_W * sm_count + MEMORY_W * min(1.0, memory) + GEMM_W * gemms
        self._watts = min(CAP_W, watts)
