"""Streams and windows: every token is a target once, predicted from the one before it in the text."""

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.language.config import WindowConfig
from lm.language.windows import Span, Streams, Window, longest, mean_length

EOS = 99


def layout(
    text: list[np.ndarray], streams: int, config: WindowConfig, *, paper: bool = False
) -> list[tuple[Span, Window]]:
    laid_out = Streams(text, streams, EOS, paper=paper)
    spans = laid_out.spans(config, np.random.default_rng(3), training=True)
    return [(span, laid_out.window(span)) for span in spans]


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 200),
    streams=st.integers(1, 7),
    length=st.integers(1, 20),
    random=st.booleans(),
    files=st.integers(1, 3),
    shuffled=st.booleans(),
)
def test_every_token_is_a_target_once_and_follows_its_input(
    tokens: int, streams: int, length: int, random: bool, files: int, shuffled: bool
) -> None:
    text = np.arange(tokens, dtype=np.uint16)
    pieces = np.array_split(text, files)
    config = WindowConfig(length=length, random=random, shortest=1, partial_shuffle=shuffled)
    windows = layout(pieces, streams, config)
    before = {int(b): int(a) for piece in pieces for a, b in pairwise(piece)}
    targets = [int(t) for _, window in windows for t in window.targets.flatten()]
    kept = [int(t) for piece in pieces for t in piece[: len(piece) // streams * streams]]
    assert sorted(targets) == kept
    for _, window in windows:
        for given_token, target in zip(window.tokens.flatten(), window.targets.flatten(), strict=True):
            assert int(given_token) == before.get(int(target), EOS)


def test_streams_are_contiguous_pieces_of_the_text() -> None:
    windows = layout([np.arange(100)], 4, WindowConfig(length=7, random=False))
    assert [int(window.targets[0, 2]) for _, window in windows] == [50, 57, 64, 71]
    assert [span.first for span, _ in windows] == [True, False, False, False]
    assert [window.targets.shape for _, window in windows] == [(7, 4)] * 3 + [(4, 4)]
    assert [span.scale for span, _ in windows] == [1.0, 1.0, 1.0, 4 / 7]


@pytest.mark.parametrize("paper", [False, True])
def test_partially_shuffled_streams_are_rotated_pieces_by_seed_and_pass(paper: bool) -> None:
    """Press (2019): the two parts of a stream change places, and other passes cut elsewhere."""
    rows, streams = 50, 4
    text = np.arange(rows * streams, dtype=np.uint16)
    config = WindowConfig(length=7, partial_shuffle=True)
    laid_out = Streams([text], streams, EOS, paper=paper)
    read, cuts = [], []
    for number in (0, 0, 1):
        spans = list(laid_out.spans(config, np.random.default_rng((1, number)), training=True))
        targets = torch.cat([laid_out.window(span).targets for span in spans]).numpy()  # (rows, B)
        read.append(targets)
        cuts.append(spans[0].places)
        for stream, cut in enumerate(cuts[-1]):
            piece = text[stream * rows : (stream + 1) * rows]
            rotated = np.concatenate((piece[cut:], piece[:cut]))[int(paper) :]
            assert (targets[:, stream] == rotated[: len(targets)]).all()
    assert (read[0] == read[1]).all()
    assert len({*cuts[0], *cuts[2]}) > streams, "streams or passes are cut at one place"


def test_paper_layout_is_the_authors() -> None:
    """Their loop: ``while i < rows - 2``, inputs data[i : i + L], targets one row later."""
    rows, streams, length = 23, 3, 5
    text = np.arange(rows * streams + 2)
    data = text[: rows * streams].reshape(streams, rows).T  # (rows, B)
    expected = []
    i = 0
    while i < rows - 2:
        steps = min(length, rows - 1 - i)
        expected.append((data[i : i + steps], data[i + 1 : i + 1 + steps]))
        i += steps
    config = WindowConfig(length=length, random=False)
    windows = layout([text], streams, config, paper=True)
    assert len(windows) == len(expected)
    for (span, window), (inputs, targets) in zip(windows, expected, strict=True):
        assert (window.tokens.numpy() == inputs).all()
        assert (window.targets.numpy() == targets).all()
        assert span.scale == 1.0, "the authors rescale by the length that was drawn, not by what was left"


def test_a_pass_can_start_anywhere() -> None:
    text, config = [np.arange(1000), np.arange(500)], WindowConfig(length=9)
    streams = Streams(text, 3, EOS)
    whole = list(streams.spans(config, np.random.default_rng((1, 0))))
    assert list(islice(streams.spans(config, np.random.default_rng((1, 0))), 17, None)) == whole[17:]
    other = list(streams.spans(config, np.random.default_rng((1, 1))))
    assert other != whole, "passes do not differ"


def test_lengths_have_the_published_distribution() -> None:
    config = WindowConfig(length=70, max_delta=10)
    spans = list(Streams([np.zeros(70 * 20_000)], 1, EOS).spans(config, np.random.default_rng(0)))[:-1]
    lengths = np.array([span.stop - span.start for span in spans])
    assert lengths.max() == 80
    assert lengths.min() >= 5
    near_half = lengths < 50
    assert near_half.mean() == pytest.approx(0.05, abs=0.005)
    assert lengths[near_half].mean() == pytest.approx(34.5, abs=0.6)
    assert lengths[~near_half].mean() == pytest.approx(69.5, abs=0.2)  # int() cuts half a token
    assert lengths[~near_half].std() == pytest.approx(5.0, abs=0.2)
    assert lengths.mean() == pytest.approx(mean_length(config), rel=0.02)
    assert [span.scale for span in spans] == pytest.approx((lengths / 70).tolist())


def test_no_window_is_shorter_than_the_shortest() -> None:
    config = WindowConfig(length=6, spread=5.0, shortest=4)
    spans = list(Streams([np.zeros(3000)], 1, EOS).spans(config, np.random.default_rng(0)))[:-1]
    assert min(span.stop - span.start for span in spans) == 4


@pytest.mark.parametrize("paper", [False, True])
def test_one_row_is_read_but_not_predicted_in_the_papers_layout(paper: bool) -> None:
    assert Streams([np.arange(5)], 5, EOS, paper=paper).empty == paper
    assert not Streams([np.arange(10)], 5, EOS, paper=paper).empty


def test_files_come_in_another_order_each_pass() -> None:
    text = [np.full(40, file) for file in range(6)]
    streams = Streams(text, 2, EOS)
    orders = [
        [span.file for span in streams.spans(WindowConfig(random=False), np.random.default_rng(seed))]
        for seed in range(4)
    ]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        (WindowConfig(length=70, spread=5.0), 90),
        (WindowConfig(length=70, spread=5.0, max_delta=10), 80),
        (WindowConfig(length=70, spread=5.0, random=False), 70),
    ],
)
def test_memory_is_estimated_for_the_longest_window(window: WindowConfig, tokens: int) -> None:
    assert longest(window) == tokens


def test_the_longest_window_is_no_shorter_than_the_shortest() -> None:
    assert longest(WindowConfig(length=10, spread=5, shortest=500)) == 500
    assert longest(WindowConfig(length=10, spread=5, shortest=5, max_delta=7)) == 17
    with pytest.raises(ValueError, match=r"shortest = 500: more than length \+ max_delta = 17; lower it"):
        WindowConfig(length=10, shortest=500, max_delta=7)
