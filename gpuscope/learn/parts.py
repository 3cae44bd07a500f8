"""What lessons take to pieces: a kernel to launch by hand, and where memory lies."""

from __future__ import annotations

from gpuscope._checks import door, given
from gpuscope.device.api import Kernel
from gpuscope.device.device import Device
from gpuscope.device.raw import NativeArray
from gpuscope.errors import InvalidOperand
from gpuscope.workloads import spin


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
        What it is called in traces; an identifier of C.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu, "nap")
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    >>> recording.trace.where(kind="kernel").texts("name")
    ['nap']
    """
    kernel = device.compile(spin.SOURCE.replace("spin_kernel", name), name, model=spin.MODEL)
    with device.create_stream() as stream:
        stream.launch(kernel, 1, grid=1, block=32)
    return kernel


def address(array: NativeArray) -> int:
    """Return where an array begins in the device's memory, simulated or not.

    Raises
    ------
    InvalidOperand
        It is no such array.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> array = gpu.empty(8, "float32")
    >>> gs.learn.address(array[2:]) - gs.learn.address(array)
    8
    """
    buffer = getattr(array, "buffer", None)
    if buffer is None:
        pointer = getattr(getattr(array, "data", None), "ptr", None)
        if pointer is None:
            raise InvalidOperand(
                f"array is {given(array)}; an array on a GPU, simulated or not, is needed"
            )
        return int(pointer)
    return int(buffer.address + array.offset * array.dtype.itemsize)
