"""Search spaces: what is refused before anything starts, and the ones that come with Highrank."""

from pathlib import Path
from typing import Any

import pytest

from dialog.config import DialogConfig
from lm.config.load import Resolved, load_config
from lm.config.presets import space_paths
from lm.errors import ConfigError
from lm.language.config import LmConfig
from lm.tuning.space import load_space, settings_of, space_of

BASE_OF = {  # a config that each space is for, and what changes in it
    "ptb_small": ("ptb_small_mos", ()),
    "lstm": ("ptb_lstm_lamb", ()),
    "lstm_enwik8": ("enwik8_lstm", ()),
    "mogrifier": ("ptb_mogrifier", ()),
    "mogrifier_enwik8": ("enwik8_mogrifier", ()),
    "lstm_char": ("ptb_char_lstm", ()),
    "mogrifier_char": ("ptb_char_mogrifier", ()),
    "lstm_fast": ("ptb_lstm_fast", ()),
    "mogrifier_fast": ("ptb_mogrifier_fast", ()),
}


def lm_base(*overrides: str) -> Resolved[LmConfig]:
    return load_config("ptb_small_mos", LmConfig, family="lm", overrides=overrides)


def load(text: str, folder: Path, *overrides: str) -> Any:
    path = folder / "s.toml"
    path.write_text(text)
    return load_space(str(path), lm_base(*overrides), LmConfig, family="lm")


GOOD = '"optim.lr" = {low = 1e-3, high = 4e-3, log = true}'


@pytest.mark.parametrize("key", ["head.embedding_size", "head.components", "model.embedding_size"])
def test_sizes_have_ranges_also_where_none_is_a_value(key: str, tmp_path: Path) -> None:
    (parameter,) = load(f'[space]\n"{key}" = {{low = 4, high = 16}}\n', tmp_path)
    assert (parameter.low, parameter.high, parameter.whole) == (4, 16, True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('"optim.lrr" = {low = 1e-3, high = 4e-3}', "unknown key optim.lrr; did you mean optim.lr?"),
        ('"optim" = {lrr = {low = 1e-3, high = 4e-3}}', "unknown key optim.lrr; did you mean optim.lr?"),
        ('"extends" = {choices = ["a"]}', "extends cannot be searched; remove it"),
        ('"optim.lr" = 3', "optim.lr needs a range or choices, as in"),
        ('"optim.lr" = {low = 1e-3, hihg = 1}', "optim.lr has an unknown hihg; did you mean high?"),
        ('"optim.lr" = {low = 1e-3}', "optim.lr has no high; give low and high, or choices"),
        ('"optim.lr" = {low = "a", high = 1}', "optim.lr low must be a number, got 'a'"),
        ('"optim.lr" = {low = true, high = 2}', "optim.lr low must be a number, got True"),
        ('"optim.lr" = {low = 1.0, high = inf}', "optim.lr high must be finite, got inf"),
        (f'"optim.lr" = {{low = 1, high = 1{"0" * 400}}}', "optim.lr high must be finite, got 1000"),
        ('"optim.lr" = {low = 2, high = 1}', "optim.lr low must be below high, got 2.0 and 1.0"),
        ('"optim.lr" = {low = 1, high = 2, floor = 2}', "optim.lr floor must be below high, got 2.0 and 2.0"),
        ('"optim.lr" = {low = 0, high = 1, log = true}', "optim.lr low must be above 0 with log = true"),
        ('"optim.lr" = {low = 1, high = 2, log = 1}', "optim.lr log must be true or false, got 1"),
        ('"optim.lr" = {low = 0, high = 1}', "optim.lr must be greater than 0, got 0.0"),
        ('"head.components" = {low = 1.5, high = 3}', "head.components low must be an integer, got 1.5"),
        ('"head.kind" = {low = 1, high = 3}', "head.kind is not a number, so it has no range; give choices"),
        (
            '"model.hidden_sizes" = {low = 1, high = 3}',
            "model.hidden_sizes is not a number",
        ),
        ('"head.kind" = {choices = ["mos", "moos"]}', "got 'moos'; did you mean mo"),
        (
            '"head.kind" = {choices = []}',
            "head.kind has no choices; name one at least, as in choices = [1, 2]",
        ),
        ('"head.kind" = {choices = "moc"}', "head.kind choices must be a list, as in choices = [1, 2]"),
        ('"head.kind" = {choices = ["mos"], low = 1}', "head.kind has both choices and a range; remove one"),
        ('"head.kind" = {choices = ["mos", "mos"]}', "head.kind has the same choice twice; remove one"),
        ('"head.kind" = {choices = [1979-05-27]}', "head.kind choices must be numbers, texts, true, false"),
        ('"cell.rounds" = {low = 0, high = 6}', "rounds belongs to the mogrifier"),
        (
            '"train.seed" = {low = 1, high = 6}',
            "train.seed is both in the space and in --set; remove one of them",
        ),
        (f"{GOOD}\noptim = {{lr = {{low = 1, high = 2}}}}", "optim.lr occurs twice; remove one"),
    ],
)
def test_what_is_wrong_with_a_space_is_one_line_with_its_place(line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(f"# a space\n[space]\n{line}\n", tmp_path, "train.seed=4")
    message = str(error.value)
    assert told in message
    assert message.startswith(f"{tmp_path / 's.toml'}:{3 + line.count(chr(10))}: ")
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "[space]\n", "space = 3\n"])
def test_an_empty_space_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s\.toml: empty space; write \[space\], and below it keys as in"):
        load(text, tmp_path)


def test_what_else_a_space_file_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s\.toml:2: unknown name spce; did you mean space\?"):
        load(f"\n[spce]\n{GOOD}\n", tmp_path)
    with pytest.raises(ConfigError, match=r"--space lstn: no such space or file; did you mean lstm\?"):
        load_space("lstn", lm_base(), LmConfig, family="lm")


def test_keys_may_be_quoted_or_in_tables(tmp_path: Path) -> None:
    flat = load(f"[space]\n{GOOD}\n", tmp_path)
    nested = load("[space.optim]\nlr = {low = 1e-3, high = 4e-3, log = true}\n", tmp_path)
    assert [parameter.entry() for parameter in flat] == [parameter.entry() for parameter in nested]
    assert flat[0].where == f"{tmp_path / 's.toml'}:2"


def test_values_below_the_floor_are_the_floor(tmp_path: Path) -> None:
    text = '[space]\n"cell.rank" = {low = -20, high = 100, floor = 0}\n'
    (rank,) = load(text, tmp_path, "cell.kind=mogrifier")
    values = [rank.settings(drawn)["cell.rank"].value for drawn in (-20, -1, 0, 1, 100)]
    assert values == [0, 0, 0, 1, 100]


def test_one_value_may_be_that_of_several_keys(tmp_path: Path) -> None:
    text = '[space]\n"model.output_dropout" = {low = 0.0, high = 0.9, also = ["head.latent_dropout"]}\n'
    (dropout,) = space = load(text, tmp_path)
    values = {key: setting.value for key, setting in settings_of(space, {dropout.key: 0.3}).items()}
    assert values == {"model.output_dropout": 0.3, "head.latent_dropout": 0.3}
    assert space_of({dropout.key: dropout.entry()}, "there")[0].also == ("head.latent_dropout",)
    for also, told in (
        ('["head.latent"]', "unknown key head.latent; did you mean"),
        ('"head.latent_dropout"', "model.output_dropout also must be a list of keys"),
        ('["model.output_dropout"]', "model.output_dropout occurs twice"),
        ('["head.tied"]', "head.tied"),
    ):
        with pytest.raises(ConfigError, match=rf"s\.toml:2: .*{told}"):
            load(text.replace('["head.latent_dropout"]', also), tmp_path)
    with pytest.raises(ConfigError, match=r"head\.latent_dropout is both in the space and in --set"):
        load(text, tmp_path, "head.latent_dropout=0.1")


def test_a_value_may_need_one_of_another_key(tmp_path: Path) -> None:
    base, path = load_config("ptb_small_softmax", LmConfig, family="lm"), tmp_path / "s.toml"
    kinds = '"head.kind" = {choices = ["softmax", "mos"]}\n'
    sizes = '"head.components" = {low = 1, high = 5}\n'
    for lines in (kinds + sizes, sizes + kinds):
        path.write_text(f"[space]\n{lines}")
        assert len(load_space(str(path), base, LmConfig, family="lm")) == 2
    path.write_text(f"[space]\n{sizes}{GOOD}\n")
    with pytest.raises(ConfigError, match=r"s\.toml:2: .*components = 5: a softmax head has one"):
        load_space(str(path), base, LmConfig, family="lm")


def test_a_space_survives_being_saved(tmp_path: Path) -> None:
    more = '"head.components" = {low = 1, high = 9}\n"head.tied" = {choices = [true, false]}\n'
    space = load(f"[space]\n{GOOD}\n{more}", tmp_path)
    again = space_of({parameter.key: parameter.entry() for parameter in space}, "there")
    assert [parameter.entry() for parameter in again] == [parameter.entry() for parameter in space]
    assert [parameter.whole for parameter in again] == [False, True, False]


def test_the_spaces_that_come_along_fit_their_models() -> None:
    assert {path.stem for path in space_paths("lm")} == set(BASE_OF)
    for name, (config, overrides) in BASE_OF.items():
        base = load_config(config, LmConfig, family="lm", overrides=overrides)
        assert load_space(name, base, LmConfig, family="lm")
    assert [path.stem for path in space_paths("dialog")] == ["smalltalk"]
    smalltalk = load_config("smalltalk_mos", DialogConfig, family="dialog")
    assert load_space("smalltalk", smalltalk, DialogConfig, family="dialog")


TABLE_4 = {
    "optim.lr": (0.001, 0.004), "model.input_embedding_ratio": (0.01, 2.0), "model.input_dropout": (0.0, 0.9),
    "model.hidden_dropout": (0.0, 0.95), "model.state_dropout": (0.0, 0.8),
    "model.output_dropout": (0.0, 0.95),
}  # fmt: skip
ABLATION = {key: ends for key, ends in TABLE_4.items() if key != "model.input_embedding_ratio"}
TABLE_5 = {
    "optim.lr": (0.001, 0.004), "model.input_dropout": (0.0, 0.2), "model.hidden_dropout": (0.0, 0.2),
    "model.state_dropout": (0.0, 0.25), "model.output_dropout": (0.0, 0.25),
}  # fmt: skip
MOGRIFIER = {"cell.rounds": (0, 6), "cell.rank": (-20, 100)}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lstm", TABLE_4), ("mogrifier", TABLE_4 | MOGRIFIER),
        ("lstm_char", TABLE_4), ("mogrifier_char", TABLE_4 | MOGRIFIER),
        ("lstm_fast", ABLATION), ("mogrifier_fast", ABLATION | MOGRIFIER),
        ("lstm_enwik8", TABLE_5), ("mogrifier_enwik8", TABLE_5 | MOGRIFIER),
    ],
)  # fmt: skip
def test_the_ranges_of_the_mogrifier_paper(name: str, wanted: dict[str, tuple[float, float]]) -> None:
    """Melis et al. (2020), Tables 4 and 5; L2 is divided by the tokens that their loss is summed over.

    The smallest ratio is not theirs, 0: an embedding has a size.
    """
    config, overrides = BASE_OF[name]
    base = load_config(config, LmConfig, family="lm", overrides=overrides)
    space = load_space(name, base, LmConfig, family="lm")
    ranges = {p.key: (p.low, p.high) for p in space}
    assert {p.key: p.also for p in space if p.also} == {"model.output_dropout": ("head.latent_dropout",)}
    tokens = base.config.window.length
    assert ranges.pop("model.weight_penalty") == pytest.approx((5e-6 / tokens, 1e-3 / tokens), rel=0.01)
    assert ranges == wanted
