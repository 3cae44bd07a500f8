"""``run``, ``quickstart`` and ``predict``: an experiment, its report and its traces."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gpuscope import _shipped, telling
from gpuscope._columns import tables
from gpuscope._files import check_new, make_folder, write_text
from gpuscope.analyses import findings_by_setting
from gpuscope.cli import FAILED
from gpuscope.cli import app as terminal
from gpuscope.cli.app import All, Force, Json, app
from gpuscope.cli.screen import STYLES, Screen
from gpuscope.comparing.compare import check
from gpuscope.comparing.pair import CompareResult
from gpuscope.errors import GpuscopeError
from gpuscope.experiments import nsight
from gpuscope.experiments.execution import run as run_experiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.refusals import listed
from gpuscope.judging.told import of_forecast
from gpuscope.report import html_report, trace_report
from gpuscope.report.run import checked_report
from gpuscope.trace.folder import COMPARISON, load_run, trace_names
from gpuscope.trace.run import Run
from gpuscope.trace.store import save_trace
from gpuscope.workloads.builtin import BUILT_IN
from gpuscope.workloads.registry import broken_kinds, kinds

_REPORT, _COMPARED = "report.html", "compare.html"
_OF_NSYS = ("nsys.nsys-rep", "nsys.html", "nsys.parquet")
_File = Annotated[
    Path,
    typer.Argument(
        help=f"The experiment: a .toml or .json file. Workload kinds: {', '.join(BUILT_IN)}."
    ),
]
_Nsys = Annotated[
    bool, typer.Option("--nsys", help="Record with Nsight Systems, in a process of its own.")
]
_Device = Annotated[str, typer.Option(help="auto, cuda:N, sim:h100 or sim:h200.")]
_OUT = "Folder for the report and the traces."


@app.command("run")
def run_command(
    file: _File,
    device: _Device = "auto",
    out: Annotated[Path, typer.Option(help=_OUT)] = Path("out"),
    under_nsys: _Nsys = False,  # noqa: FBT002 - typer's form of a flag
    force: Force = False,  # noqa: FBT002 - as above
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Run an experiment and write an HTML report and one trace per setting.

    With --nsys: the .nsys-rep that Nsight Systems made of it, and the same as a report and a
    trace of ours.

    Examples: gpuscope run examples/quickstart.toml --out out/quickstart

    gpuscope run examples/quickstart.toml --nsys --out out/nsys

    gpuscope kinds lists the workload kinds: those of gpuscope and those of other packages.
    """
    experiment = Experiment.from_file(file)
    if under_nsys:
        make_folder(out)
        check_new(*(out / name for name in _OF_NSYS), replace=force)
        _run_under_nsys(experiment, "cuda:0" if device == "auto" else device, out, as_json=as_json)
        return
    target = terminal.open_target(device, as_json=as_json)
    _check_folder(out, experiment, replace=force)
    with terminal.run_bar(experiment.name) as view:
        result = run_experiment(experiment, target, viewer=view)
    tell_run(result, write_run(result, out), None, every=every, as_json=as_json)


@app.command("quickstart")
def quickstart_command(
    device: _Device = "auto",
    out: Annotated[Path, typer.Option(help=_OUT)] = Path("out/quickstart"),
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Measure a small GEMM beside large ones: GPU shared, by priority, and partitioned.

    It is the experiment examples/quickstart.toml, which comes with gpuscope.

    Example: gpuscope quickstart --out out/quickstart
    """
    file = _shipped.root() / "examples" / "quickstart.toml"
    run_command(file, device, out, force=force, every=every, as_json=as_json)


def tell_run(
    result: Run,
    written: list[Path],
    checked: Mapping[str, CompareResult] | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Print a run or, where it was predicted and measured, how that compares.

    Parameters
    ----------
    written
        The files that it was written to.
    checked
        Setting → how what was predicted compares with what was measured.

    Raises
    ------
    typer.Exit
        The run was stopped early.
    """
    if as_json:
        finding_rows = [
            {"setting": setting, **telling.to_json(finding)}
            for setting, finding in findings_by_setting(result)
        ]
        facts = {
            **_facts_of(result),
            "outcome": telling.outcome(result),
            "findings": finding_rows,
            "files": [str(path) for path in written],
        }
        if checked is not None:
            facts["checked"] = {name: comparison.rows() for name, comparison in checked.items()}
            facts["verdicts"] = [
                of_forecast(comparison, name).to_json() for name, comparison in checked.items()
            ]
        terminal.say_json(facts)
    else:
        screen = Screen(every=every)
        origin = _run_on(screen, result) if checked is None else _checked_on(screen, checked)
        screen.show(origin, written)
    if result.stopped:
        raise typer.Exit(FAILED)


def _run_under_nsys(experiment: Experiment, device: str, out: Path, *, as_json: bool) -> None:
    report, page, rows = (out / name for name in _OF_NSYS)
    profile = nsight.profile(experiment, report, device=device)
    written, trace = [profile.report], profile.trace
    if trace is not None:
        written.append(trace_report(trace, page, title=experiment.name))
        written.append(save_trace(trace, rows))
    if as_json:
        spans = None if trace is None else len(trace)
        files = [str(path) for path in written]
        terminal.say_json({"experiment": experiment.name, "spans": spans, "files": files})
    else:
        screen = Screen(every=True)
        if trace is not None:
            screen.find(repr(trace))
        screen.show("", written)
    if trace is None:
        terminal.complain(
            "gpuscope: of the report and the trace there is only the .nsys-rep: gpuscope view "
            "reads it where its import works"
        )
        raise typer.Exit(FAILED)


@app.command("kinds")
def kinds_command(as_json: Json = False) -> None:  # noqa: FBT002 - typer's form of a flag
    """List the kinds of workloads that an experiment may have, with their fields.

    Example: gpuscope kinds
    """
    if as_json:
        terminal.say_json(
            {
                name: {
                    "what": spec.kind_summary(),
                    "fields": [asdict(field) for field in spec.kind_fields()],
                }
                for name, spec in kinds().items()
            }
        )
    else:
        rows = [
            {
                "kind": spec.kind_spelling(),
                "fields": ", ".join(field.text for field in spec.kind_fields()),
                "what": spec.kind_summary(),
            }
            for spec in kinds().values()
        ]
        terminal.show_table("kinds of workloads", rows)
    broken = broken_kinds()
    for words in broken:
        terminal.complain(words)
    if broken:
        raise typer.Exit(FAILED)


@app.command("predict")
def predict_command(
    file: _File,
    gpu_profile: Annotated[str, typer.Option(help="The simulated GPU's profile.")] = "h200",
    against: Annotated[
        Path | None, typer.Option(help="Folder of a run of it, to compare with.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for reports and traces.")] = Path("out/predict"),
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Run an experiment on a simulated GPU; compare it with what was measured.

    Example: gpuscope predict examples/quickstart.toml --against out/quickstart
    """
    experiment = Experiment.from_file(file)
    measured = None if against is None else load_run(against)
    target = terminal.open_target(f"sim:{gpu_profile}", as_json=as_json)
    _check_folder(out, experiment, *([] if against is None else [_COMPARED]), replace=force)
    with terminal.run_bar(experiment.name) as view:
        result = run_experiment(experiment, target, viewer=view)
    written = write_run(result, out)
    checked, unmeasured = None, list[str]()
    if measured is not None:
        checked = check(result, measured)
        unmeasured = [name for name in result if name not in measured]
        written.insert(0, checked_report(checked, out / _COMPARED))
    tell_run(result, written, checked, every=every, as_json=as_json)
    if unmeasured:
        terminal.complain(
            f"gpuscope: {against} holds no measurement of {listed(unmeasured)}: measure it, and "
            "compare again"
        )
        raise typer.Exit(FAILED)


def _check_folder(out: Path, experiment: Experiment, *others: str, replace: bool) -> None:
    """Make a folder before a run; refuse it if it holds what the run would replace."""
    make_folder(out)
    traces = _trace_files(setting.name for setting in experiment.resolve())
    check_new(*(out / name for name in (_REPORT, COMPARISON, *others, *traces)), replace=replace)


def _trace_files(settings: Iterable[str]) -> list[str]:
    """Return a file name for each setting, no two the same."""
    names: list[str] = []
    for setting in settings:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", setting).strip("-")[:80] or "setting"
        slugs = itertools.chain([slug], (f"{slug}-{number}" for number in itertools.count(2)))
        files = (f"trace-{slug}.parquet" for slug in slugs)
        names.append(next(name for name in files if name not in names))
    return names


def write_run(result: Run, folder: Path) -> list[Path]:
    """Write the report, the comparison and the traces of a run; returns their paths.

    The comparison names the traces and is written after them. What a former run, by its comparison,
    has in the folder is removed, so that nobody takes it for this run's.
    """
    make_folder(folder)
    former, comparison = trace_names(folder), folder / COMPARISON
    names = dict(zip(_trace_files(result), result.values(), strict=True))
    _remove(comparison, folder / _COMPARED)
    paths = [save_trace(trace, folder / name) for name, trace in names.items()]
    write_text(comparison, json.dumps({**_facts_of(result), "traces": list(names)}, indent=1))
    _remove(*(folder / name for name in former if name not in names))
    return [html_report(result, folder / _REPORT), comparison, *paths]


def _remove(*paths: Path) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise GpuscopeError(
                f"cannot remove {str(path)!r} of a former run: {error.strerror}. Choose another "
                "folder with --out"
            ) from error


def _facts_of(result: Run) -> dict[str, object]:
    """Return the comparison with what it rests on."""
    first = next(iter(result.values())).metadata
    return {
        "experiment": result.experiment["name"],
        "devices": msgspec.to_builtins(first.devices),
        "simulated": first.simulated,
        "stopped": result.stopped,
        "versions": dict(first.versions),
        "comparison": result.comparison.to_pylist(),
    }


def _run_on(screen: Screen, result: Run) -> str:
    """Put on a screen how the settings of a run compare; returns where the numbers come from."""
    if result.stopped:
        screen.find("stopped early: what was recorded until then is here", style=STYLES["warning"])
    screen.find(telling.outcome(result), style="bold")
    screen.findings(findings_by_setting(result))
    for title, rows in tables(result.comparison.to_pylist()).items():
        screen.table(title, rows)
    granted: dict[str, list[str]] = {}
    for setting, trace in result.items():
        for name, facts in trace.metadata.partitions.items():
            if facts.asked != facts.sm_count and (screen.every or facts.asked != "rest"):
                words = (
                    f"partition {name} asked for {facts.asked}, was granted {facts.sm_count} SMs"
                )
                granted.setdefault(words, []).append(setting)
    for words, settings in granted.items():
        screen.note(f"{', '.join(settings)}: {words}")
    return "; ".join(dict.fromkeys(trace.origin for trace in result.values()))


def _checked_on(screen: Screen, checked: Mapping[str, CompareResult]) -> str:
    """Put on a screen how a prediction compares; returns where the numbers come from."""
    several = len(checked) > 1
    findings = [
        (name if several else "", finding)
        for name, result in checked.items()
        for finding in result.findings
    ]
    screen.findings(sorted(findings, key=lambda told: not told[1].is_problem))
    rows = [
        {**({"setting": name} if several else {}), **row}
        for name, result in checked.items()
        for row in result.readable()[0]
    ]
    screen.table("predicted and measured", rows)
    return "; ".join(dict.fromkeys(result.provenance for result in checked.values()))
