"""The events of a Chrome trace, from JSON to columns."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array
from gpuscope.errors import TraceFormatError
from gpuscope.importers.limits import Limits, reserve
from gpuscope.trace import schema
from gpuscope.trace.arrow import NONE

ABSENT = msgspec.Raw(b"")
"""Stands for what an event does not have."""
_EVENT_BYTES = 800
"""What an event takes until it is a row."""
_BESIDE_BYTES = 1 << 18
"""What stands beside the events is listed by name if it takes no more than that."""
_CHUNK = 1 << 20
_LATEST_US = Decimal(schema.LATEST_NS // 1000)
LONGEST_TEXT = 1 << 20


class Event(msgspec.Struct, gc=False):
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


_EVENTS = msgspec.json.Decoder(list[Event])
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Known(msgspec.Struct, rename="camel", gc=False):
    """What stands beside the events and is read."""

    trace_events: msgspec.Raw = ABSENT
    other_data: msgspec.Raw = ABSENT
    base_time_nanoseconds: msgspec.Raw = ABSENT
    device_properties: msgspec.Raw = ABSENT


_KNOWN = msgspec.json.Decoder(_Known)
REST = "(the rest)"
"""Stands for what else stands beside the events, where that is much."""


def decode(data: bytes, limits: Limits) -> tuple[list[Event], dict[str, msgspec.Raw]]:
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
            there = ", ".join(repr(key[:40]) for key in list(top)[:5]) or "nothing"
            raise TraceFormatError(
                f"the JSON is no Chrome trace: it has no traceEvents, only {there}"
            )
    most = limits.rows_in_room
    view = np.frombuffer(text, np.uint8)
    if _braces(view) > most:
        limits.check_rows("events in JSON", _objects(view))
    reserve(_EVENT_BYTES * min(most, len(view) // 9 + 1) + 2 * len(view))
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
    known = _KNOWN.decode(data)
    if len(data) - len(bytes(known.trace_events)) <= _BESIDE_BYTES:
        top = _TOP.decode(data)
        return top, top.pop("traceEvents", ABSENT)
    names = {field.encode_name: field.name for field in msgspec.structs.fields(_Known)}
    top = {name: getattr(known, field) for name, field in names.items()}
    events = top.pop("traceEvents")
    return {name: raw for name, raw in top.items() if raw is not ABSENT} | {REST: ABSENT}, events


def _width(data: bytes) -> int:
    """Return how many bytes a character of Python's takes in the widest text there may be."""
    view = np.frombuffer(data, np.uint8)
    widest = max(
        (int(view[at : at + _CHUNK].max()) for at in range(0, len(view), _CHUNK)), default=0
    )
    if widest >= 0xF0 or b"\\ud8" in data or b"\\uD8" in data:
        return 4
    return 2 if widest >= 0xC4 or b"\\u" in data else 1


def _braces(text: Array) -> int:
    parts = (text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK))
    return sum(int(np.count_nonzero(part == ord("{"))) for part in parts)


def _objects(text: Array) -> int:
    """Return how many objects a list holds: braces neither in a string nor in another bracket."""
    found = depth = 0
    in_string = False
    slashes = 0
    for at in range(0, len(text), _CHUNK // 16):  # a hundred times as much while it is looked at
        part = text[at : at + _CHUNK // 16]
        place = np.arange(len(part))
        plain = np.maximum.accumulate(np.where(part != ord("\\"), place, -1))
        run = np.where(plain >= 0, place - plain, place + 1 + slashes)  # backslashes that end here
        before = np.r_[slashes, run[:-1]]
        slashes = int(run[-1])
        quote = (part == ord('"')) & (before % 2 == 0)
        quoted = (np.cumsum(quote) + in_string) % 2 == 1
        in_string = bool(quoted[-1])
        opens = np.isin(part, (ord("{"), ord("["))) & ~quoted
        closes = np.isin(part, (ord("}"), ord("]"))) & ~quoted
        level = depth + np.cumsum(opens.astype(np.int64) - closes)
        found += int(np.count_nonzero(opens & (part == ord("{")) & (level == 2)))
        depth = int(level[-1])
    return found


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
    known = np.array([bool(text) for text in texts], bool)
    column = pa.array(texts, pa.binary(), mask=~known)
    try:
        exact = column.cast(pa.string()).cast(pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return _one_by_one(texts)
    if not len(exact):
        return np.zeros(0, np.int64), known
    words = np.frombuffer(exact.buffers()[1], np.int64)[: 2 * len(texts)].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    near = (low > -schema.LATEST_NS) & (low < schema.LATEST_NS)  # the least has no absolute value
    known &= near & (high == low >> 63)
    return np.where(known, low, 0), known


def _one_by_one(texts: list[bytes]) -> tuple[Array, Array]:
    values, known = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    for place, text in enumerate(texts):
        try:
            number = Decimal(text.strip(b'"').decode("ascii", "replace"))
        except InvalidOperation:
            continue
        if number.is_finite() and abs(number) < _LATEST_US:
            values[place], known[place] = int((number * 1000).to_integral_value()), True
    return values, known


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
    column = pa.array([], pa.int64())
    names: dict[int, str] = {}
    try:
        column = pa.array(values, pa.int64())
    except (pa.ArrowException, TypeError, OverflowError):
        column = None
    if column is None or (pc.min(column).as_py() or 0) < 0:
        found: dict[Hashable, int | None] = {}
        names = {}
        for value in values:
            if value not in found:
                number = _whole(value)
                number = None if number is None or number < 0 else number
                if number is None and value is not None:
                    number = _NAMED + len(names)
                    names[number] = str(value)
                found[value] = number
        column = pa.array([found[value] for value in values], pa.int64())
    return np.asarray(column.fill_null(NONE)), names


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
            [None if one is None else schema.encodable(str(one)) for one in values], pa.string()
        )
    if column.null_count:
        column = column.fill_null(absent)
    coded = column.dictionary_encode()
    del column
    distinct = coded.dictionary
    if (pc.max(pc.binary_length(distinct)).as_py() or 0) > LONGEST_TEXT:
        raise TraceFormatError(f"a name has more than {LONGEST_TEXT:,} bytes")
    empty = pc.equal(distinct, "")
    if not pc.any(empty).as_py():
        return coded
    named = pc.if_else(empty, absent, distinct)
    return pa.DictionaryArray.from_arrays(coded.indices, named)


def pairs(
    events: list[Event], rows: list[int], keys: Sequence[Hashable], begins: str, starts: Array
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
    found: dict[int, int] = {}
    lost = 0
    for place in order:
        row = rows[place]
        stack = stacks[keys[place]]
        if events[row].ph in begins:
            stack.append(row)
        elif stack:
            found[stack.pop()] = row
        else:
            lost += 1
    return found, lost


class Tally(Counter[str]):
    """Counts by name; the names that come after many are counted as one."""

    def __setitem__(self, name: str, count: int) -> None:
        if name not in self and len(self) >= _MOST_COUNTED:
            count += self.get(_OTHERS, 0)
            name = _OTHERS
        super().__setitem__(name, count)


_MOST_COUNTED = 1000
_OTHERS = "others"
_AT_ONCE = 256
"""Events whose arguments are objects of Python's at the same time."""
_MOST_NAMES = 200
"""Names of arguments that get a column of their own to be counted in."""


Values: TypeAlias = dict[str, list[object]]
"""Name of an argument → its values: numbers and texts, or JSON as it is written."""
_Decode: TypeAlias = Callable[[msgspec.Raw], msgspec.Struct]


class Arguments:
    """The events' arguments, by name; what nobody asks for is counted by name, too.

    Parameters
    ----------
    wanted
        Names whose values are read.
    as_written
        Those of them that stay JSON.
    """

    def __init__(self, wanted: tuple[str, ...], as_written: tuple[str, ...] = ()) -> None:
        self._wanted = wanted
        self._as_written = as_written
        self._others: list[str] = []
        self.left = Tally()
        self._decoding = self._decoders()

    def read(self, raws: list[msgspec.Raw]) -> Values:
        """Return the values of the events' arguments."""
        found: Values = {name: [] for name in self._wanted}
        for at in range(0, len(raws), _AT_ONCE):
            columns = self._read(raws[at : at + _AT_ONCE])
            for name, values_of in found.items():
                values_of.extend(columns[name])
        return found

    def _read(self, raws: list[msgspec.Raw]) -> Values:
        strict, lax, nothing = self._decoding
        rows: list[tuple[object, ...]] = []
        add, as_tuple = rows.append, msgspec.structs.astuple
        for raw in raws:
            if raw is ABSENT:
                add(nothing)
                continue
            try:
                add(as_tuple(strict(raw)))
            except msgspec.ValidationError:  # a name that is new, or no object at all
                if self._learn(raw):
                    self._decoding = strict, lax, nothing = self._decoders()
                add(as_tuple(lax(raw)) if bytes(raw)[:1] == b"{" else nothing)
        # Those that were read before a name was learnt are shorter.
        columns = itertools.zip_longest(*rows, fillvalue=ABSENT)
        found = dict(zip((*self._wanted, *self._others), columns, strict=False))
        for name in self._others if rows else ():
            self.left[name] += len(rows) - found[name].count(ABSENT)
        return {
            name: [None if isinstance(value, list | dict) else value for value in found[name]]
            if name in found
            else []
            for name in self._wanted
        }

    def _learn(self, raw: msgspec.Raw) -> bool:
        """Take the names of one event into account; whether there is a new one to read by."""
        try:
            names = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            self.left["that are no object"] += 1
            return False
        known = {*self._wanted, *self._others}
        new: list[str] = []
        for name in names:
            if name in known:
                continue
            if len(self._others) + len(new) < _MOST_NAMES and _NAMEABLE.fullmatch(name):
                new.append(name)
            else:
                self.left[name] += 1
        self._others += new
        return bool(new)

    def _decoders(self) -> tuple[_Decode, _Decode, tuple[object, ...]]:
        """Return what decodes arguments with known names, with any, and what stands for none."""
        names = [*self._wanted, *self._others]
        raw = {*self._as_written, *self._others}
        fields = [
            (f"_{number}", *((msgspec.Raw, ABSENT) if name in raw else (Any, None)))
            for number, name in enumerate(names)
        ]
        rename = {f"_{number}": name for number, name in enumerate(names)}
        strict, lax = (
            msgspec.defstruct(
                "Arguments", fields, rename=rename, forbid_unknown_fields=known_only, gc=False
            )
            for known_only in (True, False)
        )
        return (
            msgspec.json.Decoder(strict).decode,
            msgspec.json.Decoder(lax).decode,
            msgspec.structs.astuple(lax()),
        )


_NAMEABLE = re.compile(r"[^\\\"\x00-\x1f]{1,80}")
"""Names by which msgspec can look for a field."""
