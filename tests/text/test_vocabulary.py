import json
import os
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.errors import ConfigError, DataError, StorageError
from lm.measures import more_unknown
from lm.text.tokenizers import (
    BOS,
    DIALOG,
    EOS,
    EOS_WORD,
    PAD,
    PLAIN,
    SPECIALS,
    UNK,
    Char,
    Tokenizer,
    WordPunct,
    train_sentencepiece,
)
from lm.text.vocabulary import Codec, Vocabulary, build_codec, require_known, tokens_of

TEXTS = [
    "well i don't know, uh-huh",
    "the garden needs water and the tomatoes need sun",
    "my neighbour grows tomatoes too",
    "do you water the garden every day",
    "not every day but when it's dry i do",
]
KINDS = ("wordpunct", "whitespace", "char", "unigram", "bpe")


def codec_of(kind: str, texts: list[str] = TEXTS, vocab_size: int = 60) -> Codec:
    return build_codec(kind, texts, vocab_size=vocab_size, extra_counts={BOS: 6, EOS: 6, DIALOG: 1})


# Since it switched to another regular-expression engine, NLTK takes combining marks and some digits and
# controls for something else than Python's `re` does, with which it tokenized before.
AGREED = st.characters(
    categories=["Lu", "Ll", "Lt", "Lo", "Nd", "Po", "Ps", "Pd", "Sm", "Sc", "Zs", "Zl", "Zp"]
)


@given(st.text(AGREED | st.sampled_from("' -_\n\t"), max_size=60))
@settings(max_examples=200, deadline=None)
def test_wordpunct_is_nltks(text: str) -> None:
    from nltk.tokenize import WordPunctTokenizer

    assert WordPunct(lowercase=False).split(text) == WordPunctTokenizer().tokenize(text)


@pytest.mark.parametrize(
    "text",
    [
        "don't you think it's o'clock",
        "uh-huh",
        "the boys' house",
        "twenty-five and/or at&t",
        'well, "yes" i said: no!',
        "it costs $3.50 (or 2,000)",
        "we're they'll i'd i'm you've",
    ],
)
def test_join_restores_ordinary_text(text: str) -> None:
    tokenizer = WordPunct()
    joined = tokenizer.join(tokenizer.split(text))
    assert joined.replace(" ", "") == text.replace(" ", "")
    if '"' not in text:
        assert joined == text


@given(st.text(alphabet=string.ascii_lowercase + " '-&/.,!?$()\"3é", max_size=60))
@settings(max_examples=300, deadline=None)
def test_joined_tokens_split_into_the_same_tokens(text: str) -> None:
    tokenizer = WordPunct()
    tokens = tokenizer.split(text)
    assert tokenizer.split(tokenizer.join(tokens)) == tokens


def test_special_tokens_stay_whole_words_in_display() -> None:
    assert WordPunct().join(["i", UNK, "'", "s", UNK]) == "i <unk> 's <unk>"


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_white_space_and_character_tokenizers_keep_everything_but_blanks(text: str) -> None:
    for tokenizer in (PLAIN["whitespace"](False), PLAIN["char"](False)):
        normal = " ".join(text.split()).replace("▁", " ")
        assert tokenizer.join(tokenizer.split(text)).replace("▁", " ") == normal
    assert Char().split("a  b") == ["a", "▁", "b"]


def test_vocabulary_holds_the_most_frequent_tokens_and_breaks_ties_by_first_appearance() -> None:
    counts = Counter(["b", "a", "b", "c", "a", "d"])
    vocabulary = Vocabulary.build({BOS: 3, EOS: 3, **counts}, size=4)
    assert vocabulary.tokens == (PAD, UNK, BOS, EOS, "b", "a")
    assert vocabulary.counts == (0, 2, 3, 3, 2, 2)
    assert vocabulary.ids(["a", "c", EOS]) == [5, vocabulary.unk, vocabulary.eos]
    assert vocabulary.words([5, 1]) == ["a", UNK]
    assert "c" not in vocabulary
    assert len(vocabulary) == 6


def test_an_unknown_word_that_training_lacks_is_expected_as_often_as_words_occur_once() -> None:
    whole = Vocabulary.build({"a": 5, "b": 1, "c": 2, "d": 1}, 9)
    words = Codec(WordPunct(), whole)
    known = dict(zip(whole.tokens, words.expected_counts(), strict=True))
    assert known == {PAD: 0, UNK: 2, "a": 5, "c": 2, "b": 1, "d": 1, BOS: 0, EOS: 0}
    rare = Vocabulary.of_text({"a": 5, "b": 1, UNK: 1, "c": 1, EOS_WORD: 3})
    assert Codec(WordPunct(), rare).expected_counts()[rare.ids([UNK])[0]] == 3
    pieces = Codec(train_sentencepiece("bpe", ["one or two words and some more"], 40, True), whole)
    frequent = Vocabulary.of_text({"a": 5, "b": 1, UNK: 2, EOS_WORD: 3})
    closed = Vocabulary.of_text({"a": 5, "b": 1, EOS_WORD: 3})
    for codec in (Codec(WordPunct(), frequent), Codec(WordPunct(), closed), pieces):
        assert codec.expected_counts() == list(codec.vocabulary.counts)


def test_required_tokens_displace_the_least_frequent() -> None:
    vocabulary = Vocabulary.build({"x": 9, "y": 8, "z": 7}, size=4, required=(BOS, EOS, DIALOG))
    assert set(vocabulary.tokens) == {PAD, UNK, BOS, EOS, DIALOG, "x"}
    with pytest.raises(ConfigError, match="a vocabulary of 2"):
        Vocabulary.build({"x": 1}, size=2, required=(BOS, EOS, DIALOG))


WORD = st.text(min_size=1, max_size=3).filter(lambda word: word not in SPECIALS)


@given(st.dictionaries(WORD, st.integers(1, 5), max_size=20), st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_no_token_left_out_is_more_frequent_than_one_kept(counts: dict[str, int], size: int) -> None:
    vocabulary = Vocabulary.build({BOS: 9, EOS: 9, **counts}, size)
    kept = [count for word, count in counts.items() if word in vocabulary]
    left = [count for word, count in counts.items() if word not in vocabulary]
    assert len(vocabulary) == 2 + min(size, 2 + len(counts))
    assert max(left, default=0) <= min(kept, default=9)
    assert vocabulary.counts[vocabulary.unk] == sum(left)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_codec_loads_equal(kind: str, tmp_path: Path) -> None:
    codec = codec_of(kind)
    codec.save(tmp_path)
    loaded = Codec.load(tmp_path)
    assert loaded.fingerprint == codec.fingerprint
    assert loaded.vocabulary.tokens == codec.vocabulary.tokens
    assert loaded.vocabulary.counts == codec.vocabulary.counts
    for text in (*TEXTS, "zebra crossing", ""):
        assert loaded.encode(text) == codec.encode(text)
    assert codec.decode(codec.encode(TEXTS[3])).split()[-1:] in ([["day"], ["<unk>"]])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_is_deterministic_and_lossless_on_its_texts(kind: str) -> None:
    codec = codec_of(kind)
    assert codec.fingerprint == codec_of(kind).fingerprint
    assert len(codec.vocabulary) <= 62
    for text in TEXTS:
        ids = codec.encode(text)
        assert codec.vocabulary.unk not in ids
        assert codec.decode(ids) == text
    assert codec.decode(codec.encode(TEXTS[0].upper())) == TEXTS[0]


def test_fingerprints_differ_where_ids_do() -> None:
    fingerprints = {codec_of(kind).fingerprint for kind in KINDS}
    fingerprints |= {
        codec_of("wordpunct", TEXTS[:3]).fingerprint,
        codec_of("wordpunct", vocab_size=20).fingerprint,
    }
    fingerprints.add(build_codec("wordpunct", TEXTS, vocab_size=60, lowercase=False).fingerprint)
    assert len(fingerprints) == len(KINDS) + 3


@pytest.mark.parametrize(
    "tokens",
    [
        ["<unk>"],
        ["well", "<unk>"],
        ["<unk>", "'", "s", "<unk>", "<unk>", ",", "the", "<unk>"],
        ["sun", "-", "<unk>"],
    ],
)
def test_an_unknown_word_that_was_decoded_is_one_unknown_word(tokens: list[str]) -> None:
    codec = codec_of("wordpunct")
    ids = codec.vocabulary.ids(tokens)
    assert codec.encode(codec.decode(ids)) == ids


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_word_is_one_token_of_every_tokenizer(kind: str) -> None:
    codec = codec_of(kind)
    ids = [*codec.encode("the garden"), codec.vocabulary.unk, *codec.encode("water")]
    assert codec.encode(codec.decode(ids)) == ids


@pytest.mark.parametrize("kind", ["wordpunct", "whitespace"])
def test_unknown_words_of_a_corpus_are_counted_once_and_take_no_place(kind: Any) -> None:
    codec = build_codec(kind, ["what is <unk> ?", "<unk> is <unk>"], vocab_size=20)
    assert not {"<", "unk", ">"}.intersection(codec.vocabulary.tokens)
    assert codec.vocabulary.counts[codec.vocabulary.ids([UNK])[0]] == 3
    assert tokens_of(codec.tokenizer, "<unk> is what") == [UNK, "is", "what"]


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_becomes_a_special_token(kind: str) -> None:
    codec = codec_of(kind, [*TEXTS, "<s> </s> <pad> <unk> <d>"] * 3, vocab_size=80)
    markers = set(codec.vocabulary.ids([PAD, BOS, EOS, DIALOG]))
    assert not markers & set(codec.encode("<s> </s> <pad> <d> <unk> well"))
    assert codec.encode(DIALOG) == codec.vocabulary.ids([DIALOG])
    counts = dict(zip(codec.vocabulary.tokens, codec.vocabulary.counts, strict=True))
    assert (counts[BOS], counts[DIALOG]) == (6, 1)


def test_decode_leaves_out_frames() -> None:
    codec = codec_of("wordpunct")
    v = codec.vocabulary
    assert codec.decode([v.bos, *codec.encode("it's dry"), v.eos, v.pad, v.pad]) == "it's dry"


def test_protocol_arithmetic() -> None:
    """vocab_size counts <s>, </s> and <d> but not <pad> and <unk>: 10,000 → 10,002 (Zhao et al. 2017)."""
    texts = [f"word{n}" for n in range(30)]
    assert len(codec_of("whitespace", texts, vocab_size=20).vocabulary) == 22
    assert len(codec_of("whitespace", texts, vocab_size=1000).vocabulary) == 35


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_texts_without_a_token_are_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no token"):
        build_codec(kind, texts, vocab_size=50)


def test_unknown_kind_and_small_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="'words'"):
        build_codec("words", TEXTS, vocab_size=50)
    with pytest.raises(ConfigError, match="vocab_size"):
        codec_of("wordpunct", vocab_size=2)
    with pytest.raises(
        ConfigError, match=r"too small a vocabulary for any bpe piece; raise data\.vocab_size"
    ):
        codec_of("bpe", vocab_size=3)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_smaller_than_the_characters_names_what_is_missing(kind: str) -> None:
    with pytest.raises(ConfigError, match="for the characters of the training text") as refused:
        codec_of(kind, vocab_size=8)
    missing = int(str(refused.value).rsplit(" ", 1)[1])
    codec_of(kind, vocab_size=8 + missing)
    with pytest.raises(ConfigError, match=r"by at least 1$"):
        codec_of(kind, vocab_size=7 + missing)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer.json", b'{"kind": "magic", "lowercase": true}'),
        ("tokenizer.json", b'{"kind": [], "lowercase": true}'),
        ("tokenizer.model", None),
        ("tokenizer.model", b"other bytes"),
        ("vocabulary.json", None),
        ("vocabulary.json", b"\xff\xfe"),
        ("vocabulary.json", b"{}"),
        ("vocabulary.json", b"[]"),
        ("vocabulary.json", b'[["<pad>", 0], ["<unk>", 0]]'),
        ("vocabulary.json", b'[["<pad>", 0], ["<unk>", 0], ["<s>", 1], ["</s>", 1], ["a", 1], ["a", 1]]'),
        ("vocabulary.json", b'[["<pad>", 0], ["<unk>", 0], ["<s>", 1], ["</s>", 1], [3, 1]]'),
        ("vocabulary.json", b'[["<pad>", 0], ["<unk>", 0], ["<s>", 1], ["</s>", 1], ["\\ud800", 1]]'),
        ("vocabulary.json", b'[["<pad>", 0], ["<unk>", 0], ["<s>", 1], ["</s>"]]'),
    ],
)
def test_damaged_codecs_are_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    codec_of("bpe").save(tmp_path)
    path = tmp_path / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        Codec.load(tmp_path)
    reason = "no such file or directory" if content is None else "damaged or foreign"
    remedy = (
        "restore it from a copy (a language model's is in its prepared text), or train into another --run"
    )
    assert str(caught.value) == f"{tmp_path / name}: {reason}; {remedy}"


def test_stored_vocabulary_is_a_list_of_tokens_and_counts(tmp_path: Path) -> None:
    codec_of("wordpunct").save(tmp_path)
    pairs = json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    assert pairs[0] == [PAD, 0]
    assert dict(map(tuple, pairs))["garden"] == 2


def test_every_tokenizer_tells_its_kind() -> None:
    tokenizers: list[Tokenizer] = [codec_of(kind).tokenizer for kind in KINDS]
    assert [tokenizer.kind for tokenizer in tokenizers] == list(KINDS)


def lm_vocabulary(*words: str, size: int = 0, outside: int | None = None) -> Vocabulary:
    return Vocabulary.of_text(Counter(words), size, outside)


@given(st.lists(st.sampled_from([*"abcdefgh", UNK, EOS_WORD]), min_size=1), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_the_vocabulary_of_a_text_is_ordered_and_keeps_every_count(words: list[str], size: int) -> None:
    if size and size < 3:
        size = 3
    vocabulary = lm_vocabulary(*words, size=size)
    counts = Counter(words)
    assert sum(vocabulary.counts) == len(words), "what is left out counts as <unk>"
    assert list(vocabulary.counts) == sorted(vocabulary.counts, reverse=True)
    assert vocabulary.tokens[vocabulary.eos] == EOS_WORD
    cut = bool(set(counts) - set(vocabulary.tokens))
    assert (UNK in vocabulary) == (vocabulary.unk is not None) == (UNK in counts or cut)
    assert not size or len(vocabulary) <= size
    left = [n for word, n in counts.items() if word not in vocabulary]
    kept = [counts[word] for word in vocabulary.tokens if word not in (UNK, EOS_WORD)]
    assert max(left, default=0) <= min(kept, default=len(words))
    if not size:
        assert vocabulary.tokens == tuple(
            sorted({**counts, EOS_WORD: counts[EOS_WORD]}, key=lambda word: -counts[word])
        )


def test_a_text_without_unknown_words_refuses_them() -> None:
    codec = Codec(PLAIN["whitespace"](False), lm_vocabulary("fen", "bog", EOS_WORD))
    assert codec.encode("bog  fen") == [*codec.vocabulary.ids(["bog", "fen"]), codec.vocabulary.eos]
    with pytest.raises(DataError, match=r"^f\.txt:3: the vocabulary has neither the word '\\x1bmoss' nor"):
        codec.encode("bog \x1bmoss", "f.txt:3")
    with pytest.raises(KeyError):
        codec.vocabulary.ids(["moss"])
    known = Codec(PLAIN["whitespace"](False), lm_vocabulary("fen", EOS_WORD, outside=0))
    assert known.decode(known.encode("fen moss")) == "fen <unk>\n"


def test_what_decodes_to_lines_encodes_to_the_same_ids() -> None:
    codec = Codec(PLAIN["whitespace"](False), lm_vocabulary("fen", "bog", EOS_WORD, EOS_WORD))
    ids = codec.vocabulary.ids(["fen", "bog", EOS_WORD, EOS_WORD, "fen", EOS_WORD])
    lines = codec.decode(ids).removesuffix("\n").split("\n")
    assert [index for line in lines for index in codec.encode(line)] == ids


@given(st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_bytes_are_tokens_one_for_one(data: bytes) -> None:
    tokenizer = PLAIN["byte"](False)
    tokens = tokenizer.split(data.decode("utf-8", "surrogateescape"))
    assert bytes(map(ord, tokens)) == data
    assert tokenizer.join(tokens) == data.decode("utf-8", "replace")
    assert tokenizer.join([*tokens, UNK]).endswith(UNK)


def test_codecs_of_dialogs_stay_what_they_were() -> None:
    """Runs know their codec by this number: it may not change."""
    known = {
        "wordpunct": "a3666ac2fe93dc9f849891b508f13968cc002ea77fc99e709fd8c3eefcb3f868",
        "char": "d0f244a4ab74eaaaad0d785432bab862bafbd266450fde8e950c266ee1e6ae53",
    }
    assert {kind: codec_of(kind).fingerprint for kind in known} == known


@pytest.mark.parametrize("name", ["vocabulary.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "huge", "device"])
def test_a_codec_is_read_from_files_of_believable_size(tmp_path: Path, name: str, kind: str) -> None:
    build_codec("wordpunct", ["a b"], vocab_size=5).save(tmp_path)
    path = tmp_path / name
    if kind == "huge":
        os.truncate(path, 10**9)
    else:
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match=name):
        Codec.load(tmp_path)


def test_a_text_of_which_over_half_is_unknown_is_refused() -> None:
    require_known(0.5, "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: 51% of its tokens are unknown to the run"):
        require_known(0.51, "a.txt")


@pytest.mark.parametrize(("share", "own"), [(0.034, None), (0.036, 0.01)])
def test_unknown_words_are_many_above_one_and_a_half_times_the_own_share(
    share: float, own: float | None
) -> None:
    assert more_unknown(share, lambda: 0.01) == own
