"""A head that begins as the output layer of a trained model.

The output layer is softmax(W h + b). A new head of another kind is given parameters with which it has the
same distribution, so that training begins where the model is. The components of a mixture differ by a small
noise, which sums to zero over them and breaks the tie. Components of lower layers, which doc has, begin with
a share of the prior that changes no result and yet has a gradient.

H hidden size · V words · K components.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.registry import HEADS

FROM_SOFTMAX = tuple(kind for kind, row in HEADS.items() if row.begins_as_softmax)
NOISE = 1e-4  # norm of a component's difference, relative to the hidden state
LOWER = 1e-6  # share of the prior of all components of lower layers together
_START = "to begin as a trained output layer"
NEVER = -40.0  # of a word that the output layer lacks, above its mean logit; less is slow in a mixture
SHIFT = 1000.0  # of sigsoftmax: σ(z + b) = 1 for every logit z that float32 has in practice


@torch.no_grad()
def start_at_frequencies(head: Head, counts: Sequence[int]) -> None:
    """Set the output bias so that a hidden state and contexts of zeros have the frequencies of words.

    ``counts`` (V,) are those to expect, to which 1 is added (Meister et al. 2023, for softmax). Raises
    ConfigError for a vocabulary without counts. ``head`` has a bias.
    """
    assert head.bias is not None
    if not any(counts):
        raise ConfigError(
            'head.start = "frequencies": this vocabulary has no counts of words; set head.start = "random"'
        )
    shares = torch.tensor(counts, dtype=torch.float64) + 1
    temperature = head.temperatures(head.weight.new_zeros(1, head.hidden_size))[0]  # of each word
    head.bias.copy_(head.link.inverse(shares / shares.sum()) * temperature.cpu())


@torch.no_grad()
def start_as(head: Head, weight: Tensor, bias: Tensor | None) -> None:
    """Give a head the distribution softmax(W h + b) of a weight (V, H) and a bias (V,).

    Words that only the head has, after the others, begin with a probability of nearly 0.

    Exact up to rounding for softmax, plif, MoC and Mixtape, whose noise cancels. MoS, MFS and CPR differ by
    the square of the noise, and DOC by the share of its lower layers. For sigsoftmax and MoSS the shift is so
    large that σ is 1. It stays so in training: the gradient of the shift is 0 up to rounding, by which Adam
    moves it a little.

    Raises:
        ConfigError: a head that has no such parameters, with the key to change.
    """
    require_startable(head.config, bias=bias is not None or head.vocab_size > len(weight))
    _require_shape(head, weight)
    words = len(weight)
    head.weight[:words] = weight
    head.weight[words:] = weight.mean(0)
    if head.bias is not None:
        head.bias.zero_()
        if bias is not None:
            head.bias[:words] = bias
        head.bias[words:] = head.bias[:words].mean() + NEVER
    if head.shift is not None:
        head.shift.fill_(SHIFT)
    if head.latent is not None:
        own = head.config.components - sum(head.config.lower_components)
        _start_contexts(head.latent, own, head.config.own_contexts)
    for layer, components in zip(head.lower, head.config.lower_components, strict=True):
        if components and isinstance(layer, nn.Linear) and layer.in_features == head.size:
            _start_contexts(layer, components)
    if head.prior is not None:
        nn.init.zeros_(head.prior.weight)
        if head.prior.bias is not None:
            _start_prior(head.prior.bias, sum(head.config.lower_components))
    if head.gates is not None:
        for parameter in (head.gates.common.weight, head.gates.words, head.gates.bias):
            nn.init.zeros_(parameter)


def _start_contexts(latent: nn.Linear, components: int, further: int = 0) -> None:
    """Set c_k = h + ε_k with Σ_k ε_k = 0. The ``further`` contexts of the first component are its first."""
    size = latent.out_features // (components + further)
    noise = torch.randn(components, size, size) * (NOISE / size**0.5)
    noise -= noise.mean(0)
    noise = torch.cat((noise[:1].expand(further, -1, -1), noise))
    nn.init.zeros_(latent.weight)  # also for what mfs and cpr read beside h
    latent.weight[:, :size] = (torch.eye(size) + noise).flatten(0, 1)
    nn.init.zeros_(latent.bias)


def _start_prior(bias: nn.Parameter, lower: int) -> None:
    """Give equal shares to all components except the last ``lower``, which share :data:`LOWER`."""
    nn.init.zeros_(bias)
    if lower:
        bias[-lower:] = math.log(LOWER * (len(bias) - lower) / lower)


def require_startable(config: HeadConfig, *, bias: bool = False) -> None:
    """Raise ConfigError if no head of a config can begin as an output layer, or as one with a bias."""
    if config.kind not in FROM_SOFTMAX:
        raise ConfigError(
            f"head.kind = {config.kind}: cannot begin as a softmax; choose {', '.join(FROM_SOFTMAX)}"
        )
    mixture, fields = HEADS[config.kind].is_mixture, HEADS[config.kind].fields
    wanted = {
        "head.context_activation = none": not mixture or config.context_activation == "none",
        "head.context_scale = 1": not mixture or config.context_scale == 1,
        "head.prior_bias = true": "lower_components" not in fields or config.prior_bias,
        "head.learn_shift = true": "learn_shift" not in fields or config.learn_shift,
        "head.output_bias = true": not bias or config.output_bias,
        "head.temperature = none": config.temperature == "none",
        "head.source = none": config.source == "none",
    }
    for key, held in wanted.items():
        if not held:
            raise ConfigError(f"{key.split(' =')[0]}: set {key} {_START}")


def _require_shape(head: Head, weight: Tensor) -> None:
    if head.size != weight.shape[1] or head.vocab_size < len(weight):
        narrow = "leave out head.embedding_size" if head.size != weight.shape[1] else "use its tokenizer"
        raise ConfigError(
            f"head: an output matrix of {tuple(head.weight.shape)}, but that of the model is"
            f" {tuple(weight.shape)}; {narrow} {_START}"
        )
