"""A learner's CUDA C++ as a function: each call runs it in a process of its own."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import IO

import numpy as np

from gpuscope._checks import MappingOf, count, door, given, require_kind
from gpuscope._types import Untyped
from gpuscope.device.api import Kernel, NativeArray
from gpuscope.device.device import Device
from gpuscope.device.pinned import PinnedArray
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, GpuscopeError, InvalidArgument
from gpuscope.learn.attempt import Unmet
from gpuscope.learn.cuda.compiling import Signature, as_cpp, compiled, compiler
from gpuscope.learn.cuda.runtime import KernelOf, Runtime, code_of
from gpuscope.learn.cuda.shared import BASE, HEADING, SharedMemory
from gpuscope.workloads.handle import Handle

_REQUEST, _REPLY = struct.Struct("40s8Q"), struct.Struct("4Q")
_NOT_PERMITTED = 800
_MOST_S, _MOST_PINNED = 3_600, 1 << 36
_WORDS = {
    "cudaStreamCreateWithPriority": 2,
    "cudaStreamDestroy": 1,
    "cudaStreamSynchronize": 1,
    "cudaStreamQuery": 1,
    "cudaStreamWaitEvent": 2,
    "cudaEventCreateWithFlags": 1,
    "cudaEventRecord": 2,
    "cudaEventSynchronize": 1,
    "cudaEventQuery": 1,
    "cudaEventDestroy": 1,
    "cudaEventElapsedTime": 2,
    "cudaDeviceSynchronize": 0,
    "cudaMalloc": 1,
    "cudaFree": 1,
    "cudaMallocHost": 1,
    "cudaFreeHost": 1,
    "cudaMemcpyAsync": 5,
    "cudaMemcpy": 5,
    "cudaLaunchHostFunc": 3,
    "cudaStreamBeginCapture": 1,
    "cudaStreamEndCapture": 1,
    "cudaGraphInstantiate": 1,
    "cudaGraphLaunch": 2,
    "cudaGraphExecDestroy": 1,
    "cudaGraphDestroy": 1,
    "launch": 4,
    "touched": 2,
}
"""Messages that a program may send → how many numbers each has."""


class CudaProgram:
    """A function in CUDA C++, on a simulated GPU: call it with streams, arrays and numbers.

    It is compiled when it is made, and runs in a process of its own each time it is called: a
    crash or an endless loop ends that process only. Calls of CUDA act on ``device``, which
    records them as it does others. Close it when the work that it queued is done.

    Parameters
    ----------
    device
        A simulated one.
    source
        What the learner wrote.
    signature
        The function to call, such as ``"void run(cudaStream_t s, float* out)"``.
    kernels
        Declaration → what such a kernel is: a handle to execute, or what
        :meth:`~gpuscope.device.Device.compile` returned, which gets the arguments. Arrays are of
        float32.
    seconds
        How long a call may take on the host's clock.
    pinned_bytes
        How much page-locked memory it may use.

    Raises
    ------
    CapabilityError
        There is no C++ compiler, or the device is not simulated.
    InvalidArgument
        A declaration cannot be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> step = gs.learn.Step(gpu, 50_000, name="step")
    >>> source = "void run(cudaStream_t s) { step<<<1, 32, 0, s>>>(); }"
    >>> kernels = {"void step()": step}
    >>> with gs.learn.CudaProgram(gpu, source, "void run(cudaStream_t s)", kernels) as program:
    ...     with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...         program(stream)
    >>> recording.trace.where(kind="kernel").texts("category")
    ['step']
    """

    @door("source", "signature", "seconds", device=Device, kernels=MappingOf(object))
    def __init__(
        self,
        device: Device,
        source: str,
        signature: str,
        kernels: Mapping[str, KernelOf],
        *,
        seconds: float = 10.0,
        pinned_bytes: int = 1 << 28,
    ) -> None:
        for text, kernel in kernels.items():
            require_kind(f"kernels[{given(text)}]", kernel, Handle, Kernel)
        if not 0 < seconds <= _MOST_S:
            raise InvalidArgument(f"seconds is {given(seconds)}; up to {_MOST_S:,} are needed")
        count("pinned_bytes", pinned_bytes, least=HEADING, most=_MOST_PINNED)
        self.require(device)
        self._entry = Signature.read(signature)
        self._kernels = [(Signature.read(text), kernel) for text, kernel in kernels.items()]
        declared = tuple(each for each, _ in self._kernels)
        self._compiled = compiled(as_cpp(source, self._entry, declared))
        self.device = device
        self._seconds = seconds
        self._memory = SharedMemory(pinned_bytes, device.calls)
        self._runtime = Runtime(device, self._memory, self._kernels, self._call_back)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._deadline = 0.0
        self._failed: str | None = None
        self.printed = ""
        """What the last call wrote to its output."""

    @staticmethod
    @door(device=Device)
    def require(device: Device) -> None:
        """Say what is missing to try CUDA C++ here; nothing, where nothing is.

        Raises
        ------
        CapabilityError
            There is no C++ compiler, or the device is not simulated.
        """
        if not device.is_simulated:
            raise CapabilityError(
                f"CUDA C++ is tried on a simulated GPU here, not on {device.info.key}: open one "
                "with gs.open_device('sim:h200')"
            )
        compiler()

    # -- memory -----------------------------------------------------------------------
    @door("count")
    def pinned(self, count: int) -> PinnedArray:
        """Return page-locked memory of so many floats, zeros, that the program can be given."""
        return self._memory.take(count)

    def _word(self, value: object, words: list[int]) -> int:
        """Return an argument as the program takes it; lists go to ``words``."""
        if isinstance(value, Stream):
            self._runtime.streams[value.handle] = value
            return value.handle
        if isinstance(value, list | tuple):
            numbers = [self._word(item, words) for item in value]
            words.extend(numbers)
            return BASE + 8 * (len(words) - len(numbers))
        if isinstance(value, float):
            return int.from_bytes(struct.pack("<f", value), "little")
        if isinstance(value, int):
            return value % (1 << 64)
        if self._memory.holds(value):
            return self._memory.address_of(value)
        if isinstance(value, np.ndarray):
            raise InvalidArgument("arrays of the host come from CudaProgram.pinned()")
        return self._runtime.know(value)

    # -- the process ------------------------------------------------------------------
    def __call__(self, *arguments: Stream | NativeArray | float | list[Untyped]) -> object:
        """Run it; returns what it returned: a number, an executable graph, or ``None``.

        Raises
        ------
        Unmet
            It crashed, did not end, or left an error of CUDA's unasked for; its text is for the
            learner.
        """
        self._stop()
        self._failed = None
        words = [0] * len(arguments)
        words[:] = [self._word(value, words) for value in arguments] + words[len(arguments) :]
        self._memory.put(words)
        ours, theirs = socket.socketpair()
        self._socket, self._deadline = ours, time.monotonic() + self._seconds
        with tempfile.TemporaryFile() as output, theirs:
            numbers = theirs.fileno(), self._memory.file, self._memory.nbytes
            self._process = subprocess.Popen(  # noqa: S603 - what was compiled for this
                [str(self._compiled.path), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=numbers[:2],
            )
            theirs.close()
            try:
                value = self._serve("returned")
            except BaseException:
                self._stop()
                raise
            finally:
                self.printed = _read(output)
        if self._runtime.end_captures() and self._failed is None:
            self._failed = "A capture was not ended: call cudaStreamEndCapture on its stream."
        if self._failed is not None:
            raise Unmet(self._failed)
        if self._entry.returns == "cudaGraphExec_t":
            return self._runtime.executable(value)
        if self._entry.returns in ("float", "double"):
            kind = "<f" if self._entry.returns == "float" else "<d"
            return struct.unpack_from(kind, struct.pack("<Q", value))[0]
        signed = value - (1 << 64) * (value >> 63)
        return None if self._entry.returns == "void" else signed

    def _serve(self, until: str) -> int:
        """Answer the program's calls until it sends a message; returns that one's number."""
        while True:
            raw, line, *numbers, nbytes = _REQUEST.unpack(self._receive(_REQUEST.size))
            name = raw.rstrip(b"\0").decode("ascii", "replace")
            payload = self._receive(nbytes) if nbytes else b""
            if name == until:
                return int(numbers[0])
            if name == "crashed":
                raise Unmet(self._crash(numbers[0]))
            self._answer(name, line, numbers, payload, inside=until == "over")

    def _answer(
        self, name: str, line: int, numbers: list[int], payload: bytes, *, inside: bool
    ) -> None:
        value, status, data = 0, 0, b""
        if name == "cudaGetLastError":
            self._failed = None
        elif inside and name != "touched":
            status = _NOT_PERMITTED
            self._fail(line, name, "a host function must not call CUDA (cudaErrorNotPermitted)")
        elif name not in _WORDS:
            raise Unmet("It spoilt the connection to its GPU: does it write where it must not?")
        else:
            call = getattr(self._runtime, name)
            try:
                value, data = call(*numbers[: _WORDS[name]], *([payload] if payload else []))
            except GpuscopeError as error:
                status = code_of(error)
                self._fail(line, name, str(error))
            if name.endswith("Query"):
                status = status or value
        self._send(_REPLY.pack(0, status, value, len(data)) + data)

    def _fail(self, line: int, name: str, why: str) -> None:
        """Keep the first error that the program does not ask for."""
        what = "a launch" if name == "launch" else name
        self._failed = self._failed or f"Line {line}: {what} failed: {why}"

    def _call_back(self, function: int, data: int) -> None:
        """Have the program run a function of its own, and wait for it."""
        self._deadline = time.monotonic() + self._seconds
        self._send(_REPLY.pack(1, function, data, 0))
        self._serve("over")

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
                raise Unmet(
                    f"It did not end within {self._seconds:g} s, so it was stopped. Is there a "
                    "loop, or a wait, that nothing ends?"
                ) from error
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

    def _crash(self, address: int) -> str:
        try:
            self._runtime.part(address)
        except GpuscopeError:
            return f"It ended by a segmentation fault: {address:#x} is none of its memory."
        return (
            "It ended by a segmentation fault: the host accessed memory of the GPU, which it "
            "reaches by copies only."
        )

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._runtime.close()

    def close(self) -> None:
        """End its process, and close what it made. Idempotent."""
        self._stop()
        self._memory.close()

    def __enter__(self) -> CudaProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(output: IO[bytes]) -> str:
    """Return the begin of what was printed."""
    output.seek(0)
    return output.read(1 << 16).decode("utf-8", "replace")
