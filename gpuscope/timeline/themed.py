"""Figures that follow the theme of the notebook they are shown in."""

from __future__ import annotations

import base64
import hashlib
import sys
import webbrowser

import plotly.graph_objects as go
import plotly.io as pio

from gpuscope.errors import GpuscopeError
from gpuscope.timeline import style
from gpuscope.timeline.alternative import folded, table_of_points

_MARK = "gpuscope-dark"
# Jupyter tells a page whether its theme is light; the figure is the output after the style.
_BELOW = f'[data-jp-theme-light="false"] .jp-OutputArea-child:has(.{_MARK}) + .jp-OutputArea-child'


class ThemedFigure(go.Figure):  # type: ignore[misc]
    """A figure whose neutral colours are others on a dark page.

    A kernel does not know the theme of a page, and the theme may change: a style beside the
    figure replaces the colours that are made for white paper.
    """

    def _ipython_display_(self) -> None:
        if not pio.renderers.render_on_display:
            super()._ipython_display_()
            return
        try:
            self.show()
        except GpuscopeError as error:  # IPython would print a traceback, and the whole figure
            sys.stdout.write(f"{error}\n")

    def show(self, *args: object, **kwargs: object) -> None:
        """Show it; a renderer or other options are passed on to Plotly.

        Raises
        ------
        GpuscopeError
            It is shown in a browser, and there is none.
        """
        bundle = {} if args or kwargs else self._repr_mimebundle_()
        if not bundle:
            try:
                super().show(*args, **kwargs)
            except webbrowser.Error as error:
                raise GpuscopeError(
                    f"the figure cannot be shown: {error}. Write it with "
                    "figure.write_html('figure.html') and open that elsewhere, or use a notebook"
                ) from None
            return
        from IPython.display import display  # noqa: PLC0415 - only a notebook comes here

        display({"text/html": self._style(), "text/plain": ""}, raw=True)  # type: ignore[no-untyped-call]
        display(bundle, raw=True)  # type: ignore[no-untyped-call]
        if table := self.table():
            below = {"text/html": folded(table, self.layout.title.text), "text/plain": ""}
            display(below, raw=True)  # type: ignore[no-untyped-call]

    def table(self) -> str:
        """Return what is drawn as a table in HTML; empty where a table cannot tell it."""
        return table_of_points(self)

    def _dark_picture(self) -> bytes | None:
        """Return what replaces the figure's PNG on a dark page, if it has one."""
        return None

    def _style(self) -> str:
        """Return the style for dark pages; it shows nothing itself."""
        rules = [
            f".jp-OutputArea-child:has(> * > .{_MARK}){{display:none}}",
            f".jp-OutputArea-child:has(.{_MARK}) + * .plot-img{{max-width:100%}}",
        ]
        rules += [
            f'{_BELOW} .js-plotly-plot [style*="{what}: rgb({_decimal(light)})"]:not(.bartext)'
            f"{{{what}:{dark} !important}}"
            for what in ("fill", "stroke", "background")
            for light, dark in style.DARK.items()
        ]
        rules += [
            f'{_BELOW} .js-plotly-plot .bars [style*="stroke: rgb({_decimal(style.darker(fill))})"]'
            f"{{stroke:{style.lighter(fill)} !important}}"
            for fill in (*style.OKABE_ITO, style.WHOLE_GPU_COLOUR, style.HOST_COLOUR)
        ]
        picture = self._dark_picture() or b""
        mark = f"{_MARK}-{hashlib.sha256(picture).hexdigest()[:16]}"  # not another figure's
        if picture:
            data, below = base64.b64encode(picture).decode(), _BELOW.replace(_MARK, mark)
            rules.append(f"{below} .plot-img{{content:url(data:image/png;base64,{data})}}")
        return f'<style class="{_MARK} {mark}">{"".join(rules)}</style>'


def _decimal(colour: str) -> str:
    return ", ".join(map(str, style.rgb(colour)))
