"""Presets of both families: their files, their names on the pages, and whole configs that load again."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dialog.cli import main as dialog_main
from dialog.config import DialogConfig
from lm.cli import main as lm_main
from lm.config.load import load_config
from lm.config.presets import preset_folder, preset_names, read_presets
from lm.config.write import config_text
from lm.errors import ConfigError
from lm.language.config import LmConfig
from tests.support.command_lines import cpu_seconds_since
from tests.support.lm_presets import preset

FAMILIES: list[tuple[str, type[LmConfig] | type[DialogConfig]]] = [
    ("lm", LmConfig),
    ("dialog", DialogConfig),
]


def test_the_page_of_paper_tables_names_presets_that_there_are_and_leaves_out_none_of_the_papers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "paper_tables.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:ptb|wt2|lm1b|enwik8|mwc|switchboard)_\w+)", page))
    known = {name for family in ("lm", "dialog") for name in preset_names(family)}
    assert named <= known
    ours = ("small", "record", "hred", "finetune", "fast", "sigmoid", "constant_temperature")
    ours += ("switchboard_moss", "k1_linear", "scale4", "doc", "mixtape", "plif")
    papers = {name for name in known - named if not any(part in name for part in ours)}
    assert {name for name in papers if not name.startswith("smalltalk")} == set()


def test_the_page_of_paper_tables_names_tests_that_there_are() -> None:
    folder = Path(__file__).parents[1]
    page = (folder.parent / "docs" / "paper_tables.md").read_text(encoding="utf-8")
    there = {
        name
        for path in folder.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named
    assert named <= there


@pytest.mark.parametrize("family", ["lm", "dialog"])
def test_presets_are_listed_without_torch(family: str) -> None:
    program = f"import sys\nfrom {family}.cli import main\ntry:\n  main(['presets'])\n"
    program += "except SystemExit:\n  assert 'torch' not in sys.modules"
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert cpu_seconds_since(before) < 3  # about 1 s of a processor that does nothing else


@pytest.mark.parametrize(("family", "schema"), FAMILIES)
def test_every_key_of_a_preset_comes_from_a_line_that_has_it(family: str, schema: type[LmConfig]) -> None:
    for name in preset_names(family):
        resolved = load_config(name, schema, family=family)
        assert "default" in resolved.provenance.values()
        for key, where in resolved.provenance.items():
            if where != "default":
                path, _, number = where.rpartition(":")
                line = Path(path).read_text(encoding="utf-8").split("\n")[int(number) - 1]
                given = key.rpartition(".")[2] in line
                assert given or (key == "extends" and line.startswith("[presets.")), (name, key, where)


def test_names_of_presets_and_bases_are_unique_and_of_few_files() -> None:
    for family, _ in FAMILIES:
        files = sorted(preset_folder(family).glob("*.toml"))
        assert len(files) <= 10
        entries = [one.name for path in files for one in read_presets(path)]
        assert len(entries) == len(set(entries))
        assert set(preset_names(family)) == {name for name in entries if not name.startswith("_")}


def test_names_of_the_tables_of_a_family(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(
        "[train]\nseed = 2\n[bases.wide]\nmodel.x = 1\n[presets.a]\nhead = { kind = 'mos' }\n"
        "[presets.b_c]\nextends = 'toy_a'\n[presets.b_c.head]\nkind = 'moc'\n"
    )
    found = {one.name: one for one in read_presets(path)}
    assert list(found) == ["_toy", "_toy_wide", "toy_a", "toy_b_c"]
    assert found["_toy"].keys == {"train": {"seed": 2}}
    assert found["toy_a"].keys == {"extends": "_toy", "head": {"kind": "mos"}}
    assert found["toy_a"].lines["head", "kind"] == 6
    assert found["toy_a"].lines[("extends",)] == 5, "the table's own line"
    assert found["toy_b_c"].keys["extends"] == "toy_a"
    assert found["toy_b_c"].lines["head", "kind"] == 10


def test_configs_written_for_a_file_a_preset_still_load(tmp_path: Path) -> None:
    folder = preset_folder("lm")
    for name, seed in (("ptb_small_mos", 1), ("_ptb_small", 1), ("_ptb_mixture", 28), ("_awd", 1)):
        path = tmp_path / "x.toml"
        for parent in (f"{folder}/{name}.toml", os.path.relpath(folder / f"{name}.toml", tmp_path), name):
            path.write_text(f'extends = "{parent}"\nhead.kind = "mos"\n')
            assert load_config(str(path), LmConfig, family="lm").config.train.seed == seed
    named = load_config(str(folder / "ptb_small_mos.toml"), LmConfig, family="lm")
    assert named.config == preset("ptb_small_mos")
    with pytest.raises(ConfigError, match=r"ptb_small\.toml: holds several configs; name .*small_mos"):
        load_config(str(folder / "ptb_small.toml"), LmConfig, family="lm")


def test_tables_of_presets_are_no_part_of_a_users_config(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[train]\nseed = 2\n[presets.a]\ntrain.seed = 3\n")
    with pytest.raises(ConfigError, match=r"x\.toml:3: unknown table \[presets\]"):
        load_config(str(path), LmConfig, family="lm")


@pytest.mark.parametrize(("family", "schema"), FAMILIES)
def test_one_whole_config_of_every_preset_loads_again(
    tmp_path: Path, family: str, schema: type[LmConfig]
) -> None:
    path = tmp_path / "whole.toml"
    for name in preset_names(family):
        config = load_config(name, schema, family=family).config
        path.write_text(config_text(config), encoding="utf-8")
        again = load_config(str(path), schema, family=family)
        assert again.config == config.model_copy(update={"extends": ""})
        others = {key for key, where in again.provenance.items() if where == "default"}
        assert others == {"extends"}


@pytest.mark.parametrize(("main", "name"), [(lm_main, "ptb_small_mos"), (dialog_main, "smalltalk_ct_mos")])
def test_describe_prints_one_whole_config(
    ending: Callable[..., Any], in_tmp: Path, main: Callable[..., Any], name: str
) -> None:
    code, out, _ = ending(main, "describe", name, "--toml", "--set", "train.seed=7", "--set", 'about="é\x7f"')
    assert code == 0
    Path("whole.toml").write_text(out, encoding="utf-8")
    code, again, _ = ending(main, "describe", "whole.toml", "--toml")
    assert (code, again) == (0, out)
    assert "\nseed = 7\n" in out
