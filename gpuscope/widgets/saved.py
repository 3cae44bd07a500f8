"""What a notebook keeps of what it displayed, for when it is opened without its kernel."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

import IPython.display

from gpuscope._text import shown_lines
from gpuscope.widgets import html
from gpuscope.widgets.timeline import Timeline

_notebook: Any = IPython.display
"""IPython has no types."""
_HIDE_DEAD = (
    ".jp-OutputArea-child:has(+ .jp-OutputArea-child .gpuscope-saved) "
    ".jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
)
"""JupyterLab writes an error in the place of a widget whose kernel is gone."""


class DisplayHandle(Protocol):
    """The place of something displayed, as IPython returns it."""

    def update(self, shown: object, /) -> None:
        """Show something else there."""


def page_of(html: str) -> object:
    """Return HTML as IPython displays it."""
    return _notebook.HTML(html)


def display(shown: object, name: str | None = None) -> DisplayHandle | None:
    """Show something where the output of the cell is; return its place if it has a name."""
    handle: DisplayHandle | None = _notebook.display(shown, display_id=name)
    return handle


def saved_page(uid: str, experiment: str, device: str, results: str, *, simulated: bool) -> str:
    """Return the HTML of a dashboard without its widgets.

    It hides the place of a widget that cannot be shown, right before it.

    Parameters
    ----------
    uid
        By which the living widget hides it.
    experiment
        As TOML.
    results
        HTML.
    """
    mark = "<b>SIMULATED, not measured:</b> " if simulated else ""
    return (
        f'<div class="gpuscope-saved gpuscope-saved-{uid}">'
        f"<style>{_HIDE_DEAD}</style>"
        '<div style="font-weight:600">gpuscope dashboard, as it was last</div>'
        f"<div>{mark}{html.text(device)}</div>{results}"
        "<details><summary>The experiment</summary>"
        f"<pre>{shown_lines(experiment)}</pre></details></div>"
    )


class ShownTimeline(Timeline):
    """What ``profile(live=True)`` shows: a timeline where the cell's output is."""

    def __init__(self) -> None:
        super().__init__()
        self._place = display(self, f"gpuscope-{secrets.token_hex(8)}")

    def finish(self) -> None:
        """Show the whole recording, which has ended, and read it no more."""
        super().finish()
        if self._place is not None and not self.is_seen:
            self._place.update(self)  # what is kept shows the end, not the beginning
