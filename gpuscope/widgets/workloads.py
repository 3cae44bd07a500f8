"""WorkloadTable: what is launched, how often, and on which stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from gpuscope.errors import InvalidExperiment
from gpuscope.figures.text import clean
from gpuscope.runs.experiment import Experiment
from gpuscope.widgets.table import Field, Table, Values, field, names_of
from gpuscope.workloads.builtin import PYTHON
from gpuscope.workloads.registry import kinds
from gpuscope.workloads.spec import KindField, WorkloadSpec

_PACED = ("fixed", "poisson")


class WorkloadTable(Table):
    """Workloads: kind and sizes, how often or at which rate, on which stream, after what.

    Parameters
    ----------
    workloads
        Name → fields as in an experiment, or a spec of one, to start from; one small GEMM if
        not given.
    streams
        Names of the streams to choose from; the first is that of a new workload.
    lock
        Guards the state; several widgets may share one.

    Raises
    ------
    InvalidExperiment
        Fields that no workload has. Values that cannot be are shown beside their fields.

    Examples
    --------
    >>> import gpuscope as gs
    >>> table = gs.widgets.WorkloadTable(streams=["s"])
    >>> table.edit("workload 1", kind="copy", nbytes=4096, repeats=10)
    >>> table.workloads["workload 1"].nbytes
    4096
    """

    part = "workloads"

    def __init__(
        self,
        workloads: Mapping[str, Mapping[str, object] | BaseModel] | None = None,
        streams: Iterable[str] = ("stream 1",),
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        self._streams = names_of("streams", streams)
        if workloads is None:
            workloads = {"workload 1": {}}
        super().__init__(workloads, lock=lock, noun="workload", fields=_fields(self._streams))

    @property
    def streams(self) -> list[str]:
        """Names of the streams to choose from."""
        return list(self._streams)

    @streams.setter
    def streams(self, names: Iterable[str]) -> None:
        with self.lock:
            self._streams = names_of("streams", names)
            self.fields = _fields(self._streams)
            self._changed({})

    @property
    def workloads(self) -> dict[str, WorkloadSpec]:
        """Name → workload.

        Raises
        ------
        InvalidExperiment
            Something is wrong with them; the page says what.
        """
        with self.lock:
            if not self.is_valid:
                raise InvalidExperiment(self.said)
            found = Experiment.from_dict(self._alone()).workloads
            return {name: found[name] for name in self.names}

    def _values_of(self, fields: Mapping[str, object] | BaseModel) -> Values:
        given = fields.model_dump() if isinstance(fields, BaseModel) else dict(fields)
        given = {name: value for name, value in given.items() if value is not None}
        kind, _, function = str(given.pop("kind", "gemm")).partition(":")
        values = {
            "kind": kind, "function": function, "args": json.dumps(given.pop("args", {})),
            **_defaults(), "stream": next(iter(self._streams), ""),
        }  # fmt: skip
        unknown = sorted(set(given) - set(values))
        if unknown:
            raise InvalidExperiment(
                f"workloads: {unknown[0]!r} is no field of a workload; there are "
                + ", ".join(map(repr, ("kind", *values)))
            )
        return values | given

    def _fields_of(self, values: Values) -> Values:
        kind = values["kind"]
        model = kinds().get(kind, WorkloadSpec)
        spec = {name: values[name] for name in model.model_fields if name not in ("kind", "args")}
        spec["kind"] = kind if kind != PYTHON else f"{PYTHON}:{values['function']}"
        if kind == PYTHON:
            spec["args"] = _arguments(values["args"])
        if spec["background"]:
            spec["arrival"] = "back_to_back"
        if spec["arrival"] not in _PACED:
            del spec["rate_hz"]
        return spec

    def _field_at(self, path: tuple[str, ...]) -> str:
        if path[2:] == ("kind",) and any(
            row["values"]["kind"] == PYTHON and row["values"]["name"] == path[1]
            for row in self.rows
        ):
            return "function"
        return super()._field_at(path)

    def _alone(self) -> Values:
        described = self.described
        if described and all(fields["background"] is True for fields in described.values()):
            # Alone, a table may describe what runs behind something else.
            spin = {"kind": "spin", "duration_us": 1, "stream": self._streams[0]}
            described = {**described, _free(described): spin}
        return {
            "name": "workloads",
            "streams": {name: {} for name in self._streams},
            "workloads": described,
        }

    def _follow_names(self, renamed: Mapping[str, str]) -> None:
        if renamed:
            self.rename("waits_on", renamed)

    def _options(self, values: Values) -> Values:
        others = [name for name in self.names if name != values["name"]]
        return {"waits_on": [[name, clean(name, 40)] for name in others]}


def _defaults() -> Values:
    """Return a value for every field that a workload of some kind may have."""
    shared = {
        name: info.get_default(call_default_factory=True)
        for name, info in WorkloadSpec.model_fields.items()
        if name not in ("kind", "stream")
    }
    every = [one for spec in reversed(kinds().values()) for one in spec.kind_fields()]
    own = {one.name: one.start for one in every if one.name != "args"}
    return {**shared, "rate_hz": 1000, **own}


def _arguments(text: str) -> object:
    """Read the arguments of a function; what is no JSON is left for the experiment to refuse."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _fields(streams: Iterable[str]) -> list[Field]:
    timed = {"background": [False]}
    own = _own_fields()
    return [
        field("name", "Workload", "text"),
        field(
            "kind", "Kind", "choice",
            options=[(kind, spec.kind_label()) for kind, spec in kinds().items()],
        ),
        *(described for rare, described in own if not rare),
        field(
            "function", "Function", "text", when={"kind": [PYTHON]},
            hint="package.module:function, made a workload with @gpuscope.workloads.workload",
        ),
        field("args", "Arguments (JSON)", "text", when={"kind": [PYTHON]}),
        field("stream", "Stream", "choice", options=[(name, clean(name, 40)) for name in streams]),
        field(
            "background", "Runs", "choice",
            options=[(False, "timed calls"), (True, "in the background")],
            hint="In the background: as long as the timed ones do",
        ),
        field("repeats", "Repeats", when=timed),
        field(
            "arrival", "Arrivals", "choice", when=timed,
            options=[("back_to_back", "back to back"), ("fixed", "at a fixed rate"),
                     ("poisson", "at random (Poisson)")],
        ),
        field("rate_hz", "Rate (1/s)", when={**timed, "arrival": _PACED}),
        field(
            "waits_on", "Waits on", "several",
            hint="Before each call, its stream waits for their latest call",
        ),
        field(
            "guard", "Guard", "choice", options=[(True, "on"), (False, "off: it escapes")],
            hint="Off: nothing sends it to its stream, so it goes to the legacy default stream",
        ),
        field(
            "max_queued", "Queued at most",
            hint="Calls in flight; 1 waits for each, which measures latency",
        ),
        field("warmup", "Warm-up", hint="Calls before anything is recorded"),
        *(described for rare, described in own if rare),
    ]  # fmt: skip


def _own_fields() -> list[tuple[bool, Field]]:
    """Describe the fields that not every kind has, with the kinds that have them, and if rare.

    Where kinds have a field of the same name, the first one describes it. What holds a list or
    a table has no control.
    """
    having: dict[str, dict[str, KindField]] = {}
    for kind, spec in kinds().items():
        for one in spec.kind_fields():
            if not isinstance(one.start, list | dict):
                having.setdefault(one.name, {})[kind] = one
    described = []
    for name, by_kind in having.items():
        first = next(iter(by_kind.values()))
        choices = dict.fromkeys(choice for one in by_kind.values() for choice in one.choices)
        row = field(
            name, first.label, first.type, options=[(choice, choice) for choice in choices],
            when={"kind": by_kind}, hint=first.hint,
        )  # fmt: skip
        described.append((first.rare, row))
    return described


def _free(taken: Mapping[str, object]) -> str:
    name = "timed"
    while name in taken:
        name += "_"
    return name
