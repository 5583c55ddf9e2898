"""Small presets, which compare heads at equal numbers of parameters."""

from typing import Any

import pytest

from dialog.config import DialogConfig
from lm.config.load import load_config
from lm.config.presets import preset_names, recorded_parameters
from lm.language.config import LmConfig

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
