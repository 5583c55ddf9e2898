"""JSON files: exact, strict, and damaged ones named."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.disk import jsonfile
from lm.errors import StorageError
from tests.support.outcomes import files_below

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, down to the sign of zero."""
    return type(left) is type(right) and repr(left) == repr(right)


@settings(max_examples=40, deadline=None)
@given(value=values)
def test_json_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    jsonfile.write_json(path, value)
    assert same(jsonfile.read_json(path), value)
    canonical = jsonfile.canonical_json(value)
    assert jsonfile.canonical_json(jsonfile.parse_json(canonical, path)) == canonical


def test_text_that_is_no_unicode_comes_back(tmp_path: Path) -> None:
    value = {"name": os.fsdecode(b"caf\xe9"), "é": 1}
    jsonfile.write_json(tmp_path / "x.json", value)
    assert jsonfile.read_json(tmp_path / "x.json") == value


def test_numbers_that_are_not_finite_are_no_json(tmp_path: Path) -> None:
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="JSON"):
            jsonfile.write_json(tmp_path / "x.json", {"loss": number})
        with pytest.raises(ValueError, match="JSON"):
            jsonfile.canonical_json([number])
    assert not files_below(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[NaN]", b"[-Infinity]", b"[" * 100_000, b"9" * 5000, b"1 2"]
)
def test_broken_json_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(StorageError, match=r"x\.json: not valid JSON"):
        jsonfile.read_json(tmp_path / "x.json")
