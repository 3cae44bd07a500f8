"""Trace and Run: what was seen, immutable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._checks import closest, given, require_kind
from gpuscope._optional import require
from gpuscope._text import clean, shown
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence, TraceFormatError
from gpuscope.trace import schema, valid
from gpuscope.trace.explain import Explanation, explain
from gpuscope.trace.facts import checked

_NO_LOSS = ("received", "in_shared_tasks")
"""Counts that are of nothing missing."""
_REASONS = 300
"""Characters of what is said to be missing, and why."""
_TRACES = 3
"""Incomplete traces that are told one by one."""


@dataclass(frozen=True)
class TraceMetadata:
    """Everything about a trace that is not a row.

    Attributes
    ----------
    time_base
        ``"unix"`` (ns since 1970), ``"virtual"`` (a simulated clock) or ``"relative"``.
    simulated
        Whether any row was simulated.
    devices
        Key (``"cuda:0"``) → index, uuid, name, sm_count, driver, and, as they stood when the
        recording ended and where the driver tells, sm_clock_mhz, memory_clock_mhz, power_w
        and throttle_reasons; of a simulated device launch_latency_ns and kernel_gap_ns, its
        constants.
    partitions
        Name → asked, sm_count (granted), sm_ids (seen by the probe), sm_count_target,
        context, shares_with.
    streams
        Stream id as text → name, partition, priority, device; legacy_default and blocking
        where these are known to hold: such streams wait for each other; per_thread of CUDA's
        per-thread default stream, another one on each thread.
    windows_ns
        ``[start, end]`` pairs in which recording was on.
    solo
        Workload → ``kernel_ns`` (median duration alone, same setting; the mean where a
        workload launches different kernels), ``n``, and alone on
        the whole GPU ``whole_gpu_kernel_ns`` and ``whole_gpu_tflop_per_s``.
    clocks
        Clock → how its times were put on the time base: offset_ns, residual_ns (how far that
        can be off), drift_ns (disagreement at the end) over over_ns. ``"cupti"``: against Unix
        time; ``"globaltimer cuda:0"``: the GPU's timer that thread blocks read, against CUPTI's
        time where there is CUPTI; a device key: its events, with the cost of the brackets,
        empty_bracket_ns and empty_kernel_bracket_ns.
    counts
        What sources delivered: received, dropped, unmatched (launches of ours without a
        record), unread_bytes, and in_shared_tasks (launches of other libraries under a guard
        of an asyncio task during which other tasks may have run: given to no partition).
    complete
        Whether everything that was launched is known to be here; else the notes say why not.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gs.profile(gpu) as recording:
    ...     pass
    >>> facts = recording.trace.metadata
    >>> facts.time_base, facts.simulated, facts.devices["sim:h200"]["sm_count"]
    ('virtual', True, 132)
    """

    time_base: str = "unix"
    simulated: bool = False
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    driver: str | None = None
    process_names: Mapping[str, str] = field(default_factory=dict)
    thread_names: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    windows_ns: Sequence[Sequence[int]] = ()
    solo: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clocks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    device_max_connections: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    experiment: Mapping[str, Any] | None = None
    setting: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True
    notes: Sequence[str] = ()

    @property
    def incomplete(self) -> str:
        """How many rows are missing and why, from ``"incomplete: "`` on; empty if none is."""
        if self.complete:
            return ""
        missing = [
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in self.counts.items()
            if count > 0 and name not in _NO_LOSS
        ]
        reasons = "; ".join([", ".join(missing), *self.notes] if missing else self.notes)
        return f"incomplete: {clean(reasons or 'nothing says how much is missing', _REASONS)}"

    def to_json(self) -> str:
        """Write as JSON, everything in its order.

        What UTF-8 cannot hold is replaced; infinity and what is no number are null.
        """
        return schema.readable(self._json()).decode()

    def _json(self) -> bytes:
        text = json.dumps(vars(self))
        if "Infinity" in text or "NaN" in text:
            text = json.dumps(json.loads(text, parse_constant=lambda _: None))
        return text.encode()

    def encodable(self) -> TraceMetadata:
        """Return it with what UTF-8 cannot hold replaced: itself where all can be written."""
        text = self._json()
        kept = schema.readable(text)
        return self if kept == text else TraceMetadata(**json.loads(kept))

    @classmethod
    def from_json(cls, text: str) -> TraceMetadata:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            It is no JSON.
        TraceFormatError
            A key is unknown, or a value has another type than is read; nothing else is.
        """
        return cls.from_facts(json.loads(schema.readable(text.encode("utf-8", "replace"))))

    @classmethod
    def from_facts(cls, facts: Any) -> TraceMetadata:
        """Return the metadata from what JSON gave, as :meth:`from_json`."""
        known = checked(facts)
        return cls(**{**known, "notes": tuple(known.get("notes", ()))})


class Trace:
    """What was seen: a table of spans, a table of edges, and metadata. Immutable.

    Attributes
    ----------
    spans
        One row per launch, range, call…; columns and units in
        :data:`gpuscope.trace.schema.SPAN_TYPES`.
    edges
        Which span led to which.
    metadata
        Devices, partitions, streams, clocks, counts.

    Raises
    ------
    TraceFormatError
        The rows make no trace: a negative number, an end before its start, a time beyond
        ``schema.LATEST_NS``, two equal ids, a required value that is null, metadata of another
        shape.

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
        metadata = metadata.encodable()
        checked(vars(metadata))
        self._hold(spans, edges, metadata)

    def _hold(self, spans: pa.Table, edges: pa.Table, metadata: TraceMetadata) -> None:
        self.spans = spans
        self.edges = edges
        self.metadata = metadata

    @classmethod
    def from_columns(
        cls,
        spans: Mapping[str, list[Any]],
        edges: Mapping[str, list[Any]] | None = None,
        metadata: TraceMetadata | None = None,
    ) -> Trace:
        """Build a trace from lists, one per column; missing columns are null.

        Raises
        ------
        ValueError
            A column is unknown, a required one is missing, or lengths differ.
        TraceFormatError
            The rows make no trace, as :class:`Trace` says.
        """
        require_kind("spans", spans, Mapping)
        require_kind("edges", edges, Mapping, None)
        edges = edges or {}
        for what, columns, types, required in (
            ("span", spans, schema.SPAN_TYPES, schema.REQUIRED),
            ("edge", edges, schema.EDGE_TYPES, tuple(schema.EDGE_TYPES)),
        ):
            unknown = set(columns) - set(types)
            if unknown:
                raise InvalidArgument(
                    f"unknown {what} columns {clean(sorted(map(str, unknown)), 200)}"
                )
            missing = set(required) - set(columns)
            if missing and columns:
                raise InvalidArgument(f"missing {what} columns {sorted(missing)}")
            if len({len(column) for column in columns.values()}) > 1:
                raise InvalidArgument(f"{what} columns have different lengths")
        require_kind("metadata", metadata, TraceMetadata, None)
        try:
            tables = (
                schema.table(dict(spans), schema.SPAN_TYPES),
                schema.table(dict(edges), schema.EDGE_TYPES),
            )
        except GpuscopeError:
            raise
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise TraceFormatError(f"a column holds what it cannot: {clean(error, 200)}") from error
        return cls(*tables, metadata or TraceMetadata())

    def __len__(self) -> int:
        return int(self.spans.num_rows)

    @property
    def is_simulated(self) -> bool:
        """Whether any row was simulated."""
        return self.metadata.simulated

    def array(self, name: str, *, fill: int | None = None) -> np.ndarray[Any, Any]:
        """Return a numeric column as a NumPy view, without a copy where no value is null.

        Parameters
        ----------
        fill
            Stands for nulls; without it a column that has nulls is an error.

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
            column = column.cast(schema.SPAN_TYPES[name]).fill_null(fill)
        if len(column) == 0:
            return np.zeros(0, np.int64)
        # combine_chunks() copies even a single chunk.
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return np.asarray(whole.to_numpy(zero_copy_only=False))

    def texts(self, name: str) -> list[str | None]:
        """Return a text column as Python strings; null is ``None``."""
        found: list[str | None] = []
        for chunk in self._column(name).chunks:
            if not pa.types.is_dictionary(chunk.type):
                found += chunk.to_pylist()
                continue
            # Arrow makes a scalar of each value: by their codes it takes a fiftieth of the time.
            values = np.array([None, *chunk.dictionary.to_pylist()], dtype=object)
            found += values[np.asarray(chunk.indices.fill_null(-1)) + 1].tolist()
        return found

    def where(self, mask: Any = None, **equal: Any) -> Trace:
        """Return the rows that satisfy ``mask`` and every ``column=value``.

        A tuple of values means any of them; ``None`` means null. Edges between rows that
        stay are kept, ids are unchanged.

        Raises
        ------
        InvalidArgument
            There is no such column, or a value that it cannot hold; or a ``kind`` or ``source``
            is misspelt; or ``mask`` is not one bool a row.
        """
        keep = pa.scalar(value=True)
        for name, wanted in equal.items():
            column = self._column(name)
            self._check_values(name, wanted if isinstance(wanted, tuple) else (wanted,))
            if wanted is None:
                test = pc.is_null(column)
            elif pa.types.is_null(column.type):
                test = pa.scalar(value=isinstance(wanted, tuple) and None in wanted)
            else:
                values = list(wanted) if isinstance(wanted, tuple) else [wanted]
                if pa.types.is_dictionary(column.type):
                    column = column.cast(pa.string())
                test = pc.is_in(column, value_set=pa.array(values, type=column.type))
            keep = pc.and_(keep, test)
        if mask is not None:
            keep = pc.and_(keep, self._checked_mask(mask))
        if isinstance(keep, pa.Scalar):
            spans = self.spans if keep.as_py() else self.spans.slice(0, 0)
        else:
            spans = self.spans.filter(keep)
        edges = valid.between(self.edges, spans.column("id"))
        part = object.__new__(Trace)  # of what is valid, nothing has to be checked again
        part._hold(spans, edges, self.metadata)
        return part

    def _column(self, name: Any) -> Any:
        if not isinstance(name, str) or name not in schema.SPAN_TYPES:
            known = ", ".join(schema.SPAN_TYPES)
            raise InvalidArgument(
                f"there is no column {given(name)}{closest(name, schema.SPAN_TYPES)}: the columns "
                f"are {known}"
            )
        return self.spans.column(name)

    def _check_values(self, name: str, values: tuple[Any, ...]) -> None:
        """Refuse values that a column cannot hold."""
        kind = schema.SPAN_TYPES[name]
        is_text = pa.types.is_dictionary(kind) or pa.types.is_string(kind)
        for value in values:
            fits = value is None or (
                not isinstance(value, bool) and isinstance(value, str) == is_text
            )
            try:
                pa.array([value], type=pa.string() if is_text else kind)
            except (TypeError, ValueError, OverflowError, pa.ArrowException):
                fits = False
            if not fits:
                raise InvalidArgument(
                    f"{name} is {given(value)}; {'text' if is_text else kind} is needed"
                )
        known = {"kind": schema.KINDS, "source": schema.SOURCES}.get(name)
        if known is None or all(value is None or value in known for value in values):
            return
        known = tuple(dict.fromkeys((*known, *filter(None, self._values(name)))))
        for value in values:
            near = closest(value, known)
            if near and value not in known:
                raise InvalidArgument(
                    f"{name} is {given(value)}{near}; it can be "
                    f"{', '.join(clean(one, 60) for one in known)}"
                )

    def _values(self, name: str) -> list[str | None]:
        column = self.spans.column(name)
        if pa.types.is_null(column.type):
            return []
        values: list[str | None] = pc.unique(column.cast(pa.string())).to_pylist()
        return values

    def _checked_mask(self, mask: Any) -> Any:
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
            The columns of :data:`gpuscope.trace.schema.SPAN_TYPES` that have a value anywhere.
            Whole numbers stay whole, ns included: with nulls as ``Int64``. Texts are
            categories. The metadata's JSON is in ``attrs["gpuscope"]``.

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

    def with_metadata(self, **changes: Any) -> Trace:
        """Return the same rows with changed metadata.

        Raises
        ------
        InvalidArgument
            A field is unknown, or holds what no JSON can.
        """
        try:
            return Trace(self.spans, self.edges, dataclasses.replace(self.metadata, **changes))
        except GpuscopeError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"metadata cannot be changed so: {clean(error, 200)}") from error

    @staticmethod
    def concat(traces: Sequence[Trace]) -> Trace:
        """Join traces of one clock; ids are renumbered so that they stay unique.

        The metadata is the first one's, with every window, partition, stream and count.

        Raises
        ------
        ValueError
            There is none, or they have different time bases.
        """
        require_kind("traces", traces, list, tuple)
        for trace in traces:
            require_kind("one of traces", trace, Trace)
        if not traces:
            raise InvalidArgument("traces is empty: there is no trace to join")
        if len(traces) == 1:
            return traces[0]
        first = traces[0].metadata
        if any(trace.metadata.time_base != first.time_base for trace in traces):
            raise InvalidArgument("traces with different time bases cannot be joined")
        spans, edges = [], []
        offset = 0
        for trace in traces:
            spans.append(_shift(trace.spans, ("id", "parent"), offset))
            edges.append(_shift(trace.edges, ("from", "to"), offset))
            if len(trace):
                offset += int(pc.max(trace.spans.column("id")).as_py()) + 1
        merged: dict[str, Any] = {
            name: _merge(trace.metadata.__dict__[name] for trace in traces)
            for name in ("devices", "partitions", "streams", "process_names", "thread_names")
        }
        counts: dict[str, int] = {}
        for trace in traces:
            for name, count in trace.metadata.counts.items():
                counts[name] = counts.get(name, 0) + count
        metadata = dataclasses.replace(
            first,
            **merged,
            windows_ns=[list(pair) for trace in traces for pair in trace.metadata.windows_ns],
            counts=counts,
            simulated=any(trace.metadata.simulated for trace in traces),
            complete=all(trace.metadata.complete for trace in traces),
            notes=tuple(dict.fromkeys(note for trace in traces for note in trace.metadata.notes)),
        )
        return Trace(
            schema.concat(spans, schema.SPAN_TYPES),
            schema.concat(edges, schema.EDGE_TYPES),
            metadata,
        )

    def stream_name(self, stream: int | None) -> str:
        """Return a stream's name for people."""
        require_kind("stream", stream, int, None)
        if stream is None:
            return "no stream"
        facts = self.metadata.streams.get(str(stream))
        return str(facts["name"]) if facts else f"stream {stream}"

    def kind_counts(self) -> dict[str, int]:
        """Kind → number of rows."""
        kinds = self.spans.column("kind")
        if pa.types.is_null(kinds.type):
            return {}
        counted = pc.value_counts(kinds.cast(pa.string()).combine_chunks())
        return {row["values"]: row["counts"] for row in counted.to_pylist()}

    def explain(self, span: int) -> Explanation:
        """Say why a span started when it did: what it waited for, and until when.

        Of a host wait and of a handle's call it says why they ended then.

        Parameters
        ----------
        span
            The row's ``id``.

        Returns
        -------
        Explanation
            ``str()`` is a sentence; ``reasons`` has each with its end and the row waited for.

        Raises
        ------
        MissingEvidence
            There is no such row, or nothing in the trace tells.
        """
        require_kind("span", span, int)
        return explain(self, span)

    @property
    def provenance(self) -> str:
        """What is missing and the :attr:`origin`, in one line for every picture."""
        return "; ".join(filter(None, [self.metadata.incomplete, self.origin]))

    @property
    def origin(self) -> str:
        """Device, source, simulated or measured, in one line."""
        named = (str(facts.get("name", key)) for key, facts in self.metadata.devices.items())
        devices = ", ".join(named) or "host only"
        sources = [] if not len(self) else pc.unique(
            self.spans.column("source").cast(pa.string())
        ).to_pylist()  # fmt: skip
        kernels = [source for source in sources if source not in ("nvtx", "host")] or sources
        kind = "SIMULATED" if self.is_simulated else "measured"
        return clean(f"{kind} on {devices}; kernel times from: {', '.join(kernels) or 'nothing'}")

    def __repr__(self) -> str:
        inside = ", ".join(f"{count} {kind}" for kind, count in self.kind_counts().items())
        return clean(f"Trace({len(self)} spans: {inside or 'none'}; {self.provenance})")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{shown(kind)}</td><td>{count}</td></tr>"
            for kind, count in self.kind_counts().items()
        )
        return (
            f"<p><b>Trace</b>: {len(self)} spans. {shown(self.provenance)}</p>"
            f"<table><thead><tr><th>kind</th><th>rows</th></tr></thead><tbody>{rows}</tbody></table>"
        )


def incomplete(traces: Mapping[str, Trace]) -> str:
    """Return how many rows of which traces are missing and why; empty if none is.

    Parameters
    ----------
    traces
        Label → trace; a label stands where traces differ.
    """
    lines = {label: trace.metadata.incomplete for label, trace in traces.items()}
    if len(set(lines.values())) <= 1:
        return next(iter(lines.values()), "")
    prefix = "incomplete: "
    told = [f"{label}: {line.removeprefix(prefix)}" for label, line in lines.items() if line]
    more = [f"and {len(told) - _TRACES} more traces"] if len(told) > _TRACES else []
    return prefix + "; ".join([*told[:_TRACES], *more])


def _shift(table: pa.Table, names: Sequence[str], offset: int) -> pa.Table:
    for name in names:
        column = table.column(name)
        if offset and not pa.types.is_null(column.type):
            position = table.schema.get_field_index(name)
            table = table.set_column(position, name, pc.add(column, offset))
    return table


def _merge(parts: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged.update(part)
    return merged


@dataclass(frozen=True)
class Run(Mapping[str, Trace]):
    """What an experiment gave: setting → Trace, and their comparison.

    Attributes
    ----------
    traces
        Setting → trace.
    comparison
        One row per setting and workload: kernels, latency, throughput, shares.
    experiment
        The description that was run.
    stopped
        Whether it was stopped before its end; what was recorded is here.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run({**one, "settings": {"first": {}, "second": {}}}, gpu)
    >>> list(run), run.stopped
    (['first', 'second'], False)
    >>> run.comparison.column("kernels").to_pylist()
    [2, 2]
    """

    traces: Mapping[str, Trace]
    comparison: pa.Table = field(repr=False)
    experiment: Mapping[str, Any]
    stopped: bool = False

    def __getitem__(self, setting: str) -> Trace:
        return self.traces[setting]

    def __iter__(self) -> Iterator[str]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def _repr_html_(self) -> str:
        names = self.comparison.column_names
        if not incomplete(self.traces):
            names = [name for name in names if name != "incomplete"]
        head = "".join(f"<th>{shown(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{shown(_show(row[name]))}</td>" for name in names) + "</tr>"
            for row in self.comparison.to_pylist()
        )
        state = (
            "<p>Stopped early: what was recorded until then is here.</p>" if self.stopped else ""
        )
        return f"{state}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _show(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
