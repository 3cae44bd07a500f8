"""Files of Chrome traces: recognised, and unpacked no further than an honest one goes."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from gpuscope.errors import TraceFormatError
from gpuscope.importers.limits import Limits, reading

_GZIP = b"\x1f\x8b"
_BLANKS = b" \t\r\n\xef\xbb\xbf"
_HEAD = 4096
_CHUNK = 1 << 20
_UNPACKED_AT_LEAST = 64 << 20
_RATIO = 200
"""Traces as JSON become some 10 to 40 times smaller: what unpacks to more is a bomb."""


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is JSON or gzip."""
    return head.startswith(_GZIP) or _is_json(head)


def _is_json(head: bytes) -> bool:
    return head.lstrip(_BLANKS)[:1] in (b"{", b"[")


def text_of(source: Path, limits: Limits) -> bytes:
    """Return the whole of a JSON file, unpacked as far as an honest one goes."""
    size = source.stat().st_size
    with source.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    if not packed:
        limits.check("text_bytes", f"bytes of JSON in {source.name!r}", size)
        limits.check_room(f"bytes of JSON in {source.name!r}", size)
        with source.open("rb") as file:
            return file.read(size)
    most = min(limits.text_bytes, limits.room, max(_UNPACKED_AT_LEAST, _RATIO * size))
    found = io.BytesIO()
    with reading(source.name, "gzip file"), gzip.open(source) as file:
        try:
            while chunk := file.read(_CHUNK):
                found.write(chunk)
                if found.tell() > most:
                    limits.check("text_bytes", f"unpacked bytes of {source.name!r}", found.tell())
                    limits.check_room(f"unpacked bytes of {source.name!r}", found.tell())
                    raise TraceFormatError(
                        f"{source.name!r} unpacks to more than {_RATIO} times its size, as no "
                        "trace does: if you trust it, unpack it yourself"
                    )
        except (EOFError, zlib.error) as error:
            raise TraceFormatError(
                f"{source.name!r} is damaged or cut off inside its gzip stream: get it again"
            ) from error
    if not _is_json(found.getbuffer()[:_HEAD].tobytes()):
        raise TraceFormatError(
            f"{source.name!r} is gzip, but not of JSON: unpack it, and load what was in it"
        )
    return found.getvalue()
