"""Heads that begin as the output layer of a trained model."""

from typing import Any, get_args

import pytest
import torch

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.start import start_as, start_at_frequencies
from lm.heads.states import Layers
from tests.support.plain_heads import KINDS, H, N, V, head_on, settings_of

TOKENS, HIDDEN, WORDS = 40, 16, 50
TEMPERATURES = get_args(HeadConfig.model_fields["temperature"].annotation)
LINEAR: dict[str, Any] = {"context_activation": "none", "components": 4}
STARTS: list[dict[str, Any]] = [
    {"kind": "softmax"},
    {"kind": "sigsoftmax", "learn_shift": True},
    {"kind": "plif", "interval_range": 200.0},
    {"kind": "moc", **LINEAR},
    {"kind": "mos", **LINEAR},
    {"kind": "moss", "learn_shift": True, **LINEAR},
    {"kind": "mixtape", **LINEAR},
    {"kind": "mixtape", "gated_words": 7, **LINEAR},
    {"kind": "mfs", "partitions": 4, **LINEAR},
    {"kind": "cpr", "candidates": (2, 5), **LINEAR},
]


def output_layer(bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An output layer with logits as those of pretrained models, most of them far below zero."""
    return torch.randn(WORDS, HIDDEN), torch.randn(WORDS) - 60 if bias else None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", STARTS, ids=lambda options: options["kind"])
def test_perplexity_before_training_is_that_of_the_output_layer(options: dict[str, Any], bias: bool) -> None:
    hidden, targets = torch.randn(TOKENS, HIDDEN), torch.randint(WORDS, (TOKENS,))
    weight, offset = output_layer(bias)
    head = Head(HeadConfig(**options), HIDDEN, WORDS)
    start_as(head, weight, offset)
    expected = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(hidden, weight, offset).double(), targets
    )
    found = head.nll(hidden, targets).double().mean()
    assert float(found.exp() / expected.exp()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_matrix_a_head_has_the_frequencies_that_it_began_with(kind: str) -> None:
    counts = [0, 0, 900, *range(V - 3)]
    head = head_on(HeadConfig(**settings_of(kind))).double()
    with torch.no_grad():
        head.weight.zero_()
    start_at_frequencies(head, counts)
    shares = torch.tensor(counts, dtype=torch.float64) + 1
    found = head.log_probs(torch.randn(N, H, dtype=torch.float64))
    torch.testing.assert_close(found.exp(), (shares / shares.sum()).expand(N, V), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "mos"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_temperature_does_not_change_the_frequencies(kind: str, temperature: str) -> None:
    counts = [900, 90, 9, 1, 0]
    head = Head(HeadConfig(kind=kind, temperature=temperature), HIDDEN, len(counts)).double()
    with torch.no_grad():
        head.weight.zero_()
    start_at_frequencies(head, counts)
    shares = torch.tensor(counts, dtype=torch.float64) + 1
    found = head.log_probs(torch.zeros(1, HIDDEN, dtype=torch.float64))[0]
    torch.testing.assert_close(found.exp(), shares / shares.sum(), rtol=1e-6, atol=0)


def test_a_head_or_vocabulary_without_frequencies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'head\.start = "frequencies": .*no counts of words'):
        start_at_frequencies(Head(HeadConfig(), HIDDEN, WORDS), [0] * WORDS)
    with pytest.raises(
        ValueError, match=r'start = "frequencies": needs a bias; set head\.output_bias = true'
    ):
        HeadConfig(start="frequencies", output_bias=False)


def test_contexts_without_activation_are_linear() -> None:
    head = Head(HeadConfig(kind="mos", components=3, context_activation="none"), HIDDEN, WORDS).double()
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    assert head.latent is not None
    assert head.prior is not None
    contexts = head.latent(hidden).view(TOKENS, 3, HIDDEN)
    softmaxes = (contexts @ head.weight.T + head.bias).softmax(-1)
    expected = (head.prior(hidden).softmax(-1)[..., None] * softmaxes).sum(1).log()
    assert torch.allclose(head.log_probs(hidden), expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["moc", "mos", "mixtape"])
def test_the_noise_breaks_the_tie_of_components(kind: str) -> None:
    head = Head(HeadConfig(kind=kind, **LINEAR), HIDDEN, WORDS)
    start_as(head, *output_layer(True))
    assert head.latent is not None
    hidden, targets = torch.randn(TOKENS, HIDDEN), torch.randint(WORDS, (TOKENS,))
    head.loss(hidden, targets).backward()
    part = head.prior.weight if head.prior is not None else head.gates and head.gates.words
    assert isinstance(part, torch.nn.Parameter)
    assert part.grad is not None
    assert part.grad.abs().max() > 1e-5


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "mos", "components": 2}, "context_activation = none"),
        ({"kind": "sigsoftmax"}, "learn_shift = true"),
        ({"kind": "softmax", "output_bias": False}, "output_bias = true"),
        ({"kind": "softmax", "embedding_size": 8}, "embedding_size"),
        ({"kind": "softmax", "temperature": "constant"}, "temperature = none"),
        ({"kind": "relu"}, "choose softmax"),
    ],
)
def test_a_head_that_cannot_begin_so_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        start_as(Head(HeadConfig(**options), HIDDEN, WORDS), *output_layer(True))


def test_a_layer_that_no_component_reads_is_left_out() -> None:
    config = HeadConfig(kind="doc", lower_components=(0, 1), prior_bias=True, **LINEAR)
    head = Head(config, HIDDEN, WORDS, lower_sizes=(HIDDEN, HIDDEN))
    weight, offset = output_layer(bias=False)
    start_as(head, weight, offset)
    hidden, targets = torch.randn(TOKENS, HIDDEN), torch.randint(WORDS, (TOKENS,))
    states = Layers(hidden, (hidden, hidden))
    expected = torch.nn.functional.cross_entropy((hidden @ weight.T).double(), targets)
    assert float(head.nll(states, targets).double().mean()) == pytest.approx(float(expected), rel=1e-4)


def test_components_of_lower_layers_begin_with_their_small_share() -> None:
    config = HeadConfig(kind="doc", lower_components=(0, 1), prior_bias=True, **LINEAR)
    head = Head(config, HIDDEN, WORDS, lower_sizes=(HIDDEN, HIDDEN))
    start_as(head, *output_layer(bias=False))
    hidden = torch.randn(TOKENS, HIDDEN)
    _, log_prior = head.mixer.contexts(Layers(hidden, (hidden, hidden)))
    assert log_prior is not None
    shares = log_prior.exp()
    torch.testing.assert_close(shares[:, -1], torch.full((TOKENS,), 1e-6), rtol=1e-3, atol=0)
    torch.testing.assert_close(shares[:, :3], torch.full((TOKENS, 3), 1 / 3))


@pytest.mark.parametrize("options", [{"kind": "softmax"}, {"kind": "mos", **LINEAR}])
def test_words_that_the_output_layer_lacks_are_improbable_and_have_its_mean_vector(
    options: dict[str, Any],
) -> None:
    head = Head(HeadConfig(**options), HIDDEN, WORDS + 3)
    weight, offset = output_layer(True)
    start_as(head, weight, offset)
    hidden = torch.randn(TOKENS, HIDDEN)
    with torch.no_grad():
        log_probs = head.log_probs(hidden)
    expected = torch.nn.functional.linear(hidden, weight, offset).log_softmax(-1)
    torch.testing.assert_close(log_probs[:, :WORDS], expected, rtol=1e-4, atol=1e-4)
    assert (log_probs[:, WORDS:] < -20).all()
    torch.testing.assert_close(head.weight[WORDS:].detach(), weight.mean(0).expand(3, -1))
