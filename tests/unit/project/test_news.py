"""Release notes from fragments: what is refused, and where they go in CHANGELOG.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOG = """# Changelog

## [Unreleased]

### Added

- One.

### Fixed

- Two.

## [0.1.0]

### Added

- Zero.
"""


@pytest.fixture
def news(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import news

    yield news
    del sys.modules["news"]


def test_fragments_that_are_there_can_be_put_in(news):
    assert news.wrong(ROOT / "news") == []


def test_entries_go_to_the_end_of_their_section_of_what_is_unreleased(news):
    assert news.added(LOG, "- New.\n", "added") == LOG.replace("- One.\n", "- One.\n- New.\n")
    assert news.added(LOG, "- New.\n", "fixed") == LOG.replace("- Two.\n", "- Two.\n- New.\n")


def test_a_section_that_is_not_there_is_begun(news):
    assert news.added(LOG, "- Gone.\n", "removed") == LOG.replace(
        "- Two.\n", "- Two.\n\n### Removed\n\n- Gone.\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("it.md", "- x\n"), ("it.moved.md", "- x\n"), ("it.fixed.md", "x\n"), ("a.fixed.md", "- x")],
)
def test_what_is_no_fragment_is_named(news, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (problem,) = news.wrong(tmp_path)
    assert problem.startswith(f"news/{name}: ")


def test_it_writes_the_log_and_takes_the_fragments_away(news, tmp_path, monkeypatch):
    monkeypatch.setattr(news, "NEWS", tmp_path / "news")
    monkeypatch.setattr(news, "CHANGELOG", tmp_path / "log.md")
    monkeypatch.setattr(sys, "argv", ["news.py"])
    (tmp_path / "news").mkdir()
    (tmp_path / "log.md").write_text(LOG)
    for name in ("README.md", "b.fixed.md", "a.fixed.md"):
        (tmp_path / "news" / name).write_text(f"- {name}\n")
    assert news.main() == 0
    assert "- Two.\n- a.fixed.md\n- b.fixed.md\n\n## [0.1.0]" in (tmp_path / "log.md").read_text()
    assert [path.name for path in (tmp_path / "news").iterdir()] == ["README.md"]
