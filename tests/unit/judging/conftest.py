"""A device, and a repository whose program became slower."""

from __future__ import annotations

import subprocess

import pytest
from judging_programs import PROGRAM

import gpuscope as gs


@pytest.fixture(scope="session")
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def repository(tmp_path):
    """A repository with a program that was committed, and is slower now."""
    (tmp_path / "prog.py").write_text(PROGRAM, "utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    slower = PROGRAM.replace("50_000 + longer", "80_000 + longer")
    (tmp_path / "prog.py").write_text(slower, "utf-8")
    return tmp_path
