"""Treat the compiled launch path as no program of ours does; ``scripts/fuzz.py`` calls it.

python tests/try_fastpath.py SEED ROUNDS

Every attribute of every object is deleted and replaced, also in the middle of its methods;
methods are called on objects that were never initialised, and everything with arguments of every
other kind. An error is an answer; a SystemError, which C raises that forgot one, is not, and
neither is a crash or a reference that is kept. Addresses are not made up: they are called.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.util
import itertools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from gpuscope import _compiled
from gpuscope.device import handles

INT, POINTER = ctypes.c_int, ctypes.c_void_p


def another() -> ModuleType:
    """The module once more, to which nothing was served."""
    spec = importlib.util.spec_from_file_location("gpuscope._fastpath", _compiled.fastpath.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call; an error is an answer, unless C forgot it."""
    try:
        return call(*args, **kwargs)
    except SystemError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error


@ctypes.CFUNCTYPE(INT, POINTER, POINTER)
def nothing(*_: Any) -> int:
    return 0


@ctypes.CFUNCTYPE(INT, ctypes.POINTER(POINTER))
def context(into: Any) -> int:
    into[0] = 99
    return 0


@ctypes.CFUNCTYPE(INT, ctypes.POINTER(ctypes.c_uint64))
def clock(into: Any) -> int:
    into[0] = 1
    return 0


@ctypes.CFUNCTYPE(INT, POINTER, POINTER, ctypes.c_uint8, ctypes.POINTER(ctypes.c_uint32))
def stream_number(context: Any, stream: Any, per_thread: int, into: Any) -> int:
    into[0] = 7
    return 0 if stream else 1


def address(function: Any) -> int:
    return ctypes.cast(function, POINTER).value


class Hostile:
    """Calls ``does`` whenever it is asked anything."""

    does: Callable[[], Any] = staticmethod(lambda: None)

    def __bool__(self) -> bool:
        Hostile.does()
        return True

    def __eq__(self, other: object) -> bool:
        Hostile.does()
        return True

    def __hash__(self) -> int:
        Hostile.does()
        return 5

    def __index__(self) -> int:
        Hostile.does()
        return 4

    def __call__(self, *_: Any) -> Any:
        Hostile.does()
        return self

    def __del__(self) -> None:
        Hostile.does()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        Hostile.does()
        return self


class Memory:
    def __init__(self) -> None:
        self.tags: Any = {Hostile()}


class Array:
    """Stands for cupy.ndarray."""

    def __init__(self, shape: Any, at: int) -> None:
        self.shape, self.strides, self.dtype = shape, (2 * shape[1], 2), "float16"
        self.data = SimpleNamespace(ptr=at, device_id=0, mem=Memory())


class Fixed:
    """One whose attributes cannot be set, so that it is known by itself."""

    def __init__(self, shape: Any, at: int) -> None:
        self.shape, self._at, self._memory = shape, at, Memory()

    strides = property(lambda self: (2 * self.shape[1], 2))
    dtype = property(lambda self: HALF)
    data = property(lambda self: Pointer(self._at, self._memory))


HALF = "float16"


class Fresh(Fixed):
    """One whose dtype nobody else keeps."""

    dtype = property(lambda self: "".join(["float", "16"]))


class Data(ctypes.Structure):
    """CUpti_CallbackData, as far as it is read."""

    _fields_ = (
        ("site", INT), ("rest", POINTER * 6), ("kept", POINTER), ("correlation", ctypes.c_uint32),
    )  # fmt: skip


class Pointer:
    def __init__(self, at: int, memory: Any) -> None:
        self._all = at, memory

    ptr = property(lambda self: self._all[0])
    device_id = property(lambda self: 0)
    mem = property(lambda self: self._all[1])


ROLES = bytes([0, 1, 2, 4 | 2, 16, 8 | 2, 2 | 1, 32 | 2 | 1, 32 | 4 | 2 | 1])
"""What calls of the driver are about, as ``_launches.c`` knows it."""
KINDS = ((Array, SimpleNamespace), (Fixed, Pointer), (Fresh, Pointer))


class Stream:
    """Stands for gpuscope's."""

    def __init__(self) -> None:
        self.lane = self.graph = None
        self.closed, self.tag = False, object()

    def hold(self, *_: Any) -> None:
        pass

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 7)


class Raw:
    handle: Any = 9


class Served:
    """A module to which everything was served, and objects of its types."""

    def __init__(self, array: type = Array, pointer: type = SimpleNamespace) -> None:
        self.module = module = another()
        self.slot = types.ModuleType("slot")
        vars(self.slot).update(
            of_thread=threading.local(), accepted={int, Stream}, never=object(), left=object(),
            watchers=(),
        )  # fmt: skip
        self.names = {
            "heard": 1, "running": (1,),
            "range_of": lambda name: (name, None, lambda _: None, lambda: None),
        }  # fmt: skip
        module.serve_guards(
            self.slot, asyncio._get_running_loop, lambda _: [], handles.BoundLibrary
        )
        module.serve_ranges(self.names, self.names, self.names)
        addresses = (*[address(nothing)] * 4, address(context))
        module.serve_products((array, pointer, Memory, Stream), addresses)
        module.serve_events(Raw, Raw, address(nothing))
        note = module.serve_launches(
            address(clock), address(stream_number), address(nothing), ROLES
        )
        self.note = ctypes.CFUNCTYPE(None, POINTER, INT, ctypes.c_uint32, POINTER)(note)
        module.limit_launches(1 << 20)

        class Guard(module.Guard):
            def _check(self, stream: Any) -> None:
                Hostile.does()

            def _enter(self) -> Any:
                return self.stream, self._bound, self._unused

            def _exit(self) -> Any:
                return self._before

            def _tell_entered(self) -> None:
                Hostile.does()

            _tell_left = _tell_entered

        class Range(module.Range):
            def _check(self, name: Any) -> Any:
                return name

            def _begin_rows(self) -> None:
                self._open = [1]
                Hostile.does()

            def _end_rows(self) -> None:
                self._open = None
                Hostile.does()

        self.Guard, self.Range = Guard, Range
        self.stream, self.local = Stream(), threading.local()
        self.local.native = module.BlasHandle(5)
        self.calls = SimpleNamespace(observers=())
        self.workspace = module.Workspace("memory", 1, 64, 7)
        self.product = module.Product(
            (False, False, 4, 6, 5, 5, 6), (2, 68, 16, 32), (48, 40, 60, 0, 0)
        )
        self.plan = SimpleNamespace(quick=self.product)
        self.arrays = [
            array(shape, at) for shape, at in (((4, 6), 0x1000), ((4, 5), 0x2000), ((5, 6), 0x3000))
        ]
        self.lane()

    def lane(self) -> None:
        self.stream.lane = self.module.Lane(
            self.workspace, self.calls, self.local, self.stream.tag, 0, 16
        )

    def use(self) -> None:
        """What a program does, all of it."""
        module, stream = self.module, self.stream
        with self.Guard(stream), self.Range("name"):
            module.know(*self.arrays, self.product)
            module.mm_out(*self.arrays, None)
        with self.Guard(7, bind=True):
            pass
        module.mm_out(*self.arrays, stream)
        module.multiply(self.local.native, self.workspace, 8, self.product, (1, 2, 3))
        module.multiply_on(stream, self.plan, (1, 2, 3), 8, 1)
        module.record(Raw(), Raw())
        for callback in range(len(ROLES)):
            for stream in ((ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 2)(9, 8)):
                rest = (POINTER * 6)(None, ctypes.addressof(stream))
                for site in (0, 1):
                    data = Data(site=site, rest=rest, correlation=5)
                    self.note(None, 1, callback, ctypes.byref(data))
        module.take_launches([], lambda: 1)
        self.lane()


def wrong_values(served: Served) -> list[Any]:
    """One of every kind that there is."""
    module = served.module
    return [
        None, True, 0, -1, 1 << 70, 2.5, "text", b"bytes", (), (1, 2, 3, 4), [], [(1, 2, 3, 4)],
        [None], {}, {1}, object(), int, Hostile(), lambda *_: None, served.stream, served.workspace,
        served.product, served.local.native, served.stream.lane, served.plan, *served.arrays,
        module.Guard.__new__(module.Guard), module.Range.__new__(module.Range),
        served.Guard.__new__(served.Guard), served.Range.__new__(served.Range), served.Guard(7),
        served.Range("name"), module,
        [handles.BoundLibrary("CuPy", int, 0, int)], [handles.BoundLibrary("CuPy", Hostile(), 0, Hostile())],
    ]  # fmt: skip


SERVING = {"serve_guards", "serve_ranges", "serve_products", "serve_events", "serve_launches",
           "serve_graphs"}  # fmt: skip


def functions_of(module: ModuleType) -> list[Any]:
    return [value for name, value in vars(module).items() if callable(value)]


def wrong_calls(rng: random.Random, rounds: int) -> None:
    """Everything with arguments of every kind, before and after all was served."""
    for is_served in (False, True):
        served = Served()
        module = served.module if is_served else another()
        values = wrong_values(served)
        for function in functions_of(module):
            # Whole numbers are addresses to these, which are called.
            given = [
                value
                for value in values
                if function.__name__ not in SERVING or not isinstance(value, int | Hostile)
            ]
            attempt(function)
            for value in given:
                attempt(function, value)
                attempt(function, stream=value, name=value)
            for _ in range(rounds):
                attempt(function, *(rng.choice(given) for _ in range(rng.randint(2, 6))))
        for kind in (module.Guard, module.Range):
            made = kind.__new__(kind)
            for call in (made.__enter__, made.__exit__, made.__init__):
                attempt(call)


def methods(made: Any) -> list[Callable[[], Any]]:
    return [
        made.__enter__, made.__exit__, lambda: made.__init__(7), lambda: made.__init__("name"),
        lambda: made.__exit__(None, None, None), gc.collect,
    ]  # fmt: skip


def names_in(made: Any) -> list[str]:
    kinds = [kind for kind in type(made).__mro__ if kind.__module__ == "gpuscope._fastpath"]
    return [
        name
        for kind in kinds
        for name, value in vars(kind).items()
        if type(value) is types.MemberDescriptorType
    ]


def wrong_attributes(rng: random.Random) -> None:
    """Every attribute deleted and replaced, then every method called."""
    served = Served()
    values = wrong_values(served)
    for make in (
        lambda: served.Guard(7), lambda: served.Guard(7, bind=True), lambda: served.Range("name"),
        lambda: served.Guard.__new__(served.Guard), lambda: served.Range.__new__(served.Range),
        lambda: served.workspace, lambda: served.stream.lane, lambda: served.local.native,
    ):  # fmt: skip
        for name in names_in(make()):
            for entered, value in itertools.product((False, True), ["delete", *values]):
                made = make()
                if entered and hasattr(made, "__enter__"):
                    attempt(made.__enter__)
                if value == "delete":
                    attempt(delattr, made, name)
                else:
                    attempt(setattr, made, name, value)
                if hasattr(made, "__enter__"):
                    calls = methods(made)[:-1]
                    for call in rng.sample(calls, len(calls)):
                        attempt(call)
                vars(served.slot.of_thread).clear()
    for owner, name in [
        *((array, name) for array in served.arrays for name in vars(array)),
        *((served.arrays[0].data, name) for name in ("ptr", "device_id", "mem")),
        *((served.stream, name) for name in vars(served.stream)),
        (served.plan, "quick"), (served.calls, "observers"), (served.local, "native"),
        *((served.slot, name) for name in vars(served.slot)), (Memory, "tags"),
    ]:  # fmt: skip
        before = getattr(owner, name, None)
        for value in ("delete", *values):
            attempt(delattr, owner, name) if value == "delete" else setattr(owner, name, value)
            attempt(served.use)
        setattr(owner, name, before)
    for key in list(served.names):
        before = served.names[key]
        for value in values:
            served.names[key] = value
            attempt(served.use)
        del served.names[key]
        attempt(served.use)
        served.names[key] = before
    attempt(served.use)


def interfering(rng: random.Random, served: Served, targets: list[Any]) -> Callable[[], None]:
    """What now and then takes something away that C may be using."""
    values, depth = wrong_values(served), 0
    others = SimpleNamespace(of_thread=threading.local(), accepted=set(), never=1, left=2)
    actions: list[Callable[[], Any]] = [
        served.use,
        gc.collect,
        lambda: served.names.pop("range_of", None),
        lambda: served.names.update(running=(), heard=Hostile()),
        lambda: served.module.serve_ranges({}, {}, {}),
        lambda: served.module.serve_guards(others, Hostile(), Hostile(), tuple),
        lambda: vars(served.slot.of_thread).clear(),
        lambda: served.module.take_launches([], Hostile()),
    ]

    def interfere() -> None:
        nonlocal depth
        if depth > 2 or rng.random() < 0.7:
            return
        depth += 1
        target = rng.choice([*targets, served.stream, *served.arrays, served.plan])
        names = [*names_in(target), *getattr(target, "__dict__", ())]
        if names and rng.random() < 0.5:
            attempt(delattr, target, rng.choice(names))
        elif names:
            attempt(setattr, target, rng.choice(names), rng.choice(values))
        attempt(rng.choice(actions))
        depth -= 1

    return interfere


def in_the_middle(rng: random.Random, kinds: tuple[type, type]) -> None:
    """Whatever Python is asked meanwhile takes things away that C is using."""
    served = Served(*kinds)
    guards = [served.Guard(served.stream), served.Guard(7, bind=Hostile())]
    span = served.Range("name")
    interfere = interfering(rng, served, [*guards, span])
    served.slot.watchers = Hostile()
    served.calls.observers = Hostile() if rng.random() < 0.3 else ()
    served.names["running"] = Hostile()
    served.names["range_of"] = lambda _: (interfere(), Hostile(), Hostile(), Hostile())
    bound = [handles.BoundLibrary("CuPy", Hostile(), Hostile(), Hostile())] * 2
    loop = rng.choice([asyncio._get_running_loop, interfere])
    served.module.serve_guards(served.slot, loop, lambda _: list(bound), handles.BoundLibrary)
    Hostile.does = interfere
    sys.modules["cupy"] = rng.choice([Hostile(), ModuleType("cupy")])
    try:
        for call in [
            *(guard.__enter__ for guard in guards), span.__enter__, served.use, span.__exit__,
            *(guard.__exit__ for guard in guards), lambda: served.Range("another"),
            lambda: served.Guard(Hostile(), bind=Hostile()), served.use,
        ]:  # fmt: skip
            attempt(call)
    finally:
        Hostile.does = lambda: None
        del sys.modules["cupy"]


def chains() -> None:
    """Objects that keep one another, more than the stack is deep."""
    served = Served()
    for kind in (served.module.Guard, served.Guard, served.module.Range, served.Range):
        last = None
        name = "_before" if issubclass(kind, served.module.Guard) else "_open"
        for _ in range(200_000):
            made = kind.__new__(kind)
            setattr(made, name, last)
            last = made
        del last, made
    lane = served.stream.lane
    for _ in range(200_000):
        lane = served.module.Lane(served.workspace, lane, None, None, 0, 1)
    del lane


def kept_references() -> None:
    """What a program does, and what is refused, keeps nothing."""
    for kinds in KINDS[:2]:  # an entry of its own for each dtype that is fresh is no leak
        served = Served(*kinds)
        values = wrong_values(served)
        watched = [None, *values, served.module, served.stream.tag, *map(type, values)]

        def once(served: Served = served) -> None:
            served.use()
            for kind in (served.Guard, served.Range):
                attempt(kind.__new__(kind).__enter__)
                attempt(kind, "not accepted", bind=Hostile())
            attempt(served.module.know, *served.arrays, None)
            attempt(served.module.Lane, None, None, None, None, 0, 0)
            attempt(served.module.take_launches, (), None)

        for _ in range(10):
            once()
        gc.collect()
        blocks = sys.getallocatedblocks()
        counts = [sys.getrefcount(one) for one in watched]
        for _ in range(300):
            once()
        gc.collect()
        grown = [sys.getrefcount(one) - count for one, count in zip(watched, counts, strict=True)]
        assert max(grown) < 100, [
            (one, more) for one, more in zip(watched, grown, strict=True) if more >= 100
        ]
        assert sys.getallocatedblocks() - blocks < 100, sys.getallocatedblocks() - blocks


def modules_go() -> None:
    """A module that nobody uses is collected, with all that was served to it."""
    served = Served(Fixed, Pointer)
    served.use()
    gone = [weakref.ref(one) for one in (served.module, served.Guard, served.stream)]
    gone += [weakref.ref(array) for array in served.arrays]
    del served
    gc.collect()
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone), [one() for one in gone]


def main() -> int:
    rng, rounds = random.Random(int(sys.argv[1])), int(sys.argv[2])  # noqa: S311 - no secret
    wrong_calls(rng, rounds)
    wrong_attributes(rng)
    for number in range(rounds):
        in_the_middle(rng, KINDS[number % len(KINDS)])
    chains()
    kept_references()
    modules_go()
    return 0


if __name__ == "__main__":
    sys.exit(main())
