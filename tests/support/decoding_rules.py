"""Rules on responses in plain words, and settings that have them."""

from collections.abc import Sequence

from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, Texts
from tests.support.toy_decoder import BOS, EOS, Recurrent, decode

VOCAB = 6
CONTEXTS = [[[2, 3, 4], [5, 2]], [[3, 3], []]]


def has(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(
        tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in range(len(tokens) - len(phrase) + 1)
    )


def obeys(tokens: Sequence[int], source: int, config: DecodeConfig, texts: Texts) -> bool:
    """The rules in plain words; n-grams that begin within the forced beginning and end there are free."""
    begin, size = tuple(texts.begin), config.block_context_ngram
    if tuple(tokens[: len(begin)]) != begin or not all(has(tokens, phrase) for phrase in texts.require):
        return False
    ends = range(len(begin), len(tokens))  # places whose tokens were free to choose
    for end in ends:
        if any(tuple(tokens[: end + 1])[-len(p) :] == tuple(p) for p in texts.forbid if len(p) <= end + 1):
            return False
        gram = tuple(tokens[end + 1 - size : end + 1]) if 0 < size <= end + 1 else None
        if gram and any(has(said, gram) for said in texts.contexts[source]):
            return False
    return True


def search(model: Recurrent, config: DecodeConfig, texts: Texts, sources: Sequence[int] = (0, 1)) -> list:
    marks = Marks(BOS, EOS, (BOS,))
    own = texts._replace(contexts=[texts.contexts[source] for source in sources]) if texts.contexts else texts
    return beam_search(model.step, model.state(sources), len(sources), config, marks, own)


CASES = [
    (decode(block_context_ngram=1), Texts(contexts=CONTEXTS)),
    (decode(block_context_ngram=2), Texts(contexts=CONTEXTS)),
    (decode(block_context_ngram=3), Texts(contexts=CONTEXTS)),
    (decode(), Texts(forbid=[[2], [3, 4], [4, 4, 4]])),
    (decode(), Texts(begin=[3, 4])),
    (decode(), Texts(require=[[4]])),
    (decode(), Texts(require=[[2, 3], [3, 5]])),  # which overlap
    (decode(), Texts(require=[[2, 2, 3]])),
    (decode(block_context_ngram=2), Texts([2, 3], [[3, 5]], [[5, 5], [2, 2]], CONTEXTS)),
]
