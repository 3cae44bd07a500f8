"""A change: many small copies as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analysis import HelpCase
from gpuscope.analysis.help_view import HelpView

SMALL = 1 << 16


def merged_copies(view: HelpView) -> Iterator[HelpCase]:
    """Let copies of little take no time on the GPU."""
    nbytes = view.trace.array("nbytes", fill=0)[view.row]
    copies = view.rows.having("kind", ("memcpy",))[view.row]
    small = view.kept & view.causes.of("running") & copies & (nbytes < SMALL)
    if np.count_nonzero(small) > 1:
        how, slow = "gather them in one array", "copies move few bytes each"
        yield HelpCase("small copies", small, change="copy at once", how=how, slow=slow)
