"""The workflow that releases: when it runs, what it may do, and what comes before publishing."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import gpuscope
import gpuscope_lessons

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
FILE = ROOT / ".github" / "workflows" / "release.yml"
WORKFLOW = yaml.load(FILE.read_text("utf-8"), yaml.BaseLoader)  # noqa: S506 - makes texts alone
JOBS = WORKFLOW["jobs"]


def before(job: str) -> set[str]:
    needed = JOBS[job].get("needs", [])
    direct = {needed} if isinstance(needed, str) else set(needed)
    return direct.union(*map(before, direct))


def steps(key: str) -> list[str]:
    return [step[key] for job in JOBS.values() for step in job["steps"] if key in step]


def test_only_a_tag_starts_it():
    assert WORKFLOW["on"] == {"push": {"tags": ["v*"]}}


def test_nothing_is_published_before_all_else_has_passed():
    assert before("publish") == JOBS.keys() - {"publish"}
    assert not any("if" in job or "continue-on-error" in job for job in JOBS.values())


def test_only_publishing_may_sign_and_it_runs_no_code_of_ours():
    assert WORKFLOW["permissions"] == {}
    rights = {name: job["permissions"] for name, job in JOBS.items()}
    assert rights.pop("publish") == {"id-token": "write"}
    assert all(right in ({}, {"contents": "read"}) for right in rights.values())
    uses = [step["uses"].partition("@")[0] for step in JOBS["publish"]["steps"]]
    assert uses == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert JOBS["publish"]["steps"][-1]["with"] == {"attestations": "true"}
    assert "secrets." not in str(WORKFLOW)


def test_actions_are_pinned_to_commits():
    actions = {}
    for used in steps("uses"):
        name, _, commit = used.partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", commit), used
        assert actions.setdefault(name, commit) == commit
    assert all(
        step["with"] == {"persist-credentials": "false"}
        for job in JOBS.values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    )


def test_a_wheel_is_built_and_tried_for_each_python_and_machine():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    chosen = settings["tool"]["cibuildwheel"]["build"]
    for build, built in (("cp310-manylinux_x86_64", False), ("cp314t-manylinux_x86_64", False),
                         ("cp312-musllinux_x86_64", False),
                         *((f"cp{version.replace('.', '')}-manylinux_{machine}", True)
                           for version in PYTHONS for machine in ("x86_64", "aarch64"))):  # fmt: skip
        assert any(fnmatch.fnmatch(build, pattern) for pattern in chosen) is built, build
    assert settings["project"]["requires-python"] == f">={PYTHONS[0]}"
    tried = JOBS["try"]["strategy"]["matrix"]
    assert tried["python"] == PYTHONS
    assert tried["runner"] == JOBS["wheels"]["strategy"]["matrix"]["runner"]
    assert f"PYTHONS ?= {' '.join(PYTHONS)}\n" in (ROOT / "Makefile").read_text("utf-8")


def test_the_oldest_packages_that_are_allowed_are_tried_with_the_oldest_python():
    python, run = JOBS["lowest"]["steps"][1:]
    assert python["with"]["python-version"] == PYTHONS[0]
    said = subprocess.run(
        ["make", "-n", *run["run"].split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert "--resolution lowest-direct --editable '.[test]' --editable lessons" in said
    assert f"python{PYTHONS[0]} -m venv" in said
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    assert "gpuscope[full,dask,perfetto,sql]" in extras["test"]
    named = said.rpartition(" -m pytest ")[2].split()
    tests = [path for path in named if path.startswith("tests/")]
    assert tests
    assert all((ROOT / path).exists() for path in tests)


def test_both_distributions_have_one_version():
    assert gpuscope_lessons.__version__ == gpuscope.__version__


@pytest.mark.parametrize("folder", [ROOT, ROOT / "lessons"])
def test_every_package_has_a_lower_bound(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    named = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    unbound = [
        package
        for packages in named
        for package in packages
        if not package.startswith("gpuscope[") and ">=" not in package
    ]
    assert unbound == []


def test_what_steps_run_of_ours_exists():
    commands = "\n".join(steps("run"))
    scripts = re.findall(r"scripts/\w+\.py", commands)
    assert {"scripts/wheels.py"} == set(scripts)
    assert "make test" in commands
    assert re.search(r"pip install cibuildwheel==\d", commands)


@pytest.mark.parametrize(("tag", "status"), [(f"v{gpuscope.__version__}", 0), ("v9.9.9", 1)])
def test_a_tag_that_is_not_the_version_releases_nothing(tag, status):
    (command,) = [text for text in steps("run") if "GITHUB_REF_NAME" in text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-ec", command], cwd=ROOT, env=variables, check=False)
    assert done.returncode == status


def test_files_are_named_by_what_cibuildwheel_makes(tmp_path):
    """The step that tries wheels finds those of its Python and machine, the pure one and the source."""
    machine = os.uname().machine
    tag = f"manylinux2014_{machine}.manylinux_2_17_{machine}"
    names = [f"gpuscope-1.0-cp312-cp312-{tag}.whl", "gpuscope-1.0-py3-none-any.whl",
             "gpuscope-1.0.tar.gz"]  # fmt: skip
    others = [
        f"gpuscope-1.0-cp313-cp313-{tag}.whl",
        "gpuscope-1.0-cp312-cp312-manylinux_2_17_s390x.whl",
    ]
    (tmp_path / "dist").mkdir()
    for name in (*names, *others):
        (tmp_path / "dist" / name).touch()
    (command,) = [text for text in steps("run") if "wheels.py test" in text]
    done = subprocess.run(
        ["bash", "-ec", command.replace("python scripts/wheels.py test", "echo")], cwd=tmp_path,
        env={**os.environ, "PYTHON": "3.12"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [f"dist/{name}" for name in names]
