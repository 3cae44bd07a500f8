"""StreamTable and WorkloadTable: what is launched, how often, on which stream, and where."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping

from gpuscope import _foreign
from gpuscope.analysis.settings import driven_by_requests
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.setting import StreamSpec
from gpuscope.telling.described import describe_workload
from gpuscope.timeline.text import clean
from gpuscope.widgets.table import Described, Field, Table, Values, field
from gpuscope.workloads.python_kind import PYTHON
from gpuscope.workloads.registry import kinds
from gpuscope.workloads.spec import KindField, Model, WorkloadSpec

_PACED = ("fixed", "poisson")
"""Arrivals that have a rate."""
WHOLE_GPU = ""
"""The choice of no partition."""
_OF_LAUNCHES = ("stream", "background", "waits_on", "guard", "max_queued", "warmup")
"""What only workloads have that launch something themselves."""


class StreamTable(Table):
    """A table of streams, with partition, priority and, without a partition, blocking or not.

    Parameters
    ----------
    streams
        Name → fields as in an experiment (`partition`, `priority`, `blocking`), or a
        :class:`~gpuscope.experiments.experiment.StreamSpec`, to start from; one in each
        partition if not given.
    partitions
        Names of the partitions to choose from.
    lock
        Lock for the widget's state; several widgets may share one.

    Raises
    ------
    InvalidExperiment
        A field is unknown. Errors in values are shown beside their fields.

    Examples
    --------
    >>> import gpuscope as gs
    >>> table = gs.widgets.StreamTable({"s": {"partition": "a"}, "t": {}}, partitions=["a", "b"])
    >>> table.edit("t", partition="b", priority=-1)
    >>> table.streams["t"]
    StreamSpec(partition='b', priority=-1, blocking=False)
    """

    part, chosen, home = "streams", "partitions", "partition"

    def __init__(
        self,
        streams: Described | None = None,
        partitions: Iterable[str] = (),
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        super().__init__(partitions, lock)
        if streams is None:
            streams = {name: {"partition": name} for name in self._choices} or {"stream 1": {}}
        self.describe(streams)

    partitions = Table.choices

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """Name → stream.

        Raises
        ------
        InvalidExperiment
            Some values are invalid; the widget shows which.
        """
        with self.lock:
            self._require_valid()
            return {name: StreamSpec(**fields) for name, fields in self.described.items()}

    def _values_of(self, fields: Values) -> Values:
        spec = {**StreamSpec().model_dump(), "blocking": False, **fields}
        self._require_known(spec, StreamSpec.model_fields)
        return {**spec, "partition": spec["partition"] or WHOLE_GPU}

    def _line(self, values: Values) -> str:
        home, priority = values["partition"], values["priority"]
        line = f"in {clean(home, 40)}" if home else "on the whole GPU"
        line += f", priority {clean(priority, 40)}" if priority != 0 else ""
        return line + (", blocking" if values["blocking"] and not home else "")

    def _fields_of(self, values: Values) -> Values:
        home = values["partition"]
        spec = {"partition": home or None, "priority": values["priority"]}
        return spec if home else {**spec, "blocking": values["blocking"]}

    def _alone(self) -> Values:
        spin = {"kind": "spin", "duration_us": 1, "stream": next(iter(self.names), "")}
        return {
            "name": "streams",
            "partitions": dict.fromkeys(self._choices, 8),
            "streams": self.described,
            "workloads": {"one": spin},
        }

    def _fields(self) -> list[Field]:
        homes = [*_named(self._choices), (WHOLE_GPU, "whole GPU")]
        notes = {0: " (default)", -5: " (first)"}
        levels = [(level, f"{level}{notes.get(level, '')}") for level in range(0, -6, -1)]
        return [
            field("name", "Stream", "text"),
            _declared(StreamSpec, "partition", options=homes),
            _declared(StreamSpec, "priority", options=levels),
            _declared(StreamSpec, "blocking", when={"partition": [WHOLE_GPU]}),
        ]


class WorkloadTable(Table):
    """A table of workloads: kind, sizes, stream, repeats or rate, and dependencies.

    Parameters
    ----------
    workloads
        Name → fields as in an experiment, or a spec of one, to start from; one small GEMM if
        not given.
    streams
        Names of the streams to choose from; a new workload is on the first without one.
    lock
        Lock for the widget's state; several widgets may share one.

    Raises
    ------
    InvalidExperiment
        A field is unknown. Errors in values are shown beside their fields.

    Examples
    --------
    >>> import gpuscope as gs
    >>> table = gs.widgets.WorkloadTable(streams=["s"])
    >>> table.edit("workload 1", kind="copy", nbytes=4096, repeats=10)
    >>> table.workloads["workload 1"].nbytes
    4096
    """

    part, chosen, home = "workloads", "streams", "stream"

    def __init__(
        self,
        workloads: Described | None = None,
        streams: Iterable[str] = ("stream 1",),
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        super().__init__(streams, lock)
        self.describe({"workload 1": {}} if workloads is None else workloads)

    streams = Table.choices

    @property
    def workloads(self) -> dict[str, WorkloadSpec]:
        """Name → workload.

        Raises
        ------
        InvalidExperiment
            Some values are invalid; the widget shows which.
        """
        with self.lock:
            self._require_valid()
            workloads = Experiment.from_dict(self._alone()).workloads
            return {name: workloads[name] for name in self.names}

    def _values_of(self, fields: Values) -> Values:
        filled = {name: value for name, value in fields.items() if value is not None}
        kind, _, function = str(filled.pop("kind", "gemm")).partition(":")
        values = {
            "kind": kind,
            "function": function,
            **_defaults(),
            "stream": next(iter(self._choices), ""),
        }
        self._require_known(filled, ("kind", *values))
        filled = {name: value for name, value in filled.items() if name != "stream" or value}
        values |= filled
        return values | {name: json.dumps(values[name]) for name in _structured()}

    def _fields_of(self, values: Values) -> Values:
        kind = values["kind"]
        model = kinds().get(kind, WorkloadSpec)
        spec = {
            name: values[name]
            for name in model.model_fields
            if name != "kind" and (model.launches or name not in _OF_LAUNCHES)
        }
        spec |= {name: _structure(spec[name]) for name in _structured() & spec.keys()}
        spec["kind"] = kind if kind != PYTHON else f"{PYTHON}:{values['function']}"
        if spec.get("background"):
            spec["arrival"] = "back_to_back"
        if spec["arrival"] not in _PACED:
            del spec["rate_hz"]
        return spec

    def _line(self, values: Values) -> str:
        rare = {described["name"] for is_rare, described in _own_fields() if is_rare}
        facts = {name: value for name, value in self._fields_of(values).items() if name not in rare}
        driven = driven_by_requests(self.described)
        return describe_workload(facts, driven=values["name"] in driven)

    def _field_at(self, path: tuple[str, ...]) -> str:
        if path[2:] == ("kind",) and any(
            row["values"]["kind"] == PYTHON and row["values"]["name"] == path[1]
            for row in self.rows
        ):
            return "function"
        return super()._field_at(path)

    def _alone(self) -> Values:
        described = self.described
        if described and all(fields.get("background") is True for fields in described.values()):
            # Alone, a table may describe what runs behind something else.
            spin = {"kind": "spin", "duration_us": 1, "stream": self._choices[0]}
            name = "timed"
            while name in described:
                name += "_"
            described = {**described, name: spin}
        return {
            "name": "workloads",
            "streams": {name: {} for name in self._choices},
            "workloads": described,
        }

    def _follow_names(self, renamed: Mapping[str, str]) -> None:
        if renamed:
            for field in ("waits_on", "prefill", "decode"):
                self.rename(field, renamed)

    def _options(self, values: Values) -> Values:
        options = _named(name for name in self.names if name != values["name"])
        return {"waits_on": [list(option) for option in options]}

    def _fields(self) -> list[Field]:
        timed, python = {"background": [False]}, {"kind": [PYTHON]}
        launch = {"kind": [kind for kind, spec in kinds().items() if spec.launches]}
        special = _own_fields()
        return [
            field("name", "Workload", "text"),
            field(
                "kind",
                "Kind",
                "choice",
                options=[(kind, spec.kind_label()) for kind, spec in kinds().items()],
            ),
            *(described for rare, described in special if not rare),
            field(
                "function",
                "Function",
                "text",
                when=python,
                hint="package.module:function, made a workload with @gpuscope.workloads.workload",
            ),
            field("args", "Arguments (JSON)", "text", when=python),
            _declared(WorkloadSpec, "stream", options=_named(self._choices), when=launch),
            _declared(WorkloadSpec, "background", when=launch),
            _declared(WorkloadSpec, "repeats", when=timed),
            _declared(WorkloadSpec, "arrival", when=timed),
            _declared(WorkloadSpec, "rate_hz", when={**timed, "arrival": _PACED}),
            *(
                _declared(WorkloadSpec, name, when=launch)
                for name in ("waits_on", "guard", "max_queued", "warmup")
            ),
            *(described for rare, described in special if rare),
        ]


def _declared(
    spec: type[Model],
    name: str,
    *,
    options: Iterable[tuple[object, str]] = (),
    when: Mapping[str, Iterable[object]] | None = None,
) -> Field:
    """Describe a field as its declaration says; ``options`` and ``when`` as :func:`field`'s."""
    declared = KindField.of(name, spec.model_fields[name])
    choices = list(options) or list(declared.options.items())
    return field(
        name,
        declared.label,
        "choice" if choices else declared.type,
        options=choices,
        when=when,
        hint=declared.hint,
    )


def _named(names: Iterable[str]) -> list[tuple[object, str]]:
    """Return names as choices."""
    return [(name, clean(name, 40)) for name in names]


def _defaults() -> Values:
    """Return a value for every field that a workload of some kind may have."""
    shared = {
        name: info.get_default(call_default_factory=True)
        for name, info in WorkloadSpec.model_fields.items()
        if name not in ("kind", "stream")
    }
    every = [described for spec in reversed(kinds().values()) for described in spec.kind_fields()]
    return {**shared, "rate_hz": 1000, **{described.name: described.start for described in every}}


def _structured() -> set[str]:
    """Return the fields that hold a table or a list: their control shows JSON."""
    return {
        described.name
        for spec in kinds().values()
        for described in spec.kind_fields()
        if isinstance(described.start, list | dict)
    }


def _structure(text: object) -> object:
    """Read JSON; what is none is left for the experiment to refuse."""
    try:
        return _foreign.loads(text) if isinstance(text, str) else text
    except _foreign.Malformed:
        return text


def _own_fields() -> list[tuple[bool, Field]]:
    """Describe the fields that not every kind has, with the kinds that have them, and if rare.

    Where kinds have a field of the same name, the first one describes it. What holds a list or
    a table is written as JSON.
    """
    having: dict[str, dict[str, KindField]] = {}
    for kind, spec in kinds().items():
        for described in spec.kind_fields():
            if described.name != "args":  # which stands behind the function
                having.setdefault(described.name, {})[kind] = described
    fields = []
    for name, by_kind in having.items():
        first = next(iter(by_kind.values()))
        choices = {
            value: text for other in by_kind.values() for value, text in other.options.items()
        }
        structured = isinstance(first.start, list | dict)
        row = field(
            name,
            f"{first.label} (JSON)" if structured else first.label,
            "text" if structured else first.type,
            options=choices.items(),
            when={"kind": by_kind},
            hint=first.hint,
        )
        fields.append((first.rare, row))
    return fields
