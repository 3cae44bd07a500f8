"""A kernel that takes its time, and writes an array from those it needs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpuscope._checks import given, require_kind
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidArgument
from gpuscope.workloads.context import Passed
from gpuscope.workloads.handle import Handle

_SOURCE = r"""
extern "C" __global__ void NAME(float* out, const float* a, const float* b, long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while ((long long)(now - begin) < ns);
  if (threadIdx.x == 0) out[0] = a[0] + b[0];
}"""
_KEYWORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t "
    "char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr "
    "constinit continue decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires "
    "return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq"
)
"""Of C++, whose compiler reads kernels."""
_MODEL = KernelModel(
    lambda _profile, grid, args, _sm_count: KernelCost(grid, int(args[3])),
    reads=lambda args: args[1:3],
    writes=lambda args: args[0],
    compute=lambda a, b: a + b,
)


def require_identifier(name: str) -> None:
    """Refuse what cannot be the name of a kernel in C++, on every device.

    Raises
    ------
    InvalidArgument
        It is no identifier, or a keyword.
    """
    require_kind("name", name, str)
    is_keyword = name in _KEYWORDS.split()
    if is_keyword or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        why = "a keyword of C++" if is_keyword else "no identifier of C"
        raise InvalidArgument(
            f"name is {given(name)}, which is {why}: a kernel needs a name of letters, digits and "
            "_ that does not begin with a digit, such as 'load_2'"
        )


class Step(Handle):
    """A kernel that takes its time and writes an array, from those of the steps it needs.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    duration_ns
        How long its one block runs.
    name
        Of handle and kernel; an identifier of C, and no keyword of C++.
    after
        Steps whose arrays it reads: at most two. Without an order behind these it races.

    Raises
    ------
    InvalidArgument
        The name is none for a kernel, or ``after`` has what is no step.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> load = gs.workloads.Step(gpu, 50_000, name="load")
    >>> compute = gs.workloads.Step(gpu, 50_000, name="compute", after=[load])
    >>> with gpu.create_stream() as a, gpu.create_stream() as b:
    ...     with gs.profile(gpu, hazards=True) as recording:
    ...         load.execute(stream=a)
    ...         compute.execute(stream=b)
    >>> [one.kind for one in gs.analysis.hazards(recording.trace).found]
    ['read after write']
    """

    def __init__(
        self,
        owner: Device | Partition,
        duration_ns: int,
        *,
        name: str,
        after: Sequence[Step] = (),
    ) -> None:
        require_identifier(name)
        super().__init__(owner, name=name)
        require_kind("after", after, list, tuple)
        for step in after:
            if not hasattr(step, "array"):
                raise InvalidArgument(
                    f"after has {given(step)}; steps are needed, or what has an array as they do"
                )
        self.duration_ns = duration_ns
        self.array = self.device.asarray(np.ones(4, "float32"))
        arrays = [step.array for step in after] or [self.device.asarray(np.ones(4, "float32"))]
        self._reads = arrays[0], arrays[-1]
        self._kernel = self.device.compile(
            _SOURCE.replace("NAME", name), name, model=_MODEL, holds_sms=True
        )
        with self.device.create_stream() as stream:
            self._launch_for(1, stream)  # so that nobody waits for it to be loaded

    def _launch(self, stream: Stream, operands: Passed) -> None:
        del operands
        self._launch_for(self.duration_ns, stream)

    def _launch_for(self, time_ns: int, stream: Stream) -> None:
        arrays = self.array, *self._reads
        stream.launch(self._kernel, *arrays, np.int64(time_ns), grid=1, block=32)
