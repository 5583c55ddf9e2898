"""Exported tokenizers give the ids of our codecs."""

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from lm.errors import ConfigError
from lm.huggingface.tokenizer import fast_tokenizer
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import PLAIN
from lm.text.vocabulary import Codec, Vocabulary, build_codec

TEXTS = (
    "The cat's mat, isn't it?",
    "a  b\tc – naïve Σίσυφος ΟΔΟΣ ",
    " zürich (42) x-y_z ½ … \x1c q é e\u0301",
    "Δ.Σ. ΠΡΟΣ'ΑΥΤΟ ΠΡΟΣ, Σ",
    "",
)
PARTS = [*"abcXYZ ,.'-_\t\x1d 09", "the", "cat", "ß", "É", "日本", "½", "<eos>", "\u0301"]


def texts() -> list[str]:
    rng = random.Random(1)
    return [*TEXTS, *("".join(rng.choices(PARTS, k=rng.randint(1, 12))) for _ in range(150))]


def codec_of_text(kind: str, *, lowercase: bool) -> Codec:
    tokenizer = PLAIN[kind](lowercase)
    counts = Counter(token for text in TEXTS[:2] for token in [*tokenizer.split(text), "<eos>"])
    return Codec(tokenizer, Vocabulary.of_text(counts, outside=1))


@pytest.mark.parametrize(
    ("kind", "lowercase"),
    [
        (kind, lowercase)
        for kind in PLAIN
        for lowercase in (False, True)
        if not (kind == "byte" and lowercase)
    ],
)
def test_lines_have_equal_ids(kind: str, lowercase: bool) -> None:
    codec = codec_of_text(kind, lowercase=lowercase)
    tokenizer = fast_tokenizer(codec)
    for text in texts():
        if "<eos>" in text:
            continue  # ours reads characters or a word, transformers the end of a line
        found = tokenizer(f"{text}\n", add_special_tokens=False)["input_ids"]
        assert found == codec.encode(text), text
    two_lines = tokenizer("a\n\nb")["input_ids"]
    eos = codec.vocabulary.eos
    assert two_lines == [eos, *codec.encode("a"), eos, *codec.encode("b")[:-1]]


@pytest.mark.parametrize("kind", ["wordpunct", "whitespace", "char", "unigram"])
def test_utterances_have_equal_ids(kind: str) -> None:
    codec = build_codec(kind, [*TEXTS[:2] * 3, "more text to learn from: the cat, the mat"], vocab_size=50)
    tokenizer = fast_tokenizer(codec)
    vocabulary = codec.vocabulary
    for text in texts():
        if not any(mark in text for mark in ("<eos>", "<")):
            expected = [vocabulary.bos, *codec.encode(text), vocabulary.eos]
            assert tokenizer(text)["input_ids"] == expected, text


def test_bytes_are_told_apart_and_decoded() -> None:
    codec = codec_of_text("byte", lowercase=False)
    tokenizer = fast_tokenizer(codec)
    text = "naïve – cat's"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase()], ids=str)
def test_pretrained_pieces_without_a_line_end_get_one(normalizer: Any) -> None:
    pieces = {
        piece: index for index, piece in enumerate(["<s>", "</s>", "<unk>", "the", "cat", "is", ",", "mat"])
    }
    inner = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if normalizer:
        inner.normalizer = normalizer
    own = PretrainedTokenizer.of(inner.to_str(), 10, begin=0, end=1)
    codec = Codec(own, Vocabulary(own.names, [1] * 10, begin=0))
    tokenizer = fast_tokenizer(codec)
    lines = ["the cat", "", "is , The dog", " mat  "]
    for line in lines:
        assert tokenizer(f"{line}\n")["input_ids"] == [0, *codec.encode(line)]
    assert (
        tokenizer("\n".join(lines))["input_ids"]
        == [0, *(i for line in lines for i in codec.encode(line))][:-1]
    )


@pytest.mark.parametrize("normalizer", [normalizers.Strip(), normalizers.Replace("\n", " ")], ids=str)
def test_a_tokenizer_that_changes_line_ends_is_refused(normalizer: Any) -> None:
    inner = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3}, unk_token="<unk>"))
    inner.pre_tokenizer, inner.normalizer = pre_tokenizers.Whitespace(), normalizer
    own = PretrainedTokenizer.of(inner.to_str(), 4, begin=0, end=1)
    with pytest.raises(ConfigError, match="it changes line ends"):
        fast_tokenizer(Codec(own, Vocabulary(own.names, [1] * 4, begin=0)))


def test_how_a_batch_was_cut_and_filled_is_forgotten() -> None:
    """``save_pretrained`` stores the last use with truncation or padding."""
    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.enable_truncation(2)
    inner.enable_padding(length=9, pad_id=2, pad_token="<unk>")
    assert PretrainedTokenizer.of(inner.to_str(), 3, begin=0, end=2).split("a b a b") == ["a", "b"] * 2


def test_merges_of_bpe_cannot_be_exported() -> None:
    codec = build_codec("bpe", ["some text to learn from"] * 3, vocab_size=20)
    with pytest.raises(ConfigError, match="unigram"):
        fast_tokenizer(codec)
