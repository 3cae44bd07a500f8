"""The program that samples hardware counters, beside a libcupti that plays what is planted."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORD = struct.Struct("<QQdddd")
HEADER = struct.Struct("<8sII")
EVERY_NS = 100_000
SMS = 132
CRC = 7
LONGEST_S = 60
KILLABLE = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=0)
time.sleep(600)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="samples on Linux alone")


def _compiling():
    spec = importlib.util.spec_from_file_location(
        "compile_fastpath", ROOT / "scripts" / "compile_fastpath.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the program, and with the libcupti that is none."""
    compiling = _compiling()
    command = compiling.compiler()
    if command is None:
        pytest.skip("no C compiler is here")
    folder = tmp_path_factory.mktemp("compiled")
    strict = ["-Wall", "-Wextra", "-Werror", f"-DSOURCE_CRC={CRC}u"]
    sources = {
        "_counters": [*strict, str(ROOT / "gpuscope" / "_counters.c")],
        "libcupti.so.13": ["-shared", "-fPIC", str(Path(__file__).with_name("fake_pm.c"))],
    }
    for target, words in sources.items():
        assert compiling.run([*command, *words, "-o", str(folder / target), "-ldl"]) == ""
    return folder


class Sampler:
    """Starts the program, and reads what it wrote."""

    def __init__(self, folder, path):
        self.folder, self.path = folder, path
        self.log = path.with_name("log")

    def command(self, *, every_ns=EVERY_NS, libraries=None):
        program = self.folder / "_counters"
        return [str(program), str(libraries or self.folder), str(every_ns), str(self.path)]

    def environment(self, planted):
        environment = {key: value for key, value in os.environ.items() if key[:5] != "FAKE_"}
        environment["GPUSCOPE_LIBCUDA"] = str(self.folder / "libcupti.so.13")
        environment["FAKE_LOG"] = str(self.log)
        return environment | {f"FAKE_{key}": str(value) for key, value in planted.items()}

    def start(self, command=None, **planted):
        return subprocess.Popen(
            command or self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment(planted),
        )

    def run(self, command=None, **planted):
        """Let it sample until its standard input ends; returns its status and lines of words."""
        return ended(self.start(command, **planted))

    def records(self):
        """Return its records, with times in intervals since the first one began."""
        content = self.path.read_bytes()
        assert HEADER.unpack_from(content) == (b"GSPMSMP1", RECORD.size, 0)
        assert (len(content) - HEADER.size) % RECORD.size == 0
        records = list(RECORD.iter_unpack(content[HEADER.size :]))
        first_ns = records[0][0] if records else 0
        return [
            ((start - first_ns) / EVERY_NS, (end - first_ns) / EVERY_NS, *values)
            for start, end, *values in records
        ]

    def await_records(self, count):
        size = HEADER.size + count * RECORD.size
        wait_for(lambda: self.path.exists() and self.path.stat().st_size >= size)

    def calls(self):
        return self.log.read_text().splitlines()


def ended(process, end=None):
    """End it, by a signal or as its parent does; returns its status and lines of words."""
    if end is not None:
        process.send_signal(end)
        said = process.stdout.read()
        process.stdout.close()
        process.stdin.close()
        process.wait(LONGEST_S)
    else:
        said, _ = process.communicate(timeout=LONGEST_S)
    return process.returncode, [line.split() for line in said.decode().splitlines()]


def wait_for(is_so):
    until_s = time.monotonic() + LONGEST_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def true(number, *, at=None, tensor=True, dram=True):
    """What is to be written of a sample."""
    busy_sms = SMS * (number % 1000) / 1000
    at = number if at is None else at
    values = (
        busy_sms,
        busy_sms / 4 if tensor else math.nan,
        1000 + number if dram else math.nan,
        2000 + number if dram else math.nan,
    )
    return pytest.approx((at, at + 1, *values), nan_ok=True)


def gap(start, end):
    return pytest.approx((start, end, *[math.nan] * 4), nan_ok=True)


@pytest.fixture
def sampler(compiled, tmp_path):
    return Sampler(compiled, tmp_path / "samples")


def test_every_sample_but_the_first_is_written(sampler):
    status, lines = sampler.run(SAMPLES=100, AT_ONCE=7)
    assert status == 0
    assert lines[0] == ["ready", str(SMS), "GH100", "busy", "tensor", "dram"]
    assert lines[1][:3] == ["ended", "100", "0"]
    assert int(lines[1][3]) >= 0
    assert len(lines) == 2
    assert sampler.records() == [true(number) for number in range(100)]


def test_more_samples_than_an_image_holds(sampler):
    status, lines = sampler.run(SAMPLES=5000, AT_ONCE=5000)
    assert (status, lines[-1][:3]) == (0, ["ended", "5000", "0"])
    assert sampler.records() == [true(number) for number in range(5000)]


def test_it_asks_for_a_buffer_and_the_interval_by_time(sampler):
    assert sampler.run()[0] == 0
    calls = sampler.calls()
    assert f"config {512 << 20} {EVERY_NS} 1 0" in calls
    orderly = ["Enable", "SetConfig", "Start", "Stop", "Disable"]
    begun = [call.removeprefix("cuptiPmSampling") for call in calls]
    assert [call for call in begun if call in orderly] == orderly
    assert calls[-1] == "cuptiProfilerHostDeinitialize"


def test_a_live_view_sees_samples_while_it_runs(sampler):
    process = sampler.start(SAMPLES=50)
    sampler.await_records(50)
    assert process.poll() is None
    assert ended(process)[0] == 0


@pytest.mark.parametrize(
    ("function", "result", "reason"),
    [
        ("cuptiPmSamplingEnable", 35, "administrators"),
        ("cuptiPmSamplingEnable", 40, "administrators"),
        ("cuptiPmSamplingGetCounterAvailability", 35, "administrators"),
        ("cuptiPmSamplingGetCounterAvailability", 26, "taken"),
        ("cuptiPmSamplingEnable", 26, "taken"),
        ("cuptiPmSamplingSetConfig", 26, "taken"),
        *(("cuptiPmSamplingEnable", result, "unsupported") for result in (14, 27, 33)),
        *(("cuptiPmSamplingEnable", result, "unsupported") for result in range(41, 47)),
        ("cuptiDeviceGetChipName", 27, "unsupported"),
        ("cuInit", 100, "unsupported"),
        ("cuptiProfilerInitialize", 999, "failed"),
        ("cuptiPmSamplingStart", 7, "failed"),
    ],
)
def test_it_is_refused_for_a_reason(sampler, function, result, reason):
    status, [(word, told, *detail)] = sampler.run(RESULTS=f"{function}={result}")
    assert (status, word, told) == (1, "refused", reason)
    assert f"({result})" in detail
    if function != "cuInit":
        assert detail[:2] == [f"{function}:", "PLANTED"]
    assert sampler.records() == []


def test_it_tells_what_cupti_says_of_the_machine(sampler):
    _, [line] = sampler.run(RESULTS="cuptiPmSamplingEnable=999", WSL=1)
    assert line[:2] == ["refused", "failed"]
    assert line[-1] == "WSL"
    assert "vGPU" not in line


@pytest.mark.parametrize("result", [26, 35, 40])
def test_what_no_smaller_set_helps_against_is_asked_once(sampler, result):
    sampler.run(RESULTS=f"cuptiPmSamplingEnable={result}")
    assert sampler.calls().count("cuptiPmSamplingEnable") == 1


@pytest.mark.parametrize(
    ("version", "reason"), [(23, "old"), (18, "old"), (24, ""), (28, ""), (140000, "libraries")]
)
def test_it_knows_versions(sampler, version, reason):
    status, [first, *_] = sampler.run(VERSION=version)
    assert (status, first[:2]) == ((1, ["refused", reason]) if reason else (0, ["ready", "132"]))


def test_no_libraries(sampler, tmp_path):
    status, [line] = sampler.run(sampler.command(libraries=tmp_path))
    assert (status, line[:2]) == (1, ["refused", "libraries"])
    assert str(tmp_path / "libcupti.so.13:") in line


def test_libraries_are_not_looked_for_from_here(sampler, monkeypatch):
    monkeypatch.chdir(sampler.folder)
    status, [line] = sampler.run(sampler.command(libraries="."))
    assert (status, line[:2]) == (1, ["refused", "libraries"])


def test_no_interval(sampler):
    status, [line] = sampler.run(sampler.command(every_ns=0))
    assert (status, line[:2]) == (1, ["refused", "failed"])


@pytest.mark.parametrize(
    ("second_pass", "had", "values"),
    [
        ("pipe_tensor", ["busy", "dram"], {"tensor": False}),
        ("dram__", ["busy", "tensor"], {"dram": False}),
        ("r", ["busy"], {"tensor": False, "dram": False}),
    ],
)
def test_a_set_that_fits_into_one_pass_is_had(sampler, second_pass, had, values):
    status, lines = sampler.run(PASSES=second_pass, SAMPLES=20)
    assert (status, lines[0][3:]) == (0, had)
    assert sampler.records() == [true(number, **values) for number in range(20)]


def test_where_no_set_fits_it_takes_no_counters(sampler):
    status, lines = sampler.run(PASSES="sm__", SAMPLES=20)
    assert (status, lines[0][:2]) == (1, ["refused", "failed"])
    assert sampler.calls().count("cuptiProfilerHostInitialize") == 4
    assert sampler.calls().count("cuptiProfilerHostDeinitialize") == 4
    assert "cuptiPmSamplingEnable" not in sampler.calls()


@pytest.mark.parametrize("function", ["cuptiProfilerHostInitialize", "cuptiPmSamplingEnable"])
def test_a_newer_libcupti_takes_longer_parameters(sampler, function):
    status, _ = sampler.run(LONGER=function, SAMPLES=20)
    assert status == 0
    assert sampler.records() == [true(number) for number in range(20)]
    assert sampler.calls().count(function) == 2


def test_where_sampling_wants_a_context_it_makes_one(sampler):
    assert sampler.run(CONTEXT=1, SAMPLES=20)[0] == 0
    assert len(sampler.records()) == 20


def test_a_missing_sample_is_a_gap(sampler):
    status, lines = sampler.run(GAP=5, SAMPLES=10)
    assert (status, lines[-1][:3]) == (0, ["ended", "10", "1"])
    before = [true(number) for number in range(5)]
    after = [true(number, at=number + 1) for number in range(5, 10)]
    assert sampler.records() == [*before, gap(5, 6), *after]


@pytest.mark.parametrize("is_flagged", [0, 1])
def test_after_an_overflow_it_goes_on(sampler, is_flagged):
    process = sampler.start(OVERFLOW=30, SAMPLES=60, AT_ONCE=10, FLAGGED=is_flagged)
    sampler.await_records(31)
    status, lines = ended(process)
    assert (status, lines[-1][:3]) == (0, ["ended", "50", "1"])
    before, after = range(30), range(40, 60)
    assert sampler.records() == [*map(true, before), gap(30, 40), *map(true, after)]
    assert sampler.calls().count("cuptiPmSamplingEnable") == 2


def test_an_overflow_without_a_later_sample_is_a_gap_until_the_end(sampler):
    process = sampler.start(OVERFLOW=30, SAMPLES=40, AT_ONCE=10, AHEAD_S=0)
    wait_for(lambda: sampler.log.exists() and sampler.calls().count("cuptiPmSamplingStart") == 2)
    status, lines = ended(process)
    assert (status, lines[-1][:3]) == (0, ["ended", "30", "1"])
    *samples, last = sampler.records()
    assert samples == [true(number) for number in range(30)]
    assert last[0] == pytest.approx(30)
    assert last[1] > 30
    assert all(map(math.isnan, last[2:]))


def test_an_image_is_reset_before_it_is_full(sampler):
    status, lines = sampler.run(SAMPLES=20_000, AT_ONCE=700)
    assert (status, lines[-1][:3]) == (0, ["ended", "20000", "0"])
    records = sampler.records()
    assert [record[0] for record in records] == pytest.approx(range(20_000))
    assert records[::999] == [true(number) for number in range(0, 20_000, 999)]


def test_what_is_missing_at_the_end_is_a_gap(sampler):
    process = sampler.start(SAMPLES=40, AHEAD_S=-1)
    sampler.await_records(40)
    status, lines = ended(process)
    assert (status, lines[-1][:3]) == (0, ["ended", "40", "1"])
    *samples, last = sampler.records()
    assert samples == [true(number) for number in range(40)]
    assert last[0] == pytest.approx(40)
    assert last[1] > 1e9 / EVERY_NS - 1


def test_what_only_overflows_fails(sampler):
    process = sampler.start(sampler.command(every_ns=1000), OVERFLOW=-1)
    said = process.stdout.read()  # it ends by itself
    status, _ = ended(process)
    assert status == 2
    lines = [line.split() for line in said.decode().splitlines()]
    assert [line[0] for line in lines] == ["ready", "failed", "ended"]
    assert lines[1][1:] == ["cuptiPmSamplingDecodeData:", "PLANTED", "(8)"]
    assert sampler.calls().count("cuptiPmSamplingEnable") == 101


def test_a_failure_while_it_samples_is_told(sampler):
    status, lines = sampler.run(RESULTS="cuptiPmSamplingDecodeData=999")
    assert (status, [line[0] for line in lines]) == (2, ["ready", "failed", "ended"])


def test_sigterm_ends_it_with_all_samples(sampler):
    process = sampler.start(SAMPLES=100)
    process.stdout.readline()
    status, lines = ended(process, signal.SIGTERM)
    assert (status, lines[-1][:3]) == (0, ["ended", "100", "0"])
    assert len(sampler.records()) == 100


def test_an_interrupt_of_the_terminal_does_not(sampler):
    process = sampler.start(SAMPLES=100)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    sampler.await_records(100)
    assert process.poll() is None
    assert ended(process)[0] == 0


def test_words_to_it_do_not_end_it(sampler):
    process = sampler.start(SAMPLES=100)
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    sampler.await_records(100)
    assert process.poll() is None
    assert ended(process)[0] == 0


def test_it_ends_with_its_parent(sampler):
    """Its standard input stays open: only its parent is gone."""
    process = sampler.start([sys.executable, "-c", KILLABLE, *sampler.command()], SAMPLES=100)
    assert process.stdout.readline().startswith(b"ready")
    process.kill()
    process.wait(LONGEST_S)
    rest = process.stdout.read()  # until the last one that has it is gone
    assert rest.split()[:3] == [b"ended", b"100", b"0"]
    assert len(sampler.records()) == 100
    assert ended(process)[1] == []


def test_nobody_who_listens_does_not_end_it(sampler):
    process = sampler.start(SAMPLES=100)
    process.stdout.close()
    sampler.await_records(100)
    process.stdin.close()
    assert process.wait(LONGEST_S) == 0


def test_closed_standard_files_are_not_mistaken_for_the_samples(sampler):
    command = ["sh", "-c", '"$@" >&-', "sh", *sampler.command()]
    status, lines = sampler.run(command, SAMPLES=100)
    assert (status, lines) == (0, [])
    assert len(sampler.records()) == 100


def test_a_disk_that_is_full_from_the_start(sampler):
    sampler.path = Path("/dev/full")
    status, [line] = sampler.run()
    assert (status, line[:3]) == (1, ["refused", "failed", "disk:"])


def test_a_disk_that_becomes_full(sampler):
    command = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *sampler.command()]
    status, lines = sampler.run(command, SAMPLES=1000, LOG="/dev/null")
    assert (status, [line[0] for line in lines]) == (2, ["ready", "failed", "ended"])
    assert lines[1][1] == "disk:"
    content = sampler.path.read_bytes()[HEADER.size :]
    count = len(content) // RECORD.size
    whole = RECORD.iter_unpack(content[: count * RECORD.size])
    assert [read - 1000 for _, _, _, _, read, _ in whole] == list(range(count))


def test_nothing_is_left_of_many_samplers(sampler):
    for _ in range(20):
        assert sampler.run(SAMPLES=10)[0] == 0
        assert len(sampler.records()) == 10
    path = str(sampler.path).encode()
    left = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:
            continue
        if path in words:
            left.append(words)
    assert left == []


def test_it_tells_its_sources(sampler):
    done = subprocess.run(
        [sampler.folder / "_counters", "--crc"], capture_output=True, check=True, text=True
    )
    assert done.stdout == f"{CRC}\n"


def test_it_needs_three_words(sampler):
    done = subprocess.run([sampler.folder / "_counters", "a"], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
