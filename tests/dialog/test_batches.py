"""Examples, batches and their order."""

from itertools import pairwise

import pytest
import torch

from dialog.batches import (
    START,
    collate,
    encode_examples,
    epoch_order,
    fingerprint,
    grouped,
    list_examples,
    segments,
)
from dialog.corpora.corpus import load_dialogs, train_codec
from dialog.utterance import Dialog, Utterance


def talk(*turns: str, id: str = "d") -> Dialog:
    """A dialog from texts like ``A hello there``."""
    said = tuple(Utterance(turn[0], turn[2:]) for turn in turns)
    return Dialog(id, "weather", said)


DIALOGS = [
    talk("A hello there", "B hello", "B how are you", "A fine thanks", "B good"),
    talk("B it rains", "A again", "B again"),
]


def test_every_utterance_but_the_last_is_a_response() -> None:
    examples = list_examples(DIALOGS)
    assert [(e.dialog, e.turn) for e in examples] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert examples[0].context == (START,)
    assert [u.text for u in examples[3].context] == ["<d>", "hello there", "hello", "how are you"]
    assert examples[3].responder == "A"
    assert examples[3].response.text == "fine thanks"


def test_a_backward_example_has_what_was_said_after_it() -> None:
    said = talk("A one", "B two", "A three")
    examples = list_examples([said], context=1, backward=True)
    assert [(e.response, e.context) for e in examples] == [
        (said.utterances[2], (START,)),
        (said.utterances[1], (said.utterances[2],)),
    ]


def test_the_context_is_limited_and_slides() -> None:
    long = talk(*(f"{'AB'[i % 2]} turn {i}" for i in range(15)))
    examples = list_examples([long], context=9)
    assert len(examples) == 14
    assert [len(e.context) for e in examples] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9]
    assert examples[8].context[0] is START
    assert [u.text for u in examples[13].context] == [f"turn {i}" for i in range(4, 13)]


def test_items_mark_the_responders_own_utterances_and_are_capped() -> None:
    codec = train_codec(DIALOGS, "wordpunct", vocab_size=50)
    items = encode_examples(list_examples(DIALOGS), codec, max_tokens=4)
    assert items[3].floors == (0, 1, 0, 0)  # nobody speaks <d>
    words = codec.vocabulary.words(items[3].context[3])
    assert words == ["<s>", "how", "are", "</s>"]
    assert codec.vocabulary.words(items[0].context[0]) == ["<s>", "<d>", "</s>"]
    assert codec.vocabulary.words(items[2].response) == ["<s>", *["how", "are", "you"], "</s>"]


def test_a_batch_holds_every_item_once_and_equal_utterances_once() -> None:
    codec = train_codec(DIALOGS, "wordpunct", vocab_size=50)
    items = encode_examples(list_examples(DIALOGS), codec, 40)
    batch = collate(items, codec.vocabulary.pad)
    assert sorted(batch.order.tolist()) == list(range(len(items)))
    assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)
    assert len({u for item in items for u in item.context}) == batch.utterances.shape[0]
    for row, number in enumerate(batch.order.tolist()):
        item, length = items[number], int(batch.lengths[row])
        assert (*batch.inputs[row, :length].tolist(), int(batch.targets[row, length - 1])) == item.response
        assert batch.inputs[row, 1:length].tolist() == batch.targets[row, : length - 1].tolist()
        heard = batch.context[row, : int(batch.context_lengths[row])].tolist()
        sizes = batch.utterance_lengths.tolist()
        assert [tuple(batch.utterances[u, : sizes[u]].tolist()) for u in heard] == list(item.context)
        assert tuple(batch.floors[row, : len(heard)].tolist()) == item.floors
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("size", [0, 1, 2, 3, 16])
def test_segments_cover_every_example_once_within_dialogs(size: int) -> None:
    examples = list_examples(DIALOGS)
    runs = segments(examples, size)
    assert [i for run in runs for i in run] == list(range(len(examples)))
    assert all(len({examples[i].dialog for i in run}) == 1 for run in runs)
    assert size == 0 or max(map(len, runs)) <= size


def test_an_epoch_can_be_resumed_at_any_batch() -> None:
    runs = segments(list_examples(DIALOGS * 10), 2)
    shuffled = [runs[i] for i in epoch_order(len(runs), seed=3, epoch=1)]
    items = encode_examples(list_examples(DIALOGS * 10), train_codec(DIALOGS, "wordpunct", vocab_size=50), 40)
    for most in (5, 12, 1000):  # tokens; the longest response has 5 with its marks
        whole = list(grouped(shuffled, 4, items, most))
        assert sorted(i for batch in whole for i in batch) == list(range(60))
        for start in range(len(whole) + 1):
            assert list(grouped(shuffled, 4, items, most, start)) == whole[start:]


def test_a_batch_is_divided_where_long_responses_would_make_it_large() -> None:
    words = {3: 200, 4: 30, 8: 90}
    texts = [f"A {'so ' * words.get(number, 2)}" for number in range(17)]
    examples = list_examples([talk(*texts)])
    items = encode_examples(examples, train_codec(DIALOGS, "wordpunct", vocab_size=50), 40)
    runs = segments(examples, 2)
    assert list(grouped(runs, 4, items, 8 * 202)) == [[*range(8)], [*range(8, 16)]]  # as large as it may be
    divided = list(grouped(runs, 4, items, 120))
    assert [i for batch in divided for i in batch] == list(range(16))
    for batch in divided:
        padded = len(batch) * max(len(items[i].response) for i in batch)
        assert padded <= 120 or len(batch) == 1
    for batch, after in pairwise(divided):  # and no more often than it needs be
        joined = [*batch, after[0]]
        assert after[0] % 8 == 0 or len(joined) * max(len(items[i].response) for i in joined) > 120


@pytest.mark.parametrize(("most", "words", "cut"), [(0, 5, 0), (40, 5, 0), (7, 5, 0), (6, 4, 1), (3, 1, 4)])
def test_a_response_is_whole_unless_it_has_a_cap(most: int, words: int, cut: int) -> None:
    codec = train_codec(DIALOGS, "wordpunct", vocab_size=50)
    examples = list_examples([talk("A hello", "B how are you hello there", "A good")])
    item = encode_examples(examples, codec, 4, most)[1]
    said = codec.vocabulary.words(item.response)
    assert said == ["<s>", *["how", "are", "you", "hello", "there"][:words], "</s>"]
    assert item.cut == cut
    assert all(len(utterance) <= 4 for utterance in item.context)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert epoch_order(50, 1, 2) == epoch_order(50, 1, 2)
    assert sorted(epoch_order(50, 1, 2)) == list(range(50))
    assert len({tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_the_fingerprint_notices_changed_text() -> None:
    codec = train_codec(DIALOGS, "wordpunct", vocab_size=50)

    def print_of(dialogs: list[Dialog]) -> str:
        return fingerprint(encode_examples(list_examples(dialogs), codec, 40))

    assert print_of(DIALOGS) == print_of(list(DIALOGS))
    assert print_of(DIALOGS) != print_of(DIALOGS[::-1])
    assert print_of(DIALOGS) != print_of([DIALOGS[0], talk("B it snows", "A again", "B again")])
    assert print_of(DIALOGS) != print_of([DIALOGS[0], talk("A it rains", "A again", "B again")])
    assert print_of(DIALOGS) != print_of([Dialog("d", "", sum((d.utterances for d in DIALOGS), ()))])


@pytest.mark.corpora
@pytest.mark.parametrize(("split", "count"), [("test", 5481), ("valid", 5165)])
def test_zhaos_files_have_the_published_number_of_contexts(corpora: object, split: str, count: int) -> None:
    dialogs = load_dialogs(f"{corpora}/swda/{split}.jsonl")
    examples = list_examples(dialogs)
    assert len(examples) == count
    items = encode_examples(examples, train_codec(dialogs, "wordpunct", vocab_size=50), 40, 40)
    batches = grouped(segments(examples, 16), 7, items, 7 * 16 * 40)
    assert sum(len(batch) for batch in batches) == count
