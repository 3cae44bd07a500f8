"""The magics, in an IPython shell of their own."""

from __future__ import annotations

import weakref

import plotly.io as pio
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import get_ipython  # noqa: F401 - makes testing quiet
from IPython.utils.capture import capture_output

import gpuscope as gs
from gpuscope.device import select
from gpuscope.magics import GpuscopeMagics

LAUNCH = """
stream = gpu.create_stream(name="s")
gemm = gs.Gemm(gpu, m=256, n=256, k=256)
for _ in range(3):
    gemm.execute(stream=stream)
"""


@pytest.fixture(scope="module")
def shell():
    patch = pytest.MonkeyPatch()
    patch.setattr(
        select, "_open", weakref.WeakValueDictionary()
    )  # devices that other tests left open
    # As in a notebook's kernel; what Plotly takes depends on when in a process it is imported.
    patch.setattr(pio.renderers, "default", "plotly_mimetype")
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "gpuscope")
    made.user_ns["gs"] = gs
    made.user_ns["gpu"] = gs.open_device("sim:h200", quiet=True)
    yield made
    InteractiveShell.clear_instance()
    patch.undo()


@pytest.fixture
def cell(shell):
    """Run a cell as a user does: (what it printed, MIME types shown, its error)."""

    def run(text):
        with capture_output() as seen:
            result = shell.run_cell(text)
        shown = [kind for output in seen.outputs for kind in output.data]
        return seen.stdout, shown, result.error_in_exec or result.error_before_exec

    yield run
    for name in ("gemm", "stream"):
        if name in shell.user_ns:
            shell.user_ns.pop(name).close()


def test_a_cell_is_profiled_and_shown(shell, cell):
    said, shown, error = cell(f"%%gpuscope -o found\n{LAUNCH}\nlen(gpu.partitions)")
    assert error is None
    trace = shell.user_ns["found"]
    assert trace.kind_counts()["kernel"] == 3
    assert shell.user_ns["_gpuscope"] is trace
    assert "application/vnd.plotly.v1+json" in shown
    assert shown.count("text/html") >= 2, "overlap and summary"
    assert "Out" in said or "0" in said, "the cell's own result is shown"
    assert shell.user_ns["stream"].name == "s", "it ran in the user's namespace"


def test_the_verdict_on_confinement_stands_under_the_cell(cell):
    carved = "with gpu.carve({'a': 16}) as parts, parts['a'].create_stream() as stream:"
    launch = "    gemm.execute(stream=stream); gpu.synchronize()"
    setup = "gemm = gs.Gemm(gpu, m=64, n=64, k=64)"
    said, _, error = cell(f"%%gpuscope\n{setup}\n{carved}\n{launch}")
    assert error is None
    assert "Confined: all work given to a ran inside" in said
    said, _, error = cell(f"%%gpuscope\n{LAUNCH}")
    assert "carved" not in said, "nobody asks of a program that carves nothing"
    assert "ran on the GPU for" in said


def test_without_display_it_only_records(shell, cell):
    _, shown, error = cell(f"%%gpuscope --no-display\n{LAUNCH}")
    assert error is None
    assert shown == []
    assert shell.user_ns["_gpuscope"].kind_counts()["kernel"] == 3


def test_a_failing_cell_raises_once_and_keeps_what_was_recorded(shell, cell):
    said, _, error = cell(f"%%gpuscope -o found\n{LAUNCH}\n1 / 0")
    assert isinstance(error, ZeroDivisionError)
    assert said.count("ZeroDivisionError") == 2, "head and last line of one traceback"
    assert shell.user_ns["found"].kind_counts()["kernel"] == 3
    _, _, error = cell("%%gpuscope\nif True print(1)")
    assert isinstance(error, SyntaxError)


def test_it_exports_by_suffix(cell, tmp_path):
    path = tmp_path / "step.parquet"
    said, _, error = cell(f"%%gpuscope --no-display --export {path}\n{LAUNCH}")
    assert error is None
    assert f"wrote {path}" in said
    assert gs.load_trace(path).kind_counts()["kernel"] == 3


def test_an_export_that_fails_loses_nothing(shell, cell, tmp_path):
    (tmp_path / "gone").mkdir()
    leave = f"import os; os.rmdir({str(tmp_path / 'gone')!r})"
    _, _, error = cell(
        f"%%gpuscope --no-display --export {tmp_path}/gone/step.parquet\n{LAUNCH}\n{leave}"
    )
    assert isinstance(error, UsageError)
    assert "step.parquet" in str(error)
    assert shell.user_ns["_gpuscope"].kind_counts()["kernel"] == 3


@pytest.mark.parametrize("name", ["step.docx", "none/step.parquet"])
def test_a_name_that_cannot_be_written_is_refused_before_anything_runs(shell, cell, tmp_path, name):
    shell.user_ns.pop("ran", None)
    _, _, error = cell(f"%%gpuscope --no-display --export {tmp_path}/{name}\nran = True")
    assert isinstance(error, UsageError)
    assert name.rpartition("/")[2] in str(error)
    assert "ran" not in shell.user_ns
    assert isinstance(cell(f"%gpuscope start --export {tmp_path}/{name}")[2], UsageError)
    assert cell("%gpuscope start")[2] is None
    assert isinstance(cell(f"%gpuscope stop --export {tmp_path}/{name}")[2], UsageError)
    assert cell("%gpuscope stop --no-display")[2] is None, "it is still on"


def test_start_and_stop_span_cells(shell, cell):
    assert cell("%gpuscope start")[2] is None
    assert cell(LAUNCH)[2] is None
    said, _, _ = cell("%gpuscope status")
    assert "recording" in said
    assert "kernel" in said
    assert cell("%gpuscope stop -o found --no-display")[2] is None
    assert shell.user_ns["found"].kind_counts()["kernel"] == 3
    assert "no recording is on; last: Trace(" in cell("%gpuscope status")[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%gpuscope", "start | stop | status"),
        ("%gpuscope stop", "no recording is on"),
        ("%%gpuscope start\n1", "stand on a line of their own"),
        ("%%gpuscope -o 1x\n1", "no variable name"),
        ("%gpuscope fly", "start | stop | status"),
        ("%%gpuscope --detail some\n1", "invalid choice"),
        ("%%gpuscope\nimport asyncio\nawait asyncio.sleep(0)", "awaits at its top level"),
    ],
)
def test_what_makes_no_sense_is_refused(cell, text, words):
    said, _, error = cell(text)
    assert isinstance(error, UsageError)
    assert words in said + str(error)


def test_starting_twice_and_late_options_are_refused(cell):
    cell("%gpuscope start --no-display")
    assert "is on already" in str(cell("%gpuscope start")[2])
    assert "belong to %gpuscope start" in str(cell("%gpuscope stop --live")[2])
    assert cell("%gpuscope stop")[2] is None


def test_nothing_recorded_says_what_to_do(cell):
    said, _, error = cell("%%gpuscope\n1 + 1")
    assert error is None
    assert "a simulated device has to be open" in said


COPIES = """
x, y = gpu.empty(1000), gpu.empty(1000)
with gpu.create_stream(name="a") as a, gpu.create_stream(name="b") as b:
    a.copy(x, y)
    b.copy(y, x)
"""


def test_copies_are_work(shell, cell):
    said, _, error = cell(f"%%gpuscope --hazards\n{COPIES}")
    assert error is None
    assert shell.user_ns["_gpuscope"].kind_counts()["memcpy"] == 2
    assert "a simulated device has to be open" not in said
    assert "HAZARD" in said


def test_of_several_clocks_one_is_named(shell, cell):
    shell.user_ns["other"] = gs.open_device("sim:h200", quiet=True)
    assert "--device NAME" in str(cell(f"%%gpuscope\n{LAUNCH}")[2])
    assert cell(f"%%gpuscope --device gpu --no-display\n{LAUNCH}")[2] is None
    assert shell.user_ns["_gpuscope"].kind_counts()["kernel"] == 3
    assert "names no device" in str(cell("%%gpuscope --device gemm\n1")[2])
    shell.user_ns.pop("other").close()


def test_help_names_every_option_and_runs_nothing(cell):
    for line in ("%%gpuscope --help\nraise SystemError", "%gpuscope -h"):
        said, _, error = cell(line)
        assert error is None
        assert not [action for action in OPTIONS if action.option_strings[-1] not in said]


OPTIONS = [action for action in GpuscopeMagics.gpuscope.parser._actions if action.option_strings]
HOSTILE = [
    "nan", "inf", "-1", "0", "9" * 4301, "1e400", "\x1b[31m", "x" * 5000, "class", "folder", "'",
    "missing/a.json",
]  # fmt: skip


@pytest.mark.parametrize("option", [action.option_strings[-1] for action in OPTIONS])
def test_an_option_says_what_it_cannot_take(cell, option, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for value in HOSTILE:
        for text in (f"%%gpuscope --no-display {option} {value}\n1", f"%gpuscope {option} {value}"):
            _, _, error = cell(text)
            assert error is None or isinstance(error, UsageError), (text[:80], error)


def test_a_trace_is_kept_under_no_keyword(cell):
    assert isinstance(cell("%%gpuscope -o class\n1")[2], UsageError)
