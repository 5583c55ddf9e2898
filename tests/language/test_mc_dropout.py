"""Monte Carlo dropout in evaluations of language models."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm.errors import ConfigError
from lm.language.corpora.corpus import load_split
from lm.language.refinements import (
    search_mc_temperature,
    with_dropout,
)
from lm.language.scoring import token_nll
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import MIXTURE, ids_of, mc_nll, tiny_lm, write_run


def test_mc_dropout_is_the_mean_of_probabilities() -> None:
    trained = tiny_lm(**MIXTURE)
    ids = ids_of(trained, 30)
    sampler = with_dropout(trained.model, 0.5)
    passes = []
    for sample in range(3):
        torch.manual_seed(int(np.random.default_rng((5, sample)).integers(2**63)))
        passes.append(token_nll(trained, ids, model=sampler, window=7))
    before = torch.get_rng_state()
    mixed = mc_nll(trained, sampler, ids, 3)
    np.testing.assert_allclose(mixed, -np.log(np.exp(-np.array(passes)).mean(0)), atol=1e-12)
    assert torch.equal(torch.get_rng_state(), before), "others' random numbers stay as they are"
    assert not np.allclose(passes[0], passes[1], atol=1e-3)
    none = with_dropout(trained.model, 1e-15)
    np.testing.assert_allclose(mc_nll(trained, none, ids, 2), token_nll(trained, ids), atol=1e-12)
    assert trained.model.config.weight_dropout == 0.3, "the model itself is as it was"
    assert not trained.model.training
    assert sampler.head.weight is sampler.embedding.weight
    for factor in (-0.1, 3.4, math.nan):
        with pytest.raises(ConfigError, match="--mc-rate"):
            with_dropout(trained.model, factor)
    with pytest.raises(ConfigError, match="--mc-samples: no dropout rate is above 0"):
        with_dropout(trained.model, 0.0)


@pytest.mark.parametrize("rate", ["embedding", "input", "hidden", "output", "weight", "latent"])
def test_every_dropout_is_on_in_mc_passes(rate: str) -> None:
    trained = tiny_lm(dropout=0.0, **MIXTURE)
    if rate == "latent":
        config = trained.model.head.config
        trained.model.head.config = config.model_copy(update={"latent_dropout": 0.5})
    elif rate in ("hidden", "weight"):
        trunk: Any = trained.model.layers
        trunk.rates = trunk.rates._replace(**{rate: 0.5})
    else:
        trained.model.config = trained.model.config.model_copy(update={f"{rate}_dropout": 0.5})
    ids = ids_of(trained, 30)
    sampler = with_dropout(trained.model, 1.0)
    assert not np.allclose(token_nll(trained, ids, model=sampler), token_nll(trained, ids), atol=1e-3)


def test_the_temperature_of_mc_passes_is_the_best_of_those_tried(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 15), **MIXTURE)
    trained = TrainedLm.load(run)
    sampler = with_dropout(trained.model, 0.8)
    ids = load_split(str(tmp_path / "valid.txt"), trained.codec).ids()
    search = search_mc_temperature(trained, sampler, 2)
    values = {row.multiplier: row.nll for row in search.searched}
    for multiplier, value in list(values.items())[:2]:
        expected = mc_nll(trained, sampler, ids, 2, 1 / multiplier).mean()
        assert value == pytest.approx(expected, abs=1e-12)
    assert values[search.multiplier] == min(values.values())
    assert search.temperature == 1 / search.multiplier
