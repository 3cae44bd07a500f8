"""Try one format's damaged files; ``scripts/fuzz.py`` calls it for each format.

python tests/try_mutants.py FORMAT SEED MOST FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import mutants
import trace_chain

import gpuscope as gs

PAGES = 16
SECONDS = 20
MEGABYTES = 512
MISTAKES = (KeyError, IndexError, AttributeError, NameError, ZeroDivisionError, AssertionError,
            MemoryError)  # fmt: skip
"""What a reader that thought of everything does not stumble over."""


class Progress:
    """What was done with one format's mutants, in a file.

    Attributes
    ----------
    facts
        ``at``, the mutant being tried; ``done``; how many ``loaded``, how many of these
        ``differ``; ``seconds``; ``failed``, number → why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.facts = {"at": None, "done": 0, "loaded": 0, "differ": 0, "seconds": 0.0, "failed": {}}
        if self._path.exists():
            self.facts |= json.loads(self._path.read_text())

    def save(self, **changes) -> None:
        """Note changes."""
        self.facts |= changes
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.facts, indent=1))
        temporary.replace(self._path)

    def keep(self, number: int, why: str | None, content: bytes) -> None:
        """Note that a mutant failed, with its file, or that it no longer does."""
        failed = dict(self.facts["failed"])
        file = self._path.with_name(f"{self._path.stem}-{number}")
        if why is None:
            failed.pop(str(number), None)
            file.unlink(missing_ok=True)
        else:
            failed[str(number)] = why
            file.write_bytes(content)
        self.facts["failed"] = failed


def tried(path: Path, seen: set[bytes], *, whole: bool) -> tuple[bool, bool]:
    """Load a file and do with it all that can be done; returns whether it loads, and is new."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    trace, refused, new = None, None, False
    try:
        trace = gs.load_trace(path)
    except gs.errors.GpuscopeError as error:
        refused = error
    assert refused is None or str(refused), "an error that says nothing"
    assert not isinstance(getattr(refused, "__cause__", None), MISTAKES), repr(refused.__cause__)
    if trace is not None:
        told = [
            repr(trace.spans.to_pydict()),
            repr(trace.edges.to_pydict()),
            trace.metadata.to_json(),
        ]
        key = hashlib.sha256("\0".join(told).encode("utf-8", "replace")).digest()
        new = key not in seen
        seen.add(key)
    if new:
        trace_chain.through(trace, path.parent, whole=whole)
    assert time.process_time() - started < SECONDS, "it takes long"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"it takes {grown:.0f} MB"
    return trace is not None, new


def work(form: str, seed: int, most: int, kept: Path) -> None:
    """Try one format's mutants from where the last call stopped."""
    os.environ["PATH"] = ""  # no nsys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    progress = Progress(kept / f"{form}-{seed}.json")
    facts = progress.facts
    seen: set[bytes] = set()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - made by mkdtemp
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        files = mutants.whole(folder)[form]
        path = folder / f"file.{form}"

        def one(number: int) -> tuple[bool, bool]:
            content = mutants.mutant(form, files, seed, number)
            if facts["at"] == number:
                progress.keep(number, "it ended the process", content)
                return False, False
            progress.save(at=number)
            path.write_bytes(content)
            why = None
            found = True, True
            try:
                found = tried(path, seen, whole=number % PAGES == 0)
            except Exception as error:  # noqa: BLE001 - whatever it is
                frames = traceback.extract_tb(error.__traceback__)[-4:]
                places = " < ".join(
                    f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames[::-1]
                )
                why = f"{type(error).__name__}: {str(error)[:300]} | {places}"
            progress.keep(number, why, content)
            return found

        try:
            for number in [int(one) for one in facts["failed"]]:
                one(number)
            while facts["done"] < most:
                started = time.monotonic()
                loaded, new = one(facts["done"])
                progress.save(
                    at=None, done=facts["done"] + 1, loaded=facts["loaded"] + loaded,
                    differ=facts["differ"] + new,
                    seconds=facts["seconds"] + time.monotonic() - started,
                )  # fmt: skip
        finally:
            progress.save(at=None)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
