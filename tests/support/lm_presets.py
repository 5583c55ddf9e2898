"""Configs of the presets of language models, and names of those without a budget of parameters."""

from lm.config.load import load_config
from lm.config.presets import preset_names
from lm.language.config import LmConfig


def preset(name: str) -> LmConfig:
    return load_config(name, LmConfig, family="lm").config


# Presets with a budget are those of Melis et al. (2020): see language/test_melis_presets.py.
PRESETS = [name for name in preset_names("lm") if not preset(name).model.budget]
