"""Code that needs a GPU: recorded here where there is one, else a recording that is shipped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gpuscope import load_trace, profile
from gpuscope.device import Device
from gpuscope.errors import NotFound
from gpuscope.extending import clean, door
from gpuscope.trace import Trace

RECORDINGS = Path(__file__).parent / "recordings"
RECORDED = "recorded on "
"""How the note begins that marks a trace as a shipped recording."""


@door(device=Device, name=str, function=Callable)
def observe(device: Device, name: str, function: Callable[[Device], object]) -> Trace:
    """Run a function and record it; where that cannot be, take the recording of that name.

    It runs twice, the first time unrecorded, so that nothing is loaded while it is recorded. On
    a simulated device, or where a library that it imports is not installed, the shipped
    recording comes instead, and a line says so.

    Parameters
    ----------
    name
        Of the shipped recording.
    function
        What to run, given the device.

    Raises
    ------
    NotFound
        It cannot run here, and there is no such recording.

    Examples
    --------
    >>> import gpuscope as gs
    >>> import gpuscope_lessons as learn
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> def product(device):
    ...     return gs.Gemm(device, m=64, n=64, k=64).execute()
    >>> trace = learn.observe(gpu, "cupy", product)  # doctest: +ELLIPSIS
    Not run: there is no GPU here. What follows was recorded on NVIDIA H200, ...
    >>> trace.is_simulated
    False
    """
    why = "there is no GPU here"
    if not device.is_simulated:
        try:
            function(device)
        except ModuleNotFoundError as error:
            why = f"{error.name} is not installed here"
        else:
            device.synchronize()
            with profile(device) as recording:
                function(device)
            return recording.trace
    trace = recording_of(name)
    sys.stdout.write(clean(f"Not run: {why}. What follows was {_origin(trace)}.") + "\n")
    return trace


@door(name=str)
def recording_of(name: str) -> Trace:
    """Return a shipped recording.

    Raises
    ------
    NotFound
        There is none of that name.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> trace = learn.recording_of("torch")
    >>> trace.is_simulated, trace.kind_counts()["kernel"] > 0
    (False, True)
    """
    recordings = sorted(path.stem for path in RECORDINGS.glob("*.parquet"))
    if name not in recordings:
        raise NotFound(f"there is no recording {name!r}; there are {recordings}")
    return load_trace(RECORDINGS / f"{name}.parquet")


@door(trace=Trace)
def label(trace: Trace) -> str:
    """Return `` (recorded on …)`` for a shipped recording, for titles; else nothing.

    Examples
    --------
    >>> import gpuscope_lessons as learn
    >>> learn.label(learn.recording_of("torch"))
    ' (recorded on NVIDIA H200)'
    >>> learn.label(learn.case("A").trace)
    ''
    """
    origin = _origin(trace).partition(",")[0]
    return f" ({origin})" if origin else ""


def _origin(trace: Trace) -> str:
    return next((note for note in trace.metadata.notes if note.startswith(RECORDED)), "")
