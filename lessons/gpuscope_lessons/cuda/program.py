"""A learner's CUDA C++ as a function: compiled once, run each time it is called."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from gpuscope.device import Device, Kernel, NativeArray, PinnedArray, Stream
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.extending import MappingOf, Untyped, count, door, given, require_kind
from gpuscope.workloads import Handle
from gpuscope_lessons.attempt import Unmet
from gpuscope_lessons.cuda.codes import NOT_READY, code_of
from gpuscope_lessons.cuda.compiling import Signature, as_cpp, compiled, compiler
from gpuscope_lessons.cuda.inside import Inside
from gpuscope_lessons.cuda.runtime import KernelOf, Runtime
from gpuscope_lessons.cuda.separate import Separate
from gpuscope_lessons.cuda.shared import HEADING

_NOT_PERMITTED = 800
_MOST_S, _MOST_PINNED = 3_600, 1 << 36
_WORDS = {
    "cudaStreamCreateWithPriority": 2,
    "cudaStreamDestroy": 1,
    "cudaStreamSynchronize": 1,
    "cudaStreamQuery": 1,
    "cudaStreamWaitEvent": 3,
    "cudaEventCreateWithFlags": 1,
    "cudaEventRecord": 2,
    "cudaEventSynchronize": 1,
    "cudaEventQuery": 1,
    "cudaEventDestroy": 1,
    "cudaEventElapsedTime": 2,
    "cudaDeviceSynchronize": 0,
    "cudaMalloc": 1,
    "cudaFree": 1,
    "cudaMallocHost": 2,
    "cudaHostAlloc": 2,
    "cudaFreeHost": 1,
    "cudaMemcpyAsync": 5,
    "cudaMemcpy": 5,
    "cudaLaunchHostFunc": 3,
    "cudaStreamBeginCapture": 2,
    "cudaStreamEndCapture": 1,
    "cudaGraphInstantiate": 2,
    "cudaGraphLaunch": 2,
    "cudaGraphExecDestroy": 1,
    "cudaGraphDestroy": 1,
    "launch": 2,
    "touched": 2,
}
"""Messages that a program may send → how many numbers each has."""


def runs_inside(device: Device) -> bool:
    """Whether programs run in this process: CUPTI tells of what this process does on a GPU."""
    return not device.is_simulated


class CudaProgram:
    """A function in CUDA C++: call it with streams, arrays and numbers.

    It is compiled when it is made. Calls of CUDA act on ``device``, which records them as it does
    others. On a simulated GPU it runs in a process of its own each time it is called: a crash or
    an endless loop ends that process only. On a GPU it is compiled by nvcc, with CUDA's own
    header, and runs in this process. Close it when the work that it queued is done.

    Parameters
    ----------
    device
        Where it runs.
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
        How much page-locked memory it may use on a simulated GPU.

    Raises
    ------
    CapabilityError
        There is no C++ compiler that works; for a GPU, no nvcc.
    InvalidArgument
        A declaration cannot be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> step = gs.workloads.Step(gpu, 50_000, name="step")
    >>> source = "void run(cudaStream_t s) { step<<<1, 32, 0, s>>>(); }"
    >>> kernels = {"void step()": step}
    >>> with learn.CudaProgram(gpu, source, "void run(cudaStream_t s)", kernels) as program:
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
        declared = tuple(kernel_signature for kernel_signature, _ in self._kernels)
        is_inside = runs_inside(device)
        text = as_cpp(source, self._entry, declared, is_inside=is_inside)
        self._compiled = compiled(text, is_inside=is_inside)
        self.device = device
        path = self._compiled.path
        self._running: Separate | Inside = (
            Inside(path, device, self._answer, seconds)
            if is_inside
            else Separate(path, device, self._answer, seconds, pinned_bytes)
        )
        memory = self._running.memory
        self._runtime = Runtime(device, memory, self._kernels, self._running.call_back)
        self._failed: str | None = None
        self._too_early: str | None = None

    @property
    def printed(self) -> str:
        """What the last call wrote to its output; nothing on a GPU, where that is shown."""
        return self._running.printed

    @staticmethod
    @door(device=Device)
    def require(device: Device) -> None:
        """Say what is missing to try CUDA C++ here; nothing, where nothing is.

        Raises
        ------
        CapabilityError
            There is no C++ compiler that works; for a GPU, no nvcc.
        """
        compiler(is_inside=runs_inside(device))

    # -- memory -----------------------------------------------------------------------
    @door("count")
    def pinned(self, count: int) -> PinnedArray:
        """Return page-locked memory of so many floats, zeros, that the program can be given."""
        return self._running.memory.take(count)

    def _word(self, value: object, words: list[int]) -> int:
        """Return an argument as the program takes it; lists go to ``words``."""
        if isinstance(value, Stream):
            self._runtime.streams[value.handle] = value
            return value.handle
        if isinstance(value, list | tuple):
            numbers = [self._word(item, words) for item in value]
            words.extend(numbers)
            return self._running.words_at + 8 * (len(words) - len(numbers))
        if isinstance(value, float):
            return int.from_bytes(struct.pack("<f", value), "little")
        if isinstance(value, int):
            return value % (1 << 64)
        if self._running.memory.holds(value):
            return self._running.memory.address_of(value)
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
        self._failed = self._too_early = None
        words = [0] * len(arguments)
        words[:] = [self._word(value, words) for value in arguments] + words[len(arguments) :]
        try:
            value = self._running.run(words)
        except BaseException:
            self._stop()
            raise
        if self._runtime.end_captures() and self._failed is None:
            self._failed = "A capture was not ended: call cudaStreamEndCapture on its stream."
        if failure := self._failed or self._too_early:
            raise Unmet(failure)
        if self._entry.returns == "cudaGraphExec_t":
            return self._runtime.executable(value)
        if self._entry.returns in ("float", "double"):
            kind = "<f" if self._entry.returns == "float" else "<d"
            return struct.unpack_from(kind, struct.pack("<Q", value))[0]
        signed = value - (1 << 64) * (value >> 63)
        return None if self._entry.returns == "void" else signed

    def _answer(
        self,
        name: str,
        line: int,
        numbers: list[int],
        payload: bytes,
        inside: bool,  # noqa: FBT001 - as what runs the program calls it
    ) -> tuple[int, int, bytes]:
        """Do a call of the program's; returns its status, value and bytes."""
        value, status, data = 0, 0, b""
        if name == "crashed":
            raise Unmet(self._crash(numbers[0]))
        if name == "cudaGetLastError":
            self._failed = self._too_early = None
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
                if status == NOT_READY:  # it may be asked again
                    self._too_early = self._told(line, name, str(error))
                else:
                    self._fail(line, name, str(error))
            else:
                if name == "cudaEventElapsedTime":
                    self._too_early = None
            if name.endswith("Query"):
                status = status or value
        return status, value, data

    def _fail(self, line: int, name: str, why: str) -> None:
        """Keep the first error that the program does not ask for."""
        self._failed = self._failed or self._told(line, name, why)

    def _told(self, line: int, name: str, why: str) -> str:
        what = "a launch" if name == "launch" else name
        return f"{f'Line {line}: ' if line else ''}{what} failed: {why}"

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
        self._running.stop()
        self._runtime.close()

    def close(self) -> None:
        """End its process, and close what it made. Idempotent."""
        self._stop()
        self._running.close()

    def __enter__(self) -> CudaProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
