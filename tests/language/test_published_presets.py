"""Presets of language models against the published recipes, number by number."""

from typing import Any

import pytest

from lm.language.config import LmConfig
from tests.support.lm_presets import PRESETS, preset

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
