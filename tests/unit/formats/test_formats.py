"""Trace formats: one declaration each, from this package and from others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import example_plugin
import pytest
from IPython.core.interactiveshell import InteractiveShell

import gpuscope as gs
from gpuscope.errors import ExportError, GpuscopeError, InvalidArgument, TraceFormatError
from gpuscope.formats import Format, Limits, known_formats, problems, registry, table
from gpuscope.trace import Trace

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "hand_over.md"
BROKEN = """
from gpuscope.formats import Format
from gpuscope.trace import Trace
def fail(*args, **how): raise RuntimeError("no luck")
def yes(head): return True
def write(trace, path, step): path.write_text("x")
def secret(path, limits, *, keep_private):
    return Trace.from_columns({"id": [1], "kind": ["mark"], "name": ["/home/me/x.py"],
                               "start_ns": [1], "source": ["x"], "host": ["secret-host"]})
def many(path, limits, *, keep_private):
    n = 100
    return Trace.from_columns({"id": list(range(n)), "kind": ["mark"] * n, "name": ["a"] * n,
                               "start_ns": [1] * n, "source": ["x"] * n})
def declare(suffix, **how): return Format(name="Odd", suffixes=(suffix,), description="Odd.", **how)
"""


@pytest.fixture
def odd(other_package):
    """Make a package visible that declares ``Odd`` by this expression; or names it otherwise."""

    def declare(expression: str, *, entry: str = 'odd = "odd_format:ODD"') -> None:
        text = f"{BROKEN}\nODD = {expression}"
        other_package("odd", "gpuscope.formats", entry, "odd_format", text)

    return declare


def a_trace() -> Trace:
    return Trace.from_columns({
        "id": [1, 2], "kind": ["kernel", "range"], "name": ["k", "r"], "stream": [7, None],
        "start_ns": [10, 5], "end_ns": [20, 30], "source": ["cupti", "nvtx"],
    })  # fmt: skip


# -- the declarations ---------------------------------------------------------------------
def test_the_guides_table_is_made_of_the_declarations():
    assert table() in GUIDE.read_text("utf-8"), f"put this table into {GUIDE.name}:\n{table()}"


def test_docstrings_list_the_formats():
    for known in known_formats():
        assert (known.description in gs.export.__doc__) == ("write" in known.ways), known.name
        assert (known.description in gs.load_trace.__doc__) == ("read" in known.ways), known.name
    assert "{table" not in gs.export.__doc__ + gs.load_trace.__doc__


def test_a_suffix_nobody_knows_lists_what_is_known(tmp_path):
    suffixes = ", ".join(suffix for known in known_formats() for suffix in known.suffixes)
    with pytest.raises(ExportError, match=f"end its name in {suffixes}".replace(".", r"\.")):
        gs.export(a_trace(), tmp_path / "x.unknown")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"suffixes": ()}, "suffixes"),
        ({"suffixes": ("x",)}, "begin with a dot"),
        ({"suffixes": (".X",)}, "lower-case"),
        ({"suffixes": ".x"}, "tuple"),
        ({"recognise": lambda head: True}, "go together"),
        ({"write": None}, "neither write nor read"),
    ],
)
def test_an_incomplete_declaration_is_refused(fields, words):
    whole = {"name": "X", "suffixes": (".x",), "description": "X.", "write": print}
    with pytest.raises(InvalidArgument, match=words):
        Format(**{**whole, **fields})


def test_reading_limits_loads_no_format():
    code = (
        "import sys, gpuscope.formats\n"
        "assert not {'sqlite3', 'plotly', 'gpuscope.formats.nsight.read', 'gpuscope.report'} & "
        "set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import sys, gpuscope as gs; gs.export; gs.load_trace\n"
        "assert not {'plotly', 'gpuscope.report', 'gpuscope.device.device'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- a format of another package ----------------------------------------------------------
def test_a_plugins_format_is_written_and_read(plugin, tmp_path):
    told = []
    path = gs.export(a_trace(), tmp_path / "x.lines", progress=lambda *step: told.append(step))
    assert told == [(0, 2), (2, 2)]
    path = path.rename(tmp_path / "any name")
    again = gs.load_trace(path)
    assert again.texts("name") == ["k"]
    assert again.array("end_ns").tolist() == [20]
    assert not problems()


def test_a_plugins_file_has_limits(plugin, tmp_path):
    path = tmp_path / "x.lines"
    path.write_text("KERNEL LINES 1\n" + "7\t1\t2\tk\n" * 100)
    with pytest.raises(TraceFormatError, match=r"Limits\(rows=…\)"):
        gs.load_trace(path, limits=Limits(rows=10))
    with pytest.raises(TraceFormatError, match=r"Limits\(file_bytes=…\)"):
        gs.load_trace(path, limits=Limits(file_bytes=10))
    path.write_bytes(b"KERNEL LINES 1\n\xff\n")
    with pytest.raises(
        TraceFormatError, match=r"Kernel lines .plugin 'lines' of package 'gpuscope-e"
    ):
        gs.load_trace(path)


def test_messages_and_tables_list_it(plugin, tmp_path):
    with pytest.raises(ExportError, match=r"\.html, \.lines"):
        gs.export(a_trace(), tmp_path / "x.unknown")
    (tmp_path / "x").write_text("something else, and more of it")
    with pytest.raises(TraceFormatError, match="Parquet, Kernel lines"):
        gs.load_trace(tmp_path / "x")
    assert "`.lines`" in table(known_formats())


def test_the_command_line_writes_it_and_lists_it(tmp_path):
    path = [*example_plugin.make_visible(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200"}
    gs.export(a_trace(), tmp_path / "x.parquet")

    def command(*words: str) -> str:
        line = [sys.executable, "-m", "gpuscope.cli", *words]
        return subprocess.run(line, env=env, check=True, capture_output=True, text=True).stdout

    assert ".lines" in command("export", "--help")
    command("export", str(tmp_path / "x.parquet"), str(tmp_path / "x.lines"))
    assert (tmp_path / "x.lines").read_text() == "KERNEL LINES 1\n7\t10\t20\tk\n"
    assert "1 spans" in command("summary", str(tmp_path / "x.lines"))


def test_the_cell_magic_writes_it(plugin, tmp_path):
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpuscope")
    shell.user_ns["gpu"] = gs.open_device("sim:h200", quiet=True)
    shell.run_cell_magic(
        "gpuscope", f"--device gpu --export {tmp_path / 'cell.lines'}",
        "import gpuscope as gs\nwith gpu.create_stream() as stream:\n"
        "    gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)\n",
    )  # fmt: skip
    assert (tmp_path / "cell.lines").read_text().startswith("KERNEL LINES 1\n")


# -- broken ones --------------------------------------------------------------------------
def still_good(tmp_path):
    """The built-in formats work."""
    path = gs.export(a_trace(), tmp_path / "good.json")
    assert gs.load_trace(path).kind_counts() == {"kernel": 1, "range": 1}
    path = gs.export(a_trace(), tmp_path / "good.parquet")
    assert len(gs.load_trace(path)) == 2


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("__import__('no_such_module')", ".*no_such_module"),
        ("exit(3)", "SystemExit"),
        ("declare('odd')", "InvalidArgument"),
        ("3", "it is a int, not a gpuscope.formats.Format"),
        ("declare('.json', write=write)", ".json is a suffix of Chrome trace JSON"),
    ],
)
def test_one_that_cannot_be_used_is_named(odd, tmp_path, expression, words):
    odd(expression)
    still_good(tmp_path)
    with pytest.raises(
        ExportError, match=rf"'odd-package' \(odd_format:ODD\) cannot be used: {words}"
    ):
        gs.export(a_trace(), tmp_path / "x.odd")
    (tmp_path / "x.odd").write_text("something else, and more of it")
    with pytest.raises(
        TraceFormatError, match=rf"'odd-package' \(odd_format:ODD\) cannot be used: {words}"
    ):
        gs.load_trace(tmp_path / "x.odd")
    assert len(problems()) == 1


def test_no_plugin_is_imported_for_files_of_built_in_formats(odd, tmp_path):
    odd("declare('.odd', write=lambda trace, path, step: path.write_text('odd'))")
    path = gs.export(a_trace(), tmp_path / "trace.parquet")
    assert len(gs.load_trace(path)) == 2
    assert "odd_format" not in sys.modules
    assert gs.export(a_trace(), tmp_path / "trace.odd").read_text() == "odd"
    assert "odd_format" in sys.modules


@pytest.mark.parametrize("text", ["[group]\nno value\n", "\xff\xfe"])
def test_malformed_entry_points_of_a_package_break_nothing(plugin, tmp_path, monkeypatch, text):
    installed = tmp_path / "other" / "odd_package-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-package\nVersion: 1\n")
    (installed / "entry_points.txt").write_bytes(text.encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path / "other")
    registry.forget_plugins()
    path = gs.export(a_trace(), tmp_path / "x.lines")
    assert len(gs.load_trace(path)) == 1
    (words,) = registry.problems()
    assert "the package 'odd-package' cannot be read" in words


def test_an_entry_point_to_nothing_is_named(odd, tmp_path):
    odd("3", entry='odd = "odd_format:NONE"')
    still_good(tmp_path)
    assert "AttributeError" in problems()[0]


def test_of_two_with_one_suffix_the_first_stays(odd, tmp_path):
    odd("declare('.odd', write=write)", entry='a = "odd_format:ODD"\nb = "odd_format:ODD"')
    gs.export(a_trace(), tmp_path / "x.odd")
    assert (
        "plugin 'b' of package 'odd-package' claims .odd, a suffix of Odd (plugin 'a'"
        in (problems()[0])
    )


def test_one_that_fails_while_it_writes_is_named(odd, tmp_path):
    odd("declare('.odd', write=fail)")
    still_good(tmp_path)
    with pytest.raises(ExportError, match=r"Odd \(plugin 'odd' of package 'odd-package'\) failed"):
        gs.export(a_trace(), tmp_path / "x.odd")
    assert not (tmp_path / "x.odd").exists()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("recognise=fail, read=fail", "is no readable trace"),
        ("recognise=yes, read=fail", r"no readable Odd \(plugin 'odd' of package.*no luck"),
        ("recognise=yes, read=lambda *a, **k: 3", "as int, not as a Trace"),
    ],
)
def test_one_that_fails_while_it_reads_is_named(odd, tmp_path, how, words):
    odd(f"declare('.odd', {how})")
    still_good(tmp_path)
    path = tmp_path / "x.odd"
    path.write_text("something else, and more of it")
    with pytest.raises(TraceFormatError, match=words):
        gs.load_trace(path)
    with pytest.raises(GpuscopeError, match=r"Odd.*is only read"):
        gs.export(a_trace(), path)


def test_what_one_reads_has_limits_and_keeps_nothing_private(odd, tmp_path):
    odd("declare('.odd', recognise=yes, read=secret)")
    path = tmp_path / "x.odd"
    path.write_text("something else, and more of it")
    trace = gs.load_trace(path)
    assert trace.texts("name") == ["x.py"]
    assert trace.texts("host") == [None]
    assert gs.load_trace(path, keep_private=True).texts("host") == ["secret-host"]


def test_rows_of_one_have_a_limit(odd, tmp_path):
    odd("declare('.odd', recognise=yes, read=many)")
    (tmp_path / "x.odd").write_text("something else, and more of it")
    with pytest.raises(TraceFormatError, match=r"rows of 'x.odd': 100"):
        gs.load_trace(tmp_path / "x.odd", limits=Limits(rows=99))


def test_the_name_decides_between_formats_that_take_the_content(odd, tmp_path):
    odd("declare('.odd.json', recognise=yes, read=secret)")
    (tmp_path / "x.odd.json").write_text('{"traceEvents": []}')
    assert gs.load_trace(tmp_path / "x.odd.json").kind_counts() == {"mark": 1}
    still_good(tmp_path)
