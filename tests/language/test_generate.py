"""Generation: from the model's distribution, repeatable, and as text."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from lm.errors import ConfigError, DataError, DivergenceError
from lm.language import generate as generate_module
from lm.language.generate import Generated, GenerateOptions, TextWriter, as_read, generate
from lm.language.trained import TrainedLm
from lm.text.tokenizers import Byte, Char
from lm.text.vocabulary import Codec, Vocabulary
from tests.support.signals import signal_at
from tests.support.tiny_lm import tiny_codec, tiny_lm

MIXTURE: dict[str, Any] = {"kind": "mos", "components": 3, "embedding_size": 6}


def words(trained: TrainedLm, prompt: str = "", **options: Any) -> list[Generated]:
    return list(generate(trained, prompt, GenerateOptions(**options)))


def after(trained: TrainedLm, prompt: str, temperature: float = 1.0) -> torch.Tensor:
    """log P of the word that follows a prompt of one line, (V,)."""
    vocabulary = trained.codec.vocabulary
    ids = [vocabulary.eos, *vocabulary.ids(prompt.split())]
    with torch.no_grad():
        outputs = trained.model(torch.tensor(ids)[:, None], trained.model.initial_state(1))
        return trained.model.head.log_probs(outputs.hidden.last[-1, 0], temperature)


@pytest.mark.parametrize("head", [{}, MIXTURE])
def test_the_first_word_is_drawn_from_the_models_own_distribution(head: dict[str, Any]) -> None:
    """Not from log p of log p, nor its exponential: shares over many samples are the probabilities."""
    trained = tiny_lm(**head)
    with torch.no_grad():
        trained.model.head.bias.mul_(3)
    found = Counter(g.token for g in words(trained, "you like", max_tokens=1, count=700))
    probs = after(trained, "you like").exp()
    shares = np.array([found[token] / 700 for token in trained.codec.vocabulary.tokens])
    assert np.abs(shares - probs.numpy()).max() < 0.08
    assert float(probs.max()) > 0.2, "a distribution that is not flat"


def test_log_probs_are_the_models_whatever_is_drawn() -> None:
    trained = tiny_lm(**MIXTURE)
    texts = words(trained, "so", max_tokens=6, temperature=0.5, top_k=4)
    said = ["so"]
    for piece in texts:
        line = " ".join(said)
        if "<eos>" not in said:
            expected = after(trained, line)[trained.codec.vocabulary.ids([piece.token])[0]]
            assert piece.log_prob == pytest.approx(float(expected), abs=1e-10)
        said.append(piece.token)


def test_the_coldest_choice_is_the_most_probable_word() -> None:
    trained = tiny_lm(**MIXTURE)
    best = trained.codec.vocabulary.tokens[int(after(trained, "well").argmax())]
    assert words(trained, "well", max_tokens=1, top_k=1)[0].token == best
    assert words(trained, "well", max_tokens=1, temperature=1e-6)[0].token == best
    cold = after(trained, "well", 1e-3)
    found = words(trained, "well", max_tokens=1, temperature=1e-3, temperature_on="components", count=40)
    assert {g.token for g in found} <= {
        trained.codec.vocabulary.tokens[i] for i in (cold > -9).nonzero().flatten()
    }
    expected = after(trained, "well")[trained.codec.vocabulary.ids([found[0].token])[0]]
    assert found[0].log_prob == pytest.approx(float(expected), abs=1e-6), "that of the model itself"


def test_a_text_depends_on_seed_and_number_and_grows_at_its_end() -> None:
    trained = tiny_lm()
    short, long = words(trained, max_tokens=5, count=2), words(trained, max_tokens=9, count=3)
    first = [g.token for g in long if g.sample == 0]
    second = [g.token for g in long if g.sample == 1]
    assert [g.token for g in short] == first[:5] + second[:5]
    assert first != second
    assert [g.token for g in words(trained, max_tokens=9, seed=2)] != first


def test_a_text_goes_on_where_its_prompt_ends() -> None:
    trained = tiny_lm(**MIXTURE)
    prompt = "you like\nso  you"
    pieces = words(trained, prompt, max_tokens=12)
    vocabulary = trained.codec.vocabulary
    ids = [*trained.codec.encode("you like"), *trained.codec.encode("so you")[:-1]]
    whole = trained.codec.decode([*ids, *vocabulary.ids(g.token for g in pieces)])
    assert as_read(trained.codec, prompt) + "".join(g.text for g in pieces) == whole


def test_texts_stream() -> None:
    trained = tiny_lm()
    endless = generate(trained, "", GenerateOptions(max_tokens=10**9))
    with signal_at(name="_draw") as steps:
        assert len(list(islice(endless, 3))) == 3
    assert steps[0] == 3, "no more is computed than was asked for"


def test_the_prompts_lines_end_in_eos() -> None:
    trained = tiny_lm()
    same = [
        words(trained, prompt, max_tokens=4, seed=s) for s in range(3) for prompt in ("", "so\n", "so\nyou")
    ]
    assert len({tuple(g.log_prob for g in text) for text in same}) == 9
    with torch.no_grad():
        vocabulary = trained.codec.vocabulary
        ids = [vocabulary.eos, *vocabulary.ids(["so", "<eos>", "you"])]
        outputs = trained.model(torch.tensor(ids)[:, None], trained.model.initial_state(1))
        log_probs = trained.model.head.log_probs(outputs.hidden.last[-1, 0])
    (piece,) = words(trained, "so\nyou", max_tokens=1)
    assert piece.log_prob == pytest.approx(float(log_probs[vocabulary.ids([piece.token])[0]]), abs=1e-12)


def test_the_text_is_what_the_codec_shows() -> None:
    trained = tiny_lm()
    pieces = words(trained, max_tokens=60)
    ids = trained.codec.vocabulary.ids(g.token for g in pieces)
    assert "".join(g.text for g in pieces) == trained.codec.decode(ids)
    assert any(g.text == "\n" for g in pieces)


def test_characters_of_several_bytes_come_whole() -> None:
    byte_tokens = list("é€".encode().decode("latin-1"))
    codec = Codec(Byte(), Vocabulary.of_text({"<eos>": 3} | dict.fromkeys([*byte_tokens, "a"], 2)))
    trained = tiny_lm(codec=codec)
    pieces = words(trained, max_tokens=80)
    ids = codec.vocabulary.ids(g.token for g in pieces)
    shown = "".join(g.text for g in pieces)
    whole = codec.decode(ids)
    assert "\ufffd\n" in whole, "a line ends within a character"
    assert shown == whole.rstrip("\ufffd")


def test_unknown_words_can_be_left_out() -> None:
    trained = tiny_lm()
    options = {"max_tokens": 1, "count": 300}
    assert any(g.token == "<unk>" for g in words(trained, **options))
    assert not any(g.token == "<unk>" for g in words(trained, unknown=False, **options))


def test_bad_options_are_refused() -> None:
    good = GenerateOptions()
    for name, values in {
        "max_tokens": (0,), "temperature": (0.0, -1.0, float("nan"), float("inf")), "top_k": (-1,),
        "top_p": (0.0, 1.1), "seed": (-1,), "count": (0,), "temperature_on": ("nothing",),
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} "):
                replace(good, **{name: value})


def test_a_prompt_that_cannot_be_written_and_a_model_without_numbers_are_refused() -> None:
    closed = Codec(tiny_codec().tokenizer, Vocabulary.of_text({"<eos>": 1, "a": 1}))
    for wrong in ("b", "a <eos> a"):
        with pytest.raises(DataError, match="--prompt"):
            words(tiny_lm(codec=closed), wrong)
    trained = tiny_lm()
    with torch.no_grad():
        trained.model.embedding.weight.fill_(float("nan"))
    with pytest.raises(DivergenceError):
        words(trained)

    with pytest.raises(KeyboardInterrupt), signal_at(1, "log_probs"):
        list(generate(tiny_lm(), "", GenerateOptions()))


def codec_of_characters() -> Codec:
    return Codec(Char(), Vocabulary.of_text({"<eos>": 1} | dict.fromkeys(Char().split("ab c"), 1)))


def codec_of_bytes() -> Codec:
    return Codec(Byte(), Vocabulary.of_text({"<eos>": 1} | dict.fromkeys(Byte().split("aé€𝄞"), 1)))


def test_a_half_character_at_the_end_of_a_prompt_is_written_once() -> None:
    codec = Codec(Byte(), Vocabulary.of_text({"<eos>": 1} | dict.fromkeys(Byte().split("aé\ufffd"), 1)))
    writer = TextWriter(codec, "a\ufffd")
    assert "".join(writer.add(index) for index in codec.vocabulary.ids(Byte().split("éa"))) == "éa"


@pytest.mark.parametrize("codec", [codec_of_characters(), codec_of_bytes(), tiny_codec()])
def test_a_long_line_is_written_as_it_reads_at_once_in_linear_time(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_module, "_KEPT", 8)
    kind, joined = type(codec.tokenizer), list[int]()
    join = kind.join

    def counted(self: Any, tokens: Any) -> str:
        joined.append(len(tokens))
        return join(self, tokens)

    monkeypatch.setattr(kind, "join", counted)
    text = "aé€𝄞a€" * 20 if isinstance(codec.tokenizer, Byte) else "ab ca " * 20
    if codec.tokenizer.kind == "whitespace":
        text = " ".join(codec.vocabulary.tokens[3:6] * 30)
    tokens = codec.tokenizer.split(text)
    writer = TextWriter(codec, "")
    written = "".join(writer.add(codec.vocabulary.ids([token])[0]) for token in tokens)
    assert written == join(codec.tokenizer, tokens)
    assert max(joined) < 40
