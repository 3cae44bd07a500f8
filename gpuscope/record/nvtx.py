"""NVTX: our domain, made when it is first needed, after CUPTI had its chance to listen."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

from gpuscope._fork import free_in_children
from gpuscope._libcupti import arrange_nvtx, arranged
from gpuscope._optional import how_to_install, is_installed

DOMAIN = "gpuscope"
"""Domain of our ranges."""
CANARY = "gpuscope canary"
"""A range that a recording makes to see whether ranges reach it."""


heard = 1
"""Who may hear NVTX: recordings that are on, and tools that were there before us. Where only
our recordings can, ranges are made while one is on."""
_lock = free_in_children(threading.Lock())


class _NoDomain:
    """Stands in for a domain where the package nvtx is not installed: no tool sees a range."""

    def get_event_attributes(self, *, message: str) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        pass

    def pop_range(self) -> None:
        pass


def missing() -> str:
    """Return what the absence of the package nvtx means and what brings it, or ``""``."""
    if is_installed("nvtx"):
        return ""
    return (
        "the package nvtx is not installed: Nsight sees no ranges of gs.annotate, which "
        f"recordings still have. Run: {how_to_install('nvtx')}"
    )


@cache
def domain() -> Any:
    """Return our domain; the process's first NVTX call from Python, unless others came first."""
    arrange_nvtx()
    try:
        import nvtx  # noqa: PLC0415 - it looks for a tool when it is imported and used
    except ModuleNotFoundError:
        listen(-1)
        return _NoDomain()

    nvtx_domain = nvtx.get_domain(DOMAIN)
    if arranged() or not isinstance(nvtx_domain, nvtx.Domain):  # a stand-in, as no tool is attached
        listen(-1)
    return nvtx_domain


def listen(change: int) -> None:
    """Count a recording that hears NVTX, or with −1 no more."""
    global heard  # noqa: PLW0603 - one count per process
    with _lock:
        heard += change


def send_canary() -> None:
    """Make a range whose records must arrive."""
    domain().push_range(domain().get_event_attributes(message=CANARY))
    domain().pop_range()


def category_name(domain_name: str, number: int) -> str:
    """Return a category's name as far as Python's nvtx registered it, else its number."""
    nvtx = sys.modules.get("nvtx")  # where nobody imported it, it registered none
    domain = nvtx.get_domain(domain_name or None) if nvtx is not None else None
    names = getattr(domain, "categories", None)
    names = names if isinstance(names, dict) else {}
    registered_names = (str(name) for name, registered in names.items() if registered == number)
    return next(registered_names, str(number))
