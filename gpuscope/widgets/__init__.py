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

__getattr__, __dir__, __all__ = public(__name__)
