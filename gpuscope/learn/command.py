"""``grade``: the notebooks of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuscope._files import check_new
from gpuscope._optional import needed_for
from gpuscope.cli import FAILED
from gpuscope.cli.app import Force, Json, say, say_json, say_result


def grade_command(
    folder: Annotated[
        Path, typer.Argument(help="What was handed in: notebooks, in a folder for each learner.")
    ],
    lessons: Annotated[
        Path, typer.Option(help="The folder of the lessons as they were given out.")
    ] = Path("notebooks"),
    out: Annotated[Path, typer.Option(help="The table with all answers.")] = Path("grades.csv"),
    seconds: Annotated[float, typer.Option(min=1, help="For one notebook.")] = 300,
    cell_seconds: Annotated[float, typer.Option(min=1, help="For one cell.")] = 60,
    memory_gb: Annotated[float, typer.Option(min=0.5, max=1e6, help="For one notebook.")] = 4,
    gpu: Annotated[bool, typer.Option("--gpu", help="On the GPU, not simulated.")] = False,  # noqa: FBT002 - typer's form of a flag
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="processes:N|dask://HOST:PORT",
            help="How many notebooks at a time, here or on workers of Dask; two, if not given.",
        ),
    ] = None,
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
    as_json: Json = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Run the notebooks that a class handed in; table first answers and which checks failed.

    Each runs in a process of its own, with your rights: run no code that you do not trust. The
    lesson is run as it was given out, with the learner's exercises and added cells: only its own
    checks count. After Ctrl-C the table has what was graded until then.

    Example: gpuscope grade handed_in --lessons notebooks --out grades.csv
    """
    with needed_for("gpuscope grade"):
        from gpuscope.learn import Limits, grade  # noqa: PLC0415 - needs the extra `notebook`
    check_new(out, replace=force)
    limits = Limits(seconds, cell_seconds, round(memory_gb * 1e9))
    grades = grade(folder, lessons, gpu=gpu, limits=limits, executor=workers)
    if not as_json:
        say_result(grades)
    written = grades.to_csv(out)
    if as_json:
        facts = {"stopped": grades.stopped, "notebooks": grades.rows(), "table": str(written)}
        say_json(facts)
    else:
        if grades.stopped:
            say("stopped early: what is not graded says so in the table")
        say(f"wrote {written}")
    if grades.stopped:
        raise typer.Exit(FAILED)
