"""The transformer trunk beside another implementation of the same network."""

from typing import Any

import pytest
import torch

from lm.trunks.config import TransformerConfig
from lm.trunks.transformer import TransformerTrunk

HEADS, SHARED, D, INNER, LAYERS = 4, 2, 16, 24, 3


@pytest.mark.slow
def test_hidden_states_are_those_of_llama() -> None:
    """Llama turns number i of a head with number i + d / 2, we turn neighbours."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    theirs = transformers.LlamaModel(
        transformers.LlamaConfig(
            vocab_size=9, hidden_size=D, intermediate_size=INNER, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=SHARED, initializer_range=0.5,
        )
    ).double().eval()  # fmt: skip
    config = TransformerConfig(heads=HEADS, kv_heads=SHARED, feedforward_size=INNER)
    ours: Any = TransformerTrunk(config, (D, *[D] * LAYERS), span=100).double().eval()
    d = D // HEADS
    order = torch.arange(d).view(2, d // 2).t().flatten()
    with torch.no_grad():
        for block, layer in zip(ours.stack.blocks, theirs.layers, strict=True):
            attention = layer.self_attn
            turned = [
                one.weight.view(-1, d, D)[:, order].flatten(0, 1)
                for one in (attention.q_proj, attention.k_proj)
            ]
            block.attention.project.weight.copy_(torch.cat((*turned, attention.v_proj.weight)))
            block.attention.last.weight.copy_(attention.o_proj.weight)
            gated = (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)
            block.feedforward.widen.weight.copy_(torch.cat(gated))
            block.feedforward.last.weight.copy_(layer.mlp.down_proj.weight)
        tokens = torch.randint(9, (2, 20))
        wanted = theirs(tokens).last_hidden_state
        words, state, pieces = theirs.embed_tokens(tokens).transpose(0, 1), ours.initial_state(2), []
        for part in words.split(7):
            read = ours(part, state)
            state = read.state
            pieces.append(read.outputs)
    # Their angles, norms and weights of attention are in float32.
    torch.testing.assert_close(torch.cat(pieces).transpose(0, 1), wanted, rtol=0, atol=1e-5)
