"""The pictures of the documentation's front page: what its commands print.

    python scripts/answers.py              run them, and write docs/images/answers/
    python scripts/answers.py QUESTION     those of sections whose title contains that

Each section of docs/index.md that has a shell block and a picture is a question: its commands are
run on the simulated GPU, in a folder with the examples, and the picture is the last one's screen.
The first picture is the report of the quickstart. In place of ``gpuscope record``, which needs a
GPU, there are recordings: of a PyTorch program, of a server whose library left its partition, and
of a race.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.trace.store import save_trace

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "ui")]

from jupyter_lab import open_browser, open_context  # noqa: E402

PAGE = ROOT / "docs" / "index.md"
COLUMNS, LONGEST = 100, 72
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


class Question(NamedTuple):
    """A section: its title, the commands of its block, and the file of its picture."""

    title: str
    commands: list[str]
    picture: Path


def questions() -> list[Question]:
    """Return the questions of the front page."""
    found = []
    for title, text in _SECTION.findall(PAGE.read_text("utf-8")):
        block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
        picture = re.search(r"\]\((images/answers/[\w-]+\.svg)\)", text)
        if block and picture:
            whole = block[1].replace("\\\n", " ")
            lines = [" ".join(line.partition(" #")[0].split()) for line in whole.splitlines()]
            lines = [line for line in lines if line and not line.startswith("gpuscope record")]
            found.append(Question(title, lines, PAGE.parent / picture[1]))
    return found


def prepared(folder: Path) -> None:
    """Put examples and recordings where the commands look for them."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "out" / "train").mkdir(parents=True)
    save_trace(learn.recording_of("torch"), folder / "out" / "train" / "train.parquet")
    save_trace(learn.case("A").trace, folder / "out" / "server.parquet")
    gpu = gs.open_device("sim:h200", quiet=True)
    load = gs.workloads.Step(gpu, 300_000, name="load_batch")
    step = gs.workloads.Step(gpu, 200_000, name="train_step", after=[load])
    a, b = gpu.create_stream(name="loader"), gpu.create_stream(name="compute")
    with gs.profile(gpu, hazards=True) as recording:
        load.execute(stream=a)
        step.execute(stream=b)
    save_trace(recording.trace, folder / "out" / "race.parquet")


def screen(command: str, folder: Path) -> str:
    """Run a command; returns what it prints, with colours."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    words = [sys.executable, "-m", "gpuscope.cli", *shlex.split(command)[1:]]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1, 3):  # a verdict has an exit code
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


def drawn(command: str, text: str) -> str:
    """Return a screen as a picture."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.strip("\n")))
    title = command if len(command) <= LONGEST else f"{command[:LONGEST]}…"
    drawing = console.export_svg(title=title, code_format=_SVG, unique_id="answer")
    return re.sub(r"[ \t]+\n", "\n", drawing)


def show_report(page: Path, picture: Path) -> None:
    """Draw the beginning of a report."""
    with open_browser() as browser, open_context(browser) as context:
        shown = context.new_page()
        shown.set_viewport_size({"width": 1280, "height": 790})
        shown.goto(page.as_uri())
        shown.screenshot(path=picture)


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder)
        for question in questions():
            if wanted.lower() in question.title.lower():
                for command in question.commands:
                    printed = screen(command, folder)
                question.picture.parent.mkdir(exist_ok=True)
                question.picture.write_text(drawn(command, printed), "utf-8")
                print(f"{question.picture.name}: {command}")
        report = folder / "out" / "quickstart" / "report.html"
        if report.exists():
            show_report(report, PAGE.parent / "images" / "answers" / "report.png")


if __name__ == "__main__":
    main()
