"""Activations of pretrained networks: counted without memory, and as many as a pass over values keeps."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

pytest.importorskip("transformers")

from lm.engine.memory import FLOAT
from lm.engine.shapes import shapes_only
from lm.errors import StorageError
from lm.huggingface.architecture import carried_architecture
from lm.huggingface.encoder_decoder import PairState, encoder_decoder
from lm.huggingface.kept import kept_floats
from lm.huggingface.trunk import PretrainedTrunk
from tests.support.pretrained import SIZE, tiny_configs, tiny_pairs

STEPS, STREAMS, WORDS = 12, 3, 50
CPU = torch.device("cpu")


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
    assert 0.98 * true <= FLOAT * shapes.activations(STEPS, STREAMS, CPU) <= 1.2 * true


@pytest.mark.parametrize("kind", ["t5", "t5 1.1", "bart"])
def test_an_encoder_decoder_is_counted_as_it_computes(kind: str) -> None:
    found = carried_architecture(values(tiny_pairs(WORDS)[kind]))
    with shapes_only():
        shapes = encoder_decoder(found)
    pair = encoder_decoder(found)
    mask = torch.ones(STREAMS, STEPS, dtype=torch.bool)
    encoded = words()
    true = kept(pair.encoder, lambda: pair.encoder(words(), mask))
    counted = shapes.encoder.activations(STREAMS, STEPS, SIZE, CPU, recompute=False)
    assert 0.98 * true <= FLOAT * counted <= 1.2 * true
    true = kept(pair.decoder, lambda: pair.decoder(words(6), PairState(encoded, mask)))
    counted = shapes.decoder.activations(STREAMS, 6, STEPS, SIZE, CPU, recompute=False)
    assert 0.9 * true <= FLOAT * counted <= 1.2 * true


def test_recomputed_layers_are_counted_as_one_and_their_inputs() -> None:
    found = carried_architecture(values(tiny_configs(WORDS)["llama"]))
    with shapes_only():
        whole, again = PretrainedTrunk(found, STEPS), PretrainedTrunk(found, STEPS, recompute=True)
    cached = STREAMS * 2 * 2 * STEPS * SIZE
    layers = (count.activations(STEPS, STREAMS, CPU) - cached for count in (whole, again))
    assert next(layers) // 2 + STEPS * STREAMS * 2 * SIZE == next(layers)


def test_dropped_attention_keeps_its_matrix_on_a_cpu_only() -> None:
    found = carried_architecture(values(tiny_configs(WORDS)["gpt2"]))
    with shapes_only():
        shapes = PretrainedTrunk(found, STEPS)
    of_cpu, of_gpu = (shapes.activations(STEPS, STREAMS, torch.device(name)) for name in ("cpu", "cuda"))
    assert of_gpu < of_cpu


@pytest.mark.parametrize("ask", [Tensor.item, Tensor.tolist, Tensor.numpy, np.asarray])
def test_a_network_that_asks_for_values_is_counted_by_its_matrices(ask: Callable[[Tensor], object]) -> None:
    network = tiny_network()
    tokens = 7
    counted = kept_floats(network, lambda: ask(torch.zeros(())), tokens, CPU, recompute=False)
    assert counted == tokens * (3 + 5)


@pytest.mark.parametrize("mistake", [lambda: torch.zeros(()).nothing, lambda: tiny_network()(unknown=1)])
def test_a_mistake_in_a_call_is_not_counted(mistake: Callable[[], object]) -> None:
    with pytest.raises((AttributeError, TypeError)):
        kept_floats(tiny_network(), mistake, 7, CPU, recompute=False)


def test_a_kind_that_refuses_its_inputs_is_named() -> None:
    with pytest.raises(StorageError, match=r"kind tiny cannot be a trunk \(dim must be 4"):
        kept_floats(tiny_network(), refuse, 7, CPU, recompute=False)


def refuse() -> None:
    raise ValueError("dim must be 4\nfor this kind")


def tiny_network() -> nn.Module:
    """A linear layer from 3 to 5 units, as transformers would have it."""
    network = nn.Linear(3, 5)
    network.config = SimpleNamespace(hidden_size=5, model_type="tiny")  # type: ignore[assignment]
    return network
