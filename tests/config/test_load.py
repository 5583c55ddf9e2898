"""Configs: values arrive with their provenance, from files, presets and overrides."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from dialog.config import DialogConfig
from lm.config.load import (
    Resolved,
    load_config,
    override,
    read_config,
    require_effect,
    save_config,
    with_settings,
)
from lm.config.presets import preset_names
from lm.config.section import Section
from lm.config.settings import Setting
from lm.errors import ConfigError, StorageError
from lm.heads.config import HeadKind
from lm.language.config import LmConfig
from tests.support.config_files import KEYS, load, rejection, write


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
    assert "--set train.seed: must be an integer, got 'none'" in rejection(path, "train.seed=none")
    assert "embedding_size: must be an integer, got 'nil'" in rejection(path, "head.embedding_size=nil")


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


@pytest.mark.parametrize("own", ["prior_penalty=1.0"])
def test_no_remedy_changes_what_was_asked_for(own: str) -> None:
    assert rejection("smalltalk_mos", "head.kind=mixtape").endswith("binary tree; choose 2, 4 or 8")
    assert rejection("smalltalk_mos", "head.components=1", f"head.{own}").endswith(
        f"{own.split('=')[0]} does nothing with components = 1; leave it out, or raise components"
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
    ("text", "told"),
    [
        ("decode.lr=1", r"unknown key decode\.lr; \[decode\] has method, beam, "),
        ("lr=1", "unknown key lr; tables are decode$"),
        ("model.beam=1", r"unknown key model\.beam; did you mean decode\.beam\?$"),
    ],
)
def test_only_keys_that_can_be_changed_are_suggested(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        override(Resolved(DialogConfig(), {}), [text], DialogConfig, sections=("decode",))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("[head]\nskip_below = 0.1\n", ["head.kind=mos", "head.components=2"]),
        ("", ["head.kind=mos", "head.components=2", "head.skip_below=0.1"]),
    ],
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


def test_a_file_extends_a_preset_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "smalltalk_mos").mkdir()  # such as a run
    assert load(write(tmp_path, 'extends = "smalltalk_mos"\n')).head.kind == "mos"


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


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf[train]\nseed = 4\n")
    assert load(str(tmp_path / "x.toml")).train.seed == 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["optim.momentum=0.9"], "optim.momentum: has no effect with optim.name = adamw; leave it out"),
        (["optim.plateau_factor=0.1"], "or choose --set optim.schedule=plateau"),
        (["optim.average=none", "optim.ema_decay=0.9"], "has no effect with optim.average = none"),
        (["optim.schedule=constant", "optim.decay_steps=9"], "optim.decay_steps: has no effect with"),
        (["window.random=false", "window.spread=3.0"], "or choose --set window.random=true"),
        (["train.reduction=fast"], "train.reduction: has no effect with train.shards = 1; leave it out"),
        (["window.jitter=3"], "window.jitter: has no effect with window.order = streams"),
        (["head.prior_penalty_of=streams"], "with head.prior_penalty = 0.0; leave it out, or choose a head."),
        (
            ["cell.kind=mogrifier", "cell.rounds=0", "cell.rank=4"],
            "cell.rank: has no effect with cell.rounds = 0",
        ),
        (["head.prior_penalty=0.1", "head.prior_penalty_of=streams"], ""),
        (["cell.kind=mogrifier", "cell.rounds=1", "cell.zigzag=false"], "has no effect with cell.rounds = 1"),
        (["cell.kind=mogrifier", "cell.rounds=2", "cell.zigzag=false"], ""),
        (["train.exchange_minutes=3"], "has no effect with train.shards = 1; leave it out"),
        (
            ["head.kind=doc", "head.lower_components=[1]", "head.shared_latent_mask=true"],
            "or choose head.latent_dropout above 0",
        ),
        (["window.random=false", "window.spread=3.0"], "has no effect with window.random = false;"),
        (["optim.name=sgd", "optim.momentum=0.9", "optim.average=none"], ""),
        (["window.order=read_heads", "window.jitter=3"], ""),
        (["train.patience=0", "train.min_delta=1e-2"], ""),  # a resumed run may get a patience
        (
            ["model.hidden_sizes=[250]", "model.hidden_dropout=0.3"],
            "recurrent and model.hidden_sizes = [250]",
        ),
        (["model.input_embedding_ratio=0.4", "head.embedding_size=9"], "model.input_embedding_ratio = 0.4"),
        (["train.start_from=run", "model.vectors=glove.txt"], "model.vectors: has no effect with train.st"),
        (
            ["train.start_from=run", "model.embedding_init=scaled"],
            "embedding_init: has no effect with tr",
        ),
        (["train.start_from=run", "cell.init=truncated"], "cell.init: has no effect with train.start_from"),
        (
            ["train.start_from=run", "train.freeze=trunk", "optim.trunk_lr_ratio=0.1"],
            "optim.trunk_lr_ratio: has no effect with train.freeze = trunk",
        ),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_where_it_is_given(settings: list[str], told: str) -> None:
    config = load_config("ptb_small_mos", LmConfig, family="lm", overrides=settings).config
    if not told:
        require_effect(config, settings)
        return
    with pytest.raises(ConfigError, match=r"^--set ") as error:
        require_effect(config, settings)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("preset", "setting"),
    [
        ("switchboard_small_transformer_mos", "encoder.cell=mogrifier"),
        ("switchboard_small_transformer_mos", "decoder.cell=mogrifier"),
        ("switchboard_softmax", "encoder.utterance_size=99"),
        ("switchboard_small_mos_k1", "head.skip_below=0.1"),
        ("switchboard_small_mos_k1", "head.prior_bias=true"),
    ],
)
def test_a_setting_of_a_part_that_a_model_lacks_is_refused(preset: str, setting: str) -> None:
    config = load_config(preset, DialogConfig, family="dialog", overrides=[setting]).config
    with pytest.raises(ConfigError, match=r"has no effect with ((en|de)coder\.kind|head\.components) = "):
        require_effect(config, [setting])


@pytest.mark.parametrize(
    ("preset", "setting", "told"),
    [
        ("ptb_small_transformer_mos", "model.weight_dropout=0.5", "belongs to the recurrent trunk"),
        ("ptb_small_transformer_mos", "model.weight_dropout=0.3", "belongs to the recurrent trunk"),
        ("ptb_small_transformer_mos", "model.weight_dropout=0", "belongs to the recurrent trunk"),
        ("ptb_small_transformer_mos", "model.layer_sum=false", "belongs to the recurrent trunk"),
        ("ptb_small_transformer_mos", "cell.kind=lstm", 'has no effect with model.trunk = "transformer"'),
        ("ptb_small_mos", "transformer.heads=4", 'has no effect with model.trunk = "recurrent"'),
        ("ptb_small_mos", "cell.rounds=5", "belongs to the mogrifier"),
        ("ptb_small_mos", "head.gate_size=none", "belongs to head.kind = mixtape"),
    ],
)
def test_a_default_that_has_no_effect_is_refused_where_it_is_given(
    tmp_path: Path, preset: str, setting: str, told: str
) -> None:
    for source in (preset, write(tmp_path, f'extends = "{preset}"\n')):
        with pytest.raises(ConfigError, match=r"^--set ") as error:
            load_config(source, LmConfig, family="lm", overrides=[setting])
        message = str(error.value)
        assert message.startswith(f"--set {setting.partition('=')[0]}: {told}; ")


@pytest.mark.parametrize("off", [0.0, 0.5])
def test_a_default_may_undo_what_a_preset_sets(tmp_path: Path, off: float) -> None:
    """A file may give it in any case, as a whole config has every key."""
    sizes = ["model.trunk=transformer", "model.hidden_sizes=[128, 128]"]
    with pytest.raises(ConfigError, match=r"; add --set model\.weight_dropout=0\.0$"):
        load_config("ptb_small_mos", LmConfig, family="lm", overrides=sizes)
    given = [*sizes, f"model.weight_dropout={off}"]
    assert (
        load_config("ptb_small_mos", LmConfig, family="lm", overrides=given).config.model.weight_dropout
        == off
    )
    own = write(tmp_path, f'extends = "ptb_small_transformer_mos"\n[model]\nweight_dropout = {off}\n')
    assert load_config(own, LmConfig, family="lm").config.model.weight_dropout == off


@pytest.mark.parametrize(
    ("schema", "family", "preset"),
    [(LmConfig, "lm", "ptb_small_mos"), (DialogConfig, "dialog", "smalltalk_mos")],
)
def test_a_trunk_whose_name_is_not_unicode_is_named(
    schema: type[LmConfig | DialogConfig], family: str, preset: str
) -> None:
    for trunk, told in (("\udcff", "must be"), ("hf:\udcff", "no such folder")):
        with pytest.raises(ConfigError, match=f"model.trunk: {told}") as error:
            load_config(preset, schema, family=family, overrides=[f"model.trunk={trunk}"])
        assert "\\udcff" in str(error.value)


@pytest.mark.parametrize(
    ("preset", "schema", "key"),
    [("ptb_small_mos", LmConfig, "weight_dropout"), ("smalltalk_mos", DialogConfig, "embedding_size")],
)
def test_a_preset_with_sizes_is_no_start_for_a_pretrained_trunk(
    in_tmp: Path, preset: str, schema: type[LmConfig | DialogConfig], key: str
) -> None:
    """A folder that does not exist is named before a key that does not fit."""

    def told(source: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            load_config(source, schema, family=schema.family, overrides=overrides)
        return str(error.value)

    trunk = "model.trunk=hf:folder"
    assert told(preset, trunk) == "--set model.trunk: no such folder, got hf:folder; check the path"
    own = write(in_tmp, f'extends = "{preset}"\n[model]\ntrunk = "hf:folder"\n')
    assert told(own) == f"{own}:3: model.trunk = hf:folder: no such folder; check the path"
    (in_tmp / "folder").mkdir()
    said = told(preset, trunk)
    assert said.startswith(f"--set model.trunk: [model] {key} belongs to ")
    assert said.endswith("; begin with a config without it, as in docs/huggingface.md")
    assert told(own).endswith(said.partition(": ")[2])
    own = write(in_tmp, '[model]\ntrunk = "hf:folder"\n')
    if schema is LmConfig:
        assert told(own, "model.embedding_size=400").endswith(" transformer trunks; leave it out")


@pytest.mark.parametrize("schema", [LmConfig, DialogConfig])
def test_owners_and_readers_are_keys_of_their_section(schema: type[Section]) -> None:
    sections = [field.annotation for field in schema.model_fields.values()]
    for section in sections:
        if isinstance(section, type) and issubclass(section, Section):
            for keys in (*section.owners.values(), *section.readers.values()):
                assert keys.keys() <= section.model_fields.keys()
            assert section.readers.keys() <= section.model_fields.keys()
