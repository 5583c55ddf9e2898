"""Bits per character: of the characters that tokens spell, and not of what became unknown."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm.errors import DivergenceError
from lm.language.evaluate import Text, likelihood, load_text
from lm.results import as_json
from lm.text.tokenizers import EOS_WORD, PLAIN
from lm.text.vocabulary import Codec, Vocabulary, line_tokens
from tests.support.tiny_lm import tiny_codec, tiny_lm


def test_bits_per_character_are_of_characters_whatever_the_tokens_are() -> None:
    nll = np.full(30, 1.5)
    words = likelihood(nll, tiny_lm(), Text("t", "t", np.zeros(30, int), "x", 120))
    characters = likelihood(nll, tiny_lm(codec=tiny_codec("char")), Text("t", "t", np.zeros(30, int), "x", 7))
    assert words.bits_per_character == pytest.approx(30 * 1.5 / math.log(2) / 120)
    assert characters.bits_per_character == pytest.approx(1.5 / math.log(2))
    unknown = likelihood(nll, tiny_lm(), Text("t", "t", np.zeros(30, int), "x", None))
    assert "bits_per_character" not in as_json(unknown)
    for bad in (math.nan, math.inf, 1e6):
        with pytest.raises(DivergenceError):
            likelihood(np.full(3, bad), tiny_lm(), Text("t", "t", np.zeros(3, int), "x", None))


def test_characters_that_became_unknown_are_no_bits_per_character(tmp_path: Path) -> None:
    trained = tiny_lm(codec=tiny_codec("char"))
    known = trained.codec.vocabulary.tokens[2]
    (tmp_path / "known.txt").write_text(f"{known * 30}\n")
    (tmp_path / "other.txt").write_text(f"{known * 30}☃\n")
    cases = (("known", None, 31), ("known", 7, 7), ("other", None, None), ("other", 7, None))
    for name, limit, characters in cases:
        text = load_text(trained, str(tmp_path / f"{name}.txt"), limit)
        assert text.characters == characters
        found = likelihood(np.full(len(text.ids), 1.5), trained, text).bits_per_character
        assert found == (characters and pytest.approx(1.5 / math.log(2)))


@pytest.mark.parametrize("kind", sorted(PLAIN))
@pytest.mark.parametrize("lowercase", [True, False])
def test_characters_are_those_that_the_tokens_spell(tmp_path: Path, kind: Any, lowercase: bool) -> None:
    """A second blank is no token, and a capital none of its own where tokens are in lower case."""
    lines = [" The cat\t  sat .", "", "don't  stop"]
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    tokenizer = PLAIN[kind](lowercase)
    words = [token for line in lines for token in line_tokens(tokenizer, line)]
    codec = Codec(tokenizer, Vocabulary.of_text({EOS_WORD: 3} | Counter(words)))
    spelled = [tokenizer.join(tokenizer.split(line)) for line in lines]
    text = load_text(tiny_lm(codec=codec), str(path))
    assert text.characters == sum(len(line) + 1 for line in spelled)
    assert load_text(tiny_lm(codec=codec), str(path), len(text.ids) - 1).characters == text.characters - 1
