"""Columns of texts in several pieces: what lies under a null is nowhere looked up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpuscope.trace import schema

FAR = """
import numpy as np, pyarrow as pa
from gpuscope.trace import schema
def texts(numbers, dictionary):
    codes = np.array(numbers, np.int32)
    indices = pa.array(codes, mask=(codes < 0) | (codes > 9))
    return pa.DictionaryArray.from_arrays(indices, pa.array(dictionary, pa.string()))
pieces = [texts([0, 1], ["a", "b"]), texts([-1, 1 << 30, 0], ["c"]), texts([1 << 30], [])]
table = schema.concat([pa.table({"name": piece}) for piece in pieces], {"name": schema._TEXT})
print(table.column("name").to_pylist())
"""


def test_numbers_under_nulls_may_be_anything():
    """In a process of its own: Arrow alone reads four billion bytes behind its map, and ends."""
    done = subprocess.run([sys.executable, "-c", FAR], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "['a', 'b', None, None, 'c', None]"


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_other_columns_stay_as_they_are(kind):
    column = pa.chunked_array([pa.array([1], pa.int64()).cast(kind)] * 2)
    assert schema.one_dictionary(column) is column


def test_pieces_get_one_dictionary():
    pieces = [
        pa.array(texts).dictionary_encode() for texts in (["a", None], ["b", "a"], ["c", None])
    ]
    joined = schema.one_dictionary(pa.chunked_array(pieces, pieces[0].type))
    assert joined.to_pylist() == ["a", None, "b", "a", "c", None]
    assert len({tuple(piece.dictionary.to_pylist()) for piece in joined.chunks}) == 1
    assert all((np.asarray(piece.indices.fill_null(0)) >= 0).all() for piece in joined.chunks)


def test_nobody_else_unifies_dictionaries():
    package = Path(schema.__file__).parents[1]
    users = [path for path in package.rglob("*.py") if ".unify_dictionaries(" in path.read_text()]
    assert users == [Path(schema.__file__)]
