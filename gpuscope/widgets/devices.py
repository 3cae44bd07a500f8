"""Which devices a widget offers, and how it opens them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import GpuscopeError

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
        why = str(error).splitlines()[0]
    if isinstance(wanted, Device):
        first = wanted.info.key
    elif wanted is None or wanted == "auto":
        first = keys[0]
    else:
        first = open_device(wanted, quiet=True).info.key
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
