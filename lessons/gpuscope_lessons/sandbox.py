"""What holds a notebook that is graded: namespaces, limits, a user of its own (Linux)."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x0002_0000, 0x0800_0000, 0x1000_0000
_NEW_PIDS, _NEW_NET = 0x2000_0000, 0x4000_0000
_SET_PARENT_DEATH, _SET_KEEP_CAPS, _DROP_BOUND = 1, 8, 24
_SET_SUBREAPER, _NO_NEW_PRIVILEGES, _AMBIENT = 36, 38, 47
_RAISE = 2
_READ_SEARCH = 2
"""The capability to read any file, which another user keeps: a root's Python may be private."""
_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x2008_0522
_RECURSIVE, _PRIVATE, _NO_SUID, _NO_DEVICES, _READ_ONLY = 0x4000, 0x4_0000, 2, 4, 1
_MOUNT_SETATTR, _HERE, _WHOLE_TREE = 442, -100, 0x8000
_FIRST_USER = 1_000_000_000
"""User of the process with id 0; none of a person's has so high a number."""
DISK_BYTES = 512 << 20
"""Of all files of a notebook, where it has a file system of its own."""
_FILE_BYTES = 1 << 30
"""Of one file; a program of CUDA C++ shares so much memory with its device, at most."""
_FILES, _PROCESSES = 512, 128

SYSTEM = ("network", "files")
"""What depends on the system; a user of its own needs root."""


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0, or -1 on an error."""
    if getattr(_libc(), name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    if sys.platform == "linux":
        _call("prctl", _SET_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (parent, 0):  # it died before; 0: it is outside our namespace
            os._exit(1)


def adopt_orphans() -> None:
    """Have processes whose parents die become children of this one."""
    if sys.platform == "linux":
        _call("prctl", _SET_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Box:
    """What to shut a notebook in with.

    Attributes
    ----------
    isolation
        ``"network"``: namespaces of processes and network; ``"files"``: all files
        can only be read but those in the folder it is in; ``"user"``: one of its own.
    user
        What it becomes; ``None``: it stays who it is.
    """

    isolation: frozenset[str]
    user: int | None


def strongest() -> Box:
    """Try in children, in a folder that may be shut off, what this system allows."""
    box = Box(frozenset(), None)
    for name in (*SYSTEM, "user") if sys.platform == "linux" else ():
        user = _FIRST_USER + os.getpid() if name == "user" else None
        more = Box(box.isolation | {name}, user)
        if (user is None or not os.getuid()) and _holds(more):
            box = more
    return box


def _holds(box: Box) -> bool:
    child = os.fork()
    if child:
        return not os.waitpid(child, 0)[1]
    try:
        shut_in(box, [])
        if inner := os.fork():
            os._exit(min(os.waitpid(inner, 0)[1], 1))
        see_own_processes(box)
        if box.user is not None:
            become(box.user)
        with open(__file__, "rb"), open(os.__file__, "rb"):  # noqa: PTH123
            os._exit(0)
    finally:
        os._exit(1)


def shut_in(box: Box, hidden: Sequence[str]) -> None:
    """Put this process into namespaces; in those of processes it is its children who are.

    Parameters
    ----------
    hidden
        Folders in which nothing is to be seen.

    Raises
    ------
    OSError
        The system allows less than the box says.
    """
    if "network" not in box.isolation:
        return
    user, group = os.getuid(), os.getgid()
    spaces = _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
    _call("unshare", spaces | (_NEW_USER if user else 0))
    if user:
        ids = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for file, text in {"setgroups": "deny", **ids}.items():
            with open(f"/proc/self/{file}", "w") as out:  # noqa: PTH123
                out.write(text)
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    if "files" not in box.isolation:
        return
    read_only = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    setting = ctypes.c_long(_MOUNT_SETATTR), _HERE, b"/", _WHOLE_TREE
    _call("syscall", *setting, read_only, ctypes.sizeof(read_only))
    for folder in hidden:
        _mount("tmpfs", folder, "tmpfs", _NO_SUID | _NO_DEVICES, "size=4k,mode=0755")
    for folder in (os.getcwd(), "/dev/shm"):  # noqa: S108, PTH109
        _mount("tmpfs", folder, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={DISK_BYTES},mode=0777")
    os.chdir(os.getcwd())  # noqa: PTH109 - into what is mounted there now


def see_own_processes(box: Box) -> None:
    """Have ``/proc`` show the processes of this process's namespace, as CUDA needs it.

    Raises
    ------
    OSError
        The system does not allow that.
    """
    if "network" in box.isolation:
        _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [text if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *encoded, ctypes.c_ulong(flags), options.encode())


def limit(box: Box, *, seconds: float, memory_bytes: int, gpu: bool) -> None:
    """Limit this process and its children, and take their privileges; before foreign code runs.

    Parameters
    ----------
    seconds
        Of processor time, of each process.
    memory_bytes
        Of each process, beyond what it has now.
    gpu
        Whether it uses a GPU, whose driver takes addresses for far more memory than it uses.
    """
    import resource  # noqa: PLC0415 - Python in a browser has none, and grades nothing

    if gpu or sys.platform != "linux":
        kind, most = resource.RLIMIT_DATA, memory_bytes
    else:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            now = int(file.read().split()[0]) * resource.getpagesize()
        kind, most = resource.RLIMIT_AS, now + memory_bytes
    elsewhere = 0 if box.isolation & {"network", "user"} else _threads_of(os.getuid())
    for which, value in (
        (kind, most),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_NPROC, elsewhere + _PROCESSES),
    ):
        _, hard = resource.getrlimit(which)
        new = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (new, new))
    if sys.platform != "linux":
        return
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as out:  # noqa: PTH123
        out.write("1000")  # who runs out of memory is not somebody else
    if box.user is not None:
        become(box.user)
    elif "network" in box.isolation:
        _drop_all_but(0)
        _keep(0)
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _threads_of(user: int) -> int:
    """Return how many threads a user has: the limit of processes counts all of them."""
    threads = 0
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                threads += len(os.listdir(f"/proc/{entry.name}/task"))  # noqa: PTH208
    return threads


def become(user: int) -> None:
    """Change from root to another user, who may read all files."""
    capability = 1 << _READ_SEARCH
    _drop_all_but(capability)
    _call("prctl", _SET_KEEP_CAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    _keep(capability)
    _call("prctl", _AMBIENT, _RAISE, _READ_SEARCH, 0, 0)


def _drop_all_but(capabilities: int) -> None:
    """Have no program that is executed later get other capabilities."""
    for number in range(_CAPABILITIES):
        if not capabilities >> number & 1:
            with suppress(OSError):  # there are fewer
                _call("prctl", _DROP_BOUND, number, 0, 0, 0)


def _keep(capabilities: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _call(
        "capset", header, (ctypes.c_uint32 * 6)(capabilities, capabilities, capabilities, 0, 0, 0)
    )
