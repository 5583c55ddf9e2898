"""Text generation with a language model, token by token."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lm.errors import DivergenceError, require
from lm.heads.sampling import INFINITY, draw_tokens
from lm.language.trained import READ_LENGTH, TrainedLm
from lm.text.vocabulary import Codec

_INCOMPLETE = "\ufffd"  # placeholder for the bytes of an incomplete character


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
            0 < self.temperature < INFINITY,
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
    codec, model = trained.codec, trained.model
    vocabulary = codec.vocabulary
    said = [vocabulary.eos]
    for line in prompt.split("\n"):
        said += codec.encode(line, "--prompt")
    said.pop()  # the last line continues
    unknown = [] if options.unknown or vocabulary.unk is None else [vocabulary.unk]
    forbidden = torch.tensor(unknown, dtype=torch.long, device=trained.device)
    temperature = options.temperature if options.temperature_on == "components" else 1.0
    state = model.initial_state(1)
    with torch.no_grad():
        for piece in torch.tensor(said, device=trained.device).split(READ_LENGTH):
            read = model(piece[:, None], state)
            state = read.state
    for sample in range(options.count):
        generator = np.random.default_rng((options.seed, sample))
        outputs, token = read, None
        writer = _Writer(codec, codec.tokenizer.split(prompt.rpartition("\n")[2]))
        for _ in range(options.max_tokens):
            with torch.no_grad():
                if token is not None:
                    outputs = model(token[None], outputs.state)
                log_probs = model.head.log_probs(outputs.hidden.map(itemgetter(-1)), temperature)  # (1, V)
                token = _draw(log_probs, forbidden, generator.random(), options)
            index = int(token)
            yield Generated(sample, vocabulary.tokens[index], float(log_probs[0, index]), writer.add(index))


def as_read(codec: Codec, prompt: str) -> str:
    """A prompt after encoding and decoding, with the blanks and capitals of the model's tokens."""
    tokenizer = codec.tokenizer
    return "\n".join(tokenizer.join(tokenizer.split(line)) for line in prompt.split("\n"))


def _draw(log_probs: Tensor, forbidden: Tensor, uniform: float, options: GenerateOptions) -> Tensor:
    if not bool(torch.isfinite(log_probs.max())):
        raise DivergenceError("the model's probabilities are NaN; choose another checkpoint")
    allowed = log_probs.index_fill(1, forbidden, -INFINITY)
    at = torch.tensor([uniform], dtype=torch.float64, device=log_probs.device)
    return draw_tokens(allowed, at, options)


class _Writer:
    """Incremental decoder of tokens to text, after the first tokens of a line; ``<eos>`` ends a line."""

    def __init__(self, codec: Codec, begun: list[str]) -> None:
        self._codec = codec
        self._line = begun
        self._shown = codec.tokenizer.join(begun)

    def add(self, index: int) -> str:
        """The text that a token appends."""
        vocabulary = self._codec.vocabulary
        if index == vocabulary.eos:
            self._line, self._shown = [], ""
            return "\n"
        self._line.append(vocabulary.tokens[index])
        text = self._codec.tokenizer.join(self._line).rstrip(_INCOMPLETE)
        added = text[len(self._shown) :]
        self._shown = text
        return added
