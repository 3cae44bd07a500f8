"""Write docs/contracts.md: each rule of the stream contracts, its origin and its tests.

    python scripts/contracts_page.py [--check]

The tests are those of the test tree whose names carry a rule's number: test_guard_03_… is a
test of rule A3. With --check nothing is written; exit 1 says that the page is out of date, or
that a rule has no test.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contracts.md"
FOLDERS = ("unit", "contract", "gpu")


@dataclass(frozen=True)
class Contract:
    letter: str
    prefix: str
    title: str
    origin: str
    rules: tuple[str, ...]


CONTRACTS = (
    Contract(
        "A", "guard", "The caller's stream", "ExecuTorch #20158 (caller-stream guard)",
        (
            "Without a guard, `get_caller_stream()` returns `None`.",
            "Entering selects; leaving restores the previous selection, also after an exception.",
            "Guards nest: the innermost wins.",
            "The null stream and the per-thread default stream count as selections, not as `None`.",
            "A selection applies to one thread and one asyncio task.",
            "No copies, no pickles; entering or leaving twice or elsewhere raises without effect.",
            "A guard is pure state: it touches no device and owns nothing.",
            "One slot per process, shared across reloads and by second copies of the package.",
            "Accepts gpuscope streams, `__cuda_stream__` and integers; returns the same object.",
            "`bind=` also selects in CuPy and PyTorch, if imported; not across an `await`.",
            "Native code reads the slot through a C function in a capsule ([how](native.md)).",
            "Separately, each thread has a current stream for each device.",
            "A backend call sets the current stream, then restores or clears it, also on an error.",
            "A handle that replays its own graph refuses a selected stream; no state changes.",
        ),
    ),
    Contract(
        "B", "handle", "Reusable handles", "Torch-TensorRT #4314 (engine on the caller's stream)",
        (
            "Uses the explicit stream, else the caller's, the thread's, the default; owns none.",
            "With a stream selected, `execute()` returns at once while the work is in flight.",
            "With an operand in host memory, `execute()` waits.",
            "A handle can be reused without waiting; the host is not blocked either.",
            "`close()` and garbage collection wait for the event, not the stream, and never raise.",
            "If recording the event fails, the stream is synchronised and the error raised.",
            "A copy that fails after the launch still drains the stream.",
            "The current device is switched only if it differs, and restored on every exit path.",
            "A lock serialises `execute()`; `max_in_flight=N` allows N overlapping calls.",
            "Errors about a wrong stream name the cause and the call that fixes it.",
            "A partition that cannot be created is an error; the granted size is reported.",
        ),
    ),
    Contract(
        "C", "scratch", "Scratch memory", "ONNX Runtime #29244 (stream-tagged scratch)",
        (
            "A workload function gets a context with `stream` and `scratch`, valid for the call.",
            "Scratch is tagged with the call's stream; an unknown handle gives untagged memory.",
            "The map from handles to streams lasts for one call and is empty afterwards.",
            "Contexts nest and restore; outside any call, scratch is untagged.",
            "Freed memory is reused at once on its stream, and on others only after a wait.",
            "Zero bytes allocate nothing; negative and overflowing sizes raise.",
            "After warm-up, no call allocates; a capture uses memory allocated before it.",
            "The capability is true only if stream-tagged allocation is available.",
        ),
    ),
    Contract(
        "D", "streams", "Streams and events", "Quadrants #407 (streams and events)",
        (
            "`with` waits, then destroys; partitions own their streams; an unclosed stream warns.",
            "A stream that wraps a foreign handle is never destroyed.",
            "Closed streams and events raise; they never fall through to the default stream.",
            "A launch sets the thread's current stream and restores the previous one.",
            "Events: record, wait, synchronise, `elapsed_ns`; timing is on by default.",
            "On a lost device, use raises and destruction is silent, also at interpreter exit.",
            "Any thread may use any stream.",
            "Two threads that launch one workload share no argument or workspace memory.",
            'On `open_device("cpu")`, every stream and event operation is accepted as a no-op.',
            "Two streams that should overlap do.",
            "Every launch takes a keyword-only `stream=`.",
            "Event times hold over long spans and across partitions.",
        ),
    ),
    Contract(
        "E", "mm_out", "`mm_out(out, a, b)`", "ExecuTorch #19360 (cuBLAS `mm_out`)",
        (
            "Checks run in a fixed order; errors name the argument, what was found and required.",
            "Dtypes and accumulation are defined; NaNs in `out` are overwritten; sizes may be 0.",
            "Row-major, column-major and transposed views are used in place; others are copied.",
            "Chooses its stream as in B1; returns without waiting if one is selected.",
            "A cuBLAS handle per thread and device, a workspace per stream; can be captured.",
            "Accepts CuPy, `__cuda_array_interface__` and DLPack without a copy.",
            "Exact on small integers; otherwise within error bounds of a float64 reference.",
        ),
    ),
)  # fmt: skip

HEAD = """# The stream contracts, rule by rule

Five published designs specify how work should reach the stream that its caller chose. gpuscope
implements them. Each rule below has tests whose names carry its number: `test_guard_03_…` tests
rule A3.

This page is generated from the test tree by `python scripts/contracts_page.py`; do not edit it.
The column *where* lists what a rule's tests run on: the simulated GPU (sim), `open_device("cpu")`
(cpu), a real GPU (GPU; `make test-gpu`), or no device (none), possibly with stand-ins for drivers
and libraries.
"""

NOTES = """## Details of some rules

- **A3**: a guard may be left, on its thread and in its task, while a guard entered later is still
  active. A generator that is closed early does so. The guard is then removed. The innermost guard
  still wins, and its exit restores the next outer guard that is still active.
- **A10**: a simulated stream cannot be bound: CuPy and PyTorch keep their current streams. Leaving
  a bound guard out of order raises and ends its selection. CuPy and PyTorch get their streams back
  when the next guard inside it is left.
- **A12**: a stream that `get_current_stream` created belongs to the registry and needs no closing.
- **D6**: leaving `with`, and `close()`, first wait for the stream's work. On a lost device, this
  wait raises. The destruction that follows is silent, and so are destructors. At interpreter exit
  there is no traceback and no `ResourceWarning`.
- **E6**: sharing memory through DLPack queues no waits between streams. Ordering the streams is up
  to the caller, as everywhere. If a CUDA array interface names a stream (version 3 allows this),
  the call's stream waits for it by an event, and the host does not wait.
"""


@dataclass(frozen=True)
class Test:
    """One numbered test function."""

    name: str
    file: str
    where: tuple[str, ...]


def numbered(prefixes: tuple[str, ...]) -> dict[tuple[str, int], list[Test]]:
    """Find the numbered tests: (prefix, rule) → tests."""
    pattern = re.compile(rf"test_({'|'.join(prefixes)})_(\d\d)_\w+")
    found: dict[tuple[str, int], list[Test]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            if not pattern.search(path.read_text("utf-8")):
                continue
            module = Module(path)
            for name in module.functions:
                match = pattern.fullmatch(name)
                if match:
                    file = path.relative_to(ROOT).as_posix()
                    test = Test(name, file, module.where(name))
                    found.setdefault((match[1], int(match[2])), []).append(test)
    return found


@dataclass(frozen=True)
class Part:
    """Something at the top of a test file: its text, and what it uses."""

    text: str
    uses: frozenset[str]
    is_fixture: bool


class Module:
    """A test file: functions, classes and constants, with the fixtures of its conftest."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent.name
        parts = self._read(path)
        self.functions = [name for name in parts if name.startswith("test_")]
        self.gpu_only = "pytestmark" in parts and "mark.gpu" in parts["pytestmark"].text
        conftest = path.parent / "conftest.py"
        self.parts = {**(self._read(conftest) if conftest.exists() else {}), **parts}

    @staticmethod
    def _read(path: Path) -> dict[str, Part]:
        text = path.read_text("utf-8")
        lines = text.splitlines()
        parts = {}
        for node in ast.parse(text).body:
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            uses = set(re.findall(r"\w+", source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = "\n".join(
                    "\n".join(lines[mark.lineno - 1 : mark.end_lineno])
                    for mark in node.decorator_list
                )
                uses |= set(re.findall(r"\w+", marks)) | {
                    f"fixture {argument.arg}" for argument in node.args.args
                }
                uses |= {f"fixture {one}" for one in re.findall(r"usefixtures\(\W(\w+)", marks)}
                part = Part(f"{marks}\n{source}", frozenset(uses), "fixture" in marks)
                parts[node.name] = part
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                parts[node.targets[0].id] = Part(source, frozenset(uses), is_fixture=False)
            elif isinstance(node, ast.ClassDef):
                parts[node.name] = Part(source, frozenset(uses), is_fixture=False)
        return parts

    def _closure(self, name: str) -> str:
        """The text of a test and of everything that it uses."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                for use in self.parts[one].uses:
                    kind, _, used = use.rpartition(" ")
                    if used in self.parts and self.parts[used].is_fixture == bool(kind):
                        waiting.append(used)
        return "\n".join(self.parts[one].text for one in seen)

    def where(self, name: str) -> tuple[str, ...]:
        if self.gpu_only or self.folder == "gpu":
            return ("GPU",)
        text = self._closure(name)
        found = []
        if "sim:h200" in text or "SimBackend(" in text:
            found.append("sim")
        if re.search(r"""["']cpu["']""", text):
            found.append("cpu")
        if "mark.gpu" in text:
            found.append("GPU")
        return tuple(found) or ("none",)


ORDER = ("none", "sim", "cpu", "GPU")


def page() -> tuple[str, list[str]]:
    """Return the page, and what is wrong with the rules."""
    tests = numbered(tuple(contract.prefix for contract in CONTRACTS))
    lines, wrong = [HEAD], []
    for contract in CONTRACTS:
        lines += [f"## {contract.letter}. {contract.title}", "", f"Origin: {contract.origin}.", ""]
        lines += ["| rule | | where | tests |", "| --- | --- | --- | --- |"]
        listed = ["", "Tests:", ""]
        for number, rule in enumerate(contract.rules, 1):
            name = f"{contract.letter}{number}"
            mine = tests.pop((contract.prefix, number), [])
            if not mine:
                wrong.append(f"{name} has no test named test_{contract.prefix}_{number:02}_…")
            places = {place for test in mine for place in test.where}
            where = ", ".join(place for place in ORDER if place in places)
            lines.append(f"| {name} | {rule} | {where} | {len(mine)} |")
            files: dict[str, list[str]] = {}
            for test in mine:
                files.setdefault(test.file, []).append(test.name)
            for file, names in files.items():
                text = ", ".join(f"`{one}`" for one in names)
                listed.append(f"- {name}, [{file}](../{file}): {text}")
        lines += [*listed, ""]
    for prefix, number in tests:
        wrong.append(f"there is no rule for tests named test_{prefix}_{number:02}_…")
    return "\n".join([*lines, NOTES]), wrong


def main() -> int:
    text, wrong = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text("utf-8") != text:
            wrong.append("docs/contracts.md is out of date: run python scripts/contracts_page.py")
    else:
        PAGE.write_text(text, "utf-8")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
