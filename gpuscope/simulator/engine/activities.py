"""What the simulated device tells of work that is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscope.device.api import Activity, Release
from gpuscope.simulator.engine.ops import ORDERED_BY_EVENTS, CopyOp, GraphOp, KernelOp, Op


def activity_of(op: Op) -> Activity:
    """Return what the device tells of work that is done."""
    assert op.start_ns is not None  # noqa: S101 - it is done, so it started
    assert op.done_ns is not None  # noqa: S101 - as above
    kernel = op if isinstance(op, KernelOp) else None
    copy = op if isinstance(op, CopyOp) else None
    after: Sequence[int] = ()
    if op.owner is not None and op.node is not None:
        after = op.owner.graph.nodes[op.node][1]
    elif isinstance(op, GraphOp) and op.last is not None:
        after = (op.last,)
    return Activity(
        op.kind,
        op.name,
        op.correlation,
        op.queued_ns,
        op.start_ns,
        op.done_ns,
        op.stream.waited if op.owner is None and op.kind in ORDERED_BY_EVENTS else (),
        op.node,
        op.stream.context,
        tuple(after),
        kernel.released_by if kernel else (),
        tuple(kernel.sm_intervals or ()) if kernel else (),
        copy.engine if copy else None,
        costs.cost.nbytes if (costs := kernel or copy) else None,
        kernel.launch_config if kernel else None,
        copy.memory if copy else None,
        copy.awaited if copy else False,
    )


def releases_of(
    op: KernelOp, taken: int, released: Iterable[tuple[int, KernelOp]]
) -> tuple[Release, ...]:
    """Return who released the SMs that ``op`` took at an instant, each once."""
    releases: dict[Release, None] = {}
    turn = (op.ready_ns, op.correlation, op.turn)  # which decides among those of one priority
    for sms, other in released:
        if sms & taken:
            later = (other.ready_ns, other.correlation, other.turn) > turn
            ahead = later and other.stream.priority < op.stream.priority
            releases[Release(other.correlation, other.node, ahead)] = None
    return tuple(releases)
