"""What the processes of a recorded program do without any: the driver's call, names."""

from __future__ import annotations

import ctypes
import sys

import pytest

from gpuscope.runs import processes


@pytest.mark.skipif(not processes.INJECTION.exists(), reason="it is not compiled")
def test_the_driver_s_first_call_reaches_the_recorder(monkeypatch):
    called = []
    monkeypatch.setattr(processes, "begin_cuda", lambda: called.append(processes))
    load = ctypes.CDLL(str(processes.INJECTION)).InitializeInjection
    assert (load(), called) == (1, [processes])
    monkeypatch.delitem(sys.modules, "gpuscope.runs.processes")  # a Python that is not recorded
    assert (load(), called) == (1, [processes])
