"""``%%gpuscope`` above a cell of PyTorch's."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("IPython")
pytestmark = pytest.mark.gpu

PROGRAM = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpuscope")
shell.run_cell('''
import torch
x = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
''').raise_error()
result = shell.run_cell('''%%gpuscope -o trace --no-display
with torch.cuda.nvtx.range("step"):
    for _ in range(5):
        y = x @ x
torch.cuda.synchronize()
raise KeyError("kept")
''')
assert isinstance(result.error_in_exec, KeyError), result.error_in_exec
trace = shell.user_ns["trace"]
assert trace.metadata.complete, trace.metadata.notes
kernels = trace.where(kind="kernel")
assert len(kernels) == 5, trace
(step,) = trace.where(kind="range").spans.to_pylist()
assert step["name"] == "step"
assert not trace.is_simulated
from gpuscope import analysis
(found,) = [one for one in analysis.range_projection(trace).rows() if one["range"] == "step"]
print(found)
print("all seen")
"""


def test_a_cell_of_pytorch_is_profiled_with_its_ranges_and_kept_though_it_fails():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert "all seen" in done.stdout, done.stdout + done.stderr
