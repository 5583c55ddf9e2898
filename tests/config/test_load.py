"""Configs: values arrive with their provenance, mistakes are named with file, line and key."""

import os
import random
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from dialog.config import DialogConfig
from lm.config.load import (
    known_keys,
    known_tables,
    load_config,
    override,
    read_config,
    save_config,
    with_settings,
)
from lm.config.places import not_a_run, runs_in
from lm.config.presets import preset_names
from lm.config.section import Section
from lm.config.settings import Setting
from lm.config.suggest import did_you_mean, nearest
from lm.config.tomlfile import key_lines
from lm.errors import ConfigError, StorageError
from lm.heads.config import HeadKind

KEYS = known_keys(DialogConfig)
SECTION_KEYS = [key for key in KEYS if "." in key]


def write(folder: Path, text: str, name: str = "x.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def load(source: str, *overrides: str) -> DialogConfig:
    return load_config(source, DialogConfig, family="dialog", overrides=overrides).config


def rejection(source: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Values and where they come from


def test_values_and_provenance(tmp_path: Path) -> None:
    write(
        tmp_path,
        "[model]\ndropout = 0.1\nembedding_size = 8\n\n[optim]\nbetas = [\n  0.8,\n  0.9,\n]\n",
        "base.toml",
    )
    path = write(tmp_path, 'extends = "base.toml"\n# a comment\n[model]\n\nembedding_size = 16\n')
    resolved = load_config(
        path, DialogConfig, family="dialog", overrides=["train.seed=7", "data.train=a b.txt"]
    )
    config = resolved.config
    assert (config.model.dropout, config.model.embedding_size, config.train.seed) == (0.1, 16, 7)
    assert config.optim.betas == (0.8, 0.9)
    assert config.data.train == "a b.txt"
    assert resolved.provenance["model.dropout"] == f"{tmp_path}/base.toml:2"
    assert resolved.provenance["optim.betas"] == f"{tmp_path}/base.toml:6"
    assert resolved.provenance["model.embedding_size"] == f"{path}:5"
    assert resolved.provenance["train.seed"] == "--set"
    assert resolved.provenance["train.threads"] == "default"
    assert resolved.provenance.keys() == KEYS.keys()


def test_a_chain_of_parents_is_relative_to_each_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path, "[train]\nseed = 1\nthreads = 1\nmax_steps = 1\n", "root.toml")
    write(tmp_path / "a", 'extends = "../root.toml"\ntrain = {seed = 2, threads = 2}\n', "middle.toml")
    path = write(tmp_path, 'extends = "a/middle.toml"\ntrain.seed = 3\n')
    train = load(path).train
    assert (train.seed, train.threads, train.max_steps) == (3, 2, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("head.kind=mos", "mos"),
        ('head.kind="mos"', "mos"),
        ("optim.lr=2e-3", 2e-3),
        ("optim.lr=1", 1.0),
        ("data.lowercase=false", False),
        ("data.train=2024", "2024"),
        ("data.train=a=b", "a=b"),
        ("optim.betas=[0.5, 0.6]", (0.5, 0.6)),
        (" train.seed = 3 ", 3),
        ("train.seed=9223372036854775807", 2**63 - 1),
        ("optim.betas=[0, 0.999]", (0.0, 0.999)),
    ],
)
def test_overrides_are_toml_or_bare_words(tmp_path: Path, text: str, value: object) -> None:
    section, key = text.partition("=")[0].strip().split(".")
    found = getattr(getattr(load(write(tmp_path, ""), text), section), key)
    assert found == value
    assert type(found) is type(value)


def test_none_empties_an_optional_key_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, "[head]\nembedding_size = 8\n", "base.toml")
    path = write(tmp_path, 'extends = "base.toml"\n[head]\nembedding_size = "none"\n')
    assert load(path).head.embedding_size is None
    assert load(str(tmp_path / "base.toml"), "head.embedding_size=none").head.embedding_size is None
    assert load(path, "data.train=none", "optim.average=none").data.train == "none"
    assert "--set: train.seed must be an integer, got 'none'" in rejection(path, "train.seed=none")
    assert "embedding_size must be an integer, got 'nil'" in rejection(path, "head.embedding_size=nil")


def test_a_mixture_of_one_is_a_mixture(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), "head.kind=mos", "head.components=1").head.kind == "mos"


def test_the_last_override_wins(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), "train.seed=1", "train.seed=2").train.seed == 2


@pytest.mark.parametrize("preset", ["smalltalk_mos", "switchboard_small_doc", "switchboard_small_mixtape"])
def test_another_kind_of_head_names_every_key_to_set_with_it(tmp_path: Path, preset: str) -> None:
    message = rejection(preset, "head.kind=softmax")
    remedy = message.partition("; add ")[2]
    assert not re.search(r"[\[*?]", re.sub(r"'.*?'", "", remedy))  # a shell would match them with files
    named = [word for word in shlex.split(remedy) if word != "--set"]
    assert "head.components=1" in named
    assert load(preset, "head.kind=softmax", *named).head.kind == "softmax"
    for index in range(len(named)):  # none is too many
        rejection(preset, "head.kind=softmax", *named[:index], *named[index + 1 :])
    own = write(tmp_path, f'extends = "{preset}"\n[head]\nkind = "softmax"\n')
    message = rejection(own)
    assert message.startswith(f"{own}:3: [head] ")
    lines = message.partition("; also set ")[2].replace("head.", "").split(", ")
    more = "\n".join([Path(own).read_text("utf-8"), *lines])
    assert load(write(tmp_path, more)).head.kind == "softmax"


@pytest.mark.parametrize("overrides", [(), ("train.seed=2",)])
def test_a_mistake_in_the_own_file_has_one_remedy(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    own = write(tmp_path, '[head]\nkind = "softmax"\ncomponents = 3\n')
    assert rejection(own, *overrides) == (
        f"{own}:3: [head] components = 3: a softmax head has one; set head.components = 1"
    )


def test_no_remedy_changes_what_was_asked_for() -> None:
    assert rejection("smalltalk_mos", "head.kind=mixtape").endswith("binary tree; choose 2, 4 or 8")
    assert rejection("smalltalk_mos", "head.components=1", "head.prior_penalty=1.0").endswith(
        "prior_penalty does nothing with components = 1; leave it out, or raise components"
    )


def test_saved_configs_come_back(tmp_path: Path) -> None:
    path = write(tmp_path, "[optim]\nbetas = [0.5, 0.75]\n[head]\nkind = 'mos'\ncomponents = 3\n")
    resolved = load_config(path, DialogConfig, family="dialog", overrides=["train.seed=9"])
    save_config(resolved, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json", DialogConfig) == resolved


def test_override_of_a_saved_config_is_limited_to_sections(tmp_path: Path) -> None:
    resolved = load_config(write(tmp_path, "[decode]\nbeam = 3\n"), DialogConfig, family="dialog")
    changed = override(resolved, ["decode.nbest=2"], DialogConfig, sections=("decode",))
    assert (changed.config.decode.beam, changed.config.decode.nbest) == (3, 2)
    assert changed.provenance["decode.beam"] == resolved.provenance["decode.beam"]
    assert changed.provenance["decode.nbest"] == "--set"
    with pytest.raises(ConfigError, match=r"--set model.dropout: .*only decode\.\*"):
        override(resolved, ["model.dropout=0.5"], DialogConfig, sections=("decode",))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [("[head]\nskip_below = 0.1\n", ["head.kind=mos"]), ("", ["head.kind=mos", "head.skip_below=0.1"])],
)
def test_values_that_do_not_go_together_are_blamed_on_the_later_one(
    text: str, overrides: list[str], tmp_path: Path
) -> None:
    resolved = load_config(write(tmp_path, text), DialogConfig, family="dialog", overrides=overrides)
    drawn = {"head.unlikelihood": Setting(0.5, "space.toml")}
    with pytest.raises(ConfigError, match=r"^space.toml: \[head\] skip_below = 0.1"):
        with_settings(resolved, drawn, DialogConfig)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"config": 3}', b"{", b"\xff", b'{"config": {}}'])
def test_foreign_saved_configs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"config\.json"):
        read_config(tmp_path / "config.json", DialogConfig)


def test_a_config_may_have_any_suffix(tmp_path: Path) -> None:
    assert load(write(tmp_path, 'extends = "smalltalk_mos"\n', "my.conf")).head.kind == "mos"
    assert "a file, not a config" in rejection(write(tmp_path, "hello there\n", "chat.txt"))


def test_commands_in_messages_quote_names(tmp_path: Path) -> None:
    told = rejection(write(tmp_path, "hello there\n", "my chat.txt"))
    assert f"`dialog train own_small --data '{tmp_path}/my chat.txt'`" in told


def test_a_config_of_another_program_is_no_run(tmp_path: Path) -> None:
    write(tmp_path, '{"model_type": "gpt2"}', "config.json")
    assert runs_in(tmp_path) == []
    told = (
        f"a model of transformers (gpt2), not a run; train on top of it with --set model.trunk=hf:{tmp_path}"
    )
    assert told in str(not_a_run(tmp_path, "dialog"))
    assert "a model of transformers (gpt2), not a config" in rejection(str(tmp_path))
    write(tmp_path, "{damaged", "config.json")
    assert runs_in(tmp_path) == [tmp_path]


def test_a_preset_whose_run_exists_is_told_by_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`dialog train smalltalk_mos` makes" in str(not_a_run(Path("smalltalk_mos"), "dialog"))
    run = tmp_path / "runs/smalltalk_mos"
    run.mkdir(parents=True)
    write(run, '{"config": {}}', "config.json")
    assert "its run is runs/smalltalk_mos" in str(not_a_run(Path("smalltalk_mos"), "dialog"))


def test_a_preset_of_the_other_command_line_is_told() -> None:
    assert rejection("ptb_small_mos") == "ptb_small_mos: a preset of `lm`, not of `dialog`; use `lm`"


def test_a_file_extends_a_preset_by_its_name(tmp_path: Path) -> None:
    source = write(tmp_path, 'extends = "smalltalk_mos"\n[head]\ncomponents = 7\n')
    assert load(source).head.components == 7
    assert load(source).head.kind == "mos"
    write(tmp_path, 'extends = "smalltalk_softmax.toml"\n', "smalltalk_mos")
    write(tmp_path, "[head]\nkind = 'mos'\ncontext_scale = 3.0\n", "smalltalk_softmax.toml")
    assert load(source).head.context_scale == 3.0, "a file beside it comes first"
    assert "smalltalk_mso': no such file" in rejection(write(tmp_path, 'extends = "smalltalk_mso"\n'))


def test_presets_load_and_are_named_exactly() -> None:
    names = preset_names("dialog")
    kinds = ("softmax", "sigsoftmax", "moc", "mos", "moss", "mixtape", "plif", "doc", "mfs", "cpr", "ct_mos")
    assert {f"smalltalk_{kind}" for kind in kinds} <= set(names)
    assert not any(name.startswith("_") for name in names)
    for name in names:
        config = load(name)
        assert config.about
        named = [part for part in name.split("_") if part in get_args(HeadKind)]
        if name != "own_small":  # the advice for one's own text; all others that name no head have a softmax
            assert config.head.kind == (named[0] if named else "softmax")
    assert "did you mean smalltalk_mos?" in rejection("smaltalk_mos")
    assert "did you mean smalltalk_mos?" in rejection("configs/dialog/smalltalk_mso.toml")


# Lines


TOML = """\
top = 1
dotted.deep.key = 2
"quoted key" = 3
text = '''
fake = 1
[fake]
''' # the end
list = [
  1, # [no.table]
  "]", 2,
]

[table] # comment
x = {y = 1, z.w = "="}
[table.inner."quoted.name"]
k = \"\"\"
a = 1\\
\"\"\"
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key_has_the_line_it_is_written_on(newline: str) -> None:
    assert key_lines(TOML.replace("\n", newline)) == {
        ("top",): 1,
        ("dotted",): 2,
        ("dotted", "deep"): 2,
        ("dotted", "deep", "key"): 2,
        ("quoted key",): 3,
        ("text",): 4,
        ("list",): 8,
        ("table",): 13,
        ("table", "x"): 14,
        ("table", "x", "y"): 14,
        ("table", "x", "z"): 14,
        ("table", "x", "z", "w"): 14,
        ("table", "inner"): 15,
        ("table", "inner", "quoted.name"): 15,
        ("table", "inner", "quoted.name", "k"): 16,
    }


def test_every_key_of_every_config_file_has_its_line() -> None:
    for path in Path("configs").rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for keys, number in key_lines(text).items():
            assert keys[-1] in lines[number - 1]
        assert {keys[0] for keys in key_lines(text)} == set(tomllib.loads(text))


# Mistakes

KINDS = (
    "'softmax', 'sigsoftmax', 'sigmoid', 'relu', 'moc', 'mos', 'moss', 'mixtape', 'plif', 'doc', 'mfs' or"
    " 'cpr'"
)
TWICE = "key or table occurs twice; remove one of the two"


def mutants(name: str, chance: random.Random) -> Iterator[str]:
    """``name`` with one typing error of each kind."""
    at = chance.randrange(len(name))
    swaps = [i for i in range(len(name) - 1) if name[i] != name[i + 1]]
    if swaps:
        i = chance.choice(swaps)
        yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    yield name[:at] + name[at + 1 :]
    yield name[:at] + name[at] + name[at:]
    yield name[:at] + chance.choice("bcdfghjkmqvwxyz") + name[at + 1 :]
    yield chance.choice([name.upper(), name.capitalize()])
    yield name.replace("_", "-") if "_" in name else f"{name}_"


def test_every_misspelt_key_is_rejected_with_its_line_and_the_right_name(tmp_path: Path) -> None:
    chance, verdicts = random.Random(1), []
    for key in SECTION_KEYS:
        section, _, name = key.rpartition(".")
        for mutant in mutants(name, chance):
            if not mutant or f"{section}.{mutant}" in KEYS:
                continue
            message = rejection(write(tmp_path, f'about = ""\n[{section}]\n"{mutant}" = 1\n'))
            assert message.startswith(f"{tmp_path}/x.toml:3: unknown key {section}.{mutant}")
            verdicts.append(message.endswith(f"; did you mean {key}?"))
    assert len(verdicts) >= 400
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
        ("[train]\nseed = 9223372036854775808", ":2: train.seed must be less than or equal to 9223"),
        ("[decode]\nseed = 9223372036854775808", ":2: decode.seed must be less than or equal to 9223"),
        ("[decode]\nlength_penalty = 1e3", ":2: decode.length_penalty must be less than or equal to 10"),
        ("[decode]\n\nmin_length = 31", ":3: [decode] min_length = 31: must be at most max_length = 30"),
        ("[cell]\nrounds = 3", ":2: cell.rounds belongs to the mogrifier; neither encoder.cell = gru nor"),
        ('[train]\nstart_from = "runs/a"', ":2: train.start_from: dialog models begin with random weights;"),
        ("[encoder]\ncell = 'mogrifer'", ":2: encoder.cell must be 'lstm', 'mogrifier', 'mlstm', 'gru' or"),
        ("[optim]\nlr = inf", ":2: optim.lr must be from -1e+30 to 1e+30, got inf"),
        ("[optim]\nlr = 1e400", ":2: optim.lr must be from -1e+30 to 1e+30, got 1e400"),
        ("[optim]\nlr = 1e-400", ":2: optim.lr must be greater than 0, got 1e-400"),
        ("[optim]\nlr = 0e9", ":2: optim.lr must be greater than 0, got 0.0"),
        ("[optim]\nlr = nan", ":2: optim.lr must be a finite number, got nan"),
        ("[train]\nlr = 1", ":2: unknown key train.lr; did you mean optim.lr?"),
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
        ("train.seed=one", "--set: train.seed must be an integer, got 'one'"),
        ("train.seed=1\nx = 2", "--set: train.seed must be an integer, got '1\\nx = 2'"),
        ("head.components=2", "--set head.components: [head] components = 2"),
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


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf[train]\nseed = 4\n")
    assert load(str(tmp_path / "x.toml")).train.seed == 4


def test_missing_files_and_folders(tmp_path: Path) -> None:
    assert "no such file" in rejection(str(tmp_path / "none.toml"))
    assert "a folder" in rejection(str(tmp_path))


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


# Suggestions


@settings(max_examples=100, deadline=None)
@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_a_name_suggests_itself_whatever_else_there_is(name: str, other: str) -> None:
    assert nearest(name, [other, name]) == [name] or name == other


def test_one_typing_error_finds_the_name() -> None:
    for mutant in ("setps", "step", "stepps", "staps"):
        assert nearest(mutant, ["train.steps", "train.seed", "optim.lr"]) == ["train.steps"]
        assert nearest(f"optim.{mutant}", ["train.steps", "train.seed", "optim.lr"]) == ["train.steps"]
    assert nearest("zzz", ["train.steps"]) == []
    assert nearest("x", []) == []


def test_the_right_key_in_another_section_comes_first() -> None:
    keys = ["decoder.layers", "encoder.layers", "optim.layer", "encoder.size"]
    assert nearest("encodr.layers", keys) == ["encoder.layers"]
    assert nearest("optim.layers", keys) == ["decoder.layers", "encoder.layers"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ptb_moz", "; did you mean ptb_moc or ptb_mos?"),
        ("ptb_mso", "; did you mean ptb_mos?"),  # a swap is nearer than another letter
        ("ptb_mos_k9", "; did you mean ptb_mos_k1, ptb_mos_k2 or ptb_mos_k3?"),  # of four
        ("PTB-MOS", "; did you mean ptb_mos?"),
        ("zzz", ""),
    ],
)
def test_all_that_are_equally_near_are_suggested_up_to_three(name: str, hint: str) -> None:
    names = ["ptb_moss", "ptb_moc", "ptb_mos", *(f"ptb_mos_k{k}" for k in (1, 2, 3, 4))]
    assert did_you_mean(name, names) == hint
