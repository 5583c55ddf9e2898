"""Limits of the control groups of a process."""

import os
from pathlib import Path

import pytest

from lm import machine
from lm.machine import control_groups, memory_limit, processor_share, usable_processors

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


@pytest.mark.parametrize(
    ("own", "root", "free", "limited"),
    [
        (f"0::/{JOB}\n", "", {"cpu.max": "max 100000"}, {"cpu.max": "150000 100000"}),
        (
            f"4:cpu,cpuacct:/{JOB}\n0::/\n",
            "cpu,cpuacct",
            {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"},
            {"cpu.cfs_quota_us": "75000\n", "cpu.cfs_period_us": "50000\n"},
        ),
    ],
)
def test_the_share_of_processors_is_the_least_of_all_groups(
    groups: Path, own: str, root: str, free: dict[str, str], limited: dict[str, str]
) -> None:
    machine._OWN.write_text(own)
    assert processor_share() is None
    for name, text in free.items():
        limit(groups / root / JOB, name, text)
    assert processor_share() is None
    for name, text in limited.items():
        limit(groups / root / "user.slice", name, text)
    assert processor_share() == 1.5


@pytest.mark.parametrize(("share", "usable"), [("10000", 1), ("240000", 2), ("900000", 4)])
def test_processors_are_usable_up_to_the_share_and_one_at_least(
    groups: Path, monkeypatch: pytest.MonkeyPatch, share: str, usable: int
) -> None:
    monkeypatch.setattr(machine, "visible_processors", lambda: 4)
    assert usable_processors() == 4
    limit(groups, "cpu.max", f"{share} 100000")
    assert usable_processors() == usable


def test_a_system_without_groups_has_no_limit_of_theirs(groups: Path) -> None:
    assert list(control_groups("memory")) == []
    assert memory_limit() > 1 << 20
