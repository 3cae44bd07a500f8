"""``sweep`` and ``interference``: several runs of one experiment, and what they say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.csv
import typer

from gpuscope._files import make_folder, replacing
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.settings import SweepResult
from gpuscope.cli import FAILED
from gpuscope.cli.app import Json, app, run_bar, say, say_json, say_result, say_written
from gpuscope.device.select import open_device
from gpuscope.errors import InvalidExperiment
from gpuscope.report import interference_report, sweep_report
from gpuscope.runs.experiment import Experiment, ResolvedSetting
from gpuscope.runs.interference import measure_interference
from gpuscope.runs.refusals import listed
from gpuscope.runs.sweeps import Value, sweep

_File = Annotated[Path, typer.Argument(help="The experiment: a .toml or .json file.")]
_Device = Annotated[str, typer.Option(help="auto, cuda:N or sim:h200.")]


@app.command("sweep")
def sweep_command(
    file: _File,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=VALUES",
            help="What to vary, and its values: partitions.small=8,16 is that partition in every "
            "setting; any other path is one field, as workloads.load.m=1024,4096. Several form a "
            "grid.",
        ),
    ],
    device: _Device = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder for the points, the table and the report.")
    ] = Path("out/sweep"),
    as_json: Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Run an experiment at every point of a grid of parameters.

    Each finished point is kept in the folder at once. After Ctrl-C the same command goes on where
    it was stopped.

    Example: gpuscope sweep examples/choose_a_partition.toml --vary partitions.small=8,16,24,32
    """
    experiment = Experiment.from_file(file)
    parameters = dict(map(varied, vary))
    target = open_device(device, quiet=as_json)
    with run_bar(experiment.name) as view:
        result = sweep(experiment, parameters, target, path=out, viewer=view)
    table = out / "sweep.csv"
    with replacing(table) as temporary:
        pa.csv.write_csv(result.table, temporary)
    written = [sweep_report(result, out / "sweep.html"), table]
    _tell(result, written, stopped=result.stopped, as_json=as_json)


def varied(text: str) -> tuple[str, list[Value]]:
    """Read ``path=value,value``; or ``path=[…]``, a list as in JSON."""
    path, equals, values = text.partition("=")
    if not path or not equals or not values:
        raise InvalidExperiment(
            f"--vary {text!r}: give a path and its values, as partitions.small=8,16"
        )
    if values.startswith("["):
        try:
            return path, json.loads(values)
        except ValueError as error:
            raise InvalidExperiment(f"--vary {text!r}: that is no list: {error}") from error
    return path, [_value(value) for value in values.split(",")]


def _value(text: str) -> Value:
    """Read a number, true or false; anything else is a text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


@app.command("interference")
def interference_command(
    file: _File,
    setting: Annotated[
        str | None,
        typer.Option(help="The setting whose partitions are used; else the first that has some."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Calls a round, alone and in each pair.")] = 50,
    rounds: Annotated[int, typer.Option(help="Rounds, over which the spread is taken.")] = 5,
    inside: Annotated[
        float,
        typer.Option(help="Share of its time for which a kernel must meet the other workload."),
    ] = 1.0,
    device: _Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the report and the numbers.")] = Path(
        "out/interference"
    ),
    as_json: Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Measure how much longer each workload of an experiment takes while each other one runs.

    After Ctrl-C the pairs measured until then are kept.

    Example: gpuscope interference examples/interference.toml --inside 0.9
    """
    experiment = Experiment.from_file(file)
    chosen = _setting(experiment, setting)
    homes = {name: spec.partition for name, spec in chosen.streams.items()}
    workloads = {
        name: {**spec.model_dump(), "partition": homes[spec.stream]}
        for name, spec in chosen.workloads.items()
        if spec.launches
    }
    homeless = [name for name, spec in workloads.items() if spec["partition"] is None]
    if chosen.partitions and homeless:
        raise InvalidExperiment(
            f"in setting {chosen.name!r} {listed(homeless)} run on no partition: choose another "
            f"with --setting: {listed(experiment.settings)}"
        )
    target = open_device(device, quiet=as_json)
    make_folder(out)
    with run_bar(experiment.name) as view:
        result = measure_interference(
            target, chosen.partitions or None, workloads, repeats=repeats, rounds=rounds,
            rounding=chosen.rounding, seed=experiment.seed, inside=inside, viewer=view,
        )  # fmt: skip
    numbers = out / "interference.json"
    with replacing(numbers) as temporary:
        temporary.write_text(json.dumps(result.rows(), indent=1), "utf-8")
    written = [interference_report(result, out / "interference.html"), numbers]
    _tell(result, written, stopped=result.stopped, as_json=as_json)


def _setting(experiment: Experiment, name: str | None) -> ResolvedSetting:
    settings = {setting.name: setting for setting in experiment.resolve()}
    if name is None:
        carved = (setting for setting in settings.values() if setting.partitions)
        return next(carved, next(iter(settings.values())))
    if name not in settings:
        raise InvalidExperiment(f"--setting {name!r}: there are: {listed(settings)}")
    return settings[name]


def _tell(
    result: SweepResult | InterferenceResult, written: list[Path], *, stopped: bool, as_json: bool
) -> None:
    if as_json:
        files = [str(path) for path in written]
        say_json({"stopped": stopped, "rows": result.rows(), "files": files})
    else:
        say_result(result)
        if stopped:
            say("stopped early: this is what was measured until then")
        say_written(written)
    if stopped:
        raise typer.Exit(FAILED)
