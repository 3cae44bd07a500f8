"""The events of a Chrome trace, from the file to columns; unpacked no further than is honest."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array
from gpuscope.errors import TraceFormatError
from gpuscope.formats.limits import Limits, reading, reserve
from gpuscope.trace import schema
from gpuscope.trace.arrow import NONE

_GZIP = b"\x1f\x8b"
_BLANKS = b" \t\r\n\xef\xbb\xbf"
_HEAD = 4096
_UNPACKED_AT_LEAST = 64 << 20
_RATIO = 200
"""Traces as JSON become some 10 to 40 times smaller: what unpacks to more is a bomb."""
ABSENT = msgspec.Raw(b"")
"""Stands for what an event does not have."""
_EVENT_BYTES = 800
"""What an event takes until it is a row."""
_BESIDE_BYTES = 1 << 18
"""What stands beside the events is listed by name if it takes no more than that."""
_CHUNK = 1 << 20
_LATEST_US = Decimal(schema.LATEST_NS // 1000)
LONGEST_TEXT = 1 << 20


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; numbers of time stay text, as a double would round Unix time to 0.25 µs."""

    ph: str
    name: str | int | float | bool | None = None
    cat: str | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    id: msgspec.Raw = ABSENT
    id2: msgspec.Raw = ABSENT
    bp: str | None = None
    args: msgspec.Raw = ABSENT
    columns: msgspec.Raw = ABSENT


_EVENTS = msgspec.json.Decoder(list[ChromeEvent])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


_USED = ("traceEvents", "otherData", "baseTimeNanoseconds", "deviceProperties")
_KNOWN = msgspec.json.Decoder(
    msgspec.defstruct("Known", [(name, msgspec.Raw, ABSENT) for name in _USED])
)
"""Reads what stands beside the events and is used."""
REST = "(the rest)"
"""Stands for what else stands beside the events, where that is much."""


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
        limits.check_text(f"bytes of JSON in {source.name!r}", size)
        with source.open("rb") as file:
            return file.read(size)
    most = min(limits.text_bytes, limits.room, max(_UNPACKED_AT_LEAST, _RATIO * size))
    unpacked = io.BytesIO()
    with reading(source.name, "gzip file"), gzip.open(source) as file:
        try:
            while chunk := file.read(_CHUNK):
                unpacked.write(chunk)
                if unpacked.tell() > most:
                    limits.check_text(f"unpacked bytes of {source.name!r}", unpacked.tell())
                    raise TraceFormatError(
                        f"{source.name!r} unpacks to more than {_RATIO} times its size, as no "
                        "trace does: if you trust it, unpack it yourself"
                    )
        except (EOFError, zlib.error) as error:
            raise TraceFormatError(
                f"{source.name!r} is damaged or cut off inside its gzip stream: get it again"
            ) from error
    if not _is_json(unpacked.getbuffer()[:_HEAD].tobytes()):
        raise TraceFormatError(
            f"{source.name!r} is gzip, but not of JSON: unpack it, and load what was in it"
        )
    return unpacked.getvalue()


def decode(data: bytes, limits: Limits) -> tuple[list[ChromeEvent], dict[str, msgspec.Raw]]:
    """Return the events, and what else stands beside them.

    A trace may be an object with ``traceEvents`` or a bare list, whose end may be missing.

    Raises
    ------
    TraceFormatError
        There are no events, or more than ``limits`` allow.
    msgspec.MsgspecError
        It is not JSON, or an event is none.
    """
    top: dict[str, msgspec.Raw] = {}
    limits.check_room("bytes of JSON as Python's texts", len(data) * _width(data))
    data = schema.readable(data)
    text: bytes | msgspec.Raw = data
    is_list = data.lstrip()[:1] == b"["
    if not is_list:
        top, text = _beside(data)
        if text is ABSENT:
            keys = ", ".join(repr(key[:40]) for key in list(top)[:5]) or "nothing"
            raise TraceFormatError(
                f"the JSON is no Chrome trace: it has no traceEvents, only {keys}"
            )
    most = limits.rows_in_room
    # Each has a phase, however that is escaped.
    phases = sum(map(data.count, (b'"ph"', b"\\u0070", b"\\u0068")))
    limits.check_rows("events in JSON", phases)
    reserve(_EVENT_BYTES * min(most, len(data) // 9 + 1) + 2 * len(data))
    try:
        events = _EVENTS.decode(text)
    except msgspec.DecodeError:
        stripped = data.rstrip()
        if not is_list or stripped[-1:] == b"]":
            raise
        events = _EVENTS.decode(stripped.rstrip(b",") + b"]")
    return events, top


def _beside(data: bytes) -> tuple[dict[str, msgspec.Raw], msgspec.Raw]:
    """Return what stands beside the events by name, and the events."""
    top = msgspec.structs.asdict(_KNOWN.decode(data))
    if len(data) - len(bytes(top["traceEvents"])) <= _BESIDE_BYTES:
        top = _OBJECT.decode(data)
    else:
        top = {name: raw for name, raw in top.items() if raw is not ABSENT} | {REST: ABSENT}
    return top, top.pop("traceEvents", ABSENT)


def _width(data: bytes) -> int:
    """Return how many bytes a character of Python's takes in the widest text there may be."""
    view = np.frombuffer(data, np.uint8)
    widest = max(
        (int(view[at : at + _CHUNK].max()) for at in range(0, len(view), _CHUNK)), default=0
    )
    if widest >= 0xF0 or b"\\ud8" in data or b"\\uD8" in data:
        return 4
    return 2 if widest >= 0xC4 or b"\\u" in data else 1


def values(text: msgspec.Raw) -> object:
    """Return what JSON of some event holds, whatever it is; an empty object where there is none.

    Raises
    ------
    TraceFormatError
        It is longer than such a thing is: as Python's objects it takes twenty times as much.
    """
    if len(bytes(text)) > LONGEST_TEXT:
        raise TraceFormatError(f"the arguments of an event have more than {LONGEST_TEXT:,} bytes")
    return msgspec.json.decode(text) if bytes(text) else {}


def nanoseconds(values: list[msgspec.Raw]) -> tuple[Array, Array]:
    """Return µs as ns, exactly, and which of them are numbers at all."""
    texts = [bytes(value) for value in values]
    is_number = np.array([bool(text) for text in texts], bool)
    column = pa.array(texts, pa.binary(), mask=~is_number)
    try:
        exact = column.cast(pa.string()).cast(pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return _one_by_one(texts)
    if not len(exact):
        return np.zeros(0, np.int64), is_number
    words = np.frombuffer(exact.buffers()[1], np.int64)[: 2 * len(texts)].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    near = (low > -schema.LATEST_NS) & (low < schema.LATEST_NS)  # the least has no absolute value
    is_number &= near & (high == low >> 63)
    return np.where(is_number, low, 0), is_number


def _one_by_one(texts: list[bytes]) -> tuple[Array, Array]:
    values, is_number = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    for index, text in enumerate(texts):
        try:
            number = Decimal(text.strip(b'"').decode("ascii", "replace"))
        except InvalidOperation:
            continue
        if number.is_finite() and abs(number) < _LATEST_US:
            values[index], is_number[index] = int((number * 1000).to_integral_value()), True
    return values, is_number


def whole(values: Sequence[object]) -> pa.Array:
    """Return a column of whole numbers; what is none, or too large, is null."""
    try:
        column = pa.array(values, pa.int64())
    except (pa.ArrowException, TypeError, OverflowError):
        column = pa.array([_whole(value) for value in values], pa.int64())
    return pa.nulls(len(column)) if column.null_count == len(column) else column


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) and -(1 << 63) < value < 1 << 63 else None


def numbers(values: Sequence[Hashable]) -> tuple[Array, dict[int, str]]:
    """Return processes or threads as whole numbers, NONE where there is none.

    Some writers name them instead: a name, or a negative number, gets a number, and both are
    returned.
    """
    with suppress(pa.ArrowException, TypeError, OverflowError):
        column = pa.array(values, pa.int64())
        if (pc.min(column).as_py() or 0) >= 0:
            return np.asarray(column.fill_null(NONE)), {}
    names: dict[int, str] = {}
    number_of: dict[Hashable, int] = {None: NONE}
    for value in dict.fromkeys(values):
        number = _whole(value)
        if value is not None and (number is None or number < 0):
            number = _NAMED + len(names)
            names[number] = str(value)
        number_of[value] = NONE if number is None else number
    return np.array([number_of[value] for value in values], np.int64), names


_NAMED = 10_000_000


def texts(values: Sequence[object], absent: str) -> pa.DictionaryArray:
    """Return a text column from names of any kind.

    Raises
    ------
    TraceFormatError
        One is longer than any name.
    """
    try:
        column = pa.array(values, pa.string())
    except (pa.ArrowException, TypeError):
        column = pa.array(
            [None if value is None else schema.encodable(str(value)) for value in values],
            pa.string(),
        )
    coded = column.fill_null(absent).dictionary_encode()
    del column
    distinct = coded.dictionary
    if (pc.max(pc.binary_length(distinct)).as_py() or 0) > LONGEST_TEXT:
        raise TraceFormatError(f"a name has more than {LONGEST_TEXT:,} bytes")
    named = pc.if_else(pc.equal(distinct, ""), absent, distinct)
    return pa.DictionaryArray.from_arrays(coded.indices, named)


def pairs(
    events: list[ChromeEvent], rows: list[int], keys: Sequence[Hashable], begins: str, starts: Array
) -> tuple[dict[int, int], int]:
    """Return begin → end of spans that are two events each, and how many ends have no begin.

    Parameters
    ----------
    rows
        Those events, begins and ends.
    keys
        Parallel to ``rows``: what a begin and its end share. The last begin ends first.
    begins
        Phases of begins.
    """
    order = np.argsort(starts[rows], kind="stable").tolist()
    stacks: defaultdict[Hashable, list[int]] = defaultdict(list)
    ends: dict[int, int] = {}
    lost = 0
    for position in order:
        row = rows[position]
        stack = stacks[keys[position]]
        if events[row].ph in begins:
            stack.append(row)
        elif stack:
            ends[stack.pop()] = row
        else:
            lost += 1
    return ends, lost


class Tally(Counter[str]):
    """Counts by name; the names that come after many are counted as one."""

    def __setitem__(self, name: str, count: int) -> None:
        if name not in self and len(self) >= _MOST_COUNTED:
            count += self.get(_OTHERS, 0)
            name = _OTHERS
        super().__setitem__(name, count)


_MOST_COUNTED = 1000
_OTHERS = "others"
_AT_ONCE = 512
"""Events whose arguments are objects of Python's at the same time."""
_NULL = msgspec.Raw(b"null")
_NESTED = (list, dict)
Values: TypeAlias = dict[str, list[object]]
"""Name of an argument → its values: numbers and texts, or JSON as it is written."""


def arguments(
    raws: list[msgspec.Raw], wanted: Sequence[str], *, as_written: Sequence[str]
) -> tuple[Values, Tally]:
    """Return the values of the events' arguments by name, and how often there are others.

    Parameters
    ----------
    wanted
        Names whose values are read.
    as_written
        Those of them that stay JSON.
    """
    read: Values = {name: [] for name in wanted}
    unread = Tally()
    for at in range(0, len(raws), _AT_ONCE):
        rows = [_named(raw, unread) for raw in raws[at : at + _AT_ONCE]]
        for name, values in read.items():
            if name in as_written:
                values += [row.pop(name, ABSENT) for row in rows]
                continue
            column = b",".join([row.pop(name, _NULL) for row in rows])
            values += [
                None if isinstance(value, _NESTED) else value
                for value in msgspec.json.decode(b"[%b]" % column)
            ]
        for name, count in Counter(chain.from_iterable(rows)).items():
            unread[name] += count
    return read, unread


def _named(raw: msgspec.Raw, others: Tally) -> dict[str, msgspec.Raw]:
    """Return an event's arguments by name; counts what is no object."""
    try:
        return {} if raw is ABSENT else _OBJECT.decode(raw)
    except msgspec.ValidationError:
        others["that are no object"] += 1
        return {}
