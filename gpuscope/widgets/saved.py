"""What a notebook keeps of what it displayed, for when it is opened without its kernel."""

from __future__ import annotations

import secrets
from typing import Any, Protocol, TypeAlias

import IPython.display

from gpuscope._text import shown_lines
from gpuscope.timeline.style import Properties
from gpuscope.widgets import html
from gpuscope.widgets.base import static

_notebook: Any = IPython.display
"""IPython has no types."""
_HIDE_DEAD = (
    ".jp-OutputArea-child:has(+ .jp-OutputArea-child .gpuscope-saved) "
    ".jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
)
"""JupyterLab writes an error in the place of a widget whose kernel is gone."""

_AFTER = " + .jp-OutputArea-child .gpuscope-picture"
_SHOW_PICTURE = (
    ".gpuscope-picture{display:none}"
    f".jp-OutputArea-child:has(.jupyter-widgets){_AFTER}{{display:block}}"
    f".jp-OutputArea-child:has(.jupyter-widgets > :not(script)){_AFTER}{{display:none}}"
)
"""A picture is seen where the widget before it has nothing to show: a page of nbconvert has scripts
there, and what they draw once they are loaded."""


Bundle: TypeAlias = Properties | tuple[Properties, Properties]


class DisplayHandle(Protocol):
    """The place of something displayed, as IPython returns it."""

    def update(self, shown: object, /, **options: object) -> None:
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
        f"<style>{_HIDE_DEAD}{static('verdict.css')}</style>"
        '<div style="font-weight:600">gpuscope dashboard, as it was last</div>'
        f"<div>{mark}{html.text(device)}</div>{results}"
        "<details><summary>The experiment</summary>"
        f"<pre>{shown_lines(experiment)}</pre></details></div>"
    )


def facts_of(bundle: Bundle) -> Properties:
    """Return a bundle without its metadata: media type → content."""
    return bundle[0] if isinstance(bundle, tuple) else bundle


class SavedWidget:
    """A widget where it is displayed, and behind it the picture that is shown without its kernel.

    Parameters
    ----------
    bundle
        The widget by media type, a PNG among them, with or without metadata, as IPython takes it.
    """

    def __init__(self, bundle: Bundle) -> None:
        name = f"gpuscope-{secrets.token_hex(8)}"
        facts = facts_of(bundle)
        self._widget: DisplayHandle = _notebook.display(facts, raw=True, display_id=name)
        self._picture = display(_picture(facts), f"{name}-picture")

    def update(self, bundle: Bundle, *, is_seen: bool) -> None:
        """Keep another picture; what is seen in a page is not made anew there."""
        facts = facts_of(bundle)
        if not is_seen:
            self._widget.update(facts, raw=True)
        if self._picture is not None:
            self._picture.update(_picture(facts))


def _picture(facts: Properties) -> object:
    return page_of(
        f'<div class="gpuscope-saved gpuscope-picture"><style>{_HIDE_DEAD}{_SHOW_PICTURE}</style>'
        '<img style="max-width:100%" alt="Timeline, as it was last" '
        f'src="data:image/png;base64,{facts["image/png"]}"></div>'
    )
