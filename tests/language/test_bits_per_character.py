"""Bits per character: of characters, whatever the tokens are, and not of what became unknown."""

import math
from pathlib import Path

import numpy as np
import pytest

from lm.errors import DivergenceError
from lm.language.evaluate import Text, likelihood, load_text
from lm.results import as_json
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
