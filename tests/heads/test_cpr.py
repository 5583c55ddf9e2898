"""What only Softmax-CPR has; what all heads share is in test_heads and test_mixture_loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.cpr import ABSENT, SourceWords, products_by_row, replaced
from lm.heads.head import Head
from lm.heads.states import Layers
from tests.support.plain_heads import H, V, make_head

WORD_SIZE, SOURCES, PLACES = 6, 3, 7
LENGTHS = (7, 4, 1)
ROWS = torch.tensor([0, 1, 2, 0, 1, 0, 2])  # source of each token


def reading(source: str, candidates: tuple[int, ...] = (2, 5), **settings: Any) -> Head:
    config = HeadConfig(kind="cpr", embedding_size=4, source=source, candidates=candidates, **settings)
    head = Head(config, H, V, word_size=WORD_SIZE).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def sources() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids with repeated words, which of them exist, and states of their places."""
    ids = torch.randint(0, 5, (SOURCES, PLACES))
    exists = torch.arange(PLACES) < torch.tensor(LENGTHS)[:, None]
    states = torch.randn(SOURCES * PLACES, WORD_SIZE, dtype=torch.float64, requires_grad=True)
    return ids, exists, states, torch.arange(SOURCES * PLACES).view(SOURCES, PLACES)


def by_the_formula(head: Head, hidden: Tensor, said: tuple[Tensor, ...]) -> Tensor:
    """log P (N, V) of one component, word by word."""
    ids, exists, states, places = said
    contexts = torch.tanh(head.latent(hidden)).view(len(hidden), -1, head.size)
    candidates = head.config.candidates
    rows = []
    for token, source in zip(contexts, ROWS.tolist(), strict=True):
        logits = head.weight @ token[0] + head.bias
        ranked = logits.argsort(descending=True).tolist()
        row = list(logits.unbind())
        for number, (first, end) in enumerate(zip((0, *candidates), candidates, strict=False)):
            for word in ranked[first:end]:
                row[word] = head.weight[word] @ token[1 + number] + head.bias[word]
        at = 1 + len(candidates)
        for word in set(ids[source][exists[source]].tolist()):
            row[word] = head.weight[word] @ token[at] + head.bias[word]
            if head.config.source == "pointer":
                own = places[source][exists[source] & (ids[source] == word)]
                mean = torch.stack([head.source_reader.keys.weight @ states[place] for place in own]).mean(0)
                row[word] = row[word] + token[at + 1] @ mean
        rows.append(torch.stack(row).log_softmax(0))
    return torch.stack(rows)


@pytest.mark.parametrize("source", ["words", "pointer"])
@pytest.mark.parametrize("candidates", [(), (3,), (2, 5, V)])
def test_losses_and_gradients_are_those_of_the_formula(source: str, candidates: tuple[int, ...]) -> None:
    head, said = reading(source, candidates), sources()
    hidden = torch.randn(len(ROWS), H, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(0, V, (len(ROWS),)), torch.rand(len(ROWS), dtype=torch.float64)
    learned = [hidden, *head.parameters(), *([said[2]] if source == "pointer" else [])]
    wanted = by_the_formula(head, hidden, said)
    nll = -wanted.gather(1, targets[:, None])[:, 0]
    expected = torch.autograd.grad((weights * nll).sum(), learned)

    read = head.source_reader(*said)
    layers = Layers(hidden, source=read.select(ROWS))
    loss = head.loss(layers, targets, weights)
    torch.testing.assert_close(loss, (weights * nll).sum())
    for found, gradient in zip(torch.autograd.grad(loss, learned), expected, strict=True):
        torch.testing.assert_close(found, gradient)
    torch.testing.assert_close(head.nll(layers, targets), nll)
    with torch.no_grad():
        torch.testing.assert_close(head.log_probs(layers), wanted)
        for at in range(len(ROWS)):
            torch.testing.assert_close(head.log_probs(layers.rows(slice(at, at + 1))), wanted[at : at + 1])


def test_equal_contexts_are_mos() -> None:
    """With the first component's context everywhere and no pointer, no part differs from the rest."""
    mos, head = make_head("mos"), reading("words", components=3)
    own = {
        name: torch.cat((*[value[:4]] * 3, value)) if name.startswith("latent") else value
        for name, value in mos.state_dict().items()
    }
    head.load_state_dict(own)
    hidden = torch.randn(len(ROWS), H, dtype=torch.float64)
    read = head.source_reader(*sources())
    found = head.log_probs(Layers(hidden, source=read.select(ROWS)))
    torch.testing.assert_close(found, mos.log_probs(hidden))


@pytest.mark.parametrize("divisor", [0.5, 3.0])
def test_a_temperature_divides_the_logits_of_all_parts(divisor: float) -> None:
    head = reading("pointer")
    hidden = torch.randn(len(ROWS), H, dtype=torch.float64)
    layers = Layers(hidden, source=head.source_reader(*sources()).select(ROWS))
    with torch.no_grad():
        wanted = (head.log_probs(layers) / divisor).log_softmax(1)
        torch.testing.assert_close(head.log_probs(layers, divisor), wanted)


@pytest.mark.parametrize(
    "settings",
    [
        {"label_smoothing": 0.1},
        {"unlikelihood": 0.5},
        {"past_decode": 0.2},
        {"temperature": "sigmoid", "temperature_rank": 2},
        {"components": 3, "prior_penalty": 0.1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_losses_and_temperatures_read_the_source(settings: dict[str, Any]) -> None:
    """The objective has gradients of all parameters, and the reported loss is that of the probabilities."""
    head, said = reading("pointer", **settings), sources()
    layers = Layers(
        torch.randn(len(ROWS), H, dtype=torch.float64), source=head.source_reader(*said).select(ROWS)
    )
    targets = torch.randint(0, V, (len(ROWS),))
    objective, loss = head.objective(
        layers, targets, repeated=targets[:, None].roll(1), present=targets.roll(1)
    )
    torch.testing.assert_close(loss, -head.log_probs(layers).gather(1, targets[:, None]).sum())
    assert (objective != loss) == ("temperature" not in settings)
    gradients = torch.autograd.grad(objective, list(head.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_probabilities_are_float32_and_normalised_in_any_precision(dtype: torch.dtype) -> None:
    head = reading("pointer").to(dtype)
    ids, exists, states, places = sources()
    hidden = torch.randn(len(ROWS), H).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        read = head.source_reader(ids, exists, states.to(dtype), places)
        log_probs = head.log_probs(Layers(hidden, source=read.select(ROWS)))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(len(ROWS)))


def test_words_with_contexts_of_their_own_need_room() -> None:
    """The chunk of the loss shrinks, so that its memory does not grow with the number of likely words."""
    few, many = (reading("none", (most,)).output for most in (1, 10))
    assert few.chunk > many.chunk > 0
    size = [output.chunk * (V * output.logit_buffers + output.gathered) for output in (few, many)]
    assert size[1] == pytest.approx(size[0], rel=0.02)


def test_parts_raise_the_rank_of_a_single_softmax() -> None:
    hidden = torch.randn(60, H, dtype=torch.float64) * 2

    def rank(candidates: tuple[int, ...]) -> int:
        head = Head(HeadConfig(kind="cpr", candidates=candidates, embedding_size=3), H, 40).double()
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter)
        with torch.no_grad():
            return int(torch.linalg.matrix_rank(head.log_probs(hidden)))

    assert rank(()) == 5
    assert rank((8,)) > 20  # the most probable words change with the state


def test_words_of_a_source_are_distinct_and_have_the_mean_of_their_keys() -> None:
    ids = torch.tensor([[4, 2, 4, 9], [7, 7, 7, 3]])
    exists = torch.tensor([[True] * 4, [True, True, False, False]])
    keys = torch.arange(8.0).view(2, 4, 1)
    read = SourceWords.of(ids, exists, keys)
    assert read.words.tolist() == [[2, 4, 9], [7, ABSENT, ABSENT]]
    assert read.keys[..., 0][read.words != ABSENT].tolist() == [1.0, 1.0, 3.0, 4.5]


def test_products_keep_the_order_of_the_tokens() -> None:
    queries, keys = torch.randn(len(ROWS), 4), torch.randn(SOURCES + 1, 5, 4)  # no token has the last
    found = products_by_row(queries, keys, ROWS)
    torch.testing.assert_close(found, torch.einsum("ne,nme->nm", queries, keys[ROWS]))


def test_absent_words_replace_nothing() -> None:
    logits = torch.randn(1, 4)
    words, values = torch.tensor([[2, ABSENT, ABSENT]]), torch.tensor([[9.0, 7.0, 8.0]])
    found = replaced(logits, words, values)
    assert found[0, 2] == 9
    assert torch.equal(found[0, [0, 1, 3]], logits[0, [0, 1, 3]])


def test_what_lacks_a_source_is_refused() -> None:
    config = HeadConfig(kind="cpr", source="pointer")
    with pytest.raises(ConfigError, match=r'head\.source = "pointer": a language model .* has no source'):
        Head(config, H, V)
    with pytest.raises(ConfigError, match=rf"head\.candidates = \[2, 14\]: the vocabulary has {V} words"):
        Head(HeadConfig(kind="cpr", candidates=(2, V + 1)), H, V)
    with pytest.raises(ValueError, match="must increase"):
        HeadConfig(kind="cpr", candidates=(5, 5))
    head = Head(HeadConfig(kind="cpr", source="words"), H, V, word_size=4)
    with pytest.raises(ValueError, match=r"needs it beside the states, as Layers\.source"):
        head.log_probs(torch.randn(2, H))
