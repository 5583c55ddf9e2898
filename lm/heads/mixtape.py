"""Mixtape: one softmax of logits that are mixed word by word (Yang et al. 2019).

::

    vector gating in logit space   z_x = Σ_k π_{x,k} w_xᵀ c_k + b_x  with  c_k = tanh(H_k g)
    gate priors                    l_{x,k} = v_xᵀ tanh(U_k g) + u_kᵀ g + b_{x,k}
    sigmoid tree for K = 4         π_1 = γ_1 γ_2, π_2 = γ_1 (1−γ_2), π_3 = (1−γ_1) γ_3, π_4 = (1−γ_1)(1−γ_3)
                                   with  γ_k = σ(l_{x,k})

Every word has its own gates, so the logits are not a product of rank E, although there is a single softmax.
With gate sharing, only frequent words have gates. All others have v_x = 0 and b_{x,k} = 0, and a common π
mixes their contexts before a single product. For any K = 2^d, the tree has K − 1 gates in the order of a
heap. The biases of H_k are an addition, as in the other mixtures.

N tokens · H hidden size · K components · E context size · D gate size · S words with gates · V words.
"""

import torch
from torch import Tensor, nn

from lm.heads.config import HeadConfig
from lm.heads.loss_options import Output
from lm.heads.precision import precise, product


class WordGates(nn.Module):
    """Mixes the logits of K contexts by gates of the word and of the hidden state.

    Args:
        config: K, D (``gate_size``; E, or H, if left out) and S (``gated_words``; 0 is V).
        hidden_size: H.
        vocab_size: V. The first S ids have gates: the most frequent words, because vocabularies are sorted by
            frequency. In dialog models, ``<pad>`` and ``<unk>`` come first and count among them.
    """

    def __init__(self, config: HeadConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        gates = config.components - 1
        self.size = config.gate_size or config.embedding_size or hidden_size
        self.gated = min(config.gated_words or vocab_size, vocab_size)
        self.latent = nn.Linear(hidden_size, gates * self.size, bias=False)  # U
        self.common = nn.Linear(hidden_size, gates, bias=False)  # u
        self.words = nn.Parameter(torch.empty(self.gated, self.size).uniform_(-0.1, 0.1))  # v
        self.bias = nn.Parameter(torch.zeros(gates, self.gated))

    def matrix_blocks(self) -> dict[str, int]:
        """Number of gates in U; the other parameters belong to words and gates."""
        return {"latent.weight": len(self.bias), "common.weight": 0, "words": 0, "bias": 0}

    def forward(
        self, contexts: Tensor, states: Tensor, output: Output, bf16: bool, operand: Tensor | None = None
    ) -> Tensor:
        """Logits (n, V), without the output bias, of contexts (n, K, E) at hidden states (n, H)."""
        frequent, others = output.weight[: self.gated], output.weight[self.gated :]
        rounded = (None, None) if operand is None else operand.tensor_split((self.gated,), 1)
        common = product(states, precise(self.common.weight))[..., None]  # (n, K − 1, 1)
        latent = torch.tanh(product(states, precise(self.latent.weight)))
        own = product(latent.unflatten(1, (-1, self.size)), precise(self.words))  # (n, K − 1, S)
        gates = torch.sigmoid(own + common + precise(self.bias))
        mixed = (product(contexts, frequent, bf16, rounded[0]) * leaves(gates)).sum(1)  # (n, S)
        if not others.shape[0]:
            return mixed
        shared = (leaves(torch.sigmoid(common)) * contexts).sum(1)  # (n, E)
        return torch.cat((mixed, product(shared, others, bf16, rounded[1])), 1)


def leaves(gates: Tensor) -> Tensor:
    """Probabilities (n, K, ·) of the leaves of a tree of binary gates (n, K − 1, ·) in heap order."""
    shares = torch.ones_like(gates[:, :1])
    while shares.shape[1] <= gates.shape[1]:
        first = shares.shape[1] - 1  # nodes above this level
        left = gates[:, first : 2 * first + 1]
        shares = torch.stack((shares * left, shares * (1 - left)), 2).flatten(1, 2)
    return shares
