"""Several references: retrieval equals the dense formula, and items find their contexts by text."""

import json
import math
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dialog.batches import list_examples
from dialog.corpora.corpus import load_dialogs
from dialog.metrics.nearest import Documents, Index
from dialog.metrics.references import (
    CONTEXT,
    ReferenceItem,
    align_references,
    build_references,
    read_references,
    write_references,
)
from dialog.utterance import Dialog, Utterance
from lm.errors import DataError
from tests.support.reference_items import ITEMS, TEST, TRAIN, made_up


def context_of(dialog: Dialog, turn: int) -> list[str]:
    return [u.text for u in dialog.utterances[max(0, turn - 9) : turn]] or ["<d>"]


def floor_of(dialog: Dialog, turn: int) -> bool | None:
    return dialog.utterances[turn - 1].speaker == dialog.utterances[turn].speaker if turn else None


def test_neighbours_are_those_of_the_dense_formula() -> None:
    places = [(d, t) for d in TRAIN for t in range(len(d.utterances) - 1)]
    bags = [Counter(" ".join(context_of(d, t)).replace("<d>", "< d >").split()) for d, t in places]
    df = Counter(word for bag in bags for word in bag)
    idf = {word: math.log((1 + len(bags)) / (1 + count)) + 1 for word, count in df.items()}

    def cosine(one: Counter[str], other: Counter[str]) -> float:
        def weights(bag: Counter[str]) -> dict[str, float]:
            values = {word: count * idf[word] for word, count in bag.items() if word in idf}
            norm = math.sqrt(sum(v * v for v in values.values()))
            return {word: value / norm for word, value in values.items()}

        left, right = weights(one), weights(other)
        return sum(value * right.get(word, 0.0) for word, value in left.items())

    for item in random.Random(3).sample(ITEMS, 12):
        dialog = TEST[item.dialog]
        bag = Counter(" ".join(context_of(dialog, item.turn)).replace("<d>", "< d >").split())
        near = [
            (-round(cosine(bag, bags[i]), 9), i, d.utterances[t].text)
            for i, (d, t) in enumerate(places)
            if d.topic == dialog.topic and floor_of(d, t) == floor_of(dialog, item.turn)
        ]
        expected = [dialog.utterances[item.turn].text]
        for _, _, text in sorted(near):
            if text not in expected and len(expected) < 6:
                expected.append(text)
        assert list(item.responses) == expected


def test_items_fill_the_layout() -> None:
    examples = list_examples(TEST, CONTEXT)
    assert len(ITEMS) == len(examples) == 4 * 13
    for item, example in zip(ITEMS, examples, strict=True):
        assert (item.dialog, item.turn, item.speaker) == (example.dialog, example.turn, example.responder)
        assert item.responses[0] == example.response.text
        assert len(item.context) == len(example.context) <= CONTEXT
        assert (item.context[0] == "A: <s> <d> </s>\n") == (item.turn < CONTEXT)
        assert item.context[-1] == "A: <s> <d> </s>\n" or item.context[-1].endswith(
            f": {example.context[-1].text}\n"
        )
        assert len(set(item.responses)) == len(item.responses) == len(item.acts) <= 6
    assert all(item.acts[0] == "sd" for item in ITEMS)


def test_other_topics_and_unrelated_contexts_give_no_reference() -> None:
    foreign = build_references(made_up(1, 3, ("boats",)), TEST)
    assert all(len(item.responses) == 1 for item in foreign)
    alone = Dialog(
        "x", "pets", tuple(Utterance("AB"[i % 2], text) for i, text in enumerate(("zzz", "qqq", "vvv")))
    )
    assert len(build_references(TRAIN, [alone])[1].responses) == 1, "no token in common"


def test_index_ranks_ties_in_order_and_leaves_strangers_out() -> None:
    documents = Documents(str.split)
    for text in ("a b", "c", "b a", "a a", "b"):
        documents.add([text])
    documents.finish()
    assert Index(documents, [0, 1, 2, 3, 4]).ranked(documents.vector(["a b"]))[:2] == [0, 2]
    assert 1 not in Index(documents, [0, 1, 2]).ranked(documents.vector(["a"]))
    assert Index(documents, [4, 2, 0]).ranked(documents.vector(["a b"])) == [2, 0, 4]
    assert Index(documents, [0]).ranked(documents.vector(["unheard of"])) == []


def test_progress_counts_the_contexts() -> None:
    calls: list[tuple[int, int]] = []
    build_references(TRAIN, TEST, neighbours=5, progress=lambda *call: calls.append(call))
    assert calls == [(done, len(ITEMS)) for done in range(1, len(ITEMS) + 1)]


def test_written_items_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    write_references(path, ITEMS)
    assert read_references(path) == ITEMS
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw[20].keys() >= {
        "dialog",
        "turn",
        "topic",
        "speaker",
        "context",
        "responses",
        "resp_dialog_acts",
    }


def test_alignment_ignores_the_order_of_the_file() -> None:
    shuffled = random.Random(4).sample(ITEMS, len(ITEMS))
    assert align_references(shuffled, TEST, "f") == ITEMS


def test_alignment_ignores_numbers_speakers_case_and_spacing() -> None:
    rough = [
        ReferenceItem(
            dialog=-1,
            turn=-1,
            topic="",
            speaker="",
            context=tuple(line.upper().replace("\n", " \t\n") for line in item.context if "<d>" not in line),
            responses=(f"<s>  {item.responses[0]} </s>", *item.responses[1:]),
            acts=item.acts,
        )
        for item in ITEMS
    ]
    assert [item.responses[1:] for item in align_references(rough, TEST, "f")] == [
        i.responses[1:] for i in ITEMS
    ]


def test_equal_openings_are_told_apart_by_topic() -> None:
    same = [
        Dialog(
            topic,
            topic,
            (Utterance("A", "okay"), Utterance("B", f"let us talk about {topic}"), Utterance("A", "ok")),
        )
        for topic in ("pets", "cars", "boats")
    ]
    items = build_references(TRAIN, same)
    assert align_references(items[::-1], same, "f") == items


def test_items_of_unknown_topics_go_to_equal_contexts_in_order() -> None:
    said = (Utterance("A", "hello"), Utterance("B", "hi there"))
    same = [Dialog(f"d{number}", topic, said) for number, topic in enumerate("aba")]
    items = [replace(item, topic="elsewhere") for item in build_references(TRAIN, same)]
    assert align_references(items, same, "f") == items


def test_misfits_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(
        DataError, match=r"^f: 2 of 52 contexts have no item, the first in dialog 0, turn 3; "
    ):
        align_references([*ITEMS[:3], *ITEMS[5:]], TEST, "f")
    with pytest.raises(DataError, match=r"1 of 53 items match no context, the first 52, "):
        align_references([*ITEMS, ITEMS[7]], TEST, "f")
    with pytest.raises(DataError, match=r"52 of 52 contexts .* 52 of 52 items"):
        align_references(ITEMS, made_up(9, 4), "f")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{}", "not a list of references"),
        (b"[]", "not a list of references"),
        (b"[\n1,", "json:2:3: not JSON"),
        (b"[" * 100_000, "refs.json"),
        (b"\xff\xfe[]", "not UTF-8 at byte 0"),
        (b"[1]", "item 0 is int"),
        (b'[{"context": [], "responses": []}]', "item 0: responses is empty"),
        (b'[{"context": "A: hi", "responses": ["a"]}]', "item 0: context must be a list of texts"),
        (b'[{"context": [], "responses": "yeah"}]', "item 0: responses must be a list of texts"),
        (b'[{"context": [], "responses": ["a"], "resp_dialog_acts": ["x", "y"]}]', "differ in number"),
        (b'[{"context": [], "responses": ["a"], "turn": "1"}]', "must be whole numbers"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "refs.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_references(path)
    assert "refs.json" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.corpora
def test_switchboard_references_align_and_are_found_again(corpora: Path) -> None:
    folder = corpora / "swda"
    test = load_dialogs(str(folder / "test.jsonl"))
    items = read_references(folder / "test_multi_ref_auto.json")
    assert len(align_references(random.Random(1).sample(items, len(items)), test, "f")) == 5481
    built = build_references(load_dialogs(str(folder / "train.jsonl")), test)
    shared = sum(len({*a.responses[1:]} & {*b.responses[1:]}) for a, b in zip(built, items, strict=True))
    assert shared / sum(len(item.responses) - 1 for item in items) > 0.85


def test_a_file_of_a_gigabyte_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    path.touch()
    os.truncate(path, 10**9)
    with pytest.raises(DataError, match=r"huge\.json: 1 GB is more than the limit of 200 MB; split"):
        read_references(path)
