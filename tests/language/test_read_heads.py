"""The order of the data of Melis et al. (2020): heads that read the text, and windows of a fixed length."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.errors import DataError
from lm.language.config import WindowConfig
from lm.language.windows import ReadHeads

EOS = 0


def sentences(count: int, seed: int = 0) -> np.ndarray:
    """A text whose every token but ``EOS`` is there once, in sentences of 0 to 6 words."""
    rng, pieces, word = np.random.default_rng(seed), [], 1
    for length in rng.integers(0, 7, count):
        pieces.append([*range(word, word + length), EOS])
        word += length
    return np.concatenate(pieces).astype(np.int64)


def read(heads: ReadHeads, passes: int, window: WindowConfig) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of so many passes, (B, N)."""
    found = [
        heads.window(span)
        for number in range(passes)
        for span in heads.spans(number, window, np.random.default_rng(number))
    ]
    assert [window.first for window in found] == [True] + [False] * (len(found) - 1)
    return tuple(torch.cat([getattr(w, name) for w in found]).t().numpy() for name in ("tokens", "targets"))  # type: ignore[return-value]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(12, 60),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 9),
    st.booleans(),
    st.integers(1, 3),
)
def test_every_head_reads_all_of_the_text_again_and_again(
    count: int, streams: int, jitter: int, length: int, random: bool, shards: int
) -> None:
    text = sentences(count)
    window = WindowConfig(length=length, random=random, shortest=1)
    heads = ReadHeads(np.array_split(text, shards), streams, EOS, jitter, seed=1)
    size, rows = len(text), sum(s.stop - s.start for s in heads.spans(0, window, np.random.default_rng(0)))
    inputs, targets = read(heads, 2 * size // rows + 1, window)
    assert targets.shape[1] >= 2 * size
    starts = {0, *(np.flatnonzero(text == EOS) + 1).tolist()}
    where = {int(token): place for place, token in enumerate(text) if token != EOS}
    for head, (given_tokens, asked) in enumerate(zip(inputs, targets, strict=True)):
        assert given_tokens[0] == EOS
        assert (given_tokens[1:] == asked[:-1]).all()
        for again in range(2):
            piece = asked[again * size : (again + 1) * size]
            assert sorted(piece) == sorted(text), head
            offset = int(np.flatnonzero(piece != EOS)[0])
            begin = (where[int(piece[offset])] - offset) % size
            assert begin in starts
            assert (np.roll(text, -begin) == piece).all()


def test_heads_are_spread_over_the_text_and_moved_by_no_more_than_the_jitter() -> None:
    text = np.tile([1, 2, EOS], 1000)
    still = ReadHeads([text], 4, EOS, 0, seed=5)._places(np.arange(0, 9000, 3000))
    assert (np.diff(still[:, 0] // 3) % 1000 == 250).all()
    assert (still == still[:, :1]).all()
    moved = ReadHeads([text], 4, EOS, 20, seed=5)._places(np.arange(0, 90_000, 3000))
    apart = (moved - still[:, :1] + 1500) % 3000 - 1500
    assert (apart % 3 == 0).all()
    assert 15 <= apart.max() / 3 <= 20
    assert -20 <= apart.min() / 3 <= -15
    assert len(np.unique(apart[:, 0])) > 1, "heads are moved together"
    other = ReadHeads([text], 4, EOS, 0, seed=6)._places(np.arange(1))
    assert not np.array_equal(other, still[:, :1])


def test_windows_of_a_fixed_length_are_all_full() -> None:
    heads = ReadHeads([sentences(100)], 3, EOS, 2, seed=1)
    spans = [s for n in range(4) for s in heads.spans(n, WindowConfig(length=7, random=False), None)]  # type: ignore[arg-type]
    assert {span.stop - span.start for span in spans} == {7}
    assert [span.start for span in spans] == list(range(0, 7 * len(spans), 7))


def test_too_few_sentences_for_the_heads_are_refused() -> None:
    with pytest.raises(DataError, match=r'window\.order = "read_heads": 2 sentences are too few .* 3 heads'):
        ReadHeads([np.array([1, EOS, 2, 2])], 3, EOS, 0, seed=1)
