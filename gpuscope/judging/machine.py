"""What a baseline was measured on: figures of one machine say nothing about another's."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuscope import __version__
from gpuscope.trace.gpu_states import typical
from gpuscope.trace.model import Trace

_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "torch", "triton", "numpy")
_CLOCKS_APART = 0.02
"""Share by which the GPU's clock may differ from a baseline's."""


class Machine(msgspec.Struct, frozen=True):
    """A machine.

    Attributes
    ----------
    gpu
        Name and number of SMs; of a simulated one its profile.
    clock_mhz
        Median SM clock.
    cpu, cores
        Of the host: they count where launches do. Empty of a simulated GPU, which has its own.
    versions
        Package → version.
    """

    gpu: str
    sms: int | None = None
    driver: str | None = None
    clock_mhz: float | None = None
    cpu: str = ""
    cores: int = 0
    versions: dict[str, str] = {}

    def differs(self, other: Machine) -> list[str]:
        """Say in what another machine differs so that its figures cannot be compared."""
        differences = [
            f"{name} {ours or 'unknown'}, there {theirs or 'unknown'}"
            for name, ours, theirs in (
                ("GPU", self.gpu, other.gpu),
                ("SMs", self.sms, other.sms),
                ("driver", self.driver, other.driver),
                ("CPU", self.cpu, other.cpu),
                ("cores", self.cores, other.cores),
            )
            if ours != theirs
        ]
        if self.clock_mhz and other.clock_mhz:
            apart = abs(self.clock_mhz - other.clock_mhz) / other.clock_mhz
            if apart > _CLOCKS_APART:
                differences.append(
                    f"SM clock {self.clock_mhz:.0f} MHz, there {other.clock_mhz:.0f}"
                )
        return differences

    def other_versions(self, other: Machine) -> list[str]:
        """Say which versions differ."""
        names = sorted({*self.versions, *other.versions})
        return [
            f"{name} {self.versions.get(name, 'not there')}, there "
            f"{other.versions.get(name, 'not there')}"
            for name in names
            if self.versions.get(name) != other.versions.get(name)
        ]


def machine_of(traces: Sequence[Trace]) -> Machine:
    """Return the machine that traces were recorded on, which is this one."""
    trace = traces[0]
    facts = next(iter(trace.metadata.devices.values()), None)
    versions = {"gpuscope": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu, sms = (facts.name or "", facts.sm_count) if facts else ("", None)
    if trace.is_simulated:
        return Machine(gpu, sms, versions={"gpuscope": __version__})
    states = [state for recorded in traces for state in recorded.metadata.gpu_states]
    driver = (facts.driver if facts else None) or trace.metadata.driver
    return Machine(gpu, sms, driver, typical(states)[0], _cpu(), os.cpu_count() or 0, versions)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
