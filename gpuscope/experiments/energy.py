"""The energy of a round, by the GPU's own counter."""

from __future__ import annotations

from collections import defaultdict

from gpuscope import _interrupts
from gpuscope.device.device import Device
from gpuscope.errors import CapabilityError, GpuscopeError, InvalidExperiment
from gpuscope.trace.facts import EnergyFacts

_STEPS = 20
"""Steps of the counter that a round lasts at least: when one comes is known to 5 ms (a call of NVML
takes 4), which is 0.5 % of 2 s for both ends together."""
_REST_NS = 250_000_000
"""How long the GPU rests before a round, for its idle power."""
_POLL_NS = 1_000_000
_MORE = 1 << 40


class Meter:
    """Measures what a device draws in rounds: from one step of its counter to another.

    Parameters
    ----------
    device
        One that tells its energy.

    Attributes
    ----------
    more
        Calls beyond those planned that a workload is given, and makes until it is enough.
    of
        Setting → the energy of its rounds.

    Raises
    ------
    CapabilityError
        The device tells no energy.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        if device.backend.energy_j() is None:
            raise CapabilityError(
                f"{device.info.name} does not tell the energy that it draws: leave out energy = "
                "true and objectives of joules, or open a GPU whose NVML counts it (Volta or "
                "newer), or sim:h200"
            )
        self._least_ns = _STEPS * device.backend.energy_step_ns
        self._rested = (0, 0.0)  # when the rest ended, and what the counter was
        self._idle_w = 0.0
        self._began_ns = 0
        self.more = _MORE if self._least_ns else 0
        self.of: defaultdict[str, list[EnergyFacts]] = defaultdict(list)

    def rest(self) -> None:
        """Measure the power of a GPU that does nothing, just before a round."""
        began_ns, began_j = self._at_step()
        self._device.backend.wait_until_ns(began_ns + _REST_NS)
        self._rested = ended_ns, ended_j = self._at_step()
        self._idle_w = (ended_j - began_j) / (ended_ns - began_ns) * 1e9

    def is_enough(self, left: int) -> bool:
        """Whether a workload that has so many calls left has made those planned for long enough."""
        is_long = self._device.now_ns() - self._began_ns >= self._least_ns
        return left <= self.more and is_long

    def begin(self, now_ns: int) -> None:
        """Note that a round begins; since its rest, the GPU did nothing."""
        self._began_ns = now_ns

    def end(self, setting: str, now_ns: int) -> None:
        """Note the energy of a round that has ended, after which the GPU does nothing.

        Raises
        ------
        InvalidExperiment
            It was too short.
        """
        took_ns = now_ns - self._began_ns
        if took_ns < self._least_ns:
            raise InvalidExperiment(
                f"a round of setting {setting!r} took {took_ns / 1e9:.3g} s, but the energy of "
                f"less than {self._least_ns / 1e9:g} s is not known: make repeats "
                f"{-(-self._least_ns // max(1, took_ns))} times as many"
            )
        (since_ns, since_j), (until_ns, until_j) = self._rested, self._at_step()
        at_rest_s = (until_ns - since_ns - took_ns) / 1e9
        joules = until_j - since_j - self._idle_w * at_rest_s
        self.of[setting].append(EnergyFacts(joules, took_ns, self._idle_w))

    def _at_step(self) -> tuple[int, float]:
        """Wait until the counter advances; return when that was, and what it is then."""
        backend, before_j = self._device.backend, self._device.backend.energy_j()
        last_ns = self._device.now_ns() + _STEPS * (backend.energy_step_ns or _POLL_NS)
        while (now_ns := self._device.now_ns()) < last_ns:
            _interrupts.deliver()
            backend.wait_until_ns(now_ns + _POLL_NS)
            after_j = backend.energy_j()
            if after_j is not None and after_j != before_j:
                return self._device.now_ns(), after_j
        raise GpuscopeError(
            f"the counter of the energy that {self._device.info.name} draws stands still: its "
            "driver does not count. Leave out energy = true and objectives of joules"
        )
