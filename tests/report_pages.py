"""What a report holds: its figures unpacked, and without Plotly."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re


def _unpack(text):
    return gzip.decompress(base64.b64decode(text)).decode()


def figures_of(page):
    """Return the figures of a page by id, as Plotly takes them."""
    return {
        name: json.loads(_unpack(text))
        for name, text in re.findall(r'id="([\w-]+)"[^>]*data-figure="([^"]*)"', page)
    }


def without_plotly(page):
    """Return a page with its figures as text in it, and without the library."""
    head, _, rest = page.partition('<script id="plotly"')
    page = head + rest.partition("</script>")[2]
    return re.sub(
        'data-figure="([^"]*)"',
        lambda found: f'data-figure="{html.escape(_unpack(found[1]))}"',
        page,
    )
