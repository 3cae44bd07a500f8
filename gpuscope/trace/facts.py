"""The shape of a trace's metadata in a file, which may come from anywhere."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

_Number = float | int | None


class _Device(TypedDict, total=False):
    index: int
    name: str
    uuid: str | None
    sm_count: int | None
    driver: str | None
    launch_latency_ns: int
    kernel_gap_ns: int


class _Partition(TypedDict, total=False):
    asked: int | str | None
    sm_count: int | None
    granted: int | None
    sm_ids: list[int] | None
    sm_count_target: int | str | None
    context: int | None
    shares_with: list[str] | None


class _Stream(TypedDict, total=False):
    name: str
    partition: str | None
    priority: int | None
    device: str | None
    legacy_default: bool
    blocking: bool


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    time_base: Literal["unix", "virtual", "relative"] = "unix"
    simulated: bool = False
    devices: dict[str, _Device] = {}
    driver: str | None = None
    process_names: dict[str, str] = {}
    thread_names: dict[str, str] = {}
    partitions: dict[str, _Partition] = {}
    streams: dict[str, _Stream] = {}
    windows_ns: list[tuple[int, int]] = []
    solo: dict[str, dict[str, _Number]] = {}
    clocks: dict[str, dict[str, _Number]] = {}
    device_max_connections: str | None = None
    versions: dict[str, str] = {}
    experiment: dict[str, Any] | None = None
    setting: str | None = None
    counts: dict[str, int] = {}
    complete: bool = True
    notes: list[str] = []


def checked(facts: Any) -> dict[str, Any]:
    """Return the facts of a trace's metadata if all that is read of them has its type.

    Raises
    ------
    ValueError
        One has another, or is unknown; says which.
    """
    try:
        msgspec.convert(facts, _Metadata)
    except msgspec.ValidationError as error:
        raise ValueError(f"metadata: {error}") from error
    return dict(facts)
