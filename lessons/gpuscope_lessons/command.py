"""``lessons``, ``assignment`` and ``grade``: notebooks for a learner, and those of a class."""

from __future__ import annotations

import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gpuscope.cli.app import say, say_json, say_result
from gpuscope.errors import GpuscopeError
from gpuscope.extending import check_new, make_empty_folder
from gpuscope_lessons import shipped


def lessons_command(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("lessons"),
) -> None:
    """Copy the lessons into a folder, with examples and the pages that they link to.

    Example: gpuscope lessons lessons
    """
    source = shipped.root()
    make_empty_folder(folder)
    try:
        for path in shipped.files(source):
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    except OSError as error:
        raise GpuscopeError(f"cannot write to {folder.name!r}: {error.strerror}") from error
    count = len([*folder.glob("notebooks/*.ipynb")])
    say(f"wrote {count} notebooks to {folder / 'notebooks'}, examples and pages beside them")
    say(f"open them: gpuscope lab {shlex.quote(str(folder))}, then notebooks/00_quickstart.ipynb")


def grade_command(
    folder: Annotated[
        Path, typer.Argument(help="What was handed in: notebooks, in a folder for each learner.")
    ],
    lessons: Annotated[
        Path, typer.Option(help="The folder of the lessons as they were given out.")
    ] = Path("notebooks"),
    out: Annotated[Path, typer.Option(help="The table with all answers.")] = Path("grades.csv"),
    points: Annotated[
        Path | None, typer.Option(help="TOML with points of exercises and weights of lessons.")
    ] = None,
    canvas: Annotated[
        Path | None, typer.Option(help="Also write points for Canvas to this CSV.")
    ] = None,
    moodle: Annotated[
        Path | None, typer.Option(help="Also write percents for Moodle to this CSV.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="For one notebook.")] = 300,
    cell_seconds: Annotated[float, typer.Option(min=1, help="For one cell.")] = 60,
    memory_gb: Annotated[float, typer.Option(min=0.5, max=1e6, help="For one notebook.")] = 4,
    gpu: Annotated[bool, typer.Option("--gpu", help="On the GPU, not simulated.")] = False,  # noqa: FBT002 - typer's form of a flag
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Notebooks at a time; one a processor or GPU by default."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="dask://HOST:PORT", help="Grade on workers of Dask instead of here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,  # noqa: FBT002 - as above
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,  # noqa: FBT002 - as above
) -> None:
    """Run the notebooks that a class handed in; table points, answers and which checks failed.

    Each runs in a sandbox, as far as the system allows one to you; what it does not is told. The
    lesson is run as it was given out, with the learner's exercises and added cells: only its own
    checks count. Stopped and started again with the same --out, it goes on.

    Example: gpuscope grade handed_in --lessons notebooks --out grades.csv --canvas canvas.csv
    """
    from gpuscope_lessons import Limits, Points, grade  # noqa: PLC0415 - takes its time
    from gpuscope_lessons.grading import ENDED_EARLY  # noqa: PLC0415 - as above

    counted = Points() if points is None else Points.read(points)
    journal = out.parent / f"{out.name}.journal"
    further = [path for path in (canvas, moodle) if path is not None]
    check_new(out, *further, replace=force or journal.is_file())
    if force:
        with suppress(FileNotFoundError):
            journal.unlink()
    limits = Limits(seconds, cell_seconds, round(memory_gb * 1e9))
    grades = grade(
        folder,
        lessons,
        gpu=gpu,
        limits=limits,
        executor=workers or (f"processes:{jobs}" if jobs else None),
        journal=journal,
        points=counted,
    )
    marks = grades.marks(counted)
    if not as_json:
        say_result(marks)
    written = [grades.to_csv(out)]
    if canvas is not None:
        written.append(marks.to_canvas(canvas))
    if moodle is not None:
        written.append(marks.to_moodle(moodle))
    if as_json:
        facts = {
            "stopped": grades.stopped,
            "not_held": grades.not_held,
            "learners": marks.rows(),
            "notebooks": grades.rows(),
            "table": str(out),
        }
        say_json(facts)
    else:
        for sentence in grades.warnings:
            say(sentence)
        if grades.stopped:
            left = {
                grade.notebook for grade in grades.grades if grade.reason.startswith(ENDED_EARLY)
            }
            say(
                f"notebooks not graded to their end: {len(left)}; start it again with the same "
                "--out, and it goes on with these"
            )
        say(f"wrote {', '.join(map(str, written))}")
    if grades.stopped:
        raise typer.Exit(1)


def assignment_command(
    out: Annotated[Path, typer.Argument(help="A new folder, for the learners' copies.")],
    lessons: Annotated[Path, typer.Option(help="The folder of the lessons.")] = Path("notebooks"),
) -> None:
    """Make learners' copies of lessons: without solutions, held tests and outputs.

    The last hint of each check and the folds are taken out, and so are cells tagged `held`.
    Grade with the lessons themselves: their checks, the held ones too, judge what is handed in.

    Example: gpuscope assignment to_give_out --lessons notebooks
    """
    from gpuscope_lessons import give_out  # noqa: PLC0415 - takes its time

    given = give_out(lessons, out)
    say(
        f"wrote {len(given.notebooks)} notebooks to {out}, without {given.solutions} solutions, "
        f"{given.folds} folds and {given.held} held cells"
    )
