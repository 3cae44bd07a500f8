"""What a trace's metadata says of the streams and partitions of a device."""

from __future__ import annotations

from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.trace.metadata import PartitionFacts, StreamFacts


def stream_facts(stream: Stream) -> StreamFacts:
    """Return the facts of a stream."""
    partition = stream.partition
    return StreamFacts(
        name=stream.name,
        partition=partition.name if partition is not None else None,
        priority=stream.priority,
        device=stream.device.info.key,
        legacy_default=stream.kind == "legacy default",
        blocking=bool(stream.blocking),
        per_thread=stream.kind == "per-thread default",
    )


def partition_facts(partition: Partition) -> PartitionFacts:
    """Return the facts of a partition."""
    return PartitionFacts(
        asked=partition.asked,
        sm_count=partition.sm_count,
        sm_ids=tuple(partition.sm_ids),
        sm_count_target=partition.sm_count_target,
        context=partition.context,
        shares_with=tuple(partition.shares_with),
        color=partition.color or None,
    )
