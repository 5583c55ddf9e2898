"""What only the multi-facet softmax has; what all heads share is in test_heads and test_mixture_loss."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lm.errors import ConfigError
from lm.heads.facets import partitioned
from lm.heads.head import Head, HeadConfig
from lm.heads.states import Layers
from tests.support.plain_heads import LOWER, H, V, example, make_head


def mos_like(components: int = 3) -> Head:
    return make_head("mos", components=components)


def test_one_part_and_one_layer_are_mos() -> None:
    mos = mos_like()
    config = HeadConfig(kind="mfs", components=3, embedding_size=4)
    mfs = Head(config, H, V).double()
    mfs.load_state_dict(mos.state_dict())
    hidden, targets, _ = example()
    torch.testing.assert_close(mfs.log_probs(hidden), mos.log_probs(hidden))
    assert mfs.output.one_pass
    assert mfs.nll(hidden, targets).equal(mos.nll(hidden, targets))


def test_parts_with_equal_contexts_are_mos() -> None:
    mos = mos_like()
    mfs = Head(HeadConfig(kind="mfs", components=3, partitions=5, embedding_size=4), H, V).double()
    parts = {
        name: torch.cat((*[value[:4]] * 4, value)) if name.startswith("latent") else value
        for name, value in mos.state_dict().items()
    }
    mfs.load_state_dict(parts)
    hidden, _, _ = example()
    torch.testing.assert_close(mfs.log_probs(hidden), mos.log_probs(hidden))


def test_parts_raise_the_rank_of_a_single_softmax() -> None:
    """J facets give logits of rank J · E, where one gives rank E; then bias and normaliser."""
    size, hidden = 3, torch.randn(60, H, dtype=torch.float64) * 2

    def rank(parts: int) -> int:
        config = HeadConfig(kind="mfs", partitions=parts, embedding_size=size)
        head = Head(config, H, 40).double()
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter)
        with torch.no_grad():
            return int(torch.linalg.matrix_rank(head.log_probs(hidden)))

    assert [rank(parts) for parts in (1, 2, 4)] == [size + 2, 2 * size + 2, 4 * size + 2]


def test_every_context_reads_the_lower_layer() -> None:
    """A sum over every context and the prior depends on each number of both layers."""
    head = make_head("mfs", partitions=2)
    states = [torch.randn(1, size, dtype=torch.float64, requires_grad=True) for size in (H - LOWER, LOWER)]
    contexts, log_prior = head.mixer.contexts(Layers(states[0], (states[1],)))
    assert contexts.shape == (1, 4, 4)
    assert log_prior is not None
    outputs = torch.cat((contexts.flatten(), log_prior.flatten()))
    for output in outputs:
        for gradient in torch.autograd.grad(output, states, retain_graph=True):
            assert (gradient != 0).all()


def test_products_of_parts_take_no_more_operations_than_one() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    contexts, weight = torch.randn(7, 4, 8), torch.randn(40, 8)
    counts = []
    for parts in (1, 2, 4):
        with FlopCounterMode(display=False) as counter:
            partitioned(contexts[:, :parts], weight, parts)
        counts.append(counter.get_total_flops())
    assert counts == [counts[0]] * 3


@pytest.mark.parametrize("words", [400, 403])
def test_the_output_matrix_is_not_copied(words: int) -> None:
    size = 64
    made: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() != matrix:
                made.append(result.numel())
            return result

    contexts, weight = torch.randn(1, 5, size), torch.randn(words, size)
    matrix = weight.untyped_storage().data_ptr()
    with Sizes(), torch.no_grad():
        partitioned(contexts, weight, 4)
    assert max(made) < words * size


@pytest.mark.parametrize("words", [1, 12, 13, 15])
@pytest.mark.parametrize("rounded", [False, True])
def test_each_word_is_multiplied_by_the_context_of_its_part(words: int, rounded: bool) -> None:
    contexts, weight = torch.randn(5, 6, 8), torch.randn(words, 8)
    chosen = torch.arange(words) % 4
    first = (contexts[:, chosen] * weight).sum(2)
    wanted = torch.cat((first[:, None], contexts[:, 4:] @ weight.t()), 1)
    tolerance = {"rtol": 0.1, "atol": 0.1} if rounded else {}

    def near(found: Tensor) -> None:
        torch.testing.assert_close(found, wanted, **tolerance)

    near(partitioned(contexts, weight, 4, bf16=rounded))
    if rounded:
        near(partitioned(contexts, weight, 4, operand=weight.bfloat16().t()))


def test_a_model_without_lower_layers_has_no_such_facets() -> None:
    config = HeadConfig(kind="mfs", components=3, facet_layers=2)
    with pytest.raises(ConfigError, match=r"facet_layers: mfs reads 2 layers below .* provides 1"):
        Head(config, H, V, lower_sizes=(4,))


def test_no_more_parts_are_taken_than_there_are_words() -> None:
    with pytest.raises(ConfigError, match=rf"head\.partitions = {V + 1}: the vocabulary has {V} words"):
        Head(HeadConfig(kind="mfs", partitions=V + 1), H, V)


@pytest.mark.parametrize(
    "settings", [{"kind": "mfs", "facet_layers": 1}, {"kind": "doc", "lower_components": (1,)}]
)
def test_layers_that_a_head_does_not_read_change_nothing_and_those_it_does_are_needed(
    settings: dict[str, Any],
) -> None:
    head = Head(HeadConfig(components=3, **settings), H, V, lower_sizes=(LOWER, 4)).double()
    last, lower, lowest = (torch.randn(5, size, dtype=torch.float64) for size in (H, LOWER, 4))
    assert torch.equal(head.log_probs(Layers(last, (lower,))), head.log_probs(Layers(last, (lower, lowest))))
    with pytest.raises(ValueError, match="of 1 layers below the last are needed, but 0 given"):
        head.log_probs(last)
