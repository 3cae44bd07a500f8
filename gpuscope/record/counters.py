"""Samples hardware counters of GPUs while a recording goes on, by processes apart.

Each runs ``_counters.c``: CUPTI's sampling of counters refuses partitions in a process in which it
was initialised, so nothing of it is loaded into the program. A GPU has one sampler at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpuscope._compiled import program
from gpuscope._libcupti import NVTX_INJECTION, library_path
from gpuscope._types import Array
from gpuscope.errors import GpuscopeError
from gpuscope.record.counter_rows import Steps, counter_rows
from gpuscope.record.rows import Batch, Rows, keep, together
from gpuscope.record.sampler import Gpus
from gpuscope.trace.counters import BUSY, LOST, READ, TENSOR, WRITTEN

EVERY_NS = 100_000
"""Length of a sample where nobody says another one."""
READY_S = 10.0
"""How long a recording waits for sampling to begin; enabling takes half a second."""
_ENDS_S = 10.0
"""How long a sampler may take to decode what it has, and end."""
_HEADER = 16
_VALUES = ("sms", "tensor", "read", "written")
_RECORD = np.dtype([("start_ns", "<u8"), ("end_ns", "<u8"), *((name, "<f8") for name in _VALUES)])
"""A sample in the file, as ``_counters.c`` has it; all four values of a gap are NaN."""
_REFUSALS = {
    "administrators": "this driver keeps them for administrators (RmProfilingAdminOnly = 1)",
    "taken": "{who} samples this GPU",
    "old": "this libcupti cannot sample them: install nvidia-cuda-cupti 12.9 or newer",
    "unsupported": "this GPU or virtual machine has none ({detail})",
}
_OTHERS = ("ncu", "nv-hostengine", "dcgm-exporter", "_counters")
"""Programs that sample counters, by the names of their processes."""
_PARTS = {"tensor": "tensor pipes", "dram": "DRAM"}


class CounterProcess:
    """Samples one GPU's counters, in a process of its own.

    Parameters
    ----------
    gpu
        Its UUID, or CUDA's number of it.

    Attributes
    ----------
    refusal
        Why there are no samples; empty: there are, or may be.
    without
        What the samples lack, in words.
    cut_short
        Why sampling ended before the recording; empty: it did not.
    """

    def __init__(self, device: int, gpu: str, every_ns: int) -> None:
        self.device, self.gpu = device, gpu
        self.refusal = ""
        self.without: tuple[str, ...] = ()
        self._unread = b""
        self._is_ready = self._has_ended = False
        self._at = _HEADER
        self._process: subprocess.Popen[bytes] | None = None
        self._file = -1
        self._path: Path | None = None
        self.cut_short = ""
        try:
            self._begin(every_ns)
        except (GpuscopeError, OSError) as error:
            self.refusal = str(error)
            self._remove()

    def _begin(self, every_ns: int) -> None:
        command = program("counters")
        if command is None:
            raise GpuscopeError("the process that samples them is not compiled")
        libraries = library_path().parent
        self._file, path = tempfile.mkstemp(prefix="gpuscope-counters-")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": _visible(self.gpu)}
        for name in ("CUDA_INJECTION64_PATH", NVTX_INJECTION):
            environment.pop(name, None)
        self._path = Path(path)
        self._process = subprocess.Popen(  # noqa: S603 - our own
            [str(command), str(libraries), str(every_ns), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def wait(self, until_s: float) -> None:
        """Wait for sampling to begin or be refused, until a time of ``time.monotonic``."""
        while not (self._is_ready or self.refusal):
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                return
            self.listen(rest_s)

    def listen(self, rest_s: float = 0.0) -> None:
        """Take in what the process says."""
        if self._process is None or (output := self._process.stdout) is None or output.closed:
            return
        if not select.select([output], [], [], rest_s)[0]:
            return
        more = os.read(output.fileno(), 1 << 16)
        self._unread += more
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._hear(line.decode("utf-8", "replace").split())
        if not more:
            output.close()
            self._is_gone()

    def _hear(self, words: list[str]) -> None:
        match words:
            case ["ready", _, _, *quantities]:
                self._is_ready = True
                self.without = tuple(name for key, name in _PARTS.items() if key not in quantities)
                self._remove()  # both have it open, so it goes with them
            case ["refused", reason, *detail]:
                text = _REFUSALS.get(reason, "{detail}")
                who = " or ".join(_sampling()) or "another process"
                self.refusal = text.format(who=who, detail=" ".join(detail) or reason)
            case ["failed", *detail]:
                self.cut_short = " ".join(detail)
            case ["ended", *_]:
                self._has_ended = True

    def _is_gone(self) -> None:
        """Note what went wrong if it ended without a word."""
        gone = "the process that samples them ended"
        if not self._is_ready:
            self.refusal = self.refusal or gone
        elif not self._has_ended:
            self.cut_short = self.cut_short or gone

    def new(self) -> Array:
        """Return the samples that came since; a record that is not whole waits."""
        if self._file < 0:
            return np.zeros(0, _RECORD)
        size = max(0, os.fstat(self._file).st_size - self._at)
        taken = os.pread(self._file, size - size % _RECORD.itemsize, self._at)
        self._at += len(taken) - len(taken) % _RECORD.itemsize
        return np.frombuffer(taken, _RECORD, len(taken) // _RECORD.itemsize)

    def keep(self) -> Callable[[], None]:
        """Return what undoes all reading from now on."""
        return keep(self, "_at")

    def end(self) -> None:
        """Let it decode what it has, and end; one that does not is killed."""
        if self._process is None:
            return
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.terminate()  # as a forked child may hold its input open
        until_s = time.monotonic() + _ENDS_S
        while process.stdout is not None and not process.stdout.closed:
            if (rest_s := until_s - time.monotonic()) <= 0:
                self.cut_short = "sampling did not end, and was ended"
                break
            self.listen(rest_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until_s - time.monotonic()))
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._remove()
        self._process = None

    def _remove(self) -> None:
        """Remove the file's name."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _visible(gpu: str) -> str:
    """Return a GPU as CUDA_VISIBLE_DEVICES names it, by its UUID or its number."""
    return gpu if gpu.isdecimal() or gpu.startswith(("GPU-", "MIG-")) else f"GPU-{gpu}"


def _sampling() -> list[str]:
    """Return the names of other processes that are known to sample counters, none of ours."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text("utf-8", "replace")
            name, _, rest = text.partition("(")[2].rpartition(")")
            if int(rest.split()[1]) != os.getpid():  # its parent
                names.add(name)
    return [name for name in _OTHERS if name in names]


class CounterSampler:
    """Samples the counters of the GPUs of a recording.

    Parameters
    ----------
    every_ns
        Length of a sample; 0: nothing is sampled.
    """

    def __init__(self, every_ns: int) -> None:
        self._every_ns = every_ns
        self._processes: dict[str, CounterProcess] = {}
        self._taken: list[tuple[CounterProcess, Array]] = []
        self._count = 0

    def begin(self, gpus: Gpus, *, wait: bool = False) -> None:
        """Sample these GPUs, too.

        Parameters
        ----------
        wait
            Whether to return when sampling has begun, or was refused.
        """
        if not self._every_ns:
            return
        for device, uuid in gpus.items():
            if uuid not in self._processes:
                self._processes[uuid] = CounterProcess(device, uuid, self._every_ns)
        until_s = time.monotonic() + READY_S
        for process in self._processes.copy().values() if wait else ():
            process.wait(until_s)

    def close(self) -> None:
        """End sampling; what was read stays."""
        for process in self._processes.values():
            process.end()

    @property
    def notes(self) -> list[str]:
        """What could not be sampled, and why."""
        notes = []
        for process in self._processes.copy().values():
            process.listen()
            if process.refusal:
                notes.append(f"no counters of cuda:{process.device}: {process.refusal}")
            if process.cut_short:
                notes.append(f"counters of cuda:{process.device} end early: {process.cut_short}")
            if process.without:
                without = ", ".join(process.without)
                notes.append(f"counters of cuda:{process.device} without {without}")
        return notes

    def begin_reading(self) -> Callable[[], None]:
        """Take in what was sampled; returns what undoes all that draining it does next."""
        processes = self._processes.copy().values()
        undo = together(keep(self, "_taken", "_count"), *(process.keep() for process in processes))
        for process in processes:
            if len(samples := process.new()):
                self._taken.append((process, samples))
        return undo

    def drain(self, rows: Rows, begin_ns: int) -> None:
        """Add a batch of rows, one for each quantity of each sample since a moment."""
        taken, self._taken = self._taken, []
        for process, every_sample in taken:
            samples = every_sample[every_sample["start_ns"].astype(np.int64) >= begin_ns]
            batch = sample_rows(process.device, process.gpu, samples, self._count)
            self._count += batch.spans.num_rows
            rows.freeze()
            rows.batches.append(batch)


def sample_rows(device: int, uuid: str, samples: Array, first: int) -> Batch:
    """Return rows of samples as the sampler writes them, numbered from ``first`` on."""
    starts, ends = samples["start_ns"].astype(np.int64), samples["end_ns"].astype(np.int64)
    lasted = np.maximum(ends - starts, 1)
    values = {
        BUSY: samples["sms"],
        TENSOR: samples["tensor"],
        READ: samples["read"] / lasted,
        WRITTEN: samples["written"] / lasted,
        LOST: np.where(np.isnan(samples["sms"]), 0.0, np.nan),
    }
    steps = {name: Steps(starts, ends, value) for name, value in values.items()}
    return counter_rows(steps, device, uuid, "cupti", first)
