"""A program in a process of its own, whose calls come over a socket: for a simulated GPU."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from gpuscope.device import Device
from gpuscope_lessons.attempt import Unmet
from gpuscope_lessons.cuda.shared import BASE, SharedMemory

_REQUEST, _REPLY = struct.Struct("40s8Q"), struct.Struct("4Q")
Answering: TypeAlias = Callable[[str, int, list[int], bytes, bool], tuple[int, int, bytes]]
"""Does a call: name, line, numbers, bytes, whether a host function calls → status, value, bytes."""


class Separate:
    """Runs a program that is compiled: a crash or an endless loop ends its process only.

    Attributes
    ----------
    memory
        Page-locked memory that it shares.
    words_at
        Where the program has what :meth:`put` writes.
    printed
        What it wrote to its output.
    """

    words_at = BASE

    def __init__(
        self, path: Path, device: Device, answer: Answering, seconds: float, pinned_bytes: int
    ) -> None:
        self._path, self._answer, self._seconds = path, answer, seconds
        self.memory = SharedMemory(pinned_bytes, device)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._deadline = 0.0
        self.printed = ""

    def run(self, words: list[int]) -> int:
        """Run it with numbers and addresses as arguments; returns what it returned.

        Raises
        ------
        Unmet
            It crashed, or did not end.
        """
        self.memory.put(words)
        ours, theirs = socket.socketpair()
        self._socket, self._deadline = ours, time.monotonic() + self._seconds
        with tempfile.TemporaryFile() as output, theirs:
            numbers = theirs.fileno(), self.memory.file, self.memory.nbytes
            self._process = subprocess.Popen(  # noqa: S603 - what was compiled for this
                [str(self._path), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=numbers[:2],
            )
            theirs.close()
            try:
                return self._serve("returned")
            finally:
                self.printed = _read(output)

    def _serve(self, until: str) -> int:
        """Answer the program's calls until it sends a message; returns that one's number."""
        while True:
            raw, line, *numbers, nbytes = _REQUEST.unpack(self._receive(_REQUEST.size))
            name = raw.rstrip(b"\0").decode("ascii", "replace")
            payload = self._receive(nbytes) if nbytes else b""
            if name == until:
                return int(numbers[0])
            status, value, data = self._answer(name, line, numbers, payload, until == "over")
            self._send(_REPLY.pack(0, status, value, len(data)) + data)

    def call_back(self, function: int, data: int) -> None:
        """Have the program run a function of its own, and wait for it; nothing if it ended."""
        if self._socket is None:
            return
        self._deadline = time.monotonic() + self._seconds
        try:
            self._send(_REPLY.pack(1, function, data, 0))
            self._serve("over")
        except Unmet as unmet:
            raise Unmet(f"A host function was running. {unmet}") from unmet

    def _send(self, data: bytes) -> None:
        assert self._socket is not None  # noqa: S101 - it runs
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Unmet(self._end()) from error

    def _receive(self, nbytes: int) -> bytes:
        assert self._socket is not None  # noqa: S101 - it runs
        data = bytearray()
        while len(data) < nbytes:
            left = self._deadline - time.monotonic()
            try:
                self._socket.settimeout(max(left, 0.001))
                piece = self._socket.recv(min(nbytes - len(data), 1 << 20))
            except TimeoutError as error:
                raise Unmet.late(self._seconds) from error
            except OSError as error:
                raise Unmet(self._end()) from error
            if not piece:
                raise Unmet(self._end())
            data += piece
        return bytes(data)

    def _end(self) -> str:
        """Say how the process ended."""
        process = self._process
        assert process is not None  # noqa: S101 - it ran
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            return "It closed the connection to its GPU."
        if code < 0:
            return f"It ended by a signal: {signal.strsignal(-code)}."
        return f"It ended before it returned, with exit status {code}."

    def stop(self) -> None:
        """End its process."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End its process and let go of its memory. Idempotent."""
        self.stop()
        self.memory.close()


def _read(output: IO[bytes]) -> str:
    """Return the begin of what was printed."""
    output.seek(0)
    return output.read(1 << 16).decode("utf-8", "replace")
