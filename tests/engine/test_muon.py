"""Muon: orthogonal updates, those of torch for one matrix, block by block, for hidden matrices only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lm.engine.config import OptimConfig
from lm.engine.muon import Muon, hidden_matrices, orthogonalized
from lm.engine.optim import build_optimizer, load_optimizer_tensors, optimizer_tensors
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.sizes import sized
from tests.support.tiny_lm import CELLS, tiny_config

WORDS = 23


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.sampled_from([1e-3, 1.0, 1e3]))
def test_an_update_keeps_singular_vectors_and_has_values_near_1(
    blocks: int, rows: int, columns: int, scale: float
) -> None:
    """For values above 0.003 of the norm; all smaller ones end below them."""
    matrices = scale * torch.randn(blocks, rows, columns, generator=torch.Generator().manual_seed(rows))
    found = orthogonalized(matrices.double())
    for matrix, update in zip(matrices.double(), found, strict=True):
        u, before, vh = torch.linalg.svd(matrix, full_matrices=False)
        core = u.mT @ update @ vh.mT
        after = core.diagonal()
        torch.testing.assert_close(core, torch.diag(after), rtol=0, atol=1e-6)
        kept = after[before > 0.003 * before.norm()]
        assert kept.min() > 0.68
        assert after.max() < 1.21
        assert after.min() > 0


def test_zeros_stay_zeros() -> None:
    assert not orthogonalized(torch.zeros(2, 3, 4)).any()


def steps_of(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
    """Updates from gradients (parts, …), one for each part of ``weights``."""
    for gradient in gradients:
        for weight, part in zip(weights, gradient.chunk(len(weights)), strict=True):
            weight.grad = part.clone()
        optimizer.step()


def muon(weights: list[nn.Parameter], blocks: int, *, bfloat16: bool = False) -> Muon:
    groups: list[dict[str, Any]] = [{"params": weights, "blocks": blocks}]
    return Muon(groups, 0.05, (0.9, 0.99), 1e-8, 0.5, 0.9, bfloat16=bfloat16)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_one_matrix_is_updated_as_by_torch(shape: tuple[int, int], *, bfloat16: bool) -> None:
    """Up to torch's bfloat16; the momentum is equal."""
    torch.manual_seed(2)
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    gradients = list(torch.randn(4, *shape))
    mine = muon([ours], 1, bfloat16=bfloat16)
    options = {"lr": 0.05, "weight_decay": 0.5, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}
    torchs = torch.optim.Muon([theirs], **options)  # type: ignore[arg-type]
    before = ours.detach().clone()
    steps_of(mine, [ours], gradients)
    steps_of(torchs, [theirs], gradients)
    assert (ours - theirs).norm() < 0.03 * (ours - before).norm()
    assert torch.equal(mine.state[ours]["momentum"], torchs.state[theirs]["momentum_buffer"])


def test_the_precision_of_training_is_that_of_the_iteration() -> None:
    """Weights and momentum stay float32."""
    updates = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(2)
        layer = nn.Linear(9, 7, bias=False)
        before = layer.weight.detach().clone()
        optimizer = build_optimizer(OptimConfig(name="muon"), layer, precision)
        gradients_of(layer, 3)
        optimizer.step()
        assert layer.weight.dtype == optimizer.state[layer.weight]["momentum"].dtype == torch.float32
        updates[precision] = layer.weight.detach() - before
    apart = (updates["bfloat16"] - updates["float32"]).norm() / updates["float32"].norm()
    assert 1e-4 < apart < 0.03


def test_blocks_are_separate_matrices() -> None:
    torch.manual_seed(2)
    whole = nn.Parameter(torch.randn(12, 5))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().chunk(4)]
    gradients = list(torch.randn(3, 12, 5))
    steps_of(muon([whole], 4), [whole], gradients)
    steps_of(muon(parts, 1), parts, gradients)
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


def gradients_of(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell.values())) or "lstm")
def test_other_parameters_are_updated_by_adamw_and_all_continue_exactly(cell: dict[str, Any]) -> None:
    config = tiny_config(cell=cell, kind="mos", components=3, embedding_size=6)
    model, plain, copy = (LanguageModel(config, WORDS) for _ in range(3))
    plain.load_state_dict(model.state_dict())
    optim = OptimConfig(name="muon", lr=0.01, weight_decay=0.1, trunk_lr_ratio=0.5)
    first = build_optimizer(optim, model, "float32")
    adamw = build_optimizer(optim.model_copy(update={"name": "adamw"}), plain, "float32")
    for step in range(3):
        if step == 2:
            copy.load_state_dict(model.state_dict())
            second = build_optimizer(optim, copy, "float32")
            load_optimizer_tensors(second, copy, optimizer_tensors(first, model))
        for one, optimizer in ((model, first), (plain, adamw), *([(copy, second)] if step == 2 else [])):
            gradients_of(one, step)
            optimizer.step()
    hidden = hidden_matrices(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, copy.get_parameter(name)), name
        assert torch.equal(parameter, plain.get_parameter(name)) == (name not in hidden), name


def test_hidden_matrices_are_those_between_states() -> None:
    """Neither embeddings, output matrices and vectors, nor priors; gates and components are blocks."""
    lstm = LanguageModel(tiny_config(kind="mos", components=3, embedding_size=6), WORDS)
    both = {f"layers.{layer}.weight_{source}_l0": 4 for layer in (0, 1) for source in ("ih", "hh")}
    assert hidden_matrices(lstm) == both | {"head.latent.weight": 3}
    doc = tiny_config(kind="doc", components=3, lower_components=(1,), embedding_size=6)
    assert hidden_matrices(LanguageModel(doc, WORDS)) == both | {
        "head.latent.weight": 2,
        "head.lower.0.weight": 1,
    }
    apart = tiny_config(kind="mos", components=2, tied=False, temperature="sigmoid")
    assert not {"head.weight", "head.temperature.up.weight"} & set(
        hidden_matrices(LanguageModel(apart, WORDS))
    )
    low_rank = tiny_config(kind="softmax", cell={"kind": "lstm", "weight_rank": 3, "cap_input_gate": True})
    factors = hidden_matrices(LanguageModel(low_rank, WORDS))
    assert {count for name, count in factors.items() if name.endswith("original0")} == {4}
    assert {count for name, count in factors.items() if name.endswith("original1")} == {1}
    mixtape = tiny_config(trunk="transformer", kind="mixtape", components=4, gated_words=9)
    found = hidden_matrices(LanguageModel(mixtape, WORDS))
    assert found["head.gates.latent.weight"] == 3
    assert not {"head.gates.words", "head.gates.bias", "head.gates.common.weight"} & set(found)
    attention = "layers.stack.blocks.0.attention"
    assert found[f"{attention}.project.weight"] == 4, "two of queries, one each of keys and values"
    assert found["layers.stack.blocks.0.feedforward.widen.weight"] == 2


def test_matrices_of_a_pretrained_network_are_trained_whole(tmp_path: Path) -> None:
    """Queries, keys and values of GPT-2 lie side by side in one matrix."""
    pytest.importorskip("transformers")
    from tests.support.pretrained import save_model, tiny_configs

    save_model(tmp_path, tiny_configs(WORDS)["gpt2"])
    torch.manual_seed(3)
    trunk = {"trunk": f"hf:{tmp_path}", "attention_span": 8}
    rates = dict.fromkeys((f"{name}_dropout" for name in ("embedding", "input", "output")), 0.0)
    config = sized(LmConfig.model_validate({"model": trunk | rates}), WORDS)
    model = LanguageModel(config, WORDS).eval()
    block = "layers.network.h.0"
    hidden = hidden_matrices(model)
    assert {hidden[f"{block}.{name}.weight"] for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")} == {1}
    before = model.get_parameter(f"{block}.attn.c_attn.weight").detach().clone()
    optimizer = build_optimizer(OptimConfig(name="muon", lr=0.01), model, "float32")
    tokens = torch.randint(WORDS, (9, 4))
    losses = []
    for _ in range(9):
        optimizer.zero_grad()
        outputs = model(tokens[:-1], model.initial_state(4))
        loss = model.head.loss(outputs.hidden, tokens[1:]) / tokens[1:].numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(model.get_parameter(f"{block}.attn.c_attn.weight"), before)


def test_the_momentum_of_muon_is_refused_for_other_optimisers() -> None:
    with pytest.raises(ValueError, match=r"momentum belongs to optim\.name = muon; optim\.name is adamw"):
        OptimConfig(name="adamw", muon_momentum=0.9)
    assert OptimConfig(name="muon", muon_momentum=0.9).muon_momentum == 0.9
