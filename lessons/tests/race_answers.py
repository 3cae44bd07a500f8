"""Answers to the exercises of lesson 11: what mends its races, and what only hides them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playing import cells

import gpuscope_lessons as learn

NAME = "11_find_the_race.ipynb"
TASKS = {cell["id"]: cell["source"] for cell in cells(NAME) if cell["id"].startswith("task-")}
Change = Callable[[str], str]
"""An exercise's source → the source with something changed."""


def swap(old: str, new: str) -> Change:
    """Put one text in the place of another, once."""

    def change(source: str) -> str:
        assert old in source, old
        return source.replace(old, new, 1)

    return change


def put(new: str, *, before: str = "", behind: str = "") -> Change:
    """Put a line before, or behind, the first one that begins so."""

    def change(source: str) -> str:
        lines = source.splitlines()
        at = next(at for at, line in enumerate(lines) if line.strip().startswith(before or behind))
        (indentation,) = re.findall(r"^ *", lines[at])
        lines.insert(at if before else at + 1, indentation + new)
        return "\n".join(lines) + "\n"

    return change


def drop(line: str) -> Change:
    """Leave out the first line that begins so."""

    def change(source: str) -> str:
        lines = source.splitlines()
        del lines[next(at for at, one in enumerate(lines) if one.strip().startswith(line))]
        return "\n".join(lines) + "\n"

    return change


SOLVED: dict[str, list[Change]] = {
    "offload": [put("store.wait(compute.record())", before="store.copy")],
    "export": [
        put("done = compute.record()", behind="compute.copy"),
        put("done.synchronize()", before="return"),
    ],
    "upload": [
        swap("keys, values, staging = host(), host(), page()", "keys, values = host(), host()"),
        put("first, second = page(keys), page(values)", behind="keys, values"),
        drop("staging[:]"), drop("staging[:]"), swap("k, staging", "k, first"),
        swap("v, staging", "v, second"),
    ],
    "reload": [
        drop("for kv, out, saved in blocks"), drop("work("),
        put('work("attention", compute, out, kv)', before="load.copy"),
        put("load.wait(compute.record())", before="load.copy"),
    ],
    "gather": [
        put("for stream in (left, right):", before='work("join"'),
        put("    both.wait(stream.record())", before='work("join"'),
    ],
    "count": [swap('"fill", legacy', '"fill", queue')],
    "stash": [put("main.wait(side.record())", behind="side.copy")],
    "decode": [
        put("load.wait(compute.record())", before="load.copy"),
        put("compute.wait(load.record())", before="step.launch"),
    ],
}  # fmt: skip
"""The solutions that the hints end with."""

RIGHT: list[tuple[str, list[Change]]] = [
    ("offload", [  # the event made beforehand, the copy launched last
        drop("store.copy"), put("done = gpu.create_event()", before='work("decode'),
        put("compute.record(done)", before='work("decode'),
        put("store.wait(done)", behind='work("decode'), put("store.copy(saved, kv)", before="return"),
    ]),
    ("export", [  # the host asks until the copy is done
        put("done = compute.record()", behind="compute.copy"),
        put("while not done.is_done:", before="return"),
        put("    gpu.backend.wait_until_ns(gpu.now_ns() + 50_000)", before="return"),
    ]),
    ("upload", [  # two halves of one buffer
        swap("page()", "gpu.empty_pinned(2 * SIZE)"), swap("staging[:] = keys", "staging[:SIZE] = keys"),
        swap("k, staging", "k, staging[:SIZE]"), swap("staging[:] = values", "staging[SIZE:] = values"),
        swap("v, staging", "v, staging[SIZE:]"),
    ]),
    ("reload", [  # all events first, then all waits
        put("events = []", behind="blocks ="),
        put("events.append(compute.record())", behind="work("),
        put("load.wait(events.pop(0))", before="load.copy"),
    ]),
    ("gather", [put("both.wait(ready)", behind="left.record")]),  # before it is recorded again
    ("gather", [  # left waits for right, and join for left
        swap("both.wait(ready)", "left.wait(ready)"),
        put("both.wait(left.record())", before='work("join'),
    ]),
    ("count", [put("queue.wait(legacy.record())", before='work("histogram')]),
    ("count", [swap('"histogram", queue', '"histogram", legacy')]),
    ("stash", [swap("with temporary(main) as first:", "first = zeros()\n    if True:")]),
    ("upload", [  # a host function writes the values, in the order of the stream
        drop("staging[:] = values"), drop("queue.copy(v"),
        put("queue.copy(v, staging)", before="return"),
        put("queue.host_call(lambda: np.copyto(staging, values))", before="queue.copy(v"),
    ]),
    ("decode", [swap("stream=compute", "stream=load")]),
    ("decode", [  # a buffer and a graph for each block
        swap("kv, out, saved = zeros(),", "kvs, out, saved = [zeros(), zeros()],"),
        drop("with compute"), drop("work("),
        swap("for block in saved", "for block, kv in zip(saved, kvs)"),
        put("with compute.capture() as step:", before="load.copy"),
        put('    work("attention", compute, out, kv)', before="load.copy"),
        put("compute.wait(load.record())", before="step.launch"),
    ]),
]  # fmt: skip
"""Others that are right."""

RACES, WAITED = "It still races", "Nothing races, but the host waited"
LATE, VALUES = "no longer run at the same time", "returns other values"
LAUNCHED, RAISED = "It launched", "It raised"

WRONG: list[tuple[str, list[Change], str]] = [
    ("offload", [], RACES),
    ("offload", [put("compute.synchronize()", before="store.copy")], WAITED),
    ("offload", [put("compute.record().synchronize()", before="store.copy")], WAITED),
    ("offload", [put("gpu.synchronize()", before="store.copy")], WAITED),
    ("offload", [put("compute.wait(store.record())", before="store.copy")], RACES),
    ("offload", [put("store.wait(compute.record())", before='work("write')], RACES),
    ("offload", [put("store.wait(compute.record())", before="return")], RACES),
    ("offload", [put("store.wait(store.record())", before="store.copy")], RACES),
    ("offload", [put("store.wait(gpu.create_event())", before="store.copy")], RACES),
    ("offload", [put("import time; time.sleep(0.01)", before="store.copy")], RACES),
    ("offload", [swap("store.copy", "compute.copy")], LAUNCHED),
    ("offload", [*SOLVED["offload"], drop('work("decode')], LAUNCHED),
    ("offload", [*SOLVED["offload"], put("store.copy(saved, kv)", before="return")], LAUNCHED),
    ("offload", [*SOLVED["offload"], swap("return saved", "return None")], VALUES),
    ("offload", [*SOLVED["offload"], swap("return saved", "return zeros()")], VALUES),
    ("offload", [swap("copy(saved, kv)", "copy(saved, prompt)")], VALUES),
    ("offload", [
        drop("store.copy"), put("store.wait(compute.record())", before="return"),
        put("store.copy(saved, kv)", before="return"),
    ], LATE),
    ("offload", [*SOLVED["offload"], put("compute.wait(store.record())", behind="store.copy")], LATE),
    ("export", [], RACES),
    ("export", [put("compute.synchronize()", before="return")], WAITED),
    ("export", [put("gpu.synchronize()", before="return")], WAITED),
    ("export", [put("compute.record().synchronize()", before="return")], WAITED),
    ("export", [
        put("done = compute.record()", before="compute.copy"),
        put("done.synchronize()", before="return"),
    ], RACES),
    ("export", [put("compute.synchronize()", before="compute.copy")], RACES),
    ("export", [put("compute.synchronize()", before='work("backward')], "before it launched the rest"),
    ("export", [drop('work("backward'), put("compute.synchronize()", before="return")], LAUNCHED),
    ("export", [swap("saved.copy()", "page(0).copy()")], VALUES),
    ("export", [swap("saved.copy()", "saved")], RACES),
    ("upload", [], RACES),
    ("upload", [put("queue.synchronize()", before="staging[:] = values")], WAITED),
    ("upload", [put("queue.record().synchronize()", before="staging[:] = values")], WAITED),
    ("upload", [put("queue.wait(queue.record())", before="staging[:] = values")], RACES),
    ("upload", [put("staging = staging[:]", before="staging[:] = values")], RACES),
    ("upload", [swap("k, staging", "k, keys"), swap("v, staging", "v, values")], WAITED),
    ("upload", [drop("queue.copy(k"), put("queue.copy(k, staging)", before="return")], VALUES),
    ("upload", [  # while the stream has nothing else to do
        drop('work("step'), put("queue.synchronize()", before="staging[:] = values"),
        put('work("step", queue, y, x)', before="return"),
    ], WAITED),
    ("upload", [drop("queue.copy(v"), drop("staging[:] = values")], LAUNCHED),
    ("reload", [], RACES),
    ("reload", [put("load.wait(compute.record())", before="load.copy")], LATE),
    ("reload", [
        put("ready = gpu.create_event()", behind="blocks ="),
        put("compute.record(ready)", behind="work("), put("load.wait(ready)", before="load.copy"),
    ], LATE),
    ("reload", [put("load.wait(compute.record())", before="work(")], RACES),
    ("reload", [put("compute.wait(load.record())", before="load.copy")], RACES),
    ("reload", [put("if kv is blocks[0][0]: load.wait(compute.record())", behind="work(")], RACES),
    ("reload", [put("compute.synchronize()", before="load.copy")], WAITED),
    ("reload", [swap("load.copy", "compute.copy")], LAUNCHED),
    ("reload", [*SOLVED["reload"], swap("load.copy(kv", "load.copy(out")], VALUES),
    ("gather", [], RACES),
    ("gather", [swap("both.wait(ready)", "both.wait(left.record())")], RACES),
    ("gather", [put("left.wait(ready)", before="both.wait")], RACES),
    ("gather", [put("both.wait(ready)", before="left.record")], RACES),
    ("gather", [put("left.synchronize()", before="both.wait")], WAITED),
    ("gather", [put("right.wait(ready)", before='work("right')], LATE),
    ("gather", [swap('"join", both', '"join", right')], LAUNCHED),
    ("gather", [*SOLVED["gather"], swap("both, out, halves", "both, out, x")], VALUES),
    ("count", [], RACES),
    ("count", [put("legacy.wait(queue.record())", before='work("histogram')], RACES),
    ("count", [put("queue.wait(legacy.record())", before='work("fill')], RACES),
    ("count", [put("legacy.synchronize()", before='work("histogram')], WAITED),
    ("count", [drop('work("fill')], LAUNCHED),
    ("count", [
        drop('work("fill'), put('work("fill", queue, bins, nothing)', before="return"),
    ], VALUES),
    ("stash", [], RACES),
    ("stash", [put("main.wait(side.record())", before="with temporary(main) as second")], RACES),
    ("stash", [put("main.wait(side.record())", before="side.copy")], RACES),
    ("stash", [put("side.wait(main.record())", behind="side.copy")], RACES),
    ("stash", [put("main.wait(side.record())", before='work("loss')], RACES),
    ("stash", [put("side.synchronize()", behind="side.copy")], WAITED),
    ("stash", [put("gpu.synchronize()", behind="side.copy")], WAITED),
    ("stash", [swap("side.copy", "main.copy")], LAUNCHED),
    ("stash", [
        *SOLVED["stash"],
        swap("with temporary(main) as second:", "second = first\n    if True:"),
    ], "uses memory that was freed"),
    ("decode", [], RACES),
    ("decode", [put("compute.wait(load.record())", before="step.launch")], RACES),
    ("decode", [put("load.wait(compute.record())", before="load.copy")], RACES),
    ("decode", [put("compute.wait(load.record())", before="for block")], RACES),
    ("decode", [put("load.synchronize()", before="step.launch")], RACES),
    ("decode", [
        put("load.synchronize()", before="step.launch"),
        put("compute.synchronize()", before="load.copy"),
    ], WAITED),
    ("decode", [put("compute.wait(load.record())", before="work(")], RAISED),
    ("decode", [swap("in saved", "in saved[1:]")], LAUNCHED),
]  # fmt: skip
"""Those that mend nothing, or too much: exercise, what is changed, what the check says."""


def changed(task: str, changes: list[Change]) -> str:
    """Return the source of an exercise's cell with these changes."""
    source = TASKS[f"task-{task}"]
    for change in changes:
        source = change(source)
    return source


@contextmanager
def parts(device: str) -> Iterator[dict[str, Any]]:
    """Run the cells that define the lesson's parts; yields their names."""
    names: dict[str, Any] = {}
    for cell in cells(NAME):
        if cell["id"] in ("open", "make-parts"):
            exec(cell["source"].replace("open_device()", f"open_device({device!r})"), names)  # noqa: S102 - our own notebook
    try:
        yield names
    finally:
        names["gpu"].close()


def judged(names: dict[str, Any], task: str, source: str) -> Any:
    """Return what the check of an exercise says of an answer, to somebody who tries it first."""
    names = {**names, "lesson": learn.Lesson(11, "Find the race", names["gpu"])}
    exec(source, names)  # noqa: S102 - an answer above
    check = next(cell["source"] for cell in cells(NAME) if cell["id"] == f"check-{task}")
    return eval(check.partition("\n")[2], names)  # noqa: S307
