"""The transformer trunk: equal to a plain formula, and to itself whatever the windows and the batch."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lm.trunks.blocks import EPS, Block
from lm.trunks.cache import CacheState
from lm.trunks.config import TransformerConfig
from lm.trunks.transformer import TransformerTrunk

E, D, N, B, SPAN = 6, 16, 18, 3, 4
KINDS: list[dict[str, Any]] = [{}, {"kv_heads": 2}, {"kv_heads": 1, "feedforward": "gelu"}, {"heads": 1}]


def trunk_of(
    kind: dict[str, Any] | None = None, *, span: int = SPAN, words: int = E, **options: Any
) -> TransformerTrunk:
    torch.manual_seed(3)
    trunk = (
        TransformerTrunk(TransformerConfig(**(kind or {})), (words, D, D, D), span, **options).double().eval()
    )
    for parameter in trunk.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return trunk


def words_of(steps: int = N, size: int = E) -> Tensor:
    return torch.randn(steps, B, size, generator=torch.Generator().manual_seed(1)).double()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turned(x: Tensor, base: float = 10_000.0) -> Tensor:
    """One head's vectors (N, d): each pair of the one at place n turned by n · base^(-2i / d)."""
    even, odd = x[:, 0::2], x[:, 1::2]
    angles = torch.outer(
        torch.arange(len(x)).double(), base ** (-torch.arange(0, x.shape[1], 2).double() / x.shape[1])
    )
    pairs = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(pairs, -1).flatten(1)


def plain_block(block: Block, config: TransformerConfig, x: Tensor, first: list[int], span: int) -> Tensor:
    """One sequence (N, D), in which token n attends to tokens ``first[n]`` to n, at most ``span`` back."""
    heads, shared, d = config.heads, config.key_heads, D // config.heads
    attention = block.attention
    vectors = (norm(x, block.attention_norm.weight) @ attention.project.weight.T).view(len(x), -1, d)
    places, parts = torch.arange(len(x)), []
    seen = (places <= places[:, None]) & (places >= places[:, None] - span)
    seen &= places >= torch.tensor(first)[:, None]
    for head in range(heads):
        group = heads + head * shared // heads
        scores = turned(vectors[:, head]) @ turned(vectors[:, group]).T / d**0.5
        parts.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ vectors[:, group + shared])
    x = x + torch.cat(parts, -1) @ attention.last.weight.T
    wide = norm(x, block.feedforward_norm.weight) @ block.feedforward.widen.weight.T
    if config.feedforward == "swiglu":
        gate, up = wide.chunk(2, -1)
        wide = gate * gate.sigmoid() * up
    else:
        wide = wide * 0.5 * (1 + (wide / 2**0.5).erf())
    return x + wide @ block.feedforward.last.weight.T


def plain(
    trunk: TransformerTrunk, words: Tensor, first: list[int] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Outputs of one stream (N, E), and the normalised inputs of each block, the highest first."""
    x = words if trunk.stack.enter is None else words @ trunk.stack.enter.weight.T
    lower: list[Tensor] = []
    for block in trunk.stack.blocks:
        assert isinstance(block, Block)
        lower.insert(0, norm(x, block.attention_norm.weight))
        x = plain_block(block, trunk.config, x, first or [0] * len(x), trunk.span)
    return norm(x, trunk.stack.norm.weight), lower


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_stream_is_a_plain_formula_with_a_band_mask(kind: dict[str, Any]) -> None:
    trunk, words = trunk_of(kind), words_of()
    read = trunk(words, trunk.initial_state(B))
    for stream in range(B):
        outputs, lower = plain(trunk, words[:, stream])
        torch.testing.assert_close(read.outputs[:, stream], outputs)
        for found, wanted in zip(read.lower, lower, strict=True):
            torch.testing.assert_close(found[:, stream], wanted)
    assert trunk.lower_sizes == (D, D, D)
    same = trunk_of(kind, words=D)
    assert same.stack.enter is None
    words = words_of(size=D)
    torch.testing.assert_close(same(words, same.initial_state(B)).outputs[:, 0], plain(same, words[:, 0])[0])


@pytest.mark.parametrize("windows", [[1] * N, [4, 1, 13], [17, 1], [2, 3, 6, 7]], ids=str)
@pytest.mark.parametrize("span", [1, SPAN, 100])
def test_no_window_changes_the_result(windows: list[int], span: int) -> None:
    trunk, words = trunk_of({"kv_heads": 2}, span=span), words_of()
    whole = trunk(words, trunk.initial_state(B))
    state, pieces = trunk.initial_state(B), []
    for part in words.split(windows):
        read = trunk(part, state)
        state = trunk.state_from(read.state.detached().tensors(), torch.device("cpu"))
        pieces.append(read.outputs)
        assert state.size <= span
    torch.testing.assert_close(torch.cat(pieces), whole.outputs)
    for name, tensor in whole.state.tensors().items():
        torch.testing.assert_close(state.tensors()[name], tensor)


def test_no_batch_changes_the_result() -> None:
    trunk, words = trunk_of(), words_of()
    whole = trunk(words, trunk.initial_state(B)).outputs
    for stream in range(B):
        alone = trunk(words[:, stream : stream + 1], trunk.initial_state(1)).outputs
        torch.testing.assert_close(alone, whole[:, stream : stream + 1])


def test_attention_reaches_exactly_the_span_back() -> None:
    """Through one layer the last output depends on the last ``SPAN`` + 1 words, and on no others."""
    torch.manual_seed(2)
    trunk = TransformerTrunk(TransformerConfig(), (D, D), SPAN).double()
    words = words_of(size=D).requires_grad_()
    for windows in ([N], [11, 7], [17, 1]):
        state, reads = trunk.initial_state(B), []
        for part in words.split(windows):
            reads.append(trunk(part, state))  # not detached
            state = reads[-1].state
        (grad,) = torch.autograd.grad(reads[-1].outputs[-1].sum(), words)
        reached = (grad.abs().sum((1, 2)) > 0).nonzero()[:, 0].tolist()
        assert reached == list(range(N - SPAN - 1, N))


def test_positions_are_relative_and_have_no_limit() -> None:
    trunk, words = trunk_of(), words_of()
    start = trunk.initial_state(B)
    near = trunk(words, start)
    far = CacheState(start.layers, start.positions + 10**9, start.lengths, start.span)
    read = trunk(words, far)
    torch.testing.assert_close(read.outputs, near.outputs, atol=1e-6, rtol=1e-6)
    assert read.state.positions.tolist() == [10**9 + N] * B
    single = trunk.float()
    late = CacheState(single.initial_state(B).layers, start.positions + 10**7, start.lengths, start.span)
    torch.testing.assert_close(
        single(words.float(), late).outputs, near.outputs.float(), atol=1e-4, rtol=1e-4
    )


def test_a_stream_forgets_all_before_a_reset() -> None:
    trunk, words = trunk_of(), words_of()
    keep = torch.ones(N, B, dtype=torch.bool)
    keep[[4, 5, 12], 0] = False
    keep[0, 1] = False
    first = [0] * 4 + [4] + [5] * 7 + [12] * 6
    wanted = [plain(trunk, words[:, 0], first)[0], *(plain(trunk, words[:, n])[0] for n in (1, 2))]
    for windows in ([N], [3, 1, 1, 5, 2, 6], [13, 5]):
        state, pieces = trunk.initial_state(B), []
        for part, kept in zip(words.split(windows), keep.split(windows), strict=True):
            read = trunk(part, state, kept)
            state = read.state
            pieces.append(read.outputs)
        torch.testing.assert_close(torch.cat(pieces), torch.stack(wanted, 1))
        assert state.lengths.tolist() == [SPAN] * B


def test_states_are_selected_replaced_and_forgotten_by_stream() -> None:
    trunk, words = trunk_of(), words_of()
    early, later = words[:3], words[3:]
    after = trunk(early, trunk.initial_state(B)).state
    rows = torch.tensor([2, 0, 0])
    wanted = trunk(words[:, rows], trunk.initial_state(B)).outputs[3:]
    torch.testing.assert_close(trunk(later[:, rows], after.select(rows)).outputs, wanted)
    mixed = trunk.initial_state(B).replaced(slice(1, 3), after.select(slice(1, 3)))
    assert (mixed.streams, mixed.lengths.tolist()) == (B, [0, 3, 3])
    fresh = trunk(later, trunk.initial_state(B)).outputs[:, 0]
    known = trunk(words, trunk.initial_state(B)).outputs[3:, 1:]
    forgetful = after.forgetting(torch.tensor([False, True, True]))
    for state in (mixed, forgetful, CacheState.of(mixed.tensors(), torch.device("cpu"), 3)):
        outputs = trunk(later, state).outputs
        torch.testing.assert_close(outputs[:, 0], fresh)
        torch.testing.assert_close(outputs[:, 1:], known)
    short = trunk(words[1:3], trunk.initial_state(B)).state
    both = after.joined([short.select(slice(0, 1)), trunk.initial_state(1)])
    assert (both.streams, both.lengths.tolist(), both.size) == (B + 2, [3] * B + [2, 0], 3)
    outputs = trunk(torch.cat((later, later[:, :1], later[:, :1]), 1), both).outputs
    torch.testing.assert_close(outputs[:, :B], trunk(later, after).outputs)
    torch.testing.assert_close(outputs[:, B:-1], trunk(later, short).outputs[:, :1])
    torch.testing.assert_close(outputs[:, -1], fresh)
    assert after.lengths.tolist() == [3] * B, "a state is never modified"
    assert after.forgetting(torch.zeros(B, dtype=torch.bool)).size == 0
    assert mixed.select(slice(0, 1)).size == 0, "a part depends on its own streams only"


def test_gradients_are_those_of_finite_differences() -> None:
    trunk = trunk_of({"heads": 2, "kv_heads": 1}, span=2)
    words = torch.randn(4, 2, E).double().requires_grad_()
    before = trunk(torch.randn(3, 2, E).double(), trunk.initial_state(2)).state.detached()
    assert torch.autograd.gradcheck(lambda x: trunk(x, before).outputs, (words,), fast_mode=True)


@pytest.mark.parametrize("masks", ["shared", "per_step"])
def test_dropout_acts_on_every_branch_in_training_only(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    from lm import regularize

    real = regularize.dropout_mask
    monkeypatch.setattr(
        regularize,
        "dropout_mask",
        lambda like, shape, rate: shapes.append(tuple(shape)) or real(like, shape, rate),
    )
    trunk, words = trunk_of(rate=0.5, masks=masks), words_of()
    calm = trunk(words, trunk.initial_state(B)).outputs
    assert not shapes
    outputs = trunk.train()(words, trunk.initial_state(B)).outputs
    assert shapes == [(1 if masks == "shared" else N, B, D)] * 6
    assert not torch.equal(outputs, calm)
    trunk.scale_dropout(0.0)
    assert torch.equal(trunk(words, trunk.initial_state(B)).outputs, calm)


def test_initial_outputs_and_branches_have_unit_scale() -> None:
    torch.manual_seed(1)
    size = 128
    trunk = TransformerTrunk(TransformerConfig(), (size, *[size] * 6), 50)
    hidden = torch.randn(40, 2, size)
    for block in trunk.stack.blocks:
        assert isinstance(block, Block)
        vectors = block.attention.project(hidden)
        assert float(vectors.detach().std()) == pytest.approx(1, abs=0.1)
    outputs = trunk(hidden, trunk.initial_state(2)).outputs
    assert float(outputs.detach().square().mean()) == pytest.approx(1, abs=0.01)


def test_initial_matrices_have_the_scale_of_their_inputs_and_depth() -> None:
    torch.manual_seed(1)
    trunk = TransformerTrunk(TransformerConfig(heads=2), (64, 64, 64, 64), 5)
    for block in trunk.stack.blocks:
        assert isinstance(block, Block)
        for branch in (block.attention, block.feedforward):
            for matrix in branch.children():
                assert isinstance(matrix, torch.nn.Linear)
                inputs = matrix.in_features * (6 if matrix is branch.last else 1)  # two branches of 3 blocks
                assert float(matrix.weight.detach().std()) == pytest.approx(inputs**-0.5, rel=0.05)


@pytest.mark.parametrize(
    ("heads", "size", "fits"), [(4, 16, True), (4, 12, False), (3, 12, True), (1, 3, False)]
)
def test_sizes_hold_pairs_for_every_head(heads: int, size: int, fits: bool) -> None:
    found = TransformerConfig(heads=heads).misfit(size)
    assert (found is None) == fits
    if found:
        assert f"twice transformer.heads = {heads}" in found


def test_feedforward_sizes_follow_the_width() -> None:
    assert [TransformerConfig().inner(size) for size in (12, 48, 256)] == [32, 128, 688]
    assert TransformerConfig(feedforward="gelu").inner(12) == 48
    assert TransformerConfig(feedforward_size=7).inner(12) == 7
    for before, after in pairwise([*range(16, 64, 8)]):
        assert TransformerConfig().inner(before) <= TransformerConfig().inner(after)


@pytest.mark.parametrize("words", [D, E])
def test_sums_of_blocks_keep_their_precision_under_autocast(words: int) -> None:
    """Also where a projection, which has bfloat16 products, makes inputs of the blocks' size."""
    trunk, sums = trunk_of(words=words).float(), list[torch.dtype]()
    for block in trunk.stack.blocks:
        block.feedforward_norm.register_forward_pre_hook(lambda _, given: sums.append(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        trunk(words_of(size=words).float(), trunk.initial_state(B))
    assert set(sums) == {torch.float32}
