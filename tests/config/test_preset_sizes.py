"""Recorded parameters of presets, which scripts/docs.py counts: by hand, and as published."""

from itertools import pairwise

import pytest
from pydantic import BaseModel

from lm.cells.config import CellConfig
from lm.config.load import load_config
from lm.config.presets import recorded_parameters, sizes_of
from lm.heads.registry import HEADS
from lm.language.config import LmConfig
from tests.support.lm_presets import PRESETS, preset


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
    if HEADS[kind].is_mixture:
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
    assert recorded_parameters("lm")[name]["parameters"] == expected


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
    assert recorded_parameters("lm")[name]["parameters"] == published


@pytest.mark.parametrize(
    ("name", "millions"),
    [("lm1b_softmax", 119.3), ("lm1b_mos", 112.9), ("ptb_doc", 22.85), ("wt2_doc", 36.64)],
)
def test_models_are_as_large_as_published(name: str, millions: float) -> None:
    assert recorded_parameters("lm")[name]["parameters"] / 1e6 == pytest.approx(millions, abs=0.05)


def test_gates_of_dialog_models_are_counted() -> None:
    """Embedding; encoder of two levels; bridge, decoder and head of a Mogrifier with a mixture."""
    words, size, hidden, rank = 10_000 + 2, 112, 228, 40

    def layer(inputs: int, outputs: int) -> int:
        gates = 5 * rank * (inputs + outputs) + 3 * inputs + 2 * outputs
        return 4 * outputs * (inputs + outputs + 1) + gates

    expected = words * size + words + 2 * layer(size, 114) + layer(2 * 114 + 2, hidden) + layer(size, hidden)
    expected += 2 * (hidden + 1) * hidden + 3 * (hidden + 1) * size + 3 * hidden
    assert recorded_parameters("dialog")["switchboard_small_mogrifier_mos"]["parameters"] == expected


def test_sizes_of_a_transformer_count() -> None:
    wider = ["transformer.feedforward_size=4096"]
    name = "ptb_small_transformer_softmax"
    one, other = (load_config(name, LmConfig, family="lm", overrides=own).config for own in ([], wider))
    assert sizes_of(one) != sizes_of(other)


def test_another_default_is_another_size() -> None:
    class Narrow(BaseModel):
        model: dict[str, int] = {"hidden_size": 4}

    class Wide(BaseModel):
        model: dict[str, int] = {"hidden_size": 8}

    assert sizes_of(Narrow()) != sizes_of(Wide())
    assert sizes_of(Narrow()) == sizes_of(Wide(model={"hidden_size": 4}))
