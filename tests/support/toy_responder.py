"""A model that answers at once, for the tests of chat."""

import hashlib
import time
from collections.abc import Sequence

from dialog.batches import Example
from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from dialog.trained import StepProbabilities
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import Codec, build_codec

WORDS = "yeah well i think so too \x1b[2Jclear \x9b31mred \u202eright [bold]bold[/bold] [/foo] a\rb c\nd"


class ToyResponder:
    """Its words are a function of the context, the seed and the rank; it takes forever if told to wait."""

    def __init__(self) -> None:
        self.config = DialogConfig()
        extra = {"<s>": 9, "</s>": 9, DIALOG: 9}
        self.codec: Codec = build_codec("whitespace", [WORDS], vocab_size=50, extra_counts=extra)
        self.heard: list[Example] = []

    def require(self, decode: DecodeConfig) -> None:
        """All decoding is possible."""

    def respond(self, examples: Sequence[Example], decode: DecodeConfig) -> list[list[Hypothesis]]:
        self.heard += examples
        for example in examples:
            self._wait(example)
        return [[self._hypothesis(e, decode, rank) for rank in range(decode.nbest)] for e in examples]

    def _wait(self, example: Example) -> None:
        if example.context[-1].text == "wait":
            print("thinking", flush=True)
            while True:
                time.sleep(0.005)

    def _hypothesis(self, example: Example, decode: DecodeConfig, rank: int) -> Hypothesis:
        said = repr((example.context, example.responder, decode.seed, rank)).encode(errors="surrogatepass")
        digest = hashlib.sha256(said).digest()
        count = len(self.codec.vocabulary)
        tokens = tuple(2 + byte % (count - 2) for byte in digest[: digest[-1] % 6])
        return Hypothesis(tokens, -1.5 - rank, -1.5 - rank, finished=digest[0] % 2 == 0)

    def token_probabilities(
        self, example: Example, tokens: Sequence[int], top: int
    ) -> list[StepProbabilities]:
        words = [*self.codec.vocabulary.words(tokens), "</s>"]
        best = tuple((word, 0.5, (0.2, 0.3)) for word in self.codec.vocabulary.tokens[:top])
        return [StepProbabilities(word, 0.25, best, (0.4, 0.6), (0.1, 0.15)) for word in words]
