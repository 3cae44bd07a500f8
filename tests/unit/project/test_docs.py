"""Docs that follow from other files agree with them; the code and commands in pages run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpuscope as gs
from gpuscope.cli.commands import app
from gpuscope.simulator.profiles.profile import GpuProfile

ROOT = Path(__file__).resolve().parents[3]


def test_generated_pages_are_up_to_date():
    script = ROOT / "scripts" / "docs_pages.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_example_runs(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert (tmp_path / "timeline.html").stat().st_size > 1_000_000
    trace = gs.load_trace(tmp_path / "run.parquet")
    assert len(trace.where(kind="handle")) == 40
    assert not trace.spans.column("end_ns").null_count  # the host saw each call's end


def test_the_readmes_figures_are_those_of_the_results():
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    latencies, gpu, recorders = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
        for name in ("latencies", "h200", "recorders")
    )

    def row(begin):
        rows = (*gpu["rows"], *recorders["rows"])
        (found,) = [one for one in rows if one["what"].startswith(begin)]
        return found

    times = {(one["setting"], one["what"]): one for one in latencies["rows"]
             if one["experiment"] == "quickstart"}  # fmt: skip
    shared, apart = (times[name, "latency_p99_us"] for name in ("no partition", "16 | rest"))
    p99, guard, made = map(row, ("quickstart: p99", "CallerStreamGuard enter + exit, bound to CuPy",
                                 "stop → finished Trace"))  # fmt: skip
    bare = row("torch.mm 64³, not recorded")
    ids, kernels, nsys, torch, proton = (
        row(f"recording torch.mm 64³ by {who}")
        for who in ("gpuscope, with launch ids:", "gpuscope, kernels only:", "Nsight Systems",
                    "torch.profiler", "Proton")
    )  # fmt: skip
    simulated, measured = (shared[what] / apart[what] for what in ("simulated", "measured"))
    compared = (
        f"makes p99 {simulated:.3g} times shorter, where an H200 gave {measured:.3g} times, in "
        "another host than the one that was calibrated"
    )
    launch_ns = latencies["calibrated"]["constants"]["launch_call_ns"]
    assert launch_ns != GpuProfile.load(latencies["profile"]).file.constants.launch_call_ns
    added = (
        f"| µs added to each `torch.mm` of {bare['value']:.1f} µs on an H100 "
        f"| {ids['value']:.1f}; {kernels['value']:.1f} without API calls "
        f"| {nsys['value']:.1f} | {torch['value']:.1f} | {proton['value']:.1f} | – |"
    )
    for said in (
        added,
        compared,
        f"p99 was to be 3 times shorter and was {p99['value']:.3g} times",
        f"costs {guard['value']:.3g} µs where the goal is 1.2",
        f"runs at {made['value']:.2g} million a second where it is 1.5",
    ):
        assert said in readme
    assert not any(one["met"] for one in (p99, guard, made))


PAGES = sorted((ROOT / "docs").rglob("*.md"))
PROGRAMS = [
    page for page in PAGES
    if "```python" in page.read_text("utf-8")
    and page.name not in ("native.md", "recording.md", "ranks.md")  # which need C or PyTorch
    and page.name != "develop.md"  # test_recipes runs it
]  # fmt: skip


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def short_examples(tmp_path_factory):
    """Return the examples with few calls: whether they run whole, their own tests say."""
    folder = tmp_path_factory.mktemp("short") / "examples"
    shutil.copytree(ROOT / "examples", folder)
    for path in folder.glob("*.toml"):
        many = re.compile(r"^(repeats|rounds|alone_repeats) = \d\d+", re.MULTILINE)
        path.write_text(many.sub(r"\1 = 9", path.read_text("utf-8")), "utf-8")
    return folder


@pytest.mark.parametrize("page", PROGRAMS, ids=named)
def test_the_code_of_a_page_runs(page, tmp_path, short_examples):
    """With few calls, as the examples, and with two of many values to try."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "examples").symlink_to(short_examples)
    code = re.sub(r'("repeats": )\d\d+', r"\g<1>9", "\n".join(blocks))
    code = re.sub(r"\[(\d+, \d+)(, \d+)+\]", r"[\1]", code)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def commands(page: Path) -> list[list[str]]:
    """Return the gpuscope commands of a page's shell blocks, from the subcommand on."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
        for line in block.splitlines():
            words = line.partition("#")[0].split()
            for place, word in enumerate(words[:-1]):
                if word.rpartition("/")[2] == "gpuscope" and words[place - 1] != "venv":
                    found.append(words[place + 1 :])
    return found


@pytest.mark.parametrize(
    "page", [one for one in (ROOT / "README.md", *PAGES) if commands(one)], ids=named
)
def test_the_commands_of_a_page_exist(page):
    for subcommand, *rest in commands(page):
        said = CliRunner().invoke(app, [subcommand, "--help"], env={"COLUMNS": "200"})
        assert said.exit_code == 0, subcommand
        for word in rest:
            if subcommand == "record" and (word == "-m" or word.endswith(".py")):
                break  # what follows is the program's own
            assert not word.startswith("--") or word in said.output, f"{word} of {subcommand}"


def test_links_in_the_docs_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *PAGES]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{named(page)} → {target}"


def test_the_changelogs_sections_are_those_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.+)", text, re.MULTILINE)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)", text, re.MULTILINE)) <= kinds


def test_every_hook_of_pre_commit_is_a_check_of_make_check():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    script = (ROOT / "scripts" / "check.py").read_text("utf-8")
    tools = set(re.findall(r"entry: \.venv/bin/([\w-]+)", hooks))
    assert tools == {"ruff", "lint-imports", "mypy"}
    assert all(f'"{tool}"' in script for tool in tools)
