"""A page without a browser: it speaks to a widget as the one in JupyterLab does."""

from __future__ import annotations

import json
from typing import Any

import comm
import pytest


class _Comm(comm.base_comm.BaseComm):
    """Keeps what the kernel sends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type: str, data: Any = None, **_more: Any) -> None:
        self.sent.append({"type": msg_type, **(data or {})})


class FrontEnd:
    """The page of one widget.

    Attributes
    ----------
    state
        The traits as the page knows them, from what was sent to it alone.
    """

    def __init__(self, widget: Any) -> None:
        self.widget = widget
        self.comm = widget.comm
        assert isinstance(self.comm, _Comm), "use the fixture `pages` before making widgets"

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for message in self.comm.sent:
            state.update(message.get("state", {}))
        return json.loads(json.dumps(state))  # what cannot travel fails here

    def set(self, **state: Any) -> None:
        """Send traits that the page changed."""
        self._say({"method": "update", "state": json.loads(json.dumps(state)), "buffer_paths": []})

    def act(self, action: str, **fields: Any) -> None:
        """Send an action."""
        content = {"action": action, **json.loads(json.dumps(fields))}
        self._say({"method": "custom", "content": content})

    def _say(self, data: dict[str, Any]) -> None:
        self.comm.handle_msg({"content": {"data": data}, "buffers": []})


@pytest.fixture
def pages(monkeypatch):
    """Widgets made from here on have a page: ``pages(widget)``."""
    monkeypatch.setattr(comm, "create_comm", _Comm)
    return FrontEnd
