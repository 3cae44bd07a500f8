"""Jobs on several GPUs or hosts, by an executor; a lock for each GPU."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import secrets
import stat
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

from gpuscope import _locks
from gpuscope._checks import door, given
from gpuscope._optional import require
from gpuscope.device.api import DeviceInfo
from gpuscope.device.carve import SmLayout
from gpuscope.device.cuda import driver
from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import GpuscopeError, InvalidArgument, WorkerLost
from gpuscope.experiments.pool import Processes
from gpuscope.experiments.runner import Progress, Viewer

_Key = TypeVar("_Key")
_T = TypeVar("_T")
Job: TypeAlias = Callable[[Device], _T]
"""Work on one GPU; can be pickled."""
_Outcome: TypeAlias = tuple[_T | GpuscopeError, DeviceInfo | None]

_LOCKS = Path("/tmp")  # noqa: S108 - TMPDIR may be a batch job's own, which others do not see
_POLL_S = 0.2
_ATTEMPTS = 3
"""How often ``"processes:N"`` begin a job before it counts as lost."""
_MOST_PROCESSES = 10_000
"""N of ``"processes:N"``."""
_GONE = "the scheduler is gone, and with it all workers"
_any_of_host = ("auto", "cuda")
_one_job = threading.Lock()
"""A process does one job at a time, however many threads its executor has."""


# -- on the worker -------------------------------------------------------------------------
@contextmanager
def locked(gpus: Sequence[DeviceInfo]) -> Iterator[DeviceInfo]:
    """Hold the first of some GPUs that nobody else holds, until the block ends.

    Waits while all are held. A lock is a file for each UUID on the host, held by ``flock``: the
    kernel frees it when a process dies. Devices other than GPUs need none.

    Raises
    ------
    GpuscopeError
        A lock file cannot be opened.
    """
    for attempt in itertools.count():
        for gpu in gpus:
            if gpu.kind != "cuda":
                yield gpu
                return
            with os.fdopen(_lock_file(gpu.uuid), "rb") as file:
                if _locks.try_lock(file):
                    yield gpu
                    return
        if not attempt:
            names = ", ".join(gpu.key for gpu in gpus)
            warnings.warn(f"waiting for {names}: another process measures there", stacklevel=3)
        time.sleep(_POLL_S)


@contextmanager
def all_locked(device: Device, names: Sequence[str]) -> Iterator[None]:
    """Hold the GPU of a device and those of these names, such as ``"cuda:1"``, for the block.

    All processes lock GPUs in the order of their UUIDs, so none waits for ever.
    """
    gpus = {device.info.uuid: device.info}
    if names:
        gpus |= {gpu.uuid: gpu for gpu in driver.gpus() if gpu.key in names}
    with ExitStack() as locks:
        for uuid in sorted(gpus):
            locks.enter_context(locked([gpus[uuid]]))
        yield


def make_locks() -> None:
    """Make the lock files of all GPUs, for processes of this host that may write nothing.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.search.make_locks()
    """
    for gpu in driver.gpus():
        os.close(_lock_file(gpu.uuid))


def _lock_file(uuid: str) -> int:
    path = _LOCKS / f"gpuscope-{uuid}.lock"
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # another user may have made anything
        try:
            lock = os.open(path, flags)
        except FileNotFoundError:
            lock = os.open(path, flags | os.O_CREAT, 0o444)
            os.fchmod(lock, 0o444)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            return lock
        os.close(lock)
        why = "it is no file"
    except OSError as error:
        why = str(error.strerror)
    raise GpuscopeError(f"cannot open the lock of GPU {uuid}, {str(path)!r}: {why}. Remove it")


_opened = cache(lambda name: open_device(name, quiet=True))
_latest: list[str] = []
"""Key of the GPU that this process used last: what was set up and compiled there is used again."""


def _perform(job: Job[_T], name: str, token: str) -> _Outcome[_T]:
    """Do a job on the device of this name that is free; an error is an outcome, too.

    Parameters
    ----------
    token
        Makes the calls differ: Dask takes equal ones for one.

    Returns
    -------
    made, gpu
        What the job made or raised, and the GPU that it was done on.
    """
    del token
    gpu: DeviceInfo | None = None
    try:
        with _one_job:
            several = driver.gpus() if name in _any_of_host else []
            several.sort(key=lambda gpu: gpu.key not in _latest)
            with locked(several or [_opened(name).info]) as gpu:
                _latest[:] = [gpu.key]
                return job(_opened(gpu.key if several else name)), gpu
    except GpuscopeError as error:
        return error, gpu
    except Exception as error:  # noqa: BLE001 - a library's, which may not unpickle elsewhere
        return GpuscopeError(f"{type(error).__name__}: {error}"), gpu


# -- on the host that asks -----------------------------------------------------------------
def _kind(device: Device) -> tuple[DeviceInfo, SmLayout]:
    return device.info, device.layout


@dataclass
class Team:
    """The workers of an executor, and the device that each opens.

    Attributes
    ----------
    name
        As :func:`gpuscope.open_device` takes it. ``"auto"`` and ``"cuda"`` are any GPU that a
        worker sees.
    gpu
        One of the GPUs: all have to be of its model. The first worker's, if not given.
    mixed
        Whether GPUs may differ all the same.
    """

    executor: Executor
    name: str
    gpu: DeviceInfo | None = None
    mixed: bool = False

    @property
    def info(self) -> DeviceInfo:
        """One of the GPUs."""
        return self._kind[0]

    @property
    def layout(self) -> SmLayout:
        """Its SMs."""
        return self._kind[1]

    @cached_property
    def _kind(self) -> tuple[DeviceInfo, SmLayout]:
        """What a worker says of its GPU."""
        return dict(self.results({"": _kind}, threading.Event()))[""]

    def results(
        self,
        jobs: Mapping[_Key, Job[_T]],
        stop: threading.Event,
        viewer: Viewer | None = None,
        label: Callable[[_Key], str] = str,
    ) -> Iterator[tuple[_Key, _T]]:
        """Do jobs as :meth:`done` does, and raise the first error of one."""
        for key, made in self.done(jobs, stop, viewer, label):
            if isinstance(made, GpuscopeError):
                raise made
            yield key, made

    def done(
        self,
        jobs: Mapping[_Key, Job[_T]],
        stop: threading.Event,
        viewer: Viewer | None = None,
        label: Callable[[_Key], str] = str,
    ) -> Iterator[tuple[_Key, _T | GpuscopeError]]:
        """Do jobs, and yield each key once with what its job made or raised, as they end.

        The executor does a job again whose worker is lost, if it can. Of what it gives up, and of
        all that are left when Dask's scheduler is gone, the error is a ``WorkerLost``. Jobs that
        have not begun are cancelled when the caller leaves.

        Parameters
        ----------
        stop
            Set it to end early.
        viewer
            Told of each job that has ended, over all workers.
        label
            Key → what the viewer is told.

        Raises
        ------
        GpuscopeError
            Workers have GPUs that differ, or the executor takes no jobs.
        """
        ended: queue.SimpleQueue[tuple[_Key, Future[_Outcome[_T]]]] = queue.SimpleQueue()
        left: dict[_Key, Future[_Outcome[_T]]] = {}
        begun: Counter[_Key] = Counter()

        def begin(key: _Key) -> None:
            begun[key] += 1
            left[key] = self._submitted(jobs[key])
            left[key].add_done_callback(lambda future: ended.put((key, future)))

        try:
            for key in jobs:
                begin(key)
            try:
                while left and not stop.is_set():
                    try:
                        key, future = ended.get(timeout=_POLL_S)
                    except queue.Empty:
                        if _has_ended(self.executor):
                            raise WorkerLost(_GONE) from None
                        continue
                    if left.get(key) is not future:
                        continue
                    if future.cancelled() and begun[key] < _ATTEMPTS:
                        begin(key)  # as all are where Dask looks for its scheduler again
                        continue
                    made = self._made(left.pop(key))
                    if viewer is not None:
                        done = len(jobs) - len(left)
                        viewer(Progress(label(key), 0, done, len(jobs), recording=None))
                    yield key, made
            except WorkerLost as error:  # of the executor: no job can be begun again
                yield from ((key, error) for key in left)
        finally:
            for future in () if _has_ended(self.executor) else left.values():
                future.cancel()

    def _submitted(self, job: Job[_T]) -> Future[_Outcome[_T]]:
        try:
            return self.executor.submit(_perform, job, self.name, secrets.token_hex(8))
        except Exception as error:  # as executors raise once they are shut down or broken
            why = _GONE if _has_ended(self.executor) else f"it takes no more jobs: {error}"
            raise WorkerLost(why) from error

    def _made(self, future: Future[_Outcome[_T]]) -> _T | GpuscopeError:
        try:
            made, gpu = future.result()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise GpuscopeError(f"the job cannot be sent to a worker: {error}") from error
        except (Exception, CancelledError) as error:  # noqa: BLE001 - jobs raise nothing
            return WorkerLost(f"its worker was lost: {type(error).__name__}: {error}")
        first, self.gpu = self.gpu, self.gpu or gpu
        models = [
            f"{info.name} ({info.sm_count} SMs, {info.driver})" for info in (first, gpu) if info
        ]
        if not self.mixed and len(set(models)) > 1:
            raise GpuscopeError(
                f"workers have GPUs that differ, and their times cannot be compared: {models[0]} "
                f"and {models[1]}. Use workers with one kind of GPU and driver, or normalise a "
                "sweep by a reference"
            )
        return made


def _has_ended(executor: Executor) -> bool:
    """Whether an executor of Dask has given up its scheduler: then its futures never end."""
    client = getattr(executor, "_client", None)
    return getattr(client, "status", None) in {"closing", "closed"}


@door(executor=(Executor, str), processes=Callable)
@contextmanager
def executor_of(
    executor: Executor | str, processes: Callable[[int], Executor] | None = None
) -> Iterator[Executor]:
    """Yield the executor that an argument means; closes what it opened.

    Parameters
    ----------
    executor
        One, ``"processes:N"`` or ``"dask://HOST:PORT"``.
    processes
        What ``"processes:N"`` is, if not that many processes of this host.

    Raises
    ------
    InvalidArgument
        The text is none that is known.
    MissingDependency
        Dask is not installed.
    GpuscopeError
        No scheduler of Dask answers there.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import gpuscope as gs
    >>> with gs.search.executor_of("processes:2", ThreadPoolExecutor) as workers:
    ...     workers.submit(pow, 2, 10).result()
    1024
    """
    if isinstance(executor, Executor):
        yield executor
        return
    kind, _, rest = executor.partition(":")
    if kind == "processes" and rest.isdecimal() and 0 < float(rest) <= _MOST_PROCESSES:
        count = int(rest)
        with processes(count) if processes else Processes(count, attempts=_ATTEMPTS) as opened:
            yield opened
    elif kind == "dask" and rest.startswith("//") and rest != "//":
        distributed = require("distributed", feature="workers of Dask")
        try:
            client = distributed.Client(rest[2:])
        except (OSError, ValueError) as error:
            raise GpuscopeError(
                f"no scheduler of Dask answers at {rest[2:]!r}: {error}. Start one with `dask "
                "scheduler`, and name its host and port"
            ) from error
        with client:
            yield client.get_executor()
    else:
        raise InvalidArgument(
            f"executor is {given(executor)}; an Executor of concurrent.futures, 'processes:N' or "
            "'dask://HOST:PORT' is needed"
        )


@contextmanager
def team_of(
    executor: Executor | str,
    device: Device | str | None,
    gpu: DeviceInfo | None = None,
    *,
    mixed: bool = False,
) -> Iterator[Team]:
    """Yield the workers that an argument ``executor`` means; closes what it opened.

    Parameters
    ----------
    device, gpu, mixed
        As :class:`Team` has them.

    Raises
    ------
    InvalidArgument
        The executor is none, or the device is an open one: workers open their own.
    MissingDependency
        Dask is not installed.
    """
    if isinstance(device, Device):
        raise InvalidArgument(
            f"device is {device.info.key}, open here, but workers open their own: give its name, "
            "such as 'cuda' or 'sim:h200'"
        )
    with executor_of(executor) as workers:
        yield Team(workers, device or "auto", gpu, mixed)
