"""Public names are found whatever loads a package: also pytest, which brings a loader of its own."""

from __future__ import annotations

import importlib.machinery
import sys
import types

from gpuscope import _lazy


class Bare:
    """A loader that gives no source, as pytest's for packages that bring a plugin."""

    def create_module(self, spec): ...
    def exec_module(self, module): ...


def test_names_are_read_from_the_file_where_the_loader_gives_no_source(tmp_path, monkeypatch):
    file = tmp_path / "room.py"
    file.write_text("from a.b import c as c\nfrom a import d as d\n", "utf-8")
    room = types.ModuleType("a")
    room.__spec__ = importlib.machinery.ModuleSpec("a", Bare(), origin=str(file))
    monkeypatch.setitem(sys.modules, "a", room)
    assert _lazy.public("a")[2] == ["c", "d"]
