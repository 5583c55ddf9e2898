"""The metrics log: exact numbers, offsets, torn lines, full disks."""

import json
import math
from pathlib import Path

import pytest

from lm.errors import StorageError
from lm.runs.metrics_log import MetricsLog
from tests.support import faults


def test_floats_come_back_exactly_and_nothing_infinite_is_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    floats = [0.1, 1e-320, 1 / 3, -0.0, 1e300, 123456789.123456789]
    log.append({"floats": floats, "nan": math.nan, "deep": [{"inf": math.inf}], "text": "é\udc80\n"})
    lines = (tmp_path / "m.jsonl").read_bytes().splitlines()
    record = json.loads(lines[0])
    assert len(lines) == 1
    assert [repr(value) for value in record["floats"]] == [repr(value) for value in floats]
    assert record["nan"] is None
    assert record["deep"] == [{"inf": None}]
    assert record["text"] == "é\udc80\n"
    log.close()
    log.close()


def test_a_log_is_cut_back_to_an_offset(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    offsets = []
    for step in range(5):
        offsets.append(log.offset)
        log.append({"step": step})
    whole = (tmp_path / "m.jsonl").read_bytes()
    log.truncate(offsets[3])
    assert (tmp_path / "m.jsonl").read_bytes() == whole[: offsets[3]]
    for step in (3, 4):
        log.append({"step": step})
    assert (tmp_path / "m.jsonl").read_bytes() == whole
    with pytest.raises(StorageError, match=r"m\.jsonl"):
        log.truncate(len(whole) + 1)
    assert (tmp_path / "m.jsonl").read_bytes() == whole
    log.close()


@pytest.mark.parametrize("length", [10, 70_000, 200_000])
def test_a_torn_last_line_is_dropped_on_opening(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.jsonl"
    for whole in (b"", b'{"a": 1}\n', b'{"a": "' + b"x" * 70_000 + b'"}\n{}\n'):
        path.write_bytes(whole + b'{"b": "' + b"y" * length)
        MetricsLog(path).close()
        assert path.read_bytes() == whole


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.append({"step": 1})
    for room in range(11):
        with pytest.raises(StorageError, match="no space left"):
            faults.fill_disk_after(room, lambda: log.append({"step": 2}))
    log.append({"step": 2})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    log.close()


def test_lines_are_written_at_once_and_synced_on_demand(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    assert faults.count_operations(lambda: log.append({"step": 1})) == ["write"]
    assert faults.count_operations(log.sync) == ["fsync"]
    assert faults.count_operations(lambda: log.truncate(0)) == ["ftruncate", "fsync"]
    log.close()
