"""What a trace tells of the machine it was made on: left out unless asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import msgspec
import pyarrow as pa

from gpuscope.importers.private import public_text, scrub
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run


def public(trace: Trace) -> Trace:
    """Return a trace without what tells of the machine it was made on: hosts, folders, secrets.

    Names of partitions, streams, workloads and settings stay as they are.
    """
    spans = scrub(trace.spans)
    hosts = spans.column("host")
    if not pa.types.is_null(hosts.type):
        place = spans.schema.get_field_index("host")
        spans = spans.set_column(place, "host", pa.nulls(len(spans)))
    facts = trace.metadata
    metadata = msgspec.structs.replace(
        facts,
        process_names=_without_folders(facts.process_names),
        thread_names={key: public_text(name) for key, name in facts.thread_names.items()},
        experiment=_public_experiment(facts.experiment),
        notes=tuple(map(public_text, facts.notes)),
    )
    return Trace(spans, trace.edges, metadata)


def public_run(run: Run) -> Run:
    """Return a run whose traces and description are public."""
    traces = {name: public(trace) for name, trace in run.items()}
    experiment = _public_experiment(run.experiment) or {}
    return Run(traces, run.comparison, experiment, run.stopped)


def _public_experiment(experiment: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Return a description without paths in what functions of the user's are called with."""
    workloads = (experiment or {}).get("workloads")
    if experiment is None or not isinstance(workloads, Mapping):
        return experiment
    return {**experiment, "workloads": {key: _public_args(one) for key, one in workloads.items()}}


def _public_args(workload: object) -> object:
    if not isinstance(workload, Mapping) or not isinstance(workload.get("args"), Mapping):
        return workload
    plain = {
        name: public_text(value) if isinstance(value, str) else value
        for name, value in workload["args"].items()
    }
    return {**workload, "args": plain}


def _without_folders(names: Mapping[str, str]) -> dict[str, str]:
    return {key: PurePath(name.split(" ")[0]).name if name.startswith("/") else name
            for key, name in names.items()}  # fmt: skip
