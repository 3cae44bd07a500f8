"""A kernel that holds SMs for a given time and computes nothing."""

from __future__ import annotations

from pathlib import Path

from gpuscope._checks import count, door, require_kind
from gpuscope.device.api import Kernel, KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import InvalidOperand
from gpuscope.workloads.context import Passed
from gpuscope.workloads.handle import Handle
from gpuscope.workloads.step import require_identifier

SOURCE = Path(__file__).with_name("spin.cu").read_text("utf-8")
MODEL = KernelModel(lambda _profile, grid, args, _sm_count: KernelCost(grid, int(args[0])))
_LONGEST_NS = 10_000_000_000
_MOST_BLOCKS = 2**31 - 1


class Spin(Handle):
    """Hold SMs for ``duration_ns``: one thread block on each of ``blocks`` SMs.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    duration_ns
        How long each block spins; at most 10 s, so that a mistake ends.
    blocks
        Thread blocks; 1 unless said.
    name
        For people, timelines and analyses; it says the duration if not given.
    max_in_flight
        How many calls may overlap.

    Raises
    ------
    InvalidOperand
        A number is out of range.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.spin import Spin
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     Spin(gpu, duration_ns=50_000).execute(stream=stream)
    >>> gs.analysis.summary(recording.trace).streams[0].busy_ns >= 50_000
    True
    """

    def __init__(
        self,
        owner: Device | Partition,
        *,
        duration_ns: int,
        blocks: int = 1,
        name: str | None = None,
        max_in_flight: int = 1,
    ) -> None:
        duration_ns = count(
            "duration_ns", duration_ns, least=1, most=_LONGEST_NS, error=InvalidOperand
        )
        blocks = count("blocks", blocks, least=1, most=_MOST_BLOCKS, error=InvalidOperand)
        require_kind("name", name, str, None)
        super().__init__(owner, name=name or f"spin {duration_ns} ns", max_in_flight=max_in_flight)
        self.duration_ns = duration_ns
        self.blocks = blocks
        self._kernel = self.device.compile(SOURCE, "spin_kernel", model=MODEL, holds_sms=True)

    def _launch(self, stream: Stream, operands: Passed) -> None:
        del operands
        stream.launch(self._kernel, self.duration_ns, grid=self.blocks, block=32)


@door(device=Device, name=str)
def spin_kernel(device: Device, name: str = "spin") -> Kernel:
    """Return a kernel that keeps SMs busy and computes nothing, for :meth:`Stream.launch`.

    Its one argument is how long each of its blocks spins, in ns. It is loaded: it has been
    launched once.

    Parameters
    ----------
    device
        Where it runs.
    name
        What it is called in traces; an identifier of C, and no keyword of C++.

    Raises
    ------
    InvalidArgument
        The name is none for a kernel.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu, "nap")
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    >>> recording.trace.where(kind="kernel").texts("name")
    ['nap']
    """
    require_identifier(name)
    kernel = device.compile(SOURCE.replace("spin_kernel", name), name, model=MODEL, holds_sms=True)
    with device.create_stream() as stream:
        stream.launch(kernel, 1, grid=1, block=32)
    return kernel
