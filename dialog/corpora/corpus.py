"""Load the dialogs of a source, and build a vocabulary from dialogs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dialog.corpora.columns import ReadOptions
from dialog.corpora.sources import SMALLTALK, read_source
from dialog.utterance import Dialog
from lm.config.named_data import SPLITS
from lm.errors import DataError
from lm.text.lines import InputLog, OnBadLine
from lm.text.tokenizers import BOS, DIALOG, EOS, TokenizerKind
from lm.text.vocabulary import Codec, Vocabulary, build_codec


def load_dialogs(source: str, *, on_bad_line: OnBadLine = "error") -> list[Dialog]:
    """Read the dialogs that ``data.train``, ``data.valid``, ``data.test`` or ``--data`` names.

    ``source`` is ``smalltalk:SPLIT``, a split folder that ``dialog prepare`` wrote, or an unsplit file or
    folder in any format that ``dialog prepare`` reads. Raises DataError, naming file, line and remedy, if the
    source is missing, empty, undecodable or of another layout.
    """
    if source.startswith(SMALLTALK):
        split = source.removeprefix(SMALLTALK)
        if split not in SPLITS:
            raise DataError(
                f"{source}: no such split; use smalltalk:train, smalltalk:valid or smalltalk:test"
            )
        from dialog.smalltalk.process import generate_dialogs

        return generate_dialogs(split)
    splits = read_source(source, ReadOptions(), InputLog(on_bad_line))
    if len(splits) > 1:
        raise DataError(
            f"{source}: contains the splits {', '.join(splits)}; name one of its files or folders, "
            "or run `dialog prepare` on it and name a split of the result"
        )
    return next(iter(splits.values()))


def choose_dialogs(source: str, split: str = "", id: str = "") -> list[Dialog]:
    """Read the dialogs of a split, by default the first, or with ``id`` the one dialog of that id.

    Raises DataError if there is no such split or dialog, and in the cases of :func:`load_dialogs`.
    """
    if source.startswith(SMALLTALK):
        splits = {source.removeprefix(SMALLTALK): load_dialogs(source)}
    else:
        splits = read_source(source, ReadOptions(), InputLog())
    if split and split not in splits:
        there = ", ".join(filter(None, splits))
        there = f"use one of {there}" if there else "the source has no splits"
        raise DataError(f"{source}: no split {split}; {there}")
    dialogs = splits[split] if split else next(iter(splits.values()))
    found = [dialog for dialog in dialogs if id in ("", dialog.id)]
    if not found:
        raise DataError(f"{source}: no dialog with id {id}; the first id is {dialogs[0].id}")
    return found


def train_codec(
    dialogs: Sequence[Dialog],
    kind: TokenizerKind,
    *,
    vocab_size: int,
    lowercase: bool = True,
    pretrained: Path | None = None,
    chat: bool = False,
) -> Codec:
    """Build tokenizer and vocabulary from training dialogs, with counts as in Zhao et al. (2017).

    Every utterance counts one ``<s>`` and one ``</s>``. So does the ``<d>`` that opens each dialog.
    ``pretrained`` is the folder of a model whose tokenizer and vocabulary are used instead, and with ``chat``
    its chat template.
    """
    texts = [utterance.text for dialog in dialogs for utterance in dialog.utterances]
    framed = len(texts) + len(dialogs)
    extra = {BOS: framed, EOS: framed, DIALOG: len(dialogs)}
    if pretrained:
        from lm.huggingface.pieces import read_tokenizer  # loads pydantic

        tokenizer = read_tokenizer(pretrained, dialog=True, chat=chat)
        counts = Counter(token for text in texts for token in tokenizer.split(text)) + Counter(extra)
        return Codec(tokenizer, Vocabulary(tokenizer.names, [counts[name] for name in tokenizer.names]))
    return build_codec(kind, texts, vocab_size=vocab_size, lowercase=lowercase, extra_counts=extra)
