"""Corpora: from the name of a source to its conversations, and from those to a vocabulary."""

from collections.abc import Sequence

from dialog.corpora.columns import ReadOptions
from dialog.corpora.sources import read_source
from dialog.utterance import SPLITS, Dialog, Utterance
from lm.errors import DataError, visible
from lm.stop import Poll, no_poll
from lm.text.lines import InputLog, OnBadLine
from lm.text.vocabulary import BOS, DIALOG, EOS, Codec, TokenizerKind, build_codec

__all__ = ["SMALLTALK", "Dialog", "Utterance", "load_dialogs", "train_codec"]

SMALLTALK = "smalltalk:"


def load_dialogs(source: str, *, on_bad_line: OnBadLine = "error", poll: Poll = no_poll) -> list[Dialog]:
    """Read the conversations that ``data.train``, ``data.valid``, ``data.test`` or ``--data`` name.

    ``source`` is ``smalltalk:train``, ``smalltalk:valid`` or ``smalltalk:test``, a split folder that ``dialog
    prepare`` wrote, or a file or folder of any format that ``dialog prepare`` reads, if it is not split.
    DataError, naming file, line and remedy, where it is missing, empty, undecodable or of another layout.
    """
    if source.startswith(SMALLTALK):
        split = source.removeprefix(SMALLTALK)
        if split not in SPLITS:
            raise DataError(
                f"{visible(source)}: no such split; use smalltalk:train, smalltalk:valid, smalltalk:test"
            )
        from dialog.smalltalk.process import generate

        return generate(split)
    splits = read_source(source, ReadOptions(), InputLog(on_bad_line), poll)
    if len(splits) > 1:
        raise DataError(
            f"{visible(source)}: holds the splits {', '.join(splits)}; name one of its files or folders, "
            "or run `dialog prepare` on it and name a split of the result"
        )
    return next(iter(splits.values()))


def choose_dialogs(source: str, split: str = "", id: str = "") -> list[Dialog]:
    """The conversations of a split, of the first there is if none is named; with an id, that one alone.

    DataError where there is no such split or dialog; else as :func:`load_dialogs`.
    """
    if source.startswith(SMALLTALK):
        splits = {source.removeprefix(SMALLTALK): load_dialogs(source)}
    else:
        splits = read_source(source, ReadOptions(), InputLog())
    if split and split not in splits:
        there = ", ".join(filter(None, splits))
        raise DataError(f"{visible(source)}: no split {visible(split)}; {there or 'it is not split'}")
    dialogs = splits[split] if split else next(iter(splits.values()))
    found = [dialog for dialog in dialogs if id in ("", dialog.id)]
    if not found:
        example = visible(dialogs[0].id)
        raise DataError(f"{visible(source)}: no dialog {visible(id)}; the id of the first one is {example}")
    return found


def train_codec(
    dialogs: Sequence[Dialog], kind: TokenizerKind, *, vocab_size: int, lowercase: bool = True
) -> Codec:
    """Tokenizer and vocabulary of training dialogs, counted as in Zhao et al. (2017).

    Every utterance has one ``<s>`` and one ``</s>``, and so has the ``<d>`` that opens each dialog.
    """
    texts = [utterance.text for dialog in dialogs for utterance in dialog.utterances]
    framed = len(texts) + len(dialogs)
    extra = {BOS: framed, EOS: framed, DIALOG: len(dialogs)}
    return build_codec(kind, texts, vocab_size=vocab_size, lowercase=lowercase, extra_counts=extra)
