"""Page-locked host memory as NumPy sees it: who looks for hazards is told of reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.device.accesses import Accessing, Operand, accesses_of, inside, of_arrays
from gpuscope.device.calls import of_thread

_SHAPES = {
    "shape",
    "ndim",
    "size",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "result_type",
    "may_share_memory",
    "shares_memory",
    "iscomplexobj",
    "isrealobj",
    "reshape",
    "ravel",
    "transpose",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "moveaxis",
    "swapaxes",
    "split",
    "array_split",
    "atleast_1d",
    "atleast_2d",
    "diagonal",
}
"""NumPy's functions that look at no value, or return a view."""
_INTO_FIRST = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}
"""Those that write their first argument."""
_READING = (
    "tolist",
    "tobytes",
    "item",
    "copy",
    "astype",
    "argmax",
    "argmin",
    "argsort",
    "nonzero",
    "take",
    "dot",
    "cumsum",
    "cumprod",
    "searchsorted",
    "compress",
    "repeat",
    "round",
    "trace",
    "__contains__",
    "__float__",
    "__int__",
    "__bool__",
    "__complex__",
    "__index__",
)
_WRITING = ("fill", "sort", "partition", "put", "setfield")


Values = Callable[[], tuple[Any, ...]]
"""What is read or written: asked for where somebody wants to know."""


class Told(Protocol):
    """Who is told of uses, as a device's :class:`CallLog` is."""

    @property
    def watchers(self) -> tuple[object, ...]:
        """Who listens."""

    def tell(self, kind: str, name: str, *, accesses: tuple[Accessing, ...] = ()) -> None:
        """Tell them of an access."""


class PinnedArray(np.ndarray[Any, Any]):
    """A NumPy array in page-locked memory, or a view of one.

    What NumPy's functions, operators and methods read and write is told while hazards are
    recorded. What reads it without NumPy, as ``memoryview``, or through ``np.asarray``, is not.
    """

    calls: Told | None = None

    @classmethod
    def over(cls, array: Array, calls: Told | None) -> PinnedArray:
        """Return a view of page-locked memory whose uses are told."""
        pinned = array.view(cls)
        pinned.calls = calls
        return pinned

    def __array_finalize__(self, other: object) -> None:
        self.calls = getattr(other, "calls", None)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        """Apply a universal function."""
        targets: tuple[Any, ...] = (out,) if isinstance(out, np.ndarray) else out or ()
        if method == "at":
            targets = inputs[:1]
        self._tell(ufunc.__name__, lambda: inputs, lambda: targets)
        if out is not None:
            options["out"] = tuple(map(_plain, targets))
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return result if out is None else targets[0] if len(targets) == 1 else targets

    def __array_function__(
        self, function: Callable[..., Any], _types: object, args: Any, options: Any
    ) -> Any:
        """Call one of NumPy's functions."""
        name = function.__name__
        if name in _SHAPES:
            return super().__array_function__(function, [type(self)], args, options)
        out = options.get("out")
        targets = out if isinstance(out, tuple) else (out,)
        if name in _INTO_FIRST:
            targets, args = args[:1], args[1:]
        self._tell(name, lambda: (*args, *options.values()), lambda: targets)
        if name in _INTO_FIRST:
            args = (*targets, *args)
        plain = {key: _all_plain([value])[0] for key, value in options.items()}
        result = function(*_all_plain(args), **plain)
        return out if out is not None else result

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if not isinstance(value, PinnedArray):
            self._tell("read", lambda: (self._part(key),))
        elif value.size and not np.may_share_memory(_plain(value), _plain(self)):
            self._tell("read", lambda: (self,))  # a copy of what was chosen
            return _plain(value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tell("write", lambda: (value,), lambda: (self._part(key),))
        _plain(self)[key] = _plain(value)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _part(self, key: Any) -> Array:
        """Return a view of what a key chooses; all where it is none of slices."""
        keys = key if isinstance(key, tuple) else (key,)
        if not any(index is ... for index in keys):
            keys = (*keys, ...)  # of one element, too
        part: Array = _plain(self)[keys]
        return part if np.may_share_memory(part, _plain(self)) else self.view(np.ndarray)

    def _tell(self, name: str, read: Values, written: Values = tuple) -> None:
        """Tell what NumPy is about to read and write, if anybody asks."""
        calls = self.calls
        if calls is None or not calls.watchers:
            return
        reads, writes = (
            [value for value in inside(values) if isinstance(value, np.ndarray)]
            for values in (read(), written())
        )
        _note(calls, f"NumPy's {name}", of_arrays(reads, writes))

    @door(name=str, writes=bool)
    def note_access(self, name: str, *, writes: bool = False) -> None:
        """Tell who looks for hazards that something else than NumPy accesses all of it now.

        Parameters
        ----------
        name
            What they call the access.
        writes
            Whether it writes; it reads, if not.
        """
        if self.calls is not None:
            _note(self.calls, name, of_arrays([] if writes else [self], [self] if writes else []))


def _note(calls: Told, name: str, accesses: tuple[Operand, ...]) -> None:
    """Note accesses of the host's: they are those of the host function that it is in, if any."""
    run = of_thread.run
    if run is not None:
        run.accesses += accesses_of(accesses)
    elif accesses:
        calls.tell("host access", name, accesses=accesses)


def _plain(value: Any) -> Any:
    """Return an array that tells nobody."""
    return value.view(np.ndarray) if isinstance(value, PinnedArray) else value


def _all_plain(values: Iterable[Any]) -> list[Any]:
    return [
        type(value)(_all_plain(value)) if isinstance(value, list | tuple) else _plain(value)
        for value in values
    ]


def _method(name: str, *, writes: bool) -> Callable[..., Any]:
    """Return a method of NumPy's that tells what it reads or writes."""
    usual = getattr(np.ndarray, name)

    def call(self: PinnedArray, *args: Any, **options: Any) -> Any:
        nothing, itself = tuple, lambda: (self,)
        result = usual(_plain(self), *_all_plain(args), **options)
        if isinstance(result, np.ndarray) and np.may_share_memory(result, _plain(self)):
            return self.over(result, self.calls)  # a view: it looked at no value
        self._tell(name, nothing if writes else itself, itself if writes else nothing)
        return result

    call.__name__, call.__doc__ = name, usual.__doc__
    return call


for _name in (*_READING, *_WRITING):
    if hasattr(np.ndarray, _name):
        setattr(PinnedArray, _name, _method(_name, writes=_name in _WRITING))
