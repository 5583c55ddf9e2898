"""From names in a config to codec and tokens: prepared splits, text files, and which belong together."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from dialog.corpora.prepare import prepare as prepare_dialogs
from lm.errors import ConfigError, DataError
from lm.language.config import DataConfig
from lm.language.corpora.corpus import load_codec, load_split
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.corpora.sources import ReadOptions
from lm.text.tokenizers import EOS_WORD, UNK
from lm.text.vocabulary import Codec

TRAIN = "the fen is wet\nthe bog is wet too\n\nmoss grows\n"
VALID = "the moss is wet\n"
TEST = "the fen grows\n"


def corpus(folder: Path, train: str = TRAIN, valid: str = VALID) -> Path:
    folder.mkdir(exist_ok=True)
    for split, text in (("train", train), ("valid", valid), ("test", TEST)):
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return folder


def data(folder: Path, suffix: str = "", **options: object) -> DataConfig:
    names = {split: f"{folder}/{split}{suffix}" for split in ("train", "valid", "test")}
    return DataConfig.model_validate({**names, **options})


def test_a_text_file_gives_what_its_prepared_form_gives(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    prepare(str(source), tmp_path / "out")
    learned, stored = load_codec(data(source, ".txt")), load_codec(data(tmp_path / "out"))
    assert learned.fingerprint == stored.fingerprint
    assert learned.vocabulary.counts == stored.vocabulary.counts
    for split, text in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        prepared = load_split(f"{tmp_path}/out/{split}", stored)
        encoded = load_split(f"{source}/{split}.txt", stored)
        assert np.array_equal(prepared.ids(), encoded.ids())
        assert prepared.fingerprint == encoded.fingerprint
        assert len(prepared) == len(text.split()) + text.count("\n")
        assert stored.decode(prepared.ids().tolist()) == text


def test_words_that_have_become_unk_are_counted_apart_from_unk_in_the_text(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", train=f"{TRAIN}moss {UNK}\n", valid=f"the {UNK} is dry\n")
    prepare(str(source), tmp_path / "out", PrepareOptions(vocab_size=6))
    codec = load_codec(data(tmp_path / "out"))
    assert set(codec.vocabulary.tokens) == {EOS_WORD, UNK, "the", "is", "wet", "moss"}
    for split, outside in (("train", 4), ("valid", 1), ("test", 2)):
        names = (f"{tmp_path}/out/{split}", f"{source}/{split}.txt")
        assert [load_split(name, codec).outside for name in names] == [outside, outside]
    (tmp_path / "out/report.json").unlink()
    assert load_split(f"{tmp_path}/out/valid", codec).outside == 2, "any may have been another word"


@pytest.mark.parametrize("kind", ["whitespace", "wordpunct", "char", "unigram", "bpe"])
def test_a_codec_learned_from_text_survives_its_run_folder(kind: str, tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    codec = load_codec(data(source, ".txt", tokenizer=kind, vocab_size=30, lowercase=True))
    codec.save(tmp_path)
    again = Codec.load(tmp_path)
    assert again.fingerprint == codec.fingerprint
    assert again.encode("The FEN is wet") == codec.encode("the fen is wet")
    assert again.encode("")[-1] == again.vocabulary.eos == again.vocabulary.bos
    assert again.decode(again.encode("the fen is wet")) == "the fen is wet\n"
    assert len(codec.vocabulary) <= 30


def test_words_that_train_lacks_need_an_unknown_word(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in", valid="the newt\n")
    codec = load_codec(data(source, ".txt"))
    assert codec.vocabulary.unk == codec.vocabulary.tokens.index(UNK)
    ids = load_split(f"{source}/valid.txt", codec).ids().tolist()
    assert codec.vocabulary.words(ids) == ["the", UNK, EOS_WORD]
    corpus(source)
    codec = load_codec(data(source, ".txt"))
    assert codec.vocabulary.unk is None
    (tmp_path / "other.txt").write_text("the fen\n\nthe newt\n")
    with pytest.raises(
        DataError, match=r"other.txt:3: the vocabulary has neither the word 'newt' nor <unk>;"
    ):
        load_split(str(tmp_path / "other.txt"), codec)
    with pytest.raises(DataError, match=r"^the vocabulary has neither"):
        codec.encode("a newt")


def test_a_text_cut_to_a_size_has_it(tmp_path: Path) -> None:
    codec = load_codec(data(corpus(tmp_path / "in"), ".txt", vocab_size=5))
    assert codec.vocabulary.tokens == (UNK, EOS_WORD, "the", "is", "wet")  # 5 of train are cut, 4 lines end
    assert sum(codec.vocabulary.counts) == len(TRAIN.split()) + 4
    with pytest.raises(ConfigError, match="a vocabulary of 2"):
        load_codec(data(tmp_path / "in", ".txt", vocab_size=2))


def test_splits_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    prepare(str(corpus(tmp_path / "in")), tmp_path / "one")
    prepare(str(tmp_path / "in"), tmp_path / "two", PrepareOptions(vocab_size=5))
    codec = load_codec(data(tmp_path / "one"))
    other = load_codec(data(tmp_path / "two"))
    with pytest.raises(DataError, match=r"two/test: its vocabulary \(\w{12}…\) is not .* \(\w{12}…\); use"):
        load_split(f"{tmp_path}/two/test", codec)
    assert len(load_split(f"{tmp_path}/two/test", other)) == 4
    prepare(str(tmp_path / "in"), tmp_path / "same")
    assert len(load_split(f"{tmp_path}/same/test", codec)) == 4, "equal vocabularies belong together"


def test_a_folder_is_told_from_its_splits(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    prepare(str(source), tmp_path / "out")
    codec = load_codec(data(tmp_path / "out"))
    with pytest.raises(
        DataError, match=r"holds the splits train, valid, test; name one of them: .*out/train or"
    ):
        load_split(str(tmp_path / "out"), codec)
    with pytest.raises(DataError, match="holds the splits"):
        load_codec(DataConfig(train=str(tmp_path / "out")))
    with pytest.raises(
        DataError, match="in: not a split that `lm prepare` wrote; run `lm prepare` on this folder"
    ):
        load_split(str(source), codec)
    with pytest.raises(DataError, match="absent: no such file or folder"):
        load_split(str(tmp_path / "absent"), codec)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("split.json", b"{"),
        ("split.json", b"[]"),
        ("split.json", b'{"format": 9}'),
        ("split.json", b'{"format": 1, "codec": "x"}'),
        ("split.json", "empty"),
        ("00000.npy", None),
        ("00000.npy", b""),
        ("00000.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (4,), }  \n"),
        ("00000.npy", "float"),
        ("00000.npy", "short"),
        ("00000.npy", "flipped"),
        ("00000.npy", b"\x93NUMPY\x01\x00v\x00" + b"(" * 118),
        ("00000.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<u2', 'fortran_order': False, 'shape': (4 ,\n"),
        ("00000.npy", "longer"),
        ("00000.npy", "pipe"),
        ("split.json", "pipe"),
        ("split.json", "characters"),
        ("split.json", "huge"),
    ],
)
def test_damaged_splits_are_named(name: str, content: bytes | str | None, tmp_path: Path) -> None:
    prepare(str(corpus(tmp_path / "in")), tmp_path / "out")
    codec = load_codec(data(tmp_path / "out"))
    path = tmp_path / "out/test" / name
    if content == "empty":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"shards": []}))
    elif content == "characters":  # by which bits per character are divided
        path.write_text(json.dumps(json.loads(path.read_text()) | {"characters": 7}))
    elif content == "longer":
        path.write_bytes(path.read_bytes() + b"\0\0")
    elif content == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif content == "huge":
        os.truncate(path, 10**9)
    elif isinstance(content, str):
        ids = np.load(path)
        damaged = {"float": ids.astype(float), "short": ids[:-1], "flipped": ids ^ 1}[content]
        np.save(path, damaged)
    elif content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"test.*(run `lm prepare`|prepare the corpus) again|not a split that `lm prepare` wrote",
    ) as caught:
        load_split(f"{tmp_path}/out/test", codec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_no_damaged_shard_gives_other_ids(seed: int, tmp_path: Path) -> None:
    """Every bit of the header, and bits of the ids: all are refused, and in one line."""
    prepare(str(corpus(tmp_path / "in")), tmp_path / "out")
    codec, path = load_codec(data(tmp_path / "out")), tmp_path / "out/test/00000.npy"
    original, refused = path.read_bytes(), 0
    for bit in range(seed, 8 * min(len(original), 200), 3):
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="test") as caught:
            load_split(f"{tmp_path}/out/test", codec)
        assert str(caught.value).isprintable()
        refused += 1
    assert refused > 350


def test_a_damaged_codec_of_a_prepared_folder_is_named(tmp_path: Path) -> None:
    prepare(str(corpus(tmp_path / "in")), tmp_path / "out")
    (tmp_path / "out/vocabulary.json").write_bytes(b"{}")
    with pytest.raises(DataError, match=r"vocabulary.json: .*run `lm prepare` again"):
        load_codec(data(tmp_path / "out"))


def test_changed_counts_of_a_prepared_folder_are_noticed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(str(corpus(tmp_path / "in")), out)
    codec = load_codec(data(out))
    for name, read in (
        ("report.json", lambda: load_split(f"{out}/test", codec)),
        ("vocabulary.json", lambda: load_codec(data(out))),
    ):
        whole = (out / name).read_text()
        (out / name).write_text(re.sub(r"(\d)(\D*)$", lambda m: str(9 - int(m[1])) + m[2], whole, count=1))
        with pytest.raises(DataError, match=f"{name}: damaged or edited, SHA-256 differs from the manifest"):
            read()
        (out / name).write_text(whole)
        read()


def test_a_corpus_without_a_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TRAIN * 9)
    prepare(str(tmp_path / "text.txt"), tmp_path / "out", PrepareOptions(ReadOptions(valid_fraction=0.0)))
    with pytest.raises(DataError, match="out: prepared without a valid split; prepare it again with a valid"):
        load_split(f"{tmp_path}/out/valid", load_codec(data(tmp_path / "out")))


def test_a_corpus_of_conversations_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "talk.txt").write_text(
        "".join(f"A: good morning {i}\nB: hello you {i}\n\n" for i in range(30))
    )
    talk = tmp_path / "talk"
    prepare_dialogs(str(tmp_path / "talk.txt"), talk)
    told = r"talk: a corpus of `dialog prepare`, not a text; train on it with `dialog train own_small --data"
    for split in (talk, talk / "train"):
        with pytest.raises(DataError, match=told):
            load_codec(DataConfig(train=str(split)))
    with pytest.raises(DataError, match=told):
        prepare(str(talk), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "no token"),
        (b"a\nb \xe9\n", r":2:3: not UTF-8"),
        (b"a\nb\0\n", r":2:2: NUL byte"),
        (b"a <eos>\n", r":1: the text has <eos>, the mark of line ends"),
        ("a b".encode("utf-16"), "is UTF-16"),
        (b"a b\rc d\re f\r", r"lines end with CR alone; convert it with `tr '\\r' '\\n'`"),
    ],
)
def test_bad_text_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_codec(DataConfig(train=f"{tmp_path}/t.txt", valid=f"{tmp_path}/none"))
