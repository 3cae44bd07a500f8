"""What a person calls threads, streams, ranges and kernels; numbers and templates are details."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from weakref import WeakSet

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Ints
from gpuscope.trace import kernel_patterns
from gpuscope.trace.columns import (
    chosen,
    codes,
    combined,
    linked_rows,
    narrow_codes,
    once,
    rows_of,
)
from gpuscope.trace.facts import StreamFacts
from gpuscope.trace.joins import distinct, enclosing, innermost
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK

MOST_OF = 0.9
"""The share of launches, or of work, by which a thread or a stream is named."""
REPEATED = 3
"""Ranges of a name that say what is done again and again."""
_NULL_STREAM = "7"
"""CUPTI's and nsys's number of the null stream of a device's primary context."""
_UNNAMED = re.compile(r"stream (\d+)(?: of .*)?")
"""What recorders call a stream that nobody named."""
_THREADS = {
    "MainThread|pt_main_thread": "main thread",
    r".*pin_memory_loop.*|pt_data_pin": "pin-memory thread",
    r"pt_autograd\w*": "autograd thread",
    "pt_data_worker": "DataLoader worker",
}
"""Name of a thread as its library gives it → as a person says it."""
_UNSAID = re.compile(r"(?:Thread|Dummy)-\d+(?: \((\w+)\))?|python\S*|")
"""Names that are given to threads without one; of Python's the function that it runs."""
_NUMBER = re.compile(r"[\s#_:=.\-\[(]*\d+[\])]?$")
_OF_LIBRARIES = re.compile(
    r"(?:aten|autograd|c10d?|cub|cudnn|cublas|nccl|thrust|torch)(?:::|[A-Z])"
)
"""Ranges that libraries make around their own functions: they are none of the program's."""
COPIES = {"HtoD": "copies to the GPU", "DtoH": "copies to the host", "DtoD": "copies on the GPU"}
"""Copy kind → what such copies are called."""

_RULES = [
    (re.compile(pattern, re.DOTALL), words)
    for pattern, _, words in (
        line.partition(" -> ") for line in kernel_patterns.PATTERNS.strip().splitlines()
    )
]
_NAME_OF = dict(pair.replace("_char", " char").split("=") for pair in kernel_patterns.TYPES.split())
_TYPE = re.compile(
    r"(?:(?<=[<(_])|(?<=, )|(?=c10|__))({})(?:(?![a-zA-Z*])|(?=[fst]+\d))".format(
        "|".join(map(re.escape, _NAME_OF))
    )
)
_LETTER = re.compile(r"nvjet_(?:sm\d+_)?([a-z])|[_ ]([sdhi])(\d*)gemm")
_LIBRARY = re.compile(
    r"_Z|nvjet|sm\d+_|cutlass|cudnn|ampere|volta|turing|hopper|maxwell|nccl|cupy_|triton_|fmha|"
    "flash_|cu[A-Z]|cuda[A-Z]|memcpy|[HDP]to[HDP]"
)
_FUSED = re.compile(
    "(?:native_|_)*((?:layer_norm|batch_norm|group_norm|log_softmax|to_copy|[a-z0-9]+)"
    "(?:_backward)?)"
)
_BACKWARD = re.compile("(?i:_?backward|bprop|_bwd|bn_bw|[dw]grad|_grad|gammabeta)")
_ARGUMENTS, _MANGLED, _LENGTH = (
    re.compile(text) for text in (r"<[^<>]*>|\[abi:\w*\]", "_ZN?K?", r"\d+")
)
_CPP = re.compile(r"(?:void )?(?:\(anonymous namespace\)::)?[A-Za-z_]\w*(?:::|<)")
_NAMELESS = re.compile(r"(?:void )?kernel<([A-Za-z_]\w*)")
"""A kernel that only its first template argument tells from others."""
_LONGEST = 1000
"""Characters of a name that are looked at."""


@lru_cache(65_536)
def range_label(name: str) -> str:
    """Return a range's name without the number at its end: ``"step"`` for ``"step 12"``."""
    return _NUMBER.sub("", name) or name


@once
def range_labels(trace: Trace) -> tuple[Ints, list[str]]:
    """Return row → number of its name as a range's label, and the labels, the first empty."""
    name, names = codes(trace.spans.column("name"))
    labels = [range_label(str(text)) for text in names]
    number = {text: at for at, text in enumerate(dict.fromkeys(["", *labels]))}
    return np.array([number[text] for text in labels])[name], list(number)


def ranges_around(trace: Trace, threads: Ints, times: Ints) -> Ints:
    """Return for each moment of a thread the row of the innermost range around it, or −1."""
    rows, thread, start, end = ranges_in(trace)
    inner = innermost(threads, times, thread, start, end - 1)
    return np.where(inner >= 0, rows[inner], -1) if len(rows) else inner


def ranges_in(trace: Trace) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the program's ranges with known threads and ends: rows, threads, starts, ends."""
    rows = rows_of(trace, "range")
    name, names = codes(trace.spans.column("name"))
    rows = rows[~np.array([bool(_OF_LIBRARIES.match(str(text))) for text in names])[name[rows]]]
    thread, end = (trace.array(name, fill=-1)[rows] for name in ("thread", "end_ns"))
    complete = (thread > 0) & (end >= 0)
    return rows[complete], thread[complete], trace.array("start_ns")[rows[complete]], end[complete]


def _held(trace: Trace, calls: Ints, owner: Ints) -> dict[int, str]:
    """Return owner → the range that holds nine tenths of its launch calls, where there is one.

    Of several the longest that is repeated, else the shortest.
    """
    if not len(calls):
        return {}
    rows, thread, start, end = ranges_in(trace)
    if not len(rows):
        return {}
    of_row, texts = range_labels(trace)
    label = of_row[rows]
    above = enclosing(thread, start, end)
    who, when = (trace.array(column, fill=-1)[calls] for column in ("thread", "start_ns"))
    at = innermost(who, when, thread, start, end - 1)
    pairs = []
    inside = np.flatnonzero(at >= 0)
    while len(inside):
        pairs.append(inside * len(texts) + label[at[inside]])
        at[inside] = above[at[inside]]
        inside = inside[at[inside] >= 0]
    if not pairs:
        return {}
    call, held_by = np.divmod(distinct(np.concatenate(pairs)), len(texts))
    owners, owner, launches = np.unique(owner, return_inverse=True, return_counts=True)
    first, code = combined(owner[call], held_by)
    count = np.bincount(label)
    total_ns = np.bincount(label, end - start)
    rank = np.where(count >= REPEATED, total_ns, -1 - total_ns)
    most = first[np.bincount(code) >= MOST_OF * launches[owner[call[first]]]]
    most = most[np.argsort(rank[held_by[most]], kind="stable")]  # the last holds
    whose = owners[owner[call[most]]].tolist()
    what = held_by[most].tolist()
    return {thread: texts[label] for thread, label in zip(whose, what, strict=True)}


@once
def thread_names(trace: Trace) -> dict[int, str]:
    """Return thread → what a person calls it.

    By its own name, else the range that holds nine tenths of its launches, else ``"thread 2 of
    3"`` of its process. Where two have one name, it says of which rank or process, or the number.
    """
    thread = trace.array("thread", fill=-1)
    calls = distinct(linked_rows(trace.edges, trace.array("id"), "launch")[0])
    range_of_thread = _held(trace, calls, thread[calls])
    first, _ = combined(narrow_codes(trace.spans.column("thread"))[0])
    process_of = trace.array("process", fill=-1)[first].tolist()
    owner = dict(sorted(zip(thread[first].tolist(), process_of, strict=True)))
    owner = {number: process for number, process in owner.items() if number > 0}
    count = Counter(owner.values())
    nth = Counter[int]()
    names = {}
    for number, process in owner.items():
        nth[process] += 1
        given = trace.metadata.thread_names.get(str(number), "")
        name = next((name for text, name in _THREADS.items() if re.fullmatch(text, given)), given)
        if (unsaid := _UNSAID.fullmatch(name)) is not None:
            doing = "main" if number == process else range_of_thread.get(number) or unsaid[1]
            name = f"{doing} thread" if doing else ""
        called = trace.metadata.process_names.get(str(process), "")
        if name == "main thread" and called.startswith("DataLoader worker"):
            name = called
        names[number] = name or f"thread {nth[process]} of {count[process]}"
    shared = Counter(names.values())
    for number, name in names.items():
        process = owner[number]
        rank = trace.metadata.rank(owner[number])
        where = f"rank {rank.rank}" if rank else f"process {process}"
        where = where if len(count) > 1 else f"thread {number}"
        names[number] = f"{name} · {where}" if shared[name] > 1 else name
    return names


@once
def stream_names(trace: Trace) -> dict[int, str]:
    """Return stream → what a person calls it; no two streams have one name.

    By the name that its user gave, else its partition, the default stream that it is, NCCL or
    copies where nine tenths of its work is that, the range around nine tenths of its launches,
    else its number.
    """
    calls, work = linked_rows(trace.edges, trace.array("id"), "launch")
    range_of_stream = _held(trace, calls, trace.array("stream", fill=-1)[work])
    kind, kind_names = narrow_codes(trace.spans.column("kind"))
    rows = chosen(np.isin(kind_names, ("kernel", "memcpy", "memset"))[kind])
    (of_row, streams), (text, texts), (copy, kinds) = (
        narrow_codes(trace.spans.column(name)) for name in ("stream", "name", "copy_kind")
    )
    is_nccl = np.array([str(span_name).startswith("nccl") for span_name in texts])
    shares = {"NCCL": is_nccl[text]} if is_nccl.any() else {}
    shares |= {COPIES[kind]: copy == code for code, kind in enumerate(kinds) if kind in COPIES}
    counts = np.bincount(of_row[rows], minlength=len(streams))
    mostly = {
        what: np.bincount(of_row[rows], those[rows], len(streams))
        >= MOST_OF * np.maximum(counts, 1)
        for what, those in shares.items()
    }
    of_torch = any("at::" in str(span_name) for span_name in texts)
    position = {number: at for at, number in enumerate(streams) if number is not None}
    recorded = {number: trace.stream_name(number) for number in sorted(position)}
    names = {}
    for number, name in recorded.items():
        facts = trace.metadata.stream(number)
        unnamed = _UNNAMED.fullmatch(name)
        names[number] = name
        if facts and unnamed:
            at = position[number]
            is_default = facts.legacy_default or unnamed[1] == _NULL_STREAM
            names[number] = (
                facts.partition
                or ("PyTorch's " * of_torch + "default stream") * is_default
                or "per-thread default stream" * facts.per_thread
                or next((what for what, those in mostly.items() if those[at]), "")
                or range_of_stream.get(number, f"stream {unnamed[1]}")
            )
    shared = Counter(names.values())
    given = Counter(recorded.values())
    for number, name in names.items():
        if shared[name] > 1 and (name != recorded[number] or given[name] > 1):
            also = recorded[number] if recorded[number] != name else f"stream {number}"
            names[number] = f"{name} ({also})"
    return names


_RENAMED: WeakSet[Trace] = WeakSet()


@once
def named(trace: Trace) -> Trace:
    """Return the same rows, with metadata that call streams and threads what a person does.

    Parts of what is returned keep these names, whichever rows they lack.
    """
    if trace in _RENAMED:
        return trace
    facts = trace.metadata
    renamed = trace.where()
    streams = {
        str(number): msgspec.structs.replace(facts.stream(number) or StreamFacts(""), name=name)
        for number, name in stream_names(trace).items()
    }
    threads = {str(number): name for number, name in thread_names(trace).items()}
    renamed.metadata = msgspec.structs.replace(
        facts,
        streams={**facts.streams, **streams},
        thread_names={**facts.thread_names, **threads},
    )
    _RENAMED.add(renamed)
    return renamed


def plain_names(spans: pa.Table) -> pa.ChunkedArray:
    """Return the column of names, those of CUDA's calls and of GPU work as a person says them."""
    name, names = narrow_codes(spans.column("name"))
    kind, kinds = narrow_codes(spans.column("kind"))
    of_cuda = np.array([text in (*GPU_WORK, "api", "sync") for text in kinds])[kind]
    texts = [str(text) for text in names]
    is_used = np.zeros(len(names), bool)
    is_used[name[chosen(of_cuda)]] = True
    for code in np.flatnonzero(is_used).tolist():
        texts[code] = kernel_name(texts[code])
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(name), pa.array(texts))])


@lru_cache(65_536)
def kernel_name(name: str) -> str:
    """Return what a person calls a kernel, a copy or a call of CUDA's.

    Of names of C++ that no pattern knows, the function's without namespaces, template arguments
    and parameters; other names stay as they are.
    """
    text = name[:_LONGEST]
    if _CPP.match(text) or _LIBRARY.match(text):
        for pattern, words in _RULES:
            if match := pattern.search(text):
                return _filled(words, match, _element_type(text))
    return _function(text) or name


def _filled(words: str, match: re.Match[str], element: str) -> str:
    groups = [group or "" for group in match.groups()]
    if words == "=":
        return groups[0]
    if "(Triton)" not in words and _BACKWARD.search(match.string):
        groups = [_BACKWARD.sub("", group) for group in groups]
        words = words.replace(" *", " backward *")
    elif groups and "(Triton)" in words:
        groups = [", ".join(_FUSED.findall(groups[0]))]
    for number, group in enumerate(groups, 1):
        plain = re.sub("(?<=[a-z])(?=[A-Z])", " ", group).replace("_", " ").lower()
        words = words.replace(f"\\{number}", plain)
    for sign, text in ((" *)", f", {element})"), (" *", f" ({element})"), (" &", f" {element}")):
        words = words.replace(sign, text if element else ")" * sign.count(")"))
    return words


def _element_type(text: str) -> str:
    """Return the type of a kernel's first operand, or nothing where its name does not tell."""
    if match := _TYPE.search(text, max(text.find("tf32"), 0)):
        return _NAME_OF[match[1]]
    match = _LETTER.search(text)
    if match and match[2] == "s" and match[3]:
        return "tf32"
    return kernel_patterns.LETTERS.get(match[1] or match[2], "") if match else ""


def _function(text: str) -> str:
    """Return a function's name without what C++ puts around it."""
    if mangled := _MANGLED.match(text):
        at = mangled.end()
        name = ""
        while length := _LENGTH.match(text, at):
            at = length.end() + int(length[0])
            name = text[length.end() : at]
        return name
    if not _CPP.match(text):
        return text
    if named := _NAMELESS.match(text):
        return f"kernel<{named[1]}>"
    before = ""
    text = text.replace("(anonymous namespace)::", "")
    while before != text:
        before = text
        text = _ARGUMENTS.sub("", text)
    return text.partition("(")[0].rpartition(" ")[2].rpartition("::")[2]
