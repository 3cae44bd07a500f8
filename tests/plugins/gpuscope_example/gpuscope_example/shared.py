"""A backend: devices ``shared:NAME``, each of which is the host under another name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuscope.device import DeviceFamily
from gpuscope.device.cpu import CpuArray, CpuBackend


class SharedArray(CpuArray):
    """An array of such a device."""

    home: object = None

    def __array_finalize__(self, source: Any) -> None:
        self.home = getattr(source, "home", None)


class SharedBackend(CpuBackend):
    """The host, shared by those who know its name."""

    array_type = SharedArray

    def __init__(self, name: str, *, pace: str, jitter: bool) -> None:
        del pace, jitter
        super().__init__()
        self.info = replace(self.info, key=f"shared:{name}", name=f"CPU shared by {name}")
        self.home = self.info.key

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self._ours(super().empty(shape, dtype))

    def asarray(self, values: Any) -> Any:
        return self._ours(super().asarray(values))

    def home_of(self, array: Any) -> object:
        return array.home

    def _ours(self, array: Any) -> Any:
        array = array.view(SharedArray)
        array.home = self.home
        return array


SHARED = DeviceFamily(SharedBackend, names=lambda: ["everybody"])
