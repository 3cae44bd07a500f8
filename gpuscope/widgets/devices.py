"""Which devices a widget offers, how it opens them, and what it says of them."""

from __future__ import annotations

import threading

import traitlets

from gpuscope.device.device import Device
from gpuscope.device.select import open_device, why_not
from gpuscope.errors import CapabilityError, GpuscopeError
from gpuscope.widgets.base import Control, script

_SIM = "sim:h200"


class DevicePicker(Control):
    """A choice of devices, and whether what is seen on the chosen one is real.

    Parameters
    ----------
    wanted
        Which one to start with; ``None`` and ``"auto"`` want a GPU if there is one.
    lock
        Lock for the widget's state; several widgets may share one.

    Raises
    ------
    DeviceUnavailable, MissingDependency
        The device wanted is not here.
    """

    _esm = script("devices.js")

    options = traitlets.List(traitlets.Unicode(), help="Names of the devices.")
    device = traitlets.Unicode(help="Name of the chosen one.")
    simulated = traitlets.Bool(help="Whether it is simulated.")
    words = traitlets.Unicode(help="What it is, in words.")
    error = traitlets.Unicode(help="Why it cannot be opened; or empty.")

    def __init__(self, wanted: Device | str | None, *, lock: threading.RLock) -> None:
        self._why_no_gpu, keys = "", [_SIM]
        try:
            keys.insert(0, open_device("cuda:0", quiet=True).info.key)
        except GpuscopeError as error:
            self._why_no_gpu = why_not(error)
        if isinstance(wanted, Device):
            first = wanted.info.key
        elif wanted is None or wanted == "auto":
            first = keys[0]
        else:
            opened = open_device(wanted, quiet=True)
            first = wanted if opened.is_simulated else opened.info.key  # a path is for ever
        if first not in keys:
            keys.insert(0, first)
        super().__init__(lock=lock, options=keys, device=first)
        self._describe()
        self.observe(self._describe, names="device")

    def opened(self) -> Device:
        """Open the chosen device for one use.

        A CUDA device is the one that is open already. A simulated one is new every time: its
        pace counts from its opening, and one that a widget kept would be a second clock to
        every ``profile()`` of the notebook.
        """
        return open_device(self.device, pace="real", quiet=True)

    def require_gpu(self) -> None:
        """Refuse what Nsight Systems cannot see.

        Raises
        ------
        CapabilityError
            The chosen device is no GPU.
        """
        info = self.opened().info
        if info.kind != "cuda":
            raise CapabilityError(
                f"Nsight Systems records what a GPU does, and {info.key} is none: choose a CUDA "
                "device"
            )

    @traitlets.validate("device")
    def _known(self, proposal: dict[str, str]) -> str:
        """Keep to the devices that are offered, whatever a page says."""
        wanted = proposal["value"]
        return wanted if wanted in self.options and not self.disabled else self.device

    def _describe(self, _change: object = None) -> None:
        with self.lock, self.hold_sync():
            try:
                info = self.opened().info
            except GpuscopeError as error:
                self.error, self.words = str(error), ""
                return
            self.error = ""
            self.simulated = info.kind == "sim"
            self.words = f"{info.name}, {info.sm_count} SMs"
            if self.simulated:
                self.words += (
                    ": every time comes from a model and none from a GPU. Compare settings by "
                    "them; measure before you quote one."
                )
                self.words += f" Why: {self._why_no_gpu}" if self._why_no_gpu else ""
            else:
                self.words += f" ({info.driver})"
