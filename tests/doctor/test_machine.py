"""Limits of the control groups of a process."""

import os
from pathlib import Path

import pytest

from lm import machine
from lm.machine import control_groups, memory_limit

JOB = "user.slice/job_7"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "_OWN", tmp_path / "own")
    return tmp_path / "groups"


def limit(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "root", "name"),
    [
        (f"0::/{JOB}\n", "", "memory.max"),
        (f"9:cpu,cpuacct:/other\n4:memory:/{JOB}\n0::/\n", "memory", "memory.limit_in_bytes"),
    ],
)
def test_the_least_limit_of_all_groups_counts(groups: Path, own: str, root: str, name: str) -> None:
    machine._OWN.write_text(own)
    whole = memory_limit()
    limit(groups / root / JOB, name, "3000\n")
    assert memory_limit() == 3000
    limit(groups / root / "user.slice", name, "2000\n")
    assert memory_limit() == 2000
    limit(groups / root / "user.slice", name, "max\n" if root == "" else str(1 << 62))
    assert memory_limit() == 3000
    limit(groups / root / "elsewhere", name, "5")
    assert memory_limit() == 3000 < whole


def test_a_container_has_the_outermost_group_alone(groups: Path) -> None:
    machine._OWN.write_text("0::/../../outside/of/it\n")
    limit(groups, "memory.max", "4000")
    assert memory_limit() == 4000


def test_a_name_of_any_bytes_is_read(groups: Path) -> None:
    machine._OWN.write_bytes(b"0::/job\xff\n")
    limit(groups / os.fsdecode(b"job\xff"), "memory.max", "5000")
    assert memory_limit() == 5000


def test_the_share_of_processors_is_the_least_of_all_groups(groups: Path) -> None:
    from lm.doctor.checks import _quota

    machine._OWN.write_text(f"0::/{JOB}\n")
    assert _quota() is None
    limit(groups / JOB, "cpu.max", "max 100000")
    limit(groups / "user.slice", "cpu.max", "150000 100000")
    assert _quota() == 1.5


def test_a_system_without_groups_has_no_limit_of_theirs(groups: Path) -> None:
    assert list(control_groups("memory")) == []
    assert memory_limit() > 1 << 20
