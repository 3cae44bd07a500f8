"""``diff``, ``check`` and ``skill``: did it get slower, and does it keep its budget."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TimeRemainingColumn

from gpuscope._files import check_new, make_folder, write_text
from gpuscope.cli import app as terminal
from gpuscope.cli.app import All, Force, Json, app
from gpuscope.cli.screen import STYLES, Screen
from gpuscope.comparing.diff_result import DiffResult
from gpuscope.errors import InvalidArgument
from gpuscope.judging import told
from gpuscope.judging.checking import CheckResult, check
from gpuscope.judging.diffing import diff
from gpuscope.judging.programs import Command
from gpuscope.judging.targets import Given
from gpuscope.judging.turns import Tell
from gpuscope.judging.verdict import EXIT
from gpuscope.report.run import compared_report
from gpuscope.trace.store import save_trace

_FILES = "diff.html", "verdict.json", "a.parquet", "b.parquet"
_Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown, for a comment on a change.")
]
_Rounds = Annotated[int | None, typer.Option(help="Pairs of rounds, or of processes.")]


@app.command("diff")
def diff_command(
    first: Annotated[
        str | None,
        typer.Argument(metavar="[A]", help="An experiment, the folder of a run, or a trace."),
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another one.")] = None,
    *,
    a: Annotated[str | None, typer.Option("--a", help="A program: 'python train.py'.")] = None,
    b: Annotated[str | None, typer.Option("--b", help="Another program.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Compare A as it was at this revision of git with it now.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="Of several; twice: one of A and one of B.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="For experiments: cuda:N, sim:h200.")] = None,
    rounds: _Rounds = None,
    within: Annotated[
        float | None, typer.Option(help="Smaller changes are none: 0.02 is 2 %.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for report and traces.")] = None,
    force: Force = False,
    every: All = False,
    as_json: Json = False,
    markdown: _Markdown = False,
) -> None:
    """Say whether B is slower than A, by how much, how sure that is, and why.

    Both run in turns here, after A has run against itself. Exits with 0 if B is equal or faster,
    1 if it is slower, 2 on an error, 3 if that cannot be told.

    Examples: gpuscope diff before.toml after.toml --device sim:h200

    gpuscope diff run.toml --setting shared --setting '16 | rest'

    gpuscope diff --a 'python train.py' --at main

    gpuscope diff out/before out/after
    """
    _one_form(as_json=as_json, markdown=markdown)
    left: Given | None = first if a is None else Command.parse(a)
    right: Given | None = second if b is None else Command.parse(b)
    if left is None or (a is not None and first is not None):
        raise InvalidArgument("name A: an experiment, a folder or a trace, or a program with --a")
    if setting is not None and len(setting) > 2:
        raise InvalidArgument("--setting is given once, or once for A and once for B")
    if out is not None:
        make_folder(out)
        check_new(*(out / name for name in _FILES), replace=force)
    chosen = None if setting is None else (setting[0], setting[-1])
    with _bar("diff") as progress:
        result = diff(
            left,
            right,
            setting=chosen,
            at=at,
            device=device,
            rounds=rounds,
            within=within,
            progress=progress,
        )
    verdict = told.of_diff(result, _again())
    written = [] if out is None else _written(result, out)
    if as_json:
        terminal.say_json(verdict.to_json(), indent=None)
    elif markdown:
        terminal.say_text(told.diff_markdown(result))
    else:
        _show_diff(result, written, every=every)
    was_stopped = result.turns is not None and result.turns.stopped
    raise typer.Exit(verdict.exit_code or (EXIT["cannot tell"] if was_stopped else 0))


def _written(result: DiffResult, folder: Path) -> list[Path]:
    page, facts, *traces = (folder / name for name in _FILES)
    caution = "; ".join([*result.uncompared, *filter(None, [result.caution])])
    compared_report(result, result.splits, result.told, caution, page)
    write_text(facts, terminal.json_text(told.of_diff(result).to_json()))
    for trace, path in zip(result.traces, traces, strict=True):
        save_trace(trace, path)
    return [page, facts, *traces]


def _show_diff(result: DiffResult, written: list[Path], *, every: bool) -> None:
    screen = Screen(every=every)
    screen.find(result.headline, style=STYLES["error" if result.verdict == "slower" else "note"])
    if result.caution:
        screen.find(result.caution, style=STYLES["warning"])
    screen.result("numbers", result)
    for split in result.splits:
        screen.result(f"why, {split.unit}", split)
    screen.note(result.definition)
    screen.show(result.provenance, written)


@app.command("check")
def check_command(
    target: Annotated[
        str | None,
        typer.Argument(help="An experiment, the folder of a run, or a trace."),
    ] = None,
    *,
    budget: Annotated[Path, typer.Option(help="The limits: a .toml file.")],
    program: Annotated[
        str | None, typer.Option("--program", help="A program: 'python train.py'.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="For experiments: cuda:N, sim:h200.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, or processes.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Instead of the budget's.")] = None,
    save_baseline: Annotated[
        Path | None, typer.Option(help="Measure a baseline, and write it there.")
    ] = None,
    other_machine: Annotated[
        bool, typer.Option("--other-machine", help="Take another machine's baseline.")
    ] = False,
    force: Force = False,
    every: All = False,
    as_json: Json = False,
    markdown: _Markdown = False,
) -> None:
    """Say whether an experiment, a program or a trace keeps its budget.

    Exits with 0 if all limits hold, 1 if one is violated, 2 on an error, 3 if one cannot be told.

    Examples: gpuscope check run.toml --budget budget.toml --device sim:h200

    gpuscope check --program 'python serve.py' --budget budget.toml --save-baseline baseline.json
    """
    _one_form(as_json=as_json, markdown=markdown)
    if (target is None) == (program is None):
        raise InvalidArgument("name an experiment, a folder or a trace, or a program (--program)")
    if save_baseline is not None:
        check_new(save_baseline, replace=force)
    result = check(
        Command.parse(program) if program is not None else str(target),
        budget,
        device=device,
        rounds=rounds,
        baseline=baseline,
        save_baseline=save_baseline,
        other_machine=other_machine,
    )
    verdict = told.of_check(result, _again())
    if as_json:
        limits = [told.of_limit(result, judged_limit).to_json() for judged_limit in result.limits]
        terminal.say_json({"verdict": verdict.to_json(), "limits": limits}, indent=None)
    elif markdown:
        terminal.say_text(told.check_markdown(result))
    else:
        _show_check(result, save_baseline, every=every)
    raise typer.Exit(verdict.exit_code)


def _show_check(result: CheckResult, saved: Path | None, *, every: bool) -> None:
    screen = Screen(every=every)
    screen.find(result.headline, style=STYLES["error" if result.verdict == "violated" else "note"])
    rows = result.rows()
    open_rows = [row for row in rows if row["verdict"] != "holds"]
    screen.table("limits", rows if every or not open_rows else open_rows)
    holding = len(rows) - len(open_rows)
    screen.note(f"limits that hold: {holding}" if open_rows and holding and not every else "")
    screen.note(result.definition)
    screen.show(result.provenance, [] if saved is None else [saved])


@app.command("skill")
def skill_command() -> None:
    """Print the skill file for coding agents: what to run, how to read it, what not to conclude.

    Example: gpuscope skill > .agents/skills/gpuscope/SKILL.md
    """
    skill = resources.files("gpuscope.judging").joinpath("SKILL.md").read_text("utf-8")
    terminal.say_text(skill.rstrip("\n"))


def _one_form(*, as_json: bool, markdown: bool) -> None:
    """Refuse two forms of one output."""
    if as_json and markdown:
        raise InvalidArgument("--json and --markdown are two forms of the same: give one")


def _again() -> str:
    """Return the command that was called."""
    words = [word for word in sys.argv[1:] if word not in ("--json", "--markdown", "--all")]
    return shlex.join(["gpuscope", *words])


@contextmanager
def _bar(name: str) -> Iterator[Tell]:
    """Show how far rounds are."""
    with terminal.progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task(name)
        yield lambda what, done, total: bar.update(
            task, total=total, completed=done, description=what
        )
