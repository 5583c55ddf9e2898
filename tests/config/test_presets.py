"""Presets of language models against the published recipes, number by number; the sizes of all presets."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dialog.cli import main as dialog_main
from dialog.config import DialogConfig
from dialog.describe import describe as describe_dialog
from lm.cells.config import CellConfig
from lm.cli import main as lm_main
from lm.config.load import load_config
from lm.config.presets import preset_folder, preset_names, read_presets, recorded_parameters, sizes_of
from lm.config.write import config_text
from lm.errors import ConfigError
from lm.heads.config import MIXTURES
from lm.language.config import LmConfig
from lm.language.describe import describe

BUDGETED = [  # of Melis et al. (2020): see language/test_melis_presets.py
    name for name in preset_names("lm") if load_config(name, LmConfig, family="lm").config.model.budget
]
PRESETS = [name for name in preset_names("lm") if name not in BUDGETED]
LINKS = ("sigsoftmax", "sigmoid", "relu")

# Merity et al. (2018) and the README of their code: what the default values of its flags are, and what both
# corpora share.
AWD: dict[str, Any] = {
    "window.length": 70, "window.random": True, "window.half_share": 0.05, "window.spread": 5.0,
    "window.shortest": 5, "window.max_delta": 0, "window.rescale_lr": True,
    "model.embedding_size": 400, "model.hidden_sizes": (1150, 1150, 400), "model.init_range": 0.1,
    "model.embedding_dropout": 0.1, "model.output_dropout": 0.4, "model.weight_dropout": 0.5,
    "model.activation_penalty": 2.0, "model.slowness_penalty": 1.0,
    "head.kind": "softmax", "head.components": 1, "head.tied": True, "head.output_bias": True,
    "optim.name": "sgd", "optim.lr": 30.0, "optim.weight_decay": 1.2e-6, "optim.clip_norm": 0.25,
    "optim.momentum": 0.0, "optim.schedule": "constant", "optim.average": "uniform",
    "optim.average_trigger": 5, "train.accumulate": 1, "train.precision": "float32", "train.patience": 0,
    "train.max_steps": 0, "train.max_minutes": 0.0, "train.stop_trigger": 0, "train.start_from": "",
    "data.valid_streams": 10,
}  # fmt: skip
AWD_OF: dict[str, dict[str, Any]] = {
    "ptb": AWD | {
        "model.input_dropout": 0.4, "model.hidden_dropout": 0.25, "train.batch_size": 20, "train.seed": 141,
        "train.max_epochs": 500, "data.vocab_size": 10_000,
    },
    "wt2": AWD | {
        "model.input_dropout": 0.65, "model.hidden_dropout": 0.2, "train.batch_size": 80,
        "train.seed": 1882, "train.max_epochs": 750, "data.vocab_size": 33_278,
    },
}  # fmt: skip

# Yang et al. (2018): the README of their code, which corrects two rows of their Table 7.
MIXTURE_OF: dict[str, dict[str, Any]] = {
    "ptb": AWD_OF["ptb"] | {
        "optim.lr": 20.0, "train.batch_size": 12, "window.max_delta": 40, "model.embedding_size": 280,
        "model.hidden_sizes": (960, 960, 620), "head.embedding_size": 280, "head.components": 15,
        "model.input_dropout": 0.4, "model.hidden_dropout": 0.225, "head.latent_dropout": 0.29,
        "train.seed": 28, "train.max_epochs": 1000,
    },
    "wt2": AWD_OF["wt2"] | {
        "optim.lr": 15.0, "train.batch_size": 15, "window.max_delta": 20, "model.embedding_size": 300,
        "model.hidden_sizes": (1150, 1150, 650), "head.embedding_size": 300, "head.components": 15,
        "model.input_dropout": 0.55, "model.hidden_dropout": 0.2, "head.latent_dropout": 0.29,
        "train.seed": 1882, "train.max_epochs": 1000,
    },
}  # fmt: skip
CT = {  # Contextual Temperature for Language Modeling, §4.2
    "head.temperature": "contextual", "head.temperature_alpha": 1.0, "head.temperature_beta": 0.5,
    "head.temperature_loss_scaling": True,
}  # fmt: skip
NARROW = {"ptb": (960, 960, 280), "wt2": (1150, 1150, 300)}  # the last layer is as large as the embedding
LONG = {"ptb": 1000, "wt2": 1500}  # epochs of Kanai et al. (2018), App. C.1.1: twice as many
CORPUS = {"ptb": "data/ptb", "wt2": "data/wikitext-2"}


def recipes() -> dict[str, dict[str, Any]]:
    """The keys that a publication decides, by preset."""
    found: dict[str, dict[str, Any]] = {}
    for name, folder in CORPUS.items():
        splits = {f"data.{split}": f"{folder}/{split}" for split in ("train", "valid", "test")}
        awd, mixture, long = AWD_OF[name] | splits, MIXTURE_OF[name] | splits, LONG[name]
        finetuning = {"optim.average_trigger": 0, "train.stop_trigger": 5}
        found[f"{name}_softmax"] = awd
        found[f"{name}_softmax_long"] = awd | {"train.max_epochs": long}
        found |= {f"{name}_{link}": awd | {"train.max_epochs": long, "head.kind": link} for link in LINKS}
        found |= {f"{name}_{kind}": mixture | {"head.kind": kind} for kind in ("moc", "mos", "moss")}
        found[f"{name}_softmax_finetune"] = awd | finetuning | {
            "window.max_delta": 10, "train.start_from": f"runs/{name}_softmax",
        }  # fmt: skip
        found[f"{name}_mos_finetune"] = found[f"{name}_mos"] | finetuning | {
            "optim.lr": {"ptb": 25.0, "wt2": 20.0}[name], "train.start_from": f"runs/{name}_mos",
        }  # fmt: skip
        found[f"{name}_softmax_narrow"] = mixture | {
            "model.hidden_sizes": NARROW[name], "head.components": 1, "head.latent_dropout": 0.0,
        }  # fmt: skip
        found[f"{name}_ct_mos"] = found[f"{name}_mos"] | CT
        found[f"{name}_ct_mos_finetune"] = found[f"{name}_mos_finetune"] | CT | {
            "train.start_from": f"runs/{name}_ct_mos",
        }  # fmt: skip
    found |= {
        "ptb_mos_plus": found["ptb_mos"] | {"model.embedding_size": 410, "head.embedding_size": 410},
        "ptb_ct_mos_unscaled": found["ptb_ct_mos"] | {"head.temperature_loss_scaling": False},
        "ptb_ct_mos_exponential": found["ptb_ct_mos"] | {
            "head.temperature": "exponential", "head.temperature_lambda": 4.0,
        },
        "ptb_ct_mos_additive": found["ptb_ct_mos"] | {
            "head.temperature": "additive", "head.temperature_lambda": 3.0,
        },
    }  # fmt: skip
    for name in CORPUS:
        found[f"{name}_doc"] = found[f"{name}_mos"] | {
            "head.kind": "doc", "head.components": 20, "head.lower_components": (5,),
            "head.latent_dropout": 0.6, "head.prior_penalty": 0.001, "head.prior_penalty_of": "streams",
            "head.shared_latent_mask": True, "optim.average_trigger": 60, "train.max_epochs": 500,
        }  # fmt: skip
    for components in (3, 5, 10, 20):
        found[f"ptb_mos_k{components}"] = found["ptb_mos"] | {"head.components": components}
    return found


RECIPES = recipes()


def preset(name: str) -> LmConfig:
    return load_config(name, LmConfig, family="lm").config


def value(config: LmConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_published_recipe_is_what_was_published(name: str) -> None:
    config = preset(name)
    assert {key: value(config, key) for key in RECIPES[name]} == RECIPES[name]


def test_every_preset_is_published_or_known_to_be_our_own() -> None:
    ours = {name for name in PRESETS if name.startswith(("ptb_small_", "ptb_record_", "lm1b_"))} | {
        "ptb_mos_fast", "ptb_mos_tau2", "ptb_mos_constant_temperature", "ptb_ct_mos_sigmoid", "ptb_mixtape",
        "ptb_plif",
    }  # fmt: skip
    assert set(PRESETS) == set(RECIPES) | ours


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_it_is(name: str) -> None:
    about = preset(name).about
    assert about.strip()
    assert "\n" not in about


def of_layer(cell: CellConfig, of: int, to: int) -> int:
    """An LSTM of two biases; with gates, of one, and five gatings in turn of x and h; an mLSTM's product."""
    if cell.kind == "lstm":
        return 4 * to * (of + to + 2)
    own = 4 * to * (of + to + 1)
    if cell.kind == "mlstm":
        return own + to * (of + to)
    assert (cell.rounds, cell.gate_bias) == (5, True)
    return own + 5 * cell.rank * (of + to) + 3 * of + 2 * to


def of_trunk(config: LmConfig) -> int:
    """Recurrent layers, or blocks of four square matrices, three of the feed-forward part and two norms."""
    sizes = (config.model.embedding_size, *config.model.hidden_sizes)
    if config.model.trunk == "recurrent":
        return sum(of_layer(config.cell, of, to) for of, to in pairwise(sizes))
    assert (config.transformer.kv_heads, config.transformer.feedforward) == (0, "swiglu")
    words, size, *_ = sizes
    block = 4 * size**2 + 3 * size * config.transformer.feedforward_size + 2 * size
    return (words != size) * words * size + (len(sizes) - 1) * block + size


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameters_of_a_preset(name: str) -> None:
    """Embedding, tied to the output; its bias; trunk; latent layer and prior."""
    config = preset(name)
    words, size, kind = config.data.vocab_size, config.model.embedding_size, config.head.kind
    inputs = (size, *config.model.hidden_sizes)
    expected = words * size + words
    expected += of_trunk(config)
    hidden, components = inputs[-1], config.head.components
    if kind in MIXTURES:
        expected += config.head.learn_context_scale
        lower = config.head.lower_components  # of the layers below the last, the highest first
        if layers := config.head.facet_layers:
            expected += (hidden + sum(inputs[-2::-1][:layers]) + 1) * hidden
            hidden *= 2
        expected += (hidden + 1) * (config.head.contexts - sum(lower)) * size
        expected += sum((of + 1) * count * size for of, count in zip(inputs[-2::-1], lower, strict=False))
        if kind == "mixtape":
            gates, own = config.head.gate_size, config.head.gated_words or words
            expected += (components - 1) * (hidden * gates + hidden + own) + own * gates
        elif components > 1:
            expected += hidden * components
    elif hidden != size:
        expected += hidden * size  # from H to E, without a bias
    expected += config.head.intervals if kind == "plif" else 0
    if config.head.temperature not in ("none", "constant"):
        expected += (hidden + words) * (config.head.temperature_rank or size)
    assert config.head.tied
    assert describe(config)["parameters"] == expected


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("ptb_mos", 21_500_620), ("wt2_mos", 34_909_528), ("ptb_softmax", 24_221_600),
        ("wt2_softmax", 33_556_078), ("ptb_moc", 21_500_620), ("ptb_moss", 21_500_620),
        ("wt2_moss", 34_909_528), ("ptb_sigsoftmax", 24_221_600), ("ptb_ct_mos", 24_474_220),
        ("wt2_ct_mos", 45_087_928), ("ptb_mos_plus", 24_510_770), ("ptb_mos_tau2", 21_500_620),
    ],
)  # fmt: skip
def test_published_numbers_of_parameters(name: str, published: int) -> None:
    assert describe(preset(name))["parameters"] == published


@pytest.mark.parametrize(
    ("name", "millions"),
    [("lm1b_softmax", 119.3), ("lm1b_mos", 112.9), ("ptb_doc", 22.85), ("wt2_doc", 36.64)],
)
def test_models_are_as_large_as_published(name: str, millions: float) -> None:
    assert describe(preset(name))["parameters"] / 1e6 == pytest.approx(millions, abs=0.05)


SMALL: dict[str, type[LmConfig] | type[DialogConfig]] = {
    "ptb_small": LmConfig,
    "switchboard_small": DialogConfig,
}
WIDTHS: dict[str, dict[str, Any]] = {
    "ptb_small": {"model": {"embedding_size", "hidden_sizes"}},
    "switchboard_small": {
        "model": {"embedding_size"}, "encoder": {"cell", "utterance_size", "context_size"},
        "decoder": {"attention", "cell", "hidden_size"},
    },
}  # fmt: skip
CONTROLS = {  # number of components, activation, factor and if it is learned
    "_k1": (1, "tanh", 4.0, False), "_k1_scale1": (1, "tanh", 1.0, False),
    "_k1_linear": (1, "none", 4.0, False),
    "": (3, "tanh", 4.0, False), "_scale1": (3, "tanh", 1.0, False), "_learned_scale": (3, "tanh", 1.0, True),
}  # fmt: skip


def small_presets(corpus: str) -> dict[str, Any]:
    schema = SMALL[corpus]
    names = [name for name in preset_names(schema.family) if name.startswith(f"{corpus}_")]
    return {name: load_config(name, schema, family=schema.family).config for name in names}


@pytest.mark.parametrize("corpus", SMALL)
def test_small_presets_are_equally_large(corpus: str) -> None:
    """Within 1 % of their mean, regardless of head, cell, trunk and attention."""
    recorded = recorded_parameters(SMALL[corpus].family)
    counts = {name: int(recorded[name]["parameters"]) for name in small_presets(corpus)}
    mean = sum(counts.values()) / len(counts)
    assert counts == pytest.approx(dict.fromkeys(counts, mean), rel=0.01)


@pytest.mark.parametrize("corpus", SMALL)
@pytest.mark.parametrize("transformer", [False, True])
def test_small_presets_differ_in_nothing_else(corpus: str, *, transformer: bool) -> None:
    """Except head, cell, attention, and the widths that make the models equally large."""
    apart = {**dict.fromkeys(("extends", "about", "head", "cell"), True), **WIDTHS[corpus]}
    presets = small_presets(corpus).items()
    shared = [
        one.model_dump(exclude=apart) for name, one in presets if ("_transformer_" in name) == transformer
    ]
    assert len(shared) > 3
    assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize("corpus", SMALL)
def test_small_presets_have_the_cells_of_their_names(corpus: str) -> None:
    for name, config in small_presets(corpus).items():
        cell = next((kind for kind in ("mogrifier", "mlstm") if kind in name), "lstm")
        cells = {config.cell.kind} if corpus == "ptb_small" else {config.encoder.cell, config.decoder.cell}
        assert cells == {cell}


@pytest.mark.parametrize(("corpus", "size"), [("ptb_small", 132), ("switchboard_small", 117)])
def test_the_control_is_the_one_that_was_run(corpus: str, size: int) -> None:
    schema = SMALL[corpus]
    settings = [f"{key}={size}" for key in ("model.embedding_size", "head.embedding_size")]
    settings.append("head.components=1")
    run = load_config(f"{corpus}_mos", schema, family=schema.family, overrides=settings).config
    preset = small_presets(corpus)[f"{corpus}_mos_k1"]
    assert run.model_copy(update={"about": preset.about, "extends": preset.extends}) == preset


@pytest.mark.parametrize("corpus", SMALL)
def test_every_control_of_the_comparison_of_heads_has_a_preset(corpus: str) -> None:
    presets = small_presets(corpus)
    for control, expected in CONTROLS.items():
        for kind in ("mos",) if "_k1" in control else ("moc", "mos", "moss"):
            head = presets[f"{corpus}_{kind}{control}"].head
            found = (head.components, head.context_activation, head.context_scale, head.learn_context_scale)
            assert (head.kind, found) == (kind, expected)


def test_gates_of_dialog_models_are_counted() -> None:
    """Embedding; encoder of two levels; bridge, decoder and head of a Mogrifier with a mixture."""
    config = load_config("switchboard_small_mogrifier_mos", DialogConfig, family="dialog").config
    words, size, hidden, rank = 10_000 + 2, 112, 228, 40

    def layer(inputs: int, outputs: int) -> int:
        gates = 5 * rank * (inputs + outputs) + 3 * inputs + 2 * outputs
        return 4 * outputs * (inputs + outputs + 1) + gates

    expected = words * size + words + 2 * layer(size, 114) + layer(2 * 114 + 2, hidden) + layer(size, hidden)
    expected += 2 * (hidden + 1) * hidden + 3 * (hidden + 1) * size + 3 * hidden
    assert describe_dialog(config)["parameters"] == expected


def test_the_page_of_paper_tables_names_presets_that_there_are_and_leaves_out_none_of_the_papers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "paper_tables.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:ptb|wt2|lm1b|enwik8|mwc|switchboard)_\w+)", page))
    known = {name for family in ("lm", "dialog") for name in preset_names(family)}
    assert named <= known
    ours = ("small", "record", "hred", "finetune", "fast", "sigmoid", "constant_temperature")
    ours += ("switchboard_moss", "doc", "mixtape", "plif")
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
def test_recorded_sizes_of_presets_are_those_of_their_models(family: str) -> None:
    """Written anew by scripts/preset_sizes.py; what is out of date is counted, which takes seconds."""
    recorded, counted = recorded_parameters(family), dict[str, tuple[str, int]]()
    for name in preset_names(family):
        if family == "lm":
            counted[name] = (sizes_of(preset(name)), describe(preset(name))["parameters"])
        else:
            config = load_config(name, DialogConfig, family=family).config
            counted[name] = (sizes_of(config), describe_dialog(config)["parameters"])
    assert {name: (entry["of"], entry["parameters"]) for name, entry in recorded.items()} == counted


@pytest.mark.parametrize("family", ["lm", "dialog"])
def test_presets_are_listed_without_torch(family: str) -> None:
    program = f"import sys\nfrom {family}.cli import main\ntry:\n  main(['presets'])\n"
    program += "except SystemExit:\n  assert 'torch' not in sys.modules"
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 3  # about 1 s of a processor that does nothing else


def test_another_default_is_another_size() -> None:
    class Narrow(BaseModel):
        model: dict[str, int] = {"hidden_size": 4}

    class Wide(BaseModel):
        model: dict[str, int] = {"hidden_size": 8}

    assert sizes_of(Narrow()) != sizes_of(Wide())
    assert sizes_of(Narrow()) == sizes_of(Wide(model={"hidden_size": 4}))


# Families of presets in one file


FAMILIES: list[tuple[str, type[LmConfig] | type[DialogConfig]]] = [
    ("lm", LmConfig),
    ("dialog", DialogConfig),
]


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
