"""The probabilities of every head, written out naively, and small heads to compare with them."""

import math

import torch
from torch import Tensor

from lm.heads.head import HEADS, Head, HeadConfig
from lm.heads.mixer import Mixer, Mixture
from lm.heads.states import Layers, States

H, V, N = 5, 13, 9
KINDS = sorted(HEADS)
MIXTURES = ("moc", "mos", "moss", "mixtape", "doc", "mfs", "cpr")
OF_SOFTMAXES = ("mos", "moss", "doc", "mfs", "cpr")  # whose components are distributions
LOWER = 2  # of H, where a head reads two layers


def _cut(hidden: States) -> Layers:
    """Two layers that lie side by side in one tensor (..., H)."""
    return hidden if isinstance(hidden, Layers) else Layers(hidden[..., :-LOWER], (hidden[..., -LOWER:],))


class MixerOfTwoLayers(Mixer):
    """The upper half of :class:`HeadOnTwoLayers`."""

    def contexts(self, hidden: States, streams: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return super().contexts(_cut(hidden), streams)

    def mixture(self, hidden: States, streams: Tensor | None = None) -> Mixture:
        return super().mixture(_cut(hidden), streams)


class HeadOnTwoLayers(Head):
    """A head that reads two layers from one tensor, for tests that have one tensor for every kind."""

    @property
    def mixer(self) -> Mixer:
        return MixerOfTwoLayers(**vars(super().mixer))

    def temperatures(self, hidden: States) -> Tensor:
        return super().temperatures(_cut(hidden))


def settings_of(kind: str, components: int = 3) -> dict[str, object]:
    """Every optional part that the kind has, and what it must have."""
    if kind in MIXTURES:
        components = 1 << (components - 1).bit_length() if kind == "mixtape" else components
    own: dict[str, dict[str, object]] = {
        "sigsoftmax": {"learn_shift": True},
        "moss": {"learn_shift": True},
        "mixtape": {"gate_size": 3, "gated_words": 8},
        "plif": {"intervals": 9, "interval_range": 2.5},
        "doc": {"lower_components": (1,)},
        "mfs": {"partitions": 4, "facet_layers": 1},
        "cpr": {"candidates": (2, 5), "facet_layers": 1},
    }
    return {"kind": kind, "components": components if kind in MIXTURES else 1, **own.get(kind, {})}


def head_on(config: HeadConfig, vocab: int = V, embedding: torch.nn.Parameter | None = None) -> Head:
    """A head that reads H numbers, of one layer or of two."""
    if not config.lower_layers:
        return Head(config, H, vocab, embedding)
    return HeadOnTwoLayers(config, H - LOWER, vocab, embedding, lower_sizes=(LOWER, 99))


def make_head(kind: str, components: int = 3, size: int = 4, **settings: object) -> Head:
    """A float64 head with every optional part that the kind has."""
    head = head_on(
        HeadConfig(**(settings_of(kind, components) | {"embedding_size": size} | settings))
    ).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def naive_probabilities(head: Head, hidden: Tensor) -> Tensor:
    """The distribution in the probability domain, every tensor written out."""

    def normalise(logits: Tensor, kind: str, shift: Tensor | None) -> Tensor:
        if kind == "relu":
            g = torch.relu(logits) + 1e-8
        elif kind == "sigmoid":
            g = torch.sigmoid(logits)
        else:
            g = logits.exp()
            if kind in ("sigsoftmax", "moss"):
                g = g * torch.sigmoid(logits + (0 if shift is None else shift))
        return g / g.sum(-1, keepdim=True)

    kind = head.config.kind
    if kind == "plif":
        state = hidden if head.projection is None else hidden @ head.projection.weight.t()
        return increasing(head, state @ head.weight.t() + head.bias).softmax(-1)
    if kind == "mixtape":
        return mixed_logits(head, hidden).softmax(-1)
    if kind == "doc":
        last, lower = hidden[:, :-LOWER], hidden[:, -LOWER:]
        contexts = torch.cat((head.latent(last), head.lower[0](lower)), 1).tanh() * head.scale
        parts = normalise(
            contexts.view(len(hidden), -1, head.size) @ head.weight.t() + head.bias, "mos", None
        )
        return (normalise(head.prior(last), "mos", None)[..., None] * parts).sum(1)
    if kind in ("mfs", "cpr"):
        return facets(head, hidden)
    if kind not in MIXTURES:
        state = hidden if head.projection is None else hidden @ head.projection.weight.t()
        return normalise(state @ head.weight.t() + head.bias, kind, head.shift)
    latent = torch.tanh(hidden @ head.latent.weight.t() + head.latent.bias) * head.scale
    latent = latent.view(len(hidden), head.config.components, head.size)
    prior = torch.ones(len(hidden), 1).double()
    if head.prior is not None:
        prior = normalise(hidden @ head.prior.weight.t(), kind, None)
    if kind == "moc":
        mixed = (prior[..., None] * latent).sum(1)
        return normalise(mixed @ head.weight.t() + head.bias, kind, None)
    parts = normalise(latent @ head.weight.t() + head.bias, kind, head.shift)
    return (prior[..., None] * parts).sum(1)


def facet_logits(head: Head, contexts: Tensor) -> Tensor:
    """Logits (N, K, V), word by word: each reads the context of its part in the first component."""
    if head.config.kind == "cpr":
        return ranked_logits(head, contexts)
    parts = head.config.partitions
    columns = [
        torch.stack((contexts[:, word % parts], *contexts[:, parts:].unbind(1)), 1) @ head.weight[word]
        for word in range(V)
    ]
    return torch.stack(columns, 2) + head.bias


def ranked_logits(head: Head, contexts: Tensor) -> Tensor:
    """Logits (N, K, V): in the first component the words of each rank read the context of the rank."""
    candidates = head.config.candidates
    others = contexts[:, 1 + len(candidates) :] @ head.weight.t() + head.bias
    rows = []
    for token in contexts:
        first = head.weight @ token[0] + head.bias
        ranked = first.sort(descending=True).indices.tolist()
        row = list(first.unbind())
        for rank, word in enumerate(ranked):
            part = sum(rank >= most for most in candidates)
            if part < len(candidates):
                row[word] = head.weight[word] @ token[1 + part] + head.bias[word]
        rows.append(torch.stack(row))
    return torch.cat((torch.stack(rows)[:, None], others), 1)


def facets(head: Head, hidden: Tensor) -> Tensor:
    """The probabilities of MFS and CPR, whose contexts read two layers."""
    layer = head.facets.layer
    gelu = torch.nn.functional.gelu(hidden @ layer.weight.t() + layer.bias)
    read = torch.cat((hidden[:, :-LOWER], gelu), 1)
    contexts = torch.tanh(head.latent(read)).view(len(hidden), -1, head.size) * head.scale
    each = facet_logits(head, contexts).softmax(2)
    prior = head.prior(read).softmax(1)[..., None] if head.prior is not None else 1
    return (prior * each).sum(1)


def increasing(head: Head, logits: Tensor) -> Tensor:
    """f of PLIF as an integral of its slopes: each interval adds what of it lies below z."""
    slopes = torch.nn.functional.softplus(head.pointwise.slopes)
    reach, step = head.config.interval_range, 2 * head.config.interval_range / len(slopes)
    result = torch.zeros_like(logits)
    for index, slope in enumerate(slopes):
        start = index * step - reach
        low = start if index else -math.inf
        high = start + step if index + 1 < len(slopes) else math.inf
        inside = logits.clamp(low, high)
        result = result + slope * (inside - start)
    return result


def mixed_logits(head: Head, hidden: Tensor) -> Tensor:
    """Mixtape's logits, word by word and gate by gate."""
    gates, contexts = head.gates, torch.tanh(head.latent(hidden)) * head.scale
    contexts = contexts.view(len(hidden), head.config.components, head.size)
    latent = gates.latent.weight.view(head.config.components - 1, -1, H)
    columns = []
    for word in range(V):
        before = hidden @ gates.common.weight.t()  # u g, (N, K − 1)
        if word < gates.gated:
            before = before + torch.tanh(torch.einsum("kdh,nh->nkd", latent, hidden)) @ gates.words[word]
            before = before + gates.bias[:, word]
        share = before.sigmoid()
        if head.config.components == 2:
            prior = torch.stack((share[:, 0], 1 - share[:, 0]), 1)
        else:
            top, left, right = share.unbind(1)
            prior = torch.stack((top * left, top * (1 - left), (1 - top) * right, (1 - top) * (1 - right)), 1)
        columns.append((prior * (contexts @ head.weight[word])).sum(1) + head.bias[word])
    return torch.stack(columns, 1)


def example() -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    return hidden, torch.randint(0, V, (N,)), torch.rand(N, dtype=torch.float64)
