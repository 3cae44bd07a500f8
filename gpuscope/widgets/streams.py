"""StreamTable: which streams there are, and where."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from gpuscope.errors import InvalidExperiment
from gpuscope.figures.text import clean
from gpuscope.runs.experiment import StreamSpec
from gpuscope.widgets.table import Field, Table, Values, field, names_of

WHOLE_GPU = ""
"""The choice of no partition."""
STREAMS: Mapping[str, Values] = {"small": {"partition": "small"}, "load": {"partition": "load"}}
"""What a table starts from."""


class StreamTable(Table):
    """Streams: each with its partition, its priority and, without a partition, its barrier.

    Parameters
    ----------
    streams
        Name → fields as in an experiment (`partition`, `priority`, `blocking`), or a
        :class:`~gpuscope.runs.experiment.StreamSpec`, to start from; one in each partition if not
        given.
    partitions
        Names of the partitions to choose from.
    lock
        Guards the state; several widgets may share one.

    Raises
    ------
    InvalidExperiment
        Fields that no stream has. Values that cannot be are shown beside their fields.

    Examples
    --------
    >>> import gpuscope as gs
    >>> table = gs.widgets.StreamTable({"s": {"partition": "a"}, "t": {}}, partitions=["a", "b"])
    >>> table.edit("t", partition="b", priority=-1)
    >>> table.streams["t"]
    StreamSpec(partition='b', priority=-1, blocking=False)
    """

    part = "streams"

    def __init__(
        self,
        streams: Mapping[str, Mapping[str, object] | BaseModel] | None = None,
        partitions: Iterable[str] = (),
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        self._partitions = names_of("partitions", partitions)
        if streams is None:
            streams = {name: {"partition": name} for name in self._partitions} or {"stream 1": {}}
        super().__init__(streams, lock=lock, noun="stream", fields=_fields(self._partitions))

    @property
    def partitions(self) -> list[str]:
        """Names of the partitions to choose from."""
        return list(self._partitions)

    @partitions.setter
    def partitions(self, names: Iterable[str]) -> None:
        with self.lock:
            self._partitions = names_of("partitions", names)
            self.fields = _fields(self._partitions)
            self._changed({})

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """Name → stream.

        Raises
        ------
        InvalidExperiment
            Something is wrong with them; the page says what.
        """
        with self.lock:
            if not self.is_valid:
                raise InvalidExperiment(self.said)
            return {name: StreamSpec(**fields) for name, fields in self.described.items()}

    def _values_of(self, fields: Mapping[str, object] | BaseModel) -> Values:
        given = fields.model_dump() if isinstance(fields, BaseModel) else dict(fields)
        spec = {**StreamSpec().model_dump(), "blocking": False, **given}
        unknown = set(spec) - set(StreamSpec.model_fields)
        if unknown:
            raise InvalidExperiment(
                f"streams: {sorted(unknown)[0]!r} is no field of a stream; there are "
                + ", ".join(map(repr, StreamSpec.model_fields))
            )
        return {**spec, "partition": spec["partition"] or WHOLE_GPU}

    def _fields_of(self, values: Values) -> Values:
        home = values["partition"]
        spec = {"partition": home or None, "priority": values["priority"]}
        return spec if home else {**spec, "blocking": values["blocking"]}

    def _alone(self) -> Values:
        spin = {"kind": "spin", "duration_us": 1, "stream": next(iter(self.names), "")}
        return {
            "name": "streams",
            "partitions": dict.fromkeys(self._partitions, 8),
            "streams": self.described,
            "workloads": {"one": spin},
        }


def _fields(partitions: Iterable[str]) -> list[Field]:
    homes = [(name, clean(name, 40)) for name in partitions]
    priorities = [(0, "0 (default)"), *((n, str(n)) for n in range(-1, -5, -1)), (-5, "-5 (first)")]
    return [
        field("name", "Stream", "text"),
        field("partition", "Runs in", "choice", options=[*homes, (WHOLE_GPU, "whole GPU")]),
        field(
            "priority", "Priority", "choice", options=priorities,
            hint="Lower numbers run first among blocks that wait for an SM; nothing is pre-empted",
        ),
        field(
            "blocking", "Blocking", "flag", when={"partition": [WHOLE_GPU]},
            hint="Waits for what was queued in the legacy default stream, and is waited for by it",
        ),
    ]  # fmt: skip
