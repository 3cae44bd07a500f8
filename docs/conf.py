"""The documentation site: ``make docs`` builds it into site/html/."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import gpuscope

HERE = Path(__file__).resolve().parent
LESSONS = HERE / "lessons"

project = "gpuscope"
author = "the gpuscope authors"
copyright = author  # noqa: A001 - Sphinx's name for it
release = version = gpuscope.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = f"gpuscope {release}"
exclude_patterns = ["_build"]
nitpicky = False
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence", "deflist", "linkify"]
myst_heading_anchors = 3
myst_linkify_fuzzy_links = False

nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "text/html", 0)]  # before widgets, which need a kernel

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False


def _bring_notebooks(_app: Any) -> None:
    """Put the notebooks where Sphinx looks for sources; their links lead to pages from there."""
    LESSONS.mkdir(exist_ok=True)
    for path in (HERE.parent / "notebooks").glob("*.ipynb"):
        text = path.read_text("utf-8").replace("](../docs/", "](../")
        (LESSONS / path.name).write_text(text, "utf-8")


def _link_to_lessons(_app: Any, docname: str, source: list[str]) -> None:
    """Let a page's links to notebooks lead to their pages."""
    if not docname.startswith("lessons/"):
        text = source[0].replace("](../../notebooks/", "](../lessons/")
        source[0] = text.replace("](../notebooks/", "](lessons/")


def _leave_out_foreign(_app: Any, _what: str, _name: str, item: Any, *_: Any) -> bool | None:
    """Leave out what a class inherits from libraries; of the rest Sphinx decides (None)."""
    home = inspect.getmodule(item)
    return True if home is not None and not home.__name__.startswith("gpuscope") else None


def setup(app: Any) -> None:
    """Register what runs at building."""
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "lessons")]
    app.connect("builder-inited", _bring_notebooks, priority=100)
    app.connect("source-read", _link_to_lessons)
    app.connect("autodoc-skip-member", _leave_out_foreign)
