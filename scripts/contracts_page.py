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
            "Without a guard `get_caller_stream()` is `None`.",
            "Entering selects; leaving restores what was there before, also on an exception.",
            "Guards nest: the innermost wins.",
            "A null stream and the per-thread stream are selections, not `None`.",
            "A selection belongs to one thread and one asyncio task.",
            "No copies, no pickles; entering twice, leaving twice or elsewhere changes nothing.",
            "Pure state: no device is touched, nothing is owned.",
            "One slot a process: across reloads and second copies of the package.",
            "Takes gpuscope streams, `__cuda_stream__` and integers; returns the very object.",
            "`bind=` for CuPy and PyTorch where they are imported; not across an `await`.",
            "A C function in a capsule reads the slot ([how](native.md)).",
            "Apart from it: a current stream for each thread and device.",
            "A backend call installs its stream and restores or clears, also on an error.",
            "With a handle's own graph replay: refused before any state changes.",
        ),
    ),
    Contract(
        "B", "handle", "Reusable handles", "Torch-TensorRT #4314 (engine on the caller's stream)",
        (
            "Owns no stream: explicit, else the caller's, else the thread's, else the default.",
            "With a stream selected `execute()` returns at once, in flight.",
            "With an operand in host memory it waits.",
            "Reuse is safe without the caller waiting, and the host does not wait for it.",
            "Closing and collection wait for the event, not for the stream, and never raise.",
            "If the event cannot be recorded the stream is synchronised, and the error raised.",
            "A copy that fails after the launch still drains the stream.",
            "The current device is switched only when it differs, and restored on every way out.",
            "A lock serialises `execute()`; `max_in_flight=N` lets N calls overlap.",
            "Errors for a wrong stream name the cause and the call that fixes it.",
            "A partition that cannot be made is an error; what was granted is told as granted.",
        ),
    ),
    Contract(
        "C", "scratch", "Scratch memory", "ONNX Runtime #29244 (stream-tagged scratch)",
        (
            "A workload's function gets a context with `stream` and `scratch`, for that call.",
            "Scratch is tagged with the call's stream; unknown handles give untagged memory.",
            "The map from handle to stream is of this call only, and empty after it.",
            "Contexts nest and restore; outside any call scratch is untagged.",
            "Freed memory is reused on its stream at once, elsewhere only after a wait.",
            "Zero bytes allocate nothing; negative and overflowing sizes raise.",
            "After warm-up no new memory; under capture it is taken before.",
            "The capability is true only where stream-tagged allocation is there.",
        ),
    ),
    Contract(
        "D", "streams", "Streams and events", "Quadrants #407 (streams and events)",
        (
            "`with` waits, then destroys; partitions own their streams; a forgotten one warns.",
            "A stream made from somebody else's handle is never destroyed.",
            "Closed streams and events raise, and never fall through to the default.",
            "A launch sets the thread's current stream and restores the previous one.",
            "Record, wait, synchronise, `elapsed_ns`; timing is on unless asked off.",
            "A device that is gone: using raises, destroying is silent, also at the very end.",
            "Any thread may use any stream.",
            "Two threads launching one workload share no argument or workspace memory.",
            'On `open_device("cpu")` every operation works and does nothing.',
            "Two streams that should overlap do.",
            "Every launch takes a keyword-only `stream=`.",
            "Event times over long spans and across partitions.",
        ),
    ),
    Contract(
        "E", "mm_out", "`mm_out(out, a, b)`", "ExecuTorch #19360 (cuBLAS `mm_out`)",
        (
            "Checks in one order; each error names the argument, what was found and is needed.",
            "Dtypes and accumulation; NaNs in `out` do not survive; empty sizes.",
            "Row-major, column-major and transposed views are not copied; other strides are.",
            "Picks its stream as B1; returns without waiting when one is selected.",
            "One cuBLAS handle a thread and device, a workspace a stream; can be captured.",
            "CuPy, `__cuda_array_interface__` and DLPack without a copy.",
            "Exact on small integers; within the bounds of a float64 reference.",
        ),
    ),
)  # fmt: skip

HEAD = """# The stream contracts, rule by rule

Five published designs say how work should land on the stream its caller chose. gpuscope
implements them; each rule has tests that carry its number, `test_guard_03_…` for A3.

Generated from the test tree by `python scripts/contracts_page.py`; do not edit. *Where* says
what a rule's tests run on: the simulated GPU (sim), `open_device("cpu")` (cpu), a real GPU
(GPU; `make test-gpu`), or no device at all (none), which includes stand-ins for drivers and
libraries.
"""

NOTES = """## How rules are read

- D6: leaving `with`, and `close()`, wait for the stream's work first; on a device that is gone
  it is this wait that raises. What follows, the destroying, is silent, and so are destructors.
  At the interpreter's end nothing is said: no traceback, and no ResourceWarning either.
- A3: a guard left on its thread and in its task while one entered later is active, as by a
  generator that is closed early, is taken out: the innermost still wins, and what its exit
  restores is the next guard outside it that is still active.
- A10: a simulated stream is none of CuPy's or PyTorch's, and leaves theirs as they are. A bound
  guard left out of order raises, and selects no more; CuPy and PyTorch get their streams back
  when the next guard inside it is left.
- A12: a stream that `get_current_stream` created belongs to the registry: it needs no closing.
- E6: sharing memory by DLPack queues no waits between streams. Which stream follows which is the
  caller's choice, as everywhere. Where a CUDA array interface names a stream, as its version 3
  lets it, the call's stream waits for that one by an event; the host does not.
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
        parts = {}
        for node in ast.parse(text).body:
            source = ast.get_source_segment(text, node) or ""
            uses = set(re.findall(r"\w+", source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [
                    ast.get_source_segment(text, one) or "" for one in node.decorator_list
                ]
                marks = "\n".join(decorators)
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
