"""Preparing text: every layout, the stored tokens, vocabularies and tokenizers, the report."""

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
from lm.language.config import DataConfig
from lm.language.corpora import survey
from lm.language.corpora.corpus import TokenSplit, load_codec, load_split
from lm.language.corpora.pieces import RowsPiece
from lm.language.corpora.prepare import PrepareOptions, prepare, prepared_tables
from lm.language.corpora.sources import ReadOptions, locate
from lm.text.lines import InputLog
from lm.text.vocabulary import EOS_WORD, UNK, Codec

DEFAULTS = PrepareOptions()
WORDS = ("moss", "heath", "bog", "peat", "fen", "crème", "N", ",")


def text(count: int, seed: int = 1) -> str:
    rng = random.Random(seed)
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) + "\n" for _ in range(count))


def folder_of(path: Path, **files: str | bytes) -> str:
    """A folder of files; ``__`` in a name stands for a dot."""
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name.replace("__", ".")).write_bytes(data)
    return str(path)


def standard(path: Path, count: int = 30) -> str:
    return folder_of(path, train__txt=text(count), valid__txt=text(5, 2), test__txt=text(6, 3))


def opened(out: Path, split: str = "train") -> tuple[Codec, TokenSplit]:
    codec = load_codec(DataConfig(train=str(out / split)))
    return codec, load_split(str(out / split), codec)


def read_back(out: Path, split: str) -> str:
    codec, tokens = opened(out, split)
    return codec.decode(tokens.ids().tolist())


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


LINE = st.text(alphabet="ab N,é\t", max_size=12)


@given(*(st.lists(LINE, min_size=1, max_size=8) for _ in range(3)), st.integers(1, 9))
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
        assert tokens.characters == sum(len(line) + 1 for line in given[split])
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


@pytest.mark.parametrize(
    ("names", "format"),
    [
        (("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"), "ptb"),
        (("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"), "wikitext"),
        (("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"), "text"),
        (("training.txt", "dev.txt", "test.txt"), "text"),
        (("train", "val", "test"), "text"),
        (("en_train.txt", "en_validation.txt", "en_test.txt"), "text"),
        (("train.en", "valid.en", "test.en"), "text"),
    ],
)
def test_names_tell_splits_and_formats(names: tuple[str, ...], format: str, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("latest.txt is not a test split")
    (tmp_path / "latest.txt").write_text("nor is this")
    for name in names:
        (tmp_path / name).write_text("a\n")
    located = locate(str(tmp_path), ReadOptions())
    assert located.format == format
    found = [Path(part.name).name for parts in located.splits.values() for part in parts]
    assert (list(located.splits), tuple(found)) == (["train", "valid", "test"], names)


def test_one_of_several_corpora_is_chosen(tmp_path: Path) -> None:
    for language in ("en", "fr"):
        inner = tmp_path / "mwc" / language
        inner.mkdir(parents=True)
        folder_of(inner, **{f"{split}__txt": f"{language} b\n" for split in ("train", "valid", "test")})
    with pytest.raises(DataError, match="choose one of en, fr with --language"):
        prepare(str(tmp_path / "mwc"), tmp_path / "out")
    with pytest.raises(DataError, match="has no de; --language takes one of en, fr"):
        prepare(str(tmp_path / "mwc"), tmp_path / "out", PrepareOptions(ReadOptions(language="de")))
    options = PrepareOptions(ReadOptions(language="fr"))
    report = prepare(str(tmp_path / "mwc"), tmp_path / "out", options).report
    assert (report["format"], report["tokenizer"], report["splits"]["train"]["tokens"]) == ("mwc", "char", 5)
    assert read_back(tmp_path / "out", "test") == "fr b\n"


def test_only_languages_of_the_multilingual_corpus_are_read_as_characters(tmp_path: Path) -> None:
    for name in ("fr", "books"):
        for folder, ending in (("names", name), (f"folders/{name}", "txt")):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for split in ("train", "valid", "test"):
                (tmp_path / folder / f"{split}.{ending}").write_text("a b\n")
    for name, format in (("fr", "mwc"), ("books", "text")):
        for folder in ("names", "folders"):
            assert locate(str(tmp_path / folder), ReadOptions(language=name)).format == format


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", "tsv", "parquet", "jsonl.gz"])
def test_records_are_no_text(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for split in ("train", "valid", "test"):
        (source / f"{split}.{suffix}").write_text('{"utterances": []}\n{"utterances": []}\n')
    for language in ("", suffix):
        with pytest.raises(DataError, match=r"test.*: holds records, not running text; .*`dialog prepare`"):
            prepare(str(source), tmp_path / "out", PrepareOptions(ReadOptions(language=language)))
    with pytest.raises(DataError, match=f"train.{suffix}: holds records"):
        prepare(str(source / f"train.{suffix}"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    located = locate(str(source), ReadOptions(format="text"))
    assert (located.format, list(located.splits)) == ("text", ["train", "valid", "test"])
    (source / "valid.txt").write_text("a b\n")
    with pytest.raises(DataError, match=rf"test.{suffix}, \S*train.{suffix}: hold records, not running text"):
        locate(str(source), ReadOptions())
    (source / "train.txt").write_text("a b\n")
    with pytest.raises(DataError, match=f"test.{suffix}: holds records"):  # not cut from train
        locate(str(source), ReadOptions())
    (source / "test.txt").write_text("a b\n")
    assert {path.suffix for path in locate(str(source), ReadOptions()).files} == {".txt"}
    (note,) = prepare(str(source), tmp_path / "out").report["notes"]
    assert note == "not read, since they hold records: " + ", ".join(
        f"{split}.{suffix}" for split in ("test", "train", "valid")
    )


def test_the_penn_folder_has_words_and_characters(tmp_path: Path) -> None:
    """The `<unk>` that is spelled out in characters is five characters."""
    files = {f"ptb__{split}__txt": "a bog <unk>\n" for split in ("train", "valid", "test")}
    spelled = " a _ b o g _ < u n k > \n"
    files |= {f"ptb__char__{split}__txt": spelled for split in ("train", "valid", "test")}
    source = folder_of(tmp_path / "in", **files)
    assert prepare(source, tmp_path / "words").report["splits"]["train"]["tokens"] == 4
    options = PrepareOptions(ReadOptions(format="ptb-char"))
    report = prepare(source, tmp_path / "characters", options).report
    assert (report["tokenizer"], report["vocabulary_size"]) == ("char", 11)
    for split in ("train", "test"):
        assert read_back(tmp_path / "characters", split) == "a bog <unk>\n"
    codec, split = opened(tmp_path / "characters")
    assert len(split) == split.characters == 12
    assert load_split(f"{source}/ptb.char.test.txt", codec).fingerprint == split.fingerprint
    for path in Path(source).glob("ptb.[tv]*"):
        path.unlink()
    assert locate(source, ReadOptions()).format == "ptb-char"


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_bytes_are_kept_one_for_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NUL, invalid UTF-8, letters cut in two by a split or a block: every byte is a token."""
    rng = random.Random(1)
    data = bytes(rng.choices(range(256), k=3000)) + "œ\n".encode() * 333
    if name == "text8":
        data = bytes(rng.choices(b" abcdefghijklmnopqrstuvwxyz", k=4000))
    (tmp_path / name).write_bytes(data)
    monkeypatch.setattr("lm.text.parts.BYTES_AT_ONCE", 7)
    report = prepare(str(tmp_path / name), tmp_path / "out").report
    size = len(data)
    pieces = {"train": data[: size * 9 // 10], "test": data[int(size * 0.95) :]}
    pieces["valid"] = data[len(pieces["train"]) : size - len(pieces["test"])]
    for split, piece in pieces.items():
        codec, tokens = opened(tmp_path / "out", split)
        words = codec.vocabulary.words(tokens.ids().tolist())
        assert bytes(10 if word == EOS_WORD else ord(word) for word in words) == piece
        assert tokens.characters == len(tokens) == len(piece)
    assert report["vocabulary_size"] == (256 if name == "enwik8" else 27 + 1)
    assert (report["format"], report["tokenizer"]) == (name, "byte")
    (tmp_path / "piece").write_bytes(pieces["test"])
    codec, test = opened(tmp_path / "out", "test")
    assert load_split(str(tmp_path / "piece"), codec).fingerprint == test.fingerprint
    assert codec.decode(codec.encode("fen œ")) == "fen œ\n" if name == "enwik8" else "fen"
    with pytest.raises(ConfigError, match="is read as raw bytes"):
        prepare(str(tmp_path / name), tmp_path / "words", PrepareOptions(tokenizer="whitespace"))


def test_one_billion_words(tmp_path: Path) -> None:
    train, heldout = (tmp_path / f"{name}-monolingual.tokenized.shuffled" for name in ("training", "heldout"))
    train.mkdir(), heldout.mkdir()
    for number in (2, 1):
        (train / f"news.en-0000{number}-of-00100").write_text(f"The {number}\n")
        (heldout / f"news.en.heldout-0000{number - 1}-of-00050").write_text(f"held {number - 1}\n")
    report = prepare(str(tmp_path), tmp_path / "out", PrepareOptions(lowercase=True, vocab_size=5)).report
    assert (report["format"], report["vocabulary_size"]) == ("1b", 5)
    assert read_back(tmp_path / "out", "train") == "the 1\nthe 2\n"
    assert read_back(tmp_path / "out", "valid") == "<unk> 1\n"
    assert read_back(tmp_path / "out", "test") == "<unk> <unk>\n"


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
    with pytest.raises(DataError, match="too short to split"):
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


def test_datasets_give_rows_as_lines(tmp_path: Path) -> None:
    import datasets

    def store(last: str) -> None:
        rows = [{"text": f"row {n}\n"} for n in range(1100)] + [{"text": "two\nlines"}, {"text": last}]
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "stored")

    unchanged = []
    options = PrepareOptions(ReadOptions(valid_fraction=0.01, test_fraction=0.01))
    for last in ("", None, "else"):
        if last is not None:
            store(last)
        result = prepare(f"hf:{tmp_path / 'stored'}", tmp_path / "out", options)
        unchanged.append(result.unchanged)
        if last == "":
            assert read_back(tmp_path / "out", "test").endswith("row <unk>\n<unk>\n<unk>\n\n")
            assert [counts["lines"] for counts in result.report["splits"].values()] == [1080, 11, 12]
    assert unchanged == [False, True, False]
    wrong = PrepareOptions(ReadOptions(format="datasets", text_column="body"))
    with pytest.raises(DataError, match="no column body; name one of text with --text-column"):
        prepare(str(tmp_path / "stored"), tmp_path / "other", wrong)


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
    one, same = contents(tmp_path / "one"), contents(tmp_path / "same")
    assert one == same, "the same input and options give the same bytes"


def test_the_sample_of_sentencepiece_is_of_all_rows_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SAMPLE", 10_000)
    import datasets

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


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet", "jsonl.gz"])
def test_a_column_of_a_file_of_records_is_a_text(ending: str, tmp_path: Path) -> None:
    rows = [{"said": f"line {n}\nand more", "url": "x"} for n in range(20)]
    table, path = datasets.Dataset.from_list(rows), tmp_path / f"in.{ending}"
    if ending in ("csv", "parquet"):
        getattr(table, f"to_{ending}")(path)
    else:
        table.to_json(path, lines=ending != "json", compression="gzip" if ending.endswith("gz") else None)
    options = PrepareOptions(ReadOptions(format="datasets", text_column="said"))
    report = prepare(str(path), tmp_path / "out", options).report
    assert [split["lines"] for split in report["splits"].values()] == [36, 2, 2]
    with pytest.raises(DataError, match="no column text; name one of said, url with --text-column"):
        locate(str(path), ReadOptions(format="datasets"))


def test_a_file_that_is_no_data_set_asks_no_hub(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b\n")
    with pytest.raises(DataError, match=r"in\.txt: no file of records; data sets are jsonl, "):
        locate(str(tmp_path / "in.txt"), ReadOptions(format="datasets"))
    (tmp_path / "in.jsonl").write_text('{"a": 1\n')
    with pytest.raises(DataError, match=r"in\.jsonl: cannot load it \(.*JSON.*\); mend the file") as caught:
        locate(str(tmp_path / "in.jsonl"), ReadOptions(format="datasets"))
    assert str(caught.value).isprintable()
