"""What is imported with Plotly, and what is not before somebody needs it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import gpuscope as gs
gs.Timeline, gs.figures.timeline
assert "jsonschema" not in sys.modules, "a first figure waits for what it does not use"
assert "nbformat" not in sys.modules
from plotly.io import _renderers
assert _renderers.nbformat.__version__[0].isdigit()
import nbformat
import nbformat.v4
assert nbformat.v4.new_notebook().nbformat == 4
"""


def test_a_first_figure_does_not_wait_for_notebook_schemas():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
