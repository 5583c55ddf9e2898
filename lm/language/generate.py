"""Text generation with a language model, token by token."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lm.engine.device import flushed_denormals
from lm.errors import DataError, DivergenceError, require
from lm.heads.sampling import draw_tokens
from lm.heads.states import Layers
from lm.language.model import Outputs
from lm.language.pretrained_trunk import block_note
from lm.language.trained import READ_LENGTH, TrainedLm
from lm.steps import Check, unchecked
from lm.text.tokenizers import EOS_WORD
from lm.text.vocabulary import Codec, unknown_words
from lm.trunks.trunk import TrunkState

_INCOMPLETE = "\ufffd"  # placeholder for the bytes of an incomplete character
_KEPT = 256  # tokens of a line that the next ones are joined to


@dataclass(frozen=True)
class GenerateOptions:
    """Sampling options; ``top_k = 1`` is greedy decoding. ConfigError for impossible values."""

    max_tokens: int = 200
    temperature: float = 1.0
    temperature_on: Literal["mixture", "components"] = "mixture"
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    seed: int = 1
    count: int = 1
    unknown: bool = True  # allow <unk>

    def __post_init__(self) -> None:
        require(self.max_tokens >= 1, f"--max-tokens {self.max_tokens}: must be at least 1")
        require(
            0 < self.temperature < math.inf,
            f"--temperature {self.temperature}: must be above 0; use --top-k 1 for greedy decoding",
        )
        require(
            self.temperature_on in ("mixture", "components"),
            f"--temperature-on {self.temperature_on!r}: must be mixture or components",
        )
        require(self.top_k >= 0, f"--top-k {self.top_k}: must be at least 0")
        require(0 < self.top_p <= 1, f"--top-p {self.top_p}: must be above 0 and at most 1")
        require(self.seed >= 0, f"--seed {self.seed}: must be at least 0")
        require(self.count >= 1, f"--count {self.count}: must be at least 1")


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated token, the ``text`` that it appends, and its ``log_prob`` (nats) under the model.

    ``log_prob`` is taken before mixture temperature, top-k, top-p and forbidden tokens apply.
    """

    sample: int
    token: str
    log_prob: float
    text: str


def generate(trained: TrainedLm, prompt: str, options: GenerateOptions) -> Iterator[Generated]:
    """Continue a prompt ``options.count`` times, one text after the other.

    The prompt follows ``<eos>``, and each of its line ends becomes ``<eos>``. The yielded text continues
    :func:`as_read` of the prompt. A text depends only on the seed and its own number, and a longer text
    starts with the shorter one.

    Raises:
        DataError: a word of the prompt that a vocabulary without ``<unk>`` lacks.
        DivergenceError: probabilities that are not numbers.
    """
    codec, start = trained.codec, read_prompt(trained, prompt_ids(trained.codec, prompt, "--prompt"))
    for sample in range(options.count):
        writer = TextWriter(codec, prompt)
        for tokens, log_probs in next_tokens(trained, [start], [generator_of(options.seed, sample)], options):
            index = int(tokens)
            token, log_prob = codec.vocabulary.tokens[index], float(log_probs[0, index])
            yield Generated(sample, token, log_prob, writer.add(index))


def prompt_ids(codec: Codec, prompt: str, place: str) -> list[int]:
    """Ids of ``<eos>`` and a prompt, whose last line goes on.

    Raises DataError, with ``place``, for a word that a vocabulary without ``<unk>`` lacks, and for ``<eos>``.
    """
    vocabulary, said = codec.vocabulary, [codec.vocabulary.bos]
    for line in prompt.split("\n"):
        *ids, end = codec.encode(line, place)
        if vocabulary.eos in ids:
            raise DataError(f"{place}: {EOS_WORD} is the end of a line; end the line instead")
        said += [*ids, end]
    return said[:-1]


def prompt_notes(trained: TrainedLm, prompt: str, options: GenerateOptions) -> list[str]:
    """Notes for the user on unknown words of a prompt, and on a text longer than the model reads at once."""
    length = len(prompt_ids(trained.codec, prompt, "--prompt")) + options.max_tokens
    unknown = unknown_words(trained.codec, prompt)
    return [*([unknown] if unknown else []), *block_note(trained.config, length)]


def read_prompt(trained: TrainedLm, ids: Sequence[int], check: Check = unchecked) -> Outputs:
    """The model's outputs at the end of a prompt.

    ``check`` is called before every piece of the prompt, and may raise to end the work.
    """
    state = trained.model.initial_state(1)
    with torch.no_grad():
        for piece in torch.tensor(ids, device=trained.device).split(READ_LENGTH):
            check()
            read: Outputs = trained.model(piece[:, None], state)
            state = read.state
    return read


def generator_of(seed: int, sample: int) -> np.random.Generator:
    """The generator of a text: it depends only on the seed and the text's number."""
    return np.random.default_rng((seed, sample))


def next_tokens(
    trained: TrainedLm,
    starts: Sequence[Outputs],
    generators: Sequence[np.random.Generator],
    options: GenerateOptions,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Continue R prompts together: yield the next tokens (R,) and log P of every word (R, V), step by step.

    ``starts`` are results of :func:`read_prompt`. The seed and the count of ``options`` have no effect.
    """
    vocabulary, model = trained.codec.vocabulary, trained.model
    unknown = [] if options.unknown or vocabulary.unk is None else [vocabulary.unk]
    forbidden = torch.tensor(unknown, dtype=torch.long, device=trained.device)
    temperature = options.temperature if options.temperature_on == "components" else 1.0
    hidden, state = _joined(starts)
    tokens: Tensor | None = None
    for _ in range(options.max_tokens):
        with torch.no_grad(), flushed_denormals():
            if tokens is not None:
                outputs = model(tokens[None], state)
                hidden, state = outputs.hidden.map(itemgetter(-1)), outputs.state
            log_probs = drawn = model.head.log_probs(hidden)
            if temperature != 1:
                drawn = model.head.log_probs(hidden, temperature)
            tokens = _draw(drawn, forbidden, [one.random() for one in generators], options)
        yield tokens, log_probs


def _joined(starts: Sequence[Outputs]) -> tuple[Layers, TrunkState]:
    """Hidden states (R, H) and state of R prompts."""
    last = [start.hidden.map(itemgetter(-1)) for start in starts]
    layers = zip(*((one.last, *one.lower) for one in last), strict=True)
    joined, *lower = (torch.cat(parts) for parts in layers)
    first, *others = (start.state for start in starts)
    return Layers(joined, tuple(lower)), first.joined(others)


def as_read(codec: Codec, prompt: str) -> str:
    """A prompt after encoding and decoding, with the blanks and capitals of the model's tokens."""
    tokenizer = codec.tokenizer
    return "\n".join(tokenizer.join(tokenizer.split(line)) for line in prompt.split("\n"))


def _draw(
    log_probs: Tensor, forbidden: Tensor, uniforms: Sequence[float], options: GenerateOptions
) -> Tensor:
    if not bool(torch.isfinite(log_probs.max(1).values).all()):
        raise DivergenceError(
            "the model's probabilities are NaN; choose another checkpoint or a higher temperature"
        )
    allowed = log_probs.index_fill(1, forbidden, -math.inf)
    at = torch.tensor(uniforms, dtype=torch.float64, device=log_probs.device)
    return draw_tokens(allowed, at, options)


class TextWriter:
    """Incremental decoder of tokens to text, after a prompt; ``<eos>`` ends a line.

    The bytes of a character wait for its last one, or for the end of the line.
    """

    def __init__(self, codec: Codec, prompt: str) -> None:
        self._codec = codec
        self._line = codec.tokenizer.split(prompt.rpartition("\n")[2])
        self._shown = codec.tokenizer.join(self._line)

    def add(self, index: int) -> str:
        """The text that a token appends."""
        vocabulary = self._codec.vocabulary
        if index == vocabulary.eos:
            waiting = self._codec.tokenizer.join(self._line)[len(self._shown) :]
            self._line, self._shown = [], ""
            return f"{waiting}\n"
        self._line.append(vocabulary.tokens[index])
        text = self._text_of(self._line)
        added = text[len(self._shown) :]
        if len(self._line) > 2 * _KEPT and text.endswith(end := self._text_of(self._line[-_KEPT:])):
            del self._line[:-_KEPT]  # or the time of a long line would grow with its square
            self._shown = end
        elif added:
            self._shown = text
        return added

    def _text_of(self, tokens: list[str]) -> str:
        return self._codec.tokenizer.join(tokens).rstrip(_INCOMPLETE)
