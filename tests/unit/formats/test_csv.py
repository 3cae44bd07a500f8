"""CSV: pandas reads every column as it was, times to the ns."""

from __future__ import annotations

import csv

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.trace import Trace, schema

UNIX_NS = 1_780_000_000_123_456_789
TEXTS = [
    "plain", "two\nlines", "two\r\nlines", "\r", 'say "hi", you', '"', "=1+1", "@SUM(A1)", "NA",
    "null", "nan", "None", "true", "17", " lead", "tab\tx", "é 😀", "\\", "#c", ",",
]  # fmt: skip


def read(path):
    """As the guide says; the texts' type is said as they may look like numbers."""
    texts = [name for name, kind in schema.SPAN_TYPES.items() if pa.types.is_dictionary(kind)]
    return pd.read_csv(
        path,
        dtype=dict.fromkeys(texts, "string"),
        dtype_backend="numpy_nullable",
        keep_default_na=False,
        na_values=[""],
        float_precision="round_trip",
    )


def same(path, trace):
    frame = read(path)
    assert list(frame.columns) == list(schema.SPAN_TYPES)
    for name in frame.columns:
        found = [None if pd.isna(value) else value for value in frame[name]]
        assert found == trace.spans.column(name).to_pylist(), name


def filled(rows, names=TEXTS):
    """A trace with a value in every column, every third one null where that is allowed."""
    columns = {}
    for place, (name, kind) in enumerate(schema.SPAN_TYPES.items()):
        if pa.types.is_dictionary(kind):
            values = [names[(row + place) % len(names)] for row in range(rows)]
        elif pa.types.is_floating(kind):
            values = [0.1 * row + 1e-17 for row in range(rows)]
        else:
            values = [min(UNIX_NS + row, _largest(kind)) for row in range(rows)]
        if name not in schema.REQUIRED:
            values = [None if (row + place) % 3 == 0 else value for row, value in enumerate(values)]
        columns[name] = values
    columns |= {"id": range(rows), "start_ns": [UNIX_NS + row for row in range(rows)]}
    columns |= {"end_ns": [None if row % 3 else UNIX_NS + 2 * row for row in range(rows)]}
    return Trace.from_columns({name: list(values) for name, values in columns.items()})


def _largest(kind):
    return 2 ** (kind.bit_width - 1) - 1


def test_pandas_reads_every_column_as_it_was(tmp_path):
    trace = filled(60)
    same(gs.export(trace, tmp_path / "x.csv", keep_private=True), trace)


IS_OLD = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
CHARACTERS = st.characters(
    exclude_categories=["Cs"],
    exclude_characters="\0" if IS_OLD else "",  # which pandas 3.0 ends a text at
)


@given(st.lists(st.text(CHARACTERS, min_size=1), min_size=1))
@settings(max_examples=30, deadline=None)
def test_any_text_and_number(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    trace = Trace.from_columns({
        "id": list(range(len(texts))), "kind": ["counter"] * len(texts), "name": texts,
        "start_ns": [UNIX_NS + hash(text) % 10**9 for text in texts],
        "source": ["x"] * len(texts), "payload": texts,
        "value": [hash(text) / 7 for text in texts],
    })  # fmt: skip
    gs.export(trace, path, keep_private=True)
    same(path, trace)
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == texts


def test_nothing_is_unknown_and_an_empty_text_is_quoted(tmp_path):
    trace = Trace.from_columns({
        "id": [1, 2], "kind": ["mark", "mark"], "name": ["", "b"], "start_ns": [1, 2],
        "source": ["x", "x"], "payload": ["", None],
    })  # fmt: skip
    path = gs.export(trace, tmp_path / "x.csv")
    rules = pa.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    table = pa.csv.read_csv(path, convert_options=rules)
    assert table.column("payload").to_pylist() == ["", None]
    assert table.column("name").to_pylist() == ["", "b"]


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(tmp_path, rows):
    trace = filled(3).where(id=0) if rows else filled(3).where(id=9)
    assert len(trace) == rows
    same(gs.export(trace, tmp_path / "x.csv", keep_private=True), trace)


def test_a_cut_file_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gpuscope.formats.own.simple.pa_csv.open_csv", lambda *args, **how: [[0] * 3]
    )
    with pytest.raises(gs.errors.ExportError, match="holds 3 rows where 60 were written"):
        gs.export(filled(60), tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())
