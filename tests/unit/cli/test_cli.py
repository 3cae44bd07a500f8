"""The command line: exit codes, what goes to stdout, and what lies in the folder afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuscope as gs
import gpuscope.cli.commands
from gpuscope import cli
from gpuscope.device import diagnose, select
from gpuscope.device.api import Capabilities
from gpuscope.device.cuda import driver
from gpuscope.errors import DeviceUnavailable
from gpuscope.simulator.calibration import command as calibration_command
from gpuscope.simulator.calibration.calibrator import Calibration
from gpuscope.simulator.profiles.profile import GpuProfile

EXPERIMENT = {
    "name": "trial",
    "alone_repeats": 2,
    "streams": {"s": {}, "l": {}},
    "workloads": {
        "small": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s", "repeats": 5},
        "load": {
            "kind": "spin", "duration_us": 20, "blocks": 132, "stream": "l", "background": True,
            "max_queued": 3,
        },
    },
    "settings": {
        "shared": {},
        "16 | rest": {
            "partitions": {"a": 16, "b": "rest"},
            "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        },
    },
}  # fmt: skip
H200 = Path(gs.__file__).parent / "simulator" / "profiles" / "h200.json"
FILES = ["comparison.json", "report.html", "trace-16-rest.parquet", "trace-shared.parquet"]


@pytest.fixture
def command(monkeypatch, capsys):
    """Call main() with arguments; returns exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call


@pytest.fixture
def without_cuda(monkeypatch):
    """Make every CUDA package impossible to import, and forget devices that are open."""
    for name in ("cuda", "cuda.core", "cuda.bindings", "cuda.bindings.driver", "cupy", "nvmath"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(select, "_cuda", {})
    monkeypatch.setattr(driver, "has_driver", lambda: False)


@pytest.fixture
def trial(tmp_path):
    path = tmp_path / "trial.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


def in_a_process(*arguments, **options):
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", *map(str, arguments)],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- run ----------------------------------------------------------------------------------


def comparison(out):
    return json.loads((out / "comparison.json").read_text("utf-8"))


def test_run_writes_report_comparison_and_traces(command, trial, tmp_path):
    out = tmp_path / "new" / "folder"
    code, printed, _ = command("run", trial, "--device", "sim:h200", "--out", out)
    assert code == 0
    assert names(out) == FILES
    assert "NVIDIA H200 (simulated)" in printed
    assert "SIMULATED" in printed
    assert "was granted" not in printed, "the rest is what is left"
    assert f"wrote {out / 'report.html'}\n" in printed
    assert all(name in printed for name in FILES)
    trace = gs.load_trace(out / "trace-16-rest.parquet")
    assert trace.metadata.setting == "16 | rest"
    assert len(trace.where(kind="kernel", category="small")) == 5
    assert {row["workload"] for row in comparison(out)["comparison"]} == {"small", "load"}
    assert comparison(out)["simulated"] is True
    assert comparison(out)["devices"]["sim:h200"]["name"] == "NVIDIA H200 (simulated)"
    report = (out / "report.html").read_text()
    assert report.startswith("<!DOCTYPE html>")
    assert "trial" in report


def test_run_with_json_prints_json_and_nothing_else(trial, tmp_path):
    done = in_a_process("run", trial, "--device", "sim:h200", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["simulated"] is True
    assert facts["stopped"] is False
    assert sorted(Path(name).name for name in facts["files"]) == FILES
    assert all(Path(name).is_file() for name in facts["files"])
    assert facts["comparison"] == comparison(tmp_path / "out")["comparison"]
    assert [row["kernels"] for row in facts["comparison"] if row["workload"] == "small"] == [5, 5]


@pytest.mark.parametrize("lying", FILES)
def test_run_replaces_nothing_that_is_there_unless_told(
    command, trial, tmp_path, lying, monkeypatch
):
    out = tmp_path / "out"
    out.mkdir()
    (out / lying).write_text("mine")
    run = ("run", trial, "--device", "sim:h200", "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(cli.experiments, "run_experiment", None)  # told before anything is run
        code, _, said = command(*run)
    assert code == cli.BAD_USAGE
    assert f"{lying!r} is there already" in said
    assert "--force" in said
    assert (names(out), (out / lying).read_text()) == ([lying], "mine")
    assert command(*run, "--force")[0] == 0
    assert names(out) == FILES
    assert command(*run)[0] == cli.BAD_USAGE


def test_predict_and_calibrate_replace_nothing_unless_told(command, trial, tmp_path, monkeypatch):
    out, ran, profile = tmp_path / "out", tmp_path / "ran", tmp_path / "gpu.json"
    assert command("run", trial, "--device", "sim:h200", "--out", ran)[0] == 0
    out.mkdir()
    (out / "compare.html").write_text("mine")
    predict = ("predict", trial, "--against", ran, "--out", out)
    code, _, said = command(*predict)
    assert (code, names(out)) == (cli.BAD_USAGE, ["compare.html"])
    assert "'compare.html' is there already" in said
    assert command(*predict, "--force")[0] == 0
    assert command(*predict)[0] == cli.BAD_USAGE
    profile.write_text("mine")
    monkeypatch.setattr(calibration_command, "calibrate", None)
    code, _, said = command("calibrate", "--device", "sim:h200", "--out", profile)
    assert code == cli.BAD_USAGE
    assert "'gpu.json' is there already" in said
    assert profile.read_text() == "mine"


def test_names_are_foreign_text(command, tmp_path):
    """No markup on the terminal, no path and no clash in the folder."""
    strange = ["[/red]", "../../up", "a b", "a-b", "\u202e", "x" * 300]
    experiment = {
        **EXPERIMENT,
        "name": "[/bold] {task.total}",
        "workloads": {"[red]w[/]": EXPERIMENT["workloads"]["small"]},
        "settings": {name: {} for name in strange},
    }
    path = tmp_path / "trial.json"
    path.write_text(json.dumps(experiment))
    out = tmp_path / "out"
    code, printed, _ = command("run", path, "--device", "sim:h200", "--out", out)
    assert code == 0
    assert "[/red]" in printed
    assert names(tmp_path) == ["out", "trial.json"]
    traces = sorted(out.glob("*.parquet"))
    assert sorted(gs.load_trace(one).metadata.setting for one in traces) == sorted(strange)


def test_ctrl_c_writes_what_was_recorded_and_exits_1(command, trial, tmp_path, monkeypatch):
    real = cli.experiments.run_experiment

    def interrupted(experiment, device, *, viewer):
        def view(progress):
            viewer(progress)
            if progress.setting == "16 | rest":
                raise KeyboardInterrupt

        return real(experiment, device, viewer=view)

    monkeypatch.setattr(cli.experiments, "run_experiment", interrupted)
    out = tmp_path / "out"
    with pytest.warns(UserWarning, match="interrupted"):
        code, printed, _ = command("run", trial, "--device", "sim:h200", "--out", out)
    assert code == 1
    assert "stopped early" in printed
    assert names(out) == FILES
    assert len(gs.load_trace(out / "trace-shared.parquet").where(kind="kernel")) > 5
    with pytest.warns(UserWarning, match="interrupted"):
        code, printed, _ = command(
            "run", trial, "--device", "sim:h200", "--out", out, "--json", "--force"
        )
    assert code == 1
    assert json.loads(printed)["stopped"] is True


# -- predict ------------------------------------------------------------------------------


def test_predict_compares_with_a_run(command, trial, tmp_path):
    ran, out = tmp_path / "ran", tmp_path / "predicted"
    assert command("run", trial, "--device", "sim:h200", "--out", ran, "--json")[0] == 0
    code, told, _ = command("predict", trial, "--against", ran, "--out", out)
    assert code == 0
    assert names(out) == sorted([*FILES, "compare.html"])
    assert "inside the band" in told
    assert "SIMULATED" in told
    code, told, _ = command("predict", trial, "--against", ran, "--out", out, "--json", "--force")
    checked = json.loads(told)["checked"]
    assert {row["of"] for rows in checked.values() for row in rows} == {"small", "load"}
    assert {row["change (%)"] for rows in checked.values() for row in rows} == {0}


def test_predict_alone_is_a_run_on_the_simulated_gpu(command, trial, tmp_path):
    code, told, _ = command("predict", trial, "--out", tmp_path / "predicted", "--json")
    assert code == 0
    assert json.loads(told)["simulated"] is True
    assert names(tmp_path / "predicted") == FILES


def test_predict_refuses_what_it_cannot_compare(command, trial, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, told = command("predict", trial, "--against", empty, "--out", tmp_path / "out")
    assert code == cli.BAD_USAGE
    assert f"no traces of a run in '{empty}'" in told
    assert not (tmp_path / "out").exists(), "told before anything is run"
    code, _, told = command("predict", trial, "--gpu-profile", "nope", "--out", tmp_path / "out")
    assert code == cli.BAD_USAGE
    assert "nope" in told


def test_a_folder_that_is_used_again_holds_the_last_run_only(command, tmp_path):
    """And what is not gpuscope's."""
    out, against = tmp_path / "out", tmp_path / "against"
    path = tmp_path / "trial.json"

    def run(verb, folder, *options, status=0, **settings):
        path.write_text(json.dumps({**EXPERIMENT, "settings": settings}))
        where = () if verb == "predict" else ("--device", "sim:h200")
        code, _, said = command(verb, path, *where, "--out", folder, *options)
        assert code == status, said

    run("run", against, first={}, second={})
    run("predict", out, "--against", against, first={}, second={})
    foreign = ["notes.txt", "trace-mine.parquet"]
    for name in foreign:
        (out / name).write_text("foreign")
    assert "trace-second.parquet" in names(out)
    run("run", out, "--force", first={})
    assert names(out) == [
        "comparison.json", "notes.txt", "report.html", "trace-first.parquet", "trace-mine.parquet",
    ]  # fmt: skip
    run("predict", tmp_path / "other", "--against", out, status=cli.FAILED, first={}, second={})


def test_a_run_that_was_not_written_to_its_end_is_not_compared_with(command, trial, tmp_path):
    out = tmp_path / "out"
    assert command("run", trial, "--device", "sim:h200", "--out", out)[0] == 0
    (out / "comparison.json").unlink()
    code, _, said = command("predict", trial, "--against", out, "--out", tmp_path / "predicted")
    assert code == cli.BAD_USAGE
    assert "not written to its end" in said


@pytest.mark.parametrize("traces", [["../trial.json"], ["trace-../x.parquet"], 3, [3], None])
def test_a_comparison_names_no_files_elsewhere(command, trial, tmp_path, traces):
    """Whoever writes one must not have files read or removed by it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "comparison.json").write_text(json.dumps({"traces": traces}))
    assert command("run", trial, "--device", "sim:h200", "--out", out, "--force")[0] == 0
    assert trial.exists()
    assert names(out) == FILES


def test_settings_with_like_names_have_a_trace_each(command, tmp_path):
    path, out = tmp_path / "trial.json", tmp_path / "out"
    settings = {name: {} for name in ("a-2", "a", "a!", "a?", "!", "?")}
    path.write_text(json.dumps({**EXPERIMENT, "settings": settings}))
    assert command("run", path, "--device", "sim:h200", "--out", out)[0] == 0
    traces = [gs.load_trace(out / name) for name in comparison(out)["traces"]]
    assert [trace.metadata.setting for trace in traces] == list(settings)


# -- calibrate ----------------------------------------------------------------------------


@pytest.fixture
def calibrated(monkeypatch):
    """Let a calibration end at once, with what the shipped profile says."""

    def calibrate(device, path, *, progress, executor=None):
        progress(0.0, "calls")
        progress(1.0, "done")
        executors.append(executor)
        one = {"rows": 12, "median": 0.061, "p90": 0.24, "share_median": 0.2, "share_p90": 1.1}
        shutil.copyfile(H200, path)
        return Calibration(
            path=path, profile=GpuProfile.read(path).file, errors={"float16": one, "all": one},
            held_out={"all": one | {"median": 0.072}},
            told_errors={"rows": 5, "median": 0.05, "p90": 0.17}, unreadable=("odd [red]kernel",),
            skipped=6, notes=("a note",), measured_s=17.2, fitted_s=6.3,
        )  # fmt: skip

    executors: list[str | None] = []
    monkeypatch.setattr(calibration_command, "calibrate", calibrate)
    return executors


def test_calibrate_writes_a_profile_and_shows_its_errors(command, calibrated, trial, tmp_path):
    path = tmp_path / "new" / "mine.json"
    code, printed, _ = command("calibrate", "--device", "sim:h200", "--out", path)
    assert code == 0
    assert names(path.parent) == ["mine.json"]
    assert f'wrote {path}: open_device("sim:{path}")' in printed
    assert "6.1%, 24.0%" in printed
    assert "7.2%, 24.0%" in printed
    assert "told the SM count: 5.0%, 17.0%" in printed
    assert "odd [red]kernel" in printed
    assert "6 timings left out" in printed
    assert "17 s of measuring, 6 s of fitting" in printed
    code, printed, _ = command("predict", trial, "--gpu-profile", path, "--out", tmp_path / "out")
    assert code == 0, printed


def test_calibrate_with_json_prints_json_and_nothing_else(command, calibrated, tmp_path):
    path = tmp_path / "mine.json"
    given = ("--workers", "processes:2", "--device", "sim:h200", "--out", path, "--json")
    code, printed, _ = command("calibrate", *given)
    assert code == 0
    assert calibrated == ["processes:2"]
    facts = json.loads(printed)
    assert facts["file"] == str(path)
    assert facts["errors"]["all"]["median"] == 0.061
    assert facts["notes"] == ["a note"]


def test_calibrate_refuses_what_is_no_gpu(command, tmp_path, without_cuda):
    path = tmp_path / "mine.json"
    code, _, told = command("calibrate", "--device", "sim:h200", "--out", path)
    assert code == 2
    assert "calibrate measures a real GPU, and sim:h200 is simulated" in told
    code, _, told = command("calibrate", "--out", path)
    assert code == 2
    assert "no NVIDIA driver was found" in told
    assert names(tmp_path) == []


def test_ctrl_c_in_calibrate_writes_nothing(command, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration_command, "calibrate", interrupt)
    out = tmp_path / "mine.json"
    code, printed, _ = command("calibrate", "--device", "sim:h200", "--out", out, "--json")
    assert code != 0
    assert "wrote" not in printed
    assert names(tmp_path) == []


# -- what goes wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"bogus": 1}, ["bogus: unknown key", "allowed: 'name'"]),
        ({"partitions": {"a": -8}}, ["partitions.a: should be a whole number of SMs", "-8"]),
        (
            {"streams": {"s": {"partition": "gone"}, "l": {}}},
            ["streams.s.partition: 'gone'", "allowed"],
        ),
        (
            {"workloads": {"small": {**EXPERIMENT["workloads"]["small"], "dtype": "int8"}}},
            ["workloads.small.dtype: ", "'float16'", "'int8'"],
        ),
    ],
)
def test_a_bad_experiment_exits_2_with_the_fields_path(command, tmp_path, change, texts):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(EXPERIMENT | change))
    code, printed, said = command("run", path, "--device", "sim:h200", "--out", tmp_path / "out")
    assert code == 2
    assert printed == ""
    assert said.startswith("gpuscope: ")
    for text in texts:
        assert text in said
    assert names(tmp_path) == ["bad.json"]


def test_a_file_that_is_no_toml_exits_2(command, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("name = \n")
    code, _, said = command("run", path)
    assert code == 2
    assert "'bad.toml' is not TOML" in said
    assert "line 1" in said


def test_a_file_that_is_not_there_exits_2(command, tmp_path):
    code, _, said = command("run", tmp_path / "gone.toml", "--out", tmp_path / "out")
    assert code == 2
    assert "'gone.toml'" in said
    assert names(tmp_path) == []


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "sim:", "sim:b200", "", "cpu0"])
def test_an_unknown_device_exits_2_and_is_named(command, trial, tmp_path, device):
    code, printed, said = command("run", trial, "--device", device, "--out", tmp_path / "out")
    assert code == 2
    assert printed == ""
    assert "sim:h200" in said, "and says which there are"
    assert not (tmp_path / "out").exists()


def test_a_carving_that_cannot_be_exits_2(command, tmp_path):
    path = tmp_path / "trial.json"
    path.write_text(json.dumps(EXPERIMENT | {"settings": {"x": {"partitions": {"a": 7}}}}))
    code, _, said = command("run", path, "--device", "sim:h200", "--out", tmp_path / "out")
    assert code == 2
    assert "8 above" in said


def test_without_a_gpu_cuda_is_an_error_and_auto_says_why(command, trial, tmp_path, without_cuda):
    code, _, said = command("run", trial, "--device", "cuda:0", "--out", tmp_path / "out")
    assert code == 2
    assert "no NVIDIA driver was found" in said
    code, printed, _ = command("run", trial, "--device", "auto", "--out", tmp_path / "out")
    assert code == 0
    assert "no GPU used: " in printed
    assert "no NVIDIA driver was found" in printed
    assert "use a machine" not in printed


def test_a_folder_that_cannot_be_made_is_told_before_the_run(command, trial, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("it ran, and what it recorded would be lost")

    monkeypatch.setattr(cli.experiments, "run_experiment", fail)
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, _, said = command("run", trial, "--device", "sim:h200", "--out", out)
        assert code == 2
        assert "cannot make the folder" in said
        assert "Choose another path" in said
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("before", [None, "an earlier report"])
def test_a_disk_that_fills_while_the_report_is_written(
    command, trial, tmp_path, monkeypatch, before
):
    out = tmp_path / "out"
    out.mkdir()
    if before is not None:
        (out / "report.html").write_text(before)
    real = Path.write_text

    def fills_up(self, text, *args, **kwargs):
        if "report.html" in self.name:
            real(self, text[:1000], *args, **kwargs)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, text, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fills_up)
        code, _, said = command("run", trial, "--device", "sim:h200", "--out", out, "--force")
    assert code == 2
    assert "could not write 'report.html'" in said
    assert "No space left" in said
    assert names(out) == [name for name in FILES if before is not None or name != "report.html"]
    if before is not None:
        assert (out / "report.html").read_text() == before
    assert len(gs.load_trace(out / "trace-shared.parquet")) > 0, "what was recorded is kept"


def test_a_limit_that_the_system_sets_is_met_in_the_same_way(trial, tmp_path):
    """No fake: the system refuses files above 1 MB, which the report is and the traces are not."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    out = tmp_path / "out"
    done = in_a_process("run", trial, "--device", "sim:h200", "--out", out, preexec_fn=limit)
    assert done.returncode == 2
    assert "could not write 'report.html': File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert names(out) == [name for name in FILES if name != "report.html"]


# -- usage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["run"], "Missing argument"),
        (["run", "x.toml", "--bogus"], "No such option"),
        (["doctor", "extra"], "unexpected extra argument"),
    ],
)
def test_bad_usage_exits_2(command, arguments, text):
    code, printed, said = command(*arguments)
    assert code == 2
    assert printed == ""
    assert text in said


def test_exit_codes_reach_the_shell(trial, tmp_path):
    assert in_a_process("run", tmp_path / "gone.toml").returncode == 2
    assert in_a_process("bogus").returncode == 2
    done = in_a_process("run", trial, "--device", "gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("gpuscope: unknown device 'gpu'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["run", "devices", "doctor"]),
        (["run"], ["--device", "--out", "--json", "Example", "experiment"]),
        (["devices"], ["--json", "List the devices"]),
        (["doctor"], ["--json", "exit code"]),
    ],
)
def test_help_tells_what_a_command_does(command, arguments, texts):
    code, printed, said = command(*arguments, "--help")
    assert code == 0
    assert said == ""
    for text in texts:
        assert text in printed


def test_errors_that_are_not_ours_are_not_hidden(trial, monkeypatch):
    def fail(path):
        raise ZeroDivisionError

    monkeypatch.setattr(cli.experiments.Experiment, "from_file", fail)
    monkeypatch.setattr(sys, "argv", ["gpuscope", "run", str(trial)])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# -- devices and doctor -------------------------------------------------------------------


def test_devices_lists_what_can_be_opened_and_why_not(command, without_cuda):
    code, printed, _ = command("devices")
    assert code == 0
    assert "cuda:0: no NVIDIA driver was found" in printed
    for name in ("h100: NVIDIA H100 80GB HBM3", "h200: NVIDIA H200"):
        assert f"sim:{name} (simulated), 132 SMs" in printed
    code, printed, said = command("devices", "--json")
    cuda, *both = json.loads(printed)
    assert (code, said) == (0, "")
    assert cuda["device"] == "cuda:0"
    assert cuda["available"] is False
    assert [one["device"] for one in both] == ["sim:h100", "sim:h200"]
    for simulated in both:
        assert simulated["available"] is simulated["simulated"] is True
        assert simulated["sm_count"] == 132


def test_doctor_without_cuda_says_what_to_do_and_exits_1(command, without_cuda):
    code, printed, _ = command("doctor")
    assert code == 1
    assert "no  driver: " in printed
    assert "no  CuPy: " in printed
    assert "→ use a machine with an NVIDIA GPU" in printed
    assert printed.count("→ Run: pip install 'gpuscope[cuda13]'") == 1
    assert "ok  JupyterLab: installed" in printed
    assert "simulated H200" in printed
    code, printed, said = command("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(printed)}
    assert (code, said) == (1, "")
    assert checks["driver"]["ok"] is False
    assert checks["JupyterLab"]["ok"] is True
    for check in checks.values():
        assert set(check) == {"name", "ok", "found", "todo"}
        assert check["ok"] == (not check["todo"]), "each line is ok or says what to do"


class FakeGpu:
    """What the doctor asks of an open device."""

    class info:  # noqa: N801 - stands for an instance
        name = "NVIDIA Fake"
        sm_count = 132

    class layout:  # noqa: N801 - stands for an instance
        quanta = 15
        quantum_sm_count = 8

    class backend:  # noqa: N801 - stands for an instance
        current = contextlib.nullcontext

    capabilities = driver.capabilities(13000, pools=True)


@pytest.fixture
def gpu_here(monkeypatch):
    """Pretend to a driver with CUDA 13.0, CuPy and one GPU."""

    class Cupy:
        __version__ = "14.2.0"
        cuda = SimpleNamespace(
            runtime=SimpleNamespace(memGetInfo=lambda: (free.pop() << 30, 80 << 30))
        )

    free = [70]

    monkeypatch.setattr(driver, "driver_version", lambda: 13000)
    monkeypatch.setattr(driver, "driver_release", lambda: "580.159")
    monkeypatch.setattr(driver, "import_cupy", lambda: Cupy)
    monkeypatch.setattr(select, "open_device", lambda spec, quiet: FakeGpu)
    return free


def test_doctor_with_a_gpu_exits_0(command, gpu_here):
    code, printed, _ = command("doctor")
    assert code == 0
    assert "ok  driver: 580.159" in printed
    assert "ok  CUDA: driver has 13.0" in printed
    assert "ok  green contexts: the driver has them" in printed
    assert "ok  carving: by composed quanta: groups of different sizes need" in printed
    assert "ok  CuPy: 14.2.0" in printed
    assert "ok  cuda:0: NVIDIA Fake, 132 SMs, 15 quanta of 8" in printed
    assert "ok  free memory: 70.0 of 80.0 GiB" in printed
    assert "The quickstart would run on this GPU." in printed


@pytest.mark.parametrize(
    ("can", "code", "line"),
    [
        (Capabilities(partitions=True, partition_path="heterogeneous split"), 0,
         "ok  carving: by heterogeneous split\n"),
        (Capabilities(partitions=True, partition_path="composed quanta",
                      reasons={"arbitrary_split": "the driver refuses"}), 0,
         "ok  carving: by composed quanta: the driver refuses\n"),
        (Capabilities(reasons={"partitions": "the driver refuses"}), 1,
         "no  carving: the driver refuses\n     → update the driver"),
    ],
)  # fmt: skip
def test_doctor_says_how_the_driver_was_found_to_split(
    command, gpu_here, monkeypatch, can, code, line
):
    monkeypatch.setattr(FakeGpu, "capabilities", can)
    status, printed, _ = command("doctor")
    assert status == code
    assert line in printed


def test_doctor_with_a_full_gpu(command, gpu_here):
    gpu_here[0] = 1
    code, printed, _ = command("doctor")
    assert code == 1
    assert "no  free memory: 1.0 of 80.0 GiB\n     → end what else uses the GPU" in printed


def test_doctor_says_who_may_read_counters_and_where_ranges_go(command, monkeypatch, tmp_path):
    class Sampler:
        refusal, without, gpus = "", (), []

        def __init__(self, _device, gpu, _every_ns):
            self.gpus.append(gpu)

        def wait(self, _until_s):
            pass

        def end(self):
            pass

    parameters = tmp_path / "params"
    monkeypatch.setattr(cli.machine, "_DRIVER_PARAMETERS", parameters)
    monkeypatch.setattr(cli.machine, "CounterProcess", Sampler)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    Sampler.refusal = "ncu samples this GPU"
    assert "no  performance counters: open to everybody, but not" in command("doctor")[1]
    assert Sampler.gpus == ["3"]
    Sampler.refusal = ""
    assert "ok  performance counters: open to everybody" in command("doctor")[1]
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(cli.machine.os, "geteuid", lambda: 1000)
    assert "no  performance counters: open to administrators only" in command("doctor")[1]
    monkeypatch.setattr(cli.machine.os, "geteuid", lambda: 0)
    assert "ok  performance counters: open to administrators" in command("doctor")[1]
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(tmp_path / "gone.so"))
    assert "no  NVTX injection: NVTX_INJECTION64_PATH names no file" in command("doctor")[1]
    for name, mark in (("libcupti.so.13", "ok"), ("tool.so", "no")):
        (tmp_path / name).touch()
        monkeypatch.setenv("NVTX_INJECTION64_PATH", str(tmp_path / name))
        assert f"{mark}  NVTX injection: NVTX_INJECTION64_PATH is set" in command("doctor")[1]


def test_without_a_driver_nobody_is_told_to_install_cupti(monkeypatch):
    def no_driver():
        raise DeviceUnavailable("no NVIDIA driver was found: use another machine")

    monkeypatch.setattr(driver, "driver_version", no_driver)
    check = diagnose.check_cupti()
    assert (check.ok, check.found) == (False, "no NVIDIA driver was found")
    assert check.todo == "use another machine"


def test_doctor_says_who_holds_cupti(command, monkeypatch):
    class Held:
        def subscribe(self):
            raise cli.machine.Refused("Nsight Systems")

        def unsubscribe(self, handle):
            raise AssertionError

    monkeypatch.setattr(
        cli.machine, "check_cupti", lambda: diagnose.Check("CUPTI", ok=True, found="")
    )
    monkeypatch.setattr(cli.machine, "Library", Held)
    printed = command("doctor")[1]
    assert "no  CUPTI's subscription: held by Nsight Systems" in printed


def test_doctor_finds_nsys_and_what_it_lacks(command, monkeypatch, tmp_path):
    tool = tmp_path / "nsys"
    tool.touch()
    monkeypatch.setattr(cli.machine._nsys, "find", lambda name: tool)
    monkeypatch.setattr(cli.machine._nsys, "missing_libraries", lambda path: ["libdw.so.1"])
    printed = command("doctor")[1]
    assert f"no  nsys: {tool}\n     → install libdw.so.1" in printed
    assert f"ok  ncu: {tool}" in printed


def test_doctor_with_a_driver_too_old_for_green_contexts(command, gpu_here, monkeypatch):
    monkeypatch.setattr(driver, "driver_version", lambda: 12020)
    code, printed, _ = command("doctor")
    assert code == 1
    assert "no  green contexts: green contexts need a driver with CUDA 12.4 or newer" in printed
    assert "12.2 was found" in printed
    assert "→ update the driver to CUDA 12.4 or newer" in printed


def test_doctor_with_a_gpu_that_does_not_open(command, gpu_here, monkeypatch):
    def fail(spec, quiet):
        raise DeviceUnavailable("the GPU fell off the bus. Reboot the machine")

    monkeypatch.setattr(select, "open_device", fail)
    code, printed, _ = command("doctor")
    assert code == 1
    assert "no  cuda:0: the GPU fell off the bus" in printed
    assert "→ Reboot the machine" in printed


def test_doctor_says_that_nsight_sees_no_ranges_without_nvtx(command, monkeypatch):
    monkeypatch.setattr(cli.machine.nvtx, "missing", lambda: "it is not there")
    printed = command("doctor")[1]
    assert re.search("no  nvtx: the package nvtx is not installed.*\n     → pip install", printed)


def test_doctor_without_jupyter_is_no_failure_of_the_gpu(command, gpu_here, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, printed, _ = command("doctor")
    assert code == 0
    assert "no  JupyterLab: missing\n     → pip install 'gpuscope[lab]'" in printed


def test_every_refusal_splits_into_what_was_found_and_what_to_do():
    for text, todo in (
        ("it is gone. Do this", "Do this"),
        ("it is gone: do this", "do this"),
        ("it is gone", "see the documentation on installing"),
    ):
        found, said = diagnose._parts(gs.errors.GpuscopeError(text))
        assert (found, said) == ("it is gone", todo)
