"""Rows of a trace by what they are called: what to explain."""

from __future__ import annotations

from gpuscope._checks import door
from gpuscope.errors import MissingEvidence
from gpuscope.trace import schema
from gpuscope.trace.model import Trace


@door(trace=Trace, name=(str, None), nth=int, kind=(str, None))
def find(trace: Trace, name: str | None, nth: int = 0, *, kind: str | None = None) -> int:
    """Return the id of the row that is the ``nth`` of its name.

    :func:`explain` takes it.

    Parameters
    ----------
    name
        Of a kernel, or of the workload that launched it; ``None`` takes any.
    nth
        0 is the first to start, −1 the last.
    kind
        ``"kernel"``, ``"memcpy"``, ``"host function"``, ``"sync"`` or ``"handle"``; any work of
        the GPU, if not given.

    Raises
    ------
    MissingEvidence
        The trace has no such row.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> gs.telling.find(trace, "k"), gs.telling.find(trace, "k", -1)
    (1, 2)
    """
    kinds = (*schema.GPU_WORK, "host function") if kind is None else (kind,)
    rows = trace.where(kind=kinds)
    columns = rows.array("start_ns"), rows.array("id"), rows.texts("category"), rows.texts("name")
    matching = sorted(
        (start_ns, row)
        for start_ns, row, *labels in zip(*columns, strict=True)
        if name is None or name in labels
    )
    if not -len(matching) <= nth < len(matching):
        what = "such rows" if name is None else f"rows called {name!r}"
        raise MissingEvidence(f"the trace has {len(matching)} {what}, so there is no number {nth}")
    return int(matching[nth][1])
