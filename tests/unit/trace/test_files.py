"""How files are written: whole or not at all, into what stands there, and nothing left over."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope._files import make_folder, replacing
from gpuscope.errors import GpuscopeError
from gpuscope.trace import Trace


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as temporary:
        assert temporary.name == path.name
        temporary.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path, umask):
    write(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o640


@pytest.mark.parametrize("bits", [0o600, 0o644, 0o664, 0o755])
def test_a_replaced_file_keeps_its_mode(tmp_path, umask, bits):
    path = tmp_path / "there"
    path.write_text("old")
    path.chmod(bits)
    write(path)
    assert (path.read_text(), mode(path)) == ("new", bits)


def test_a_temporary_file_that_was_exchanged_has_the_same_mode(tmp_path, umask):
    """As writers do that name their file themselves."""
    with replacing(tmp_path / "new") as temporary:
        other = temporary.with_name("other")
        other.touch(mode=0o600)
        other.replace(temporary)
    assert mode(tmp_path / "new") == 0o640
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path, is_there):
    kept = tmp_path / "kept"
    kept.mkdir()
    if is_there:
        (kept / "file").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("kept/file")
    write(link)
    assert link.is_symlink()
    assert (kept / "file").read_text() == "new"
    assert names(kept) == ["file"]


def test_a_pipe_is_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write(path, "x" * 200_000)
    reader.join()
    assert read == ["x" * 200_000]
    assert path.is_fifo()
    assert names(tmp_path) == ["pipe"]


def test_standard_output_is_written_to_even_if_it_is_a_file(tmp_path):
    program = (
        "from gpuscope.trace import Trace; "
        "from gpuscope.report import trace_report; "
        "trace_report(Trace.from_columns({}), '/dev/stdout')"
    )
    path = tmp_path / "page.html"
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
        assert os.fstat(file.fileno()).st_ino == path.stat().st_ino
    assert path.read_text().endswith("</html>\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == path.read_bytes()


def test_what_cannot_be_written_to_is_an_error_of_ours(tmp_path):
    with pytest.raises(GpuscopeError, match="could not write 'full': No space left"):
        write(Path("/dev/full"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(GpuscopeError, match="could not write 'socket'"):
            write(tmp_path / "socket")
    with pytest.raises(GpuscopeError, match="cannot write 'loop': Too many levels"):
        (tmp_path / "loop").symlink_to("loop")
        write(tmp_path / "loop")
    with pytest.raises(GpuscopeError, match="Is a directory"):
        write(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "x" * 300])
def test_impossible_names_are_errors_of_ours(tmp_path, name):
    trace = Trace.from_columns({})
    for path in (tmp_path / f"{name}.json", tmp_path / name / "run.json"):
        with pytest.raises(GpuscopeError, match="cannot write"):
            gs.export(trace, path)
    with pytest.raises(GpuscopeError, match="cannot make the folder"):
        make_folder(tmp_path / name)
    assert names(tmp_path) == []


KILLED = """
import os, sys
from pathlib import Path
from gpuscope._files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    temporary.with_name("journal").write_text("of a writer")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_writing(tmp_path):
    """And only then: what a living process writes under the same name is not touched."""
    path, foreign = tmp_path / "run.json", tmp_path / ".run.json.notes.partial"
    foreign.write_text("not ours")
    (tmp_path / ".other.json.abcd1234.partial").write_text("of another name")
    (tmp_path / ".run.json.abcd1234.partial").write_text("as older versions left it")
    writers = []
    for _ in range(2):
        one = subprocess.Popen(
            [sys.executable, "-c", KILLED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert one.stdout.readline() == "writing\n"
        writers.append(one)
    killed, living = writers
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(names(tmp_path)) == 4  # the second writer removed the older version's
    write(path)
    left = set(names(tmp_path)) - {foreign.name, "run.json"}
    assert len(left) == 2
    assert ".other.json.abcd1234.partial" in left
    living.communicate()
    assert living.returncode == 0
    assert path.read_text() == "half", "who writes last wins"
    assert len(names(tmp_path)) == 3


def test_many_at_once_do_not_take_each_other_s_folders(tmp_path):
    path, failed = tmp_path / "run.json", []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                write(path, str(number))
        except GpuscopeError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed
    assert path.read_text() in "0123"
    assert names(tmp_path) == ["run.json"]
