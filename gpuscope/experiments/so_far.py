"""What recorded programs left, read in another process: while they run, or after a crash.

python -P -m gpuscope.experiments.so_far FOLDER  makes those of processes that were killed unwatched
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from gpuscope import _foreign
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.recorded import JOURNAL, ProcessFacts
from gpuscope.record.cupti.journal import JournalReader
from gpuscope.trace.model import Trace
from gpuscope.trace.store import save_trace

SO_FAR = ".so-far.parquet"


def read_facts(folder: Path) -> tuple[dict[Path, ProcessFacts], list[Path]]:
    """Return what the processes of a program said so far, in the order of their beginning.

    Returns
    -------
    dict, list
        File → what it says; files that no process of ours wrote, or that cannot be read.
    """
    every: dict[Path, ProcessFacts] = {}
    unreadable: list[Path] = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.name):
        try:
            every[path] = msgspec.convert(_foreign.load(path), ProcessFacts)
        except (OSError, ValueError, msgspec.MsgspecError):
            unreadable.append(path)
    return every, unreadable


class SoFar:
    """Writes what there is of a program's journals beside them, as traces.

    Parameters
    ----------
    folder
        Where the program's processes write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[Path, tuple[JournalReader, int]] = {}
        """Journal → what reads it, and how many bytes it had."""
        self._kinds: dict[Path, Counter[str]] = {}

    def save(self) -> Counter[str]:
        """Write anew what grew; returns how many rows of each kind all journals have."""
        journals = sorted(self._folder.glob(f"*{JOURNAL}"))
        for ended in self._readers.keys() - set(journals):
            del self._readers[ended], self._kinds[ended]
        for path in journals:
            try:
                self._save(path)
            except Exception:  # noqa: BLE001 - it is being written, or foreign: the end tells
                self._readers.pop(path, None)
                self._kinds.pop(path, None)
        return sum(self._kinds.values(), Counter())

    def _save(self, path: Path) -> None:
        nbytes = path.stat().st_size
        reader, before = self._readers.get(path) or (JournalReader(path), -1)
        if nbytes == before:
            return
        trace = reader.read(over=False)
        self._readers[path] = reader, nbytes
        self._kinds[path] = Counter(trace.kind_counts())
        if len(trace) and path.exists():
            save_trace(trace, path.with_suffix(SO_FAR))


def last_trace(path: Path, facts: ProcessFacts | None) -> Trace:
    """Return the trace of a journal whose process is gone, which says what it lacks.

    Parameters
    ----------
    facts
        What the process said, if that is there.

    Raises
    ------
    TraceFormatError
        It cannot be read.
    """
    reader = JournalReader(path)
    return cut_short(reader.read(over=True), reader.written_ns, facts)


def cut_short(trace: Trace, at_ns: int, facts: ProcessFacts | None) -> Trace:
    """Return a trace that is of a moment before its process ended, and says so and why."""
    when = time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))
    why = "the process was killed or crashed"
    if facts is not None and facts.ended:
        why = "its last trace could not be written"
    note = f"{why}: what it did after {when} is not here"
    return trace.with_metadata(complete=False, notes=(*trace.metadata.notes, note))


def main(folder: Path) -> int:
    """Make the last trace of each journal that has none; returns 1 if one cannot be read."""
    status = 0
    facts_of = {path.stem: facts for path, facts in read_facts(folder)[0].items()}
    for journal in sorted(folder.glob(f"*{JOURNAL}")):
        trace = journal.with_suffix(".parquet")
        if trace.exists():  # whole: its process was killed before it removed the journal
            continue
        try:
            last = last_trace(journal, facts_of.get(journal.stem.rpartition("-")[0]))
            sys.stdout.write(f"wrote {save_trace(last, trace)}\n")
        except GpuscopeError as error:
            sys.stderr.write(f"{error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
