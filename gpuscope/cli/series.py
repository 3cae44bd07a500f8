"""``sweep``, ``tune`` and ``interference``: what several runs of one experiment say together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.csv
import typer

from gpuscope import _foreign
from gpuscope._columns import tables
from gpuscope._files import check_new, make_folder, replacing, write_text
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.settings import SweepResult
from gpuscope.cli import FAILED
from gpuscope.cli.app import All, Force, Json, app, open_target, run_bar, say_json
from gpuscope.cli.screen import STYLES, Screen
from gpuscope.comparing.choice import swept
from gpuscope.comparing.tunings import Tuning, forecast_errors, left, measured, recommended, tuned
from gpuscope.errors import InvalidExperiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.refusals import listed
from gpuscope.experiments.setting import ResolvedSetting
from gpuscope.report import interference_report, sweep_report
from gpuscope.search.grid import ALL, Value
from gpuscope.search.interference import measure_interference
from gpuscope.search.point_table import holds_points
from gpuscope.search.sweeps import sweep
from gpuscope.search.tuned_code import DECODE, PREFILL, tuning_facts
from gpuscope.search.tuning import tune
from gpuscope.telling.media import to_json
from gpuscope.telling.of_interference import interfered

_TABLE, _SWEPT = "sweep.csv", "sweep.html"
_TUNED, _CARVED = ["tune.html", "tune.json"], ["carve.py", "carve.cpp"]
_DIVISIONS = "divisions.yaml"
_NUMBERS, _MATRIX = "interference.json", "interference.html"
_File = Annotated[Path, typer.Argument(help="The experiment: a .toml or .json file.")]
_Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=VALUES",
        help="What to vary, and its values: partitions.small=8,16 is that partition in every "
        "setting, partitions.small=all every size that the GPU grants; any other path is one "
        "field, as workloads.load.m=1024,4096. Several form a grid.",
    ),
]
_Workers = Annotated[
    str | None,
    typer.Option(
        metavar="processes:N|dask://HOST:PORT",
        help="Measure on several GPUs: in N processes of this host, or on workers of Dask. Each "
        "opens --device; auto is any GPU that is free.",
    ),
]
_Device = Annotated[str, typer.Option(help="auto, cuda:N, sim:h100 or sim:h200.")]


@app.command("sweep")
def sweep_command(
    file: _File,
    vary: _Vary = None,
    device: _Device = "auto",
    workers: _Workers = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Measure the I-th of N parts only: one job of a job array."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="gemm|FILE",
            help="Measure this on each GPU, and normalise by it: then GPUs may differ.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the points, the table and the report.")
    ] = Path("out/sweep"),
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Run an experiment at every point of a grid of parameters.

    Each finished point is kept in the folder at once. After Ctrl-C the same command goes on where
    it was stopped. Jobs of an array share the folder, each with its --shard.

    Example: gpuscope sweep examples/choose_a_partition.toml --vary partitions.small=8,16,24,32
    """
    experiment = Experiment.from_file(file)
    parameters = _varied(vary)
    _check_folder(out, [_TABLE, _SWEPT], ["point"], replace=force)
    target = open_target(device, as_json=as_json) if workers is None else device
    with run_bar(experiment.name) as view:
        result = sweep(
            experiment,
            parameters,
            target,
            path=out,
            executor=workers,
            shard=shard,
            reference=reference,
            viewer=view,
        )
    table = out / _TABLE
    with replacing(table) as temporary:
        pa.csv.write_csv(result.table, temporary)
    written = [sweep_report(result, out / _SWEPT), table]
    _tell(result, written, every=every, as_json=as_json)


@app.command("tune")
def tune_command(
    file: _File,
    vary: _Vary = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="WORKLOAD.COLUMN",
            help="What is sought, as decode.calls_per_s: of a rate the greatest, of a time the "
            "least; 'fewest SMs' that meet the SLO; or 'joules' a call.",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'WORKLOAD.COLUMN<=NUMBER'",
            help="What has to hold, as 'small.latency_p99_us<=100'; several have to hold together.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Measurements of one setting, at most.")] = 7,
    confidence: Annotated[
        float, typer.Option(help="With which all that is told apart is right.")
    ] = 0.95,
    device: _Device = "auto",
    workers: _Workers = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the measurements, the report and the code.")
    ] = Path("out/tune"),
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Find the best setting of a grid: forecast all, measure the promising ones in turns, stop.

    Of settings that noise does not tell apart, it takes the one with the fewest SMs for the
    workload of the SLO, and says so; if nothing meets the SLO, it says which limit can be met. It
    writes a report, all numbers as JSON and, for the split to take, SGLang's manual_divisions and
    code that makes its partitions. Each finished measurement is kept in the folder at once. After
    Ctrl-C the same command goes on where it was stopped.

    Example: gpuscope tune examples/choose_a_partition.toml --vary partitions.small=all
    --objective load.tflop_per_s --slo 'small.latency_p50_us<=60'
    """
    experiment = Experiment.from_file(file)
    limits = dict(_limit(text) for text in slo or ())
    parameters = _varied(vary)
    if objective is None:
        raise InvalidExperiment("--objective is missing: say what is sought, as decode.calls_per_s")
    _check_folder(out, [*_TUNED, *_CARVED, _DIVISIONS], ["turn", "forecast"], replace=force)
    target = open_target(device, as_json=as_json) if workers is None else device
    with run_bar(experiment.name) as view:
        result = tune(
            experiment,
            parameters,
            objective,
            limits,
            target,
            repeats=repeats,
            confidence=confidence,
            path=out,
            executor=workers,
            viewer=view,
        )
    names = [*_TUNED]
    if result.recommended is not None and result.recommended.sizes:
        names += _CARVED
        names += [_DIVISIONS] * ({PREFILL, DECODE} <= result.recommended.sizes.keys())
    written = [result.export(out / name) for name in names]
    _tell(result, written, every=every, as_json=as_json)


def _check_folder(out: Path, names: Iterable[str], tables: Iterable[str], *, replace: bool) -> None:
    """Refuse a folder that holds such files, unless it holds measurements to go on from."""
    existing = [path for name in names if os.path.lexists(path := out / name)]
    if existing and not any(holds_points(out, table) for table in tables):
        check_new(*existing, replace=replace)


def _limit(text: str) -> tuple[str, str]:
    """Read ``workload.column<=number``."""
    for sign in ("<=", ">="):
        name, separator, number = text.partition(sign)
        if separator:
            return name.strip(), f"{sign}{number}"
    raise InvalidExperiment(f"--slo {text!r}: give a column and a limit, as 'w.latency_p50_us<=60'")


def _varied(vary: list[str] | None) -> dict[str, list[Value] | Literal["all"]]:
    if not vary:
        raise InvalidExperiment(
            "--vary is missing: say what to vary, as --vary partitions.small=8,16"
        )
    return dict(map(varied, vary))


def varied(text: str) -> tuple[str, list[Value] | Literal["all"]]:
    """Read ``path=value,value``, ``path=all``; or ``path=[…]``, a list as in JSON."""
    path, equals, values = text.partition("=")
    if not path or not equals or not values:
        raise InvalidExperiment(
            f"--vary {text!r}: give a path and its values, as partitions.small=8,16"
        )
    if values == ALL:
        return path, "all"
    if values.startswith("["):
        try:
            return path, _foreign.loads(values)
        except ValueError as error:
            raise InvalidExperiment(f"--vary {text!r}: that is no list: {error}") from error
    return path, [_value(value) for value in values.split(",")]


def _value(text: str) -> Value:
    """Read a number, true or false; anything else is a text."""
    try:
        value = _foreign.loads(text)
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
    pairs: Annotated[
        int | None,
        typer.Option(help="Pairs to measure, others are forecast; at least one a workload."),
    ] = None,
    inside: Annotated[
        float,
        typer.Option(help="Share of its time for which a kernel must meet the other workload."),
    ] = 1.0,
    device: _Device = "auto",
    workers: _Workers = None,
    out: Annotated[Path, typer.Option(help="Folder for the report and the numbers.")] = Path(
        "out/interference"
    ),
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Measure how much longer each workload of an experiment takes while each other one runs.

    With --pairs, some pairs are measured and the others forecast from them, marked by ≈. After
    Ctrl-C the pairs measured until then are kept.

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
    target = open_target(device, as_json=as_json) if workers is None else device
    make_folder(out)
    _check_folder(out, [_NUMBERS, _MATRIX], [], replace=force)
    with run_bar(experiment.name) as view:
        result = measure_interference(
            target,
            chosen.partitions or None,
            workloads,
            repeats=repeats,
            rounds=rounds,
            pairs=pairs,
            rounding=chosen.rounding,
            seed=experiment.seed,
            inside=inside,
            executor=workers,
            viewer=view,
        )
    numbers = write_text(out / _NUMBERS, json.dumps(result.rows(), indent=1))
    written = [interference_report(result, out / _MATRIX), numbers]
    _tell(result, written, every=every, as_json=as_json)


def _setting(experiment: Experiment, name: str | None) -> ResolvedSetting:
    settings = {setting.name: setting for setting in experiment.resolve()}
    if name is None:
        carved = (setting for setting in settings.values() if setting.partitions)
        return next(carved, next(iter(settings.values())))
    if name not in settings:
        raise InvalidExperiment(f"--setting {name!r}: there are: {listed(settings)}")
    return settings[name]


def _tell(
    result: SweepResult | InterferenceResult | Tuning,
    written: list[Path],
    *,
    every: bool,
    as_json: bool,
) -> None:
    if as_json:
        files = [str(path) for path in written]
        more = tuning_facts(result) if isinstance(result, Tuning) else {}
        if isinstance(result, SweepResult):
            more["findings"] = [to_json(finding) for finding in swept(result)]
        say_json({**more, "stopped": result.stopped, "rows": result.rows(), "files": files})
    else:
        screen = Screen(every=every)
        if result.stopped and not isinstance(result, SweepResult):  # which says that itself
            goes_on = "; the same command goes on from there"
            if isinstance(result, InterferenceResult):
                goes_on = "; the same command measures all anew"
            words = f"stopped early: this is what was measured until then{goes_on}"
            screen.find(words, style=STYLES["warning"])
        if isinstance(result, Tuning):
            _tuning_on(screen, result)
        elif isinstance(result, SweepResult):
            screen.findings(("", finding) for finding in swept(result))
            for title, rows in tables(result.table.to_pylist(), list(result.parameters)).items():
                screen.table(title, rows)
            screen.note(result.definition)
        else:
            _interference_on(screen, result)
        screen.show(result.provenance, written)
    if result.stopped or (isinstance(result, SweepResult) and result.refused):
        raise typer.Exit(FAILED)


def _tuning_on(screen: Screen, result: Tuning) -> None:
    findings = (*recommended(result), *left(result), tuned(result))
    screen.findings(("", finding) for finding in findings)
    screen.result("settings", result)
    screen.detail("how it was measured", measured(result).text)
    for finding in forecast_errors(result):
        screen.detail("forecasts", finding.text)
    screen.detail("forecasts", result.forecasts)


def _interference_on(screen: Screen, result: InterferenceResult) -> None:
    screen.findings([("", interfered(result))])
    screen.result("interference", result)
    untold = [cell for cell in result.cells if cell.value is None and cell.forecast is None]
    for cell in untold[:1]:
        screen.note(f"{cell.of} given {cell.given}: {cell.reason}")
    screen.note(result.definition)
