"""Trace: what was seen, immutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._checks import closest, given, require_kind
from gpuscope._optional import require
from gpuscope._plugins import Plugins
from gpuscope._tables import html_table
from gpuscope._text import clean, shown
from gpuscope._types import Array
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence, TraceFormatError
from gpuscope.trace import schema, valid
from gpuscope.trace.combining import ONE_CLOCK, combined
from gpuscope.trace.gpu_states import state_words
from gpuscope.trace.metadata import TraceMetadata

_QUERIES: Plugins[Callable[..., Any]] = Plugins("gpuscope.queries", "query")
_NO_KERNELS = ("nvtx", "nvml", "host")
"""Sources that time no work of a GPU."""


class Trace:
    """A recorded trace: a table of spans, a table of edges, and metadata. Immutable.

    Attributes
    ----------
    spans
        One row per launch, range, call…; columns and units in
        :data:`gpuscope.trace.schema.SPAN_TYPES`.
    edges
        Which span caused or preceded which.
    metadata
        Devices, partitions, streams, clocks, counts.

    Raises
    ------
    TraceFormatError
        The rows are not a valid trace: a negative number, an end before its start, a time beyond
        ``schema.LATEST_NS``, a duplicate id, a required value that is null, or invalid metadata.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> trace
    Trace(2 spans: 2 kernel; measured on host only; kernel times from: cupti)
    >>> trace.where(stream=8).array("start_ns").tolist()
    [60]
    """

    def __init__(self, spans: pa.Table, edges: pa.Table, metadata: TraceMetadata) -> None:
        require_kind("spans", spans, pa.Table)
        require_kind("edges", edges, pa.Table)
        require_kind("metadata", metadata, TraceMetadata)
        valid.check(spans, edges)
        self.spans = spans
        self.edges = edges
        self.metadata = metadata

    @classmethod
    def from_columns(
        cls,
        spans: Mapping[str, schema.Values],
        edges: Mapping[str, schema.Values] | None = None,
        metadata: TraceMetadata | None = None,
    ) -> Trace:
        """Build a trace from lists, one per column; missing columns are null.

        Raises
        ------
        ValueError
            A column is unknown, a required one is missing, or lengths differ.
        TraceFormatError
            The rows are not a valid trace; see :class:`Trace`.
        """
        require_kind("spans", spans, Mapping)
        require_kind("edges", edges, Mapping, None)
        edges = edges or {}
        for what, columns, types, required in (
            ("span", spans, schema.SPAN_TYPES, schema.REQUIRED),
            ("edge", edges, schema.EDGE_TYPES, tuple(schema.EDGE_TYPES)),
        ):
            if unknown := set(columns) - set(types):
                names = clean(sorted(map(given, unknown)), 200)
                raise InvalidArgument(f"unknown {what} columns {names}")
            missing = set(required) - set(columns)
            if missing and columns:
                raise InvalidArgument(f"missing {what} columns {sorted(missing)}")
            for name, column in columns.items():
                if not isinstance(column, Sized) or (
                    isinstance(column, np.ndarray) and not column.ndim
                ):
                    raise InvalidArgument(
                        f"{what} column {name!r} is {given(column)}; a list or an array is needed"
                    )
            if len({len(column) for column in columns.values()}) > 1:
                raise InvalidArgument(f"{what} columns have different lengths")
        require_kind("metadata", metadata, TraceMetadata, None)
        try:
            tables = (
                schema.table(dict(spans), schema.SPAN_TYPES),
                schema.table(dict(edges), schema.EDGE_TYPES),
            )
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise TraceFormatError(f"a column holds what it cannot: {clean(error, 200)}") from error
        return cls(*tables, metadata or TraceMetadata())

    def __len__(self) -> int:
        return int(self.spans.num_rows)

    @property
    def is_simulated(self) -> bool:
        """Whether any row was simulated."""
        return self.metadata.simulated

    def array(self, name: str, *, fill: int | None = None) -> Array:
        """Return a numeric column as a NumPy view, without a copy where no value is null.

        Parameters
        ----------
        fill
            Replaces nulls. Without it, a column with nulls is an error.

        Raises
        ------
        MissingEvidence
            The column has nulls and no ``fill`` was given.
        """
        column = self._column(name)
        require_kind("fill", fill, int, None)
        if column.null_count:
            if fill is None:
                raise MissingEvidence(
                    f"column {name!r} has {column.null_count} of {len(column)} values missing: "
                    "record with a source that provides it"
                )
            kind = schema.SPAN_TYPES[name]
            if column.null_count == len(column):  # one value in the place of all takes no memory
                return np.broadcast_to(np.array(fill, kind.to_pandas_dtype()), len(column))
            column = column.cast(kind).fill_null(fill)
        if len(column) == 0:
            return np.zeros(0, np.int64)
        # combine_chunks() copies even a single chunk.
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return np.asarray(whole.to_numpy(zero_copy_only=False))

    def texts(self, name: str) -> list[str | None]:
        """Return a text column as Python strings; null is ``None``."""
        texts: list[str | None] = []
        for chunk in self._column(name).chunks:
            if not pa.types.is_dictionary(chunk.type):
                texts += chunk.to_pylist()
                continue
            # Arrow makes a scalar of each value: by their codes it takes a fiftieth of the time.
            values = np.array([None, *chunk.dictionary.to_pylist()], dtype=object)
            texts += values[np.asarray(chunk.indices.fill_null(-1)) + 1].tolist()
        return texts

    def where(self, mask: object = None, **equal: object) -> Trace:
        """Return the rows that satisfy ``mask`` and every ``column=value``.

        A tuple of values matches any of them; ``None`` matches null. Edges between remaining rows
        are kept, and ids are unchanged.

        Raises
        ------
        InvalidArgument
            There is no such column, a value does not fit its type, a ``kind`` or ``source`` is
            unknown, or ``mask`` is not one bool per row.
        """
        keep = pa.scalar(value=True)
        for name, wanted in equal.items():
            column = self._column(name)
            values = wanted if isinstance(wanted, tuple) else (wanted,)
            self._check_values(name, values)
            kind = schema.SPAN_TYPES[name]
            kind = pa.string() if pa.types.is_dictionary(kind) else kind
            test = pc.is_in(column.cast(kind), value_set=pa.array(values, type=kind))
            keep = pc.and_(keep, test)
        if mask is not None:
            keep = pc.and_(keep, self._checked_mask(mask))
        spans = self.spans if isinstance(keep, pa.Scalar) else self.spans.filter(keep)
        part = object.__new__(Trace)  # of what is valid, nothing has to be checked again
        part.spans, part.metadata = spans, self.metadata
        part.edges = valid.between(self.edges, spans.column("id"))
        return part

    def _column(self, name: object) -> pa.ChunkedArray:
        if not isinstance(name, str) or name not in schema.SPAN_TYPES:
            near, column_names = closest(name, schema.SPAN_TYPES), ", ".join(schema.SPAN_TYPES)
            raise InvalidArgument(
                f"there is no column {given(name)}{near}: the columns are {column_names}"
            )
        return self.spans.column(name)

    def _check_values(self, name: str, values: tuple[object, ...]) -> None:
        """Refuse values that a column cannot hold."""
        kind = schema.SPAN_TYPES[name]
        is_text = pa.types.is_dictionary(kind) or pa.types.is_string(kind)
        for value in values:
            fits = value is None or isinstance(value, str) == is_text
            try:
                pa.array([value], type=pa.string() if is_text else kind)
            except (TypeError, ValueError, OverflowError, pa.ArrowException):
                fits = False
            if not fits or isinstance(value, bool):
                needed = "text" if is_text else kind
                raise InvalidArgument(f"{name} is {given(value)}; {needed} is needed")
        allowed = {"kind": schema.KINDS, "source": schema.SOURCES}.get(name)
        if allowed is None or all(value is None or value in allowed for value in values):
            return
        allowed = tuple(dict.fromkeys((*allowed, *filter(None, self._values(name)))))
        for value in values:
            near = closest(value, allowed)
            if near and value not in allowed:
                choices = ", ".join(clean(choice, 60) for choice in allowed)
                raise InvalidArgument(f"{name} is {given(value)}{near}; it can be {choices}")

    def _values(self, name: str) -> list[str | None]:
        distinct = schema.one_dictionary(self.spans.column(name)).unique()  # texts stay numbers
        return list(dict.fromkeys(distinct.to_pylist()))

    def _checked_mask(self, mask: object) -> pa.Array:
        try:
            array = pa.array(mask, type=pa.bool_())
        except (TypeError, ValueError, OverflowError, pa.ArrowException):
            array = None
        if array is None or len(array) != len(self):
            raise InvalidArgument(
                f"mask is {given(mask)}; {len(self)} bools, one a row, are needed"
            )
        return array

    def to_pandas(self) -> Any:
        """Return the spans as a pandas data frame, in their order.

        Returns
        -------
        pandas.DataFrame
            The columns of :data:`gpuscope.trace.schema.SPAN_TYPES` that hold any value. Integers
            stay integers, ns included: with nulls, as ``Int64``. Texts are categories. The
            metadata's JSON is in ``attrs["gpuscope"]``.

        Raises
        ------
        MissingDependency
            pandas is not installed.
        """
        pandas = require(
            "pandas", package="pandas", feature="Trace.to_pandas()", install="pip install pandas"
        )
        with_nulls = {
            pa.int16(): pandas.Int16Dtype(),
            pa.int64(): pandas.Int64Dtype(),
            pa.uint32(): pandas.UInt32Dtype(),
        }
        parts = {}
        for name in schema.SPAN_TYPES:
            column = self.spans.column(name)
            if column.null_count < len(self):
                mapper = with_nulls.get if column.null_count else None
                parts[name] = column.to_pandas(types_mapper=mapper)
        frame = pandas.DataFrame(parts, copy=False)
        frame.attrs["gpuscope"] = self.metadata.to_json()
        return frame

    def sql(self, query: str, *, write: bool = False) -> Any:
        """Answer a query in DuckDB's SQL: of spans, edges, launches, waits, parts, findings.

        Parameters
        ----------
        write
            Whether it may read and write files and change DuckDB's settings. Else it reads
            this trace alone.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The rows, worked out once and held in memory. Shows itself as a table;
            ``.fetchall()``, ``.df()``, ``.arrow()``, ``.pl()`` give them.

        Raises
        ------
        MissingDependency
            DuckDB is not installed.
        InvalidArgument
            The query is no SQL, fails on a row, names what there is not, takes too much memory,
            or needs ``write``.

        Examples
        --------
        >>> import gpuscope as gs
        >>> gpu = gs.open_device("sim:h200", quiet=True)
        >>> kernel = gs.workloads.spin_kernel(gpu)
        >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        ...     stream.launch(kernel, 5_000, grid=1, block=32)
        >>> recording.trace.sql("SELECT count(*) FROM spans WHERE kind = 'kernel'").fetchall()
        [(1,)]
        """
        require_kind("query", query, str)
        require_kind("write", write, bool)
        return _QUERIES.usable()["sql"](self, query, write=write)

    def with_metadata(self, **changes: Any) -> Trace:
        """Return the same rows with changed metadata.

        Raises
        ------
        InvalidArgument
            A field is unknown, or its value cannot be stored as JSON.
        """
        try:
            return Trace(self.spans, self.edges, msgspec.structs.replace(self.metadata, **changes))
        except GpuscopeError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"metadata cannot be changed so: {clean(error, 200)}") from error

    @staticmethod
    def concat(traces: Sequence[Trace]) -> Trace:
        """Join traces that share a clock. Ids are renumbered to stay unique.

        The metadata is that of the first trace, with the windows, partitions, streams and counts
        of all.

        Raises
        ------
        ValueError
            There is no trace, or the time bases differ.
        """
        require_kind("traces", traces, list, tuple)
        for trace in traces:
            require_kind("one of traces", trace, Trace)
        if not traces:
            raise InvalidArgument("traces is empty: there is no trace to join")
        if len(traces) == 1:
            return traces[0]
        if len({trace.metadata.time_base for trace in traces}) > 1:
            raise InvalidArgument("traces with different time bases cannot be joined")
        spans, edges = [], []
        offset = 0
        for trace in traces:
            spans.append(schema.added(trace.spans, offset, "id", "parent"))
            edges.append(schema.added(trace.edges, offset, "from", "to"))
            if len(trace):
                offset += int(pc.max(trace.spans.column("id")).as_py()) + 1
        return Trace(
            schema.concat(spans, schema.SPAN_TYPES),
            schema.concat(edges, schema.EDGE_TYPES),
            combined([trace.metadata for trace in traces], ONE_CLOCK),
        )

    def stream_name(self, stream: int | None) -> str:
        """Return a stream's name for display."""
        require_kind("stream", stream, int, None)
        if stream is None:
            return "no stream"
        facts = self.metadata.stream(stream)
        return facts.name if facts is not None else f"stream {stream}"

    def kind_counts(self) -> dict[str, int]:
        """Kind → number of rows."""
        counted = pc.value_counts(self.spans.column("kind").cast(pa.string()))
        return {row["values"]: row["counts"] for row in counted.to_pylist()}

    @property
    def provenance(self) -> str:
        """One line for figures: what is missing or left out, the :attr:`origin`, and the clocks."""
        facts = self.metadata
        states = state_words(facts.gpu_states)
        return "; ".join(filter(None, [facts.incomplete, facts.left_out, self.origin, states]))

    @property
    def origin(self) -> str:
        """Device, source, simulated or measured, in one line."""
        named = Counter(facts.name or key for key, facts in self.metadata.devices.items())
        several = (f"{count} × {name}" if count > 1 else name for name, count in named.items())
        devices = ", ".join(several) or "host only"
        sources = list(filter(None, self._values("source")))
        kernels = [source for source in sources if source not in _NO_KERNELS] or sources
        kind = "SIMULATED" if self.is_simulated else "measured"
        times = f"kernel times from: {', '.join(kernels) or 'nothing'}"
        times *= kernels != ["simulated"]  # that has been said
        return clean(
            "; ".join(filter(None, [f"{kind} on {devices}", times, self.metadata.forecast]))
        )

    def __repr__(self) -> str:
        inside = ", ".join(f"{count} {kind}" for kind, count in self.kind_counts().items())
        return clean(f"Trace({len(self)} spans: {inside or 'none'}; {self.provenance})")

    def _repr_html_(self) -> str:
        title = f"<p><b>Trace</b>: {len(self)} spans. {shown(self.provenance)}</p>"
        return title + html_table(
            [{"kind": kind, "rows": count} for kind, count in self.kind_counts().items()]
        )
