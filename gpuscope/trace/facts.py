"""The shape of a trace's metadata, which may come from anywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec

from gpuscope._text import clean
from gpuscope.errors import TraceFormatError
from gpuscope.trace.schema import LATEST_NS

_Number = float | int | None
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[int, msgspec.Meta(ge=0, lt=LATEST_NS)]
_Short = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
"""An index of a device or an SM, or a count of SMs: as wide as the columns of these."""


class _Device(TypedDict, total=False):
    index: _Short
    name: str
    uuid: str | None
    sm_count: _Short | None
    driver: str | None
    launch_latency_ns: _Time
    kernel_gap_ns: _Time
    sm_clock_mhz: _Number
    memory_clock_mhz: _Number
    power_w: _Number
    throttle_reasons: list[str] | None


class _Partition(TypedDict, total=False):
    asked: _Short | str | None
    sm_count: _Short | None
    granted: _Short | None
    sm_ids: list[_Short] | None
    sm_count_target: _Short | str | None
    context: _Whole | None
    shares_with: list[str] | None


class _Stream(TypedDict, total=False):
    name: Required[str]
    partition: str | None
    priority: Annotated[int, msgspec.Meta(ge=-1 << 31, lt=1 << 31)] | None
    device: str | None
    legacy_default: bool
    blocking: bool
    per_thread: bool


class _Experiment(TypedDict, total=False):
    workloads: dict[str, dict[str, Any]]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    time_base: Literal["unix", "virtual", "relative"] = "unix"
    simulated: bool = False
    devices: dict[str, _Device] = {}
    driver: str | None = None
    process_names: dict[str, str] = {}
    thread_names: dict[str, str] = {}
    partitions: dict[str, _Partition] = {}
    streams: dict[str, _Stream] = {}
    windows_ns: list[tuple[_Time, _Time]] = []
    solo: dict[str, dict[str, _Number]] = {}
    clocks: dict[str, dict[str, _Number]] = {}
    device_max_connections: str | None = None
    versions: dict[str, str] = {}
    experiment: _Experiment | None = None
    setting: str | None = None
    counts: dict[str, int] = {}
    complete: bool = True
    notes: list[str] = []


def checked(facts: Any) -> dict[str, Any]:
    """Return the facts of a trace's metadata if all that is read of them has its type.

    Raises
    ------
    TraceFormatError
        One has another, or is unknown; says which.
    """
    try:
        known = msgspec.convert(facts, _Metadata)
    except msgspec.ValidationError as error:
        raise TraceFormatError(clean(f"metadata: {error}")) from None  # it quotes the file
    wrong = next((key for key in known.streams if not key.isdecimal()), None)
    if wrong is not None:
        raise TraceFormatError(f"metadata: no stream has the number {wrong[:40]!r}")
    return dict(facts)
