"""Mistakes in configs, named with file, line, key and remedy."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from dialog.config import DialogConfig
from lm.config.load import known_tables, load_config
from lm.config.section import Section
from lm.errors import ConfigError
from tests.support.config_files import KEYS, mutants, rejection, write

SECTION_KEYS = [key for key in KEYS if "." in key]
KINDS = (
    "'softmax', 'sigsoftmax', 'sigmoid', 'relu', 'moc', 'mos', 'moss', 'mixtape', 'plif', 'doc', 'mfs' or"
    " 'cpr'"
)
NT = 'average = "uniform"\naverage_trigger = 5\n'
TWICE = "key or table occurs twice; remove one of the two"


def test_every_misspelt_key_is_rejected_with_its_line_and_the_right_name(tmp_path: Path) -> None:
    """One typing error a key, of the kinds in turn."""
    chance, kinds, verdicts = random.Random(1), itertools.count(), []
    for key in SECTION_KEYS:
        section, _, name = key.rpartition(".")
        wrong = [mutant for mutant in mutants(name, chance) if mutant and f"{section}.{mutant}" not in KEYS]
        mutant = wrong[next(kinds) % len(wrong)]
        message = rejection(write(tmp_path, f'about = ""\n[{section}]\n"{mutant}" = 1\n'))
        assert message.startswith(f"{tmp_path}/x.toml:3: unknown key {section}.{mutant}")
        verdicts.append(message.endswith(f"; did you mean {key}?"))
    assert sum(verdicts) >= 0.95 * len(verdicts)


def test_every_misspelt_table_is_rejected_with_the_right_name(tmp_path: Path) -> None:
    chance, tables, verdicts = random.Random(2), known_tables(DialogConfig), []
    for table in tables:
        for mutant in mutants(table, chance):
            if mutant in tables:
                continue
            message = rejection(write(tmp_path, f"\n[{mutant}]\nx = 1\n"))
            assert f"x.toml:2: unknown table [{mutant}]; did you mean " in message
            verdicts.append(message.endswith(f"did you mean {table}?"))
    assert len(verdicts) >= 40
    assert sum(verdicts) >= 0.95 * len(verdicts)


@settings(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(sorted(KEYS)),
    value=st.sampled_from(["{}", "[[1]]", "1979-05-27", "nan", "-1", "'\\u0007'"]),
)
def test_no_value_of_a_wrong_type_or_range_gets_through(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: str
) -> None:
    if KEYS[key].annotation is str and value.startswith("'"):
        return
    path = write(tmp_path_factory.mktemp("wrong"), "\n".join([f"{key} = {value}"]))
    message = rejection(path)
    assert message.removeprefix(f"{path}:1: ").removeprefix("every value of ").startswith(f"{key} must be ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[head]\nkind = 'mso'", f":2: head.kind must be {KINDS}, got 'mso'; did you mean mos?"),
        ("[optim]\nlr = true", ":2: optim.lr must be a number, got true"),
        ("[train]\nseed = '1'", ":2: train.seed must be an integer, got '1'"),
        ("[train]\nseed = 1.0", ":2: train.seed must be an integer, got 1.0"),
        ("[train]\nbatch_size = 0", ":2: train.batch_size must be greater than or equal to 1, got 0"),
        ("[data]\nlowercase = 1", ":2: data.lowercase must be true or false, got 1"),
        ("[data]\ntrain = 1", ":2: data.train must be a string, got 1"),
        ("[optim]\nbetas = [0.9]", ":2: optim.betas must be a list of 2 values, got [0.9]"),
        ("[optim]\nbetas = [1, 2, 3]", ":2: optim.betas must be a list of 2 values, got [1, 2, 3]"),
        ("[optim]\nbetas = [0.9, 1.0]", ":2: every value of optim.betas must be less than 1, got [0.9, 1.0]"),
        ("[optim]\nbetas = [-0.1, 0.9]", ":2: every value of optim.betas must be greater than or eq"),
        ("[train]\nseed = 9223372036854775808", ":2: train.seed must be from 0 to 9223"),
        ("[decode]\nseed = 9223372036854775808", ":2: decode.seed must be from 0 to 9223"),
        ("[decode]\nlength_penalty = 1e3", ":2: decode.length_penalty must be less than or equal to 10"),
        ("[decode]\n\nmin_length = 31", ":3: [decode] min_length = 31: must be at most max_length = 30"),
        ("[cell]\nrounds = 3", ":2: cell.rounds belongs to the mogrifier; neither encoder.cell = gru nor"),
        ('[train]\nstart_from = "runs/a"', ":2: train.start_from: dialog models begin with random weights;"),
        ("[encoder]\ncell = 'mogrifer'", ":2: encoder.cell must be 'lstm', 'mogrifier', 'mlstm', 'gru' or"),
        ("[optim]\nlr = inf", ":2: optim.lr must be greater than 0 and less than or equal to 1e+30, got inf"),
        ("[optim]\nlr = 1e400", ":2: optim.lr must be greater than 0 and less than or equal to 1e+30, got"),
        ("[optim]\nbetas = [1e400, 0.9]", ":2: optim.betas must be greater than or equal to 0 and less"),
        ("[train]\nmax_minutes = inf", ":2: train.max_minutes must be from 0 to 1e+30, got inf"),
        ("[train]\nmax_steps = 99999999999999999999", ":2: train.max_steps must be from 0 to 9223"),
        ("[optim]\nlr = 1e-400", ":2: optim.lr must be greater than 0, got 1e-400"),
        ("[optim]\neps = 1e-50", ":2: optim.eps must be 0, or not closer to 0 than 1e-30, got 1e-50"),
        (f"[optim]\n{NT}average_start = 9", ":3: [optim] average_start: excludes average_trigger"),
        ("[optim]\nlr = 0e9", ":2: optim.lr must be greater than 0, got 0.0"),
        ("[optim]\nlr = nan", ":2: optim.lr must be a finite number, got nan"),
        ("[train]\nlr = 1", ":2: unknown key train.lr; did you mean optim.lr?"),
        ("[optim]\nmax_updates = 1", ":2: unknown key optim.max_updates; did you mean train.max_steps?"),
        ("lr = 1", ":1: unknown key lr; did you mean optim.lr?"),
        ("[optim]\nlearning_rate = 1", ":2: unknown key optim.learning_rate; did you mean optim.lr?"),
        ("[train]\nepochs = 1", ":2: unknown key train.epochs; did you mean train.max_epochs?"),
        ("[model]\nzzzzzzzz = 1", ":2: unknown key model.zzzzzzzz; [model] has embedding_size, vectors, "),
        ("head = 'mos'", ":1: head is a table: write one [head] and its keys below it"),
        ("[[head]]\nkind = 'mos'", ":1: head is a table: write one [head] and its keys below it"),
        ("[head.kind]\nmos = 1", f":1: head.kind must be {KINDS}, got a table"),
        ("[head]\n\nkind = 'softmax'\ncomponents = 3", ":4: [head] components = 3: a softmax head has one; "),
        ('"train.seed" = 1', ':1: unknown key "train.seed"; did you mean train.seed?'),
        ("[train]\nseed = 1\nseed = 2", f":3: not valid TOML: {TWICE}: 'seed = 2'"),
        ("[train]\n[train]", f":2: not valid TOML: {TWICE}: '[train]'"),
        ("[train]\nseed = ", ":2: not valid TOML: Invalid value: 'seed ='"),
        ("extends = 'ptb_mos'", ":1: extends 'ptb_mos': a preset of `lm`, not of `dialog`; "),
        ("[optim]\nbetas = 0.9", ":2: optim.betas must be a list, got 0.9; write one as in [0.9, 0.999]"),
        ("[model]\nx = 1", ":2: unknown key model.x; [model] has embedding_size, vectors, "),
        ("extends = 'none.toml'", ":1: extends 'none.toml': no such file"),
        ("extends = 'x.toml'", ":1: extends 'x.toml' forms a cycle"),
    ],
)  # fmt: skip
def test_messages(tmp_path: Path, text: str, message: str) -> None:
    assert f"{tmp_path}/x.toml{message}" in rejection(write(tmp_path, text))


ODD = "\u2028\u2029\x85\x0b\x0c\x1c\x1e\x07\x1b\x7f\u202e\u200b\ufeff\xa0"


@pytest.mark.parametrize("character", ODD)
def test_messages_escape_what_no_terminal_prints(tmp_path: Path, character: str) -> None:
    escape = f"\\u{ord(character):04x}"
    texts = [
        *(f'"a{escape}" = 1', f'[train]\n"se{escape}ed" = 1', f'["a{escape}"]', f'[optim."{escape}"]\nx = 1'),
        *(
            f'train."{escape}" = 1',
            f'extends = "{escape}"',
            f'[optim]\nname = "{escape}"',
            f"a{character} = 1",
        ),
    ]
    for text in texts:
        assert rejection(write(tmp_path, text)).isprintable()
    for changed in (f"a{character}b=1", f"train.se{character}ed=1", f"optim.name={character}a"):
        assert rejection(write(tmp_path, ""), changed).isprintable()
    assert rejection(f"a{character}b").isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.seed", "--set train.seed: give a key and a value"),
        ("train.sede=1", "--set: unknown key train.sede; did you mean train.seed?"),
        ("trian.seed=1", "--set: unknown key trian.seed; did you mean train.seed?"),
        ("seed=1", "--set: unknown key seed; did you mean train.seed?"),
        ("=1", "--set: a key is missing before =; write it as in train.seed=2"),
        ("train=1", "--set: train is a table; set one of its keys, as in train.seed"),
        ("train.seed.x=1", "--set: train.seed has no keys below it; set train.seed itself"),
        ("optim.betas=0.9", "got 0.9; write one as in --set 'optim.betas=[0.9, 0.999]'"),
        ("train.seed=one", "--set train.seed: must be an integer, got 'one'"),
        ("train.seed=1\nx = 2", "--set train.seed: must be an integer, got '1\\nx = 2'"),
        ("head.components=2", "--set head.components: a softmax head has one, got 2; set head.c"),
        ("optim.betas=[0.9, 1.0]", "--set optim.betas: every value must be less than 1, got [0.9, 1.0]"),
        ("model.trunk=lstm", "--set model.trunk: must be hf:FOLDER, or empty, got lstm"),
        ("model.recompute=true", "--set model.recompute: belongs to a pretrained trunk; leave it out"),
        (
            "transformer.heads=2",
            "--set transformer.heads: has no effect with encoder.kind = hierarchical and",
        ),
        ("optim.schedule=cosine", "--set optim.schedule: [optim] decay_steps: the cosine schedule needs"),
        ("extends=x.toml", "--set extends: only a file can extend another"),
    ],
)
def test_messages_about_overrides(tmp_path: Path, text: str, message: str) -> None:
    assert message in rejection(write(tmp_path, ""), text)


def test_a_conflict_of_a_file_with_an_override_is_blamed_on_the_override(tmp_path: Path) -> None:
    """Also of two overrides, on the one that is at fault; a file that is wrong by itself keeps the blame."""
    path = write(tmp_path, '[head]\nkind = "mos"\ncomponents = 4')
    said = rejection(path, "train.seed=2", "head.kind=softmax")
    assert said.startswith("--set head.kind: [head] components = 4")
    wrong = write(tmp_path, '[head]\nkind = "softmax"\ncomponents = 4', "y.toml")
    assert rejection(wrong, "train.seed=2").startswith(f"{tmp_path / 'y.toml'}:3: [head] components = 4")


def test_a_circle_of_two_files(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "x.toml"', "y.toml")
    assert "y.toml:1: extends 'x.toml' forms a cycle" in rejection(write(tmp_path, 'extends = "y.toml"'))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"about = 'caf\xe9'", "x.toml:1: not UTF-8"),
        (b"\xff\xfea\x00", "x.toml:1: not UTF-8"),
        (b"a = [[[" + b"[" * 5000, "x.toml"),
        (b'"\\u001b[2J" = 1', "x.toml:1: unknown key"),
    ],
)
def test_files_that_are_no_configs(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.toml").write_bytes(content)
    assert message in rejection(str(tmp_path / "x.toml"))


def test_a_required_key_that_is_missing_is_named(tmp_path: Path) -> None:
    class Data(Section):
        train: str = Field(description="a file")

    class Config(Section):
        data: Data

    for text in ("", "[data]"):
        with pytest.raises(ConfigError, match=r"data"):
            load_config(write(tmp_path, text), Config, family="dialog")


def test_a_mistake_is_reported_within_a_second_and_without_torch(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsede = 1")
    code = (
        "import sys\nfrom lm.config.load import load_config\nfrom lm.errors import ConfigError\n"
        "from dialog.config import DialogConfig\n"
        f"try: load_config({path!r}, DialogConfig, family='dialog')\n"
        "except ConfigError: sys.exit(77 if 'torch' not in sys.modules else 78)"
    )
    before = os.times()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 77
    after = os.times()
    assert after.children_user - before.children_user < 1.0
