"""What a trace tells of the machine it was made on: left out unless asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope.trace import schema
from gpuscope.trace.columns import rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

_SECRET = re.compile(
    r"(--?[\w-]{0,40}?(?:token|secret|passw(?:or)?d|credentials?|(?:api|access|private)[-_]?key)"
    r"(?:[=\s]|[\"'],)\s{0,9}[\"']?|(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)=[\"']?)"
    r"(?:(?<=\")[^\"]+|(?<=')[^']+|[^\s\"']+)"
)
"""What an option or a variable of a command line keeps from others, with its value."""
_ADDRESS = re.compile(r"((?<=\w)(?<!file)://)(?:[^\s/@\"']*@)?([^\s?#\"']*)(?:[?#][^\s\"']*)?")
_OF_A_PATH = r"[^\s\"'<>|(){}\[\],;=*?:]"
_LINE_END = r"\\[bfnrt]"  # as JSON writes it
_PATH = re.compile(
    rf"(?:(?<!{_OF_A_PATH})|(?<={_LINE_END}))(?!{_LINE_END}[/~])"
    rf"(?:[A-Za-z]:(?=[\\/]))?[/\\~](?:(?!{_LINE_END}[/~]){_OF_A_PATH})*"
)
"""What may be an absolute path, with a drive before it."""
_SEPARATORS = re.compile(r"(?:/|\\(?!u[0-9A-Fa-f]{4}))+")
"""JSON doubles a backslash and may escape a slash and, by a number, anything."""
_FILE = re.compile(r".+\.[A-Za-z]\w{0,4}$")
_HOMES = {"home", "Users"}
_ROOT_NAMES = """
    Applications Volumes afs beegfs bin boot ceph cephfs cluster content data dbfs dev efs etc
    export fsx gpfs kaggle lib lib32 lib64 lustre media mnt nas net nfs nix opt private proc
    project projects pscratch root run sbin scratch shared snap srv storage sys tmp user users
    usr var volumes work workspace
"""
_ROOTS = _HOMES | set(_ROOT_NAMES.split())

LEFT_OUT = (
    "host names, folders of files and below the usual roots, and passwords and tokens in addresses "
    "and command lines are left out; other texts are as they were"
)
"""What a trace says whose texts were treated so."""
COLUMNS = ("name", "domain", "category", "payload", "site", "status")


def public_text(text: str) -> str:
    """Return a text whose absolute paths have lost their folders: ``/home/me/a.py:3`` → ``a.py:3``.

    What looks like one is a path below a drive, a home or a usual root of a Unix tree, or one
    whose last part has a file's suffix: a range called ``/attention/qk`` keeps its name. Addresses
    lose user, password and query; options and variables called token, secret, password or key
    lose their values.
    """
    text = _SECRET.sub(r"\1…", text)
    if "/" not in text and "\\" not in text:
        return text
    parts = _ADDRESS.split(text)  # text, start of an address, the rest of it, text …
    parts[::3] = [_PATH.sub(_last_part, part) for part in parts[::3]]
    return "".join(parts)


def _last_part(match: re.Match[str]) -> str:
    word = match.group()
    start, *parts = _SEPARATORS.split(word)
    parts = [part for part in parts if part]
    if not parts or (start and start[-1] != ":" and start[0] != "~"):
        return word
    is_rooted = bool(start) or (parts[0] in _ROOTS and len(parts) > 1)
    if not is_rooted and (len(parts) == 1 or not _FILE.match(parts[-1])):
        return word
    is_home = not start and parts[0] in _HOMES and len(parts) == 2
    return "~" if is_home else parts[-1]


def scrub(spans: pa.Table) -> pa.Table:
    """Return a table of spans whose texts are public."""
    for name in COLUMNS:
        column = spans.column(name)
        if pa.types.is_null(column.type) or not len(column):
            continue
        coded = schema.one_dictionary(column).combine_chunks()
        public_texts = pa.concat_arrays([*_public(coded.dictionary)])
        if not public_texts.equals(coded.dictionary):
            fresh = pa.DictionaryArray.from_arrays(coded.indices, public_texts)
            spans = schema.with_column(spans, name, fresh)
    return spans


_AT_ONCE = 1 << 20
"""Bytes of texts that are objects of Python's at the same time, and one text more."""


def _public(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """Yield the public texts, part by part."""
    ends = np.cumsum(np.asarray(pc.binary_length(texts).fill_null(0)) + 1)
    at = 0
    while at < len(texts):
        start = int(ends[at - 1]) if at else 0
        until = max(int(np.searchsorted(ends, start + _AT_ONCE)), at + 1)
        part = texts[at:until].to_pylist()
        public_texts = [text if text is None else public_text(text) for text in part]
        yield pa.array(public_texts, pa.string())
        at = until


# -- whole traces --------------------------------------------------------------------------
def public(trace: Trace) -> Trace:
    """Return a trace without what tells of the machine it was made on: hosts, folders, secrets.

    Names of partitions, streams, workloads and settings stay as they are.
    """
    spans = schema.with_column(scrub(trace.spans), "host", pa.nulls(len(trace)))
    facts = trace.metadata
    metadata = msgspec.structs.replace(
        facts,
        process_names=_without_folders(facts.process_names),
        ranks=tuple(msgspec.structs.replace(rank, host="") for rank in facts.ranks),
        thread_names={key: public_text(name) for key, name in facts.thread_names.items()},
        experiment=_public_experiment(facts.experiment),
        notes=tuple(map(public_text, facts.notes)),
    )
    return Trace(spans, trace.edges, metadata)


def without_code(trace: Trace) -> Trace:
    """Return a trace without names of a program's functions and files: no launch sites, no stacks.

    Rows of stacks stay, with what the thread did: their names are that of their kind.
    """
    spans = schema.with_column(trace.spans, "site", pa.nulls(len(trace)))
    is_stack = np.zeros(len(trace), bool)
    is_stack[rows_of(trace, "stack")] = True
    for name, hidden in (("name", "stack"), ("payload", None)):
        column = spans.column(name).cast(pa.string())
        texts = pc.if_else(pa.array(is_stack), pa.scalar(hidden, pa.string()), column)
        spans = schema.with_column(spans, name, pc.dictionary_encode(texts))
    return Trace(spans, trace.edges, trace.metadata)


def run_without_code(run: Run) -> Run:
    """Return a run whose traces are without code."""
    traces = {name: without_code(trace) for name, trace in run.items()}
    return Run(traces, run.comparison, run.experiment, run.stopped)


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
    public_workloads = {key: _public_args(workload) for key, workload in workloads.items()}
    return {**experiment, "workloads": public_workloads}


def _public_args(workload: object) -> object:
    if not isinstance(workload, Mapping) or not isinstance(workload.get("args"), Mapping):
        return workload
    args = workload["args"].items()
    plain = {key: public_text(arg) if isinstance(arg, str) else arg for key, arg in args}
    return {**workload, "args": plain}


def _without_folders(names: Mapping[str, str]) -> dict[str, str]:
    return {
        key: PurePath(name.split(" ")[0]).name if name.startswith("/") else name
        for key, name in names.items()
    }
