"""Handling messages of the browser while a cell is running."""

from __future__ import annotations

from ipywidgets import Widget


def hear_beside_cells(widget: Widget) -> None:
    """Have what the browser tells a widget handled while a cell runs, where the page asks for it.

    JupyterLab sends it to a thread of its own in the kernel (a subshell). ipykernel from 7.3 on
    sends it to the thread instead from which the widget was last written to: that is the
    cell's, for a widget that was just made, and for one that other threads draw on. Then
    nothing is heard before the cell ends.
    """
    comm = widget.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, subshell: subshell
