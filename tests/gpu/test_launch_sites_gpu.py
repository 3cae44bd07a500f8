"""Launch sites of PyTorch, CuPy and Triton: each kernel at the line that launched it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.trace.sites import lines_of

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


def line_of(text):
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def forward(x):
    y = x @ x  # product
    return torch.relu(y)  # relu


def sites(trace, kind="kernel"):
    """Return (name, line, function) of each row's innermost line."""
    rows = zip(trace.texts("kind"), trace.texts("name"), trace.texts("site"), strict=True)
    lines = [(name, lines_of(site)) for of, name, site in rows if of == kind]
    return [(name, at[0].line, at[0].function) if at else (name, 0, "") for name, at in lines]


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def test_kernels_and_calls_of_pytorch_are_at_their_lines(gpu):
    x = torch.rand(256, 256, device="cuda")
    forward(x)
    with gs.profile(gpu) as recording:
        for _ in range(50):
            forward(x)
    lines = {(line, function) for _, line, function in sites(recording.trace)}
    product, relu = (line_of(f"# {text}") for text in ("product", "relu"))
    assert lines == {(product, "forward"), (relu, "forward")}
    lines = {(line, function) for _, line, function in sites(recording.trace, "api")}
    assert lines == {(product, "forward"), (relu, "forward")}
    summed = gs.analysis.launch_sites(recording.trace)
    kernels = recording.trace.kind_counts()["kernel"]
    assert sum(site.kernels for site in summed.sites) == kernels >= 100


def test_each_thread_has_its_own_lines_and_autograds_has_none(gpu):
    x = torch.rand(64, 64, device="cuda", requires_grad=True)
    forward(x).sum().backward()

    def on_a_thread():
        for _ in range(50):
            torch.sin(x.detach())  # thread

    with gs.profile(gpu) as recording:
        threads = [threading.Thread(target=on_a_thread) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            forward(x)
        for thread in threads:
            thread.join()
        forward(x).sum().backward()
    told = sites(recording.trace)
    sines = {(line, function.rpartition(".")[2]) for name, line, function in told if "sin" in name}
    assert sines == {(line_of("# thread"), "on_a_thread")}
    assert any(line == 0 for _, line, _ in told), "autograd's thread is in no line of Python"
    assert all(line for name, line, _ in told if "sin" in name)


def test_without_stacks_there_are_none(gpu):
    x = torch.rand(64, 64, device="cuda")
    with gs.profile(gpu, stacks=False) as recording:
        forward(x)
    assert set(recording.trace.texts("site")) == {None}


def test_lines_of_cupy_and_of_our_own_launches(gpu):
    cupy = pytest.importorskip("cupy")
    x = cupy.ones(1000)
    gemm = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream:
        gemm.execute(stream=stream)
        _ = x + 1
        with gs.profile(gpu) as recording:
            gemm.execute(stream=stream)  # ours
            _ = x + 1  # cupy's
    lines = {line for _, line, _ in sites(recording.trace)}
    assert lines == {line_of("# ours"), line_of("# cupy's")}


def test_lines_are_in_what_record_writes(gpu, tmp_path):
    import subprocess
    import sys

    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "def step(x):\n"
        "    return x @ x\n"
        "x = torch.rand(64, 64, device='cuda')\n"
        "for _ in range(20):\n"
        "    step(x)\n"
        "torch.cuda.synchronize()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", "record", "--out", tmp_path / "out", "--no-report",
         program],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").glob("*.parquet")
    trace = gs.load_trace(file)
    assert {name for name, _, _ in sites(trace)}
    by_line = {
        tuple((line.file, line.line) for line in lines_of(site))
        for kind, site in zip(trace.texts("kind"), trace.texts("site"), strict=True)
        if kind == "kernel"
    }
    assert (("train.py", 3), ("train.py", 6)) in by_line
