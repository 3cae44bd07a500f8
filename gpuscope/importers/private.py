"""What a foreign trace tells about whose machine it was: left out unless asked for."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

_WORD = re.compile(r"https?://\S+|(?:\b[A-Za-z]:(?=[\\/]))?[^\s\"'<>|(){}\[\],;=*?:]+")
"""An address, or what may be a path, with a drive before it."""
_SEPARATORS = re.compile(r"[\\/]+")  # JSON doubles a backslash and may escape a slash
_FILE = re.compile(r".+\.[A-Za-z]\w{0,4}$")
_HOMES = {"home", "Users"}
_ROOTS = _HOMES | {
    "Applications", "Volumes", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "media",
    "mnt", "nfs", "opt", "proc", "root", "sbin", "scratch", "srv", "sys", "tmp", "usr", "var",
    "workspace",
}  # fmt: skip

COLUMNS = ("name", "domain", "category", "payload", "status")


def without_paths(text: str) -> str:
    """Return a text whose absolute paths have lost their folders: ``/home/me/a.py:3`` → ``a.py:3``.

    What looks like one is a path below a drive, a home or a usual root of a Unix tree, or one
    whose last part has a file's suffix: a range called ``/attention/qk`` keeps its name.
    """
    if "/" not in text and "\\" not in text:
        return text
    return _WORD.sub(_last_part, text)


def _last_part(found: re.Match[str]) -> str:
    word = found.group()
    if word.startswith(("http://", "https://")):
        return word
    start, *parts = _SEPARATORS.split(word)
    parts = [part for part in parts if part]
    if not parts or (start and start[-1] != ":" and start[0] != "~"):
        return word
    known = bool(start) or (parts[0] in _ROOTS and len(parts) > 1)
    if not known and (len(parts) == 1 or not _FILE.match(parts[-1])):
        return word
    is_home = not start and parts[0] in _HOMES and len(parts) == 2
    return "~" if is_home else parts[-1]


def scrub(spans: Any) -> Any:
    """Return a table of spans without absolute paths in its texts."""
    for name in COLUMNS:
        column = spans.column(name)
        if pa.types.is_null(column.type) or not len(column):
            continue
        coded = column.unify_dictionaries().combine_chunks()
        texts = coded.dictionary.to_pylist()
        kept = [text if text is None else without_paths(text) for text in texts]
        if kept != texts:
            fresh = pa.DictionaryArray.from_arrays(coded.indices, pa.array(kept, pa.string()))
            spans = spans.set_column(spans.schema.get_field_index(name), name, fresh)
    return spans
