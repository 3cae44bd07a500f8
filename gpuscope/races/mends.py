"""The order that a hazard lacks: who has to wait for whom, and the call that makes it so."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from gpuscope.races.pieces import Piece


class Missing(NamedTuple):
    """The order that two pieces lack, as :class:`HazardFact` says it."""

    waits: str
    awaits: str
    where: Literal["work", "graph", "host", "capture"]
    behind: str = ""


def missing_between(first: Piece, second: Piece) -> Missing:
    """Return the order that two pieces lack."""
    awaited, waiting = first.moment.queue, second.moment.queue
    assert awaited is not None  # noqa: S101 - memory remembers no access of the host's
    if awaited == waiting:  # else in order, but for nodes of one launch
        return Missing(waits=second.stream, awaits=first.stream, where="capture")
    awaits, waits = (piece.launched_on or piece.stream for piece in (first, second))
    # Simulated GPUs tell a thread's default stream from other ones by its name alone.
    of_thread = "per-thread default" in (awaited.kind, awaits) or _code_of(awaits) == _code_of(
        waits
    )
    return Missing(
        waits=waits,
        awaits=awaits,
        where="host" if waiting is None else "graph" if second.launched_on else "work",
        behind=first.name if of_thread else "",
    )


def _code_of(name: str) -> str:
    """Return a stream's name as that of a variable."""
    return re.sub(r"\W", "_", name)


def _called(name: str) -> str:
    """Return what a stream is called in code: one that nobody named here, by its handle."""
    handle = re.fullmatch(r"stream (0x[0-9a-f]+)", name)
    return f"gpu.wrap_stream({handle[1]})" if handle else _code_of(name)


def mend_of(missing: Missing, first: str, second: str) -> str:
    """Return the call that makes an order, as code."""
    is_torch = "::" in first and "::" in second
    spelled = _code_of if is_torch else _called
    awaits, waits = spelled(missing.awaits), spelled(missing.waits)
    where = {
        "work": f"before {second!r}",
        "graph": f"before the launch of the graph with {second!r}",
        "host": f"before the host's {second}",
        "capture": f"in the capture, before {second!r}",
    }[missing.where]
    if awaits == waits and not missing.behind:  # captured on streams that nobody named
        awaits, waits = "producer", "consumer"
    if missing.behind:
        call = "done.synchronize()" if missing.where == "host" else f"{waits}.wait(done)"
        recorded = f"done = {awaits}.record() behind {missing.behind!r}, by its thread"
        return f"{call}  # {where}; {recorded}"
    if missing.where == "host":
        return f"{awaits}.synchronize()  # {where}"
    call = f"wait_stream({awaits})" if is_torch else f"wait({awaits}.record())"
    return f"{waits}.{call}  # {where}"
