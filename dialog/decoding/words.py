"""Words and phrases of a config in the token ids of a run."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, Texts
from lm.errors import ConfigError, visible
from lm.text.tokenizers import UNK
from lm.text.vocabulary import Codec

_LONGEST = 60  # characters of a phrase in a message


def texts_of(
    config: DecodeConfig, codec: Codec, marks: Marks, contexts: Sequence[Sequence[Sequence[int]]]
) -> Texts:
    """The texts of the rules of a config, for sources with these ``contexts``, utterances in token ids.

    A forbidden phrase with an unknown word cannot occur, and is left out, but ``<unk>`` itself can. Raises
    ConfigError if a required phrase or the beginning has an unknown word or contains a forbidden phrase, or
    if they exceed ``max_length``. A phrase that the beginning or another phrase contains takes no room of its
    own. Phrases of which only parts overlap are counted in full.
    """
    begin = _known("begin", config.begin, codec, marks) if config.begin.strip() else []
    require = [_known("require", phrase, codec, marks) for phrase in config.require]
    forbid = [ids for phrase in config.forbid if _possible(phrase, ids := codec.encode(phrase), codec, marks)]
    length = len(begin) + sum(map(len, _separate(begin, require)))
    if length > config.max_length:
        raise ConfigError(
            f"decode.begin and decode.require have {length:,} tokens, more than decode.max_length ="
            f" {config.max_length:,}; shorten them, or raise decode.max_length"
        )
    for key, wanted in (("begin", [begin]), ("require", require)):
        for banned in forbid:
            if any(_contains(ids, banned) for ids in wanted):
                raise ConfigError(
                    f"decode.{key} contains {visible(codec.decode(banned)[:_LONGEST])!r}, which"
                    " decode.forbid excludes; remove it from one of them"
                )
    blocked = contexts if config.block_context_ngram else ()
    parts = [[part for ids in context for part in _between(marks, ids)] for context in blocked]
    return Texts(begin, require, forbid, parts)


def _separate(begin: Sequence[int], phrases: Sequence[list[int]]) -> Iterator[list[int]]:
    """The phrases that neither the beginning nor another phrase contains; of equal ones, the first."""
    distinct = [ids for place, ids in enumerate(phrases) if ids not in phrases[:place]]
    for ids in distinct:
        if not any(_contains(other, ids) for other in (begin, *distinct) if other is not ids):
            yield ids


def _between(marks: Marks, ids: Sequence[int]) -> Iterator[list[int]]:
    """The parts of an utterance, or of the prompt of a chat template, between ``<s>`` and ``</s>``."""
    for special, part in groupby(ids, {marks.bos, marks.eos}.__contains__):
        if not special:
            yield list(part)


def _known(key: str, text: str, codec: Codec, marks: Marks) -> list[int]:
    """Ids of a text. ConfigError if a word is unknown."""
    ids = codec.encode(text)
    if codec.vocabulary.unk in ids or not _possible(text, ids, codec, marks):
        raise ConfigError(
            f"decode.{key} {visible(text[:_LONGEST])!r}: not in the run's vocabulary;"
            " choose words of its training text"
        )
    return ids


def _possible(text: str, ids: Sequence[int], codec: Codec, marks: Marks) -> bool:
    """True if responses can contain the ids of a text: some, without marks and without unknown words."""
    unknown = ids.count(codec.vocabulary.unk) > text.count(UNK)
    return bool(ids) and not unknown and {marks.bos, marks.eos, *marks.forbidden}.isdisjoint(ids)


def _contains(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    size = len(phrase)
    return any(list(ids[at : at + size]) == list(phrase) for at in range(len(ids) - size + 1))
