"""Which devices a widget offers, how it opens them, and what it says of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import traitlets

from gpuscope.device.device import Device
from gpuscope.device.select import open_device, why_not
from gpuscope.errors import GpuscopeError
from gpuscope.widgets.base import Control, script

_SIM = "sim:h200"


@dataclass(frozen=True)
class Devices:
    """The devices that are here.

    Attributes
    ----------
    keys
        Their names in :func:`~gpuscope.open_device`.
    first
        The one to start with.
    why_no_gpu
        Why there is no CUDA device among them; empty if there is one.
    """

    keys: tuple[str, ...]
    first: str
    why_no_gpu: str


def find_devices(wanted: Device | str | None) -> Devices:
    """Look for devices; ``None`` and ``"auto"`` want a GPU if there is one.

    Raises
    ------
    DeviceUnavailable, MissingDependency
        The device wanted is not here.
    """
    why, keys = "", [_SIM]
    try:
        keys.insert(0, open_device("cuda:0", quiet=True).info.key)
    except GpuscopeError as error:
        why = why_not(error)
    if isinstance(wanted, Device):
        first = wanted.info.key
    elif wanted is None or wanted == "auto":
        first = keys[0]
    else:
        opened = open_device(wanted, quiet=True)
        first = wanted if opened.is_simulated else opened.info.key  # a path is for ever
    if first not in keys:
        keys.insert(0, first)
    return Devices(tuple(keys), first, why)


def open_anew(key: str) -> Device:
    """Open a device for one use.

    A CUDA device is the one that is open already. A simulated one is new every time: its
    pace counts from its opening, and one that a widget kept would be a second clock to
    every ``profile()`` of the notebook.
    """
    return open_device(key, pace="real", quiet=True)


class DevicePicker(Control):
    """A choice of devices, and whether what is seen on the chosen one is real.

    Parameters
    ----------
    devices
        Those that are here.
    lock
        Guards the state; several widgets may share one.
    """

    _esm = script("devices.js")

    options = traitlets.List(traitlets.Unicode(), help="Names of the devices.").tag(sync=True)
    device = traitlets.Unicode(help="Name of the chosen one.").tag(sync=True)
    simulated = traitlets.Bool(help="Whether it is simulated.").tag(sync=True)
    words = traitlets.Unicode(help="What it is, in words.").tag(sync=True)
    error = traitlets.Unicode(help="Why it cannot be opened; or empty.").tag(sync=True)

    def __init__(self, devices: Devices, *, lock: threading.RLock | None = None) -> None:
        super().__init__(lock=lock, options=list(devices.keys), device=devices.first)
        self._why = devices.why_no_gpu
        self._describe()
        self.observe(self._describe, names="device")

    def opened(self) -> Device:
        """Open the chosen device for one use."""
        return open_anew(self.device)

    @traitlets.validate("device")
    def _known(self, proposal: dict[str, str]) -> str:
        """Keep to the devices that are offered, whatever a page says."""
        return proposal["value"] if proposal["value"] in self.options else self.device

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
                self.words += ": no GPU is used, all times come from a model."
                self.words += f" Why: {self._why}" if self._why else ""
            else:
                self.words += f" ({info.driver})"
