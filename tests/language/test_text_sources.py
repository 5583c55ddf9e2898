"""Sources of texts: names of splits and formats, layouts of known corpora, files of records."""

import random
from pathlib import Path

import datasets
import pytest

from lm.errors import ConfigError, DataError
from lm.language.corpora.corpus import load_split
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.corpora.sources import ReadOptions, locate
from lm.text.tokenizers import EOS_WORD
from tests.support.tiny_text import folder_of, opened, read_back, standard


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


def test_a_folder_in_a_folder_is_the_corpus_if_it_is_alone(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    standard(tmp_path / "all/fr")
    assert locate(str(tmp_path / "all"), ReadOptions()).format == "mwc"
    standard(tmp_path / "all/en")
    with pytest.raises(DataError, match="holds several corpora; choose one of en, fr with --language"):
        locate(str(tmp_path / "all"), ReadOptions())


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
    assert len(split) == 12
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
        assert len(tokens) == len(piece)
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


@pytest.mark.parametrize("stray", ["train.log", "test_results.md", "train.txt~", "._train.txt", "valid.md"])
def test_files_of_plain_names_come_before_others_like_them(stray: str, tmp_path: Path) -> None:
    names = {f"{split}__txt": "a b\n" for split in ("train", "valid", "test")}
    source = folder_of(tmp_path, **names)
    (tmp_path / stray).write_text("else\n")
    assert {path.name for path in locate(source, ReadOptions()).files} == {
        "train.txt",
        "valid.txt",
        "test.txt",
    }


def test_a_name_without_a_text_for_training_is_no_corpus(tmp_path: Path) -> None:
    names = [*(f"en.{split}.txt" for split in ("train", "valid", "test")), "fr.test.txt"]
    for name in names:
        (tmp_path / name).write_text("a b\n")
    assert {path.name for path in locate(str(tmp_path), ReadOptions()).files} == {*names[:3]}
