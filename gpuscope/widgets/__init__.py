"""Widgets for notebooks: the dashboard, its controls and the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.widgets.carver import PartitionCarver as PartitionCarver
    from gpuscope.widgets.dashboard import Dashboard as Dashboard
    from gpuscope.widgets.tables import StreamTable as StreamTable
    from gpuscope.widgets.tables import WorkloadTable as WorkloadTable
    from gpuscope.widgets.timeline import Timeline as Timeline

_HOMES = {
    "Dashboard": "gpuscope.widgets.dashboard",
    "Timeline": "gpuscope.widgets.timeline",
    "PartitionCarver": "gpuscope.widgets.carver",
    "StreamTable": "gpuscope.widgets.tables",
    "WorkloadTable": "gpuscope.widgets.tables",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - every key is a string
__getattr__, __dir__ = public(__name__, _HOMES)
