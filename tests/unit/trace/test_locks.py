"""One lock for every file: held once, freed on closing and by the death of its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from gpuscope import _locks


@pytest.fixture(params=["file", "read-only file", "folder"])
def path(request, tmp_path):
    path = tmp_path / "locked"
    if request.param == "folder":
        path.mkdir()
    else:
        path.touch(0o444 if request.param == "read-only file" else 0o666)
    return path


@pytest.fixture
def opened(path):
    made = []

    def again():
        made.append(os.open(path, os.O_RDONLY))
        return made[-1]

    yield again
    for descriptor in made:
        os.close(descriptor)


def test_a_lock_is_held_once_and_freed_on_closing(path, opened):
    first = os.open(path, os.O_RDONLY)
    assert _locks.try_lock(first)
    assert not _locks.try_lock(opened())
    os.close(first)
    assert _locks.try_lock(opened())


HOLD = """
import os, sys, time
from gpuscope import _locks
_locks.lock(os.open(sys.argv[1], os.O_RDONLY))
print("held", flush=True)
time.sleep(3600)
"""


def test_a_lock_is_waited_for_and_a_killed_process_frees_it(path, opened):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        waiting = threading.Thread(target=_locks.lock, args=[opened()])
        waiting.start()
        assert not _locks.try_lock(opened())
        holder.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    assert not _locks.try_lock(opened()), "who waited holds it"


def test_a_file_system_without_locks_holds_nobody_up(monkeypatch, opened):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    _locks.lock(opened())
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        _locks.try_lock(opened())
