"""The quickstart and the dashboard's notebook, without a browser, on the simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from patience import PATIENCE_S

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# The same notebook must run where there is a GPU: this test hides it.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PLOTLY_RENDERER": "plotly_mimetype"}


def outputs_of(path: Path, folder: Path) -> dict[str, list[Any]]:
    """Execute a notebook; cell id → outputs."""
    notebook = nbformat.read(path, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name.lower()))
        for name, value in NO_GPU.items():
            patch.setenv(name, value)
        client = NotebookClient(
            notebook, timeout=None, startup_timeout=PATIENCE_S, kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        client.execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> dict[str, list[Any]]:
    """The quickstart's outputs."""
    return outputs_of(NOTEBOOKS / "00_quickstart.ipynb", tmp_path_factory.mktemp("notebook"))


def data(outputs: list[Any], mime: str) -> Any:
    found = [out.data[mime] for out in outputs if mime in out.get("data", {})]
    assert found, f"no {mime} among {[dict(out.get('data', {})).keys() for out in outputs]}"
    return found[-1]


def test_no_cell_fails(executed):
    failures = [
        f"{cell}: {out.ename}: {out.evalue}"
        for cell, outputs in executed.items()
        for out in outputs
        if out.output_type == "error"
    ]
    assert not failures, "\n".join(failures)


def test_it_says_what_was_opened(executed):
    (said,) = [out.text for out in executed["open"] if out.output_type == "stream"]
    assert "opened NVIDIA H200 (simulated), 132 SMs" in said
    assert "no GPU used" in said


def test_every_figure_is_drawn_and_says_that_it_is_simulated(executed):
    for cell in ("timeline", "distribution"):
        figure = data(executed[cell], "application/vnd.plotly.v1+json")
        assert figure["data"]
        assert "SIMULATED" in figure["layout"]["title"]["text"]


def test_tables_state_overlap_latency_and_the_comparison(executed):
    assert "16" in data(executed["plan"], "text/plain")
    assert "overlap by partition" in data(executed["overlap"], "text/html")
    assert "small" in data(executed["latency"], "text/html")
    comparison = data(executed["experiment"], "text/html")
    for words in ("no partition", "16 | rest", "p50 (µs)", "of alone (%)", "gain"):
        assert words in comparison


def test_the_dashboard_is_shown(executed):
    view = data(executed["dashboard"], "application/vnd.jupyter.widget-view+json")
    assert view["model_id"]


@pytest.mark.parametrize("name", ["00_quickstart.ipynb", "dashboard.ipynb"])
def test_no_outputs_are_committed(name):
    for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)


def test_the_notebook_of_the_dashboard_shows_it_and_its_code(tmp_path):
    outputs = outputs_of(NOTEBOOKS / "dashboard.ipynb", tmp_path)
    assert data(outputs["open"], "application/vnd.jupyter.widget-view+json")
    (printed,) = [out.text for out in outputs["take"] if out.output_type == "stream"]
    compile(printed, "dashboard.py", "exec")
    assert "gs.run(" in printed
