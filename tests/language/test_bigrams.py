"""Hashed bigrams: added vectors by their definition, carried over windows, exchanged and generated with."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm.language.bigrams import BigramState, HashedBigrams
from lm.language.config import LmConfig
from lm.language.generate import GenerateOptions, generator_of, next_tokens, read_prompt
from lm.language.model import LanguageModel
from lm.language.sizes import count_parameters
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import tiny_codec, tiny_config

WORDS, ROWS, EOS = 17, 11, 1


def with_bigrams(config: LmConfig, rows: int = ROWS, *, episodic: bool = False) -> LmConfig:
    model = config.model.model_copy(update={"bigrams": rows, "episodic": episodic})
    return config.model_copy(update={"model": model})


def filled(config: LmConfig) -> LanguageModel:
    torch.manual_seed(4)
    model = LanguageModel(config, WORDS, EOS).double().eval()
    if model.bigrams is not None:
        torch.nn.init.normal_(model.bigrams.weight)
    return model


def mixed(number: int) -> int:
    for _ in range(2):
        number = (number ^ number >> 16) * 0x45D9F3B % 2**32
    return number ^ number >> 16


def row_of(before: int | None, word: int) -> int:
    return mixed(mixed(0 if before is None else before + 1) ^ word) % ROWS


@pytest.mark.parametrize("episodic", [False, True])
def test_a_vector_of_the_word_and_the_one_before_is_added(episodic: bool) -> None:
    """In whatever windows the text is read; a sentence that is independent knows no word before it."""
    model = filled(with_bigrams(tiny_config(), episodic=episodic))
    assert model.bigrams is not None
    tokens = torch.randint(WORDS, (9, 3))
    vectors = torch.empty(9, 3, 6, dtype=torch.float64)
    for stream in range(3):
        for time, word in enumerate(tokens[:, stream].tolist()):
            cut = not time or (episodic and word == EOS)
            before = None if cut else int(tokens[time - 1, stream])
            vectors[time, stream] = model.bigrams.weight[row_of(before, word)]
    keep = tokens != EOS if episodic else None
    state = model.initial_state(3)
    assert isinstance(state, BigramState)
    expected = model.layers(model.embedding(tokens) + vectors, state.trunk, keep)
    outputs = []
    for window in tokens.split((1, 4, 4)):
        read = model(window, state)
        outputs.append(read.raw)
        state = model.state_from(read.state.tensors(), torch.device("cpu"))  # as a checkpoint carries it
    torch.testing.assert_close(torch.cat(outputs), expected.outputs)


@pytest.mark.parametrize("rows", [4096, 4095])
@pytest.mark.parametrize("steps", [(1, 1), (1, 4096), (4096, 1), (4096, 4096), (64, 64)])
def test_bigrams_share_rows_as_by_chance(rows: int, steps: tuple[int, int]) -> None:
    """Also words whose ids differ by the size of the table, of which the lowest bits are equal."""
    table = HashedBigrams(rows, 1)
    with torch.no_grad():
        table.weight.copy_(torch.arange(rows)[:, None])
    before, words = (torch.arange(64) * step for step in steps)
    found = table(words.repeat(64)[None], before.repeat_interleave(64))
    used = len(found.unique())
    by_chance = rows * (1 - (1 - 1 / rows) ** 4096)  # 2,589, with a standard deviation of 20
    assert abs(used - by_chance) < 100


@pytest.mark.parametrize("trunk", ["recurrent", "transformer"])
def test_new_bigrams_change_nothing_and_are_counted(trunk: str) -> None:
    config = tiny_config(trunk=trunk)
    torch.manual_seed(4)
    plain = LanguageModel(config, WORDS).eval()
    model = LanguageModel(with_bigrams(config), WORDS).eval()
    missing = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["bigrams.weight"]
    tokens = torch.randint(WORDS, (5, 2))
    first, second = (one(tokens, one.initial_state(2)).raw for one in (plain, model))
    assert torch.equal(first, second)
    assert count_parameters(with_bigrams(config), WORDS) - count_parameters(config, WORDS) == 6 * ROWS


def test_states_are_those_of_their_streams() -> None:
    model = filled(with_bigrams(tiny_config()))
    tokens = torch.randint(WORDS, (4, 3))
    state = model(tokens, model.initial_state(3)).state

    def after(state: BigramState, streams: Tensor) -> Tensor:
        raw: Tensor = model(torch.full((2, state.streams), 3), state).raw
        assert state.streams == len(streams)
        return raw

    rows = torch.tensor([2, 0, 0])
    whole = after(state, torch.arange(3))
    torch.testing.assert_close(after(state.select(rows), rows), whole[:, rows])
    fresh = state.replaced(slice(1, 2), model.initial_state(1))
    forgotten = state.forgetting(torch.tensor([True, False, True]))
    torch.testing.assert_close(after(fresh, rows), after(forgotten, rows))
    torch.testing.assert_close(after(fresh, rows)[:, [0, 2]], whole[:, [0, 2]])
    assert not torch.allclose(after(fresh, rows)[:, 1], whole[:, 1])
    assert state.detached().last is state.last


def test_prompts_are_continued_together_as_alone(tmp_path: Path) -> None:
    codec = tiny_codec()
    config = with_bigrams(tiny_config(tmp_path))
    torch.manual_seed(4)
    model = LanguageModel(config, len(codec.vocabulary), codec.vocabulary.eos).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    trained = TrainedLm(config, codec, model, torch.device("cpu"))
    starts = [read_prompt(trained, prompt) for prompt in ([3, 4, 5], [6], [2, 2])]
    options = dataclasses.replace(GenerateOptions(), max_tokens=4)

    def continued(numbers: list[int]) -> Tensor:
        generators = [generator_of(1, number) for number in numbers]
        chosen = [starts[number] for number in numbers]
        return torch.stack([tokens for tokens, _ in next_tokens(trained, chosen, generators, options)])

    together = continued([0, 1, 2])
    for number in range(3):
        assert torch.equal(together[:, number], continued([number])[:, 0])
