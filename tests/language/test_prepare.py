"""Preparing text: the stored tokens, vocabularies and tokenizers, the report."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.errors import ConfigError, DataError
from lm.language.corpora import survey
from lm.language.corpora.corpus import load_split
from lm.language.corpora.pieces import RowsPiece
from lm.language.corpora.prepare import PrepareOptions, prepare, prepared_tables
from lm.language.corpora.sources import ReadOptions
from lm.text.lines import InputLog
from lm.text.tokenizers import EOS_WORD, UNK
from tests.support.outcomes import files_below
from tests.support.tiny_text import folder_of, opened, read_back, standard, text

LINE = st.text(alphabet="ab N,é\t", max_size=12)


@given(
    *(st.lists(LINE, min_size=1, max_size=8) for _ in range(3)),
    st.one_of(st.integers(1, 9), st.just(10**15)),  # a file of any size needs the memory of its tokens alone
)
@settings(max_examples=25, deadline=None)
def test_stored_ids_are_the_words_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, train: list[str], valid: list[str], test: list[str], most: int
) -> None:
    """Against a count by hand: order of the vocabulary, counts, every token, whatever the size of a file."""
    given = {"train": ["a b", *train], "valid": ["a", *valid], "test": ["a", *test]}
    base = tmp_path_factory.mktemp("any")
    files = {f"{split}__txt": "\n".join(content) + "\n" for split, content in given.items()}
    out = base / "out"
    report = prepare(folder_of(base / "in", **files), out, PrepareOptions(shard_tokens=most)).report
    words = {s: [w for line in content for w in (*line.split(), EOS_WORD)] for s, content in given.items()}
    counts = Counter(words["train"])
    lacking = (set(words["valid"]) | set(words["test"])) - set(counts)
    vocabulary = opened(out)[0].vocabulary
    known = [(token, n) for token, n in zip(vocabulary.tokens, vocabulary.counts, strict=True) if n]
    assert known == sorted(counts.items(), key=lambda item: -item[1]), "falling, ties by first appearance"
    assert (vocabulary.unk is not None) == bool(lacking)
    assert len(vocabulary) == report["vocabulary_size"] == len(counts) + bool(lacking)
    for split, expected in words.items():
        codec, tokens = opened(out, split)
        shown = [word if word in counts else UNK for word in expected]
        assert codec.vocabulary.words(tokens.ids().tolist()) == shown
        assert len(tokens) == len(expected) == report["splits"][split]["tokens"]
        assert [len(file) for file in tokens.files[:-1]] == [most] * (len(tokens.files) - 1)
        characters = sum(len(line) + 1 for line in given[split])
        assert report["splits"][split]["characters"] == characters
        assert report["splits"][split]["oov_tokens"] == shown.count(UNK)


def test_the_type_of_the_ids_follows_the_vocabulary(tmp_path: Path) -> None:
    many = "\n".join(" ".join(f"w{n}" for n in range(k, k + 100)) for k in range(0, 65_536, 100))
    source = folder_of(tmp_path / "in", train__txt=many, valid__txt="w1\n", test__txt="w2\n")
    prepare(source, tmp_path / "large")
    prepare(source, tmp_path / "small", PrepareOptions(vocab_size=65_536))
    for name, dtype in (("large", np.int32), ("small", np.uint16)):
        codec, split = opened(tmp_path / name)
        assert split.files[0].dtype == dtype
        assert split.ids().max() == len(codec.vocabulary) - 1
        assert isinstance(split.files[0], np.memmap)


@pytest.mark.parametrize(
    ("options", "tokens", "counts"),
    [
        ({}, [EOS_WORD, "a", "b", "c", UNK], [3, 3, 2, 1, 0]),
        ({"vocabulary": "train+valid+test"}, [EOS_WORD, "a", "b", "c", "z"], [3, 3, 2, 1, 0]),
        ({"vocab_size": 4}, [EOS_WORD, "a", "b", UNK], [3, 3, 2, 1]),
        ({"vocab_size": 3}, [EOS_WORD, "a", UNK], [3, 3, 3]),
        ({"lowercase": True, "vocab_size": 9}, [EOS_WORD, "a", "b", "c", UNK], [3, 3, 2, 1, 0]),
    ],
)
def test_vocabularies_by_hand(
    options: dict[str, Any], tokens: list[str], counts: list[int], tmp_path: Path
) -> None:
    source = folder_of(tmp_path / "in", train__txt="b a a\nb a\nc\n", valid__txt="z a\n", test__txt="a b\n")
    report = prepare(source, tmp_path / "out", PrepareOptions(**options)).report
    vocabulary = opened(tmp_path / "out")[0].vocabulary
    pairs = dict(zip(vocabulary.tokens, vocabulary.counts, strict=True))
    assert pairs == dict(zip(tokens, counts, strict=True))
    assert list(vocabulary.counts) == sorted(counts, reverse=True)
    lost = options.get("vocabulary") != "train+valid+test"
    assert report["splits"]["valid"]["oov_rate"] == (1 / 2 if lost else 0)
    assert bool(report["notes"]) == (pairs.get(UNK) == 0), "an <unk> that no model can learn is told"


def test_an_unknown_word_of_the_text_itself_is_a_word(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", train__txt="a <unk>\n", valid__txt="<unk>\n", test__txt="a\n")
    report = prepare(source, tmp_path / "out").report
    vocabulary = opened(tmp_path / "out")[0].vocabulary
    assert set(vocabulary.tokens) == {"a", UNK, EOS_WORD}
    assert vocabulary.unk == vocabulary.tokens.index(UNK)
    valid = report["splits"]["valid"]
    assert (valid["oov_tokens"], valid["unknown_tokens"], report["notes"]) == (0, 1, [])
    Path(source, "train.txt").write_text("a a b <unk>\n")
    prepare(source, tmp_path / "cut", PrepareOptions(vocab_size=3))
    vocabulary = opened(tmp_path / "cut")[0].vocabulary
    pairs = zip(vocabulary.tokens, vocabulary.counts, strict=True)
    assert dict(pairs) == {EOS_WORD: 1, UNK: 2, "a": 2}


def test_blank_lines_are_ends_of_lines_or_dropped(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", train__txt=" \n = A = \n \n a\n", valid__txt="a\n\n", test__txt="a\n")
    report = prepare(source, tmp_path / "out").report
    assert (report["format"], report["splits"]["train"]["tokens"]) == ("wikitext", 8)
    assert read_back(tmp_path / "out", "train") == "\n= A =\n\na\n"
    dropped = prepare(source, tmp_path / "out", PrepareOptions(blank_lines="drop")).report
    assert [counts["lines"] for counts in dropped["splits"].values()] == [2, 1, 1]
    assert read_back(tmp_path / "out", "train") == "= A =\na\n"


def test_a_file_is_cut_at_its_end_in_whole_lines(tmp_path: Path) -> None:
    source = tmp_path / "book"
    source.write_text(text(400), encoding="utf-8")
    options = PrepareOptions(ReadOptions(valid_fraction=0.1, test_fraction=0.2))
    report = prepare(str(source), tmp_path / "out", options).report
    parts = [read_back(tmp_path / "out", split) for split in ("train", "valid", "test")]
    assert "".join(parts) == text(400), "in order, nothing lost, nothing twice"
    shares = [counts["characters"] / len(text(400)) for counts in report["splits"].values()]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    report = prepare(str(source), tmp_path / "two", PrepareOptions(ReadOptions(valid_fraction=0))).report
    assert list(report["splits"]) == ["train", "test"]
    assert report["notes"] == [
        "cut from the end of train: test; results compare only with those of the same cut"
    ]
    source.write_text("one line\n")
    with pytest.raises(DataError, match="too few lines to split"):
        prepare(str(source), tmp_path / "short")
    source.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(DataError, match="holds binary data, not text"):
        prepare(str(source), tmp_path / "short")


def test_bad_lines_are_named_by_their_number_in_the_file_and_listed_once(tmp_path: Path) -> None:
    rows = [b"fen and bog"] * 100
    bad = {0: b"a \xff", 69: b"nul \0", 70: b"an <eos> here", 90: b"\xc3", 99: b"a \xff"}
    for index, row in bad.items():
        rows[index] = row
    source = tmp_path / "book"
    source.write_bytes(b"\n".join(rows) + b"\n")
    for index in sorted(bad):
        with pytest.raises(DataError, match=rf"book:{index + 1}[:\d]*: .*lm prepare … --on-bad-line skip"):
            prepare(str(source), tmp_path / "out")
        rows[index] = b"fen and bog"
        source.write_bytes(b"\n".join(rows) + b"\n")
    for index, row in bad.items():
        rows[index] = row
    source.write_bytes(b"\n".join(rows) + b"\n")
    read = ReadOptions(valid_fraction=0.1, test_fraction=0.2)
    report = prepare(str(source), tmp_path / "out", PrepareOptions(read, on_bad_line="skip")).report
    assert sum(report["dropped"].values()) == 5
    listed = [json.loads(line) for line in (tmp_path / "out/dropped.jsonl").read_text().splitlines()]
    assert [item["line"] for item in listed] == [index + 1 for index in sorted(bad)]
    assert sum(counts["lines"] for counts in report["splits"].values()) == 95


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpunct", "char"])
def test_every_tokenizer_is_stored_and_restores_the_text(kind: str, tmp_path: Path) -> None:
    options = PrepareOptions(tokenizer=kind, vocab_size=0 if kind in ("wordpunct", "char") else 40)  # type: ignore[arg-type]
    source = standard(tmp_path / "in")
    report = prepare(source, tmp_path / "out", options).report
    assert report["tokenizer"] == kind
    assert sum(counts["oov_tokens"] for counts in report["splits"].values()) == 0
    original = Path(source, "valid.txt").read_text(encoding="utf-8")
    restored = read_back(tmp_path / "out", "valid")
    assert restored.replace(" ", "") == original.replace(" ", "")
    codec, tokens = opened(tmp_path / "out", "valid")
    assert load_split(f"{source}/valid.txt", codec).fingerprint == tokens.fingerprint
    if kind in ("unigram", "bpe"):
        assert len(codec.vocabulary) <= 40
        with pytest.raises(ConfigError, match="needs the size"):
            prepare(source, tmp_path / "none", PrepareOptions(tokenizer=kind))  # type: ignore[arg-type]


def test_sentencepiece_learns_from_a_bounded_seeded_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "book").write_text(text(3000), encoding="utf-8")
    monkeypatch.setattr(survey, "SAMPLE", 5000)
    samples = []
    original = survey.train_sentencepiece
    monkeypatch.setattr(
        survey,
        "train_sentencepiece",
        lambda kind, texts, *rest: samples.append(texts) or original(kind, texts, *rest),
    )
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        prepare(
            str(tmp_path / "book"), tmp_path / name, PrepareOptions(tokenizer="bpe", vocab_size=40, seed=seed)
        )
    sizes = [sum(map(len, texts)) for texts in samples]
    assert max(sizes) <= 2 * survey.SAMPLE
    assert min(sizes) >= 4 * survey.SAMPLE // 5  # a share of the lines, so of about as many characters
    assert samples[0] == samples[1] != samples[2]
    one, same = files_below(tmp_path / "one"), files_below(tmp_path / "same")
    assert one == same, "the same input and options give the same bytes"


def test_the_sample_of_sentencepiece_is_of_all_rows_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SAMPLE", 10_000)

    rows = [f"{number:06}{'x' * 294}" for number in range(2000)]
    piece = RowsPiece("rows", datasets.Dataset.from_dict({"text": rows}), "text", 0, len(rows))
    sample = survey._sample([piece], random.Random(1), InputLog("error"))
    assert 10_000 / 2 < sum(map(len, sample)) <= 20_000
    assert sample == sorted(sample)
    last = [int(row[:6]) for row in sample if int(row[:6]) >= 1000]
    assert 0.3 * len(sample) < len(last) < 0.7 * len(sample)
    assert survey._sample([piece], random.Random(1), InputLog("error")) == sample


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PrepareOptions(ReadOptions(length=7)), "--length 7: has no effect on .*; leave it out"),
        (PrepareOptions(ReadOptions(language="en")), "--language en"),
        (PrepareOptions(ReadOptions(text_column="body")), "--text-column body"),
        (PrepareOptions(ReadOptions(vocab=9)), "--vocab 9"),
        (PrepareOptions(tokenizer="bpe", vocab_size=9, vocabulary="train+valid+test"), "--vocabulary train"),
    ],
)
def test_options_without_effect_are_refused(options: PrepareOptions, message: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(text(60))
    with pytest.raises(ConfigError, match=message):
        prepare(str(tmp_path / "text.txt"), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_a_share_for_a_split_that_the_source_has_is_refused(tmp_path: Path) -> None:
    message = "--valid-fraction 0.2: has no effect on"
    with pytest.raises(ConfigError, match=message):
        prepare(standard(tmp_path / "in"), tmp_path / "out", PrepareOptions(ReadOptions(valid_fraction=0.2)))
    (tmp_path / "in/valid.txt").unlink()
    prepare(str(tmp_path / "in"), tmp_path / "out", PrepareOptions(ReadOptions(valid_fraction=0.2)))


def test_unknown_words_of_a_text_stay_words(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", **{f"{s}__txt": "a <unk> , b\n" for s in ("train", "valid", "test")})
    prepare(source, tmp_path / "out", PrepareOptions(tokenizer="wordpunct"))
    codec, tokens = opened(tmp_path / "out")
    assert codec.vocabulary.words(tokens.ids().tolist()) == ["a", UNK, ",", "b", EOS_WORD]
    assert codec.encode("b <unk>")[1] == codec.vocabulary.unk


def test_options_of_text_are_refused_for_random_sequences(tmp_path: Path) -> None:
    for option, options in (
        ("--format wikitext", {"format": "wikitext"}),
        ("--test-fraction", {"test_fraction": 0.2}),
    ):
        with pytest.raises(ConfigError, match=f"{option}.*: has no effect on reverse-copy; leave it out"):
            prepare("reverse-copy", tmp_path / "out", PrepareOptions(ReadOptions(**options)))  # type: ignore[arg-type]


def test_counts_that_are_not_the_published_ones_are_a_warning(tmp_path: Path) -> None:
    files = {f"ptb__{split}__txt": "a b\n" for split in ("train", "valid", "test")}
    source = folder_of(tmp_path / "in", **files)
    report = prepare(source, tmp_path / "out").report
    assert report["published"].startswith("not as published for PTB: train 3 for 929,589, valid 3 for 73,760")
    assert "vocabulary 3 for 10,000" in report["published"]
    assert any("not as published" in str(line) for line in prepared_tables(report))
    assert prepare(source, tmp_path / "cut", PrepareOptions(vocab_size=3)).report["published"] is None
    assert prepare(standard(tmp_path / "text"), tmp_path / "other").report["published"] is None


@pytest.mark.corpora
def test_penn_treebank_has_the_published_counts(corpora: Path, tmp_path: Path) -> None:
    report = prepare(str(corpora / "ptb"), tmp_path / "out").report
    assert [counts["tokens"] for counts in report["splits"].values()] == [929_589, 73_760, 82_430]
    assert (report["vocabulary_size"], report["published"]) == (10_000, "same")
    assert sum(counts["oov_tokens"] for counts in report["splits"].values()) == 0
    vocabulary = opened(tmp_path / "out")[0].vocabulary
    assert {EOS_WORD, UNK, "N"} <= set(vocabulary.tokens)
    for split in ("train", "valid", "test"):
        original = (corpora / f"ptb/ptb.{split}.txt").read_text()
        assert read_back(tmp_path / "out", split).split() == original.split()


@pytest.mark.corpora
def test_wikitext_has_the_published_counts(corpora: Path, tmp_path: Path) -> None:
    """Its training text is larger than what is asked for here, so validation text takes its place."""
    (tmp_path / "in").mkdir()
    for name, original in (("train", "valid"), ("valid", "valid"), ("test", "test")):
        (tmp_path / f"in/{name}.txt").write_bytes((corpora / f"wikitext-2/{original}.txt").read_bytes())
    report = prepare(str(tmp_path / "in"), tmp_path / "out").report
    assert report["format"] == "wikitext"
    assert [counts["tokens"] for counts in report["splits"].values()] == [217_646, 217_646, 245_569]
    assert report["published"].startswith("not as published for WikiText-2: train 217,646 for 2,088,628, voc")
