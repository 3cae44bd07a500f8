"""Partitions and streams as code that needs no gpuscope: by cuda.core, and by the driver in C++."""

from __future__ import annotations

import json
import pprint
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

from gpuscope._text import clean
from gpuscope.experiments.setting import StreamSpec

LANGUAGES = {"cuda.core": ("carving_cuda_core.txt", "# "), "C++": ("carving_cpp.txt", "// ")}
"""Language → its template, and what begins a comment."""


def carving_code(
    language: str,
    head: Iterable[str],
    sizes: Mapping[str, int],
    streams: Mapping[str, StreamSpec],
    *,
    sm_count: int,
    quantum: int,
    index: int = 0,
) -> str:
    """Return a program that carves a GPU and makes streams.

    It takes the driver's groups of SMs in their order, as a carving of a free GPU does, and fails
    where the GPU has another number of SMs or grants another.

    Parameters
    ----------
    language
        One of :data:`LANGUAGES`.
    head
        Lines for a comment at the top; may be foreign.
    sizes
        Partition → SMs.
    streams
        Stream → what it is made with.
    sm_count, quantum
        SMs of the GPU, and of the groups that its driver splits them into.
    index
        Which GPU.
    """
    template, mark = LANGUAGES[language]
    written = _python if language == "cuda.core" else _cpp
    return Template((Path(__file__).parent / template).read_text("utf-8")).substitute(
        # A backslash at the end of a comment would join the next line in C++.
        head="\n".join(mark + clean(line).rstrip("\\") for line in head),
        **written(sizes, streams),
        sm_count=sm_count,
        quantum=quantum,
        index=index,
    )


def _python(sizes: Mapping[str, int], streams: Mapping[str, StreamSpec]) -> dict[str, str]:
    facts = {name: (of.partition, not of.blocking, of.priority) for name, of in streams.items()}
    return {
        "sizes": pprint.pformat(dict(sizes), width=90, sort_dicts=False),
        "streams": pprint.pformat(facts, width=60, sort_dicts=False),
    }


def _cpp(sizes: Mapping[str, int], streams: Mapping[str, StreamSpec]) -> dict[str, str]:
    partitions = [f"{{{_quoted(name)}, {count}}}" for name, count in sizes.items()]
    made = [
        f"{{{_quoted(name)}, {_quoted(of.partition or '')}, "
        f"CU_STREAM_{'DEFAULT' if of.blocking else 'NON_BLOCKING'}, {of.priority}}}"
        for name, of in streams.items()
    ]
    return {"sizes": _lines(partitions), "streams": _lines(made)}


def _lines(items: list[str]) -> str:
    return "".join(f"\n    {item}," for item in items)


def _quoted(name: str) -> str:
    return json.dumps(clean(name), ensure_ascii=False)
