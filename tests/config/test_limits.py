"""Values and files at the limits: every key of both programs, and configs that are made to hurt."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dialog.cli import main as dialog
from dialog.config import DialogConfig
from dialog.describe import describe as describe_dialog
from dialog.metrics.references import read_references
from lm.cli import main as lm
from lm.config.load import load_config, read_config
from lm.config.section import known_keys
from lm.config.suggest import did_you_mean
from lm.config.tomlfile import MAX_TOML, key_lines, read_toml
from lm.errors import ConfigError, DataError, StorageError
from lm.language.config import LmConfig
from lm.language.describe import describe as describe_lm
from lm.tuning.space import load_space

HUGE = "1" + "0" * 400
VALUES = (
    str(10**18),
    str(2**63),
    HUGE,
    "9" * 4301 + "e0",
    "-1",
    "nan",
    "inf",
    "1e300",
    '""',
    "'\\u0000'",
    "x" * 5000,
)
FAMILIES: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "dialog": (DialogConfig, describe_dialog),
    "lm": (LmConfig, describe_lm),
}
KEYS = [
    (family, key)
    for family, (schema, _) in FAMILIES.items()
    for key in known_keys(schema)
    if key != "extends"
]


def seconds_of(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def rejected(path: Path, text: str | bytes) -> str:
    """The message about a config, which takes less than a second."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return rejected_file(path)


def rejected_file(path: Path) -> str:
    found: list[str] = []

    def read() -> None:
        with pytest.raises(ConfigError) as caught:
            load_config(str(path), DialogConfig, family="dialog")
        found.append(str(caught.value))

    assert seconds_of(read) < 1
    assert found[0].isprintable()
    assert len(found[0]) < 500
    return found[0]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_at_the_limits_is_refused_by_its_key_or_can_be_used(value: str) -> None:
    """In less than a second; to be used means that the model can be sized, or is told to be too large."""
    assert len(KEYS) * len(VALUES) >= 1200
    for family, key in KEYS:
        slow = seconds_of(partial(use, family, key, value)) >= 1  # perhaps by a collection of garbage
        assert not slow or seconds_of(partial(use, family, key, value)) < 1, key


def use(family: str, key: str, value: str) -> None:
    schema, describe = FAMILIES[family]
    texts = [f"{key}={value}"] + ["data.vocab_size=50"] * (key != "data.vocab_size")
    try:
        describe(load_config(str(BASE[family]), schema, family=family, overrides=texts).config)
    except ConfigError as error:
        message = str(error)
        assert message.isprintable(), (key, message)
        assert key.rpartition(".")[2] in message or "sizes overflow" in message, (key, message)


@pytest.fixture(autouse=True, scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bases")
    for family in FAMILIES:
        BASE[family] = folder / f"{family}.toml"
        BASE[family].touch()


BASE: dict[str, Path] = {}


@pytest.mark.parametrize(
    "text",
    ["decoder.layers=1000000000000", "train.accumulate=9223372036854775808", f"train.keep_last={HUGE}"],
)
def test_huge_numbers_are_usage_errors(ending: Callable[..., Any], text: str) -> None:
    code, out, err = ending(dialog, "describe", "smalltalk_mos", "--set", text)
    assert (code, out) == (2, "")
    assert text.partition("=")[0] in err
    assert err.count("\n") == 1


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\n\nseed = " + "9" * 5000, "x.toml:3: a number of more than 4,300 digits; write a"),
        ("[train]\n\nseed = 0x" + "f" * 9000, "x.toml:3: train.seed must be from 0 to 9223"),
        ("[train]\nseed = [" + "[" * 5000, "x.toml:2: not a config: nested too deeply"),
        ("a = " + "{a = " * 5000, "x.toml:1: not a config: nested too deeply"),
        ("\n" + ".".join("a" * 20000) + " = 1", "x.toml:2: not a config: nested too deeply"),
        ("\n[" + ".".join(['"a"'] * 20000) + "]", "x.toml:2: not a config: nested too deeply"),
        ("a" * 100_000 + " = 1", "x.toml:1: unknown key aaaa"),
        (f'"{"a" * 100_000}" = 1', "x.toml:1: unknown key aaaa"),
        (f"[{'a' * 100_000}]", "x.toml:1: unknown table [aaaa"),
        ('x = """' + '\\"""' * 100_000, "x.toml:1: not valid TOML: Unterminated string"),
        ('x = "' + '\\"' * 100_000, "x.toml:1: not valid TOML: Unterminated string"),
        ("x = " + "'" * 300_001, "x.toml:1: not valid TOML"),
        ('extends = "a\\u0000b"', "x.toml:1: extends 'a\\x00b': no such file or preset"),
        (f'extends = "{"a" * 4000}"', "x.toml:1: extends 'aaaa"),
        (f'extends = "{"a" * 5000}"', "x.toml:1: extends 'aaaa"),
        ('[data]\ntrain = "a\\u0000b"', "x.toml:2: data.train must have at most 4,096 characters, and none"),
        ('extends = "."', "x.toml:1: extends '.': a folder, not a config; `dialog presets` lists"),
        (f"[model]\nhidden_sizes = {[1] * 2000}", "x.toml:2: unknown key model.hidden_sizes"),
        (b"\xff" * 1000, "x.toml:1: not UTF-8"),
        (b"\0" * 1000, "x.toml:1: not valid TOML"),
        ("#" * MAX_TOML + "#", "x.toml: longer than 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_files_that_are_made_to_hurt(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert message in rejected(tmp_path / "x.toml", text)


@pytest.mark.parametrize("kind", ["fifo", "sparse", "folder", "/dev/zero", "/dev/null", "dangling"])
@pytest.mark.parametrize("reader", ["config", "extends", "space", "run"])
def test_what_is_no_file_of_settings_is_refused_at_once(tmp_path: Path, kind: str, reader: str) -> None:
    path = tmp_path / "config.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)
    child = tmp_path / "child.toml"
    child.write_text('extends = "config.json"')
    base = load_config("smalltalk_mos", DialogConfig, family="dialog")
    read: dict[str, Callable[[], object]] = {
        "config": lambda: load_config(str(path), DialogConfig, family="dialog"),
        "extends": lambda: load_config(str(child), DialogConfig, family="dialog"),
        "space": lambda: load_space(str(path), base, DialogConfig, family="dialog"),
        "run": lambda: read_config(path, DialogConfig),
    }

    def refused() -> None:
        with pytest.raises((ConfigError, StorageError), match=r"config\.json") as caught:
            read[reader]()
        assert isinstance(caught.value, ConfigError) == (reader != "run")

    assert seconds_of(refused) < 1


@pytest.mark.parametrize(
    "text",
    [
        "[optim]\nbetas = [\n" + "0.9,\n" * 20_000 + "]\n[train]\nseed = 1\n",
        'about = """\n' + "x\n" * 20_000 + '"""\n[train]\nseed = 1\n',
        "[optim]\n" + "".join(f"k{n} = {n}\n" for n in range(20_000)) + "[train]\nseed = 1\n",
    ],
)  # fmt: skip
def test_lines_are_found_in_time_that_grows_with_the_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    started = time.process_time()
    _, lines = read_toml(path)
    assert time.process_time() - started < 2  # a machine that is busy takes four times as long
    assert lines["train", "seed"] == text.count("\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('a = [ # ]\n1, \']\', "[\\"",\n[2]]\nb = 1\n', {("a",): 1, ("b",): 4}),
        ("a = '''\nb = 1\n'''''\nc = 1", {("a",): 1, ("c",): 4}),
        ('a = """\\"""\nb = 1"""\nc = "#"  # d = 1\r\ne = 1', {("a",): 1, ("c",): 3, ("e",): 4}),
        (
            "[a.b]\r\nc.d = {e = 1, f.g = [\n]}\r\n",
            {("a",): 1, ("a", "b"): 1, ("a", "b", "c", "d", "f", "g"): 2},
        ),
        ("\n\n[[a]]\nb = 1\n[[a]]\nb = 2\n", {("a",): 3, ("a", "b"): 4}),
    ],
)
def test_statements_end_outside_of_strings_comments_and_brackets(
    text: str, lines: dict[tuple[str, ...], int]
) -> None:
    assert lines.items() <= key_lines(text).items()


def test_references_with_a_number_beyond_reading(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text('[{"context": ["A: x\\n"],\n"responses": ["a"], "dialog": ' + "9" * 5000 + "}]")
    with pytest.raises(DataError, match=r"refs\.json:2: a number of more than 4,300 digits"):
        read_references(path)


# The command line


@pytest.mark.parametrize("value", ["9" * 5000, "{" * 5000, ".".join("a" * 5000), "x" * 100_000])
def test_a_set_that_is_made_to_hurt(ending: Callable[..., Any], value: str) -> None:
    for line in (f"train.seed={value}", f"{value}=1"):
        before = time.process_time()
        code, out, err = ending(dialog, "describe", "smalltalk_mos", "--set", line)
        assert time.process_time() - before < 1
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert len(err) < 500


def test_nothing_is_suggested_for_what_nobody_typed() -> None:
    assert seconds_of(lambda: did_you_mean("x" * 1_000_000, ["train.seed"])) < 0.1


@pytest.mark.parametrize(
    ("main", "line", "code", "told"),
    [
        (dialog, "train ''", 2, "CONFIG is empty; name a preset (`dialog presets` lists them) or"),
        (lm, "describe ''", 2, "CONFIG is empty; name a preset (`lm presets` lists them) or a .toml file"),
        (lm, "train ptb_mos --set data.train=", 3, "data.train is empty; name a corpus, in the"),
        (dialog, "train smalltalk_mos --set data.valid=", 3, "data.valid is empty; name a corpus, in the"),
        (lm, "describe ptb_mos --json ''", 2, "--json: is empty; name a file"),
        (lm, "evaluate x --data ''", 2, "--data: is empty; name a file"),
        (lm, "score x y --output ''", 2, "--output: is empty; name a file"),
        (dialog, "evaluate x --output ''", 2, "--output: is empty; name a file"),
        (dialog, "prepare '' --out x", 2, "is empty; name a file"),
        (dialog, "show ''", 2, "is empty; name a file"),
        (dialog, "score ''", 2, "is empty; name a file"),
        (dialog, "runs ''", 2, "is empty; name a folder"),
        (lm, "prepare '' --out x", 2, "is empty; name a file"),
        (lm, "score x ''", 2, "is empty; name a file"),
        (dialog, "train own_small --data ''", 2, "--data: is empty; name a file"),
        (dialog, "references --train '' --test x --out y", 2, "--train: is empty; name a file"),
        (dialog, "references --train x --test '' --out y", 2, "--test: is empty; name a file"),
        (dialog, "evaluate x --references ''", 2, "--references: is empty; name a file"),
        (dialog, "chat x --replay ''", 2, "--replay: is empty; name a file"),
        (dialog, "compare x ''", 2, "is empty; name a folder"),
        (lm, "report ''", 2, "is empty; name a folder"),
    ],
)  # fmt: skip
def test_an_empty_name_is_refused_by_its_option(
    ending: Callable[..., Any], in_tmp: Path, main: Any, line: str, code: int, told: str
) -> None:
    ended = ending(main, *(word.replace("''", "") for word in line.split()))
    assert ended[:2] == (code, "")
    assert told in ended[2]
    assert not list(in_tmp.iterdir())


@pytest.mark.parametrize(
    ("main", "line"),
    [
        (dialog, "train smalltalk_mos --run ''"), (dialog, "check ''"), (dialog, "evaluate ''"),
        (dialog, "tune smalltalk_mos --out ''"), (dialog, "prepare x --out ''"), (dialog, "demo --out ''"),
        (lm, "train ptb_mos --run ''"), (lm, "finetune ''"), (lm, "finetune x --run ''"), (lm, "check ''"),
        (lm, "prepare x --out ''"), (lm, "dynamic ''"), (lm, "generate ''"), (lm, "bottleneck --out ''"),
    ],
)  # fmt: skip
def test_an_empty_name_of_a_folder_is_not_this_folder(
    ending: Callable[..., Any], in_tmp: Path, main: Any, line: str
) -> None:
    code, out, err = ending(main, *(word.replace("''", "") for word in line.split()))
    assert (code, out) == (2, "")
    assert "is empty; name a folder" in err
    assert not list(in_tmp.iterdir())


def test_a_missing_parent_is_named_once(ending: Callable[..., Any], in_tmp: Path) -> None:
    Path("x.toml").write_text('extends = "own_smal"')
    told = "x.toml:1: extends 'own_smal': no such file or preset; did you mean own_small?\n"
    assert ending(dialog, "describe", "x.toml") == (2, "", told)
