"""Activations of pretrained networks: counted without memory, and as many as a pass over values keeps."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

pytest.importorskip("transformers")

from lm.engine.memory import FLOAT
from lm.engine.shapes import shapes_only
from lm.huggingface.architecture import carried_architecture
from lm.huggingface.encoder_decoder import PairState, encoder_decoder
from lm.huggingface.trunk import PretrainedTrunk
from tests.support.pretrained import SIZE, tiny_configs, tiny_pairs

STEPS, STREAMS, WORDS = 12, 3, 50


def kept(network: nn.Module, read: Callable[[], object]) -> int:
    """Bytes of distinct memory that autograd keeps of a pass over values."""
    known = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        read()
    return sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in known)


def words(steps: int = STEPS) -> Tensor:
    return torch.randn(STREAMS, steps, SIZE, requires_grad=True)


def values(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.to_json_string())
    return found


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_a_causal_network_is_counted_as_it_computes(kind: str) -> None:
    found = carried_architecture(values(tiny_configs(WORDS)[kind]))
    with shapes_only():
        shapes = PretrainedTrunk(found, STEPS)
    trunk = PretrainedTrunk(found, STEPS)
    true = kept(trunk, lambda: trunk(words().transpose(0, 1), trunk.initial_state(STREAMS)))
    assert 0.98 * true <= FLOAT * shapes.activations(STEPS, STREAMS) <= 1.2 * true


@pytest.mark.parametrize("kind", ["t5", "t5 1.1", "bart"])
def test_an_encoder_decoder_is_counted_as_it_computes(kind: str) -> None:
    found = carried_architecture(values(tiny_pairs(WORDS)[kind]))
    with shapes_only():
        shapes = encoder_decoder(found)
    pair = encoder_decoder(found)
    mask = torch.ones(STREAMS, STEPS, dtype=torch.bool)
    encoded = words()
    true = kept(pair.encoder, lambda: pair.encoder(words(), mask))
    counted = shapes.encoder.activations(STREAMS, STEPS, SIZE, recompute=False)
    assert 0.98 * true <= FLOAT * counted <= 1.2 * true
    true = kept(pair.decoder, lambda: pair.decoder(words(6), PairState(encoded, mask)))
    counted = shapes.decoder.activations(STREAMS, 6, STEPS, SIZE, recompute=False)
    assert 0.9 * true <= FLOAT * counted <= 1.2 * true


def test_recomputed_layers_are_counted_as_one_and_their_inputs() -> None:
    found = carried_architecture(values(tiny_configs(WORDS)["llama"]))
    with shapes_only():
        whole, again = PretrainedTrunk(found, STEPS), PretrainedTrunk(found, STEPS, recompute=True)
    cached = STREAMS * 2 * 2 * STEPS * SIZE
    layers = (count.activations(STEPS, STREAMS) - cached for count in (whole, again))
    assert next(layers) // 2 + STEPS * STREAMS * 2 * SIZE == next(layers)
